//! A job's tensors by what its accumulator met, cut to what people and metrics can take.

use fanin_control::proto::TensorCounters;
use fanin_protocol::tensor_counts::TENSORS_MAX;

use super::status::accumulator_counters;
use crate::dataplane_api::{Telemetry, TensorCounts, TrafficCounters};

/// At most [`TENSORS_MAX`] tensors, the worst first, and an entry for all others where they met something. Together they are the
/// job's counts.
pub(super) fn entries(counters: &TrafficCounters) -> Vec<TensorCounters> {
    let mut tensors = counters.tensors.clone();
    tensors.sort_by_key(|tensor| std::cmp::Reverse((tensor.severity(), tensor.key)));
    tensors.truncate(TENSORS_MAX);
    let rest = rest(&counters.telemetry, &tensors);
    let others = (rest != Telemetry::default()).then(|| entry(None, &rest));
    tensors.iter().map(|tensor| entry(Some(tensor.key.into()), &tensor.telemetry)).chain(others).collect()
}

fn entry(key: Option<u32>, telemetry: &Telemetry) -> TensorCounters {
    TensorCounters { key, name: String::new(), counters: Some(accumulator_counters(telemetry)) }
}

/// What is in no row: nothing, should the rows ever be ahead of the counts.
fn rest(total: &Telemetry, tensors: &[TensorCounts]) -> Telemetry {
    let mut told = Telemetry::default();
    tensors.iter().for_each(|tensor| told.merge(&tensor.telemetry));
    Telemetry {
        overflow: total.overflow.saturating_sub(told.overflow),
        saturation: total.saturation.saturating_sub(told.saturation),
        overwrite: total.overwrite.saturating_sub(told.overwrite),
        left_shift: total.left_shift.saturating_sub(told.left_shift),
        flushed_to_zero: total.flushed_to_zero.saturating_sub(told.flushed_to_zero),
        lost_bits: total.lost_bits.saturating_sub(told.lost_bits),
    }
}

#[cfg(test)]
mod tests;
