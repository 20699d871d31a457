//! What a job's accumulator promises where sums are made in parts, at switches and at a server (`spec/ATP.md`, section 7).

use fanin_numeric::certificate::{Certificate, Contributions};
use fanin_numeric::exact;
use fanin_numeric::register_pair::FloatFormat;
use fanin_wire::Accumulator;

use crate::switchml::{BY_COST, certify as certify_at_one_switch, worst_share};

/// What the sum of these contributions promises, whichever parts of it switches have added before the server does.
pub fn certify(accumulator: Accumulator, format: FloatFormat, contributions: &Contributions) -> Certificate {
    let is_rounded = match accumulator {
        Accumulator::Fpisa | Accumulator::FpisaA => true,
        // Its state is a binary32.
        Accumulator::Ieee => format != FloatFormat::Float32,
        // Sums of one level, integers, and what promises nothing.
        Accumulator::Exact | Accumulator::StaticFixed | Accumulator::LogTable | Accumulator::BlockFixed => false,
    };
    if !is_rounded {
        return certify_at_one_switch(accumulator, format, contributions);
    }
    // A part counts as one contribution further up, as large as all that is in it, with the errors made so far.
    let largest = contributions.magnitude_sum * growth(format, contributions.worker_count);
    let part = Contributions { magnitude_max: largest, magnitude_sum: largest, ..*contributions };
    let whole = certify_at_one_switch(accumulator, format, &part);
    // Every part that is rounded on its way has an addition of its own in it, and one read-out is in `whole`.
    let parts = f64::from(contributions.worker_count.saturating_sub(2));
    let rounding = exact::certify(format, &part).absolute_error;
    let absolute_error = if parts > 0.0 { whole.absolute_error + parts * rounding } else { whole.absolute_error };
    Certificate { absolute_error, source: "spec/ATP.md, section 7", ..whole }
}

/// How much larger a part may be than the magnitudes in it: each addition and each rounding adds a unit of the last place at most.
fn growth(format: FloatFormat, worker_count: u32) -> f64 {
    let step = 1.0 + 2.0 / f64::from(1u32 << format.fraction_bits());
    (0..2 * worker_count.saturating_sub(1)).fold(1.0, |product, _| product * step)
}

/// The promise for float32 as a share of the largest magnitude that any worker contributes to a block, as
/// [`crate::switchml::relative_error`] has it for one switch.
pub fn relative_error(accumulator: Accumulator, worker_count: u16) -> f64 {
    if accumulator == Accumulator::StaticFixed {
        return f64::INFINITY;
    }
    let jump = 1.0 / growth(FloatFormat::Float32, worker_count.into());
    worst_share(worker_count, &[jump], |contributions| certify(accumulator, FloatFormat::Float32, contributions))
}

/// From the cheapest on, as at one switch.
fn by_cost() -> impl Iterator<Item = Accumulator> {
    BY_COST.into_iter().filter(|accumulator| accumulator.suits_atp())
}

/// The cheapest accumulator whose sums of float32 among `worker_count` workers are never off by more than `tolerance` times the
/// largest magnitude in the block. `None` where not even the exact sum, rounded to float32, is.
pub fn cheapest(tolerance: f64, worker_count: u16) -> Option<Accumulator> {
    by_cost().find(|accumulator| relative_error(*accumulator, worker_count) <= tolerance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switchml::worst_share_tried;

    #[test]
    fn promises_hold_for_the_worst_largest_number_and_are_no_better_than_at_one_switch() {
        for worker_count in 1..=256 {
            for accumulator in by_cost() {
                let promised = relative_error(accumulator, worker_count);
                assert!(promised >= crate::switchml::relative_error(accumulator, worker_count));
                let worst = worst_share_tried(worker_count, |sum| certify(accumulator, FloatFormat::Float32, sum));
                assert!(worst <= promised * (1.0 + 1e-12), "{accumulator:?}, {worker_count}: {worst:e} > {promised:e}");
            }
        }
    }
}
