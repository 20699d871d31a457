//! Admission of jobs to slots, leases, and who hears about whose loss.
//!
//! The registry is a plain value: it takes the present time with every call, reads no clock and does no I/O. What has
//! to happen outside comes out of [`Registry::poll_effect`]; the caller drains it after every call.
//!
//! Life of a job: its ranks *wait* together (slot memory is reserved with the first one), the last rank makes the job
//! complete, the data plane *installs* it, all ranks are admitted, it *runs*, and it ends when every rank has left. A lost
//! rank *breaks* the job: nothing can complete any more, so the others are told at once and the slots are freed when
//! they have gone, when the grace time is over, or as soon as somebody else needs the memory.

mod absence;
mod admission;
mod ask;
mod atp;
mod capacity;
mod hosts;
mod job;
mod lifecycle;
mod loss;
mod racks;
mod refusals;
mod replacement;
mod tensors;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

pub use absence::{Absences, StragglerPolicy};
pub use ask::{JobShape, JoinAsk};
pub use atp::{AtpAssignment, LaneServer, ServerId, ServerOwner};
pub use capacity::{Limits, slot_memory_bytes};
use job::Job;
pub use job::StreamId;
pub use racks::RackAssignment;
pub use replacement::{Boundary, Resumed};
pub use tensors::shortened_name;
use waiting::Group;

use crate::ControlError;
use crate::proto::{self, notice};
use crate::topology::TreePart;
use crate::{Algorithm, WireFormat};
use capacity::{JOB_NUMBER_COUNT, JobNumbers};

/// Ended runs that are remembered, so that a stale worker is told so instead of waiting for ranks that never come.
const RETIRED_RUN_COUNT_MAX: usize = 1024;

/// Names one waiting `Join` call, and from then on the process that made it. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A job as its ranks and the data plane see it. The same for every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Low 8 bits: job number. Upper 24 bits: generation.
    pub job_id: u32,
    /// Random; never zero.
    pub job_token: u32,
    /// What the ranks agreed on.
    pub shape: JobShape,
    /// A power of two.
    pub slots_per_lane: u32,
    /// The least of the ranks' limits and the switch's.
    pub element_count_max: u16,
    /// Number of each rank's host; empty where every rank contributes for itself.
    pub host_of_rank: Vec<u16>,
    /// Whether the job's datagrams carry a checksum.
    pub has_checksum: bool,
    /// For ATP jobs; `slots_per_lane` is then the largest window. `None` where one host's memory holds the whole job.
    pub atp: Option<AtpAssignment>,
    /// For SwitchML jobs over several switches.
    pub racks: Option<RackAssignment>,
    /// For a replacement: where it begins.
    pub resumed: Option<Resumed>,
}

impl Assignment {
    /// Contributions to each chunk: one per rank, or one per host.
    pub fn contributor_count(&self) -> u16 {
        self.host_of_rank.iter().max().map_or(self.shape.world_size, |last| last + 1)
    }

    /// By contributor: the place of its switch in the topology; empty where that is the root for all. Workers are not told.
    pub fn beside(&self) -> &[usize] {
        let racks = self.racks.as_ref().map(|racks| &racks.beside[..]);
        racks.or(self.atp.as_ref().map(|atp| &atp.beside[..])).unwrap_or_default()
    }

    /// The switches that take part, if there are several; the root first. Workers are not told.
    pub fn parts(&self) -> &[TreePart] {
        let racks = self.racks.as_ref().map(|racks| &racks.parts[..]);
        racks.or(self.atp.as_ref().map(|atp| &atp.parts[..])).unwrap_or_default()
    }

    /// Bytes of slot memory, both parities.
    pub fn slot_memory_bytes(&self) -> u64 {
        slot_memory_bytes(&self.shape, self.slots_per_lane, self.element_count_max)
    }
}

/// Something for the caller to carry out, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Give the job to the data plane, then call [`Registry::install_done`].
    Install(Assignment),
    /// Give the job to the data plane in place of what it was, then call [`Registry::set_up_again_done`].
    SetUpAgain(Assignment),
    /// Take the job from the data plane.
    Remove {
        /// The job; never used again.
        job_id: u32,
    },
    /// Answer a waiting `Join`.
    Admit {
        /// Which call.
        ticket: Ticket,
        /// The answer.
        assignment: Assignment,
    },
    /// Refuse a waiting `Join`.
    Refuse {
        /// Which call.
        ticket: Ticket,
        /// The reason.
        error: ControlError,
    },
    /// Send a notice on the stream of one rank.
    Notify {
        /// The job.
        job_id: u32,
        /// The receiver.
        rank: u16,
        /// The news.
        notice: notice::Kind,
    },
    /// End the stream of one rank, after the notices before it.
    CloseStream {
        /// The job.
        job_id: u32,
        /// The receiver.
        rank: u16,
    },
}

