//! The program of a switch below others: it sums what its children send and contributes the sum to its parent as one worker
//! (SwitchML §7, "Scaling beyond a rack").
//!
//! Towards its children a leaf is the switch that [`Switch`](super::Switch) is, and the stages are the same. But a chunk that
//! is complete here waits for the parent's Aggregate, which takes the place of the sum, answers the children, and is kept for
//! those that miss it. A leaf has no timer: children ask again, and what they ask about goes up.
//!
//! The root is a [`Switch`](super::Switch) whose workers are leaves. Leaves may have leaves below them.

mod above;
mod below;
mod config;

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_wire::fanin;

use super::job::Job;
use super::slot::SlotCopy;
use super::snapshot::{self, JobSnapshot};
use super::{Admitted, InstallError, decide, job_number};
use crate::time::Time;
use crate::{DropReason, Verdict};

pub use config::LeafConfig;

/// Bits of a Probe's chunk index that each leaf on its way up puts its child's number into: a job has at most 256 workers and
/// four levels of switches, of which the root needs none.
const CHILD_BITS: u32 = 8;

/// From where a packet comes to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From a child.
    Below,
    /// From the parent.
    Above,
}

/// The decision about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafVerdict {
    /// `bytes` of output go to one child: the root's answer to its question about the way.
    ToChild {
        /// Job number, the low eight bits of the job id.
        job_number: u8,
        /// The job's lane.
        lane: u16,
        /// Among this leaf's children.
        child: u16,
        /// Length of the datagram.
        bytes: usize,
    },
    /// `bytes` of output go to the parent: the children's sum, or a question about it.
    Up {
        /// Length of the datagram.
        bytes: usize,
    },
    /// Nothing leaves, or what does goes to children. Ranks are children's numbers here; a multicast may be a Refusal.
    Below(Verdict),
}

/// Packets of a leaf by outcome; sums to the packets received.
#[derive(Clone, Debug, Default)]
pub struct LeafCounters {
    /// Contributions counted into a slot, those that completed it left out.
    pub contributions: u64,
    /// Sums sent up: chunks completed here.
    pub sums: u64,
    /// Sums sent up again because the parent lacks them.
    pub sums_again: u64,
    /// Questions of children that were passed up.
    pub queries: u64,
    /// Aggregates and Refusals from above that were multicast.
    pub answers: u64,
    /// Aggregates sent again to one child.
    pub replies: u64,
    /// Probes answered.
    pub probes: u64,
    /// The root's answers to Probes, passed down.
    pub probes_returned: u64,
    /// Queries answered with Missing.
    pub missing: u64,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// One data-plane thread's leaf program.
#[derive(Clone, Default)]
pub struct Leaf {
    /// By job number.
    jobs: Vec<Option<LeafJob>>,
    counters: LeafCounters,
    admitted: Option<Admitted>,
}

#[derive(Clone)]
struct LeafJob {
    config: LeafConfig,
    /// Its workers are this leaf's children.
    job: Job,
    /// By slot and copy: whether the parent's Aggregate is there, and no sum that waits for it.
    is_answered: Vec<[bool; 2]>,
    counters: LeafCounters,
}

impl Leaf {
    /// A leaf without jobs.
    pub fn new() -> Leaf {
        Leaf::default()
    }

    /// Gives a job its slots.
    ///
    /// # Errors
    /// As [`Switch::install`](super::Switch::install); p4app's layout has no room for what leaves tell each other
    /// ([`InstallError::ElementCount`]), and sums of
    /// floats would be rounded at every level ([`InstallError::Accumulator`]).
    pub fn install(&mut self, config: LeafConfig) -> Result<(), InstallError> {
        config.check()?;
        let number = job_number(config.job.job_id);
        if self.jobs.len() <= number {
            self.jobs.resize_with(number + 1, || None);
        }
        if self.jobs[number].is_some() {
            return Err(InstallError::JobNumberInUse);
        }
        let mut job = Job::new(config.job);
        job.destination_count = config.receivers.len() as u16;
        let is_answered = vec![[true; 2]; job.slots.len()];
        self.jobs[number] = Some(LeafJob { config, job, is_answered, counters: LeafCounters::default() });
        Ok(())
    }

    /// Frees a job's slots. Returns whether there was such a job.
    pub fn remove(&mut self, job_id: u32) -> bool {
        let place = self.jobs.get_mut(job_number(job_id));
        place.and_then(|job| job.take_if(|job| job.config.job.job_id == job_id)).is_some()
    }

    /// Handles one packet. What leaves is written to `output`, which must hold the largest datagram of any job, and a header
    /// at least.
    pub fn process(&mut self, now: Time, from: Side, packet: &[u8], output: &mut [u8]) -> LeafVerdict {
        self.admitted = None;
        let verdict = match self.handle(now, from, packet, output) {
            Ok(verdict) => verdict,
            Err(reason) => LeafVerdict::Below(Verdict::Drop(reason)),
        };
        self.counters.record(from, &verdict, output);
        verdict
    }

    /// Which child sent the packet that `process` handled last, if it was admitted.
    pub fn admitted(&self) -> Option<Admitted> {
        self.admitted
    }

    /// Packets by outcome since the start.
    pub fn counters(&self) -> &LeafCounters {
        &self.counters
    }

    /// Packets of one job by outcome.
    pub fn job_counters(&self, job_id: u32) -> Option<&LeafCounters> {
        self.job(job_id).map(|job| &job.counters)
    }

