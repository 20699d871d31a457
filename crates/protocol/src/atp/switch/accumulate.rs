//! Stage 4: overwrite, add, or leave alone.

use fanin_numeric::{accumulate, static_fixed};
use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::{ATP_SCALE_CODE_NONE, Operator};

use super::slot::Slot;

/// Begins a slot's sum with its first Fragment's shape.
pub(super) fn begin(slot: &mut Slot, header: &Header) {
    slot.contributed = 0;
    slot.ecn = false;
    slot.collective_tag = header.collective_tag;
    slot.element_count = 0;
    slot.element_format = header.element_format;
    slot.operator = header.operator;
    slot.destination = header.destination;
    slot.scale = header.scale;
    slot.scale_next = ATP_SCALE_CODE_NONE;
}

/// Brings a payload into the slot's values. The first one with elements overwrites; an empty one counts as zeros.
pub(super) fn stage(slot: &mut Slot, header: &Header, payload: &[u8], values: &mut [i32]) {
    if header.element_count == 0 {
        return;
    }
    let overwrite = slot.element_count == 0;
    slot.element_count = header.element_count;
    let values = &mut values[..usize::from(header.element_count)];
    combine(header.element_format, header.operator, overwrite, payload, values);
}

/// One payload into one sum, as switches and servers do it.
pub(in crate::atp) fn combine(
    format: ElementFormat,
    operator: Operator,
    overwrite: bool,
    payload: &[u8],
    values: &mut [i32],
) {
    match (format, operator) {
        _ if overwrite => accumulate::overwrite(payload, values),
        (ElementFormat::Fixed32, _) => static_fixed::add(payload, values),
        (_, Operator::Add) => accumulate::add(payload, values),
        (_, Operator::Max) => accumulate::max(payload, values),
        (_, Operator::Or) => accumulate::or(payload, values),
        (_, Operator::Xor) => accumulate::xor(payload, values),
    }
}
