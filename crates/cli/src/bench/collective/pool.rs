//! `fanin bench pool`: how many slots a link needs.

use std::time::Duration;

use clap::Args;
use fanin_host::slots_for_link;
use fanin_wire::generated::HEADER_BYTES;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::case::{Case, FaninSetting, Series};
use super::flags::{RunArguments, tensors};
use super::goodput::parse_elements;
use super::report::findings;
use super::wire::LOWER_HEADERS_BYTES;
use crate::bench::fleet::{Format, Job};
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::plot::{self, Figure, Shape};
use crate::bench::units::{parse_bytes, parse_rate};
use crate::net::Link;

const ABOUT: &str = "One job per pool size on the same shaped links (root), with turns. SwitchML, appendix C: the pool must hold the \
bandwidth-delay product, hosts' processing included, so its slots are the next power of two of BDP / packet size; more add \
queueing and nothing else. \"window\": bytes in flight with all slots in use, headers included. \"round trip\": rank 0's, from a \
contribution to its aggregate, smoothed; it grows with the queue. \"BDP\": the link's rate times the shortest of these round \
trips. \"rule\": the paper's number of slots for that BDP.";

/// Flags of `fanin bench pool`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Slots, powers of two.
    #[arg(long, default_value = "2,4,8,16,32,64,128,256,512,1024", value_name = "LIST", value_delimiter = ',', value_parser = parse_slots)]
    slots: Vec<u32>,
    /// Elements per packet, a multiple of 32.
    #[arg(long, default_value = "256", value_name = "N", value_parser = parse_elements)]
    elements: u16,
    /// Rate of each link, each way, headers up to Ethernet's included.
    #[arg(long, default_value = "500mbit", value_name = "RATE", value_parser = parse_rate)]
    rate: u64,
    /// Largest IP packet.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Tensor size.
    #[arg(long, default_value = "8MiB", value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

fn parse_slots(text: &str) -> Result<u32, String> {
    let slots = text.trim().parse::<u32>().ok().filter(|slots| slots.is_power_of_two() && *slots <= 4096);
    slots.ok_or_else(|| format!("{text:?}: slots of a lane are a power of two, up to 4096"))
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let tensors = tensors(&[arguments.size], &["float32".to_owned()])?;
    let link = Link { rate_bps: arguments.rate, mtu_bytes: arguments.mtu, takes_xdp: false };
    let job = |&slots: &u32| {
        let job = Job { lanes: Some(1), slots: Some(slots), elements: Some(arguments.elements), ..Job::default() };
        (format!("fanin {slots} slots"), job)
    };
    let jobs = arguments.slots.iter().map(job).collect();
    let setting = arguments.run.setting(arguments.ranks, Some(link), None);
    let (mut cases, baselines) = arguments.run.experiment(setting, jobs, tensors).run()?;
    cases.iter_mut().for_each(|case| compare_with_rule(case, arguments.rate));
    let asked = json!({
        "ranks": arguments.ranks, "link_rate_bps": arguments.rate, "mtu_bytes": arguments.mtu,
        "rounds": arguments.run.rounds,
    });
    let figure = figure(&cases, arguments);
    Ok(findings(asked, cases, baselines, figure))
}

/// The link's use over the window, and the window that the paper asks for.
fn figure(cases: &[Case], arguments: &Arguments) -> Figure {
    let all = || cases.iter().flat_map(|case| &case.series);
    let point = |series: &Series| Some((*series.derived.get("window_bytes")?, 100.0 * series.share_of_bound?));
    let by_rule = all().find_map(|series| {
        let fanin = series.fanin.as_ref()?;
        let packet_bytes = series.derived.get("window_bytes")? / fanin.joined.slots_per_lane as f64;
        Some(packet_bytes * series.derived.get("slots_by_rule")?)
    });
    let line = |name: &str, points| plot::Series { name: name.into(), points };
    let rule = by_rule.map(|window| line("SwitchML's rule", vec![(window, 0.0), (window, 100.0)]));
    Figure {
        title: format!("Pool size, {} ranks on links of {} Mbit/s", arguments.ranks, arguments.rate as f64 / 1e6),
        x_label: "window: slots x packet".into(),
        y_label: "percent of the wire bound".into(),
        shape: Shape::Lines { log_y: false, x_bytes: true },
        series: std::iter::once(line("measured", all().filter_map(point).collect())).chain(rule).collect(),
    }
}

fn compare_with_rule(case: &mut Case, rate_bps: u64) {
    // What the smallest pools see has not queued behind the pool's own packets.
    let shortest_ns = case.series.iter().filter_map(|series| series.round_trip_ns).min();
    for series in &mut case.series {
        let Some(FaninSetting { job, joined }) = &series.fanin else { continue };
        let payload = joined.element_count_max * Format::bytes(job.element_format);
        let packet_bytes = payload + HEADER_BYTES as u64 + LOWER_HEADERS_BYTES;
        series.derived.insert("window_bytes", (packet_bytes * joined.slots_per_lane) as f64);
        if let Some(round_trip_ns) = shortest_ns {
            let round_trip = Duration::from_nanos(round_trip_ns);
            let slots = slots_for_link(rate_bps, round_trip, packet_bytes as usize);
            series.derived.insert("bandwidth_delay_bytes", rate_bps as f64 / 8.0 * round_trip.as_secs_f64());
            series.derived.insert("slots_by_rule", f64::from(slots));
        }
        if let Some(round_trip_ns) = series.round_trip_ns {
            series.derived.insert("round_trip_smoothed_ns", round_trip_ns as f64);
        }
    }
}
