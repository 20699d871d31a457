//! Stage 4: overwrite, add, or leave alone.

use fanin_numeric::{Telemetry, accumulate, static_fixed};
use fanin_wire::{ElementFormat, Operator};

use super::admit::Contribution;
use super::count::Position;
use super::job::Job;
use crate::float_pool::raw_format;

/// Brings a contribution's payload and exponent into its slot copy, and
/// writes the complete sum to `emitted`, with the last contribution.
///
/// The first contribution overwrites, so a slot never needs zeroing
/// (SwitchML Alg. 3, line 10). An empty one counts as zeros and touches no
/// element. The last one adds and writes out in one pass over the elements.
#[inline(always)]
pub(super) fn stage(
    job: &mut Job,
    contribution: &Contribution,
    position: Position,
    payload: &[u8],
    emitted: Option<&mut [u8]>,
) {
    let copy = job.copy_mut(contribution);
    if position.is_first() {
        copy.collective_tag = contribution.collective_tag;
        copy.element_format = contribution.element_format;
        copy.operator = contribution.operator;
        copy.destination = contribution.destination;
        copy.block_exponent_next = contribution.block_exponent_next;
        copy.element_count = 0;
        copy.overflow = 0;
    }
    copy.block_exponent_next = copy.block_exponent_next.max(contribution.block_exponent_next);
    let overwrite = copy.element_count == 0;
    let is_empty = contribution.element_count == 0;
    if !is_empty {
        copy.element_count = contribution.element_count;
    }
    let (element_count, format) = (copy.element_count, copy.element_format);
    if !format.is_block_scaled() {
        return floats(job, contribution, overwrite, payload, emitted);
    }
    let range = job.values_range(contribution, element_count);
    let values = &mut job.values[range];
    let emitted = emitted.map(|out| &mut out[..usize::from(element_count) * format.bytes()]);
    match (is_empty, emitted) {
        (true, None) => {}
        (true, Some(out)) => emit_words(format, values, out),
        (false, emitted) => match format {
            ElementFormat::Int32 => int32(contribution.operator, overwrite, payload, values, emitted),
            ElementFormat::Float16 => float16(overwrite, payload, values, emitted),
            ElementFormat::Bfloat16 => bfloat16(overwrite, payload, values, emitted),
            ElementFormat::Int8 => int8(overwrite, payload, values, emitted),
            ElementFormat::RawFloat32
            | ElementFormat::RawFloat16
            | ElementFormat::RawBfloat16
            | ElementFormat::Fixed32 => unreachable!("handled apart"),
        },
    }
}

/// Writes a complete sum, or `element_count` = 0 elements of it, as a payload.
pub(super) fn emit(job: &mut Job, contribution: &Contribution, element_count: u16, out: &mut [u8]) {
    let format = job.copy(contribution).element_format;
    let range = job.values_range(contribution, element_count);
    let values = &mut job.values[range.clone()];
    match raw_format(format) {
        // What the read-out meets was counted when the sum was completed.
        Some(float) if !out.is_empty() => drop(job.floats.emit(job.config.terms(float), range, values, out)),
        Some(_) => {}
        None => emit_words(format, values, out),
    }
}

/// Writes a sum of words, or of what is scaled to them.
pub(super) fn emit_words(format: ElementFormat, values: &[i32], out: &mut [u8]) {
    match format {
        ElementFormat::Float16 => accumulate::half::emit(values, out),
        ElementFormat::Bfloat16 => accumulate::bfloat::emit(values, out),
        ElementFormat::Int8 => accumulate::byte::emit(values, accumulate::byte::shift(values), out),
        _ => accumulate::emit(values, out),
    }
}

