//! Stage 1: is this a valid packet for a live tree?

use fanin_wire::panama::Header;

use super::job::Tree;
use super::place::{Place, State};
use super::{is_summed, vid_of};
use crate::DropReason;
use crate::panama::unwrap_vid;

/// Checks a Contribution; returns its VID.
pub(super) fn contribution<B>(tree: &Tree<B>, header: &Header, element_count_max: u16) -> Result<u64, DropReason> {
    if header.element_count > element_count_max || header.flags.fin && header.element_count > 0 {
        return Err(DropReason::ElementCountMismatch);
    }
    let vid = vid_of(tree, header)?;
    let awaited = unwrap_vid(tree.expected, header.awaited_vid).ok_or(DropReason::StaleChunk)?;
    // Its sender has a Result that was never made, or is more than a window ahead of those that it has.
    if awaited > tree.expected || vid >= awaited + tree.window_max() || vid >= tree.expected + tree.window_max() {
        return Err(DropReason::ChunkTooFarAhead);
    }
    if vid < tree.floor || vid < awaited {
        return Err(DropReason::StaleChunk);
    }
    // What follows a FIN is nothing.
    if header.flags.fin && awaited != vid {
        return Err(DropReason::BadSlot);
    }
    Ok(vid)
}

/// Checks a Result from above; returns its VID.
pub(super) fn result<B>(tree: &Tree<B>, header: &Header, element_count_max: u16) -> Result<u64, DropReason> {
    if header.element_count > element_count_max {
        return Err(DropReason::ElementCountMismatch);
    }
    let vid = vid_of(tree, header)?;
    let place = tree.place(vid);
    if vid < tree.floor || vid < tree.expected && place.state == State::Result {
        return Err(DropReason::StaleChunk);
    }
    if vid >= tree.floor + tree.window_max() {
        return Err(DropReason::ChunkTooFarAhead);
    }
    if place.state == State::Result {
        return Err(DropReason::StaleChunk);
    }
    let has_tag = is_summed(place.state) || place.ports != 0;
    if has_tag && (place.collective_tag != header.collective_tag || place.fin != header.flags.fin) {
        return Err(DropReason::CollectiveMismatch);
    }
    Ok(vid)
}

/// All Contributions with a VID belong to one collective: its tag and shape are the first one's.
pub(super) fn same_collective(place: &Place, header: &Header) -> Result<(), DropReason> {
    if place.ports == 0 {
        return Ok(());
    }
    if place.collective_tag != header.collective_tag || place.fin != header.flags.fin {
        return Err(DropReason::CollectiveMismatch);
    }
    if place.element_count == 0 || header.element_count == 0 {
        return Ok(());
    }
    if place.element_format != header.element_format {
        return Err(DropReason::BadElementFormat);
    }
    if place.element_count == header.element_count { Ok(()) } else { Err(DropReason::ElementCountMismatch) }
}
