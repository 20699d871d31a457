use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::call::{Call, Descriptor, Place};
use crate::engine::Engine;
use crate::plan::{Path, Plan};
use crate::progress::{LEADER, Windows, Work};
use crate::region::{Neighbours, Region, RegionBook};
use crate::shared::Shared;
use crate::uplink::Uplink;
use crate::wait::{Leave, Stop, Waiter};
use crate::{Config, Error, form};

/// From this length on ranks first tell each other where their tensors are, which costs one wait for all others, because
/// the direct path saves more than that.
const DIRECT_BYTES_MIN: usize = 128 << 10;

/// The ranks of one job on one host. Every rank calls the same collectives in the same order.
///
/// Dropping it tells the others; a collective that still needs this rank then fails on them.
pub struct Group {
    shared: Arc<Shared>,
    book: Arc<RegionBook>,
    neighbours: Neighbours,
    spin: Duration,
    has_uplink: bool,
    next_window: u32,
    /// Sequence number of the collective that was left before all ranks had come.
    left: Option<u64>,
    /// The other ranks have been told of that one.
    is_announced: bool,
    failed: Option<Error>,
}

impl Group {
    /// Meets the other ranks of `config`'s job on this host.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Missing`] after `config.form_timeout`, [`Error::Refused`], [`Error::System`].
    pub fn form(config: &Config) -> Result<Group, Error> {
        config.check()?;
        let shared = Arc::new(form::form(config)?);
        let core_count = thread::available_parallelism().map_or(1, usize::from);
        let has_core_each = core_count >= usize::from(config.local_size);
        Ok(Group {
            shared,
            book: Arc::default(),
            neighbours: Neighbours::default(),
            spin: if has_core_each { config.spin } else { Duration::ZERO },
            has_uplink: config.has_uplink,
            next_window: 0,
            left: None,
            is_announced: false,
            failed: None,
        })
    }

    /// Memory on which collectives of 128 KiB or more need no copy, if all ranks' inputs and outputs are in such memory and
    /// there is no uplink.
    ///
    /// # Errors
    /// [`Error::System`] if there is not as much memory.
    pub fn allocate(&self, bytes: usize) -> Result<Region, Error> {
        Region::new(&self.shared, &self.book, bytes)
    }

    /// Ends the collective in progress, or the next one, on all ranks.
    pub fn aborter(&self) -> Aborter {
        Aborter { shared: Arc::clone(&self.shared) }
    }

