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
        if got.is_nan() || (got - element.sum).abs() > bound {
            return Err(format!("element {at} is {got}, farther than {bound:e} from {}", element.sum));
        }
    }
    Ok(())
}

fn bound(accumulator: Accumulator, format: ElementFormat, element: &Element) -> f64 {
    // Fraction bits, bits beside the mantissa, the least exponent, and where numbers end.
    let (fraction, headroom, exponent_min, end) = match format {
        ElementFormat::RawFloat16 => (10, 20, -14, 65_504.0),
        ElementFormat::RawBfloat16 => (7, 23, -126, f64::from(f32::MAX)),
        _ => (23, 7, -126, f64::from(f32::MAX)),
    };
    if element.magnitude_sum * 1.01 >= end {
        return f64::INFINITY;
    }
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
            Accumulator::BlockFixed | Accumulator::LogTable => 0.0,
        }
}
