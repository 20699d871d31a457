//! What ranks contribute, and the check of every sum that they take: words made from job, collective, block and rank, so that every
//! sum has one right value and no memory is needed.

use fanin_numeric::BlockExponent;
use std::ops::Range;

use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::{atp, switchml};
use fanin_wire::atp::ElementFormat as AtpFormat;
use fanin_wire::{ElementFormat, Operator};

/// Elements that stand for a payload.
pub const ELEMENTS: u16 = 1;

/// Some blocks of a collective of so many.
pub fn submission(id: u64, block_count: u32, blocks: Range<u32>) -> Submission {
    Submission {
        id,
        collective_tag: 1,
        shape: Shape {
            shard_count: 1,
            shard_elements: u64::from(block_count) * u64::from(ELEMENTS),
            block_elements: ELEMENTS,
        },
        block_first: blocks.start,
        block_count: blocks.end - blocks.start,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: ElementFormat::Int32,
        scaled: false,
    }
}

/// One rank's tensors.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub job: u32,
    pub rank: u32,
    pub worker_count: u32,
    /// Sums taken, and how many of them were wrong.
    pub sums: u64,
    pub wrong: u64,
}

impl Words {
    pub fn new(job: u32, rank: u32, worker_count: u32) -> Words {
        Words { job, rank, worker_count, sums: 0, wrong: 0 }
    }

    fn base(&self, id: BlockId, element: usize) -> u32 {
        let seed = (id.collective as u32) << 24 ^ id.block << 3 ^ self.job << 16 ^ element as u32;
        (seed ^ seed >> 15).wrapping_mul(0x85eb_ca6b) ^ 0x5bd1_e995
    }

    /// Rank r contributes its multiple of the base, plus its number.
    pub fn write(&self, id: BlockId, payload: &mut [u8]) {
        for (element, bytes) in payload.chunks_exact_mut(4).enumerate() {
            let word = self.base(id, element).wrapping_mul(self.rank + 1).wrapping_add(self.rank);
            bytes.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Takes the sum of all ranks' words.
    pub fn take(&mut self, id: BlockId, payload: &[u8]) {
        let n = self.worker_count;
        let is_right = payload.chunks_exact(4).enumerate().all(|(element, bytes)| {
            let multiples = self.base(id, element).wrapping_mul(n * (n + 1) / 2);
            bytes == multiples.wrapping_add(n * (n - 1) / 2).to_be_bytes()
        });
        self.sums += 1;
        self.wrong += u64::from(!is_right || payload.is_empty());
    }
}

impl switchml::Tensors for Words {
    fn block_exponent(&mut self, _id: BlockId) -> BlockExponent {
        BlockExponent::NOT_NEEDED
    }

    fn write_block(&mut self, id: BlockId, _exponent: BlockExponent, payload: &mut [u8]) {
        self.write(id, payload);
    }

    fn read_block(&mut self, id: BlockId, _exponent: BlockExponent, _shift: u8, payload: &[u8]) {
        self.take(id, payload);
    }
}

impl atp::Tensors for Words {
    fn write_block(&mut self, id: BlockId, _format: AtpFormat, _exponent: BlockExponent, payload: &mut [u8]) {
        self.write(id, payload);
    }

    fn read_block(&mut self, id: BlockId, _format: AtpFormat, _exponent: BlockExponent, payload: &[u8]) {
        self.take(id, payload);
    }
}
