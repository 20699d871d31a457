//! The contract between the controller (this crate's gRPC and HTTP servers) and the data-plane threads.
//!
//! The controller decides who may use which slots; the data plane moves packets. They share nothing but this trait, so
//! that either can be tested with a stand-in for the other.

use std::net::SocketAddr;

pub use fanin_control::WireFormat;
pub use fanin_numeric::Telemetry;
pub use fanin_protocol::tensor_counts::TensorCounts;
pub use fanin_wire::Accumulator;

/// What the data plane needs to serve one job. The controller has already checked the limits and the slot memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInstall {
    /// Low 8 bits: job number (0..=255). Upper 24 bits: generation.
    pub job_id: u32,
    /// Carried by every datagram of the job.
    pub job_token: u32,
    /// Number of contributors, 1..=256: ranks, or hosts whose ranks sum among themselves first. Ranks here and in what
    /// the data plane reports are contributors' numbers; the controller translates them. With `racks`, the number of this
    /// switch's children, and ranks are theirs.
    pub world_size: u16,
    /// Number of lanes; lane `l` arrives on port `l mod ports().len()`.
    pub lane_count: u16,
    /// Slots of one lane, a power of two; each slot has two parities.
    pub slots_per_lane: u32,
    /// Largest `element_count` of a packet.
    pub element_count_max: u16,
    /// Layout of the job's datagrams.
    pub wire_format: WireFormat,
    /// Whether they carry a checksum.
    pub has_checksum: bool,
    /// How sums of floats are added; what a switch below others does not say is `BlockFixed`.
    pub accumulator: Accumulator,
    /// For a job that takes slots as its packets arrive; the job then has none of its own.
    pub atp: Option<AtpInstall>,
    /// This switch's part in a SwitchML job over several switches.
    pub racks: Option<RackInstall>,
}

/// A switch's part in a SwitchML job over several switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RackInstall {
    /// It completes the sums. By contributor: the child that it is, or is behind.
    Root(Vec<u16>),
    /// It sums for another switch.
    Leaf(LeafInstall),
}

/// The part of a switch that sums for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafInstall {
    /// Of this switch among its parent's children.
    pub number: u16,
    /// By contributor: the child of this switch that it is, or is behind.
    pub receivers: Vec<Option<u16>>,
    /// By lane: the parent's port.
    pub up: Vec<SocketAddr>,
}

/// A switch's part in an ATP job's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtpInstall {
    /// Level of this switch, counted from the workers up.
    pub level: u8,
    /// By child of this switch: the contributor that it is; `None` for a switch below.
    pub children: Vec<Option<u16>>,
    /// By lane: where what goes up is sent, to the next switch or the lane's server.
    pub up: Vec<SocketAddr>,
}

impl JobInstall {
    /// Slots of the whole job, parities not counted.
    pub fn slot_count(&self) -> u32 {
        u32::from(self.lane_count) * self.slots_per_lane
    }
}

/// Why the data plane could not take a job. Shown to the joining workers as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// The job number is in use: a bug of the caller, reported instead of overwriting a live job.
    #[error("job number {job_number} is already installed")]
    JobNumberInUse {
        /// Low 8 bits of the job id.
        job_number: u8,
    },
    /// A field is outside what this data plane supports.
    #[error("the data plane does not support {what}")]
    Unsupported {
        /// Field and value, in words.
        what: String,
    },
    /// The threads did not answer in time or have ended.
    #[error("the data-plane threads do not answer: {why}")]
    NotRunning {
        /// What was waited for.
        why: String,
    },
}

/// The oldest slot of a lane that waits for contributions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncompleteSlot {
    /// `lane * slots_per_lane + local`.
    pub slot_index: u32,
    /// 0 or 1.
    pub slot_parity: u8,
    /// The chunk that the slot sums.
    pub chunk_index: u32,
    /// The collective the chunk belongs to.
    pub collective_tag: u32,
    /// Ranks that have not contributed yet, ascending.
    pub missing_ranks: Vec<u16>,
}

/// One lane of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneInspection {
    /// 0-based.
    pub lane: u16,
    /// Slots with a contribution but no complete sum, parities counted separately.
    pub slots_in_use: u32,
    /// `None`: nothing is waited for.
    pub oldest_incomplete: Option<IncompleteSlot>,
    /// At a switch that sums for another one: chunks that are complete here and have no answer from above.
    pub unanswered_count: u32,
    /// The oldest of them.
    pub unanswered_chunk: Option<u32>,
}

/// What the data plane has seen of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerSeen {
    /// 0-based.
    pub rank: u16,
    /// Source of the latest valid datagram (lane 0 where there is a choice).
    pub address: Option<SocketAddr>,
    /// Age of the latest valid datagram; `None` before the first.
    pub last_seen_ms: Option<u64>,
}

