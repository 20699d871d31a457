//! SwitchML's program of a switch below others on one data-plane thread: which jobs have it, and where their sums go up.

use std::net::SocketAddr;

use fanin_protocol::switchml::{Admitted, InstallError, Leaf, LeafConfig, LeafCounters, LeafVerdict, Side};
use fanin_protocol::time::Time;
use fanin_wire::fanin;
use fanin_wire::generated::MAGIC;

use super::peers::Peers;
use super::{inspection, job_config};
use crate::dataplane_api::{JobInspection, JobInstall, LeafInstall};

/// What the program does not know of a job.
struct Way {
    job_id: u32,
    slots_per_lane: u32,
    /// By lane: the parent's port.
    up: Vec<SocketAddr>,
}

/// Where a datagram of a leaf's job comes from, and where its outcome would go up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub job_number: u8,
    pub side: Side,
    pub up: SocketAddr,
}

#[derive(Default)]
pub(super) struct LeafProgram {
    leaf: Leaf,
    ways: Vec<Way>,
}

impl LeafProgram {
    pub fn install(&mut self, job: &JobInstall, part: &LeafInstall) -> Result<(), InstallError> {
        let (number, receivers) = (part.number, part.receivers.clone());
        self.leaf.install(LeafConfig { job: job_config(job), number, receivers })?;
        self.ways.push(Way { job_id: job.job_id, slots_per_lane: job.slots_per_lane, up: part.up.clone() });
        Ok(())
    }

    pub fn remove(&mut self, job_id: u32) -> bool {
        self.ways.retain(|way| way.job_id != job_id);
        self.leaf.remove(job_id)
    }

    /// For a datagram that names one of this program's jobs. It has not been checked yet.
    pub fn origin(&self, datagram: &[u8], source: SocketAddr) -> Option<Origin> {
        if self.ways.is_empty() || !datagram.starts_with(&MAGIC.to_be_bytes()) {
            return None;
        }
        let header = fanin::Header::parse_unchecked(datagram)?;
        let way = self.ways.iter().find(|way| way.job_id == header.job_id)?;
        let lane = u32::from(header.slot_index) / way.slots_per_lane.max(1);
        // A slot that the job does not have is refused whatever its lane.
        let up = *way.up.get(lane as usize).or(way.up.first())?;
        let side = if source == up { Side::Above } else { Side::Below };
        Some(Origin { job_number: header.job_id as u8, side, up })
    }

    pub fn process(&mut self, now: Time, side: Side, datagram: &[u8], output: &mut [u8]) -> LeafVerdict {
        self.leaf.process(now, side, datagram, output)
    }

    /// Which child sent what was processed last, if it was admitted.
    pub fn admitted(&self) -> Option<Admitted> {
        self.leaf.admitted()
    }

    pub fn counters(&self) -> &LeafCounters {
        self.leaf.counters()
    }

    pub fn job_counters(&self, job_id: u32) -> Option<&LeafCounters> {
        self.leaf.job_counters(job_id)
    }

    /// What this thread knows of a job; ranks are children's numbers.
    pub fn inspect(&self, job: &JobInstall, now: Time, peers: &Peers) -> Option<JobInspection> {
        let snapshot = self.leaf.inspect(job.job_id)?;
        let mut found = inspection::describe(job, &snapshot, now, |child| peers.address(job.job_id as u8, child));
        for lane in &mut found.lanes {
            (lane.unanswered_count, lane.unanswered_chunk) = self.leaf.unanswered(job.job_id, lane.lane);
        }
        Some(found)
    }
}
