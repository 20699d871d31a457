//! What a block must come out as, computed from the definition: SwitchML
//! §4.6 in exact arithmetic, sharing no code with the numeric kernels.

use fanin_protocol::switchml::{BlockId, WireFormat};
use fanin_wire::{ElementFormat, Operator};

use crate::collective::Collective;
use crate::job::JobPlan;

/// Sentinel above all exponents: some worker's block is not finite.
pub const NON_FINITE: i16 = 0x7ffe;
/// Exponents from here on stand for "not finite" in the p4app layout.
const P4APP_NON_FINITE: i16 = 126;
const EXPONENT_MIN: i16 = -95;

/// The result of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The agreed exponent, of scaled blocks.
    pub exponent: Option<i16>,
    /// Elements as bits: words, or binary32 numbers. `None` for a number
    /// that must be NaN.
    pub elements: Vec<Option<u32>>,
}

/// Computes the result of a block over all workers of the job.
///
/// # Errors
/// A description, when a sum leaves 32 bits or the papers' error bound.
pub fn expect(job: &JobPlan, collective: &Collective, id: BlockId) -> Result<Expectation, String> {
    // A block whose accumulator overflowed comes as 32-bit words.
    let format =
        if collective.element_format.is_block_scaled() { collective.element_format } else { ElementFormat::Int32 };
    let (shard, first, count) = collective.place(id, job.element_count_max);
    let contributors: Vec<u16> = (0..job.worker_count).filter(|&rank| collective.contributes(rank, shard)).collect();
    let elements = first..first + count;
    if !collective.is_float() {
        let combine = |element| Some(combine_words(collective, &contributors, shard, element));
        return Ok(Expectation { exponent: None, elements: elements.map(combine).collect() });
    }
    let blocks = contributors.iter().map(|&rank| elements.clone().map(move |element| (rank, element)));
    let exponent = blocks
        .map(|block| block_exponent(block.map(|(rank, element)| collective.number(rank, shard, element))))
        .max()
        .map_or(EXPONENT_MIN, |exponent| clamp_to_layout(exponent, job.wire_format));
    if exponent == NON_FINITE {
        return Ok(Expectation { exponent: Some(exponent), elements: vec![None; count as usize] });
    }
    let values =
        |element| contributors.iter().map(|&rank| f64::from(collective.number(rank, shard, element))).collect();
    let values: Vec<Vec<f64>> = elements.map(values).collect();
    let sums = sum_block(&values, format, exponent, job.worker_count);
    let sums = sums.map_err(|why| format!("{id:?} {why}"))?;
    Ok(Expectation { exponent: Some(exponent), elements: sums.into_iter().map(|sum| Some(sum.to_bits())).collect() })
}

/// The sum of each element's values over the workers.
fn sum_block(block: &[Vec<f64>], format: ElementFormat, exponent: i16, n: u16) -> Result<Vec<f32>, String> {
    let shift = if format == ElementFormat::Int8 { shift_of(block, exponent) } else { 0 };
    let sum = |(element, values): (usize, &Vec<f64>)| {
        let sum = match format {
            ElementFormat::Int32 => sum_fixed(values, exponent, n),
            ElementFormat::Float16 => sum_half(values, exponent, n),
            ElementFormat::Bfloat16 => sum_bfloat(values, exponent, n),
            ElementFormat::Int8 => sum_bytes(values, exponent, shift),
            _ => Err("is not scaled".into()),
        };
        sum.map_err(|why| format!("element {element}: {why}"))
    };
    block.iter().enumerate().map(sum).collect()
}

fn combine_words(collective: &Collective, contributors: &[u16], shard: u16, element: u64) -> u32 {
    let words = contributors.iter().map(|&rank| collective.word(rank, shard, element));
    let combined = match collective.operator {
        Operator::Add => words.fold(0, i32::wrapping_add),
        Operator::Max => words.max().unwrap_or(0),
        Operator::Or => words.fold(0, |a, b| a | b),
        Operator::Xor => words.fold(0, |a, b| a ^ b),
    };
    combined as u32
}

/// Smallest `m` with `|x| < 2^m` for all values, from the definition.
fn block_exponent(values: impl Iterator<Item = f32>) -> i16 {
    let mut largest = 0.0f64;
    for value in values {
        if !value.is_finite() {
            return NON_FINITE;
        }
        largest = largest.max(f64::from(value).abs());
    }
    (EXPONENT_MIN..=128).find(|&m| largest < 2f64.powi(i32::from(m))).unwrap_or(128)
}

fn clamp_to_layout(exponent: i16, wire_format: WireFormat) -> i16 {
    if wire_format == WireFormat::P4app && exponent >= P4APP_NON_FINITE { NON_FINITE } else { exponent }
}

fn ceil_log2(n: u16) -> i32 {
    (0..).find(|&bits| 1u32 << bits >= u32::from(n)).unwrap_or(0)
}