/// A job at one moment. Lanes are read one after another, so they may be microseconds apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobInspection {
    /// Sum over lanes.
    pub slots_in_use: u32,
    /// One entry per lane, ascending.
    pub lanes: Vec<LaneInspection>,
    /// One entry per rank, ascending.
    pub workers: Vec<WorkerSeen>,
}

/// Totals since start (switch) or since install (job).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// UDP datagrams.
    pub received_datagrams: u64,
    /// UDP payload bytes.
    pub received_bytes: u64,
    /// UDP datagrams, each copy of a multicast counted.
    pub sent_datagrams: u64,
    /// UDP payload bytes.
    pub sent_bytes: u64,
    /// Contributions that were added to a slot.
    pub contributions: u64,
    /// Completed slots.
    pub aggregates: u64,
    /// Resends of a completed slot answered by unicast.
    pub resends_answered: u64,
    /// ATP: Fragments passed on because another chunk had their slot.
    pub collisions: u64,
    /// ATP: Fragments passed on because they were sent again.
    pub resends_passed: u64,
    /// ATP: slots taken from a chunk that nobody had touched for long.
    pub slots_abandoned: u64,
    /// ATP: packets that met a long queue behind this switch, and were marked for it.
    pub ecn_marks: u64,
    /// SwitchML below a root: sums that went up.
    pub sums_up: u64,
    /// SwitchML below a root: sums that went up again because the parent lacked them.
    pub sums_again: u64,
    /// SwitchML below a root: questions passed up.
    pub queries_up: u64,
    /// Additions and read-outs of elements by what an accumulator of floats met.
    pub telemetry: Telemetry,
    /// Of a job: the same by tensor, for those that each thread keeps apart.
    pub tensors: Vec<TensorCounts>,
    /// Datagrams dropped, by reason name; names are stable and come from `DropReason`.
    pub drops: Vec<(&'static str, u64)>,
}

/// Counters of the whole switch and of each installed job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataplaneCounters {
    /// Includes datagrams that belong to no job.
    pub total: TrafficCounters,
    /// Keyed by `job_id`.
    pub jobs: Vec<(u32, TrafficCounters)>,
}

/// Who receives datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// The data-plane threads.
    #[default]
    Sockets,
    /// The XDP program in the kernel.
    Xdp,
}

/// Who receives the datagrams of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchPath {
    /// Of what it can take; the threads receive the rest.
    pub path: DataPath,
    /// For a switch that was to use XDP and does not, why, in words.
    pub fallback_reason: String,
    /// Interfaces with the XDP program.
    pub interfaces: Vec<String>,
    /// The XDP program's share of the counters.
    pub kernel: Option<TrafficCounters>,
}

/// Who receives the datagrams of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPath {
    /// All of them.
    pub path: DataPath,
    /// For a job on the sockets of a switch with an XDP program, why, in words.
    pub reason: String,
}

/// The data-plane threads as the controller sees them. Calls come from several threads.
pub trait Dataplane: Send + Sync {
    /// Takes a job into service on all threads; packets are accepted when this returns.
    ///
    /// # Errors
    /// [`InstallError`]; the job is then on no thread. Must return within one second.
    fn install(&self, job: JobInstall) -> Result<(), InstallError>;

    /// Removes a job and frees its slots on all threads. Unknown jobs are ignored, so that removal can be repeated.
    fn remove(&self, job_id: u32);

    /// What the job waits for; `None` for an unknown job. Must return within 200 ms, with what the threads that
    /// answered know: this is called when things hang.
    fn inspect(&self, job_id: u32) -> Option<JobInspection>;

    /// A snapshot of the counters, a tenth of a second old where threads are busy. Must not wait for the threads.
    fn counters(&self) -> DataplaneCounters;

    /// What the threads have counted until now. Must return within 200 ms: of a thread that does not answer in time, what
    /// [`Dataplane::counters`] has.
    fn counters_now(&self) -> DataplaneCounters {
        self.counters()
    }

    /// The UDP addresses of the threads, in thread order; never empty.
    fn ports(&self) -> Vec<SocketAddr>;

    /// Who receives datagrams. Must not wait for the threads.
    fn path(&self) -> SwitchPath {
        SwitchPath::default()
    }

    /// Who receives the datagrams of one job. Must not wait for the threads.
    fn job_path(&self, _job_id: u32) -> JobPath {
        JobPath::default()
    }

    /// Most elements of a packet that every path can take.
    fn element_count_max(&self) -> u16 {
        u16::MAX
    }

    /// Ends the threads and closes the sockets; called once, after the last job was removed.
    fn stop(&self);
}
