//! SwitchML: a pool of slots, streaming aggregation, loss recovery by two
//! copies per slot (SwitchML §4, Algorithms 3 and 4).

mod contributed;
mod promise;
mod switch;
mod worker;

pub use crate::stream::{BlockId, Participants, Shape, Submission};
pub use contributed::{Contributed, WORKERS_PER_JOB_MAX};
#[cfg(test)]
pub(crate) use promise::worst_share_tried;
pub(crate) use promise::{BY_COST, worst_share};
pub use promise::{certify, cheapest, relative_error};
pub use switch::{
    Admitted, Context, InstallError, JobConfig, JobCounters, JobSnapshot, LaneSnapshot, Leaf, LeafConfig, LeafCounters,
    LeafVerdict, Side, StuckSlot, Switch, SwitchCounters, WireFormat, probe_path, without_payload,
};
pub use worker::{Event, Outstanding, Tensors, Worker, WorkerConfig, WorkerCounters};
