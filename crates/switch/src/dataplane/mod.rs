//! The data plane: threads that carry packets between sockets and switch
//! programs.
//!
//! A thread owns its socket, its [`fanin_protocol::switchml::Switch`] and the
//! addresses it has learned; it shares nothing but a command mailbox and the
//! counters it publishes a few times a second. A packet is received, decided
//! about and put into an outgoing batch without a lock or an allocation.
//!
//! [`XdpDataplane`] puts the XDP program in front of these threads; they then
//! serve what it leaves to them.

mod atp;
mod carry;
mod inspection;
mod interfaces;
mod leaf;
mod outgoing;
mod peers;
mod publish;
mod thread;
mod xdp;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use fanin_net::{Loss, NetError, Options, UdpPort, Waker};
use fanin_protocol::atp::SwitchConfig;
use fanin_protocol::switchml::{JobConfig, WireFormat};
use fanin_protocol::time::Span;

use crate::dataplane_api::{
    Dataplane, DataplaneCounters, InstallError, JobInspection, JobInstall, LaneInspection, TrafficCounters, WorkerSeen,
};

pub use xdp::{XdpConfig, XdpDataplane};

use carry::CarriedJob;

/// How long a command may wait for its thread.
const ANSWER_WAIT: Duration = Duration::from_millis(900);
/// How long an inspection may wait for all threads together.
const INSPECT_WAIT: Duration = Duration::from_millis(180);

/// A few times what it takes to wake a thread on another core.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(200);

/// Slots of a thread that ATP's jobs share: 32 MiB, of which only what is used becomes memory.
pub const ATP_SLOT_COUNT_DEFAULT: u16 = 4096;
/// Elements of such a slot.
const ATP_ELEMENT_COUNT_MAX: u16 = 2048;
/// Many times what a chunk takes from its first Fragment to its Parameter, resends included.
const ATP_SLOT_AGE_MAX: Span = Span::from_ms(200);
/// A queue of this length is more than a healthy window leaves at a switch, in the kernel's reckoning.
pub const ECN_THRESHOLD_DEFAULT: u32 = 1 << 20;

/// How to start the data plane.
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// Address to bind; workers must be able to reach it.
    pub address: IpAddr,
    /// UDP port of the first thread; 0 takes any free ports.
    pub port_base: u16,
    /// Threads, each with its own port; lanes are spread over them.
    pub thread_count: u16,
    /// How long a thread polls before it sleeps. Between two looks it gives
    /// its core to others.
    pub spin: Duration,
    /// Losses to inject, for tests.
    pub loss: Option<Loss>,
    /// The slots of each thread that ATP's jobs share.
    pub atp: SwitchConfig,
}

impl Default for DataplaneConfig {
    fn default() -> Self {
        DataplaneConfig {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port_base: 0,
            thread_count: 1,
            spin: SPIN_DEFAULT,
            loss: None,
            atp: SwitchConfig {
                slot_count: ATP_SLOT_COUNT_DEFAULT,
                element_count_max: ATP_ELEMENT_COUNT_MAX,
                slot_age_max: ATP_SLOT_AGE_MAX,
                ecn_threshold_bytes: ECN_THRESHOLD_DEFAULT,
            },
        }
    }
}

enum Command {
    Install(JobInstall, Sender<Result<(), InstallError>>),
    /// A job that the XDP program serves.
    Carry(Box<CarriedJob>, Sender<Result<(), InstallError>>),
    Remove(u32),
    Inspect(u32, Sender<Option<JobInspection>>),
    /// The thread's number, for the answer.
    Count(usize, Sender<(usize, DataplaneCounters)>),
    /// p4app-switchML carries no rank: workers are known by address.
    Register {
        job_id: u32,
        lane: u16,
        rank: u16,
        address: SocketAddr,
    },
    Stop,
}

struct Handle {
    address: SocketAddr,
    commands: Sender<Command>,
    waker: Waker,
    published: Arc<Mutex<DataplaneCounters>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    fn tell(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.waker.wake();
        sent
    }

