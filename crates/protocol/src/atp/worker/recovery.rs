//! When the oldest chunk counts as lost although nothing overtook it: a timer as RFC 6298 has it.
//!
//! ATP's sign of loss is three Parameters of later chunks (§3.7); the last chunks of a stream have none behind them. A
//! slow worker looks like a loss, and what is sent again can no longer be aggregated, so the timer is patient.

use core::hash::{Hash, Hasher};

use super::WorkerConfig;
use crate::time::{Span, Time};

#[derive(Clone, Debug)]
pub(super) struct Recovery {
    smoothed_ns: Option<u64>,
    deviation_ns: u64,
    initial: Span,
    min: Span,
    max: Span,
    backoff_count: u32,
    /// Answers coming in show that the network lives.
    progress_last: Time,
}

impl Recovery {
    pub fn new(config: &WorkerConfig) -> Recovery {
        Recovery {
            smoothed_ns: None,
            deviation_ns: 0,
            initial: config.resend_timeout_initial,
            min: config.resend_timeout_min,
            max: config.resend_timeout_max,
            backoff_count: 0,
            progress_last: Time::ZERO,
        }
    }

    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.backoff_count > 0).hash(hasher);
    }

    /// Smoothed time from a Fragment to its Parameter.
    pub fn smoothed(&self) -> Option<Span> {
        self.smoothed_ns.map(Span::from_ns)
    }

    pub fn deadline(&self, oldest_sent: Time) -> Time {
        oldest_sent.max(self.progress_last) + self.timeout()
    }

    pub fn on_timeout(&mut self, now: Time) {
        self.progress_last = now;
        self.backoff_count += 1;
    }

    /// A chunk was answered that was sent once, at `sent`, or (`None`) more than once.
    pub fn on_answer(&mut self, now: Time, sent: Option<Time>) {
        self.progress_last = now;
        self.backoff_count = 0;
        // Karn: only unambiguous answers are measured.
        let Some(sample) = sent.map(|sent| now.since(sent).as_ns()) else { return };
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(sample);
                self.deviation_ns = sample / 2;
            }
            Some(smoothed) => {
                self.deviation_ns = (3 * self.deviation_ns + smoothed.abs_diff(sample)) / 4;
                self.smoothed_ns = Some((7 * smoothed + sample) / 8);
            }
        }
    }

    fn timeout(&self) -> Span {
        let base = match self.smoothed_ns {
            None => self.initial,
            Some(smoothed) => Span::from_ns(smoothed + 4 * self.deviation_ns).max(self.min).min(self.initial),
        };
        base.saturating_mul(1 << self.backoff_count.min(16)).min(self.max)
    }
}
