//! What the server knows of one chunk (ATP §3.6: an array of bitmap and value, by sequence number).

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_numeric::{accumulate, static_fixed};
use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::{ATP_SCALE_CODE_NONE, Operator};

use crate::atp::floats::{Sum, overflowed};
use crate::atp::scale;
use crate::atp::switch::accumulate::combine;
use crate::switchml::Contributed;

/// How far a chunk is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Some workers' contributions are missing.
    Collecting,
    /// A sum left 32 bits: floats are collected, one vector per rank, so that they are added in the order of ranks
    /// whatever the order of arrival.
    CollectingFloats(Vec<Option<Vec<f32>>>),
    /// The sum is there, and answers who missed it.
    Complete,
}

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Before the first use, the chunk that would have been before it.
    pub chunk_index: u32,
    pub phase: Phase,
    /// Whose contributions are in the sum.
    pub contributed: Contributed,
    /// How many they are.
    pub contributed_count: u16,
    pub ecn: bool,
    /// The slot where switches aggregate it, and the one for what would go there later.
    pub slot_index: u16,
    pub slot_index_next: u16,
    pub collective_tag: u32,
    pub element_format: ElementFormat,
    pub operator: Operator,
    pub destination: u16,
    pub element_count: u16,
    /// Elements that have left the accumulator's format, here or on the way.
    pub overflow: u32,
    /// Of its fixed point.
    pub scale: u8,
    /// Collecting: the smallest scale that its Fragments ask for one window further on. Complete: the one that is used there, for
    /// good.
    pub scale_next: u8,
    /// Integer sum, or the bits of a float sum, or the words of a raw sum's registers.
    pub values: Vec<i32>,
    /// A complete sum of raw elements.
    raw: Vec<u8>,
}

impl Chunk {
    /// As if the use before the first had completed.
    pub fn before(chunk_index: u32, element_count_max: u16) -> Chunk {
        Chunk {
            chunk_index,
            phase: Phase::Complete,
            contributed: Contributed::default(),
            contributed_count: 0,
            ecn: false,
            slot_index: 0,
            slot_index_next: 0,
            collective_tag: 0,
            element_format: ElementFormat::Int32,
            operator: Operator::Add,
            destination: 0,
            element_count: 0,
            overflow: 0,
            scale: 0,
            scale_next: 0,
            values: vec![0; usize::from(element_count_max)],
            raw: Vec::new(),
        }
    }

    /// Begins the next use with its first Fragment.
    pub fn begin(&mut self, header: &Header) {
        self.chunk_index = header.chunk_index;
        self.phase = Phase::Collecting;
        self.contributed = Contributed::default();
        self.contributed_count = 0;
        self.ecn = false;
        self.slot_index = header.slot_index;
        self.slot_index_next = header.slot_index;
        self.collective_tag = header.collective_tag;
        self.element_format = header.element_format;
        self.operator = header.operator;
        self.destination = header.destination;
        self.element_count = 0;
        self.overflow = 0;
        self.scale = header.scale;
        self.scale_next = ATP_SCALE_CODE_NONE;
    }

    /// Forgets the contributions so far. A chunk that waits for floats goes on to do so.
    pub fn begin_anew(&mut self, worker_count: u16) {
        self.contributed = Contributed::default();
        self.contributed_count = 0;
        self.scale_next = ATP_SCALE_CODE_NONE;
        match &mut self.phase {
            Phase::CollectingFloats(ranks) => *ranks = vec![None; usize::from(worker_count)],
            Phase::Collecting | Phase::Complete => (self.element_count, self.overflow) = (0, 0),
        }
    }

    /// Whether its sum means something without some workers' contributions. Others are an agreement among all, or
    /// somebody's words for all.
    pub fn is_sum_of_floats(&self) -> bool {
        self.element_format != ElementFormat::Int32
    }

