//! What a leaf is told of a job.

use alloc::vec::Vec;

use fanin_wire::Accumulator;
use fanin_wire::generated::RANK_ALL;

use super::InstallError;
use crate::switchml::{JobConfig, WORKERS_PER_JOB_MAX, WireFormat};

/// A job at a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafConfig {
    /// The job, with this leaf's children in the place of workers. Token, lanes, slots and checksum are the same at all of its
    /// switches.
    pub job: JobConfig,
    /// What this leaf calls itself towards its parent: its number among the parent's children.
    pub number: u16,
    /// By rank, all workers of the job: the child that the worker is, or is behind; `None` for who is not below this leaf.
    pub receivers: Vec<Option<u16>>,
}

impl LeafConfig {
    /// The leaf of one of several racks below a root. Ranks count through the racks; `racks` has their workers, and `job` is
    /// the job as the root knows it, but for `worker_count`, which does not matter.
    ///
    /// # Panics
    /// If there is no such rack.
    pub fn of_rack(job: JobConfig, racks: &[u16], rack: u16) -> LeafConfig {
        let mut receivers = Vec::new();
        for (number, &worker_count) in racks.iter().enumerate() {
            let is_here = number == usize::from(rack);
            receivers.extend((0..worker_count).map(|child| is_here.then_some(child)));
        }
        let job = JobConfig { worker_count: racks[usize::from(rack)], ..job };
        LeafConfig { job, number: rack, receivers }
    }

    pub(super) fn check(&self) -> Result<(), InstallError> {
        self.job.check()?;
        if self.job.wire_format != WireFormat::Fanin {
            return Err(InstallError::ElementCount);
        }
        if self.job.accumulator != Accumulator::BlockFixed {
            return Err(InstallError::Accumulator);
        }
        let has_children = |receiver: &Option<u16>| receiver.is_none_or(|child| child < self.job.worker_count);
        let has_places = self.number < WORKERS_PER_JOB_MAX && self.receivers.len() < usize::from(RANK_ALL);
        if has_places && self.receivers.iter().all(has_children) { Ok(()) } else { Err(InstallError::WorkerCount) }
    }

    /// The child on the way to a destination; `None` for everybody, and for who is elsewhere.
    pub(super) fn child_towards(&self, destination: u16) -> Option<u16> {
        self.receivers.get(usize::from(destination)).copied().flatten()
    }
}
