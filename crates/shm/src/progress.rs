//! How far each rank has come, and how the others wait for it.
//!
//! A collective is a pipeline of windows. Every rank walks through all windows in the same order and publishes three counts
//! for each: *staged* (its input can be read by the others), *reduced* (its part of the result can be read), *done* (it will
//! read nothing of this window again). Windows are numbered through all collectives of a group, and window k lives in
//! slot k modulo the ring's depth. One rule makes that safe: a rank touches a slot for window k only when every rank is
//! done with window k - depth.
//!
//! The words are generic, so that the same code runs on shared memory and under a model checker (`progress/model.rs`).

#[cfg(test)]
#[allow(unsafe_code)]
mod model;

/// A 32-bit word that several processes change and sleep on.
pub(crate) trait Word {
    /// Reads; what was written before the value was published is visible.
    fn load(&self) -> u32;
    /// Adds; publishes what this thread wrote before, sees what others published. Returns the value before.
    fn fetch_add(&self, value: u32) -> u32;
    /// As `fetch_add`, with a bitwise or.
    fn fetch_or(&self, value: u32) -> u32;
    /// Sleeps while the word is `seen`, at most for a while of the implementation's choice.
    fn sleep_while(&self, seen: u32);
    /// Wakes all sleepers.
    fn wake_all(&self);
}

/// How a rank passes the time until another has come as far.
pub(crate) trait Patience {
    /// Why it gave up.
    type Error;

    /// A wait for `rank` begins.
    fn begin(&mut self, rank: usize);
    /// Called each time that the count was not there yet. True to look again at once, false to sleep.
    fn look_again(&mut self) -> bool;
    /// Called after a sleep that ended without news. True if the rank waited for will never come.
    fn is_gone(&mut self) -> bool;
    /// The rank is gone, or its gate was closed before the count was there.
    fn give_up(&mut self) -> Self::Error;
}

/// The lowest bit of a gate says that it is closed, so the count moves in steps of two.
const CLOSED: u32 = 1;
const STEP: u32 = 2;

/// A count that one rank raises and the others wait for. It may wrap.
#[repr(C)]
pub(crate) struct Gate<W> {
    count: W,
    /// How many sleep on `count`. A rank that died asleep stays counted, which only costs a system call each time.
    sleepers: W,
}

impl<W: Word> Gate<W> {
    #[cfg(test)]
    fn new(word: &mut impl FnMut() -> W) -> Gate<W> {
        Gate { count: word(), sleepers: word() }
    }

    /// Raises the count by one.
    pub(crate) fn publish(&self) {
        self.count.fetch_add(STEP);
        self.wake_sleepers();
    }

    /// Raises the count to `count`; only its one writer may.
    pub(crate) fn publish_up_to(&self, count: u32) {
        let behind = count.wrapping_mul(STEP).wrapping_sub(self.count.load() & !CLOSED);
        self.count.fetch_add(behind);
        self.wake_sleepers();
    }

    /// Ends all waits for counts that have not been reached, now and later.
    pub(crate) fn close(&self) {
        self.count.fetch_or(CLOSED);
        self.wake_sleepers();
    }

    /// True once the count is at least `count`.
    pub(crate) fn has_reached(&self, count: u32) -> bool {
        reached(self.count.load(), count)
    }

    /// Waits until the count, which `rank` raises, is at least `count`.
    pub(crate) fn wait<P: Patience>(&self, count: u32, rank: usize, patience: &mut P) -> Result<(), P::Error> {
        if self.has_reached(count) {
            return Ok(());
        }
        patience.begin(rank);
        loop {
            let seen = self.count.load();
            if reached(seen, count) {
                return Ok(());
            }
            if seen & CLOSED != 0 {
                return Err(patience.give_up());
            }
            if patience.look_again() {
                continue;
            }
            self.sleep_while(seen);
            // It may have published and left between the last look and the news that it is gone.
            if self.count.load() == seen && patience.is_gone() && !self.has_reached(count) {
                return Err(patience.give_up());
            }
        }
    }

    fn sleep_while(&self, seen: u32) {
        self.sleepers.fetch_add(1);
        // Whoever raised the count before it could see this sleeper has changed the word that is compared now.
        self.count.sleep_while(seen);
        self.sleepers.fetch_add(1u32.wrapping_neg());
    }

    fn wake_sleepers(&self) {
        // A read-modify-write, for its place in the order of changes: either it sees the sleeper, or the sleeper sees the
        // raised count. A plain load could miss both.
        if self.sleepers.fetch_add(0) != 0 {
            self.count.wake_all();
        }
    }
}

fn reached(seen: u32, count: u32) -> bool {
    (seen.wrapping_sub(count.wrapping_mul(STEP)) as i32) >= 0
}

/// The gates of one rank, on cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Seat<W> {
    staged: Gate<W>,
    reduced: Gate<W>,
    done: Gate<W>,
}

impl<W: Word> Seat<W> {
    #[cfg(test)]
    fn new(word: &mut impl FnMut() -> W) -> Seat<W> {
        Seat { staged: Gate::new(word), reduced: Gate::new(word), done: Gate::new(word) }
    }

    /// Ends all waits for what this rank has not published.
    pub(crate) fn close(&self) {
        self.staged.close();
        self.reduced.close();
        self.done.close();
    }
}

/// The seats of all ranks, as one of them sees them, and the gates of the ring's slots.
pub(crate) struct Progress<'a, W> {
    /// One per rank.
    pub seats: &'a [Seat<W>],
    /// One per slot: the window after the last one there that has been combined with the other hosts' results.
    pub combined: &'a [Gate<W>],
    /// Whose progress this is.
    pub rank: usize,
}

