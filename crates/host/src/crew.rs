//! Whose thread carries a lane's packets: the lane's own, or that of a caller who would only wait for its collective.
//!
//! Every change of thread costs a wake-up, or a turn on a core where threads outnumber cores. A caller of
//! [`crate::Session::run`] therefore carries the packets itself while nobody else does, and the lane's thread sleeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use fanin_net::{Patience, Waker};

use crate::lane::{Command, Lane, Running};
use crate::session::Shared;
use crate::stats::LaneStats;

/// How often an idle thread looks whether it was called: only in case a call was lost.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// A lane as the rest of the session sees it.
pub(crate) struct Crew {
    commands: Sender<Command>,
    /// Wakes whoever carries the packets.
    waker: Waker,
    stats: Arc<Mutex<LaneStats>>,
    spin: Duration,
    /// Whoever holds it carries the packets.
    running: Mutex<Running>,
    /// There is something that nobody may be about to do.
    is_called: AtomicBool,
    /// The lane's own.
    thread: OnceLock<Thread>,
}

impl Crew {
    pub fn new(lane: Lane, commands: Sender<Command>) -> Crew {
        Crew {
            commands,
            waker: lane.waker.clone(),
            stats: lane.stats.clone(),
            spin: lane.spin,
            running: Mutex::new(Running::new(lane)),
            is_called: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Hands over a command and sees to it that somebody obeys.
    pub fn tell(&self, command: Command) {
        self.leave(command);
        self.call();
    }

    /// Hands over a command that the caller is about to obey itself, by [`Crew::carry_until_done`].
    pub fn leave(&self, command: Command) {
        // The receiver lives as long as this does.
        let _ = self.commands.send(command);
    }

    fn call(&self) {
        // Release: the thread that takes the call sees what was there to be done.
        self.is_called.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.get().into_iter().for_each(Thread::unpark);
    }

    /// Carries packets until a collective no longer needs this lane, or the time is `until`. Where somebody else does already, it
    /// is left to them.
    pub fn carry_until_done(&self, shared: &Shared, sequence: u64, until: Option<Instant>) {
        let mut running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.call(),
        };
        running.carry(shared, until, |running| !running.carries(sequence));
        // Whatever else is left was told, or left by a caller who found the lane taken: the lane's thread has been called for it,
        // and waits for the lock.
        if running.carries(sequence) {
            drop(running);
            self.call();
        }
    }

    /// The lane's thread, until the lane is closed.
    pub fn run(&self, shared: &Shared) {
        let _ = self.thread.set(std::thread::current());
        loop {
            let mut running = self.lock();
            running.carry(shared, None, |running| !running.is_busy());
            running.publish();
            if running.is_closed() {
                return;
            }
            drop(running);
            self.wait_for_call();
        }
    }

    fn wait_for_call(&self) {
        let mut patience = Patience::default();
        // Acquire: pairs with the caller's Release.
        while !self.is_called.swap(false, Ordering::Acquire) {
            if patience.is_over(self.spin) {
                std::thread::park_timeout(IDLE_LOOK);
            }
        }
    }

    pub fn read_stats(&self) -> LaneStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