/// Elements that are not scaled for each other: what leaves the accumulator's format is counted, and the last contribution
/// tells how much did.
#[inline(never)]
fn floats(job: &mut Job, contribution: &Contribution, overwrite: bool, payload: &[u8], emitted: Option<&mut [u8]>) {
    let (format, element_count) = (job.copy(contribution).element_format, job.copy(contribution).element_count);
    let range = job.values_range(contribution, element_count);
    let values = &mut job.values[range.clone()];
    let mut telemetry = Telemetry::default();
    let out = emitted.map(|out| &mut out[..usize::from(element_count) * format.bytes()]);
    match (raw_format(format), contribution.element_count > 0, out) {
        (Some(float), true, Some(out)) => {
            telemetry = job.floats.add_and_emit(job.config.terms(float), overwrite, payload, range, values, out);
        }
        (Some(float), true, None) => {
            telemetry = job.floats.add(job.config.terms(float), overwrite, payload, range, values);
        }
        (Some(float), false, Some(out)) if element_count > 0 => {
            telemetry = job.floats.emit(job.config.terms(float), range, values, out);
        }
        (Some(_), false, _) => {}
        (None, has_elements, out) => {
            match (has_elements, overwrite) {
                (true, true) => static_fixed::overwrite(payload, values),
                (true, false) => static_fixed::add(payload, values),
                (false, _) => {}
            }
            if let Some(out) = out {
                static_fixed::emit(values, out);
                telemetry.saturation += u64::from(static_fixed::count_saturated(values));
            }
        }
    }
    job.copy_mut(contribution).overflow += (telemetry.overflow + telemetry.saturation) as u32;
    job.counters.telemetry.merge(&telemetry);
    job.tensors.note(contribution.collective_tag, &telemetry);
}

/// What the Aggregate's `echo` says: the shift of an Int8 sum, or how many elements have left the accumulator's format.
pub(super) fn echo(job: &Job, contribution: &Contribution) -> u32 {
    let copy = job.copy(contribution);
    if !copy.element_format.is_block_scaled() {
        return copy.overflow;
    }
    if copy.element_format != ElementFormat::Int8 {
        return contribution.echo;
    }
    // Of the whole sum, also for those who get a header only: a reply equals the multicast.
    accumulate::byte::shift(&job.values[job.values_range(contribution, copy.element_count)]).into()
}

#[inline(always)]
fn int32(operator: Operator, overwrite: bool, payload: &[u8], values: &mut [i32], emitted: Option<&mut [u8]>) {
    match (operator, emitted) {
        (_, None) if overwrite => accumulate::overwrite(payload, values),
        (Operator::Add, None) => accumulate::add(payload, values),
        (Operator::Max, None) => accumulate::max(payload, values),
        (Operator::Or, None) => accumulate::or(payload, values),
        (Operator::Xor, None) => accumulate::xor(payload, values),
        (_, Some(out)) if overwrite => accumulate::overwrite_and_emit(payload, values, out),
        (Operator::Add, Some(out)) => accumulate::add_and_emit(payload, values, out),
        (Operator::Max, Some(out)) => accumulate::max_and_emit(payload, values, out),
        (Operator::Or, Some(out)) => accumulate::or_and_emit(payload, values, out),
        (Operator::Xor, Some(out)) => accumulate::xor_and_emit(payload, values, out),
    }
}

/// Narrow elements are added as exact fixed point whatever the operator field
/// says: `admit` lets only Add through (see there).
fn float16(overwrite: bool, payload: &[u8], values: &mut [i32], emitted: Option<&mut [u8]>) {
    match emitted {
        None if overwrite => accumulate::half::overwrite(payload, values),
        None => accumulate::half::add(payload, values),
        Some(out) if overwrite => accumulate::half::overwrite_and_emit(payload, values, out),
        Some(out) => accumulate::half::add_and_emit(payload, values, out),
    }
}

fn bfloat16(overwrite: bool, payload: &[u8], values: &mut [i32], emitted: Option<&mut [u8]>) {
    if overwrite {
        accumulate::bfloat::overwrite(payload, values)
    } else {
        accumulate::bfloat::add(payload, values)
    }
    if let Some(out) = emitted {
        accumulate::bfloat::emit(values, out);
    }
}

/// In two passes: how much room the bytes need is known when all are added.
fn int8(overwrite: bool, payload: &[u8], values: &mut [i32], emitted: Option<&mut [u8]>) {
    if overwrite {
        accumulate::byte::overwrite(payload, values)
    } else {
        accumulate::byte::add(payload, values)
    }
    if let Some(out) = emitted {
        accumulate::byte::emit(values, accumulate::byte::shift(values), out);
    }
}
