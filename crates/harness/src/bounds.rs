//! How far a sum of floats may be from the exact one with each accumulator (`spec/NUMERICS.md`), written down without the
//! accumulators' code.

use fanin_protocol::switchml::BlockId;
use fanin_wire::{Accumulator, ElementFormat};

use crate::collective::Collective;
use crate::job::JobPlan;
use crate::raw_floats::{BFLOAT16, FLOAT16, FLOAT32, Meets, RawFloat, by_tables, may_leave_tables};

/// What is known of an element's contributions.
struct Element {
    count: f64,
    /// In f64, whose own rounding is far below every bound.
    sum: f64,
    magnitude_sum: f64,
    magnitude_max: f64,
    /// See [`RawFloat::are_all_kept`].
    all_kept: bool,
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
            all_kept: raw(collective.element_format).are_all_kept(&values),
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
    (first..first + count).any(|element| {
        let of_rank = |rank| f64::from(collective.number(rank, shard, element));
        may_leave(job.accumulator, collective.element_format, &(0..job.worker_count).map(of_rank).collect::<Vec<_>>())
    })
}

fn may_leave(accumulator: Accumulator, format: ElementFormat, numbers: &[f64]) -> bool {
    let magnitude: f64 = numbers.iter().map(|number| number.abs()).sum();
    let is_beyond = |limit: f64| magnitude.is_nan() || magnitude * 1.01 >= limit;
    match accumulator {
        Accumulator::StaticFixed => is_beyond(21.47),
        Accumulator::LogTable => !magnitude.is_finite() || may_leave_tables(magnitude, numbers.len() as f64),
        Accumulator::Fpisa => is_beyond(raw(format).end),
        Accumulator::FpisaA => is_beyond(raw(format).end) || raw(format).may_fill(numbers, Meets::Contributions),
        _ => false,
    }
}

fn raw(format: ElementFormat) -> RawFloat {
    match format {
        ElementFormat::RawFloat16 => FLOAT16,
        ElementFormat::RawBfloat16 => BFLOAT16,
        _ => FLOAT32,
    }
}

/// Whether an infinity may stand for a sum of finite numbers. What has left other accumulators' formats is sent again.
fn may_be_infinite(accumulator: Accumulator, format: ElementFormat, element: &Element) -> bool {
    let end = raw(format).end;
    match accumulator {
        Accumulator::Exact => element.sum.abs() * (1.0 + 2f64.powi(-8)) >= end,
        Accumulator::Ieee => element.magnitude_sum * 1.01 >= end,
        // A sum that binary16 does not hold is in the tables all the same.
        Accumulator::LogTable => {
            let magnitude = element.magnitude_sum;
            magnitude + by_tables(magnitude, magnitude, element.count) >= end
        }
        _ => false,
    }
}

fn bound(accumulator: Accumulator, format: ElementFormat, element: &Element) -> f64 {
    let format = raw(format);
    let half_unit = format.unit(element.magnitude_sum) / 2.0;
    let own_rounding = element.magnitude_sum * 2f64.powi(-48);
    let additions = element.count - 1.0;
    let worker_bits = element.count.log2().ceil() as i32;
    own_rounding
        + match accumulator {
            Accumulator::Exact => format.unit(element.sum.abs() + own_rounding) / 2.0,
            Accumulator::Ieee => additions * 2f64.powi(-24) * 1.01 * element.magnitude_sum + half_unit,
            Accumulator::Fpisa => {
                let guard_bits = (format.headroom - worker_bits).max(0);
                additions * format.unit(element.magnitude_max) * 2f64.powi(-guard_bits) + 2.0 * half_unit
            }
            Accumulator::FpisaA => {
                // An overwrite may lose all that came before it.
                let lost = if element.all_kept { 0.0 } else { element.magnitude_sum };
                lost + additions * format.unit(element.magnitude_max) + 2.0 * half_unit
            }
            Accumulator::StaticFixed => element.count * 0.5e-8 + format.unit(element.magnitude_sum + 1e-8),
            Accumulator::LogTable => by_tables(element.sum, element.magnitude_sum, additions) + half_unit,
            Accumulator::BlockFixed => 0.0,
        }
}
