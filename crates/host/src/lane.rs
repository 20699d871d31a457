//! One lane: packets between a socket and a [`Worker`]. [`crate::crew`] says whose thread carries them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use fanin_net::{NetError, Patience, PortEvent, ReceiveBatch, SendBatch, UdpPort, Waker, wait_any};
use fanin_numeric::BlockExponent;
use fanin_protocol::DropReason;
use fanin_protocol::atp::{self, Missing};
use fanin_protocol::switchml::{BlockId, Submission, Tensors};
use fanin_protocol::time::Time;
use fanin_wire::atp::ElementFormat as AtpElementFormat;

use crate::endpoint::{Endpoint, Event};
use crate::session::Shared;
use crate::stats::LaneStats;
use crate::ticket::Collective;
use crate::{Error, ErrorKind};

/// How often a busy lane publishes its counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Where sums come by multicast, the own port is looked at this seldom while the lane polls: what comes there are answers to
/// questions about losses.
const OWN_PORT_EVERY: u32 = 8;
/// How long a closed port may answer before the switch counts as gone.
const REFUSED_FOR_MAX: Duration = Duration::from_secs(1);

pub(crate) enum Command {
    Submit(Arc<Collective>, Submission),
    /// ATP: the job goes on without ranks that were lost, or with others in their place.
    SetUpAgain(atp::SetUp),
    /// Let go of all memory: every collective here ends with this error.
    Abort(Error),
    Close,
}

/// Something the watcher must look into.
pub(crate) enum Trouble {
    /// The switch refuses a chunk.
    Refused { lane: u16, reason: DropReason, chunk_index: u32, slot_index: Option<u16>, collective: Option<u64> },
    /// The socket does not work, or nobody listens at the other end.
    Network(Error),
    /// This rank has come to a boundary, of which the switch is to hear at once.
    AtBoundary,
}

pub(crate) struct Lane {
    pub number: u16,
    pub port: UdpPort,
    /// Where sums for all ranks arrive, if the network carries multicast.
    pub group: Option<UdpPort>,
    pub peer: SocketAddr,
    pub endpoint: Endpoint,
    pub waker: Waker,
    pub mailbox: Receiver<Command>,
    pub trouble: Sender<Trouble>,
    pub stats: Arc<Mutex<LaneStats>>,
    pub spin: Duration,
}

/// Collectives of a lane, oldest first: their numbers ascend. Beside them, who is missing in the sum that is read next, and
/// blocks of raw floats whose sums were not all finite.
#[derive(Default)]
struct Collectives(VecDeque<Arc<Collective>>, Missing, u64);

impl Collectives {
    fn find(&self, sequence: u64) -> Option<&Arc<Collective>> {
        let index = self.0.partition_point(|collective| collective.sequence < sequence);
        self.0.get(index).filter(|collective| collective.sequence == sequence)
    }

    fn get(&self, id: BlockId) -> &Collective {
        self.find(id.collective).expect("the worker only names collectives that this lane has submitted")
    }

    fn take(&mut self, sequence: u64) -> Option<Arc<Collective>> {
        let index = self.0.partition_point(|collective| collective.sequence < sequence);
        self.0.get(index).is_some_and(|collective| collective.sequence == sequence).then(|| self.0.remove(index))?
    }
}

impl Tensors for Collectives {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        self.get(id).memory().block_exponent(id)
    }

    fn write_block(&mut self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]) {
        self.get(id).memory().write_block(id, exponent, payload);
    }

    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, shift: u8, payload: &[u8]) {
        let collective = self.get(id);
        if !collective.memory().read_block(id, exponent, shift, payload) {
            collective.count_non_finite();
            self.2 += 1;
        }
        self.get(id).count_block();
    }
}

impl atp::Tensors for Collectives {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        self.get(id).memory().block_exponent(id)
    }

    fn write_block(&mut self, id: BlockId, format: AtpElementFormat, exponent: BlockExponent, payload: &mut [u8]) {
        self.get(id).memory().write_atp_block(id, format, exponent, payload);
    }

    fn read_block(&mut self, id: BlockId, format: AtpElementFormat, exponent: BlockExponent, payload: &[u8]) {
        let missing = std::mem::take(&mut self.1);
        let collective = self.get(id);
        collective.memory().read_atp_block(id, format, exponent, missing.count, payload);
        collective.count_block();
        if missing.count > 0 {
            collective.count_missing(&missing);
        }
    }

    fn declare_missing(&mut self, _: BlockId, missing: &Missing) {
        self.1 = *missing;
    }
}

