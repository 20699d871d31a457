//! What a run is told as: flow completion times by size, and what the links went through.

use serde::Serialize;

use crate::engine::Outcome;
use crate::host::FlowRecord;

/// Upper ends of the classes of sizes, bytes.
const CLASS_ENDS: [u64; 5] = [10_000, 100_000, 1_000_000, 10_000_000, u64::MAX];

/// Completion times of one class of flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowClass {
    /// No flow is longer.
    pub bytes_max: u64,
    /// Flows that ended.
    pub count: u64,
    /// Completion times: mean and percentiles, microseconds.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95 in 100 are no longer.
    pub p95_us: f64,
    /// 99 in 100 are no longer.
    pub p99_us: f64,
}

/// All that is worth a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Flows given to senders.
    pub flows_started: u64,
    /// Flows that ended.
    pub flows_completed: u64,
    /// By size, without empty classes; the last has all flows.
    pub classes: Vec<FlowClass>,
    /// Packets times links.
    pub packet_hops: u64,
    /// Packets that queues marked.
    pub marked: u64,
    /// Packets that full queues turned away.
    pub dropped: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Timers that ran out.
    pub timeouts: u64,
    /// The longest that any queue of a switch has been, bytes.
    pub queued_bytes_max: u64,
    /// Payload acknowledged, a host and second, on the average.
    pub goodput_bps: f64,
    /// [`Outcome::digest`], hexadecimal.
    pub digest: String,
}

impl Report {
    /// Of an outcome after so much simulated time.
    pub fn new(outcome: &Outcome, duration_ps: u64) -> Report {
        let sum = |part: fn(&crate::host::HostCounters) -> u64| outcome.hosts.iter().map(part).sum::<u64>();
        let hosts = outcome.hosts.len() as u32;
        let from_switches = || outcome.links.iter().filter(|link| link.from >= hosts).map(|link| &link.counters);
        let seconds = duration_ps as f64 / 1e12;
        Report {
            flows_started: sum(|host| host.started),
            flows_completed: sum(|host| host.completed),
            classes: classes(&outcome.flows),
            packet_hops: outcome.packet_hops(),
            marked: from_switches().map(|link| link.marked).sum(),
            dropped: from_switches().map(|link| link.dropped).sum(),
            resent: sum(|host| host.resent),
            timeouts: sum(|host| host.timeouts),
            queued_bytes_max: from_switches().map(|link| link.queued_bytes_max).max().unwrap_or(0),
            goodput_bps: sum(|host| host.acknowledged_bytes) as f64 * 8.0 / seconds / f64::from(hosts),
            digest: format!("{:016x}", outcome.digest()),
        }
    }
}

fn classes(flows: &[FlowRecord]) -> Vec<FlowClass> {
    let mut low = 0;
    let mut classes = Vec::new();
    for end in CLASS_ENDS {
        classes.extend(class(end, flows.iter().filter(|flow| flow.bytes > low && flow.bytes <= end)));
        low = end;
    }
    classes.extend(class(u64::MAX, flows.iter()));
    classes
}

fn class<'a>(bytes_max: u64, flows: impl Iterator<Item = &'a FlowRecord>) -> Option<FlowClass> {
    let mut times: Vec<u64> = flows.map(|flow| flow.completion_ps).collect();
    times.sort_unstable();
    // Nearest rank: a percentile is a time that a flow took.
    let rank = |share: f64| ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1;
    let at = |share: f64| times[rank(share)] as f64 / 1e6;
    (!times.is_empty()).then(|| FlowClass {
        bytes_max,
        count: times.len() as u64,
        mean_us: times.iter().map(|&time| time as f64).sum::<f64>() / times.len() as f64 / 1e6,
        p50_us: at(0.5),
        p95_us: at(0.95),
        p99_us: at(0.99),
    })
}
