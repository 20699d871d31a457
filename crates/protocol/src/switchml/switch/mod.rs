//! The switch program: one packet in, one verdict out.
//!
//! The five stages of every slot program are the files beside this one, in
//! the order a packet meets them: `admit`, `dedup`, `count`, `accumulate`,
//! `decide`. They share the stem of their P4, XDP and RTL twins.
//!
//! The stages are always inlined into one function, and headers go by value
//! to what is rare: then a packet's fields live in registers. Copied through
//! memory, a header written in small pieces and read in large ones costs more
//! than all that is decided about it.

mod accumulate;
mod admit;
mod count;
mod decide;
mod dedup;
mod fingerprint;
mod job;
mod leaf;
mod slot;
mod snapshot;

use alloc::vec::Vec;

use fanin_wire::{Kind, fanin, p4app};

use crate::switchml::WORKERS_PER_JOB_MAX;
use crate::tensor_counts::TensorCounts;
use crate::time::Time;
use crate::{DropReason, Verdict};

pub use decide::{probe_path, without_payload};
pub use job::{InstallError, JobConfig, JobCounters, WireFormat};
pub use leaf::{Leaf, LeafConfig, LeafCounters, LeafVerdict, Side};
pub use snapshot::{JobSnapshot, LaneSnapshot, StuckSlot};

use admit::Contribution;
use job::Job;

/// What a switch knows about a packet beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// When the packet arrived.
    pub now: Time,
    /// Layout of the port it arrived on.
    pub wire_format: WireFormat,
    /// Rank of the sender where the layout does not carry it (p4app: known
    /// by source address). `None` there means the source is not registered.
    pub source_rank: Option<u16>,
}

/// The sender of a packet that passed `admit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Job number, the low eight bits of the job id.
    pub job_number: u8,
    /// The sender's lane.
    pub lane: u16,
    /// The sender's rank.
    pub rank: u16,
}

/// Packets of the whole switch by outcome; sums to the packets received.
#[derive(Clone, Debug)]
pub struct SwitchCounters {
    /// Contributions counted into a slot.
    pub contributions: u64,
    /// Aggregates multicast: chunks completed.
    pub aggregates: u64,
    /// Aggregates sent again to one worker.
    pub replies: u64,
    /// Probes answered.
    pub probes: u64,
    /// Queries answered with Missing.
    pub missing: u64,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// One data-plane thread's switch program, with the slots of all its jobs.
#[derive(Clone)]
pub struct Switch {
    /// By job number; as long as the largest number in use asks for.
    jobs: Vec<Option<Job>>,
    counters: SwitchCounters,
    admitted: Option<Admitted>,
}

impl Default for Switch {
    fn default() -> Self {
        Switch::new()
    }
}

impl Switch {
    /// A switch without jobs.
    pub fn new() -> Switch {
        let counters = SwitchCounters {
            contributions: 0,
            aggregates: 0,
            replies: 0,
            probes: 0,
            missing: 0,
            drops: [0; DropReason::ALL.len()],
        };
        Switch { jobs: Vec::new(), counters, admitted: None }
    }

    /// Gives a job its slots. The job's number is the low byte of its id.
    pub fn install(&mut self, config: JobConfig) -> Result<(), InstallError> {
        config.check()?;
        let number = job_number(config.job_id);
        if self.jobs.len() <= number {
            self.jobs.resize_with(number + 1, || None);
        }
        if self.jobs[number].is_some() {
            return Err(InstallError::JobNumberInUse);
        }
        self.jobs[number] = Some(Job::new(config));
        Ok(())
    }

    /// Gives a job of several racks its slots at the root, whose workers are the root's children. `child_of_rank` has all
    /// workers of the job: the child that each of them is, or is behind.
    ///
    /// # Errors
    /// As [`Switch::install`]; [`InstallError::WorkerCount`] if a rank's child is none of the job's.
    pub fn install_root(&mut self, config: JobConfig, child_of_rank: Vec<u16>) -> Result<(), InstallError> {
        let is_child = |child: &u16| *child < config.worker_count;
        if child_of_rank.len() > usize::from(WORKERS_PER_JOB_MAX) || !child_of_rank.iter().all(is_child) {
            return Err(InstallError::WorkerCount);
        }
        self.install(config)?;
        if let Some(job) = &mut self.jobs[job_number(config.job_id)] {
            job.destination_count = child_of_rank.len() as u16;
            job.child_of_rank = child_of_rank;
        }
        Ok(())
    }

