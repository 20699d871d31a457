//! How far a sum of floats may be from the exact one with each accumulator (`spec/NUMERICS.md`), written down without the
//! accumulators' code.

use fanin_protocol::switchml::BlockId;
use fanin_wire::{Accumulator, ElementFormat};

use crate::collective::Collective;
use crate::job::JobPlan;

/// What is known of an element's contributions.
struct Element {
    count: f64,
    /// In f64, whose own rounding is far below every bound.
    sum: f64,
    magnitude_sum: f64,
    magnitude_max: f64,
}

/// Checks the elements (bits of binary32 numbers) of a block that was not scaled.
///
/// # Errors
/// The first element that is out of bounds.
pub fn check(job: &JobPlan, collective: &Collective, id: BlockId, elements: &[u32]) -> Result<(), String> {
    let (shard, first, _) = collective.place(id, job.element_count_max);
    for (at, &bits) in elements.iter().enumerate() {
        let values: Vec<f64> =
            (0..job.worker_count).map(|rank| collective.number(rank, shard, first + at as u64).into()).collect();
        let got = f64::from(f32::from_bits(bits));
        if values.iter().any(|value| !value.is_finite()) {
            if got.is_finite() {
                return Err(format!("element {at} is {got}, and a contribution is not finite"));
            }
            continue;
        }
        let element = Element {
            count: values.len() as f64,
            sum: values.iter().sum(),
            magnitude_sum: values.iter().map(|value| value.abs()).sum(),
            magnitude_max: values.iter().fold(0.0, |largest, value| value.abs().max(largest)),
        };
        let bound = bound(job.accumulator, collective.element_format, &element);
        let is_right = match got.is_infinite() {
            true => may_be_infinite(job.accumulator, collective.element_format, &element),
            false => (got - element.sum).abs() <= bound,
        };
        if !is_right {
            return Err(format!("element {at} is {got}, farther than {bound:e} from {}", element.sum));
        }
    }
    Ok(())
}

/// Whether some element of a block may have left its accumulator's format, whatever the order of arrival.
pub fn may_overflow(job: &JobPlan, collective: &Collective, id: BlockId) -> bool {
    let (shard, first, count) = collective.place(id, job.element_count_max);
    let limit = match (job.accumulator, collective.element_format) {
        (Accumulator::StaticFixed, _) => 21.47,
        (Accumulator::LogTable, _) => 2f64.powf(32.3),
        // Its registers may be full at any size.
        (Accumulator::FpisaA, _) => 0.0,
        (Accumulator::Fpisa, format) => end(format),
        _ => return false,
    };
    (first..first + count).any(|element| {
        let values = (0..job.worker_count).map(|rank| f64::from(collective.number(rank, shard, element)).abs());
        let magnitude: f64 = values.sum();
        !magnitude.is_finite() || magnitude * 1.01 >= limit
    })
}

/// The largest number of a raw format.
fn end(format: ElementFormat) -> f64 {
    match format {
        ElementFormat::RawFloat16 => 65_504.0,
        ElementFormat::RawBfloat16 => f64::from(f32::from_bits(0x7f7f_0000)),
        _ => f64::from(f32::MAX),
    }
}

/// Whether an infinity may stand for a sum of finite numbers. What has left other accumulators' formats is sent again.
fn may_be_infinite(accumulator: Accumulator, format: ElementFormat, element: &Element) -> bool {
    match accumulator {
        Accumulator::Exact => element.sum.abs() * (1.0 + 2f64.powi(-8)) >= end(format),
        Accumulator::Ieee => element.magnitude_sum * 1.01 >= end(format),
        // A sum that binary16 does not hold is in the tables all the same.
        Accumulator::LogTable => element.magnitude_sum + by_tables(element) >= end(format),
        _ => false,
    }
}

fn bound(accumulator: Accumulator, format: ElementFormat, element: &Element) -> f64 {
    // Fraction bits, bits beside the mantissa, and the least exponent.
    let (fraction, headroom, exponent_min) = match format {
        ElementFormat::RawFloat16 => (10, 20, -14),
        ElementFormat::RawBfloat16 => (7, 23, -126),
        _ => (23, 7, -126),
    };
    let unit = |magnitude: f64| 2f64.powi((magnitude.log2().floor() as i32).clamp(exponent_min, 127) - fraction);
    let half_unit = unit(element.magnitude_sum) / 2.0;
    let own_rounding = element.magnitude_sum * 2f64.powi(-48);
    let additions = element.count - 1.0;
    let worker_bits = element.count.log2().ceil() as i32;
    own_rounding
        + match accumulator {
            Accumulator::Exact => unit(element.sum.abs() + own_rounding) / 2.0,
            Accumulator::Ieee => additions * 2f64.powi(-24) * 1.01 * element.magnitude_sum + half_unit,
            Accumulator::Fpisa => {
                additions * unit(element.magnitude_max) * 2f64.powi(-(headroom - worker_bits).max(0)) + 2.0 * half_unit
            }
            // An overwrite may lose all that came before it.
            Accumulator::FpisaA => element.magnitude_sum + additions * unit(element.magnitude_max) + 2.0 * half_unit,
            Accumulator::StaticFixed => element.count * 0.5e-8 + unit(element.magnitude_sum + 1e-8),
            Accumulator::LogTable => by_tables(element) + half_unit,
            Accumulator::BlockFixed => 0.0,
        }
}

/// Nothing is promised where signs differ, but no look-up makes more of two magnitudes than their sum. Of one sign, an addition is off by three look-ups of half a
/// step of 1/1000 octave, here with room to spare, and by what is below 2^-32.8.
fn by_tables(element: &Element) -> f64 {
    let additions = element.count - 1.0;
    let steps = element.magnitude_sum * (1.0025f64.powf(additions) - 1.0) + additions * 2f64.powi(-32);
    let is_one_sign = element.sum.abs() == element.magnitude_sum;
    if is_one_sign { steps } else { 2.0 * element.magnitude_sum + steps }
}
