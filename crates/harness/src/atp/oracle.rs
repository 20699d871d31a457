//! What a chunk's sum must be, by arithmetic of its own.

use fanin_numeric::BlockExponent;
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_protocol::atp::Missing;
use fanin_protocol::stream::{BlockId, Submission};
use fanin_wire::atp::ElementFormat;
use fanin_wire::{Accumulator, Operator};

use super::JobPlan;
use crate::raw_floats::{BFLOAT16, FLOAT16, FLOAT32, Meets, RawFloat, by_tables, may_leave_tables};

/// What one rank contributes to one element: a word, or the bits of a float.
pub fn contribution(job: &JobPlan, lane: u16, rank: u16, submission: &Submission, id: BlockId, element: u64) -> u32 {
    let shard = submission.shape.shard(id.block);
    if submission.contributors.sole(shard).is_some_and(|sole| sole != rank) {
        return 0;
    }
    let seed = [job.job_id, lane.into(), rank.into(), id.collective as u32, id.block, element as u32];
    let noise = seed.into_iter().fold(0x9e37_79b9_7f4a_7c15u64, |state, word| {
        (state ^ u64::from(word)).wrapping_mul(0xd129_42f2_3c52_7b4d).rotate_left(29)
    });
    let (word, is_large) = ((noise >> 32) as u32, is_large(job, lane, id, element));
    match ElementFormat::raw(submission.element_format) {
        _ if submission.scaled => float(word, noise as u32, job.magnitude).to_bits(),
        Some(ElementFormat::RawFloat32) if is_large => (word as i32 as f32 / 2f32.powi(31) * 3e38).to_bits(),
        Some(ElementFormat::RawFloat32) => float(word, noise as u32, job.magnitude).to_bits(),
        // So large that a few of them are more than binary16 holds.
        Some(format @ ElementFormat::RawFloat16) => {
            let float = float(word, if is_large { 2 } else { noise as u32 }, job.magnitude);
            let bits = if float.is_finite() { float.clamp(-40_000.0, 40_000.0) } else { float }.to_bits();
            widened(format, narrowed(format, bits))
        }
        Some(format) if is_large => {
            widened(format, narrowed(format, (word as i32 as f32 / 2f32.powi(31) * 3e38).to_bits()))
        }
        Some(format) => widened(format, narrowed(format, float(word, noise as u32, job.magnitude).to_bits())),
        None => word,
    }
}

/// Whether all ranks have numbers here of which few are more than raw formats hold: else they would hardly meet.
fn is_large(job: &JobPlan, lane: u16, id: BlockId, element: u64) -> bool {
    let seed = [job.job_id, lane.into(), id.collective as u32, id.block, element as u32];
    let noise = seed.into_iter().fold(0x853c_49e6_748f_ea9bu64, |state, word| {
        (state ^ u64::from(word)).wrapping_mul(0xd129_42f2_3c52_7b4d).rotate_left(29)
    });
    (noise >> 32).is_multiple_of(100)
}

/// Whether a collective's elements are floats that are summed.
pub fn is_float_sum(submission: &Submission) -> bool {
    submission.scaled || ElementFormat::raw(submission.element_format).is_some()
}

/// The 16 bits of a binary32 number in a raw format.
pub fn narrowed(format: ElementFormat, bits: u32) -> u16 {
    let value = f32::from_bits(bits);
    if format == ElementFormat::RawFloat16 { f32_to_f16(value) } else { f32_to_bf16(value) }
}

/// The other way.
pub fn widened(format: ElementFormat, bits: u16) -> u32 {
    if format == ElementFormat::RawFloat16 { f16_to_f32(bits) } else { bf16_to_f32(bits) }.to_bits()
}

/// Mostly gradients, at times what fixed point does not hold.
fn float(word: u32, dice: u32, magnitude: f32) -> f32 {
    let unit = word as i32 as f32 / 2f32.powi(31);
    match dice % 500 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2..=5 => unit * 1e9,
        6..=20 => unit * 25.0,
        21..=60 => unit * 1e-7,
        _ => unit * magnitude,
    }
}

/// One element of a sum that came.
pub struct Got {
    /// What its bits mean.
    pub format: ElementFormat,
    /// Of fixed point that is not in units of 10^-8.
    pub exponent: BlockExponent,
    pub bits: u32,
}

/// Whether `got` is the sum of the block's element.
pub fn is_sum(
    job: &JobPlan,
    lane: u16,
    submission: &Submission,
    id: BlockId,
    element: u64,
    got: Got,
    missing: &Missing,
) -> bool {
    let words = contributors(job, missing).map(|rank| contribution(job, lane, rank, submission, id, element));
    match got.format {
        ElementFormat::Int32 => words.reduce(|a, b| combine(submission.operator, a, b)) == Some(got.bits),
        ElementFormat::Fixed32 => fixed(words, units_of_one(job, got.exponent)) == Some(i64::from(got.bits as i32)),
        ElementFormat::Float32 => {
            let sum = words.map(|word| f64::from(f32::from_bits(word))).sum::<f64>() as f32;
            let got = f32::from_bits(got.bits);
            sum == got || (sum.is_nan() && got.is_nan())
        }
        ElementFormat::RawFloat32 | ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => {
            let values: Vec<f64> = words.map(|word| f32::from_bits(word).into()).collect();
            is_within(job.accumulator, got.format, &values, f32::from_bits(got.bits).into())
        }
    }
}

