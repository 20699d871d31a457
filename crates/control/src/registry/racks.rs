//! What a SwitchML job over several switches is given beside its place: what its workers call themselves, and each
//! switch's part (SwitchML §7).

use super::job::{Job, JobPhase};
use super::{Limits, Registry};
use crate::proto::{RackJob, RelayLost, notice};
use crate::topology::{Topology, TreePart};

/// The same for every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackAssignment {
    /// By contributor: its number among the children of its switch.
    pub numbers: Vec<u16>,
    /// By contributor: the child of the root that it is, or is behind. Workers are not told.
    pub root_children: Vec<u16>,
    /// What each switch has to know; the root first. Workers are not told.
    pub parts: Vec<TreePart>,
    /// By contributor: the place of its switch in the topology. Workers are not told.
    pub beside: Vec<usize>,
}

impl RackAssignment {
    /// The assignment of a job whose contributors stand beside these switches; `None` if that is the root alone.
    pub(super) fn new(limits: &Limits, beside: Vec<usize>) -> Option<RackAssignment> {
        if beside.iter().all(|place| *place == 0) {
            return None;
        }
        let topology = &limits.topology;
        let parts = topology.parts(&beside);
        let number = |(contributor, own): (u16, &usize)| {
            let part = parts.iter().find(|part| part.switch == *own);
            // Whoever is beside a switch is one of its children.
            part.and_then(|part| topology.child_towards(&parts, part, contributor, &beside)).unwrap_or(0)
        };
        let numbers = (0u16..).zip(&beside).map(number).collect();
        let contributors = 0..beside.len() as u16;
        let towards = |number| topology.child_towards(&parts, parts.first()?, number, &beside);
        let root_children = contributors.map(towards).collect::<Option<_>>()?;
        Some(RackAssignment { numbers, root_children, parts, beside })
    }

    /// Children of the root, workers and switches.
    pub fn root_child_count(&self) -> u16 {
        self.parts.first().map_or(0, |root| root.children.len() as u16)
    }

    /// By contributor: the child of a switch that it is, or is behind.
    pub fn receivers(&self, topology: &Topology, part: &TreePart) -> Vec<Option<u16>> {
        let contributors = 0..self.beside.len() as u16;
        contributors.map(|number| topology.child_towards(&self.parts, part, number, &self.beside)).collect()
    }

    /// A switch's number among its parent's children; `None` at the root.
    pub fn number_above(&self, topology: &Topology, part: &TreePart) -> Option<u16> {
        let above = topology.switches()[part.switch].parent?;
        let above = self.parts.iter().find(|other| other.switch == above)?;
        let mut children = topology.switches_below(&self.parts, above);
        children.position(|child| child.is_some_and(|child| child.switch == part.switch)).map(|child| child as u16)
    }

    /// As it is sent to workers.
    pub fn to_proto(&self) -> RackJob {
        RackJob { numbers: self.numbers.iter().map(|number| (*number).into()).collect() }
    }

    /// As it was sent; `None` for what makes no sense.
    pub fn from_proto(job: &RackJob) -> Option<RackAssignment> {
        let numbers = job.numbers.iter().map(|number| u16::try_from(*number).ok()).collect::<Option<_>>()?;
        Some(RackAssignment { numbers, root_children: Vec::new(), parts: Vec::new(), beside: Vec::new() })
    }
}

impl Registry {
    /// A SwitchML job's place on several switches, if it is on several.
    pub fn racks_of(&self, job_id: u32) -> Option<&RackAssignment> {
        self.jobs.get(&job_id)?.assignment.racks.as_ref()
    }

    /// The switches that take part in a job, if there are several; the root first.
    pub fn parts_of(&self, job_id: u32) -> &[TreePart] {
        self.jobs.get(&job_id).map(|job| job.assignment.parts()).unwrap_or_default()
    }

    /// Running and broken jobs in which a switch of the topology takes part.
    pub fn jobs_over(&self, place: usize) -> Vec<u32> {
        let uses = |job: &Job| {
            job.phase != JobPhase::Installing && job.assignment.parts().iter().any(|part| part.switch == place)
        };
        self.jobs.iter().filter(|(_, job)| uses(job)).map(|(job_id, _)| *job_id).collect()
    }

    /// A switch between a job's workers and this one is gone: the job cannot go on. False if it did not anyway.
    pub fn relay_lost(&mut self, now_ms: u64, job_id: u32, detail: &str) -> bool {
        let remove_at_ms = now_ms.saturating_add(self.limits.broken_kept_ms);
        let Some(job) = self.jobs.get_mut(&job_id) else { return false };
        if job.is_broken() || job.phase == JobPhase::Installing {
            return false;
        }
        job.phase = JobPhase::Broken { reason: detail.into(), remove_at_ms };
        self.notify_attached(job_id, &notice::Kind::RelayLost(RelayLost { detail: detail.into() }));
        self.refuse_replacements(job_id);
        true
    }
}
