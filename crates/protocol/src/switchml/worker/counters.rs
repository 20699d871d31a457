//! What a lane has sent and received.

use crate::DropReason;

/// Packets of one lane by outcome.
#[derive(Clone, Debug)]
pub struct WorkerCounters {
    /// Contributions sent for the first time, announces included.
    pub contributions: u64,
    /// Contributions that only carried an exponent.
    pub announces: u64,
    /// Contributions sent again.
    pub resends: u64,
    /// Queries: headers that ask whether a contribution must be sent again.
    pub queries: u64,
    /// Times that later packets were answered first.
    pub overtaken: u64,
    /// Aggregates that were awaited.
    pub aggregates: u64,
    /// Blocks whose sum was not a number at some worker.
    pub blocks_non_finite: u64,
    /// Blocks that left their accumulator's format, and were sent again as block fixed point.
    pub blocks_overflowed: u64,
    /// Elements of them that did.
    pub elements_overflowed: u64,
    /// Refusals of chunks that are still awaited.
    pub refusals: u64,
    /// Queries that the switch answered with Missing.
    pub missing: u64,
    /// Packets that were ignored, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

impl Default for WorkerCounters {
    fn default() -> Self {
        WorkerCounters {
            contributions: 0,
            announces: 0,
            resends: 0,
            queries: 0,
            overtaken: 0,
            aggregates: 0,
            blocks_non_finite: 0,
            blocks_overflowed: 0,
            elements_overflowed: 0,
            refusals: 0,
            missing: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}
