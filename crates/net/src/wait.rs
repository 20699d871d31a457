use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::sys::{self, Interest};
use crate::{NetError, UdpPort};

/// Nobody sleeps and nobody called.
const IDLE: u8 = 0;
/// A wake-up waits to be seen.
const CALLED: u8 = 1;
/// The waiting thread sleeps, or is about to, in the kernel.
const ASLEEP: u8 = 2;

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    event: File,
}

/// Wakes the one thread that waits with it; clones may be held by any number of other threads.
///
/// Calls before a wait are remembered and several are merged into one. As long as the thread is busy or spinning,
/// a call costs one atomic exchange and no system call.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// A waker with no call pending.
    pub fn new() -> Result<Self, NetError> {
        let event = sys::event_fd().map_err(|source| NetError::Setup { action: "create an eventfd", source })?;
        Ok(Self(Arc::new(Shared { state: AtomicU8::new(IDLE), event: event.into() })))
    }

    /// Makes the present wait, or else the next one, return with `woken`.
    pub fn wake(&self) {
        // Release: what the caller wrote before is visible to the thread that takes the call.
        if self.0.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            // The only failure of an eventfd write here is a full counter, and then the sleeper is awake already.
            let _ = (&self.0.event).write(&1u64.to_ne_bytes());
        }
    }

    /// Takes a pending call, if any.
    fn take(&self) -> bool {
        self.0.state.compare_exchange(CALLED, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Announces the sleep; false if a call came first, which is taken.
    fn fall_asleep(&self) -> bool {
        match self.0.state.compare_exchange(IDLE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(_) => {
                self.0.state.store(IDLE, Ordering::Release);
                false
            }
        }
    }

    /// Ends the sleep and takes a call that came during it.
    fn get_up(&self, event_ready: bool) -> bool {
        if event_ready {
            let _ = (&self.0.event).read(&mut [0; 8]);
        }
        let called = self.0.state.swap(IDLE, Ordering::AcqRel) == CALLED;
        // A write that arrives after the exchange of its call was already taken shows up as a late extra wake-up.
        called || event_ready
    }
}

/// How long a thread has polled in vain: the bound of "spin a while, then sleep".
///
/// Waking a thread that sleeps on another core takes longer than most answers, and a thread that polls for ever keeps
/// a core from those it waits for. So the loop of a port's thread polls its sockets and mailboxes, gives the core away
/// between two looks, and sleeps when patience is over.
#[derive(Debug, Default)]
pub struct Patience {
    /// Since when nothing has come.
    since: Option<Instant>,
}

impl Patience {
    /// Notes that there was nothing to do. True when that has been so for `spin`; else other threads get the core.
    pub fn is_over(&mut self, spin: Duration) -> bool {
        if spin.is_zero() || self.since.get_or_insert_with(Instant::now).elapsed() >= spin {
            return true;
        }
        // With more threads than cores, what is waited for may come from one that needs this core.
        std::thread::yield_now();
        false
    }

    /// There was something to do.
    pub fn renew(&mut self) {
        self.since = None;
    }
}

/// Why a wait ended. Nothing true but maybe `slept` means that the time was up or a signal came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A port has something to receive: datagrams, or an error that `receive` turns into an event.
    pub readable: bool,
    /// The waker was called.
    pub woken: bool,
    /// Spinning was not enough and the thread slept in the kernel.
    pub slept: bool,
}

/// Waits on several ports at once (at most 16) as [`UdpPort::wait`] does on one.
pub fn wait_any(
    ports: &[&UdpPort],
    waker: &Waker,
    timeout: Option<Duration>,
    spin: Duration,
) -> Result<Ready, NetError> {
    if ports.len() > sys::WAIT_SOCKETS_MAX {
        return Err(NetError::Option { option: "ports", problem: "wait_any takes at most 16; use more threads" });
    }
    let begin = Instant::now();
    if let Some(ready) = spin_for(ports, waker, spin.min(timeout.unwrap_or(Duration::MAX)))? {
        return Ok(ready);
    }
    let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
    sleep(ports, waker, left)
}

/// Looks without sleeping until something is there or `spin` has passed.
fn spin_for(ports: &[&UdpPort], waker: &Waker, spin: Duration) -> Result<Option<Ready>, NetError> {
    if spin.is_zero() {
        return Ok(None);
    }
    let begin = Instant::now();
    loop {
        let (readable, _) = poll(ports, None, Some(Duration::ZERO))?;
        let woken = waker.take();
        if readable || woken {
            return Ok(Some(Ready { readable, woken, slept: false }));
        }
        if begin.elapsed() >= spin {
            return Ok(None);
        }
        // With more lanes than cores, the datagram waited for may come from a thread that needs this core.
        std::thread::yield_now();
    }
}

fn sleep(ports: &[&UdpPort], waker: &Waker, timeout: Option<Duration>) -> Result<Ready, NetError> {
    if !waker.fall_asleep() {
        let (readable, _) = poll(ports, None, Some(Duration::ZERO))?;
        return Ok(Ready { readable, woken: true, slept: false });
    }
    let result = poll(ports, Some(waker), timeout);
    // Whatever came of it, the thread is awake again; a waker left ASLEEP would only cost system calls.
    let woken = waker.get_up(matches!(result, Ok((_, true))));
    let (readable, _) = result?;
    Ok(Ready { readable, woken, slept: true })
}

fn poll(ports: &[&UdpPort], waker: Option<&Waker>, timeout: Option<Duration>) -> Result<(bool, bool), NetError> {
    let event = waker.map(|waker| waker.0.event.as_fd());
    sys::poll(&mut ports.iter().map(|port| port.as_fd()), Interest::Readable, event, timeout).map_err(NetError::Wait)
}
