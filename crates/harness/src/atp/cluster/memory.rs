//! The tensors of one lane: contributions are computed, sums are checked.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use fanin_numeric::{BlockExponent, block_fixed, static_fixed};
use fanin_protocol::atp::{Missing, Tensors};
use fanin_protocol::stream::{BlockId, Submission};
use fanin_protocol::time::Time;
use fanin_wire::atp::ElementFormat;

use super::super::{JobPlan, oracle};

/// By job, lane, collective and block: what is missing, and a hash of the sum.
pub(super) type Sums = HashMap<(u32, u16, u64, u32), (Missing, u64)>;

pub(super) struct Memory<'a> {
    job: &'a JobPlan,
    lane: u16,
    rank: u16,
    now: Time,
    sums: &'a mut Sums,
    /// Declared for the block that is read next.
    missing: Missing,
    /// Sums that somebody was missing in.
    pub declared: u64,
    pub wrong: Option<String>,
}

impl<'a> Memory<'a> {
    pub fn new(job: &'a JobPlan, lane: u16, rank: u16, now: Time, sums: &'a mut Sums) -> Memory<'a> {
        Memory { job, lane, rank, now, sums, missing: Missing::default(), declared: 0, wrong: None }
    }

    fn submission(&self, id: BlockId) -> &'a Submission {
        &self.job.collectives[id.collective as usize]
    }

    /// Only who is lost or late may be missing, and never so many that the rest is no sum worth the name.
    fn check_missing(&self, submission: &Submission, missing: &Missing) -> Result<(), String> {
        let Some(ranks) = missing.ranks else { return Err("a few workers, and nobody says who is missing".into()) };
        let is_before = self.job.replacement.as_ref().is_none_or(|it| submission.id < it.after as u64);
        let is_without = self.job.goes_on_after.is_some() && is_before;
        let is_lost = |rank: u32| {
            let lost = self.job.death.filter(|_| is_without);
            lost.is_some_and(|(dead, at)| u32::from(dead) == rank && at <= self.now)
        };
        let may_be_late = self.job.stragglers.is_some() && oracle::is_float_sum(submission);
        match (0..32).find(|&rank| ranks >> rank & 1 == 1 && !is_lost(rank) && !may_be_late) {
            Some(rank) => return Err(format!("rank {rank} is neither lost nor late, and is missing")),
            None if missing.count == self.job.tree.worker_count() => return Err("a sum of nobody".into()),
            None => {}
        }
        let least = self.job.stragglers.map_or(0, |stragglers| stragglers.share_min_percent);
        let left = u32::from(self.job.tree.worker_count()) - u32::from(is_without);
        let present = u32::from(self.job.tree.worker_count() - missing.count);
        if present * 100 < left * u32::from(least) {
            return Err(format!("{present} contributions are less than {least} percent of {left}"));
        }
        Ok(())
    }

    /// Everybody takes the same bits, of the same workers.
    fn check_same(&mut self, id: BlockId, form: (ElementFormat, BlockExponent), payload: &[u8], missing: Missing) {
        let mut hasher = DefaultHasher::new();
        (form.0 as u8, form.1, payload).hash(&mut hasher);
        let got = (missing, hasher.finish());
        let key = (self.job.job_id, self.lane, id.collective, id.block);
        if *self.sums.entry(key).or_insert(got) != got {
            self.wrong = Some(format!("rank {}: {id:?} is not what another rank has", self.rank));
        }
    }
}

