//! What a job's accumulator promises, and the cheapest one that promises enough.

use fanin_numeric::certificate::{Certificate, Contributions};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::register_pair::FloatFormat;
use fanin_numeric::{block_fixed, exact, ieee, static_fixed};
use fanin_wire::Accumulator;

/// From the cheapest on, by the processor time that was measured of workers and switch together (`fanin bench allreduce
/// --accumulator`): raw floats that the switch adds natively; floats that the workers scale, which costs them less than
/// registers cost the switch; exact sums, for which it has no vector code.
pub(crate) const BY_COST: [Accumulator; 4] =
    [Accumulator::Ieee, Accumulator::BlockFixed, Accumulator::Fpisa, Accumulator::Exact];

/// What the sum of these contributions promises at a [`Switch`](super::Switch) with this accumulator and floats of this format
/// (which block-fixed and static-fixed ignore: their sums are float32). Sums that overflow are sent again as block fixed point.
pub fn certify(accumulator: Accumulator, format: FloatFormat, contributions: &Contributions) -> Certificate {
    match accumulator {
        Accumulator::BlockFixed => block_fixed::certify(contributions),
        Accumulator::StaticFixed => static_fixed::certify(contributions),
        Accumulator::Fpisa => Fpisa::for_workers(format, contributions.worker_count).certify(contributions),
        Accumulator::FpisaA => FpisaA::paper(format).certify(contributions),
        // Numbers of opposite signs may lose everything.
        Accumulator::LogTable => Certificate {
            order_independent: false,
            absolute_error: f64::INFINITY,
            source: "spec/NUMERICS.md, section 6",
        },
        Accumulator::Ieee => ieee::certify(format, contributions),
        Accumulator::Exact => exact::certify(format, contributions),
    }
}

/// The promise for float32 as a share of the largest magnitude that any worker contributes to a block, whatever it is (among
/// normal numbers above 2^-96, where block-fixed's exponents end).
pub fn relative_error(accumulator: Accumulator, worker_count: u16) -> f64 {
    // Steps of 10^-8, however small the numbers are.
    if accumulator == Accumulator::StaticFixed {
        return f64::INFINITY;
    }
    worst_share(worker_count, &[], |contributions| certify(accumulator, FloatFormat::Float32, contributions))
}

/// The largest share of the largest magnitude that a certificate promises, whatever that magnitude is. `jumps`: where else, as a
/// share of a sum that is a power of two, the certificate's bound jumps.
pub(crate) fn worst_share(worker_count: u16, jumps: &[f64], certify: impl Fn(&Contributions) -> Certificate) -> f64 {
    let share = |largest: f64| certify(&Contributions::bounded(worker_count.into(), largest)).absolute_error / largest;
    // Bounds jump where the largest number reaches a power of two, and where the sum does; in between they stay, and their
    // share falls. Doubling the numbers doubles all.
    let sum_jumps = f64::from(u32::from(worker_count).next_power_of_two()) / f64::from(worker_count);
    let jumps = jumps.iter().map(|jump| jump * sum_jumps).chain([1.0, sum_jumps]);
    jumps.flat_map(|jump| [jump.next_down(), jump, jump.next_up(), jump * (1.0 + 1e-12)]).map(share).fold(0.0, f64::max)
}

/// The cheapest accumulator whose sums of float32 among `worker_count` workers are never off by more than `tolerance` times the
/// largest magnitude in the block. `None` where not even the exact sum, rounded to float32, is.
pub fn cheapest(tolerance: f64, worker_count: u16) -> Option<Accumulator> {
    BY_COST.into_iter().find(|accumulator| relative_error(*accumulator, worker_count) <= tolerance)
}

/// The largest share of the largest magnitude that a certificate of float32 promises, tried at 400 magnitudes.
#[cfg(test)]
pub(crate) fn worst_share_tried(worker_count: u16, certify: impl Fn(&Contributions) -> Certificate) -> f64 {
    (0..400)
        .map(|step| f64::powf(2.0, f64::from(step) / 100.0))
        .map(|largest| certify(&Contributions::bounded(worker_count.into(), largest)).absolute_error / largest)
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_hold_for_the_worst_largest_number() {
        // 11184811, 11184811 and 11184812 times 2^-23 are 4 + 2^-22, which float32 rounds to 4.
        let largest = 11_184_812.0 * f64::powi(2.0, -23);
        let off = f64::powi(2.0, -22) / largest;
        assert!(relative_error(Accumulator::Exact, 3) >= off);
        for worker_count in 1..=256 {
            for accumulator in BY_COST {
                let promised = relative_error(accumulator, worker_count);
                let worst = worst_share_tried(worker_count, |sum| certify(accumulator, FloatFormat::Float32, sum));
                assert!(worst <= promised * (1.0 + 1e-12), "{accumulator:?}, {worker_count}: {worst:e} > {promised:e}");
            }
        }
    }
}