    /// Whether an accumulator's memory holds its sum.
    pub fn is_being_added(&self) -> bool {
        matches!(self.phase, Phase::Collecting) && self.element_count > 0
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete)
    }

    /// Adds a payload; an empty one counts as zeros.
    pub fn add(&mut self, header: &Header, payload: &[u8]) {
        if header.element_count == 0 {
            return;
        }
        let overwrite = self.element_count == 0;
        self.element_count = header.element_count;
        let values = &mut self.values[..usize::from(header.element_count)];
        combine(self.element_format, self.operator, overwrite, payload, values);
    }

    /// The same for raw elements: `sum` is the chunk's, of the Fragment's elements, in the pool of the lane's accumulator.
    pub fn add_floats(&mut self, header: &Header, payload: &[u8], sum: Sum<'_>) {
        self.overflow = self.overflow.saturating_add(header.echo.into());
        let overwrite = self.element_count == 0;
        self.element_count = header.element_count;
        let telemetry = sum.add(overwrite, payload);
        self.overflow = self.overflow.saturating_add(overflowed(&telemetry));
    }

    /// Whether its sum was or might have been too large for units of 10^-8, as a chunk that was summed as fixed point shows.
    pub fn is_too_large(&self, worker_count: u16) -> bool {
        self.overflow > 0 || (self.scale != scale::STATIC && !scale::fits_static(self.scale, worker_count))
    }

    /// Rounds a whole raw sum to its elements' format, and keeps it so.
    pub fn round(&mut self, sum: Sum<'_>) {
        self.raw.resize(usize::from(self.element_count) * self.element_format.bytes(), 0);
        sum.emit(&mut self.raw, &mut self.overflow);
    }

    /// Counts the elements of a whole fixed point sum that 32 bits do not hold (ATP §3.8).
    pub fn count_saturated(&mut self) {
        if self.element_format == ElementFormat::Fixed32 {
            let values = &self.values[..usize::from(self.element_count)];
            self.overflow = static_fixed::count_saturated(values) as u32;
        }
    }

    /// Forgets the sum that has left its format.
    pub fn ask_for_floats(&mut self, worker_count: u16) {
        self.phase = Phase::CollectingFloats(vec![None; usize::from(worker_count)]);
        self.contributed = Contributed::default();
        self.contributed_count = 0;
        self.scale_next = ATP_SCALE_CODE_NONE;
    }

    /// Keeps one rank's floats.
    pub fn keep_floats(&mut self, rank: u16, payload: &[u8]) {
        if let Phase::CollectingFloats(ranks) = &mut self.phase {
            let float = |bytes: &[u8]| f32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            ranks[usize::from(rank)] = Some(payload.chunks_exact(4).map(float).collect());
        }
    }

    /// The collected floats become the sum, added as f64 in the order of ranks and rounded once.
    pub fn complete(&mut self) {
        if let Phase::CollectingFloats(ranks) = core::mem::replace(&mut self.phase, Phase::Complete) {
            self.element_format = ElementFormat::Float32;
            for (element, value) in self.values[..usize::from(self.element_count)].iter_mut().enumerate() {
                let terms = ranks.iter().flatten().filter_map(|values| values.get(element));
                let sum: f64 = terms.map(|&term| f64::from(term)).sum();
                *value = (sum as f32).to_bits() as i32;
            }
        }
    }

    /// Hashes what has been added so far.
    pub fn hash_sum(&self, hasher: &mut impl Hasher) {
        self.values[..usize::from(self.element_count)].hash(hasher);
        (&self.raw, self.overflow, self.element_format as u8).hash(hasher);
        if let Phase::CollectingFloats(ranks) = &self.phase {
            for (rank, values) in ranks.iter().enumerate() {
                let bits = values.iter().flatten().map(|value| value.to_bits());
                bits.for_each(|bits| (rank, bits).hash(hasher));
            }
        }
    }

    /// Writes the sum as a payload.
    pub fn emit(&self, payload: &mut [u8]) {
        if self.element_format.is_raw() {
            return payload.copy_from_slice(&self.raw[..payload.len()]);
        }
        accumulate::emit(&self.values[..payload.len() / 4], payload);
    }
}
