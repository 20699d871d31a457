//! A process group's place on a switch.

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};
use fanin_control::client::{Admission, ClientConfig, ControlClient, JoinParameters, TlsTrust};
use fanin_control::registry::Absences;
use fanin_net::{Options, UdpPort};
use fanin_protocol::switchml::Submission;
use fanin_server::ParameterServer;
use fanin_shm::Leave;

use crate::boundary::{AtBoundary, lost_ranks};
use crate::buffer::Buffer;
use crate::chunker::Chunker;
use crate::config::{Algorithm, OnPeerLoss, SessionConfig, WireFormat};
use crate::crew::Crew;
use crate::element::Element;
use crate::lane::{Command, Trouble};
use crate::local::{self, Local};
use crate::memory::Memory;
use crate::opening::{fits_racks, open_lanes, own_server, serve};
use crate::place::{Place, host_key};
use crate::request::{CollectiveKind, DataType, ReduceOp, Request};
use crate::stats::{CollectiveStats, Stats};
use crate::tensors::TensorNames;
use crate::ticket::{Collective, Outcome, Ticket};
use crate::watcher::Watcher;
use crate::{Error, ErrorKind};

/// Largest packet that is chosen without being asked for: eight of them, of 32-bit elements, fill a super-packet. Of 2,048
/// elements, seven fit, and an eighth of each super-packet would stay empty.
const ELEMENT_COUNT_AUTO_MAX: usize = 2016;
/// The p4app-switchML size that fits an MTU of 1500.
const P4APP_ELEMENT_COUNT: u16 = 256;

/// What submitters, lanes, the watcher and reports share. Nothing of it is
/// touched per packet.
pub(crate) struct Shared {
    pub config: SessionConfig,
    pub admission: Admission,
    pub place: Place,
    pub lanes: Vec<Crew>,
    /// The job's parameter server, if this rank runs it.
    pub server: Option<ParameterServer>,
    /// The group of this host's ranks, where they share memory. The lanes then carry its windows.
    pub local: Option<Local>,
    pub state: Mutex<State>,
    /// Told of every end of a collective, and of every answer to a boundary.
    pub changed: Condvar,
    /// To the watcher.
    pub trouble: Sender<Trouble>,
    chunker: Chunker,
}

/// How a collective gets to its lanes.
type Dispatch = fn(&Shared, &Arc<Collective>, Vec<(u16, Submission)>);

/// What changes with each collective.
#[derive(Default)]
pub(crate) struct State {
    pub sequence_next: u64,
    /// Collectives without a result, oldest first.
    pub running: VecDeque<Arc<Collective>>,
    /// Why nothing can be submitted any more.
    pub failure: Option<Error>,
    /// Ranks that the job goes on without.
    pub lost_ranks: Vec<u16>,
    /// ATP: what packets carry since the job was set up again last.
    pub packet_token: u32,
    /// By lane: chunks of all collectives so far.
    pub chunks: Vec<u64>,
    /// Somebody is in [`Session::admit`].
    pub boundary: Option<AtBoundary>,
    pub stats: Stats,
    pub tensor_names: TensorNames,
}

impl State {
    /// Of a session that has done nothing. A replacement begins where the others are.
    fn beginning(admission: &Admission) -> State {
        let assignment = &admission.assignment;
        let mut state = State { chunks: vec![0; usize::from(assignment.shape.lane_count)], ..State::default() };
        state.packet_token = assignment.job_token;
        if let Some(resumed) = &assignment.resumed {
            state.packet_token = resumed.packet_token;
            state.sequence_next = resumed.boundary.sequence + 1;
            state.chunks.clone_from(&resumed.boundary.chunks);
        }
        state.lost_ranks = assignment.atp.as_ref().map(lost_ranks).unwrap_or_default();
        state
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Ends everything in progress with `error`, once.
    pub fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert_with(|| error.clone());
        for lane in &self.lanes {
            lane.tell(Command::Abort(error.clone()));
        }
        if let Some(local) = &self.local {
            local.abort(&error.message);
        }
        self.changed.notify_all();
    }

