//! A job as its parameter server knows it.

use std::net::SocketAddr;

use fanin_control::proto;
use fanin_control::registry::{Assignment, AtpAssignment, StragglerPolicy};
use fanin_protocol::atp::{OVERFLOW_OFTEN, Server, ServerConfig, Stragglers, Tree};
use fanin_protocol::time::Span;
use fanin_wire::Accumulator;

/// Sums that a job with a policy for late workers keeps at a server: how far the others get ahead of the last one.
const KEPT_BYTES: u32 = 64 << 20;

/// A job's lanes at one server.
#[derive(Clone, Debug)]
pub struct ServedJob {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// The switches between workers and servers.
    pub tree: Tree,
    /// Slots that jobs share at each switch.
    pub slot_count: u16,
    /// Most chunks that a worker has out.
    pub window_max: u32,
    /// Elements of a full block.
    pub element_count_max: u16,
    /// Lanes, and the UDP port of this server where each is served.
    pub lanes: Vec<(u16, u16)>,
    /// What is done about workers that are late. `None`: they are waited for.
    pub stragglers: Option<Stragglers>,
    /// How sums of floats are added.
    pub accumulator: Accumulator,
}

/// Why a job is not served. Shown to its workers as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// A thread has ended or is stuck.
    #[error("the parameter server's thread at {address} does not answer")]
    NotRunning {
        /// Its port.
        address: SocketAddr,
    },
    /// The controller means another server.
    #[error("lane {lane} is to be served at port {port}, which is not one of this server's")]
    NoSuchPort {
        /// The lane.
        lane: u16,
        /// The port.
        port: u16,
    },
    /// The order makes no sense.
    #[error("the order names {what}: install the same release of fanin on switches, servers and workers")]
    NotUnderstood {
        /// Field, in words.
        what: &'static str,
    },
}

/// The oldest chunk that a lane waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneWaiting {
    /// The job.
    pub job_id: u32,
    /// The lane.
    pub lane: u16,
    /// The chunk.
    pub chunk_index: u32,
    /// Contributors that are not in it.
    pub missing: Vec<u16>,
}

impl ServedJob {
    /// The lanes of an assignment that `rank` serves; `None` if there are none.
    pub fn of_rank(assignment: &Assignment, rank: u16) -> Option<ServedJob> {
        let atp = assignment.atp.as_ref()?;
        let lanes = atp.lanes_of(rank);
        (!lanes.is_empty()).then(|| ServedJob {
            job_id: assignment.job_id,
            job_token: assignment.job_token,
            tree: atp.tree.clone(),
            slot_count: atp.slot_count,
            window_max: assignment.slots_per_lane,
            element_count_max: assignment.element_count_max,
            lanes: lanes.iter().map(|&lane| (lane, atp.servers[usize::from(lane)].address.port())).collect(),
            stragglers: assignment.shape.absences.stragglers.map(|policy| {
                stragglers(&policy, assignment.slots_per_lane, assignment.element_count_max, lanes.len())
            }),
            accumulator: assignment.shape.accumulator,
        })
    }

    /// What a controller orders.
    ///
    /// # Errors
    /// [`NotServed::NotUnderstood`].
    pub fn of_order(order: &proto::ServerJob) -> Result<ServedJob, NotServed> {
        let wrong = |what| NotServed::NotUnderstood { what };
        let atp = order.atp.as_ref().and_then(AtpAssignment::from_proto).ok_or(wrong("an impossible tree"))?;
        let lane = |&lane: &u32| {
            let lane = u16::try_from(lane).ok()?;
            Some((lane, atp.servers.get(usize::from(lane))?.address.port()))
        };
        if !order.window_max.is_power_of_two() || order.window_max > 1 << 15 {
            return Err(wrong("a window that is not a power of two up to 32768"));
        }
        let element_count_max =
            u16::try_from(order.element_count_max).map_err(|_| wrong("an impossible packet size"))?;
        let understood =
            |policy| StragglerPolicy::from_proto(policy).ok_or(wrong("an impossible policy for late workers"));
        let accumulator = accumulator(order.accumulator).ok_or(wrong("an accumulator that it does not know"))?;
        let policy = order.stragglers.as_ref().map(understood).transpose()?;
        Ok(ServedJob {
            job_id: order.job_id,
            job_token: order.job_token,
            slot_count: atp.slot_count,
            window_max: order.window_max,
            element_count_max,
            lanes: order.lanes.iter().map(lane).collect::<Option<_>>().ok_or(wrong("a lane without a server"))?,
            tree: atp.tree,
            stragglers: policy
                .map(|policy| stragglers(&policy, order.window_max, element_count_max, order.lanes.len())),
            accumulator,
        })
    }

    /// With the lanes that are served at a port only.
    pub(crate) fn at_port(&self, port: u16) -> ServedJob {
        let lanes = self.lanes.iter().copied().filter(|(_, at)| *at == port).collect();
        ServedJob { lanes, ..self.clone() }
    }

    pub(crate) fn server(&self, lane: u16) -> Server {
        Server::new(ServerConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            lane,
            tree: self.tree.clone(),
            slot_count: self.slot_count,
            window_max: self.window_max,
            element_count_max: self.element_count_max,
            stragglers: self.stragglers,
            accumulator: self.accumulator,
            overflow_often: OVERFLOW_OFTEN,
        })
    }
}

/// By its code; a switch that says nothing means static-fixed.
fn accumulator(code: u32) -> Option<Accumulator> {
    Accumulator::from_code(code).map(|known| if known.suits_atp() { known } else { Accumulator::StaticFixed })
}

/// The policy for one lane of a job, whose lanes share [`KEPT_BYTES`].
fn stragglers(policy: &StragglerPolicy, window_max: u32, element_count_max: u16, lane_count: usize) -> Stragglers {
    let chunk_bytes = u32::from(element_count_max.max(1)) * 4 * lane_count.max(1) as u32;
    Stragglers {
        after: Span::from_us(policy.after_us),
        share_min_percent: policy.share_min_percent,
        rest_of_collective: policy.rest_of_collective,
        chunks_kept: (2 * window_max).max(1 << (KEPT_BYTES / chunk_bytes).max(1).ilog2()),
    }
}

impl From<LaneWaiting> for proto::ServerLane {
    fn from(waiting: LaneWaiting) -> Self {
        proto::ServerLane {
            job_id: waiting.job_id,
            lane: waiting.lane.into(),
            chunk_index: waiting.chunk_index,
            missing: waiting.missing.into_iter().map(u32::from).collect(),
        }
    }
}
