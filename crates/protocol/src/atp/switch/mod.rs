//! The switch program: one packet in, one verdict out (ATP §3.5, Fig. 7; App. A.1, Fig. 17).
//!
//! The stages are the files beside this one, in the order a packet meets them; they share the stem of SwitchML's. The
//! slots belong to nobody: a Fragment takes a free one, and the chunk's Parameter frees it on its way down.

pub(super) mod accumulate;
mod admit;
mod count;
pub(super) mod decide;
mod dedup;
mod slot;

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_numeric::{Telemetry, accumulate as words};
use fanin_wire::Accumulator;
use fanin_wire::atp::{Header, Kind};

use crate::DropReason;
use crate::atp::floats::{Sum, raw_format};
use crate::atp::scale;
use crate::float_pool::{FloatPool, Terms};
use crate::tensor_counts::{TensorCounts, TensorTable};
use crate::time::{Span, Time};

pub use decide::{Verdict, without_payload};

use dedup::Novelty;
use slot::{Owner, Slot};

/// What a switch knows about a packet beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// When the packet arrived.
    pub now: Time,
    /// Bytes that wait where the packet is about to leave.
    pub egress_queue_bytes: u32,
}

/// How a switch is set up, once for all jobs (ATP §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Slots that all jobs share.
    pub slot_count: u16,
    /// Largest payload, in elements.
    pub element_count_max: u16,
    /// A slot that was not touched for so long is taken from its chunk when a Parameter comes by (ATP §3.7).
    pub slot_age_max: Span,
    /// A longer queue marks what joins it.
    pub ecn_threshold_bytes: u32,
}

/// A job whose packets the switch handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// Independent streams.
    pub lane_count: u16,
    /// Of this switch in the job's tree, counted from the workers up.
    pub level: u8,
    /// How sums of floats are added.
    pub accumulator: Accumulator,
    /// Workers of the whole job, lost ones included: what FPISA's registers leave room for.
    pub worker_count: u16,
}

/// Why a job was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// Another job has the same number.
    JobNumberInUse,
    /// `block-fixed` needs an exponent that all workers have agreed on; an exact sum does not fit a packet, so that it can be
    /// made at the lowest level only.
    Accumulator,
}

/// The sender of a Fragment that passed `admit`: where the Parameters of this child go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Job number, the low eight bits of the job id.
    pub job_number: u8,
    /// The lane.
    pub lane: u16,
    /// Which child of this switch.
    pub child: u8,
}

/// Packets by outcome.
#[derive(Clone, Debug, Default)]
pub struct SwitchCounters {
    /// Fragments counted into a slot.
    pub contributions: u64,
    /// Slots completed and sent up.
    pub aggregates: u64,
    /// Fragments passed on because another chunk had their slot.
    pub collisions: u64,
    /// Fragments passed on because they were sent again.
    pub resends: u64,
    /// Slots given up to a resend before they were complete, or after.
    pub flushed: u64,
    /// Slots freed by the Parameter of their chunk.
    pub freed: u64,
    /// Slots taken from a chunk that nobody had touched for long.
    pub abandoned: u64,
    /// Parameters passed down.
    pub parameters: u64,
    /// Packets that met a long queue here and were marked for it (ECN).
    pub marks: u64,
    /// Additions and read-outs of elements by what an accumulator of raw floats met.
    pub telemetry: Telemetry,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

#[derive(Clone)]
struct Job {
    config: JobConfig,
    counters: SwitchCounters,
    /// The counters' telemetry by tensor.
    tensors: TensorTable,
}

/// One data-plane thread's switch program.
#[derive(Clone)]
pub struct Switch {
    config: SwitchConfig,
    /// By job number; as long as the largest number in use asks for.
    jobs: Vec<Option<Job>>,
    slots: Vec<Slot>,
    /// Elements of all slots, `element_count_max` each.
    values: Vec<i32>,
    /// What accumulators of raw floats have beside them, for those that a job here has.
    floats: Vec<(Accumulator, FloatPool)>,
    counters: SwitchCounters,
    admitted: Option<Admitted>,
}

impl Switch {
    /// A switch without jobs.
    pub fn new(config: SwitchConfig) -> Switch {
        let slot_count = usize::from(config.slot_count);
        Switch {
            jobs: Vec::new(),
            slots: vec![Slot::FREE; slot_count],
            values: vec![0; slot_count * usize::from(config.element_count_max)],
            floats: Vec::new(),
            counters: SwitchCounters::default(),
            admitted: None,
            config,
        }
    }