    /// A collective for the lanes, and each lane's part of it. `outer_tag` is that of the user's collective which it is a
    /// window of: contributions of different ones must not meet.
    pub fn prepare(
        &self,
        request: &Request,
        sequence: u64,
        outer_tag: Option<u32>,
    ) -> (Arc<Collective>, Vec<(u16, Submission)>) {
        let mut parts = self.chunker.split(request, sequence);
        if let Some(outer) = outer_tag {
            let tag = |own: u32| own.rotate_left(16) ^ outer;
            parts.iter_mut().for_each(|(_, part)| part.collective_tag = tag(part.collective_tag));
        }
        let (_, first) = parts[0];
        let memory = Memory::new(request, &first, self.chunker.world_size);
        let block_count = parts.iter().map(|(_, part)| u64::from(part.block_count)).sum();
        let part_count = parts.len() as u16;
        let (tag, spin) = (first.collective_tag, self.config.spin());
        (Arc::new(Collective::new(sequence, request, tag, Some(memory), block_count, part_count, spin)), parts)
    }

    /// Hands a prepared collective to its lanes.
    pub fn dispatch(&self, collective: &Arc<Collective>, parts: Vec<(u16, Submission)>) {
        for (lane, submission) in parts {
            self.lanes[usize::from(lane)].tell(Command::Submit(collective.clone(), submission));
        }
    }

    /// The same for a caller that goes on to carry the first part's packets itself.
    fn dispatch_rest(&self, collective: &Arc<Collective>, mut parts: Vec<(u16, Submission)>) {
        let (lane, submission) = parts.remove(0);
        self.lanes[usize::from(lane)].leave(Command::Submit(collective.clone(), submission));
        self.dispatch(collective, parts);
    }

    /// The user's collective that a lane means by a sequence number.
    pub fn outer_sequence(&self, lane_sequence: u64) -> u64 {
        if self.local.is_some() { local::outer_sequence(lane_sequence) } else { lane_sequence }
    }