impl Tensors for Memory<'_> {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        let submission = self.submission(id);
        let elements = 0..u64::from(submission.shape.elements_of(id.block).1);
        let word = |element| oracle::contribution(self.job, self.lane, self.rank, submission, id, element);
        block_fixed::exponent_f32(&elements.map(word).map(f32::from_bits).collect::<Vec<_>>())
    }

    fn write_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &mut [u8]) {
        let submission = self.submission(id);
        let f = block_fixed::scale(exponent, self.job.tree.worker_count());
        let words = (0..).map(|element| oracle::contribution(self.job, self.lane, self.rank, submission, id, element));
        for (word, bytes) in words.zip(payload.chunks_exact_mut(format.bytes())) {
            match format {
                ElementFormat::Fixed32 if exponent == BlockExponent::NOT_NEEDED => {
                    static_fixed::quantize_f32(&[f32::from_bits(word)], bytes);
                }
                ElementFormat::Fixed32 => block_fixed::quantize_f32(&[f32::from_bits(word)], f, bytes),
                ElementFormat::RawFloat32 => bytes.copy_from_slice(&word.to_le_bytes()),
                ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => {
                    bytes.copy_from_slice(&oracle::narrowed(format, word).to_le_bytes());
                }
                ElementFormat::Int32 | ElementFormat::Float32 => bytes.copy_from_slice(&word.to_be_bytes()),
            }
        }
    }

    fn declare_missing(&mut self, id: BlockId, missing: &Missing) {
        if let Err(why) = self.check_missing(self.submission(id), missing) {
            self.wrong = Some(format!("rank {}: {id:?}: {why}", self.rank));
        }
        self.missing = *missing;
        self.declared += 1;
    }

    fn read_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &[u8]) {
        let missing = std::mem::take(&mut self.missing);
        let submission = self.submission(id);
        let elements = submission.shape.elements_of(id.block).1;
        let shard = submission.shape.shard(id.block);
        let receives = submission.receivers.sole(shard).is_none_or(|rank| rank == self.rank);
        let source = submission.contributors.sole(shard);
        let is_source_lost = source.is_some_and(|rank| missing.ranks.unwrap_or(0) >> rank & 1 == 1);
        let awaited = if receives && !is_source_lost { elements } else { 0 };
        if payload.len() / format.bytes() != usize::from(awaited) {
            self.wrong = Some(format!("rank {}: {} bytes for {id:?}", self.rank, payload.len()));
        }
        let must_be_float = submission.scaled
            && !payload.is_empty()
            && oracle::must_be_float(self.job, self.lane, submission, id, elements.into(), exponent, &missing);
        if must_be_float && format != ElementFormat::Float32 {
            self.wrong = Some(format!("rank {}: {id:?} left 32 bits and came as {format}", self.rank));
        }
        let is_again = format == ElementFormat::Float32 && !payload.is_empty();
        if is_again && !oracle::may_be_float(self.job, self.lane, submission, id, elements.into()) {
            self.wrong = Some(format!("rank {}: {id:?} came as floats, and no sum of it leaves its format", self.rank));
        }
        for (element, bytes) in payload.chunks_exact(format.bytes()).enumerate() {
            let bits = match *bytes {
                [a, b, c, d] if format == ElementFormat::RawFloat32 => u32::from_le_bytes([a, b, c, d]),
                [a, b, c, d] => u32::from_be_bytes([a, b, c, d]),
                [a, b] => oracle::widened(format, u16::from_le_bytes([a, b])),
                _ => unreachable!("elements have two or four bytes"),
            };
            let got = oracle::Got { format, exponent, bits };
            if !oracle::is_sum(self.job, self.lane, submission, id, element as u64, got, &missing) {
                self.wrong = Some(format!("rank {}: element {element} of {id:?} as {format} is {bits:#x}", self.rank));
            }
        }
        if format == ElementFormat::Fixed32 && exponent != BlockExponent::NOT_NEEDED && !payload.is_empty() {
            let largest = oracle::exponent(self.job, self.lane, submission, id, elements.into());
            let is_agreed = self.job.stragglers.is_none() && self.job.death.is_none();
            if exponent > largest || is_agreed && exponent != largest {
                self.wrong = Some(format!("rank {}: {id:?} is scaled for {exponent:?}, not {largest:?}", self.rank));
            }
        }
        if receives {
            self.check_same(id, (format, exponent), payload, missing);
        }
    }
}