    /// Lets a job's packets pass. It gets no slots: they are taken as Fragments arrive.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn install(&mut self, job: JobConfig) -> Result<(), InstallError> {
        let number = (job.job_id & 0xff) as usize;
        if self.jobs.len() <= number {
            self.jobs.resize_with(number + 1, || None);
        }
        if self.jobs[number].is_some() {
            return Err(InstallError::JobNumberInUse);
        }
        if !job.accumulator.suits_atp() || job.accumulator == Accumulator::Exact && job.level > 0 {
            return Err(InstallError::Accumulator);
        }
        self.make_pool(job.accumulator);
        let tensors = TensorTable::new(job.accumulator, true);
        self.jobs[number] = Some(Job { config: job, counters: SwitchCounters::default(), tensors });
        Ok(())
    }

    /// Ends a job and frees its slots. Returns whether there was one.
    pub fn remove(&mut self, job_id: u32) -> bool {
        if self.job(job_id).is_none() {
            return false;
        }
        self.jobs[(job_id & 0xff) as usize] = None;
        for slot_index in 0..self.config.slot_count {
            if self.slots[usize::from(slot_index)].owner.is_some_and(|owner| owner.job_id == job_id) {
                self.free(slot_index);
            }
        }
        let jobs = &self.jobs;
        let is_used = |accumulator| jobs.iter().flatten().any(|job: &Job| job.config.accumulator == accumulator);
        self.floats.retain(|(accumulator, _)| is_used(*accumulator));
        true
    }

    /// Jobs share their accumulator's memory as they share the slots.
    fn make_pool(&mut self, accumulator: Accumulator) {
        if !accumulator.is_raw() || self.floats.iter().any(|(known, _)| *known == accumulator) {
            return;
        }
        let stride = usize::from(self.config.element_count_max);
        let pool = FloatPool::new(accumulator, self.values.len(), stride, stride * 4);
        self.floats.push((accumulator, pool));
    }

    fn free(&mut self, slot_index: u16) {
        self.slots[usize::from(slot_index)] = Slot::FREE;
        let start = usize::from(slot_index) * usize::from(self.config.element_count_max);
        self.floats.iter_mut().for_each(|(_, pool)| pool.release(start));
    }

    /// Handles one packet. An outgoing packet is written to `output`, which must hold the largest datagram.
    pub fn process(&mut self, context: &Context, packet: &[u8], output: &mut [u8]) -> Verdict {
        self.admitted = None;
        let verdict = match Header::parse(packet) {
            Ok((header, payload)) => self.handle(context, &header, payload, output),
            Err(error) => Verdict::Drop(error.into()),
        };
        if let Verdict::Drop(reason) | Verdict::Refuse { reason, .. } = verdict {
            self.counters.drops[reason as usize] += 1;
            if let Some(admitted) = self.admitted {
                self.tally(admitted.job_number.into(), |counters| counters.drops[reason as usize] += 1);
            }
        }
        verdict
    }

    /// Who sent the Fragment that `process` handled last, if it was admitted.
    pub fn admitted(&self) -> Option<Admitted> {
        self.admitted
    }

    /// Packets by outcome since the start.
    pub fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// Packets of one job by outcome. Of drops only those of admitted Fragments.
    pub fn job_counters(&self, job_id: u32) -> Option<&SwitchCounters> {
        self.job(job_id).map(|job| &job.counters)
    }

    /// What the tensors of one job met in its accumulator here.
    pub fn job_tensors(&self, job_id: u32) -> &[TensorCounts] {
        self.job(job_id).map_or(&[], |job| job.tensors.rows())
    }

    /// Slots that some chunk has, of all jobs or of one.
    pub fn slots_in_use(&self, job_id: Option<u32>) -> usize {
        let is_counted = |owner: &Owner| job_id.is_none_or(|job_id| owner.job_id == job_id);
        self.slots.iter().filter(|slot| slot.owner.as_ref().is_some_and(is_counted)).count()
    }