    /// Frees a job's slots; its later packets are refused. Returns whether
    /// there was such a job.
    pub fn remove(&mut self, job_id: u32) -> bool {
        let found = self.job(job_id).is_some();
        if found {
            self.jobs[job_number(job_id)] = None;
        }
        found
    }

    /// Handles one packet. An outgoing packet is written to `output`, which
    /// must hold the largest datagram of any job, and a header at least.
    pub fn process(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        self.process_as::<true>(context, packet, output)
    }

    /// [`Switch::process`] that neither checks a packet's checksum nor writes
    /// the Aggregate's: for packets that nothing can have damaged, and to
    /// measure what the checksum costs.
    pub fn process_unsummed(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        self.process_as::<false>(context, packet, output)
    }

    #[inline(always)]
    fn process_as<const SUMMED: bool>(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        self.admitted = None;
        match context.wire_format {
            WireFormat::Fanin => self.process_fanin::<SUMMED>(context, packet, output),
            WireFormat::P4app => self.process_p4app(context, packet, output),
        }
    }

    /// Who sent the packet that `process` handled last, if it was admitted:
    /// its source address is where that worker's Aggregates go.
    pub fn admitted(&self) -> Option<Admitted> {
        self.admitted
    }

    /// What a job's slots look like now, for the hang explainer.
    pub fn inspect(&self, job_id: u32) -> Option<JobSnapshot> {
        self.job(job_id).map(snapshot::take)
    }

    /// Packets by outcome since the start.
    pub fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// Packets of one job by outcome.
    pub fn job_counters(&self, job_id: u32) -> Option<&JobCounters> {
        self.job(job_id).map(|job| &job.counters)
    }

    /// What the tensors of one job met in its accumulator.
    pub fn job_tensors(&self, job_id: u32) -> &[TensorCounts] {
        self.job(job_id).map_or(&[], |job| job.tensors.rows())
    }

    fn job(&self, job_id: u32) -> Option<&Job> {
        self.jobs.get(job_number(job_id))?.as_ref().filter(|job| job.config.job_id == job_id)
    }

    #[inline(always)]
    fn process_fanin<const SUMMED: bool>(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        let counters = &mut self.counters;
        let (header, payload) = match fanin::Header::parse_unsummed(packet) {
            Ok(parsed) => parsed,
            Err(error) => return counters.record(Verdict::Drop(error.into())),
        };
        let place = self.jobs.get_mut(job_number(header.job_id)).and_then(Option::as_mut);
        let job = place.filter(|job| job.config.job_id == header.job_id);
        // A damaged header may name any job: whoever names none that goes without has to show a checksum.
        if SUMMED
            && job.as_ref().is_none_or(|job| job.config.has_checksum)
            && let Err(error) = fanin::check(packet)
        {
            return counters.record(Verdict::Drop(error.into()));
        }
        let Some(job) = job else {
            return counters.record(decide::refuse(DropReason::UnknownJob, header, true, output));
        };
        if header.kind == Kind::Probe {
            return counters.record(match admit::probe(job, &{ header }) {
                Ok(()) => {
                    self.admitted = Some(job.sender(header.slot_index, header.worker_rank));
                    decide::answer_probe(job.config.has_checksum, header, payload, output)
                }
                Err(reason) => job.refuse(reason, header, output),
            });
        }
        match admit::fanin(job, &header) {
            Ok(contribution) => {
                self.admitted = Some(job.sender(contribution.slot_index, contribution.rank));
                if header.kind == Kind::Query {
                    return counters.record(job.answer_query(context.now, contribution, header, output));
                }
                job.aggregate::<SUMMED>(counters, context.now, &contribution, payload, output)
            }
            Err(reason) => counters.record(job.refuse(reason, header, output)),
        }
    }

