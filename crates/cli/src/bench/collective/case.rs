//! What was found about one tensor.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::bench::fleet::{Job, Joined};
use crate::bench::statistics::Times;

/// One size and element type on one fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    pub ranks: u16,
    pub size_bytes: u64,
    pub dtype: String,
    /// `None`: loopback.
    pub link_rate_bps: Option<u64>,
    pub mtu_bytes: Option<u32>,
    /// fanin's jobs, then the baselines.
    pub series: Vec<Series>,
}

/// One contender.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub name: String,
    pub times: Times,
    /// Tensor bits over the median time.
    pub goodput_gbps: f64,
    /// Median of its time over the first contender's in the same round.
    pub ratio_to_first: f64,
    /// The least time possible: of fanin on a link, on the wire; on
    /// loopback, one memcpy of the tensor.
    pub bound_ns: Option<f64>,
    /// The bound over the median time.
    pub share_of_bound: Option<f64>,
    /// Elements that were not the sum, over all ranks, rounds and warm-ups.
    pub wrong_elements: u64,
    /// fanin's packets in the rounds that count.
    pub counters: Option<Counters>,
    /// Smoothed round trip of rank 0 at the end.
    pub round_trip_ns: Option<u64>,
    /// fanin's settings, asked for and got.
    pub fanin: Option<FaninSetting>,
    /// What the subcommand made of it.
    #[serde(flatten)]
    pub derived: BTreeMap<&'static str, f64>,
}

/// fanin's settings, asked for and got.
#[derive(Clone, Debug, Serialize)]
pub struct FaninSetting {
    #[serde(flatten)]
    pub job: Job,
    pub joined: Joined,
}

/// Sums over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Contributions sent for the first time.
    pub contributions: u64,
    /// Contributions sent again.
    pub resends: u64,
    /// Headers that asked whether that is needed.
    pub queries: u64,
    /// Datagrams lost on purpose.
    pub losses_injected: u64,
}

impl Case {
    /// Of fanin and the baselines.
    pub fn wrong_elements(&self) -> u64 {
        self.series.iter().map(|series| series.wrong_elements).sum()
    }

    /// A contender by name.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }
}

impl Counters {
    /// From the replies of fanin's ranks; zeros from a baseline's.
    pub fn sum(replies: &[Value]) -> Counters {
        let total = |key: &str| {
            let of = |reply: &Value| reply.get("stats")?.get(key)?.as_u64();
            replies.iter().filter_map(of).sum()
        };
        Counters {
            contributions: total("contributions"),
            resends: total("resends"),
            queries: total("queries"),
            losses_injected: total("losses_injected"),
        }
    }

    /// What came since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        // A lane publishes its counters from time to time, so one may lag.
        Counters {
            contributions: self.contributions.saturating_sub(before.contributions),
            resends: self.resends.saturating_sub(before.resends),
            queries: self.queries.saturating_sub(before.queries),
            losses_injected: self.losses_injected.saturating_sub(before.losses_injected),
        }
    }
}
