//! When the oldest packet counts as lost although nothing else shows it: RFC 6298's estimate with exponential back-off.

use crate::time::{Span, Time};

#[derive(Clone, Debug)]
pub(crate) struct ResendTimer {
    smoothed_ns: Option<u64>,
    deviation_ns: u64,
    initial: Span,
    min: Span,
    max: Span,
    backoff_count: u32,
    /// The timer counts from the oldest packet's sending or from here,
    /// whichever is later: answers coming in show that the network lives.
    progress_last: Time,
}

impl ResendTimer {
    /// `initial` holds before the first measurement, `max` with all back-off.
    pub fn new(initial: Span, min: Span, max: Span) -> ResendTimer {
        let progress_last = Time::ZERO;
        ResendTimer { smoothed_ns: None, deviation_ns: 0, initial, min, max, backoff_count: 0, progress_last }
    }

    /// Smoothed round-trip time, once one was measured.
    pub fn smoothed(&self) -> Option<Span> {
        self.smoothed_ns.map(Span::from_ns)
    }

    /// Whether the timer has run out since the last answer.
    pub fn is_backed_off(&self) -> bool {
        self.backoff_count > 0
    }

    pub fn deadline(&self, oldest_sent: Time) -> Time {
        self.deadline_after(oldest_sent, Span::ZERO)
    }

    /// The same for somebody who waits at least so long, but not longer than without any measurement.
    pub fn deadline_after(&self, oldest_sent: Time, least: Span) -> Time {
        oldest_sent.max(self.progress_last) + self.timeout(least)
    }

    fn timeout(&self, least: Span) -> Span {
        let base = match self.smoothed_ns {
            None => self.initial,
            // Round trips include waiting for the slowest worker, so a long
            // one says little about the network: never be more patient than
            // without any measurement.
            Some(smoothed) => {
                Span::from_ns(smoothed + 4 * self.deviation_ns).max(self.min).max(least).min(self.initial)
            }
        };
        base.saturating_mul(1 << self.backoff_count.min(16)).min(self.max)
    }

    /// The timer ran out.
    pub fn on_timeout(&mut self, now: Time) {
        self.progress_last = now;
        self.backoff_count += 1;
    }

    /// An answer came.
    pub fn on_progress(&mut self, now: Time) {
        self.progress_last = now;
        self.backoff_count = 0;
    }

    /// Takes the round trip of a packet that was sent once (Karn: only unambiguous answers are measured).
    pub fn sample(&mut self, round_trip: Span) {
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
