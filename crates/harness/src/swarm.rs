//! Many seeds on all processors.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fanin_protocol::time::Time;

use crate::{Summary, Violation, run_seed};

/// What a range of seeds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Scenarios.
    pub seeds: u64,
    /// Sums over all scenarios.
    pub sums: Summary,
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary { steps, completed, contributions, resends, queries, lost, .. } = self.sums;
        write!(
            f,
            "{} seeds, {steps} steps, {completed} collectives completed, {contributions} contributions, {resends} \
             resends, {queries} queries, {lost} packets lost, 0 wrong sums",
            self.seeds
        )
    }
}

/// Runs all seeds of a range.
///
/// # Errors
/// The violation of the smallest seed among those that failed before the
/// threads stopped.
pub fn run(seeds: Range<u64>) -> Result<Total, Violation> {
    let next = AtomicU64::new(seeds.start);
    let outcome: Mutex<(Total, Option<Violation>)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&next, seeds.end, &outcome));
        }
    });
    let (total, violation) = outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    violation.map_or(Ok(total), Err)
}

fn work(next: &AtomicU64, end: u64, outcome: &Mutex<(Total, Option<Violation>)>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let result = guarded(seed);
        let mut outcome = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match result {
            Ok(summary) => add(&mut outcome.0, &summary),
            Err(violation) => {
                next.store(end, Ordering::Relaxed);
                if outcome.1.as_ref().is_none_or(|other| violation.seed < other.seed) {
                    outcome.1 = Some(violation);
                }
                return;
            }
        }
    }
}

/// A panic of the code under test is a violation like any other: it must
/// name its seed.
fn guarded(seed: u64) -> Result<Summary, Violation> {
    catch_unwind(AssertUnwindSafe(|| run_seed(seed, false)))
        .unwrap_or_else(|_| Err(Violation { seed, at: Time::ZERO, what: "panicked; see above".into() }))
}

fn add(total: &mut Total, summary: &Summary) {
    total.seeds += 1;
    total.sums.steps += summary.steps;
    total.sums.completed += summary.completed;
    total.sums.contributions += summary.contributions;
    total.sums.resends += summary.resends;
    total.sums.queries += summary.queries;
    total.sums.lost += summary.lost;
}