    /// Carries out one collective and returns when this rank's output is complete and its input is no longer needed. Waits
    /// as long as the others need; [`Aborter::abort`] ends it. `uplink` is given by local rank 0 if the group was formed to
    /// have one, and only then.
    ///
    /// After an error the group stays failed. The memory is the caller's again: other ranks may still read a registered
    /// input, but then they fail as well; a registered output has been detached (see [`Region`]).
    ///
    /// # Errors
    /// [`Error::Call`] for what cannot work, before anything is started; all others fail the group on every rank.
    ///
    /// # Safety
    /// Input and output are valid for as many bytes as `call` says, and nobody else writes the input or touches the output
    /// until this returns. They overlap only where both hold the same part of the vector.
    pub unsafe fn run(&mut self, call: &Call, uplink: Option<&mut dyn Uplink>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.run_or_leave(call, uplink, None) }.map(drop)
    }

    /// The same for a caller that does not wait for ever: if by `leave.after` some rank has not come, this returns false, and
    /// must be called again with the same `call`, on any thread, before anything else is carried out. Once all ranks have
    /// come it goes on to the end, since the others count on it; only `leave.is_interrupted` still ends it, on all ranks.
    ///
    /// # Errors
    /// As for [`Group::run`]; [`Error::Call`] also for another call than the one that was left.
    ///
    /// # Safety
    /// As for [`Group::run`], until this returns true or an error.
    pub unsafe fn run_or_leave(
        &mut self,
        call: &Call,
        uplink: Option<&mut dyn Uplink>,
        leave: Option<Leave<'_>>,
    ) -> Result<bool, Error> {
        let reduction = call.check()?;
        if uplink.is_some() != (self.has_uplink && self.shared.rank() == LEADER) {
            return Err(Error::Call("the leader of a group that has an uplink passes it, and nobody else".to_owned()));
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.left.is_some_and(|sequence| sequence != call.sequence) {
            return Err(Error::Call("the collective that was left must be completed first".to_owned()));
        }
        let place = |start: *const u8, bytes: usize| self.book.find(start, bytes);
        let descriptor =
            call.describe(place(call.input, call.contributes.len()), place(call.output, call.receives.len()));
        let output = descriptor.output;
        let shared = Arc::clone(&self.shared);
        let uplink = uplink.map(|uplink| uplink as &mut dyn Uplink);
        // SAFETY: the caller's promise, until this function returns.
        let mut engine = unsafe { Engine::new(&shared, call, reduction, uplink, self.next_window) };
        let outcome = self.attempt(descriptor, &mut engine, leave);
        self.left = matches!(outcome, Err(Stop::Late)).then_some(call.sequence);
        let error = match outcome {
            Ok(()) => return Ok(true),
            Err(Stop::Late) => return Ok(false),
            Err(Stop::Failed(error)) => error,
        };
        Err(self.fail(error, output))
    }

    /// Ends the collective on all ranks.
    fn fail(&mut self, error: Error, output: Option<Place>) -> Error {
        let shared = &self.shared;
        shared.abort(&error);
        // The first reason of all ranks is the one that helps.
        let first = shared.failure().unwrap_or(error);
        let detached = output.map_or(Ok(()), |output| self.book.detach(shared, output));
        let error = detached.err().unwrap_or(first);
        self.failed = Some(error.clone());
        error
    }

    /// The collective up to its first error, or until the caller leaves.
    fn attempt(
        &mut self,
        descriptor: Descriptor,
        engine: &mut Engine<'_>,
        leave: Option<Leave<'_>>,
    ) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let (progress, mut waiter) = (shared.progress(), Waiter::new(&shared, self.spin, leave));
        let (first, bytes) = (self.next_window, descriptor.bytes);
        let may_be_direct = bytes >= DIRECT_BYTES_MIN && !self.has_uplink;
        // The first window then holds descriptors only; otherwise it holds the whole vector as well.
        let descriptors_go_first = may_be_direct || bytes > shared.window_bytes();
        if !self.is_announced {
            progress.wait_slot(first, &mut waiter)?;
            shared.write_descriptor(first, &descriptor);
            if !descriptors_go_first {
                engine.stage(first);
            }
            progress.publish_staged();
            self.is_announced = true;
        }
        progress.wait_staged(first, &mut waiter)?;
        self.is_announced = false;
        waiter.begin_collective();
        let ranks = (0..shared.rank_count()).map(|rank| shared.read_descriptor(rank, first));
        let plan = Plan::new(ranks.collect::<Result<_, _>>()?, may_be_direct, self.has_uplink)?;
        let path = plan.path;
        engine.follow(plan);
        let steps = match path {
            Path::Direct => return self.run_direct(engine, &mut waiter),
            Path::Staged(steps) => steps,
        };
        let windows = if descriptors_go_first {
            progress.publish_reduced_and_done();
            let count = bytes.div_ceil(shared.window_bytes()) as u32;
            Windows { first: first.wrapping_add(1), count, staged: 0 }
        } else {
            Windows { first, count: 1, staged: 1 }
        };
        engine.begin_at(windows.first);
        self.next_window = windows.first.wrapping_add(windows.count);
        progress.pipeline(windows, steps, engine, &mut waiter)
    }

    /// The rest of a collective whose tensors are all registered.
    fn run_direct(&mut self, engine: &mut Engine<'_>, waiter: &mut Waiter<'_>) -> Result<(), Stop> {
        let window = self.next_window;
        self.next_window = window.wrapping_add(1);
        engine.run_direct(&mut self.neighbours)?;
        // A rank that gave up may have changed its input while it was read here.
        self.shared.check_alive()?;
        let progress = self.shared.progress();
        progress.publish_reduced_and_done();
        progress.wait_done(window, waiter)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

/// Ends a group's collectives from any thread.
#[derive(Clone)]
pub struct Aborter {
    shared: Arc<Shared>,
}

impl Aborter {
    /// Fails the collective in progress and all later ones, on all ranks, with `reason`. The first reason counts.
    pub fn abort(&self, reason: &str) {
        self.shared.abort(&Error::Aborted { rank: self.shared.rank() as u16, reason: reason.to_owned() });
    }
}

#[cfg(test)]
mod tests;
