//! Collectives among the ranks of one host, through shared memory. Where there are several hosts, the host's first rank
//! takes each window of the host's result to the switch before anybody reads it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use fanin_control::client::Admission;
use fanin_numeric::sum::{Element, Operation};
use fanin_shm::{Aborter, Call, Config, Group, Leave, Uplink, WindowDone};

use crate::buffer::Buffer;
use crate::config::Algorithm;
use crate::place::Place;
use crate::request::{CollectiveKind, DataType, ReduceOp, Request};
use crate::session::Shared;
use crate::ticket::{Collective, Ticket};
use crate::{Error, ErrorKind};

/// Bytes of a window where it goes on to the switch, the same on all hosts: each is one collective there, which must be
/// worth its announce.
const UPLINK_WINDOW_BYTES: usize = 256 << 10;
/// Windows on the way to an ATP switch, and two more: a block's scale is told one of the worker's windows ahead (App. B.3),
/// so two of those, half a MiB each, must be there to be sent.
const ATP_UPLINK_DEPTH: usize = 16;
/// How often an idle thread looks whether there is work: only in case a signal was lost.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// Windows of one collective that a sequence number on the lanes has room for.
const WINDOW_BITS: u32 = 24;

/// The host's group. Its thread carries out what is queued; a caller that would only wait for its collective carries out
/// the queue itself, which spares two changes of thread.
pub(crate) struct Local {
    queue: Mutex<Queue>,
    /// Signalled when there is work for the thread.
    filled: Condvar,
    /// Whoever holds it carries out the queue, in order. None once the thread has ended.
    engine: Mutex<Option<Engine>>,
    aborter: Aborter,
    window_bytes: usize,
    stays_on_host: bool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// A collective in the queue.
struct Job {
    collective: Arc<Collective>,
    call: Call,
    request: Request,
}

// SAFETY: the pointers are followed by the engine's holder only, under the contract of `Session::submit`.
unsafe impl Send for Job {}

struct Engine {
    group: Group,
    /// The job's ranks by local rank.
    ranks: Vec<u16>,
    to_switch: bool,
    failed: Option<Error>,
}

impl Local {
    /// Meets the host's other ranks.
    pub fn meet(admission: &Admission, place: Place, algorithm: Algorithm, wait: Duration) -> Result<Local, Error> {
        let assignment = &admission.assignment;
        let key = format!("fanin {:08x} {:08x} host {}", assignment.job_id, assignment.job_token, place.host);
        let mut config = Config::new(key, place.local_rank, place.local_size);
        config.form_timeout = wait;
        config.has_uplink = place.host_count > 1;
        if config.has_uplink {
            config.window_bytes = UPLINK_WINDOW_BYTES;
            if algorithm == Algorithm::Atp {
                config.depth = ATP_UPLINK_DEPTH;
            }
        }
        let ranks = place.ranks_of_host(admission);
        let group = Group::form(&config).map_err(|error| translate(error, &ranks))?;
        let aborter = group.aborter();
        let engine = Engine { group, ranks, to_switch: place.contributes(), failed: None };
        Ok(Local {
            queue: Mutex::default(),
            filled: Condvar::new(),
            engine: Mutex::new(Some(engine)),
            aborter,
            window_bytes: config.window_bytes,
            stays_on_host: !config.has_uplink,
        })
    }

    /// Starts the thread of `shared`'s group.
    pub fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, Error> {
        let shared = shared.clone();
        std::thread::Builder::new()
            .name("fanin-local".into())
            .spawn(move || shared.local.iter().for_each(|local| local.run(&shared)))
            .map_err(|error| Error::new(ErrorKind::Network, format!("cannot start the host group's thread: {error}")))
    }

    /// A collective for the host's group; its blocks are windows.
    pub fn prepare(&self, request: &Request, sequence: u64, spin: Duration) -> Arc<Collective> {
        let window_count = vector_bytes(request).div_ceil(self.window_bytes).max(1) as u64;
        let tag = request.tag(sequence, u8::MAX);
        Arc::new(Collective::new(sequence, request, tag, None, window_count, 1, spin))
    }

    /// Queues a collective; it ends by `Collective::release`.
    pub fn submit(&self, collective: &Arc<Collective>, request: Request, rank: u16, world_size: u16) {
        let call = call(&request, collective, rank, world_size);
        lock(&self.queue).jobs.push_back(Job { collective: collective.clone(), call, request });
    }

    /// Lets the thread carry out what is queued.
    pub fn wake(&self) {
        self.filled.notify_one();
    }

    /// Carries out what is queued up to `collective`; what was queued behind it is left to the thread.
    pub fn carry_out_until_done(&self, shared: &Arc<Shared>, collective: &Collective) {
        self.carry_out(shared, || collective.is_done());
        if !lock(&self.queue).jobs.is_empty() {
            self.wake();
        }
    }

