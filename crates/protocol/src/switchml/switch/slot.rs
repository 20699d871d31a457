//! One copy of a slot: what it is adding up, and how far it is.

use fanin_numeric::BlockExponent;
use fanin_wire::{ElementFormat, Operator};

use crate::switchml::Contributed;

/// State of one of a slot's two copies; its elements lie in the job's pool.
///
/// One cache line, and the two copies of a slot are neighbours: a packet
/// touches nothing else of the job but its elements.
#[derive(Clone, Debug, Hash)]
#[repr(align(64))]
pub(super) struct SlotCopy {
    /// Who has contributed to the current use (SwitchML Alg. 3, `seen`).
    pub contributed: Contributed,
    /// Contributions of the current use, modulo the worker count (Alg. 3,
    /// `count`): 0 means complete, or never used.
    pub contribution_count: u16,
    /// Chunk of the current use; before the first use, the chunk that would
    /// have preceded it.
    pub chunk_index: u32,
    /// Tag that all contributions of the current use carry.
    pub collective_tag: u32,
    /// Largest exponent announced for the next block on this slot.
    pub block_exponent_next: BlockExponent,
    /// Elements in the sum; 0 as long as only empty contributions came.
    pub element_count: u16,
    pub element_format: ElementFormat,
    pub operator: Operator,
    pub destination: u16,
    /// Elements of the sum that have left the accumulator's format.
    pub overflow: u32,
}

impl SlotCopy {
    pub fn new(chunk_index: u32) -> SlotCopy {
        SlotCopy {
            contributed: Contributed::default(),
            contribution_count: 0,
            chunk_index,
            collective_tag: 0,
            block_exponent_next: BlockExponent::NOT_NEEDED,
            element_count: 0,
            element_format: ElementFormat::Int32,
            operator: Operator::Add,
            destination: fanin_wire::generated::RANK_ALL,
            overflow: 0,
        }
    }

    pub fn is_complete(&self) -> bool {
        self.contribution_count == 0
    }
}

/// A slot: two copies, used in turn.
pub(super) type SlotPair = [SlotCopy; 2];
