//! Stage 3: is this child the last one?

use fanin_wire::atp::Header;

use super::slot::Slot;

/// Marks the child and says whether all of the switch's children on this way have contributed (ATP §3.5).
#[inline]
pub(super) fn stage(slot: &mut Slot, header: &Header) -> bool {
    let level = usize::from(header.level);
    slot.contributed |= header.contributed[level];
    slot.contributed.count_ones() >= u32::from(header.fan_in[level])
}
