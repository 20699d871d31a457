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
use crate::resend_timer::ResendTimer;
use crate::time::{Span, Time};

/// Packets that may overtake each other without being taken for lost.
const REORDER_ALLOWANCE_MIN: Span = Span::from_us(200);

#[derive(Clone, Debug)]
pub(super) struct Recovery {
    timer: ResendTimer,
    burst: u32,
    burst_max: u32,
    /// Answered packets were sent up to here.
    evidence: Time,
}

impl Recovery {
    pub fn new(config: &WorkerConfig) -> Recovery {
        let [initial, min, max] = [config.resend_timeout_initial, config.resend_timeout_min, config.resend_timeout_max];
        Recovery {
            timer: ResendTimer::new(initial, min, max),
            burst: 1,
            burst_max: config.slots_per_lane,
            evidence: Time::ZERO,
        }
    }

    /// Hashes what is not a time; see `Worker::hash_state`.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.burst, self.timer.is_backed_off()).hash(hasher);
    }

    pub fn smoothed(&self) -> Option<Span> {
        self.timer.smoothed()
    }

    pub fn deadline(&self, oldest_sent: Time) -> Time {
        self.timer.deadline(oldest_sent)
    }

    /// The timer ran out. Returns how many of the oldest packets to resend.
    pub fn on_timeout(&mut self, now: Time) -> u32 {
        self.timer.on_timeout(now);
        self.burst
    }

    /// A packet was answered: its times sent, and whether it was ever resent.
    /// `replied` says that the switch answered a resend of this worker alone.
    pub fn on_answer(&mut self, now: Time, sent_first: Time, sent_last: Time, resent: bool, replied: bool) {
        if !resent {
            self.timer.sample(now.since(sent_first));
            self.burst = 1;
        } else if self.timer.is_backed_off() {
            self.widen();
        }
        self.timer.on_progress(now);
        let answered = if resent && !replied { sent_first } else { sent_last };
        self.evidence = self.evidence.max(answered);
    }

    /// The switch lacks a contribution: a real loss.
    pub fn on_missing(&mut self, now: Time) {
        if self.timer.is_backed_off() {
            self.widen();
        }
        self.timer.on_progress(now);
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
        let round_trip = self.smoothed().unwrap_or_default().max(REORDER_ALLOWANCE_MIN);
        let doublings = attempt_count.saturating_sub(1).min(10);
        sent_last + round_trip.saturating_mul(1 << doublings) < self.evidence
    }
}