    fn process_p4app(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        let (header, payload) = match p4app::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(error) => return self.counters.record(Verdict::Drop(error.into())),
        };
        let Some(job) = self.jobs.get_mut(usize::from(header.job_number)).and_then(Option::as_mut) else {
            return self.counters.record(Verdict::Drop(DropReason::UnknownJob));
        };
        match admit::p4app(job, &header, context.source_rank) {
            Ok(contribution) => {
                self.admitted = Some(job.sender(contribution.slot_index, contribution.rank));
                job.aggregate::<false>(&mut self.counters, context.now, &contribution, payload, output)
            }
            Err(reason) => self.counters.record(job.drop_packet(reason)),
        }
    }
}

impl SwitchCounters {
    /// Counts what is not simply summed, see [`Job::aggregate`].
    #[cold]
    fn record(&mut self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Drop(reason) | Verdict::Refuse { reason, .. } => self.drops[reason as usize] += 1,
            Verdict::ProbeReply { .. } => self.probes += 1,
            Verdict::Missing { .. } => self.missing += 1,
            Verdict::Reply { .. } => self.replies += 1,
            Verdict::Multicast { .. } => unreachable!("complete sums are counted where they are made"),
        }
        verdict
    }
}

fn job_number(job_id: u32) -> usize {
    (job_id & 0xff) as usize
}

impl Job {
    fn sender(&self, slot_index: u16, rank: u16) -> Admitted {
        Admitted { job_number: self.config.job_id as u8, lane: self.lane(slot_index), rank }
    }

    /// The five stages, for a packet that belongs to this job.
    #[inline(always)]
    fn aggregate<const SUMMED: bool>(
        &mut self,
        counters: &mut SwitchCounters,
        now: Time,
        contribution: &Contribution,
        payload: &[u8],
        output: &mut [u8],
    ) -> Verdict {
        self.last_seen[usize::from(contribution.rank)] = Some(now);
        match dedup::stage(self.pair_mut(contribution), contribution) {
            dedup::Novelty::New => {}
            dedup::Novelty::ResendComplete => return counters.record(decide::reply(self, *contribution, output)),
            dedup::Novelty::Duplicate => return counters.record(self.drop_packet(DropReason::DuplicateContribution)),
        }
        let worker_count = self.config.worker_count;
        let position = count::stage(self.copy_mut(contribution), worker_count);
        self.counters.contributions += 1;
        counters.contributions += 1;
        if !position.is_last() {
            accumulate::stage(self, contribution, position, payload, None);
            return Verdict::Drop(DropReason::AwaitingOthers);
        }
        let sum = &mut output[self.header_bytes()..];
        accumulate::stage(self, contribution, position, payload, Some(sum));
        counters.aggregates += 1;
        decide::multicast::<SUMMED>(self, contribution, output)
    }

    /// What became of a contribution, without changing anything.
    #[cold]
    fn answer_query(
        &mut self,
        now: Time,
        contribution: Contribution,
        header: fanin::Header,
        output: &mut [u8],
    ) -> Verdict {
        self.last_seen[usize::from(contribution.rank)] = Some(now);
        match dedup::look(self.copy(&contribution), &contribution) {
            dedup::Novelty::New => decide::missing(self.config.has_checksum, header, output),
            dedup::Novelty::ResendComplete => decide::reply(self, contribution, output),
            dedup::Novelty::Duplicate => self.drop_packet(DropReason::DuplicateContribution),
        }
    }

    #[cold]
    fn refuse(&mut self, reason: DropReason, header: fanin::Header, output: &mut [u8]) -> Verdict {
        self.counters.drops[reason as usize] += 1;
        decide::refuse(reason, header, self.config.has_checksum, output)
    }

    #[cold]
    fn drop_packet(&mut self, reason: DropReason) -> Verdict {
        self.counters.drops[reason as usize] += 1;
        Verdict::Drop(reason)
    }
}