    /// What the user's collective came to; windows of it on the lanes are no collectives of the user's.
    pub fn finished(&self, collective: &Collective) {
        let Some(result) = collective.result() else { return };
        let mut state = self.lock();
        state.running.retain(|running| running.sequence != collective.sequence);
        let stats: &mut CollectiveStats = state.stats.collectives.entry(collective.kind.name()).or_default();
        match result {
            Err(_) => stats.failed += 1,
            Ok(outcome) => {
                stats.completed += 1;
                stats.bytes += collective.bytes;
                stats.elapsed_ns += outcome.elapsed.as_nanos() as u64;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    pub fn stats(&self) -> Stats {
        let mut stats = self.lock().stats.clone();
        for lane in &self.lanes {
            stats.add_lane(&lane.read_stats());
        }
        stats.lost_ranks = self.lock().lost_ranks.clone();
        stats.lane_count = self.admission.assignment.shape.lane_count;
        stats.slots_per_lane = self.admission.assignment.slots_per_lane;
        stats.element_count_max = self.admission.assignment.element_count_max;
        stats.transport = self.transport();
        stats.accumulator = self.config.accumulator().label();
        stats.algorithm = match self.config.algorithm {
            Algorithm::SwitchMl => "switchml",
            Algorithm::Atp => "atp",
        };
        stats
    }

    fn transport(&self) -> &'static str {
        match (&self.local, self.place.host_count) {
            (None, _) => "udp",
            (Some(_), 1) => "shared memory",
            (Some(_), _) => "shared memory and udp",
        }
    }
}

/// One rank's place in a job on a switch. See the crate's description.
///
/// Dropping it closes it.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<ControlClient>,
    watcher: Option<Watcher>,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    /// Joins a job: waits for all its ranks, opens the lanes and checks that
    /// full-sized datagrams get to the switch and back.
    ///
    /// # Errors
    /// [`ErrorKind::Control`] if the switch cannot be reached, is full,
    /// refuses the token, or ranks are missing after `join_timeout` (which are
    /// named); [`ErrorKind::Path`] if datagrams do not pass;
    /// [`ErrorKind::Invalid`] for settings that cannot work.
    pub fn connect(config: SessionConfig) -> Result<Session, Error> {
        config.check()?;
        let element_count = element_count(&config)?;
        let control = ControlClient::connect(&client_config(&config)?)?;
        let same_host = controller_address(&config)?.ip().is_loopback();
        let server = own_server(&config)?;
        let admission = control.join(&join_parameters(&config, element_count, same_host, server.as_ref()))?;
        if let Err(error) = fits_racks(&config, &admission) {
            // So that the job ends at once; whether the switch hears it changes nothing for this rank.
            let _ = control.leave(&admission);
            return Err(error);
        }
        let server = serve(server, &admission)?;
        let (trouble, troubles) = unbounded();
        let place = Place::new(&admission);
        let local = match place.shares_memory(&admission) {
            true => Some(Local::meet(&admission, place, config.algorithm, config.join_timeout.min(admission.lease))?),
            false => None,
        };
        let lanes = match place.contributes() {
            true => open_lanes(&config, &admission, place, &trouble)?,
            false => Vec::new(),
        };
        let chunker = Chunker::new(place.host_count, config.element_format.on_wire(), &admission.assignment);
        let (state, changed) = (Mutex::new(State::beginning(&admission)), Condvar::new());
        let shared =
            Arc::new(Shared { config, admission, place, lanes, server, local, state, changed, trouble, chunker });
        // From here on an error drops the session, which ends what was started.
        let control = Arc::new(control);
        let mut session =
            Session { shared: shared.clone(), control: control.clone(), watcher: None, threads: Vec::new() };
        for lane in 0..shared.lanes.len() {
            session.threads.push(start_lane(&shared, lane)?);
        }
        if shared.local.is_some() {
            session.threads.push(Local::start(&shared)?);
        }
        session.watcher = Some(Watcher::start(shared, control, troubles)?);
        Ok(session)
    }

    /// Starts a collective.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a request that no switch can serve; the
    /// first failure of the session if it has failed.
    ///
    /// # Safety
    /// `input` and `output` must hold the elements that [`Request`] says,
    /// stay valid, and be neither written nor (the output) read by anyone else
    /// until the ticket is done. Dropping the ticket does not end this.
    #[allow(unsafe_code)]
    pub unsafe fn submit(&self, request: Request) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.enter(request, Shared::dispatch) }?;
        self.shared.local.iter().for_each(Local::wake);
        Ok(ticket)
    }

    /// A collective from start to end: as [`Session::submit`] and [`Ticket::wait`], with fewer changes of thread, because
    /// the calling thread does what it would otherwise wait for.
    ///
    /// # Errors
    /// As [`Session::submit`] and [`Ticket::wait`].
    ///
    /// # Safety
    /// As for [`Session::submit`], until this returns.
    #[allow(unsafe_code)]
    pub unsafe fn run(&self, request: Request) -> Result<Outcome, Error> {
        let shared = &self.shared;
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.enter(request, Shared::dispatch_rest) }?;
        match &shared.local {
            Some(local) => local.carry_out_until_done(shared, &ticket.0),
            None => self.carry_first_lane(&ticket, None),
        }
        ticket.wait(None)
    }

    /// A collective that the caller goes on to wait for, as in [`Session::run`], but not for ever: the calling thread does what
    /// there is to do until `leave.after`, and leaves the rest to the session's threads.
    ///
    /// Where the host's ranks share memory and all have come, it stays until the end, and asks `leave.is_interrupted` whenever
    /// it has slept for a tenth of a second; if that is true, the session fails.
    ///
    /// # Errors
    /// As [`Session::submit`].
    ///
    /// # Safety
    /// As for [`Session::submit`].
    #[allow(unsafe_code)]
    pub unsafe fn run_or_leave(&self, request: Request, leave: Leave<'_>) -> Result<Ticket, Error> {
        let shared = &self.shared;
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.enter(request, Shared::dispatch_rest) }?;
        match &shared.local {
            Some(local) => local.carry_out_or_leave(shared, &ticket.0, leave),
            None => self.carry_first_lane(&ticket, Some(leave.after)),
        }
        Ok(ticket)
    }

    /// The lane on which a small collective travels.
    fn carry_first_lane(&self, ticket: &Ticket, until: Option<Instant>) {
        let (shared, sequence) = (&self.shared, ticket.0.sequence);
        let lane = shared.chunker.lane_first(sequence);
        shared.lanes[usize::from(lane)].carry_until_done(shared, sequence, until);
    }

    /// Gives a collective its place in the order and hands it to its lanes by `dispatch`. Where ranks share memory, somebody
    /// has to carry out the queue.
    ///
    /// # Safety
    /// As for [`Session::submit`].
    #[allow(unsafe_code)]
    unsafe fn enter(&self, request: Request, dispatch: Dispatch) -> Result<Ticket, Error> {
        request.check(self.shared.config.world_size)?;
        self.check_layout(&request)?;
        // The lock makes the order of sequence numbers the order in every
        // lane's mailbox.
        let mut state = self.shared.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if state.boundary.is_some() {
            let why = format!("{}: another thread is in admit(), which no collective passes", request.describe());
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let sequence = state.sequence_next;
        state.sequence_next += 1;
        let shared = &self.shared;
        let collective = match &shared.local {
            None => {
                let (collective, parts) = shared.prepare(&request, sequence, None);
                state.running.push_back(collective.clone());
                if shared.chunker.is_counted(&request) {
                    state.tensor_names.note(&collective);
                }
                parts.iter().for_each(|(lane, part)| state.chunks[usize::from(*lane)] += u64::from(part.block_count));
                dispatch(shared, &collective, parts);
                collective
            }
            Some(local) => {
                let collective = local.prepare(&request, sequence, shared.config.spin());
                state.running.push_back(collective.clone());
                local.submit(&collective, request, shared.config.rank, shared.config.world_size);
                collective
            }
        };
        Ok(Ticket(collective))
    }

    /// Combines `values` over all ranks in place, and waits for it.
    ///
    /// # Errors
    /// As [`Session::submit`] and [`Ticket::wait`].
    #[allow(unsafe_code)]
    pub fn all_reduce<T: Element>(&self, values: &mut [T], operator: ReduceOp) -> Result<Outcome, Error> {
        let memory: *mut u8 = values.as_mut_ptr().cast();
        let request = Request {
            kind: CollectiveKind::AllReduce,
            data_type: T::DATA_TYPE,
            operator,
            input: memory,
            output: memory,
            element_count: values.len(),
            label: String::new(),
        };
        // SAFETY: the exclusive borrow of `values` lasts until the ticket is
        // done: `wait` without a timeout returns only then.
        unsafe { self.run(request) }
    }

    /// Waits until every rank has called this.
    ///
    /// # Errors
    /// As [`Session::submit`] and [`Ticket::wait`].
    #[allow(unsafe_code)]
    pub fn barrier(&self) -> Result<Outcome, Error> {
        let request = Request {
            kind: CollectiveKind::Barrier,
            data_type: DataType::Bytes,
            operator: ReduceOp::Sum,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            element_count: 0,
            label: String::new(),
        };
        // SAFETY: a barrier touches no memory.
        unsafe { self.run(request) }
    }

    /// Zeroed memory for tensors. Where all ranks are on one host, collectives larger than a window whose input and output lie
    /// in such memory on every rank are summed in place, without a copy; elsewhere it is memory like any other. It may outlive
    /// the session.
    ///
    /// # Errors
    /// [`ErrorKind::Path`] if there is not as much shared memory.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        let registered = match &self.shared.local {
            Some(local) => local.allocate(bytes)?,
            None => None,
        };
        Ok(registered.unwrap_or_else(|| Buffer::own(bytes)))
    }

    fn check_layout(&self, request: &Request) -> Result<(), Error> {
        let adds_only = self.shared.config.wire_format == WireFormat::P4app;
        let sums = matches!(request.operator, crate::ReduceOp::Sum | crate::ReduceOp::Average);
        if adds_only && request.kind.combines() && !sums {
            let why = format!("{}: the p4app-switchML layout can only sum", request.describe());
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(())
    }

    /// What carries this session's collectives: "udp", "shared memory", or "shared memory and udp".
    pub fn transport(&self) -> &'static str {
        self.shared.transport()
    }

    /// What the session has done so far.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Ends everything in progress, here, with an error that says `reason`.
    pub fn abort(&self, reason: &str) {
        self.shared.fail(Error::new(ErrorKind::Aborted, format!("aborted: {reason}")));
    }

    /// Why the session takes no collectives any more, if it has failed.
    pub fn failure(&self) -> Option<Error> {
        self.shared.lock().failure.clone()
    }

    /// Leaves the job. What is in progress ends with an error.
    pub fn close(&mut self) {
        self.begin_close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a lane panicked: please report this");
            }
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.stop();
        }
    }

    /// The part of [`Session::close`] that other threads may do while callers of [`Session::run`] are in the session: no
    /// collective is taken any more, and what is in progress ends with an error.
    pub fn begin_close(&self) {
        let closed = Error::new(ErrorKind::Closed, "the session is closed");
        let is_busy = {
            let mut state = self.shared.lock();
            state.failure.get_or_insert_with(|| closed.clone());
            !state.running.is_empty()
        };
        for lane in &self.shared.lanes {
            lane.tell(Command::Close);
        }
        if let Some(local) = &self.shared.local {
            // A rank that has all its results leaves quietly: others may still be reading theirs.
            if is_busy {
                local.abort(&closed.message);
            }
            local.close();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn start_lane(shared: &Arc<Shared>, lane: usize) -> Result<JoinHandle<()>, Error> {
    let shared = shared.clone();
    std::thread::Builder::new()
        .name(format!("fanin-lane-{lane}"))
        .spawn(move || shared.lanes[lane].run(&shared))
        .map_err(|error| Error::new(ErrorKind::Network, format!("cannot start a lane's thread: {error}")))
}

/// Elements per packet: what was asked for, or what the path to the switch
/// carries in one piece.
fn element_count(config: &SessionConfig) -> Result<u16, Error> {
    if let Some(count) = config.element_count {
        return Ok(count);
    }
    if config.wire_format == WireFormat::P4app {
        return Ok(P4APP_ELEMENT_COUNT);
    }
    let address = controller_address(config)?;
    let any: SocketAddr = if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let payload = UdpPort::bind(any, &Options::default())?.max_payload(address)?;
    let count = (payload - config.header_bytes().min(payload)) / config.element_format.on_wire().bytes() / 32 * 32;
    Ok(count.clamp(32, ELEMENT_COUNT_AUTO_MAX) as u16)
}

pub(crate) fn controller_address(config: &SessionConfig) -> Result<SocketAddr, Error> {
    let unknown = |error: std::io::Error| {
        let why = format!("switch address {:?}: {error}; expected host:port", config.controller);
        Error::new(ErrorKind::Invalid, why)
    };
    let mut addresses = config.controller.to_socket_addrs().map_err(unknown)?;
    addresses.next().ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))
}

