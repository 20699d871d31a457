//! What a job is made from.

use fanin_protocol::atp::{
    CongestionControl, Indexing, OVERFLOW_OFTEN, Scale, Server, ServerConfig, Tree, WorkerConfig,
};
use fanin_protocol::stream::{Participants, Shape, Submission};
use fanin_protocol::switchml::WireFormat;
use fanin_protocol::time::{Span, Time};
use fanin_protocol::{atp, switchml};
use fanin_wire::{ElementFormat, Operator};

use super::contents::{Contents, Memory};
use super::endpoint::{Endpoint, Worker};
use super::route::Route;
use super::workload::{Progress, Workload};

/// How a job sums.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// ATP: slots of all jobs, a server.
    Atp {
        /// Where its workers are.
        tree: Tree,
        /// Host of its server.
        server: usize,
        /// Most chunks out, a power of two.
        window_max: u32,
        /// How the window follows the network.
        congestion_control: CongestionControl,
        /// How chunks are spread over slots.
        indexing: Indexing,
        /// Slots that this job has to itself; without, it shares those of all jobs.
        own_slots: Option<u16>,
        /// Whether gradients may be scaled otherwise than by 10^8.
        scale: Scale,
    },
    /// SwitchML with slots of its own.
    Static {
        /// Slots of a lane, a power of two.
        slots_per_lane: u32,
        /// Lanes.
        lane_count: u16,
    },
}

/// Bytes of packets on a link, headers of all layers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct PacketSize {
    /// Of a packet with elements.
    pub packet_bytes: u64,
    /// Of these, elements.
    pub payload_bytes: u64,
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// How it sums.
    pub protocol: Protocol,
    /// By rank: its host.
    pub hosts: Vec<usize>,
    /// How its packets count on links.
    pub size: PacketSize,
    /// What its ranks do.
    pub workload: Workload,
    /// When they begin.
    pub starts: Time,
    /// What its tensors hold.
    pub contents: Contents,
}

/// How soon workers send again; in simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Before a round trip was measured, and at most without back-off.
    pub initial: Span,
    /// At least.
    pub min: Span,
    /// At most.
    pub max: Span,
}

pub(super) struct Job {
    pub spec: JobSpec,
    pub id: u32,
    pub server: Option<Server>,
    pub routes: Vec<Option<Route>>,
    pub endpoint_first: usize,
    pub lane_count: u16,
    pub progress: Vec<Progress>,
    /// Bytes of a datagram without elements.
    pub header_bytes: usize,
    pub block_elements: u16,
}

impl JobSpec {
    /// Slots that the job's workers spread their chunks over, of `shared` ones.
    pub(super) fn slot_count(&self, shared: u16) -> u16 {
        match self.protocol {
            Protocol::Atp { own_slots: Some(count), .. } => count,
            _ => shared,
        }
    }
}

impl Job {
    pub fn rank_count(&self) -> usize {
        self.spec.hosts.len()
    }

    pub fn endpoint(&self, rank: usize, lane: u16) -> usize {
        self.endpoint_first + rank * usize::from(self.lane_count) + usize::from(lane)
    }

    /// Bytes of a datagram on a link: as the paper's packets are, whatever few elements are simulated.
    pub fn wire_bytes(&self, datagram_bytes: usize) -> u64 {
        let size = &self.spec.size;
        if datagram_bytes > self.header_bytes { size.packet_bytes } else { size.packet_bytes - size.payload_bytes }
    }

    /// One lane's part of the tensor number `id`.
    pub fn submission(&self, id: u64, lane: u16) -> Submission {
        let chunks = self.spec.workload.tensor_chunks();
        let (lane, lanes) = (u32::from(lane), u32::from(self.lane_count));
        let first = |lane: u32| (u64::from(chunks) * u64::from(lane) / u64::from(lanes)) as u32;
        Submission {
            id,
            collective_tag: 1,
            shape: Shape {
                shard_count: 1,
                shard_elements: u64::from(chunks) * u64::from(self.block_elements),
                block_elements: self.block_elements,
            },
            block_first: first(lane),
            block_count: first(lane + 1) - first(lane),
            contributors: Participants::Everyone,
            receivers: Participants::Everyone,
            operator: Operator::Add,
            element_format: ElementFormat::Int32,
            scaled: matches!(self.spec.contents, Contents::Gradients(_)),
        }
    }
}

/// The server of an ATP job.
pub(super) fn server(spec: &JobSpec, id: u32, slot_count: u16, element_count_max: u16) -> Option<Server> {
    let Protocol::Atp { tree, window_max, .. } = &spec.protocol else { return None };
    let config = ServerConfig {
        job_id: id,
        job_token: id,
        lane: 0,
        tree: tree.clone(),
        slot_count: spec.slot_count(slot_count),
        window_max: *window_max,
        element_count_max,
        stragglers: None,
        overflow_often: OVERFLOW_OFTEN,
    };
    Some(Server::new(config))
}

/// One lane of one rank.
pub(super) fn endpoint(
    job: &Job,
    number: usize,
    rank: u16,
    lane: u16,
    slot_count: u16,
    element_count_max: u16,
    patience: &Patience,
) -> Endpoint {
    let worker = match &job.spec.protocol {
        Protocol::Atp { tree, window_max, congestion_control, indexing, scale, .. } => {
            Worker::Atp(Box::new(atp::Worker::new(WorkerConfig {
                job_id: job.id,
                job_token: job.id,
                rank,
                lane,
                way: *tree.way(rank),
                level_count: tree.level_count(),
                slot_count: job.spec.slot_count(slot_count),
                indexing: *indexing,
                element_count_max,
                window_max: *window_max,
                scale: *scale,
                congestion_control: *congestion_control,
                resend_timeout_initial: patience.initial,
                resend_timeout_min: patience.min,
                resend_timeout_max: patience.max,
            })))
        }
        Protocol::Static { slots_per_lane, .. } => {
            Worker::Static(Box::new(switchml::Worker::new(switchml::WorkerConfig {
                job_id: job.id,
                job_token: job.id,
                rank,
                number: rank,
                worker_count: job.rank_count() as u16,
                lane,
                slots_per_lane: *slots_per_lane,
                element_count_max,
                wire_format: WireFormat::Fanin,
                has_checksum: false,
                resend_timeout_initial: patience.initial,
                resend_timeout_min: patience.min,
                resend_timeout_max: patience.max,
            })))
        }
    };
    let memory = Memory {
        contents: job.spec.contents.clone(),
        job: number as u32,
        rank: rank.into(),
        worker_count: job.rank_count() as u32,
        block_elements: job.block_elements.into(),
        blocks: 0,
        wrong: 0,
        float_blocks: 0,
        scaled_blocks: 0,
        error_max: 0.0,
    };
    Endpoint { job: number, rank, lane, host: job.spec.hosts[usize::from(rank)], worker, memory, wakes_at: None }
}