    /// What a job's slots look like now, for the hang explainer. Ranks are children's numbers.
    pub fn inspect(&self, job_id: u32) -> Option<JobSnapshot> {
        self.job(job_id).map(|job| snapshot::take(&job.job))
    }

    /// Chunks of a lane that went up and have no answer yet: how many, and the oldest of them.
    pub fn unanswered(&self, job_id: u32, lane: u16) -> (u32, Option<u32>) {
        let Some(job) = self.job(job_id) else { return (0, None) };
        let slots = job.config.job.slots_per_lane as usize;
        let of_lane = usize::from(lane) * slots..(usize::from(lane) + 1) * slots;
        let copies = of_lane.flat_map(|slot| [(slot, 0), (slot, 1)]);
        let waiting = copies.filter(|&(slot, copy)| {
            let is_answered = job.is_answered.get(slot).is_none_or(|pair| pair[copy]);
            !is_answered && job.job.slots[slot][copy].is_complete()
        });
        let chunks = waiting.map(|(slot, copy)| job.job.slots[slot][copy].chunk_index);
        chunks.fold((0, None), |(count, oldest), chunk| {
            (count + 1, Some(oldest.map_or(chunk, |old: u32| old.min(chunk))))
        })
    }

    fn job(&self, job_id: u32) -> Option<&LeafJob> {
        self.jobs.get(job_number(job_id))?.as_ref().filter(|job| job.config.job.job_id == job_id)
    }

    /// Hashes all that decides about later packets, for checkers that must recognise a state.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for job in self.jobs.iter().flatten() {
            job.job.hash_state(hasher);
            job.is_answered.hash(hasher);
        }
    }

    fn handle(&mut self, now: Time, from: Side, packet: &[u8], output: &mut [u8]) -> Result<LeafVerdict, DropReason> {
        let (header, payload) = fanin::Header::parse_unsummed(packet)?;
        let place = self.jobs.get_mut(job_number(header.job_id)).and_then(Option::as_mut);
        let job = place.filter(|job| job.config.job.job_id == header.job_id);
        if job.as_ref().is_none_or(|job| job.config.job.has_checksum) {
            fanin::check(packet)?;
        }
        match (job, from) {
            (None, Side::Above) => Err(DropReason::UnknownJob),
            (None, Side::Below) => Ok(LeafVerdict::Below(decide::refuse(DropReason::UnknownJob, header, true, output))),
            (Some(job), Side::Above) => {
                let verdict = job.take_from_above(&header, payload, output);
                let dropped = |reason| LeafVerdict::Below(Verdict::Drop(reason));
                job.counters.record(from, &verdict.unwrap_or_else(dropped), output);
                verdict
            }
            (Some(job), Side::Below) => {
                let verdict = job.take_from_below(now, &header, payload, output, &mut self.admitted);
                job.counters.record(from, &verdict, output);
                Ok(verdict)
            }
        }
    }
}

impl LeafJob {
    fn copy(&self, slot_index: u16, slot_parity: u8) -> &SlotCopy {
        &self.job.slots[usize::from(slot_index)][usize::from(slot_parity)]
    }

    fn is_answered(&mut self, slot_index: u16, slot_parity: u8) -> &mut bool {
        &mut self.is_answered[usize::from(slot_index)][usize::from(slot_parity)]
    }

    /// The header of what this leaf says to its parent about a chunk that is complete here.
    fn header_above(&self, kind: fanin_wire::Kind, slot_index: u16, slot_parity: u8, detail: u8) -> fanin::Header {
        let copy = self.copy(slot_index, slot_parity);
        fanin::Header {
            kind,
            job_id: self.config.job.job_id,
            job_token: self.config.job.job_token,
            worker_rank: self.config.number,
            slot_index,
            slot_parity,
            chunk_index: copy.chunk_index,
            collective_tag: copy.collective_tag,
            block_exponent_next: copy.block_exponent_next.0,
            element_count: if kind == fanin_wire::Kind::Query { 0 } else { copy.element_count },
            element_format: copy.element_format,
            operator: copy.operator,
            detail,
            destination: copy.destination,
            echo: 0,
        }
    }
}

impl LeafCounters {
    fn record(&mut self, from: Side, verdict: &LeafVerdict, output: &[u8]) {
        let counter = match *verdict {
            LeafVerdict::Up { bytes } => {
                let kind = fanin::Header::parse_unchecked(&output[..bytes]).map(|header| header.kind);
                match (from, kind) {
                    (_, Some(fanin_wire::Kind::Query)) => &mut self.queries,
                    (_, Some(fanin_wire::Kind::Probe)) => &mut self.probes,
                    (Side::Below, _) => &mut self.sums,
                    (Side::Above, _) => &mut self.sums_again,
                }
            }
            LeafVerdict::ToChild { .. } => &mut self.probes_returned,
            LeafVerdict::Below(Verdict::Drop(DropReason::AwaitingOthers)) => &mut self.contributions,
            LeafVerdict::Below(Verdict::Drop(reason) | Verdict::Refuse { reason, .. }) => {
                &mut self.drops[reason as usize]
            }
            LeafVerdict::Below(Verdict::Reply { .. }) => &mut self.replies,
            LeafVerdict::Below(Verdict::Missing { .. }) => &mut self.missing,
            LeafVerdict::Below(Verdict::ProbeReply { .. }) => &mut self.probes,
            LeafVerdict::Below(Verdict::Multicast { .. }) => &mut self.answers,
        };
        *counter += 1;
    }
}
