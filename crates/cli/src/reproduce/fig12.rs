//! SwitchML §6.3, Fig. 12, on real sockets: sums of integers, of converted float32, and of float16 on the wire.

use anyhow::{Context, ensure};
use fanin_lab::atp::Options;
use fanin_lab::findings::{Findings, Row, Sheet};
use serde::Deserialize;
use serde_json::Value;

use crate::bench::fleet::{Fleet, Format, Job, Joined, Setting, Work};
use crate::bench::statistics::median;
use crate::bench::units::parse_rate;
use crate::net::Link;

/// The built-in parameters.
const PARAMETERS: &str = include_str!("../../../../experiments/switchml/fig12.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    workers: u16,
    link: String,
    mtu: u32,
    elements: u64,
    rounds: u32,
}

/// What travels: its name, the tensor's type and the wire's.
const KINDS: [(&str, &str, Format); 3] = [
    ("int32, no conversion", "int32", Format::Int32),
    ("float32 as int32", "float32", Format::Int32),
    ("float32 as float16", "float32", Format::Float16),
];

/// Times all kinds in turn.
///
/// # Errors
/// Without root, or a sum that was wrong.
pub fn run(options: &Options) -> anyhow::Result<Findings> {
    let text = options.parameters.as_deref().unwrap_or(PARAMETERS);
    let mut parameters: Parameters = toml::from_str(text).context("parameters of fig12")?;
    if options.is_quick {
        (parameters.rounds, parameters.elements) = (3, 1 << 16);
    }
    ensure!(
        parameters.rounds > 0 && parameters.elements > 0,
        "parameters of fig12: rounds and elements must be 1 or more"
    );
    let rate_bps = parse_rate(&parameters.link).map_err(anyhow::Error::msg).context("parameters of fig12: link")?;
    let mut fleet = Fleet::start(&Setting {
        ranks: parameters.workers,
        timeout_ms: 60_000,
        spin_us: None,
        kernels: None,
        switch_flags: Vec::new(),
        has_server: false,
        link: Some(Link { rate_bps, mtu_bytes: parameters.mtu, takes_xdp: false }),
        baselines: None,
    })?;
    let mut times_ms = [const { Vec::new() }; 3];
    let jobs = KINDS.map(|(_, _, element_format)| fleet.join(&Job { element_format, ..Job::default() }));
    for round in 0..=parameters.rounds {
        for ((joined, (_, dtype, _)), times_ms) in jobs.iter().zip(KINDS).zip(&mut times_ms) {
            let joined = joined.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            let time_ms = time_ms(&mut fleet, joined, dtype, parameters.elements, round)?;
            // The first is for caches and windows.
            if round > 0 {
                times_ms.push(time_ms);
            }
        }
    }
    Ok(findings(&parameters, &times_ms))
}

/// From the last start to the last end.
fn time_ms(fleet: &mut Fleet, joined: &Joined, dtype: &str, elements: u64, round: u32) -> anyhow::Result<f64> {
    let replies = fleet.round(joined, &Work { bytes: 4 * elements, dtype, round, repeat: 1 })?;
    let last = |key: &str| replies.iter().filter_map(|reply| reply.get(key)?.get(0)?.as_u64()).max().unwrap_or(0);
    let wrong: u64 = replies.iter().filter_map(|reply| reply.get("wrong_elements").and_then(Value::as_u64)).sum();
    ensure!(wrong == 0, "{wrong} elements of {dtype} were not the sum");
    Ok(last("ends_ns").saturating_sub(last("starts_ns")) as f64 / 1e6)
}

fn findings(parameters: &Parameters, times_ms: &[Vec<f64>; 3]) -> Findings {
    let ratio = |kind: usize| {
        let of_rounds = times_ms[kind].iter().zip(&times_ms[0]).map(|(time, base)| time / base);
        median(&of_rounds.collect::<Vec<_>>())
    };
    let shown = |kind: usize| {
        format!("{:.3} ({:.1} ms against {:.1} ms)", ratio(kind), median(&times_ms[kind]), median(&times_ms[0]))
    };
    let rows = vec![
        Row::new("time of float32 converted / of integers", "negligible overhead: about 1", shown(1), ratio(1) < 1.05)
            .because("All workers, the switch and what else runs share this machine's cores here, where converting is in the way of packets."),
        Row::new("time of float16 on the wire / of integers", "0.5 (performance doubles)", shown(2), (0.45..0.6).contains(&ratio(2)))
            .because("The paper halved the tensor in place of converting; here float32 tensors travel as float16 and are converted back."),
    ];
    Findings {
        experiment: "fig12".into(),
        title: "Time to sum integers, float32 and float16 (§6.3, Fig. 12)".into(),
        place: format!(
            "real processes: {} workers and a switch in network namespaces, links of {}, {} elements",
            parameters.workers, parameters.link, parameters.elements
        ),
        rows,
        notes: vec!["Medians of rounds in which all kinds take turns; every sum is checked.".into()],
        sheets: vec![Sheet {
            name: "times".into(),
            columns: ["round"]
                .into_iter()
                .chain(KINDS.map(|(name, ..)| name))
                .map(|name| format!("{name}, ms").replace("round, ms", "round"))
                .collect(),
            rows: (0..times_ms[0].len())
                .map(|round| [round as f64].into_iter().chain(times_ms.iter().map(|times| times[round])).collect())
                .collect(),
        }],
        plots: Vec::new(),
        hops: 0,
    }
}