/// A lane at work.
pub(crate) struct Running {
    lane: Lane,
    collectives: Collectives,
    start: Instant,
    published_last: Instant,
    refused_since: Option<Instant>,
    /// After a failure nothing is sent any more; submissions fail at once.
    failed: Option<Error>,
    is_closed: bool,
    incoming: ReceiveBatch,
    /// Looks at the group since the last one at the own port.
    looks: u32,
    outgoing: SendBatch,
    patience: Patience,
    /// When whoever carries the packets now stops; none who stays.
    until: Option<Instant>,
    datagram_bytes_max: usize,
}

impl Running {
    pub fn new(lane: Lane) -> Running {
        let start = Instant::now();
        Running {
            datagram_bytes_max: lane.endpoint.datagram_bytes_max(),
            lane,
            collectives: Collectives::default(),
            start,
            published_last: start,
            refused_since: None,
            failed: None,
            is_closed: false,
            incoming: ReceiveBatch::new(),
            looks: 0,
            outgoing: SendBatch::new(),
            patience: Patience::default(),
            until: None,
        }
    }

    /// Obeys and carries packets until it `is_enough`, the time is `until`, or the lane is closed.
    ///
    /// A panic, which is a bug of ours, first lets go of all memory: the thread that unwinds may own some of it.
    pub fn carry(&mut self, shared: &Shared, until: Option<Instant>, is_enough: impl Fn(&Running) -> bool) {
        self.until = until;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.carry_packets(shared, is_enough)));
        if let Err(panic) = outcome {
            let what = "the thread that carried a lane's packets panicked: please report this";
            self.fail(shared, Error::new(ErrorKind::Network, what));
            resume_unwind(panic);
        }
    }

    fn carry_packets(&mut self, shared: &Shared, is_enough: impl Fn(&Running) -> bool) {
        self.patience.renew();
        while self.obey(shared) && !is_enough(self) && !self.is_late() {
            if let Err(error) = self.step(shared) {
                self.report(Trouble::Network(error.into()));
                self.fail(shared, Error::new(ErrorKind::Network, "the lane's socket failed"));
            }
        }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether a collective still needs this lane.
    pub fn carries(&self, sequence: u64) -> bool {
        self.collectives.find(sequence).is_some()
    }

    /// Whether any does.
    pub fn is_busy(&self) -> bool {
        !self.collectives.0.is_empty()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn now(&self) -> Time {
        Time::from_ns(self.start.elapsed().as_nanos() as u64)
    }

    /// Carries out what the session asked for; false once closed.
    fn obey(&mut self, shared: &Shared) -> bool {
        loop {
            match self.lane.mailbox.try_recv() {
                Ok(Command::Submit(collective, submission)) => self.submit(shared, collective, submission),
                Ok(Command::SetUpAgain(set_up)) => {
                    let now = self.now();
                    self.lane.endpoint.set_up_again(now, set_up);
                }
                Ok(Command::Abort(error)) => self.fail(shared, error),
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => self.close(shared),
                Err(TryRecvError::Empty) => return !self.is_closed,
            }
            if self.is_closed {
                return false;
            }
        }
    }

    fn close(&mut self, shared: &Shared) {
        self.is_closed = true;
        self.fail(shared, Error::new(ErrorKind::Closed, "the session was closed before the collective completed"));
        self.publish();
    }

    fn submit(&mut self, shared: &Shared, collective: Arc<Collective>, submission: Submission) {
        if let Some(error) = self.failed.clone() {
            release(shared, &collective, Some(&error));
            return;
        }
        self.collectives.0.push_back(collective);
        self.lane.endpoint.submit(submission);
    }

    /// Sends what is ready, takes what has come, sleeps when there is neither.
    fn step(&mut self, shared: &Shared) -> Result<(), NetError> {
        self.transmit()?;
        if self.receive()? > 0 {
            self.patience.renew();
        } else if self.patience.is_over(self.lane.spin) {
            self.sleep()?;
            // Whatever woke the lane, there is more to come.
            self.patience.renew();
            self.watch_port();
            self.looks = OWN_PORT_EVERY - 1;
            self.receive()?;
        }
        let now = self.now();
        if !self.incoming.is_empty() {
            self.refused_since = None;
        }
        for (datagram, _) in self.incoming.iter_mut() {
            self.lane.endpoint.handle_packet(now, datagram, &mut self.collectives);
        }
        self.lane.endpoint.handle_timeout(now);
        self.handle_events(shared);
        if self.published_last.elapsed() >= PUBLISH_EVERY {
            self.publish();
        }
        Ok(())
    }

    /// Takes what has come for all ranks, else, now and then, what has come for this one.
    fn receive(&mut self) -> Result<usize, NetError> {
        if let Some(group) = &mut self.lane.group {
            self.looks += 1;
            if self.looks < OWN_PORT_EVERY {
                return group.receive(&mut self.incoming);
            }
            // Also while the group is busy: a lost sum's reply must not wait until it falls silent.
            self.looks = 0;
            if self.lane.port.receive(&mut self.incoming)? > 0 {
                return Ok(self.incoming.len());
            }
            return group.receive(&mut self.incoming);
        }
        self.lane.port.receive(&mut self.incoming)
    }

    fn transmit(&mut self) -> Result<(), NetError> {
        let now = self.now();
        loop {
            let Ok(space) = self.outgoing.spare(self.datagram_bytes_max) else {
                self.flush()?;
                continue;
            };
            match self.lane.endpoint.poll_transmit(now, &mut self.collectives, space) {
                Some(bytes) => self.outgoing.commit(bytes),
                None => return self.flush(),
            }
        }
    }

    fn flush(&mut self) -> Result<(), NetError> {
        if !self.outgoing.is_empty() {
            let sent = self.lane.port.send(&self.outgoing, self.lane.peer);
            self.outgoing.clear();
            match sent {
                // Whatever the network did not take is resent by the timer.
                Ok(_) | Err(NetError::Unreachable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), NetError> {
        let timeout = self.lane.endpoint.poll_timeout().map(|due| Duration::from_nanos(due.since(self.now()).as_ns()));
        if timeout.is_none() || timeout.is_some_and(|timeout| timeout > Duration::from_millis(1)) {
            self.publish();
        }
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = timeout.into_iter().chain(left).min();
        let lane = &self.lane;
        match &lane.group {
            Some(group) => wait_any(&[&lane.port, group], &lane.waker, timeout, Duration::ZERO)?,
            None => lane.port.wait(&lane.waker, timeout, Duration::ZERO)?,
        };
        Ok(())
    }

    /// A closed port at the other end means that the switch is gone, once it
    /// has stayed closed for a while.
    fn watch_port(&mut self) {
        while let Some(event) = self.lane.port.poll_event() {
            if !matches!(event, PortEvent::PeerRefused { .. }) {
                tracing::info!(lane = self.lane.number, %event, "data port");
                continue;
            }
            let since = *self.refused_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= REFUSED_FOR_MAX {
                let why = format!("{event}: the switch has stopped or restarted");
                self.report(Trouble::Network(Error::new(ErrorKind::SwitchLost, why)));
                self.refused_since = None;
            }
        }
    }

    fn handle_events(&mut self, shared: &Shared) {
        while let Some(event) = self.lane.endpoint.poll_event() {
            match event {
                Event::Completed { collective } => {
                    if let Some(collective) = self.collectives.take(collective) {
                        self.publish();
                        release(shared, &collective, None);
                    }
                }
                Event::SourceLost { collective } => {
                    if let Some(collective) = self.collectives.find(collective) {
                        collective.fail_at_the_end(source_lost(collective));
                    }
                }
                Event::NonFinite(id) => self.collectives.get(id).count_non_finite(),
                Event::Overflowed { id, element_count } => self.collectives.get(id).count_overflowed(element_count),
                Event::Refused { reason, chunk_index, slot_index, collective } => {
                    let lane = self.lane.number;
                    self.report(Trouble::Refused { lane, reason, chunk_index, slot_index, collective });
                }
            }
        }
    }

    /// Lets go of all memory.
    fn fail(&mut self, shared: &Shared, error: Error) {
        for collective in std::mem::take(&mut self.collectives.0) {
            release(shared, &collective, Some(&error));
        }
        self.failed.get_or_insert(error);
    }

    fn report(&self, trouble: Trouble) {
        // The watcher outlives the lanes except at the very end.
        let _ = self.lane.trouble.send(trouble);
    }

    /// Lets the session see the counters.
    pub fn publish(&mut self) {
        self.published_last = Instant::now();
        if let Ok(mut stats) = self.lane.stats.try_lock() {
            stats.endpoint = self.lane.endpoint.counters();
            stats.endpoint.blocks_non_finite += self.collectives.2;
            stats.net = self.lane.port.counters();
            stats.by_multicast = self.lane.group.is_some();
            if let Some(group) = &self.lane.group {
                stats.net += group.counters();
            }
            stats.round_trip_ns = self.lane.endpoint.round_trip().map(|span| span.as_ns());
            stats.outstanding = self.lane.endpoint.oldest_outstanding();
        }
    }
}

fn source_lost(collective: &Collective) -> Error {
    let what = format!(
        "collective #{} ({}) has no result: the rank whose data it hands out was lost before it had sent all. The session \
         goes on; take another rank's data",
        collective.sequence, collective.description
    );
    Error::new(ErrorKind::PeerLost, what)
}

/// This lane will not touch the memory any more.
fn release(shared: &Shared, collective: &Collective, failure: Option<&Error>) {
    if collective.release(failure) && shared.local.is_none() {
        shared.finished(collective);
    }
}
