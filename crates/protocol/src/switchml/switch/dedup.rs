//! Stage 2: has this worker already contributed?

use super::admit::{Contribution, Use};
use super::slot::{SlotCopy, SlotPair};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    /// To be counted.
    New,
    /// Resent although the sum is complete: the worker missed the result.
    ResendComplete,
    /// Resent, or duplicated by the network, while others are missing.
    Duplicate,
}

/// Marks the worker in this copy and clears it in the other one, which
/// confirms that it has received the other one's result (SwitchML Alg. 3,
/// lines 5–7).
#[inline(always)]
pub(super) fn stage(pair: &mut SlotPair, contribution: &Contribution) -> Novelty {
    let parity = usize::from(contribution.slot_parity);
    if contribution.slot_use == Use::Next {
        begin_use(&mut pair[parity], contribution);
    }
    let novelty = look(&pair[parity], contribution);
    if novelty == Novelty::New {
        pair[parity].contributed.insert(contribution.rank);
        pair[parity ^ 1].contributed.remove(contribution.rank);
    }
    novelty
}

/// What a contribution would be, without marking anything.
#[inline(always)]
pub(super) fn look(copy: &SlotCopy, contribution: &Contribution) -> Novelty {
    let finished = contribution.slot_use == Use::Current && copy.is_complete();
    let begins = contribution.slot_use == Use::Next;
    if begins || !(finished || has_contributed(copy, contribution.rank)) {
        return Novelty::New;
    }
    if copy.is_complete() { Novelty::ResendComplete } else { Novelty::Duplicate }
}

#[inline(always)]
fn has_contributed(copy: &SlotCopy, rank: u16) -> bool {
    // The canary: a switch that forgets every eighth worker's bit.
    if cfg!(feature = "canary") && rank % 8 == 1 {
        return copy.is_complete() && copy.contributed.contains(rank);
    }
    copy.contributed.contains(rank)
}

#[inline(always)]
fn begin_use(copy: &mut SlotCopy, contribution: &Contribution) {
    copy.chunk_index = contribution.chunk_index;
    copy.contributed = Default::default();
}
