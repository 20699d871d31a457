//! How a rank passes the time until another one has come as far: spin, give the processor away, sleep.

use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::progress::Patience;
use crate::shared::Shared;

/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;
/// How often a rank gives the processor away before it sleeps. Where ranks outnumber cores, the one waited for is likely to
/// be next in line, and to be run at once costs less than to be woken.
const YIELDS: u32 = 40;

pub(crate) struct Waiter<'a> {
    shared: &'a Shared,
    spin: Duration,
    rank: usize,
    looks: u32,
    spin_end: Option<Instant>,
    yields: u32,
}

impl<'a> Waiter<'a> {
    /// Spins for `spin` at first, if every rank can have a core of its own.
    pub(crate) fn new(shared: &'a Shared, spin: Duration) -> Waiter<'a> {
        Waiter { shared, spin, rank: 0, looks: 0, spin_end: None, yields: 0 }
    }

    fn spins_on(&mut self) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            return true;
        }
        let now = Instant::now();
        now < *self.spin_end.get_or_insert(now + self.spin)
    }
}

impl Patience for Waiter<'_> {
    type Error = Error;

    fn begin(&mut self, rank: usize) {
        (self.rank, self.looks, self.spin_end, self.yields) = (rank, 0, None, 0);
    }

    fn look_again(&mut self) -> bool {
        if !self.spin.is_zero() && self.yields == 0 && self.spins_on() {
            std::hint::spin_loop();
            return true;
        }
        self.yields += 1;
        if self.yields <= YIELDS {
            thread::yield_now();
            return true;
        }
        false
    }

    fn is_gone(&mut self) -> bool {
        self.shared.has_died(self.rank)
    }

    fn give_up(&mut self) -> Error {
        let rank = self.rank as u16;
        match self.shared.failure() {
            Some(reason) => reason,
            None if self.shared.has_left(self.rank) => Error::PeerLeft { rank },
            None => Error::PeerDied { rank },
        }
    }
}