/// Whether a sum of raw floats is what the accumulator promises, whichever parts of it were rounded on the way.
fn is_within(accumulator: Accumulator, format: ElementFormat, values: &[f64], got: f64) -> bool {
    let RawFloat { headroom, end, .. } = raw(format);
    let unit = |magnitude: f64| raw(format).unit(magnitude);
    let (sum, magnitude): (f64, f64) = values.iter().fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
    if !magnitude.is_finite() {
        return !got.is_finite();
    }
    let own_rounding = magnitude * 2f64.powi(-48);
    if accumulator == Accumulator::Exact {
        let is_beyond = sum.abs() + unit(end) / 2.0 >= end && got.is_infinite();
        return is_beyond || (got - sum).abs() <= unit(sum.abs() + own_rounding) / 2.0 + own_rounding;
    }
    // Whatever leaves the format on the way, or at the end, comes as floats: got must be a number.
    let (count, largest) = (values.len() as f64, 2.0 * magnitude);
    let guard_bits = (headroom - count.log2().ceil() as i32).max(0);
    let bound = match accumulator {
        Accumulator::Ieee if format == ElementFormat::RawFloat32 => count * 2f64.powi(-24) * largest,
        Accumulator::Ieee => count * (2f64.powi(-24) * largest + unit(largest) / 2.0),
        Accumulator::Fpisa => count * unit(largest) * (2f64.powi(-guard_bits) + 0.5),
        Accumulator::LogTable => by_tables(sum, magnitude, count) + 0.5 * count * unit(largest),
        // An overwrite may lose all that came before it.
        _ => largest + 1.5 * count * unit(largest),
    };
    (got - sum).abs() <= bound + own_rounding
}

fn raw(format: ElementFormat) -> RawFloat {
    match format {
        ElementFormat::RawFloat16 => FLOAT16,
        ElementFormat::RawBfloat16 => BFLOAT16,
        _ => FLOAT32,
    }
}

/// Whether a sum of raw floats may have left its format at some switch or the server, so that it was made again of floats.
pub fn may_be_float(job: &JobPlan, lane: u16, submission: &Submission, id: BlockId, elements: u64) -> bool {
    let Some(format) = ElementFormat::raw(submission.element_format) else { return true };
    (0..elements).any(|element| {
        let of_rank = |rank| f64::from(f32::from_bits(contribution(job, lane, rank, submission, id, element)));
        may_leave(job.accumulator, raw(format), &(0..job.tree.worker_count()).map(of_rank).collect::<Vec<_>>())
    })
}

fn may_leave(accumulator: Accumulator, format: RawFloat, numbers: &[f64]) -> bool {
    let magnitude: f64 = numbers.iter().map(|number| number.abs()).sum();
    let is_beyond = !magnitude.is_finite() || magnitude * 1.01 >= format.end;
    // Parts of a sum are added as well.
    let additions = 2.0 * numbers.len() as f64;
    match accumulator {
        // It is rounded once, at the end.
        Accumulator::Exact => false,
        Accumulator::FpisaA => is_beyond || format.may_fill(numbers, Meets::Parts),
        Accumulator::LogTable => is_beyond || may_leave_tables(magnitude, additions),
        _ => is_beyond,
    }
}

/// Whether the block can only be summed as floats: some value or the whole sum does not fit.
pub fn must_be_float(
    job: &JobPlan,
    lane: u16,
    submission: &Submission,
    id: BlockId,
    elements: u64,
    exponent: BlockExponent,
    missing: &Missing,
) -> bool {
    (0..elements).any(|element| {
        let words = contributors(job, missing).map(|rank| contribution(job, lane, rank, submission, id, element));
        fixed(words, units_of_one(job, exponent)).is_none()
    })
}

/// The exponent of the largest number that any rank has in a block.
pub fn exponent(job: &JobPlan, lane: u16, submission: &Submission, id: BlockId, elements: u64) -> BlockExponent {
    let of_rank = |rank| (0..elements).map(move |element| contribution(job, lane, rank, submission, id, element));
    let words = (0..job.tree.worker_count()).flat_map(of_rank);
    let largest = words.map(|word| f64::from(f32::from_bits(word)).abs()).fold(0.0, f64::max);
    let above = (-95..=128).find(|&exponent| largest < 2f64.powi(exponent));
    above.map_or(BlockExponent::NON_FINITE, |exponent| BlockExponent(exponent as i16))
}

/// 10^8, or for an exponent the largest power of two at which the sum of all ranks' numbers below it stays below 2^31.
fn units_of_one(job: &JobPlan, exponent: BlockExponent) -> f64 {
    let doublings = f64::from(job.tree.worker_count()).log2().ceil() as i32;
    if exponent == BlockExponent::NOT_NEEDED { 1e8 } else { 2f64.powi(31 - doublings - i32::from(exponent.0)) }
}

/// The ranks whose contributions a sum is declared to hold.
pub fn contributors<'a>(job: &JobPlan, missing: &'a Missing) -> impl Iterator<Item = u16> + use<'a> {
    let bits = missing.ranks.unwrap_or(0);
    (0..job.tree.worker_count()).filter(move |rank| bits >> rank & 1 == 0)
}

fn combine(operator: Operator, a: u32, b: u32) -> u32 {
    match operator {
        Operator::Add => a.wrapping_add(b),
        Operator::Max => (a as i32).max(b as i32) as u32,
        Operator::Or => a | b,
        Operator::Xor => a ^ b,
    }
}

/// The sum in units, if no value and not the sum is beyond 32 bits.
fn fixed(words: impl Iterator<Item = u32>, units_of_one: f64) -> Option<i64> {
    let mut sum = 0;
    for word in words {
        let units = (f64::from(f32::from_bits(word)) * units_of_one).round_ties_even();
        sum += in_range(units as i64).filter(|_| units.is_finite())?;
    }
    in_range(sum)
}

fn in_range(units: i64) -> Option<i64> {
    (i64::from(i32::MIN) < units && units < i64::from(i32::MAX)).then_some(units)
}