    /// The same for a caller that wants to be let go. Where somebody else is at the queue, or other hosts may keep it waiting in
    /// the middle, it is left to the thread.
    pub fn carry_out_or_leave(&self, shared: &Arc<Shared>, collective: &Collective, leave: Leave<'_>) {
        match self.engine.try_lock() {
            Ok(mut engine) if self.stays_on_host => {
                self.carry_out_with(&mut engine, shared, Some(leave), || collective.is_done());
            }
            Err(TryLockError::Poisoned(_)) | Err(TryLockError::WouldBlock) | Ok(_) => {}
        }
        if !lock(&self.queue).jobs.is_empty() {
            self.wake();
        }
    }

    /// Carries out what is queued, once whoever is at it has finished, until it `is_enough`.
    fn carry_out(&self, shared: &Arc<Shared>, is_enough: impl Fn() -> bool) {
        self.carry_out_with(&mut lock(&self.engine), shared, None, is_enough);
    }

    fn carry_out_with(
        &self,
        engine: &mut Option<Engine>,
        shared: &Arc<Shared>,
        leave: Option<Leave<'_>>,
        is_enough: impl Fn() -> bool,
    ) {
        let Some(engine) = engine.as_mut() else { return };
        while !is_enough()
            && let Some(job) = self.next_job()
        {
            if !engine.serve(shared, &job, leave) {
                // Whoever is next at the engine begins with what was left.
                lock(&self.queue).jobs.push_front(job);
                return;
            }
        }
    }

    /// Memory that the host's ranks can sum where it lies; none where other hosts take part, or after the end. Waits for a
    /// collective that is being carried out.
    pub fn allocate(&self, bytes: usize) -> Result<Option<Buffer>, Error> {
        let engine = lock(&self.engine);
        let Some(engine) = engine.as_ref().filter(|_| self.stays_on_host) else { return Ok(None) };
        let region = engine.group.allocate(bytes).map_err(|error| translate(error, &engine.ranks))?;
        Ok(Some(Buffer::registered(region, bytes)))
    }

    /// Ends what is in progress, here and at the host's other ranks.
    pub fn abort(&self, reason: &str) {
        self.aborter.abort(reason);
    }

    /// Ends the thread once the queue is empty.
    pub fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.wake();
    }

    fn run(&self, shared: &Arc<Shared>) {
        while self.wait_for_work() {
            self.carry_out(shared, || false);
        }
        // The other ranks see that this one has left.
        lock(&self.engine).take();
    }

    /// False once closed.
    fn wait_for_work(&self) -> bool {
        let mut queue = lock(&self.queue);
        while queue.jobs.is_empty() && !queue.is_closed {
            let waited = self.filled.wait_timeout(queue, IDLE_LOOK);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !queue.jobs.is_empty()
    }

    fn next_job(&self) -> Option<Job> {
        lock(&self.queue).jobs.pop_front()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn vector_bytes(request: &Request) -> usize {
    match request.kind {
        CollectiveKind::Barrier => 0,
        _ => request.element_count * request.data_type.bytes(),
    }
}

/// The user's collective that a sequence number on the lanes belongs to.
pub(crate) fn outer_sequence(lane_sequence: u64) -> u64 {
    lane_sequence >> WINDOW_BITS
}

impl Engine {
    /// False if the caller leaves before the job is done.
    fn serve(&mut self, shared: &Arc<Shared>, job: &Job, leave: Option<Leave<'_>>) -> bool {
        let result = match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.run(shared, job, leave),
        };
        if let Ok(false) = result {
            return false;
        }
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.clone());
        }
        if job.collective.release(result.as_ref().err()) {
            shared.finished(&job.collective);
        }
        true
    }

    fn run(&mut self, shared: &Arc<Shared>, job: &Job, leave: Option<Leave<'_>>) -> Result<bool, Error> {
        let mut uplink = self.to_switch.then(|| ToSwitch::new(shared, job));
        // SAFETY: what the submitter promised holds until the collective is released.
        let ended = unsafe {
            self.group.run_or_leave(&job.call, uplink.as_mut().map(|uplink| uplink as &mut dyn Uplink), leave)
        };
        ended.map_err(|error| {
            // The session's own first failure is the cause where there is one.
            let own = shared.lock().failure.clone();
            let error = own.unwrap_or_else(|| translate(error, &self.ranks));
            // The others of the host know already; the lanes and later submissions must as well.
            shared.fail(error.clone());
            error
        })
    }
}

/// Takes the host's windows to the switch, as collectives of the hosts' first ranks.
struct ToSwitch {
    shared: Arc<Shared>,
    collective: Arc<Collective>,
    data_type: DataType,
    operator: ReduceOp,
}

impl ToSwitch {
    fn new(shared: &Arc<Shared>, job: &Job) -> ToSwitch {
        let request = &job.request;
        let combines = request.kind.combines();
        let operator = match request.operator {
            _ if !combines => ReduceOp::BitOr,
            // The host's ranks divide when they read the window.
            ReduceOp::Average => ReduceOp::Sum,
            other => other,
        };
        let data_type = if combines { request.data_type } else { DataType::Bytes };
        ToSwitch { shared: shared.clone(), collective: job.collective.clone(), data_type, operator }
    }
}

