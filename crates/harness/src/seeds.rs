//! A range of seeds on all processors.

use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs all seeds of a range; the sum of what they came to.
///
/// # Errors
/// The failure of the smallest seed among those that failed before the threads stopped. A panic is one like any other, made
/// from the seed by `panicked`.
pub fn run<S, E>(
    seeds: Range<u64>,
    run_seed: impl Fn(u64) -> Result<S, E> + Sync,
    panicked: impl Fn(u64) -> E + Sync,
) -> Result<S, E>
where
    S: AddAssign + Default + Send,
    E: Send,
{
    let next = AtomicU64::new(seeds.start);
    let outcome: Mutex<(S, Option<(u64, E)>)> = Mutex::new((S::default(), None));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(|| run_seed(seed))).unwrap_or_else(|_| Err(panicked(seed)));
            let mut outcome = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match result {
                Ok(summary) => outcome.0 += summary,
                Err(failure) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    outcome.1 = outcome.1.take().filter(|(other, _)| *other < seed).or(Some((seed, failure)));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (total, failure) = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    failure.map_or(Ok(total), |(_, failure)| Err(failure))
}
