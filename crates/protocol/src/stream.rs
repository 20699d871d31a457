//! The continuous stream of blocks that all collectives of a lane form
//! (SwitchML App. B, "virtual stream").

use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};

use fanin_wire::{ElementFormat, Operator};

/// One block of one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    /// The submission's `id`.
    pub collective: u64,
    /// Block within the collective.
    pub block: u32,
}

/// Which workers take part in a block on one side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participants {
    /// All of them.
    Everyone,
    /// This rank.
    Rank(u16),
    /// The rank whose number is the block's shard.
    ShardOwner,
}

impl Participants {
    /// The one rank that takes part, if it is one.
    pub fn sole(self, shard: u16) -> Option<u16> {
        match self {
            Participants::Everyone => None,
            Participants::Rank(rank) => Some(rank),
            Participants::ShardOwner => Some(shard),
        }
    }
}

/// How a collective is cut into blocks.
///
/// A collective is `shard_count` shards of `shard_elements` wire elements
/// each; every shard is cut into blocks of `block_elements`, the last one
/// shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 1, or one shard per worker (reduce-scatter, all-gather).
    pub shard_count: u16,
    /// Wire elements of one shard; 0 for a barrier.
    pub shard_elements: u64,
    /// Wire elements of a full block, at most the job's `element_count_max`:
    /// as many of this format as a datagram carries.
    pub block_elements: u16,
}

impl Shape {
    /// Blocks of one shard; a shard without elements still takes one.
    pub fn blocks_per_shard(&self) -> u64 {
        self.shard_elements.div_ceil(u64::from(self.block_elements)).max(1)
    }

    /// Blocks of the collective.
    pub fn block_count(&self) -> u64 {
        self.blocks_per_shard() * u64::from(self.shard_count)
    }

    /// Shard of a block.
    pub fn shard(&self, block: u32) -> u16 {
        (u64::from(block) / self.blocks_per_shard()) as u16
    }

    /// First wire element of a block within its shard, and its elements.
    pub fn elements_of(&self, block: u32) -> (u64, u16) {
        let max = u64::from(self.block_elements);
        let first = u64::from(block) % self.blocks_per_shard() * max;
        (first, (self.shard_elements - first).min(max) as u16)
    }
}

/// One lane's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The caller's name for the collective.
    pub id: u64,
    /// Hash of everything that must be equal at all workers.
    pub collective_tag: u32,
    /// How it is cut into blocks.
    pub shape: Shape,
    /// First block that this lane carries.
    pub block_first: u32,
    /// Blocks that this lane carries.
    pub block_count: u32,
    /// Who contributes elements; the others send empty contributions.
    pub contributors: Participants,
    /// Who gets the sums.
    pub receivers: Participants,
    /// How the switch combines elements.
    pub operator: Operator,
    /// How elements are encoded.
    pub element_format: ElementFormat,
    /// Whether blocks are scaled by an agreed exponent (floating point sums).
    pub scaled: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    first: u64,
    remaining: u32,
    submission: Submission,
}

/// Submissions in order, laid end to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    entries: VecDeque<Entry>,
    end: u64,
}

impl Stream {
    /// An empty stream whose next block has this position.
    pub fn starting_at(position: u64) -> Stream {
        Stream { entries: VecDeque::new(), end: position }
    }

    /// Appends; returns the stream position of the first block.
    pub fn push(&mut self, submission: Submission) -> u64 {
        let first = self.end;
        self.end += u64::from(submission.block_count);
        self.entries.push_back(Entry { first, remaining: submission.block_count, submission });
        first
    }

    /// Hashes what is left to do; see `Worker::hash_state`.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.end.hash(hasher);
        for entry in &self.entries {
            (entry.first, entry.remaining, entry.submission.id).hash(hasher);
        }
    }

    /// One past the last block submitted.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The submission and block at a stream position.
    pub fn find(&self, position: u64) -> Option<(&Submission, BlockId)> {
        if position >= self.end {
            return None;
        }
        let index = self.entries.partition_point(|entry| entry.first <= position) - 1;
        let entry = &self.entries[index];
        let block = entry.submission.block_first + (position - entry.first) as u32;
        Some((&entry.submission, BlockId { collective: entry.submission.id, block }))
    }

    /// Counts a block as done; returns the collective if it was its last.
    /// Finished submissions leave the front of the stream.
    pub fn finish_block(&mut self, position: u64) -> Option<u64> {
        let index = self.entries.partition_point(|entry| entry.first <= position) - 1;
        let entry = &mut self.entries[index];
        entry.remaining -= 1;
        let finished = (entry.remaining == 0).then_some(entry.submission.id);
        while self.entries.front().is_some_and(|entry| entry.remaining == 0) {
            self.entries.pop_front();
        }
        finished
    }
}