impl Uplink for ToSwitch {
    unsafe fn start(&mut self, index: u64, window: *mut [u8], done: WindowDone) {
        let request = Request {
            kind: if window.is_empty() { CollectiveKind::Barrier } else { CollectiveKind::AllReduce },
            data_type: self.data_type,
            operator: self.operator,
            input: window.cast::<u8>().cast_const(),
            output: window.cast(),
            element_count: window.len() / self.data_type.bytes(),
            label: String::new(),
        };
        let sequence = self.collective.sequence << WINDOW_BITS | index;
        let (part, parts) = self.shared.prepare(&request, sequence, Some(self.collective.tag));
        let outer = self.collective.clone();
        Ticket(part.clone()).on_complete(Box::new(move |result| match result {
            Ok(outcome) => {
                outer.add_non_finite(outcome.non_finite_blocks);
                done.complete();
            }
            Err(error) => done.fail(&error.message),
        }));
        self.shared.dispatch(&part, parts);
    }
}

/// The request as one rank's part in a vector that all ranks see.
fn call(request: &Request, collective: &Collective, rank: u16, world_size: u16) -> Call {
    let bytes = vector_bytes(request);
    let (all, none) = (0..bytes, 0..0);
    let shard_bytes = bytes / usize::from(world_size);
    let shard = usize::from(rank) * shard_bytes..(usize::from(rank) + 1) * shard_bytes;
    let (contributes, receives) = match request.kind {
        CollectiveKind::AllReduce | CollectiveKind::Barrier => (all.clone(), all),
        CollectiveKind::Reduce { root } => (all.clone(), if root == rank { all } else { none }),
        CollectiveKind::ReduceScatter => (all, shard),
        CollectiveKind::AllGather => (shard, all),
        CollectiveKind::Broadcast { root } => (if root == rank { all.clone() } else { none }, all),
    };
    let (operation, element) = combination(request);
    Call {
        sequence: collective.sequence,
        tag: collective.tag,
        description: request.describe(),
        operation,
        element,
        divisor: if request.operator == ReduceOp::Average && request.kind.combines() {
            f32::from(world_size)
        } else {
            1.0
        },
        bytes,
        contributes,
        receives,
        input: request.input,
        output: request.output,
        windows_done: collective.counter(),
    }
}

fn combination(request: &Request) -> (Operation, Element) {
    if !request.kind.combines() {
        return (Operation::Or, Element::Byte);
    }
    let operation = match request.operator {
        ReduceOp::Sum | ReduceOp::Average => Operation::Sum,
        ReduceOp::Max => Operation::Max,
        ReduceOp::Min => Operation::Min,
        ReduceOp::BitAnd => Operation::And,
        ReduceOp::BitOr => Operation::Or,
        ReduceOp::BitXor => Operation::Xor,
    };
    let element = match request.data_type {
        DataType::Float32 => Element::Float32,
        DataType::Float16 => Element::Float16,
        DataType::Bfloat16 => Element::Bfloat16,
        DataType::Int32 => Element::Int32,
        DataType::Int64 => Element::Int64,
        DataType::Bytes => Element::Byte,
    };
    (operation, element)
}

/// The group counts the host's ranks; people know the job's.
fn translate(error: fanin_shm::Error, ranks: &[u16]) -> Error {
    use fanin_shm::Error as Local;
    let job_rank = |local: u16| ranks.get(usize::from(local)).copied().unwrap_or(local);
    let lost = |local: u16, why: &str| {
        let text = format!("rank {} was lost ({why}): no collective can complete any more", job_rank(local));
        Error::new(ErrorKind::PeerLost, text)
    };
    match error {
        Local::PeerDied { rank } => lost(rank, "its process has ended"),
        Local::PeerLeft { rank } => lost(rank, "it has left the job"),
        Local::Aborted { rank, reason } => {
            Error::new(ErrorKind::Aborted, format!("rank {} gave up: {reason}", job_rank(rank)))
        }
        Local::Missing { ranks: missing, waited } => {
            let missing: Vec<u16> = missing.into_iter().map(job_rank).collect();
            let why = format!(
                "ranks {missing:?} joined the job but did not reach this host's shared memory within {waited:?}: they must \
                 run in the same network namespace as the same user; set FANIN_TRANSPORT=udp if they do not"
            );
            Error::new(ErrorKind::Path, why)
        }
        Local::Call(_) | Local::Config(_) => Error::new(ErrorKind::Invalid, error.to_string()),
        Local::Mismatch(text) => Error::new(ErrorKind::Mismatch, mismatch(&text)),
        other => Error::new(ErrorKind::Path, format!("{other}; FANIN_TRANSPORT=udp does without shared memory")),
    }
}

fn mismatch(text: &str) -> String {
    format!(
        "the ranks do not call the same collectives in the same order: {text}. Every rank must call the same collective \
         with the same size, data type and operator"
    )
}
