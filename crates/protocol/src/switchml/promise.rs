//! What a job's accumulator promises, and the cheapest one that promises enough.

use fanin_numeric::certificate::{Certificate, Contributions};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::register_pair::FloatFormat;
use fanin_numeric::{block_fixed, exact, ieee, static_fixed};
use fanin_wire::Accumulator;

/// From the cheapest on, for workers first: raw floats that the switch adds natively, or in registers; floats that the workers
/// scale; exact sums, for which the switch has no vector code.
const BY_COST: [Accumulator; 4] = [Accumulator::Ieee, Accumulator::Fpisa, Accumulator::BlockFixed, Accumulator::Exact];

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

/// The promise for float32 as a share of the largest magnitude that any worker contributes to a block: scale-free, since all
/// bounds but static-fixed's grow with it (for normal numbers).
pub fn relative_error(accumulator: Accumulator, worker_count: u16) -> f64 {
    let contributions = Contributions::bounded(worker_count.into(), 1.0);
    match accumulator {
        // Steps of 10^-8, however small the numbers are.
        Accumulator::StaticFixed => f64::INFINITY,
        _ => certify(accumulator, FloatFormat::Float32, &contributions).absolute_error,
    }
}

/// The cheapest accumulator whose sums of float32 among `worker_count` workers are never off by more than `tolerance` times the
/// largest magnitude in the block. `None` where not even the exact sum, rounded to float32, is.
pub fn cheapest(tolerance: f64, worker_count: u16) -> Option<Accumulator> {
    BY_COST.into_iter().find(|accumulator| relative_error(*accumulator, worker_count) <= tolerance)
}