    fn published(&self) -> DataplaneCounters {
        self.published.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// The threads of one switch.
pub struct UdpDataplane {
    threads: Vec<Handle>,
}

impl UdpDataplane {
    /// Binds the ports and starts the threads.
    ///
    /// # Errors
    /// [`NetError`] when a port cannot be opened.
    pub fn start(config: &DataplaneConfig) -> Result<UdpDataplane, NetError> {
        let threads =
            (0..config.thread_count.max(1)).map(|index| start_thread(config, index)).collect::<Result<_, _>>()?;
        Ok(UdpDataplane { threads })
    }

    /// Makes a p4app-switchML worker known that cannot announce itself.
    pub fn register(&self, job_id: u32, lane: u16, rank: u16, address: SocketAddr) {
        for handle in &self.threads {
            handle.tell(Command::Register { job_id, lane, rank, address });
        }
    }

    fn install_on_all(&self, job: &JobInstall) -> Result<(), InstallError> {
        self.on_all(|reply| Command::Install(job.clone(), reply))
    }

    /// Makes the threads send what the XDP program leaves to them of a job.
    fn carry(&self, job: &CarriedJob) -> Result<(), InstallError> {
        self.on_all(|reply| Command::Carry(Box::new(job.clone()), reply))
    }

    fn on_all(&self, command: impl Fn(Sender<Result<(), InstallError>>) -> Command) -> Result<(), InstallError> {
        for handle in &self.threads {
            let (reply, answer) = bounded(1);
            if !handle.tell(command(reply)) {
                return Err(InstallError::NotRunning { why: format!("the thread of {} has ended", handle.address) });
            }
            answer.recv_timeout(ANSWER_WAIT).map_err(|_| InstallError::NotRunning {
                why: format!("the thread of {} did not take the job in time", handle.address),
            })??;
        }
        Ok(())
    }
}

fn start_thread(config: &DataplaneConfig, index: u16) -> Result<Handle, NetError> {
    let number = if config.port_base == 0 { 0 } else { config.port_base + index };
    let loss = config.loss.map(|loss| Loss { seed: loss.seed.wrapping_add(u64::from(index)), ..loss });
    let port = UdpPort::bind(SocketAddr::new(config.address, number), &Options { loss, ..Options::default() })?;
    let (address, waker) = (port.local_addr(), Waker::new()?);
    let (commands, mailbox): (Sender<Command>, Receiver<Command>) = unbounded();
    let published = Arc::new(Mutex::new(DataplaneCounters::default()));
    let worker = thread::Thread::new(port, waker.clone(), mailbox, published.clone(), config);
    let thread = std::thread::Builder::new()
        .name(format!("fanin-data-{index}"))
        .spawn(move || worker.run())
        .map_err(|source| NetError::Setup { action: "start a data-plane thread", source })?;
    Ok(Handle { address, commands, waker, published, thread: Mutex::new(Some(thread)) })
}

impl Dataplane for UdpDataplane {
    fn install(&self, job: JobInstall) -> Result<(), InstallError> {
        let result = self.install_on_all(&job);
        if result.is_err() && !matches!(result, Err(InstallError::JobNumberInUse { .. })) {
            self.remove(job.job_id);
        }
        result
    }

    fn remove(&self, job_id: u32) {
        for handle in &self.threads {
            handle.tell(Command::Remove(job_id));
        }
    }

    fn inspect(&self, job_id: u32) -> Option<JobInspection> {
        let (reply, answers) = bounded(self.threads.len());
        for handle in &self.threads {
            handle.tell(Command::Inspect(job_id, reply.clone()));
        }
        drop(reply);
        let deadline = std::time::Instant::now() + INSPECT_WAIT;
        let mut merged: Option<JobInspection> = None;
        while let Ok(answer) = answers.recv_deadline(deadline) {
            if let Some(part) = answer {
                merged = Some(match merged {
                    None => part,
                    Some(whole) => merge_inspections(whole, part),
                });
            }
        }
        merged
    }

    fn counters(&self) -> DataplaneCounters {
        merge_counters(self.threads.iter().map(Handle::published))
    }

    fn counters_now(&self) -> DataplaneCounters {
        let (reply, answers) = bounded(self.threads.len());
        for (thread, handle) in self.threads.iter().enumerate() {
            handle.tell(Command::Count(thread, reply.clone()));
        }
        drop(reply);
        let deadline = std::time::Instant::now() + INSPECT_WAIT;
        let mut parts: Vec<Option<DataplaneCounters>> = self.threads.iter().map(|_| None).collect();
        while let Ok((thread, part)) = answers.recv_deadline(deadline) {
            parts[thread] = Some(part);
        }
        let parts = parts.into_iter().zip(&self.threads);
        merge_counters(parts.map(|(part, handle)| part.unwrap_or_else(|| handle.published())))
    }

    fn ports(&self) -> Vec<SocketAddr> {
        self.threads.iter().map(|handle| handle.address).collect()
    }

    fn stop(&self) {
        for handle in &self.threads {
            handle.tell(Command::Stop);
        }
        for handle in &self.threads {
            let thread = handle.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            if let Some(thread) = thread
                && thread.join().is_err()
            {
                tracing::error!(address = %handle.address, "a data-plane thread panicked: please report this");
            }
        }
    }
}

impl Drop for UdpDataplane {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A SwitchML job as the switch programs know it.
fn job_config(job: &JobInstall) -> JobConfig {
    JobConfig {
        job_id: job.job_id,
        job_token: job.job_token,
        worker_count: job.world_size,
        lane_count: job.lane_count,
        slots_per_lane: job.slots_per_lane,
        element_count_max: job.element_count_max,
        wire_format: match job.wire_format {
            fanin_control::WireFormat::Unspecified | fanin_control::WireFormat::FaninV1 => WireFormat::Fanin,
            fanin_control::WireFormat::P4appSwitchml => WireFormat::P4app,
        },
        has_checksum: job.has_checksum,
        accumulator: job.accumulator,
    }
}

/// Each lane is served by one thread, so at most one part has slots in use.
fn merge_counters(parts: impl Iterator<Item = DataplaneCounters>) -> DataplaneCounters {
    let mut sum = DataplaneCounters::default();
    for part in parts {
        add_traffic(&mut sum.total, &part.total);
        for (job_id, traffic) in part.jobs {
            match sum.jobs.iter_mut().find(|(id, _)| *id == job_id) {
                Some((_, whole)) => add_traffic(whole, &traffic),
                None => sum.jobs.push((job_id, traffic)),
            }
        }
    }
    sum
}

fn merge_inspections(mut whole: JobInspection, part: JobInspection) -> JobInspection {
    whole.slots_in_use += part.slots_in_use;
    for (lane, other) in whole.lanes.iter_mut().zip(part.lanes) {
        *lane = LaneInspection {
            lane: lane.lane,
            slots_in_use: lane.slots_in_use + other.slots_in_use,
            oldest_incomplete: lane.oldest_incomplete.take().or(other.oldest_incomplete),
            unanswered_count: lane.unanswered_count + other.unanswered_count,
            unanswered_chunk: lane.unanswered_chunk.or(other.unanswered_chunk),
        };
    }
    for (worker, other) in whole.workers.iter_mut().zip(part.workers) {
        let ages = [worker.last_seen_ms, other.last_seen_ms];
        *worker = WorkerSeen {
            rank: worker.rank,
            address: worker.address.or(other.address),
            last_seen_ms: ages.into_iter().flatten().min(),
        };
    }
    whole
}

fn add_traffic(sum: &mut TrafficCounters, part: &TrafficCounters) {
    sum.received_datagrams += part.received_datagrams;
    sum.received_bytes += part.received_bytes;
    sum.sent_datagrams += part.sent_datagrams;
    sum.sent_bytes += part.sent_bytes;
    sum.contributions += part.contributions;
    sum.aggregates += part.aggregates;
    sum.resends_answered += part.resends_answered;
    sum.collisions += part.collisions;
    sum.resends_passed += part.resends_passed;
    sum.slots_abandoned += part.slots_abandoned;
    sum.ecn_marks += part.ecn_marks;
    sum.sums_up += part.sums_up;
    sum.sums_again += part.sums_again;
    sum.queries_up += part.queries_up;
    sum.telemetry.merge(&part.telemetry);
    for tensor in &part.tensors {
        match sum.tensors.iter_mut().find(|known| known.key == tensor.key) {
            Some(whole) => whole.telemetry.merge(&tensor.telemetry),
            None => sum.tensors.push(*tensor),
        }
    }
    for &(reason, count) in &part.drops {
        match sum.drops.iter_mut().find(|(name, _)| *name == reason) {
            Some((_, total)) => *total += count,
            None => sum.drops.push((reason, count)),
        }
    }
}
