//! One simulated job: who takes part, what it runs, and what goes wrong.

use std::rc::Rc;

use fanin_protocol::switchml::{JobConfig, WireFormat, WorkerConfig};
use fanin_protocol::time::{Span, Time};
use fanin_wire::Accumulator;

use crate::collective::Collective;

/// What happens to a job beside its links' faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Nothing: it must complete.
    None,
    /// A worker's process ends.
    Death {
        /// Whose.
        rank: u16,
        /// When.
        at: Time,
    },
    /// One direction of a worker's link dies for good.
    Cut {
        /// Whose.
        rank: u16,
        /// When.
        at: Time,
        /// From the worker to the switch, or back.
        upward: bool,
    },
    /// The controller removes the job while it runs.
    Removal {
        /// When.
        at: Time,
    },
    /// As `Removal`, and a new run of the job takes its number at once. Its
    /// workers are those of the plan that follows.
    Replacement {
        /// When.
        at: Time,
    },
    /// A worker calls another collective than the others.
    Mismatch {
        /// Which worker.
        rank: u16,
        /// From which collective on.
        collective: u64,
    },
}

/// Everything about one job that is known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Token of this run.
    pub job_token: u32,
    /// Workers.
    pub worker_count: u16,
    /// Lanes of each worker.
    pub lane_count: u16,
    /// Slots of each lane.
    pub slots_per_lane: u32,
    /// Elements of a full block.
    pub element_count_max: u16,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
    /// How the switch adds floats.
    pub accumulator: Accumulator,
    /// What it runs, in order.
    pub collectives: Vec<Rc<Collective>>,
    /// When the job is installed.
    pub starts: Time,
    /// When rank 0 would submit each collective without lateness.
    pub submits: Vec<Time>,
    /// Each worker is late by up to this much at each collective.
    pub skew_max: Span,
    /// Resend timeouts: initial, smallest, largest.
    pub resend_timeouts: [Span; 3],
    /// What goes wrong.
    pub disturbance: Disturbance,
}

impl JobPlan {
    /// What the switch is told.
    pub fn job_config(&self) -> JobConfig {
        JobConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            worker_count: self.worker_count,
            lane_count: self.lane_count,
            slots_per_lane: self.slots_per_lane,
            element_count_max: self.element_count_max,
            has_checksum: true,
            accumulator: self.accumulator,
            wire_format: self.wire_format,
        }
    }

    /// What a worker's lane is told.
    pub fn worker_config(&self, rank: u16, lane: u16) -> WorkerConfig {
        let [initial, min, max] = self.resend_timeouts;
        WorkerConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            rank,
            number: rank,
            worker_count: self.worker_count,
            lane,
            slots_per_lane: self.slots_per_lane,
            element_count_max: self.element_count_max,
            has_checksum: true,
            wire_format: self.wire_format,
            resend_timeout_initial: initial,
            resend_timeout_min: min,
            resend_timeout_max: max,
        }
    }

    /// Bytes of the largest datagram.
    pub fn datagram_bytes_max(&self) -> usize {
        fanin_wire::generated::HEADER_BYTES + usize::from(self.element_count_max) * 4
    }

    /// Whether every collective must complete.
    pub fn is_healthy(&self) -> bool {
        self.disturbance == Disturbance::None
    }
}
