//! A simulated worker's memory: inputs from the collectives' seeds, results
//! handed on to the checkers.

use std::rc::Rc;

use fanin_numeric::{BlockExponent, bfloat_wire, block_fixed, byte_wire, half_wire, integer};
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
        let mut numbers = vec![0.0f32; payload.len() / collective.element_format.bytes()];
        match (collective.is_scaled(), collective.element_format) {
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
        if !collective.is_scaled() {
            let (shard, first, count) = collective.place(id, self.job.element_count_max);
            let words: Vec<i32> =
                (first..first + count).map(|element| collective.word(self.rank, shard, element)).collect();
            return integer::i32_to_payload(&words, payload);
        }
        self.load(&collective, id);
        match collective.element_format {
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
        }
    }

    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, shift: u8, payload: &[u8]) {
        let collective = self.collective(id);
        let elements = self.decode(&collective, exponent, shift, payload);
        self.received.push(Received { id, exponent: exponent.0, payload: payload.to_vec(), elements });
    }
}
