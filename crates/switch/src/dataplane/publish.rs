//! Counters as the controller reads them.

use fanin_net::Counters;
use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobCounters, SwitchCounters};

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

/// The thread's totals, less what the XDP program counts.
pub(super) fn total(net: &Counters, switch: &SwitchCounters, carrying: &Carrying) -> TrafficCounters {
    let mut drops = switch.drops;
    drops[DropReason::UnknownJob as usize] += carrying.stray_datagrams;
    TrafficCounters {
        contributions: switch.contributions,
        aggregates: switch.aggregates,
        resends_answered: switch.replies,
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
    }
}

/// One job's share.
pub(super) fn job(traffic: &JobTraffic, counters: &JobCounters) -> TrafficCounters {
    TrafficCounters {
        received_datagrams: traffic.received_datagrams,
        received_bytes: traffic.received_bytes,
        sent_datagrams: traffic.sent_datagrams,
        sent_bytes: traffic.sent_bytes,
        contributions: counters.contributions,
        aggregates: counters.aggregates,
        resends_answered: counters.replies,
        drops: by_reason(&counters.drops),
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
