//! What is explored.

use fanin_protocol::atp::Tree;
use fanin_wire::Accumulator;

/// How small the cluster is and how much may go wrong.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Where the workers of every job are.
    pub tree: Tree,
    /// Jobs, all on the same switches.
    pub jobs: u8,
    /// Slots of each switch.
    pub slots: u16,
    /// Chunks that each worker sums, of one word each.
    pub chunks: u16,
    /// Chunks that a worker may have out.
    pub window_max: u32,
    /// Packets that may be lost.
    pub losses: u8,
    /// Packets that may be doubled.
    pub duplicates: u8,
    /// Timeouts while packets are under way, beyond one for each loss.
    pub early_timeouts: u8,
    /// Times that the switches may lose all their slots.
    pub restarts: u8,
    /// Numbers that 32 bits do not hold at 10^8, so that all but the first window's chunks are sent at a scale of their own.
    pub floats: bool,
    /// How sums of floats are added; unless it is static-fixed, all are, as they lie in memory.
    pub accumulator: Accumulator,
}

impl Scope {
    /// Two workers of one job with a chunk each, on one switch with one slot; no faults.
    pub fn least() -> Scope {
        Scope {
            tree: Tree::one_switch(2).expect("a tree"),
            jobs: 1,
            slots: 1,
            chunks: 1,
            window_max: 1,
            losses: 0,
            duplicates: 0,
            early_timeouts: 0,
            restarts: 0,
            floats: false,
            accumulator: Accumulator::StaticFixed,
        }
    }
}