/// The rank that talks to the other hosts.
pub(crate) const LEADER: usize = 0;

/// What a rank does with a window, between the waits.
pub(crate) trait Work {
    /// Makes the own input of window `window` readable by all.
    fn stage(&mut self, window: u32);
    /// Combines the own part of what all ranks staged.
    fn reduce(&mut self, window: u32);
    /// Hands the host's result over to be combined with those of other hosts; the leader's step.
    fn send_up(&mut self, window: u32);
    /// Writes the own output.
    fn deliver(&mut self, window: u32);
}

/// Which steps a collective's windows go through besides being staged and delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Each rank reduces a part of each window and reads the others' parts; without it everyone reads all stages.
    pub reduces: bool,
    /// Windows are combined with other hosts; only with `reduces`.
    pub goes_up: bool,
}

/// The windows of one collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// Number of the first one.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// How many of them this rank has staged already, 0 or 1.
    pub staged: u32,
}

/// How many windows after being staged the next steps follow: late enough that the others have mostly come as far.
const REDUCE_LAG: u32 = 1;
const SEND_UP_LAG: u32 = 2;

/// The smallest ring in which every step of a window comes before its slot is used again.
pub(crate) const DEPTH_MIN: u32 = SEND_UP_LAG + 1;

impl<W: Word> Progress<'_, W> {
    /// Waits until the slot of `window` is free: all ranks are done with the window that was there before.
    pub(crate) fn wait_slot<P: Patience>(&self, window: u32, patience: &mut P) -> Result<(), P::Error> {
        let depth = self.combined.len() as u32;
        self.wait_all(|seat| &seat.done, window.wrapping_sub(depth).wrapping_add(1), patience)
    }

    /// Tells the others that the next window is staged.
    pub(crate) fn publish_staged(&self) {
        self.seats[self.rank].staged.publish();
    }

    /// Waits until all ranks have staged `window`.
    pub(crate) fn wait_staged<P: Patience>(&self, window: u32, patience: &mut P) -> Result<(), P::Error> {
        self.wait_all(|seat| &seat.staged, window.wrapping_add(1), patience)
    }

    /// Tells the others that this rank has reduced what it had to and is done with the next window.
    pub(crate) fn publish_reduced_and_done(&self) {
        self.seats[self.rank].reduced.publish();
        self.seats[self.rank].done.publish();
    }

    /// Waits until all ranks are done with `window`.
    pub(crate) fn wait_done<P: Patience>(&self, window: u32, patience: &mut P) -> Result<(), P::Error> {
        self.wait_all(|seat| &seat.done, window.wrapping_add(1), patience)
    }

    /// Takes `windows` through `steps`. A window's later steps run while younger windows are staged, so that a wait
    /// seldom finds the others behind.
    pub(crate) fn pipeline<P: Patience>(
        &self,
        windows: Windows,
        steps: Steps,
        work: &mut impl Work,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        let deliver_lag = self.deliver_lag(steps);
        for step in windows.staged..windows.count + deliver_lag {
            let at = |lag: u32| {
                let index = step.checked_sub(lag).filter(|index| *index < windows.count);
                index.map(|index| windows.first.wrapping_add(index))
            };
            if let Some(window) = at(0) {
                self.wait_slot(window, patience)?;
                work.stage(window);
                self.publish_staged();
            }
            if let Some(window) = at(REDUCE_LAG).filter(|_| steps.reduces) {
                self.wait_staged(window, patience)?;
                work.reduce(window);
                self.seats[self.rank].reduced.publish();
            }
            if let Some(window) = at(SEND_UP_LAG).filter(|_| steps.goes_up && self.rank == LEADER) {
                self.wait_reduced(window, patience)?;
                work.send_up(window);
            }
            if let Some(window) = at(deliver_lag) {
                self.wait_result(window, steps, patience)?;
                work.deliver(window);
                if !steps.reduces {
                    // The counts of all steps move together, whichever steps a collective has.
                    self.seats[self.rank].reduced.publish();
                }
                self.seats[self.rank].done.publish();
            }
        }
        Ok(())
    }

    fn deliver_lag(&self, steps: Steps) -> u32 {
        match steps {
            // As many windows as the ring holds are on their way through the network.
            Steps { goes_up: true, .. } => self.combined.len() as u32 - 1,
            Steps { reduces: true, .. } => REDUCE_LAG + 1,
            Steps { reduces: false, .. } => REDUCE_LAG,
        }
    }

    fn wait_result<P: Patience>(&self, window: u32, steps: Steps, patience: &mut P) -> Result<(), P::Error> {
        match steps {
            Steps { goes_up: true, .. } => self.combined(window).wait(window.wrapping_add(1), LEADER, patience),
            Steps { reduces: true, .. } => self.wait_reduced(window, patience),
            Steps { reduces: false, .. } => self.wait_staged(window, patience),
        }
    }

    fn wait_reduced<P: Patience>(&self, window: u32, patience: &mut P) -> Result<(), P::Error> {
        self.wait_all(|seat| &seat.reduced, window.wrapping_add(1), patience)
    }

    /// The gate of the slot of `window`.
    pub(crate) fn combined(&self, window: u32) -> &Gate<W> {
        &self.combined[window as usize % self.combined.len()]
    }

    fn wait_all<P: Patience>(
        &self,
        gate: impl Fn(&Seat<W>) -> &Gate<W>,
        count: u32,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        // The own count is known to this thread; the neighbour first, so that not all sleep on one rank's gate.
        let others = (self.rank..self.seats.len()).chain(0..self.rank);
        for rank in others {
            gate(&self.seats[rank]).wait(count, rank, patience)?;
        }
        Ok(())
    }
}