    /// Hashes all that decides about later packets but the times, for the exhaustive checker.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.owner.is_some() {
                (index, slot.owner, slot.contributed, slot.ecn, slot.element_count).hash(hasher);
                (slot.scale, slot.scale_next).hash(hasher);
                let first = index * usize::from(self.config.element_count_max);
                let range = first..first + usize::from(slot.element_count);
                self.values[range.clone()].hash(hasher);
                (slot.overflow, slot.element_format as u8).hash(hasher);
                self.hash_floats(slot, range, hasher);
            }
        }
    }

    fn hash_floats(&self, slot: &Slot, range: core::ops::Range<usize>, hasher: &mut impl Hasher) {
        let job = slot.owner.as_ref().and_then(|owner| self.job(owner.job_id));
        let pool = job.and_then(|job| self.floats.iter().find(|(known, _)| *known == job.config.accumulator));
        if let (Some((_, pool)), Some(format)) = (pool, raw_format(slot.element_format).filter(|_| !range.is_empty())) {
            pool.hash_state(format, range, hasher);
        }
    }

    fn job(&self, job_id: u32) -> Option<&Job> {
        self.jobs.get((job_id & 0xff) as usize)?.as_ref().filter(|job| job.config.job_id == job_id)
    }

    /// Counts for the switch and for a job that is known to be there.
    fn count(&mut self, header: &Header, add: impl Fn(&mut SwitchCounters)) {
        add(&mut self.counters);
        self.tally((header.job_id & 0xff) as usize, add);
    }

    /// Counts what a sum met, for the tensor as well.
    fn note(&mut self, header: &Header, telemetry: &Telemetry) {
        self.count(header, |counters| counters.telemetry.merge(telemetry));
        if let Some(job) = self.jobs.get_mut((header.job_id & 0xff) as usize).and_then(Option::as_mut) {
            job.tensors.note(header.collective_tag, telemetry);
        }
    }

    fn tally(&mut self, job_number: usize, add: impl Fn(&mut SwitchCounters)) {
        if let Some(job) = self.jobs.get_mut(job_number).and_then(Option::as_mut) {
            add(&mut job.counters);
        }
    }

    fn handle(&mut self, context: &Context, header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        if let Err(reason) = self.check(header) {
            return decide::refuse(reason, header, output);
        }
        if !is_upward(header) {
            return self.pass_down(context, header, payload, output);
        }
        let level = usize::from(header.level);
        self.admitted = Some(Admitted {
            job_number: (header.job_id & 0xff) as u8,
            lane: header.lane,
            child: header.contributed[level].trailing_zeros() as u8,
        });
        if header.kind == Kind::Probe {
            return decide::forward(header, payload, output);
        }
        let header = self.marked(context, header);
        self.aggregate(context.now, &header, payload, output)
    }

    /// What joins a long queue says so, whichever way it goes.
    fn marked(&mut self, context: &Context, header: &Header) -> Header {
        let mut header = *header;
        if context.egress_queue_bytes > self.config.ecn_threshold_bytes {
            header.flags.ecn = true;
            self.count(&header, |counters| counters.marks += 1);
        }
        header
    }

    fn check(&self, header: &Header) -> Result<(), DropReason> {
        let job = &self.job(header.job_id).ok_or(DropReason::UnknownJob)?.config;
        if header.job_token != job.job_token {
            return Err(DropReason::StaleToken);
        }
        if header.lane >= job.lane_count {
            return Err(DropReason::BadSlot);
        }
        if header.level != job.level {
            return Err(DropReason::BadRank);
        }
        admit::packet(&self.config, job.accumulator, header)?;
        if is_upward(header) { admit::fragment(header) } else { Ok(()) }
    }

    /// The stages, for a Fragment.
    fn aggregate(&mut self, now: Time, header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        let slot = &mut self.slots[usize::from(header.slot_index)];
        match dedup::stage(slot, header) {
            Novelty::First => {
                slot.owner = Some(Owner::of(header));
                accumulate::begin(slot, header);
            }
            Novelty::New => {
                if let Err(reason) = admit::same_collective(slot, header) {
                    return decide::refuse(reason, header, output);
                }
            }
            Novelty::Duplicate => {
                slot.ecn |= header.flags.ecn;
                return Verdict::Drop(DropReason::DuplicateContribution);
            }
            Novelty::Collision => return self.pass_collided(header, payload, output),
            Novelty::Resend { owned } => return self.pass_resent(owned, header, payload, output),
        }
        self.add(now, header, payload);
        self.count(header, |counters| counters.contributions += 1);
        let slot = &mut self.slots[usize::from(header.slot_index)];
        if !count::stage(slot, header) {
            return Verdict::Drop(DropReason::AwaitingOthers);
        }
        self.count(header, |counters| counters.aggregates += 1);
        self.send_sum(header, output)
    }

    fn add(&mut self, now: Time, header: &Header, payload: &[u8]) {
        let slot = &mut self.slots[usize::from(header.slot_index)];
        slot.touched = now;
        slot.ecn |= header.flags.ecn;
        slot.scale_next = scale::merge(slot.scale_next, header.scale_next);
        if raw_format(header.element_format).is_some() {
            return self.add_floats(header, payload);
        }
        let stride = usize::from(self.config.element_count_max);
        let values = &mut self.values[usize::from(header.slot_index) * stride..][..stride];
        accumulate::stage(slot, header, payload, values);
    }

    fn add_floats(&mut self, header: &Header, payload: &[u8]) {
        let mut slot = self.slots[usize::from(header.slot_index)].clone();
        if let Some(sum) = self.float_sum(header, header.element_count) {
            let telemetry = accumulate::floats(&mut slot, header, payload, sum);
            self.note(header, &telemetry);
        }
        self.slots[usize::from(header.slot_index)] = slot;
    }

    /// A slot's raw sum, of so many elements, in the pool of its job's accumulator.
    fn float_sum(&mut self, header: &Header, element_count: u16) -> Option<Sum<'_>> {
        let format = raw_format(header.element_format)?;
        let JobConfig { accumulator, worker_count, .. } = self.job(header.job_id)?.config;
        let terms = Terms { format, worker_count };
        let start = usize::from(header.slot_index) * usize::from(self.config.element_count_max);
        let range = start..start + usize::from(element_count);
        let (_, pool) = self.floats.iter_mut().find(|(known, _)| *known == accumulator)?;
        Some(Sum { pool, terms, words: &mut self.values[range.clone()], range })
    }

    fn send_sum(&mut self, header: &Header, output: &mut [u8]) -> Verdict {
        let slot = self.slots[usize::from(header.slot_index)].clone();
        let start = usize::from(header.slot_index) * usize::from(self.config.element_count_max);
        let (mut telemetry, mut overflow) = (Telemetry::default(), slot.overflow);
        let emit = |out: &mut [u8]| {
            // Of empty contributions nothing is kept.
            let element_count = slot.element_count;
            match self.float_sum(header, element_count).filter(|_| element_count > 0) {
                Some(sum) => telemetry = sum.emit(out, &mut overflow),
                None => words::emit(&self.values[start..start + usize::from(element_count)], out),
            }
            overflow
        };
        let verdict = decide::send_sum(&slot, emit, header, output);
        self.note(header, &telemetry);
        verdict
    }

    /// The slot is another chunk's: this Fragment is for the server alone (ATP §3.5).
    fn pass_collided(&mut self, header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        self.count(header, |counters| counters.collisions += 1);
        let mut header = *header;
        (header.flags.resend, header.flags.collision) = (true, true);
        decide::forward(&header, payload, output)
    }

    /// What was sent again goes to the server, and takes with it what the first level has of the chunk. Above, one bit
    /// stands for a whole switch, so that a part of its workers cannot be told; what the slot holds is lost, and its
    /// workers send it again (ATP §3.7, Fig. 17).
    fn pass_resent(&mut self, owned: bool, header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        self.count(header, |counters| counters.resends += 1);
        if !owned {
            return decide::forward(header, payload, output);
        }
        self.count(header, |counters| counters.flushed += 1);
        let slot = &self.slots[usize::from(header.slot_index)];
        let is_sum_wanted = header.level == 0 && !header.flags.is_saturated && self.fits_packet(slot, header);
        let verdict = if is_sum_wanted && admit::same_collective(slot, header).is_ok() {
            if !dedup::has_contributed(slot, header) {
                self.add(slot.touched, header, payload);
                self.slots[usize::from(header.slot_index)].contributed |= header.contributed[0];
            }
            self.send_sum(header, output)
        } else {
            decide::forward(header, payload, output)
        };
        self.free(header.slot_index);
        verdict
    }

    /// Whether a sum may leave the switch although it is not complete. An exact one would be rounded, and again with others: its
    /// workers send it again, one by one (`spec/ATP.md`, section 2).
    fn fits_packet(&self, slot: &Slot, header: &Header) -> bool {
        let is_exact = self.job(header.job_id).is_some_and(|job| job.config.accumulator == Accumulator::Exact);
        let contributed = slot.contributed | header.contributed[usize::from(header.level)];
        let is_whole = contributed.count_ones() >= u32::from(header.fan_in[usize::from(header.level)]);
        !is_exact || !header.element_format.is_raw() || is_whole
    }

    /// A Parameter frees its chunk's slot, whether anybody awaits it still or not, and one that seems abandoned.
    fn pass_down(&mut self, context: &Context, header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        if header.kind == Kind::Parameter {
            self.count(header, |counters| counters.parameters += 1);
            let slot = &mut self.slots[usize::from(header.slot_index)];
            if slot.is_owned_by(header) {
                self.free(header.slot_index);
                self.count(header, |counters| counters.freed += 1);
            } else if slot.owner.is_some() && context.now.since(slot.touched) > self.config.slot_age_max {
                self.free(header.slot_index);
                self.count(header, |counters| counters.abandoned += 1);
            }
        }
        let header = self.marked(context, header);
        decide::distribute(&header, payload, output)
    }
}

/// Whether a packet goes towards the server.
fn is_upward(header: &Header) -> bool {
    matches!(header.kind, Kind::Fragment | Kind::Probe)
}
