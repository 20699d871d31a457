//! Stage 2: has this port already contributed to this VID?

use fanin_wire::panama::Header;

use super::decide::{self, Verdict};
use super::is_summed;
use super::job::Tree;
use super::place::State;
use crate::DropReason;

/// What a Contribution is to its VID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    /// Not seen yet.
    New,
    /// In a buffer or in the sum already.
    Duplicate,
    /// In the sum, which its sender asks for: what became of it was lost.
    Wanted,
}

/// Decides by the place's state. What came too late for a sum that did not wait for it is dropped.
pub(super) fn stage<B>(tree: &Tree<B>, port: u8, vid: u64, header: &Header) -> Result<Novelty, DropReason> {
    let place = tree.place(vid);
    let is_counted = place.ports >> port & 1 == 1;
    if is_summed(place.state) {
        let has_something = place.state == State::Result || is_counted;
        return match header.flags.resend && has_something {
            true => Ok(Novelty::Wanted),
            false if is_counted => Ok(Novelty::Duplicate),
            false => Err(DropReason::StaleChunk),
        };
    }
    Ok(if is_counted { Novelty::Duplicate } else { Novelty::New })
}

/// A tree that has ended forgets all but its FIN, whose answer may have been lost.
pub(super) fn after_fin<B>(tree: &Tree<B>, fin: u64, port: u8, header: &Header) -> Result<Verdict, DropReason> {
    if header.flags.fin && header.vid == fin as u32 {
        return Ok(decide::repeat_fin(tree, port, header));
    }
    // Late duplicates are nobody's mistake; new packets are.
    if header.vid.wrapping_sub(fin as u32) as i32 > 0 {
        Err(DropReason::UnknownJob)
    } else {
        Err(DropReason::StaleChunk)
    }
}

/// Takes a duplicate for nothing; returns for how many packets it was taken.
#[cfg(not(feature = "canary-second"))]
pub(super) fn ignore<B>(_: &mut Tree<B>, _: u64) -> u32 {
    0
}

/// The deliberate bug: a duplicate counts as the Contribution of a port that is missing.
#[cfg(feature = "canary-second")]
pub(super) fn ignore<B>(tree: &mut Tree<B>, vid: u64) -> u32 {
    let missing = tree.config.ports & !tree.place(vid).ports;
    if is_summed(tree.place(vid).state) || missing == 0 {
        return 0;
    }
    tree.place_mut(vid).ports |= missing & missing.wrapping_neg();
    1
}
