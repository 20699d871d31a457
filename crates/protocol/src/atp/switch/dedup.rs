//! Stage 2: whose is the slot, and has this child already contributed?

use fanin_wire::atp::Header;

use super::slot::Slot;

/// What a Fragment is to the slot that it names (ATP Fig. 7, Fig. 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    /// The slot is free: the Fragment takes it.
    First,
    /// The slot is the chunk's, and this child is not in it.
    New,
    /// The slot is the chunk's, and this child is in it already.
    Duplicate,
    /// The slot is another chunk's.
    Collision,
    /// Sent again: not to be aggregated, and the chunk's slot is given up.
    Resend {
        /// Whether the slot is the chunk's.
        owned: bool,
    },
}

#[inline]
pub(super) fn stage(slot: &Slot, header: &Header) -> Novelty {
    let owned = slot.is_owned_by(header);
    if header.flags.resend {
        return Novelty::Resend { owned };
    }
    if slot.owner.is_none() {
        return Novelty::First;
    }
    if !owned {
        return Novelty::Collision;
    }
    if has_contributed(slot, header) { Novelty::Duplicate } else { Novelty::New }
}

/// Whether the Fragment's child is in the slot's sum.
pub(super) fn has_contributed(slot: &Slot, header: &Header) -> bool {
    // The canary: a switch that forgets its second child.
    let seen = if cfg!(feature = "canary") { slot.contributed & !0b10 } else { slot.contributed };
    seen & header.contributed[usize::from(header.level)] != 0
}
