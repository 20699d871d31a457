//! When a packet counts as lost.
//!
//! Two signs, as modern transports have them: *evidence* (packets sent a good
//! while later have been answered) finds losses within a stream at once, and
//! a *timer* (RFC 6298's estimate with exponential back-off) finds the rest.
//! A missing answer mostly means that another worker is late, so the timer
//! sends a single packet first and only widens while that makes progress:
//! waiting for a straggler costs a packet per back-off step, not a window.

use core::hash::{Hash, Hasher};

use super::WorkerConfig;
use crate::time::{Span, Time};

/// Packets that may overtake each other without being taken for lost.
const REORDER_ALLOWANCE_MIN: Span = Span::from_us(200);

#[derive(Clone, Debug)]
pub(super) struct Recovery {
    smoothed_ns: Option<u64>,
    deviation_ns: u64,
    initial: Span,
    min: Span,
    max: Span,
    backoff_count: u32,
    burst: u32,
    burst_max: u32,
    /// The timer counts from the oldest packet's sending or from here,
    /// whichever is later: answers coming in show that the network lives.
    progress_last: Time,
    /// Answered packets were sent up to here.
    evidence: Time,
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
            burst: 1,
            burst_max: config.slots_per_lane,
            progress_last: Time::ZERO,
            evidence: Time::ZERO,
        }
    }

    /// Hashes what is not a time; see `Worker::hash_state`.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.burst, self.backoff_count > 0).hash(hasher);
    }

    pub fn smoothed(&self) -> Option<Span> {
        self.smoothed_ns.map(Span::from_ns)
    }

    pub fn deadline(&self, oldest_sent: Time) -> Time {
        oldest_sent.max(self.progress_last) + self.timeout()
    }

    fn timeout(&self) -> Span {
        let base = match self.smoothed_ns {
            None => self.initial,
            // Round trips include waiting for the slowest worker, so a long
            // one says little about the network: never be more patient than
            // without any measurement.
            Some(smoothed) => Span::from_ns(smoothed + 4 * self.deviation_ns).max(self.min).min(self.initial),
        };
        base.saturating_mul(1 << self.backoff_count.min(16)).min(self.max)
    }

    /// The timer ran out. Returns how many of the oldest packets to resend.
    pub fn on_timeout(&mut self, now: Time) -> u32 {
        self.progress_last = now;
        self.backoff_count += 1;
        self.burst
    }

    /// A packet was answered: its times sent, and whether it was ever resent.
    /// `replied` says that the switch answered a resend of this worker alone.
    pub fn on_answer(&mut self, now: Time, sent_first: Time, sent_last: Time, resent: bool, replied: bool) {
        self.progress_last = now;
        if !resent {
            // Karn: only unambiguous answers are measured.
            self.sample(now.since(sent_first));
            self.burst = 1;
        } else if self.backoff_count > 0 {
            self.widen();
        }
        self.backoff_count = 0;
        let answered = if resent && !replied { sent_first } else { sent_last };
        self.evidence = self.evidence.max(answered);
    }

    /// The switch lacks a contribution: a real loss.
    pub fn on_missing(&mut self, now: Time) {
        self.progress_last = now;
        if self.backoff_count > 0 {
            self.widen();
        }
        self.backoff_count = 0;
    }

    /// What the timer asked about was indeed missing: look for more.
    fn widen(&mut self) {
        self.burst = (self.burst * 2).min(self.burst_max);
    }

    /// Whether a packet sent `attempt_count` times, last at `sent_last`,
    /// should have been answered.
    ///
    /// A loss at one worker delays its slot at all workers, and they cannot
    /// tell whose it was. So a packet must be overtaken by a whole round
    /// trip, and by twice as much each time it was sent again.
    pub fn is_overtaken(&self, sent_last: Time, attempt_count: u32) -> bool {
        let round_trip = Span::from_ns(self.smoothed_ns.unwrap_or(0)).max(REORDER_ALLOWANCE_MIN);
        let doublings = attempt_count.saturating_sub(1).min(10);
        sent_last + round_trip.saturating_mul(1 << doublings) < self.evidence
    }

    fn sample(&mut self, round_trip: Span) {
        let sample = round_trip.as_ns();
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
}
