//! What a chunk's sum must be, by arithmetic of its own.

use fanin_numeric::BlockExponent;
use fanin_protocol::atp::Missing;
use fanin_protocol::stream::{BlockId, Submission};
use fanin_wire::Operator;
use fanin_wire::atp::ElementFormat;

use super::JobPlan;

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
    let word = (noise >> 32) as u32;
    if submission.scaled { float(word, noise as u32, job.magnitude).to_bits() } else { word }
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
