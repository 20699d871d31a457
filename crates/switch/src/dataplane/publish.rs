//! Counters as the controller reads them.

use fanin_net::Counters;
use fanin_protocol::DropReason;
use fanin_protocol::atp;
use fanin_protocol::switchml::{JobCounters, LeafCounters, SwitchCounters};
use fanin_protocol::tensor_counts::TensorCounts;

use super::carry::Carrying;
use crate::dataplane_api::TrafficCounters;

/// Datagrams and bytes of one job on one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JobTraffic {
    pub received_datagrams: u64,
    pub received_bytes: u64,
    pub sent_datagrams: u64,
    pub sent_bytes: u64,
}

impl JobTraffic {
    /// One datagram in, and `copies` out with `sent_bytes` together.
    pub fn add(&mut self, received_bytes: usize, copies: u64, sent_bytes: u64) {
        self.received_datagrams += 1;
        self.received_bytes += received_bytes as u64;
        self.sent_datagrams += copies;
        self.sent_bytes += sent_bytes;
    }

    fn counters(&self) -> TrafficCounters {
        TrafficCounters {
            received_datagrams: self.received_datagrams,
            received_bytes: self.received_bytes,
            sent_datagrams: self.sent_datagrams,
            sent_bytes: self.sent_bytes,
            ..TrafficCounters::default()
        }
    }
}

/// The thread's totals, less what the XDP program counts.
pub(super) fn total(
    net: &Counters,
    switch: &SwitchCounters,
    leaf: &LeafCounters,
    atp: &atp::SwitchCounters,
    carrying: &Carrying,
) -> TrafficCounters {
    let mut drops = switch.drops;
    drops[DropReason::UnknownJob as usize] += carrying.stray_datagrams;
    let others = atp.drops.iter().zip(&leaf.drops).map(|(atp, leaf)| atp + leaf);
    drops.iter_mut().zip(others).for_each(|(sum, part)| *sum += part);
    let of_leaf = leaf_traffic(leaf);
    TrafficCounters {
        contributions: switch.contributions + of_leaf.contributions + atp.contributions,
        aggregates: switch.aggregates + of_leaf.aggregates + atp.aggregates,
        resends_answered: switch.replies + of_leaf.resends_answered,
        sums_up: of_leaf.sums_up,
        sums_again: of_leaf.sums_again,
        queries_up: of_leaf.queries_up,
        collisions: atp.collisions,
        resends_passed: atp.resends,
        slots_abandoned: atp.abandoned,
        ecn_marks: atp.marks,
        drops: by_reason(&drops),
        ..carrying.without(net)
    }
}

/// What the XDP program counted.
pub(super) fn kernel(counters: &fanin_xdp::Counters) -> TrafficCounters {
    TrafficCounters {
        received_datagrams: counters.received_datagrams,
        received_bytes: counters.received_bytes,
        sent_datagrams: counters.sent_datagrams,
        sent_bytes: counters.sent_bytes,
        contributions: counters.contributions,
        aggregates: counters.aggregates,
        resends_answered: counters.replies,
        drops: by_reason(&counters.drops),
        ..TrafficCounters::default()
    }
}

/// One job's share.
pub(super) fn job(traffic: &JobTraffic, counters: &JobCounters, tensors: &[TensorCounts]) -> TrafficCounters {
    TrafficCounters {
        contributions: counters.contributions,
        aggregates: counters.aggregates,
        resends_answered: counters.replies,
        telemetry: counters.telemetry,
        tensors: tensors.to_vec(),
        drops: by_reason(&counters.drops),
        ..traffic.counters()
    }
}

/// A job's share at a switch that sums for another one.
pub(super) fn leaf_job(traffic: &JobTraffic, counters: &LeafCounters) -> TrafficCounters {
    let TrafficCounters { received_datagrams, received_bytes, sent_datagrams, sent_bytes, .. } = traffic.counters();
    let drops = by_reason(&counters.drops);
    TrafficCounters { received_datagrams, received_bytes, sent_datagrams, sent_bytes, drops, ..leaf_traffic(counters) }
}

/// What a leaf counts beside datagrams. A chunk is complete where it is everybody's: its answer has come.
fn leaf_traffic(counters: &LeafCounters) -> TrafficCounters {
    TrafficCounters {
        contributions: counters.contributions + counters.sums,
        aggregates: counters.answers,
        resends_answered: counters.replies,
        sums_up: counters.sums,
        sums_again: counters.sums_again,
        queries_up: counters.queries,
        ..TrafficCounters::default()
    }
}

/// An ATP job's share.
pub(super) fn atp_job(
    traffic: &JobTraffic,
    counters: &atp::SwitchCounters,
    tensors: &[TensorCounts],
) -> TrafficCounters {
    TrafficCounters {
        contributions: counters.contributions,
        aggregates: counters.aggregates,
        collisions: counters.collisions,
        resends_passed: counters.resends,
        slots_abandoned: counters.abandoned,
        ecn_marks: counters.marks,
        telemetry: counters.telemetry,
        tensors: tensors.to_vec(),
        drops: by_reason(&counters.drops),
        ..traffic.counters()
    }
}

fn by_reason(counts: &[u64]) -> Vec<(&'static str, u64)> {
    DropReason::ALL
        .iter()
        .zip(counts)
        .filter(|&(_, &count)| count > 0)
        .map(|(reason, &count)| (reason.name(), count))
        .collect()
}
