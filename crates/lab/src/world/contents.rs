//! What workers contribute, and the check of every sum that they take.

use std::sync::Arc;

use fanin_numeric::{BlockExponent, block_fixed, float_wire, static_fixed};
use fanin_protocol::stream::BlockId;
use fanin_protocol::{atp, switchml};
use fanin_wire::atp::ElementFormat;

/// What the tensors of a job hold.
#[derive(Clone, Debug)]
pub enum Contents {
    /// Words made from job, collective, block and rank, so that every sum has one right value and no memory is needed.
    Words,
    /// Gradients: by rank, the elements of all its collectives' blocks in a row; collectives repeat them.
    Gradients(Arc<Vec<Vec<f32>>>),
}

/// One rank's tensors.
#[derive(Debug)]
pub(super) struct Memory {
    pub contents: Contents,
    pub job: u32,
    pub rank: u32,
    pub worker_count: u32,
    /// Elements of a full block, for gradients.
    pub block_elements: usize,
    /// Blocks taken, and how many were wrong.
    pub blocks: u64,
    pub wrong: u64,
    /// Blocks that came as floats, because fixed point did not hold their sum.
    pub float_blocks: u64,
    /// Blocks that came at another scale than 10^8.
    pub scaled_blocks: u64,
    /// Largest difference between a sum and the exact one, as a share of the largest number that any rank has in the block.
    pub error_max: f64,
}

impl Memory {
    fn base(&self, id: BlockId, element: usize) -> u32 {
        let seed = (id.collective as u32) << 24 ^ id.block << 3 ^ self.job << 16 ^ element as u32;
        (seed ^ seed >> 15).wrapping_mul(0x85eb_ca6b) ^ 0x5bd1_e995
    }

    fn write_words(&self, id: BlockId, payload: &mut [u8]) {
        for (element, bytes) in payload.chunks_exact_mut(4).enumerate() {
            let word = self.base(id, element).wrapping_mul(self.rank + 1).wrapping_add(self.rank);
            bytes.copy_from_slice(&word.to_be_bytes());
        }
    }

    fn has_word_sums(&self, id: BlockId, payload: &[u8]) -> bool {
        let n = self.worker_count;
        payload.chunks_exact(4).enumerate().all(|(element, bytes)| {
            let sum = self.base(id, element).wrapping_mul(n * (n + 1) / 2).wrapping_add(n * (n - 1) / 2);
            bytes == sum.to_be_bytes()
        })
    }

    fn range(&self, id: BlockId, bytes: usize) -> std::ops::Range<usize> {
        let first = id.block as usize * self.block_elements;
        first..first + bytes / 4
    }

    fn write_gradients(&self, values: &[f32], form: Form, payload: &mut [u8]) {
        let f = block_fixed::scale(form.exponent, self.worker_count as u16);
        match form.format {
            ElementFormat::Fixed32 if form.is_static() => static_fixed::quantize_f32(values, payload),
            ElementFormat::Fixed32 => block_fixed::quantize_f32(values, f, payload),
            _ => float_wire::write_f32(values, payload),
        }
    }

    /// Exact in fixed point, and the rounded sum of all ranks in order as floats (spec/ATP.md, A2).
    fn has_gradient_sums(&self, ranks: &[Vec<f32>], id: BlockId, form: Form, payload: &[u8]) -> bool {
        let range = self.range(id, payload.len());
        let f = form.units_of_one(self.worker_count);
        range.zip(payload.chunks_exact(4)).all(|(place, bytes)| {
            let got = [bytes[0], bytes[1], bytes[2], bytes[3]];
            let terms = ranks.iter().map(|values| f64::from(values[place]));
            if form.format == ElementFormat::Float32 {
                return (terms.sum::<f64>() as f32).to_bits() == u32::from_be_bytes(got);
            }
            let sum: i64 = terms.map(|value| (value * f).round_ties_even() as i64).sum();
            sum == i64::from(i32::from_be_bytes(got))
        })
    }

    /// How far a block's sums are from the exact ones.
    fn error(&self, ranks: &[Vec<f32>], id: BlockId, form: Form, payload: &[u8]) -> f64 {
        let range = self.range(id, payload.len());
        let f = form.units_of_one(self.worker_count);
        let largest = |rank: &Vec<f32>| rank[range.clone()].iter().fold(0.0f32, |max, value| max.max(value.abs()));
        let largest = ranks.iter().map(largest).fold(0.0, f32::max);
        let errors = range.clone().zip(payload.chunks_exact(4)).map(|(place, bytes)| {
            let got = [bytes[0], bytes[1], bytes[2], bytes[3]];
            let exact: f64 = ranks.iter().map(|values| f64::from(values[place])).sum();
            let sum = match form.format {
                ElementFormat::Float32 => f64::from(f32::from_be_bytes(got)),
                _ => f64::from((f64::from(i32::from_be_bytes(got)) / f) as f32),
            };
            (sum - exact).abs()
        });
        errors.fold(0.0, f64::max) / f64::from(largest).max(f64::MIN_POSITIVE)
    }

    fn take(&mut self, is_right: bool) {
        self.blocks += 1;
        self.wrong += u64::from(!is_right);
    }
}

/// How a block's floats are coded.
#[derive(Clone, Copy)]
struct Form {
    format: ElementFormat,
    exponent: BlockExponent,
}

impl Form {
    fn is_static(self) -> bool {
        self.exponent == BlockExponent::NOT_NEEDED
    }

    /// 10^8, or 2^31 shared out among the workers and by the exponent.
    fn units_of_one(self, worker_count: u32) -> f64 {
        let shared = worker_count.next_power_of_two().ilog2() as i32 + i32::from(self.exponent.0);
        if self.is_static() { 1e8 } else { 2f64.powi(31 - shared) }
    }
}

impl atp::Tensors for Memory {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        match &self.contents {
            Contents::Words => BlockExponent::NOT_NEEDED,
            Contents::Gradients(ranks) => {
                let range = self.range(id, self.block_elements * 4);
                block_fixed::exponent_f32(&ranks[self.rank as usize][range])
            }
        }
    }

    fn write_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &mut [u8]) {
        match &self.contents {
            Contents::Words => self.write_words(id, payload),
            Contents::Gradients(ranks) => {
                let values = &ranks[self.rank as usize][self.range(id, payload.len())];
                self.write_gradients(values, Form { format, exponent }, payload);
            }
        }
    }

    fn read_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &[u8]) {
        let form = Form { format, exponent };
        let (is_right, error) = match &self.contents {
            Contents::Words => (self.has_word_sums(id, payload), 0.0),
            Contents::Gradients(ranks) => {
                (self.has_gradient_sums(ranks, id, form, payload), self.error(ranks, id, form, payload))
            }
        };
        self.float_blocks += u64::from(format == ElementFormat::Float32);
        self.scaled_blocks += u64::from(format == ElementFormat::Fixed32 && !form.is_static());
        self.error_max = self.error_max.max(error);
        self.take(is_right && !payload.is_empty());
    }
}

/// Static jobs sum words only: nothing here depends on what SwitchML's numbers are.
impl switchml::Tensors for Memory {
    fn block_exponent(&mut self, _id: BlockId) -> BlockExponent {
        BlockExponent::NOT_NEEDED
    }

    fn write_block(&mut self, id: BlockId, _exponent: BlockExponent, payload: &mut [u8]) {
        self.write_words(id, payload);
    }

    fn read_block(&mut self, id: BlockId, _exponent: BlockExponent, _shift: u8, payload: &[u8]) {
        let is_right = !payload.is_empty() && self.has_word_sums(id, payload);
        self.take(is_right);
    }
}
