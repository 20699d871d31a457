//! The daemon, sockets and all, under all-reduces of real ranks.

use std::time::Duration;

use anyhow::{Context, ensure};
use fanin_control::client::{ClientConfig, ControlClient};
use fanin_control::proto::DataplaneCounters;
use serde::Serialize;
use serde_json::Value;

use super::Arguments;
use crate::bench::fleet::{Fleet, Job, Joined, Setting, Work};
use crate::bench::statistics::median;
use crate::bench::threads::data_plane_ns;

/// The data-plane threads publish their counters ten times a second.
const COUNTERS_SETTLE: Duration = Duration::from_millis(250);

/// One payload.
#[derive(Debug, Serialize)]
pub struct Case {
    pub payload_bytes: u64,
    /// "unicast", "multicast" or "mixed".
    pub result: &'static str,
    /// Contributions taken and answered per microsecond of the data-plane
    /// threads' processor time: millions per second and core.
    pub packets_per_cpu_us: f64,
    /// The same of each round.
    pub rounds: Vec<f64>,
    /// Datagrams received and sent, of all rounds.
    pub datagrams_in: u64,
    pub datagrams_out: u64,
    pub wrong_elements: u64,
}

/// What the daemon has done since its start.
struct Sample {
    cpu_ns: u64,
    counters: DataplaneCounters,
}

/// One payload's rounds.
#[derive(Default)]
struct Tally {
    rates: Vec<f64>,
    aggregates: u64,
    datagrams_in: u64,
    datagrams_out: u64,
    wrong_elements: u64,
}

/// Measures every payload, round by round.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Case>> {
    let (ranks, switch_flags) = (arguments.ranks, Vec::new());
    let (link, baselines, has_server) = (None, None, false);
    let setting =
        Setting { ranks, timeout_ms: 60_000, spin_us: None, kernels: None, switch_flags, has_server, link, baselines };
    let mut fleet = Fleet::start(&setting)?;
    let client = ControlClient::connect(&ClientConfig::new(fleet.controller().to_owned()))?;
    let mut jobs = Vec::new();
    for &payload_bytes in &arguments.daemon_payloads {
        let elements = u16::try_from(payload_bytes / 4).ok().filter(|count| count % 32 == 0);
        let elements = elements.with_context(|| format!("{payload_bytes} bytes are no multiple of 32 elements"))?;
        for unicast in [true, false] {
            let job = Job { elements: Some(elements), unicast, ..Job::default() };
            jobs.push((payload_bytes, fleet.join(&job)?, Tally::default()));
        }
    }
    // The first round warms up.
    for round in 0..=arguments.rounds {
        for (_, joined, tally) in &mut jobs {
            measure_round(&mut fleet, &client, joined, arguments.size, round, tally)?;
        }
    }
    let case = |(payload_bytes, _, tally): (u64, Joined, Tally)| tally.case(payload_bytes, arguments.ranks);
    Ok(jobs.into_iter().map(case).collect())
}

fn measure_round(
    fleet: &mut Fleet,
    client: &ControlClient,
    joined: &Joined,
    bytes: u64,
    round: u32,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let before = Sample::take(fleet.switch_id(), client)?;
    let replies = fleet.round(joined, &Work { bytes, dtype: "float32", round, repeat: 1 })?;
    let after = Sample::take(fleet.switch_id(), client)?;
    let wrong = replies.iter().filter_map(|reply| reply.get("wrong_elements").and_then(Value::as_u64)).sum::<u64>();
    tally.wrong_elements += wrong;
    let cpu_ns = after.cpu_ns.saturating_sub(before.cpu_ns);
    ensure!(cpu_ns > 0, "the switch's data-plane threads used no time");
    if round > 0 {
        let since = |count: fn(&DataplaneCounters) -> u64| count(&after.counters) - count(&before.counters);
        tally.rates.push(since(|counters| counters.contributions) as f64 * 1e3 / cpu_ns as f64);
        tally.aggregates += since(|counters| counters.aggregates);
        tally.datagrams_in += since(|counters| counters.received_datagrams);
        tally.datagrams_out += since(|counters| counters.sent_datagrams);
    }
    Ok(())
}

impl Tally {
    fn case(self, payload_bytes: u64, ranks: u16) -> Case {
        let copies = self.datagrams_out as f64 / self.aggregates.max(1) as f64;
        let result = if copies < 1.1 {
            "multicast"
        } else if copies > 0.9 * f64::from(ranks) {
            "unicast"
        } else {
            "mixed"
        };
        let rate = median(&self.rates);
        eprintln!("daemon, {payload_bytes} B: {rate:.2} Mpkt/s of processor time, {result}");
        Case {
            payload_bytes,
            result,
            packets_per_cpu_us: rate,
            rounds: self.rates,
            datagrams_in: self.datagrams_in,
            datagrams_out: self.datagrams_out,
            wrong_elements: self.wrong_elements,
        }
    }
}

impl Sample {
    fn take(switch: u32, client: &ControlClient) -> anyhow::Result<Sample> {
        std::thread::sleep(COUNTERS_SETTLE);
        let counters = client.status()?.counters.context("the switch tells no counters")?;
        Ok(Sample { cpu_ns: data_plane_ns(switch)?, counters })
    }
}
