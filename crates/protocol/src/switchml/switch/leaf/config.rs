//! What a leaf is told of a job.

use alloc::vec::Vec;

use fanin_wire::generated::RANK_ALL;

use super::InstallError;
use crate::switchml::{JobConfig, WORKERS_PER_JOB_MAX, WireFormat};

/// Where the receiver of a sum is, seen from a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The child that it is, or is behind; `None` when it is not below this leaf.
    pub child: Option<u16>,
    /// What the parent calls it: the child of the root that it is behind, or, where the parent is a leaf itself, its rank.
    pub above: u16,
}

/// A job at a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafConfig {
    /// The job, with this leaf's children in the place of workers. Token, lanes, slots and checksum are the same at all of its
    /// switches.
    pub job: JobConfig,
    /// What the first child calls itself in `worker_rank`; the others follow. 0 if children are leaves.
    pub rank_first: u16,
    /// What this leaf calls itself towards its parent.
    pub rank_above: u16,
    /// By rank, all workers of the job: whom a packet's `destination` may name.
    pub receivers: Vec<Receiver>,
}

impl LeafConfig {
    /// The leaf of one of several racks below a root. Ranks count through the racks; `racks` has their workers, and `job` is
    /// the job as the root knows it, but for `worker_count`, which does not matter.
    ///
    /// # Panics
    /// If there is no such rack.
    pub fn of_rack(job: JobConfig, racks: &[u16], rack: u16) -> LeafConfig {
        let mut receivers = Vec::new();
        for (above, &worker_count) in racks.iter().enumerate() {
            let here = above == usize::from(rack);
            let receiver = |child| Receiver { child: here.then_some(child), above: above as u16 };
            receivers.extend((0..worker_count).map(receiver));
        }
        LeafConfig {
            job: JobConfig { worker_count: racks[usize::from(rack)], ..job },
            rank_first: racks[..usize::from(rack)].iter().sum(),
            rank_above: rack,
            receivers,
        }
    }

    pub(super) fn check(&self) -> Result<(), InstallError> {
        self.job.check()?;
        if self.job.wire_format != WireFormat::Fanin {
            return Err(InstallError::ElementCount);
        }
        let has_places = self.rank_above < WORKERS_PER_JOB_MAX && self.receivers.len() < usize::from(RANK_ALL);
        if has_places { Ok(()) } else { Err(InstallError::WorkerCount) }
    }

    /// The child that a packet from below is of.
    pub(super) fn child(&self, worker_rank: u16) -> Option<u16> {
        worker_rank.checked_sub(self.rank_first).filter(|&child| child < self.job.worker_count)
    }

    pub(super) fn destination_above(&self, destination: u16) -> u16 {
        self.receivers.get(usize::from(destination)).map_or(RANK_ALL, |receiver| receiver.above)
    }

    /// The child on the way to a destination; `None` for everybody, and for who is elsewhere.
    pub(super) fn child_towards(&self, destination: u16) -> Option<u16> {
        self.receivers.get(usize::from(destination)).and_then(|receiver| receiver.child)
    }
}
