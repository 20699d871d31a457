//! Stage 1: is this a valid packet for a live job and slot?

use fanin_wire::atp::{ElementFormat, Header, LEVEL_COUNT_MAX};
use fanin_wire::generated::{ATP_FAN_IN_MAX, Operator};

use super::SwitchConfig;
use super::slot::Slot;
use crate::DropReason;

/// Checks what every ATP packet must keep to.
pub(super) fn packet(config: &SwitchConfig, header: &Header) -> Result<(), DropReason> {
    if usize::from(header.level) >= LEVEL_COUNT_MAX {
        return Err(DropReason::BadRank);
    }
    if header.slot_index >= config.slot_count {
        return Err(DropReason::BadSlot);
    }
    if header.element_count > config.element_count_max {
        return Err(DropReason::ElementCountMismatch);
    }
    // Fixed point and floats have sums only.
    if header.element_format != ElementFormat::Int32 && header.operator != Operator::Add {
        return Err(DropReason::BadOperator);
    }
    Ok(())
}

/// Checks a Fragment's directions at its present level; its sender is exactly one child of this switch.
pub(super) fn fragment(header: &Header) -> Result<(), DropReason> {
    let level = usize::from(header.level);
    let (contributed, fan_in) = (header.contributed[level], header.fan_in[level]);
    let is_child = contributed.is_power_of_two() && contributed.trailing_zeros() < u32::from(fan_in);
    if !is_child || fan_in > ATP_FAN_IN_MAX {
        return Err(DropReason::BadRank);
    }
    // Switches cannot add floats.
    if header.element_format == ElementFormat::Float32 && !header.flags.resend {
        return Err(DropReason::BadElementFormat);
    }
    Ok(())
}

/// A slot adds up one collective at one scale: its tag, shape and scale are the first Fragment's.
pub(super) fn same_collective(slot: &Slot, header: &Header) -> Result<(), DropReason> {
    if slot.collective_tag != header.collective_tag
        || slot.operator != header.operator
        || slot.element_format != header.element_format
        || slot.destination != header.destination
    {
        return Err(DropReason::CollectiveMismatch);
    }
    if slot.scale != header.scale {
        return Err(DropReason::ScaleMismatch);
    }
    let either_empty = slot.element_count == 0 || header.element_count == 0;
    if !either_empty && slot.element_count != header.element_count {
        return Err(DropReason::ElementCountMismatch);
    }
    Ok(())
}
