//! Counts per kind of collective that need no Python to be kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fanin_host::{Error, ErrorKind, Outcome};

/// One kind of collective.
#[derive(Clone, Debug, Default)]
pub struct Total {
    pub completed: u64,
    pub failed: u64,
    pub timeouts: u64,
    pub chunks: u64,
    pub non_finite_blocks: u64,
    pub overflowed_elements: u64,
    pub in_flight: Duration,
}

impl Total {
    fn add(&mut self, result: &Result<Outcome, Error>) {
        match result {
            Ok(outcome) => {
                self.completed += 1;
                self.chunks += outcome.chunks;
                self.non_finite_blocks += outcome.non_finite_blocks;
                self.overflowed_elements += outcome.overflowed_elements;
                self.in_flight += outcome.elapsed;
            }
            Err(error) => {
                self.failed += 1;
                self.timeouts += u64::from(error.kind == ErrorKind::TimedOut);
            }
        }
    }
}

/// All kinds; shared with the callbacks of collectives in flight.
#[derive(Debug, Default)]
pub struct Totals(Mutex<BTreeMap<&'static str, Total>>);

impl Totals {
    /// A copy of the counts.
    pub fn snapshot(&self) -> BTreeMap<&'static str, Total> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Total>> {
        // Plain counters stay sound whatever a panicking holder did.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Counts the end of one collective once, whoever sees it first: its waiter
/// wakes before the runtime's callback has run, and must find it counted.
#[derive(Clone, Debug)]
pub struct Account {
    totals: Arc<Totals>,
    kind: &'static str,
    is_counted: Arc<AtomicBool>,
}

impl Account {
    pub fn new(totals: &Arc<Totals>, kind: &'static str) -> Account {
        Account { totals: Arc::clone(totals), kind, is_counted: Arc::default() }
    }

    /// Counts `result`, unless that has been done.
    pub fn record(&self, result: &Result<Outcome, Error>) {
        // Under the lock, so that who finds it counted also finds the counts.
        let mut kinds = self.totals.lock();
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            kinds.entry(self.kind).or_default().add(result);
        }
    }
}
