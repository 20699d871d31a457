//! A simulated worker's memory: inputs from the collectives' seeds, results
//! handed on to the checkers.

use std::rc::Rc;

use fanin_numeric::{
    BlockExponent, bfloat_wire, block_fixed, byte_wire, float16, half_wire, integer, raw_wire, static_fixed,
};
use fanin_protocol::switchml::{BlockId, Tensors};
use fanin_wire::ElementFormat;

use crate::collective::Collective;
use crate::job::JobPlan;

/// A block's result as one worker saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which block.
    pub id: BlockId,
    /// The exponent it came with.
    pub exponent: i16,
    /// Bytes of the sum on the wire.
    pub payload: Vec<u8>,
    /// The elements as bits: words, or binary32 numbers.
    pub elements: Vec<u32>,
}

/// Memory of one rank, shared by its lanes.
pub struct Memory {
    job: Rc<JobPlan>,
    rank: u16,
    scratch: Vec<f32>,
    received: Vec<Received>,
}

impl Memory {
    /// Memory of `rank`.
    pub fn new(job: Rc<JobPlan>, rank: u16) -> Memory {
        Memory { job, rank, scratch: Vec::new(), received: Vec::new() }
    }

    /// The blocks that arrived since the last call.
    pub fn take_received(&mut self) -> Vec<Received> {
        std::mem::take(&mut self.received)
    }

    /// Brings the block's numbers into `scratch`.
    fn load(&mut self, collective: &Collective, id: BlockId) {
        let (shard, first, count) = collective.place(id, self.job.element_count_max);
        self.scratch.clear();
        self.scratch.extend((first..first + count).map(|element| collective.number(self.rank, shard, element)));
    }

    fn collective(&self, id: BlockId) -> Rc<Collective> {
        self.job.collectives[id.collective as usize].clone()
    }

    fn decode(&self, collective: &Collective, exponent: BlockExponent, shift: u8, payload: &[u8]) -> Vec<u32> {
        let format = format_of(collective, exponent);
        let mut numbers = vec![0.0f32; payload.len() / format.bytes()];
        match (collective.is_float(), format) {
            (false, _) => return payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect(),
            (true, ElementFormat::Int32) => {
                let f = block_fixed::scale(exponent, self.job.worker_count);
                block_fixed::dequantize_f32(payload, f, 1.0, &mut numbers);
            }
            (true, ElementFormat::Float16) => {
                let f = half_wire::scale(exponent, self.job.worker_count);
                half_wire::dequantize_f32(payload, f, 1.0, &mut numbers);
            }
            (true, ElementFormat::Bfloat16) => {
                let f = bfloat_wire::scale(exponent, self.job.worker_count);
                bfloat_wire::dequantize_f32(payload, f, 1.0, &mut numbers);
            }
            (true, ElementFormat::Int8) => {
                byte_wire::dequantize_f32(payload, byte_wire::scale(exponent), shift, 1.0, &mut numbers);
            }
            (true, ElementFormat::RawFloat32) => drop(raw_wire::read_f32(payload, 1.0, &mut numbers)),
            (true, ElementFormat::RawFloat16) => numbers = widened(payload, float16::f16_to_f32),
            (true, ElementFormat::RawBfloat16) => numbers = widened(payload, float16::bf16_to_f32),
            (true, ElementFormat::Fixed32) => static_fixed::dequantize_f32(payload, 1.0, &mut numbers),
        }
        numbers.iter().map(|number| number.to_bits()).collect()
    }
}

impl Tensors for Memory {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        let collective = self.collective(id);
        self.load(&collective, id);
        block_fixed::exponent_f32(&self.scratch)
    }

    fn write_block(&mut self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]) {
        let collective = self.collective(id);
        if !collective.is_float() {
            let (shard, first, count) = collective.place(id, self.job.element_count_max);
            let words: Vec<i32> =
                (first..first + count).map(|element| collective.word(self.rank, shard, element)).collect();
            return integer::i32_to_payload(&words, payload);
        }
        self.load(&collective, id);
        match format_of(&collective, exponent) {
            ElementFormat::Int32 => {
                let f = block_fixed::scale(exponent, self.job.worker_count);
                block_fixed::quantize_f32(&self.scratch, f, payload);
            }
            ElementFormat::Float16 => {
                let f = half_wire::scale(exponent, self.job.worker_count);
                half_wire::quantize_f32(&self.scratch, f, payload);
            }
            ElementFormat::Bfloat16 => {
                let f = bfloat_wire::scale(exponent, self.job.worker_count);
                bfloat_wire::quantize_f32(&self.scratch, f, payload);
            }
            ElementFormat::Int8 => byte_wire::quantize_f32(&self.scratch, byte_wire::scale(exponent), payload),
            ElementFormat::RawFloat32 => raw_wire::write_f32(&self.scratch, payload),
            ElementFormat::RawFloat16 => raw_wire::write_16(&narrowed(&self.scratch, float16::f32_to_f16), payload),
            ElementFormat::RawBfloat16 => raw_wire::write_16(&narrowed(&self.scratch, float16::f32_to_bf16), payload),
            ElementFormat::Fixed32 => static_fixed::quantize_f32(&self.scratch, payload),
        }
    }

    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, shift: u8, payload: &[u8]) {
        let collective = self.collective(id);
        let elements = self.decode(&collective, exponent, shift, payload);
        self.received.push(Received { id, exponent: exponent.0, payload: payload.to_vec(), elements });
    }
}

/// The format that a block travels in: 32-bit words when the accumulator's own did not hold its sum.
fn format_of(collective: &Collective, exponent: BlockExponent) -> ElementFormat {
    let is_resent = !collective.element_format.is_block_scaled() && exponent != BlockExponent::NOT_NEEDED;
    if is_resent { ElementFormat::Int32 } else { collective.element_format }
}

fn widened(payload: &[u8], widen: fn(u16) -> f32) -> Vec<f32> {
    payload.chunks_exact(2).map(|half| widen(u16::from_le_bytes([half[0], half[1]]))).collect()
}

fn narrowed(values: &[f32], narrow: fn(f32) -> u16) -> Vec<u16> {
    values.iter().map(|value| narrow(*value)).collect()
}
