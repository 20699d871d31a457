//! Threads meet after each window, and agree on the next one.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Looks before a thread lets others run: about as long as the threads' shares of a window differ.
const SPINS: u32 = 2_000;

/// A barrier that finds the least of what the threads bring along.
pub struct Pace {
    thread_count: usize,
    spins: u32,
    arrived: AtomicUsize,
    /// A thread has panicked and will not come.
    is_broken: AtomicBool,
    /// Meetings so far.
    round: AtomicUsize,
    /// What each thread brought, for this meeting and the next: a thread may be one ahead.
    brought: [Vec<AtomicU64>; 2],
}

impl Pace {
    /// Brought by a thread that wants the run to end.
    pub const STOP: u64 = 0;

    /// For so many threads.
    pub fn new(thread_count: usize) -> Pace {
        let brought = || (0..thread_count).map(|_| AtomicU64::new(0)).collect();
        // With fewer processors than threads, whoever spins keeps another from arriving.
        let has_processors = std::thread::available_parallelism().is_ok_and(|count| count.get() >= thread_count);
        let spins = if has_processors { SPINS } else { 0 };
        Pace {
            thread_count,
            spins,
            arrived: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            round: AtomicUsize::new(0),
            brought: [brought(), brought()],
        }
    }

    /// Waits for the others; the least of all `next_ps`.
    pub fn agree(&self, index: usize, parity: usize, next_ps: u64) -> u64 {
        if self.thread_count == 1 {
            return next_ps;
        }
        let brought = &self.brought[parity];
        brought[index].store(next_ps, Ordering::Relaxed);
        let round = self.round.load(Ordering::Relaxed);
        // The last to arrive sees what all have stored, and lets them see it.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.thread_count {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
        } else {
            let mut spins = 0;
            while self.round.load(Ordering::Acquire) == round {
                if self.is_broken.load(Ordering::Relaxed) {
                    return Self::STOP;
                }
                spins += 1;
                if spins < self.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        brought.iter().map(|next| next.load(Ordering::Relaxed)).min().unwrap_or(next_ps)
    }
}

/// Lets the other threads go when its own one panics.
pub struct Attendance<'a>(pub &'a Pace);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_meet_and_agree_on_the_least() {
        let pace = Pace::new(3);
        std::thread::scope(|scope| {
            for index in 0..3 {
                let pace = &pace;
                scope.spawn(move || {
                    for round in 0..500u64 {
                        let own = 10 * round + (index as u64 + round) % 3 + 1;
                        assert_eq!(pace.agree(index, round as usize % 2, own), 10 * round + 1);
                    }
                });
            }
        });
    }

    #[test]
    fn nobody_waits_for_a_thread_that_panicked() {
        let pace = Pace::new(2);
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let _attendance = Attendance(&pace);
                panic!("as wanted");
            });
            assert_eq!(pace.agree(0, 0, 5), Pace::STOP);
            assert!(failing.join().is_err());
        });
    }
}