fn client_config(config: &SessionConfig) -> Result<ClientConfig, Error> {
    let mut client = ClientConfig::new(config.controller.clone());
    client.token = config.auth_token.clone();
    if let Some(file) = &config.tls_ca {
        let ca_pem = std::fs::read_to_string(file).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("cannot read the TLS authority {}: {error}", file.display()))
        })?;
        client.tls = Some(TlsTrust { ca_pem, server_name: None });
    }
    Ok(client)
}

fn join_parameters(
    config: &SessionConfig,
    element_count: u16,
    same_host: bool,
    server: Option<&ParameterServer>,
) -> JoinParameters {
    let packet_bytes = config.header_bytes() + usize::from(element_count) * config.element_format.on_wire().bytes();
    JoinParameters {
        job_name: config.job_name.clone(),
        run_id: config.run_id.clone(),
        rank: config.rank,
        world_size: config.world_size,
        lane_count: config.lane_count(),
        slots_per_lane: Some(config.slots_per_lane(packet_bytes, same_host)),
        element_count_max: element_count,
        wire_format: match config.wire_format {
            WireFormat::Fanin => fanin_control::WireFormat::FaninV1,
            WireFormat::P4app => fanin_control::WireFormat::P4appSwitchml,
        },
        wait: config.join_timeout,
        worker_label: worker_label(),
        host_key: host_key(config),
        algorithm: match config.algorithm {
            Algorithm::SwitchMl => fanin_control::Algorithm::Switchml,
            Algorithm::Atp => fanin_control::Algorithm::Atp,
        },
        accumulator: config.accumulator(),
        server_ports: server.into_iter().flat_map(ParameterServer::addresses).map(|address| address.port()).collect(),
        switch_name: config.switch_name.clone().unwrap_or_default(),
        absences: Absences { goes_on: config.on_peer_loss == OnPeerLoss::Continue, stragglers: config.stragglers },
        is_replacement: config.is_replacement,
    }
}

fn worker_label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} pid {}", host.trim(), std::process::id())
}