/// One run of one job of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) tenant: String,
    pub(crate) job_name: String,
    pub(crate) run_id: String,
}

impl RunKey {
    fn same_job(&self, other: &Self) -> bool {
        self.tenant == other.tenant && self.job_name == other.job_name
    }
}

/// All jobs of one switch. See the module's page.
pub struct Registry {
    limits: Limits,
    entropy: Box<dyn FnMut() -> u32 + Send>,
    numbers: JobNumbers,
    groups: BTreeMap<RunKey, Group>,
    jobs: BTreeMap<u32, Job>,
    retired: VecDeque<RunKey>,
    /// Parameter servers of their own: their UDP addresses.
    servers: BTreeMap<ServerId, Vec<SocketAddr>>,
    effects: VecDeque<Effect>,
    ticket_next: u64,
    draining: bool,
}

impl Registry {
    /// An empty switch. `entropy` must be unpredictable in a daemon: job tokens come from it. Its first value is
    /// where generations start, so that packets of jobs from before a restart do not match.
    pub fn new(mut limits: Limits, mut entropy: impl FnMut() -> u32 + Send + 'static) -> Self {
        limits.job_count_max = limits.job_count_max.min(JOB_NUMBER_COUNT);
        let numbers = JobNumbers::new(limits.job_count_max, entropy());
        Self {
            limits,
            entropy: Box::new(entropy),
            numbers,
            groups: BTreeMap::new(),
            jobs: BTreeMap::new(),
            retired: VecDeque::new(),
            servers: BTreeMap::new(),
            effects: VecDeque::new(),
            ticket_next: 1,
            draining: false,
        }
    }

    /// The next thing to carry out; call until `None`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What this switch allows.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether new jobs are refused.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.jobs.is_empty()
    }

    /// Jobs that hold a number, broken ones included.
    pub fn job_count(&self) -> u32 {
        self.jobs.len() as u32
    }

    /// The job ids that the data plane should know.
    pub fn job_ids(&self) -> Vec<u32> {
        self.jobs.keys().copied().collect()
    }

    /// The tenant that owns a job.
    pub fn tenant_of(&self, job_id: u32) -> Option<&str> {
        self.jobs.get(&job_id).map(|job| job.key.tenant.as_str())
    }

    /// What people call the tensor of a job that has this key, if a rank has told.
    pub fn tensor_name(&self, job_id: u32, key: u32) -> Option<&str> {
        self.jobs.get(&job_id)?.tensor_names.get(key)
    }

    /// Waiting and running jobs, without what only the data plane knows (slots in use, addresses, counters).
    pub fn statuses(&self, now_ms: u64) -> Vec<proto::JobStatus> {
        let waiting = self.groups.iter().map(|(key, group)| group.status(key, now_ms));
        let running = self.jobs.values().map(|job| job.status(now_ms));
        running.chain(waiting).collect()
    }

    /// One job's status, see [`Registry::statuses`].
    pub fn status(&self, job_id: u32, now_ms: u64) -> Option<proto::JobStatus> {
        self.jobs.get(&job_id).map(|job| job.status(now_ms))
    }

    /// The earliest time at which [`Registry::expire`] has something to do.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        let deadlines = self.groups.values().filter_map(Group::next_deadline_ms);
        let leases = self.jobs.values().filter_map(Job::next_expiry_ms);
        deadlines.chain(leases).min()
    }

    fn retire(&mut self, key: RunKey) {
        if self.retired.len() == RETIRED_RUN_COUNT_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back(key);
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }
}

fn format_name(format: WireFormat) -> &'static str {
    match format {
        WireFormat::FaninV1 => "fanin v1",
        WireFormat::P4appSwitchml => "p4app-switchML",
        WireFormat::Unspecified => "unspecified",
    }
}

fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Switchml => "switchml",
        Algorithm::Atp => "atp",
    }
}
