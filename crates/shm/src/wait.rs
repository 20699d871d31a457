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

/// How a caller of [`Group::run_or_leave`](crate::Group::run_or_leave) wants to be let go.
#[derive(Clone, Copy)]
pub struct Leave<'a> {
    /// From then on it does not wait for ranks that have not come. A sleep that has begun lasts up to a tenth of a second.
    pub after: Instant,
    /// Asked now and then, on the calling thread, while ranks that have come let it wait. True ends the collective on all
    /// ranks.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Why a wait ended before its time.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The caller wants to leave, and some rank has not come.
    Late,
    /// No rank will complete it.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

pub(crate) struct Waiter<'a> {
    shared: &'a Shared,
    spin: Duration,
    leave: Option<Leave<'a>>,
    /// All ranks have come to this collective.
    is_begun: bool,
    /// Why this rank itself stops.
    own: Option<Stop>,
    rank: usize,
    looks: u32,
    spin_end: Option<Instant>,
    yields: u32,
}

impl<'a> Waiter<'a> {
    /// Spins for `spin` at first, if every rank can have a core of its own.
    pub(crate) fn new(shared: &'a Shared, spin: Duration, leave: Option<Leave<'a>>) -> Waiter<'a> {
        Waiter { shared, spin, leave, is_begun: false, own: None, rank: 0, looks: 0, spin_end: None, yields: 0 }
    }

    /// All ranks have come: this one can no longer leave without ending the collective.
    pub(crate) fn begin_collective(&mut self) {
        self.is_begun = true;
    }

    /// Whether this rank itself wants to stop, and why.
    fn own_stop(&self) -> Option<Stop> {
        let leave = self.leave.as_ref()?;
        if !self.is_begun {
            return (Instant::now() >= leave.after).then_some(Stop::Late);
        }
        let rank = self.shared.rank() as u16;
        let interrupted = || Error::Aborted { rank, reason: "it was interrupted".to_owned() };
        (leave.is_interrupted)().then(|| Stop::Failed(interrupted()))
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
    type Error = Stop;

    fn begin(&mut self, rank: usize) {
        (self.own, self.rank, self.looks, self.spin_end, self.yields) = (None, rank, 0, None, 0);
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
        self.own = self.own_stop();
        self.own.is_some() || self.shared.has_died(self.rank)
    }

    fn give_up(&mut self) -> Stop {
        let rank = self.rank as u16;
        let own = self.own.take();
        own.unwrap_or_else(|| {
            Stop::Failed(match self.shared.failure() {
                Some(reason) => reason,
                None if self.shared.has_left(self.rank) => Error::PeerLeft { rank },
                None => Error::PeerDied { rank },
            })
        })
    }
}
