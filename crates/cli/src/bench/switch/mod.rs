//! `fanin bench switch`: the switch program alone, and the daemon at work.

mod core;
mod daemon;

use clap::Args;
use serde_json::json;

use super::output::{Findings, OutputArguments, percent, table};
use super::plot::{Figure, Series, Shape};
use super::units::parse_bytes;

const ABOUT: &str = "core: the switch program without sockets, one core. Batches of contributions of all ranks for all slots, as \
they would lie in a receive batch, go through it; headers and checksums are renewed between batches, outside the clock, so \
that chunks advance for ever as in a long all-reduce. \"ns/packet\" is one contribution, its share of writing the Aggregate \
included. \"of memcpy\" is the share of one in-cache memcpy (256 KiB) of the same round, in payload bytes per second. \
\"checks\" is parsing the header and the CRC-32C alone, \"less checks\" the share of memcpy that remains without them.

daemon: a `fanin switch` serves ranks on loopback that run all-reduces of --size. \"Mpkt/s of CPU\": contributions that it \
received, summed and answered per second of processor time of its data-plane threads, so what one core would do if it did \
nothing else; the time that they poll counts. \"result\": unicast if one copy of each Aggregate left for every rank, so one \
datagram out for each that came in; multicast if one copy left for all.";

/// Flags of `fanin bench switch`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    /// Ranks that contribute to each slot.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Payloads of the program, multiples of 4 bytes up to 8 KiB.
    #[arg(long, default_value = "256B,1KiB,1408B,8KiB", value_name = "LIST", value_delimiter = ',', value_parser = parse_payload)]
    payloads: Vec<u64>,
    /// Payloads of the daemon, multiples of 128 bytes up to 8 KiB.
    #[arg(long, default_value = "1KiB,8KiB", value_name = "LIST", value_delimiter = ',', value_parser = parse_payload)]
    daemon_payloads: Vec<u64>,
    /// Tensor of the daemon's all-reduces.
    #[arg(long, default_value = "64MiB", value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    /// Rounds; in each, everything has a turn.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// How long one measurement of the program lasts.
    #[arg(long, default_value_t = 50, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    sample_ms: u64,
    /// Measure the program only.
    #[arg(long)]
    no_daemon: bool,
    #[command(flatten)]
    pub output: OutputArguments,
}

fn parse_payload(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes.is_multiple_of(4) && bytes <= 8192 {
        return Ok(bytes);
    }
    Err(format!("{text:?}: a payload is a multiple of 4 bytes, up to 8KiB"))
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let cores = core::measure(arguments)?;
    let daemons = if arguments.no_daemon { Vec::new() } else { daemon::measure(arguments)? };
    let mut table = table(
        &[
            "what",
            "payload",
            "result",
            "ns/packet",
            "Mpkt/s of CPU",
            "GB/s",
            "of memcpy",
            "checks",
            "less checks",
            "wrong",
        ],
        3,
    );
    for case in &cores {
        table.add_row(core_cells(case));
    }
    for case in &daemons {
        table.add_row(daemon_cells(case));
    }
    Ok(Findings {
        setting: json!({ "ranks": arguments.ranks, "rounds": arguments.rounds, "size_bytes": arguments.size }),
        baselines: Vec::new(),
        table,
        caption: vec![format!("{} ranks, medians of {} interleaved rounds", arguments.ranks, arguments.rounds)],
        figure: figure(&cores, arguments.ranks),
        wrong_elements: cores.iter().map(|case| case.wrong_elements).sum::<u64>()
            + daemons.iter().map(|case| case.wrong_elements).sum::<u64>(),
        cases: json!({ "core": cores, "daemon": daemons }),
    })
}

/// Bars of the program's share of memcpy for each payload.
fn figure(cores: &[core::Case], ranks: u16) -> Figure {
    let point = |(index, case): (usize, &core::Case)| {
        (index as f64, [case.share_of_memcpy, case.share_without_checks].map(|share| 100.0 * share))
    };
    let points: Vec<_> = cores.iter().enumerate().map(point).collect();
    let line = |name: &str, which: usize| Series {
        name: name.into(),
        points: points.iter().map(|(x, shares)| (*x, shares[which])).collect(),
    };
    Figure {
        title: format!("Switch program, {ranks} ranks, one core: share of in-cache memcpy"),
        x_label: "payload".into(),
        y_label: "percent".into(),
        shape: Shape::Bars { groups: cores.iter().map(|case| payload(case.payload_bytes)).collect() },
        series: vec![line("with checks", 0), line("less header and CRC checks", 1)],
    }
}

fn payload(bytes: u64) -> String {
    format!("{bytes} B")
}

fn core_cells(case: &core::Case) -> Vec<String> {
    vec![
        "core".into(),
        payload(case.payload_bytes),
        "-".into(),
        format!("{:.1}", case.packet_ns),
        format!("{:.2}", 1e3 / case.packet_ns),
        format!("{:.1}", case.payload_bytes as f64 / case.packet_ns),
        percent(case.share_of_memcpy),
        format!("{:.1} ns", case.checks_ns),
        percent(case.share_without_checks),
        case.wrong_elements.to_string(),
    ]
}

fn daemon_cells(case: &daemon::Case) -> Vec<String> {
    vec![
        "daemon".into(),
        payload(case.payload_bytes),
        case.result.into(),
        format!("{:.1}", 1e3 / case.packets_per_cpu_us),
        format!("{:.2}", case.packets_per_cpu_us),
        format!("{:.1}", case.payload_bytes as f64 * case.packets_per_cpu_us / 1e3),
        "-".into(),
        "-".into(),
        "-".into(),
        case.wrong_elements.to_string(),
    ]
}
