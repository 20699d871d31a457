//! How late other workers are, as far as one can tell from the answers to one's own chunks.
//!
//! The time to a Parameter contains the wait for the last worker, and says little about the network. A timer that runs out
//! meanwhile does harm: what it sends again gives up the chunk's slot (ATP §3.7), where the late worker's Fragment then waits alone,
//! and all workers take the chunk for lost. So the timer waits for as long as somebody was late not long ago, until it finds a
//! loss itself.

use crate::time::{Span, Time};

/// After this long without a wait as long as the longest, half of it is expected.
const MEMORY: Span = Span::from_ms(1000);

#[derive(Clone, Debug)]
pub(super) struct Lateness {
    longest: Span,
    seen: Time,
}

impl Lateness {
    pub fn new() -> Lateness {
        Lateness { longest: Span::ZERO, seen: Time::ZERO }
    }

    /// A chunk has waited so long for its Parameter, and not because it was lost.
    pub fn note(&mut self, now: Time, wait: Span) {
        if now.since(self.seen) > MEMORY {
            self.longest = Span::from_ns(self.longest.as_ns() / 2);
            self.seen = now;
        }
        if wait >= self.longest {
            (self.longest, self.seen) = (wait, now);
        }
    }

    /// The timer has found a loss: whoever is late may have lost something too.
    pub fn forget(&mut self) {
        self.longest = Span::ZERO;
    }

    /// The timer has probably found a loss.
    pub fn doubt(&mut self) {
        self.longest = Span::from_ns(self.longest.as_ns() / 2);
    }

    /// For how long a missing Parameter may be nobody's loss: a quarter more than the longest wait.
    pub fn patience(&self) -> Span {
        Span::from_ns(self.longest.as_ns() / 4 * 5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_ms(ms)
    }

    #[test]
    fn the_longest_wait_is_expected_again_until_it_is_long_ago_or_something_is_lost() {
        let mut lateness = Lateness::new();
        assert_eq!(lateness.patience(), Span::ZERO);
        lateness.note(at(10), Span::from_ms(8));
        lateness.note(at(11), Span::from_us(50));
        assert_eq!(lateness.patience(), Span::from_ms(10));
        for later in [1100, 1200] {
            lateness.note(at(later), Span::from_us(50));
            assert_eq!(lateness.patience(), Span::from_ms(5), "a second without a wait as long halves it once");
        }
        lateness.note(at(1300), Span::from_ms(6));
        assert_eq!(lateness.patience(), Span::from_us(7500));
        lateness.doubt();
        assert_eq!(lateness.patience(), Span::from_us(3750), "one resend that seems to have helped may be chance");
        lateness.forget();
        assert_eq!(lateness.patience(), Span::ZERO);
    }
}