fn sum_fixed(values: &[f64], exponent: i16, n: u16) -> Result<f32, String> {
    // From 256 workers on a word may round up to the bound itself.
    let room = ceil_log2(n) + i32::from(n == 256);
    let f = 2f64.powi(31 - room - i32::from(exponent));
    let sum: i64 = values.iter().map(|x| (x * f).round_ties_even() as i64).sum();
    if i32::try_from(sum).is_err() {
        return Err(format!("the sum {sum} leaves 32 bits"));
    }
    let result = (f64::from(sum as f32) / f) as f32;
    let exact: f64 = values.iter().sum();
    // SwitchML Theorem 1, and the rounding of the result to binary32.
    let bound = f64::from(n) / f + exact.abs() * 2f64.powi(-23) + 2f64.powi(-149);
    within(result, exact, bound)
}

fn sum_half(values: &[f64], exponent: i16, n: u16) -> Result<f32, String> {
    let f = 2f64.powi(6 - ceil_log2(n) - i32::from(exponent));
    let units: i64 = values.iter().map(|x| (round_to_half(x * f) * 2f64.powi(24)) as i64).sum();
    if i32::try_from(units).is_err() {
        return Err(format!("the sum {units} leaves 32 bits"));
    }
    let sum = round_to_half(units as f64 * 2f64.powi(-24));
    let result = (sum / f) as f32;
    let exact: f64 = values.iter().sum();
    let magnitude: f64 = values.iter().map(|x| x.abs()).sum();
    let bound = (magnitude + (sum / f).abs()) * 2f64.powi(-11) + f64::from(n) * 2f64.powi(-25) / f;
    within(result, exact, bound * 1.001)
}

fn sum_bfloat(values: &[f64], exponent: i16, n: u16) -> Result<f32, String> {
    let f = 2f64.powi(30 - ceil_log2(n) - i32::from(exponent));
    let whole = |x: f64| round_to_bits(x, 8, 0);
    let units: i64 = values.iter().map(|x| whole(x * f) as i64).sum();
    if units.unsigned_abs() > 1 << 30 {
        return Err(format!("the sum {units} leaves its 31 bits"));
    }
    let sum = whole(units as f64);
    let exact: f64 = values.iter().sum();
    let worker: f64 = values.iter().map(|x| (x.abs() * 2f64.powi(-8)).max(0.5 / f)).sum();
    within((sum / f) as f32, exact, (worker + (sum / f).abs() * 2f64.powi(-8)) * 1.001)
}

/// A byte's worth of steps, from the definition.
fn steps(x: f64, exponent: i16) -> f64 {
    (x * 2f64.powi(7 - i32::from(exponent))).round_ties_even().clamp(-127.0, 127.0)
}

/// The smallest shift with which all of a block's sums fit in a byte.
fn shift_of(block: &[Vec<f64>], exponent: i16) -> i32 {
    let sums = block.iter().map(|values| values.iter().map(|&x| steps(x, exponent)).sum::<f64>().abs());
    let largest = sums.fold(0.0, f64::max);
    (0..).find(|&shift| (largest / 2f64.powi(shift)).round_ties_even() <= 127.0).unwrap_or(0)
}

fn sum_bytes(values: &[f64], exponent: i16, shift: i32) -> Result<f32, String> {
    let step = 2f64.powi(i32::from(exponent) - 7);
    let sum: f64 = values.iter().map(|&x| steps(x, exponent)).sum();
    // Through an integer, which has no -0.
    let byte = (sum / 2f64.powi(shift)).round_ties_even() as i64;
    let result = (byte as f64 * 2f64.powi(shift) * step) as f32;
    let exact: f64 = values.iter().sum();
    // Half a step per worker, up to a whole one where it clamped, and half of the switch's.
    let worker: f64 = values.iter().map(|x| if x.abs() > 127.5 * step { step } else { step / 2.0 }).sum();
    within(result, exact, (worker + 2f64.powi(shift - 1) * step) * 1.001)
}

fn within(result: f32, exact: f64, bound: f64) -> Result<f32, String> {
    let overflows = exact.abs() + bound >= f64::from(f32::MAX);
    if overflows || (f64::from(result) - exact).abs() <= bound {
        return Ok(result);
    }
    Err(format!("{result} is farther than {bound} from {exact}"))
}

/// The binary16 number nearest to `x`, half to even; no overflow occurs here.
fn round_to_half(x: f64) -> f64 {
    round_to_bits(x, 11, -24)
}

/// `x` with so many significant bits and no step below `2^step_log2_min`,
/// half to even.
fn round_to_bits(x: f64, significant_bits: i32, step_log2_min: i32) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    let step = 2f64.powi((exponent + 1 - significant_bits).max(step_log2_min));
    (x / step).round_ties_even() * step
}
