//! `fanin bench goodput`: what headers leave of a link, by the size of packets.

use clap::Args;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::case::{Case, Series};
use super::flags::{RunArguments, tensors};
use super::report::findings;
use super::wire::goodput_ceiling;
use crate::bench::fleet::{Format, Job};
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::plot::{self, Figure, Shape};
use crate::bench::units::{parse_bytes, parse_rate};
use crate::net::Link;

/// SwitchML §5, "Supporting large packets": elements per packet, and the goodput that framing leaves, as a share of the line
/// rate.
const PAPER_CEILINGS: [(u64, f64); 3] = [(32, 0.63), (64, 0.77), (256, 0.93)];

const ABOUT: &str = "One job per packet size on the same shaped links (root), with turns. \"goodput\": the tensor's bits over the \
median time, as a share of the link's rate. \"ceiling\": what fanin's headers, 82 bytes of each packet, leave at most. \"paper\": \
the ceiling that SwitchML gives in section 5 for its own headers, which are some bytes shorter. 2048 elements need the jumbo \
frames that the default MTU allows.";

/// Flags of `fanin bench goodput`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Worker processes.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Elements per packet, multiples of 32.
    #[arg(long, default_value = "32,64,256,352,2048", value_name = "LIST", value_delimiter = ',', value_parser = parse_elements)]
    elements: Vec<u16>,
    /// Rate of each link, each way, headers up to Ethernet's included.
    #[arg(long, default_value = "200mbit", value_name = "RATE", value_parser = parse_rate)]
    rate: u64,
    /// Largest IP packet.
    #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Tensor size.
    #[arg(long, default_value = "16MiB", value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Elements of a packet.
///
/// # Errors
/// What was expected, in words.
pub fn parse_elements(text: &str) -> Result<u16, String> {
    let elements = text.trim().parse::<u16>().ok().filter(|count| *count > 0 && *count <= 2048 && count % 32 == 0);
    elements.ok_or_else(|| format!("{text:?}: elements per packet are a multiple of 32, up to 2048"))
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let tensors = tensors(&[arguments.size], &["float32".to_owned()])?;
    let link = Link { rate_bps: arguments.rate, mtu_bytes: arguments.mtu, takes_xdp: false };
    let job =
        |&elements: &u16| (format!("fanin {elements} elements"), Job { elements: Some(elements), ..Job::default() });
    let jobs = arguments.elements.iter().map(job).collect();
    let setting = arguments.run.setting(arguments.ranks, Some(link), None);
    let (mut cases, baselines) = arguments.run.experiment(setting, jobs, tensors).run()?;
    cases.iter_mut().for_each(|case| compare_with_ceilings(case, arguments.rate));
    let asked = json!({
        "ranks": arguments.ranks, "link_rate_bps": arguments.rate, "mtu_bytes": arguments.mtu,
        "rounds": arguments.run.rounds,
    });
    let figure = figure(&cases, arguments.rate);
    Ok(findings(asked, cases, baselines, figure))
}

/// Bars of goodput and ceilings for each packet size.
fn figure(cases: &[Case], rate_bps: u64) -> Figure {
    let all: Vec<&Series> = cases.iter().flat_map(|case| &case.series).collect();
    let bars = |name: &str, key: &str| {
        let height = |(x, series): (usize, &&Series)| Some((x as f64, 100.0 * series.derived.get(key)?));
        plot::Series { name: name.into(), points: all.iter().enumerate().filter_map(height).collect() }
    };
    Figure {
        title: format!("Goodput on links of {} Mbit/s", rate_bps as f64 / 1e6),
        x_label: String::new(),
        y_label: "percent of the line rate".into(),
        shape: Shape::Bars { groups: all.iter().map(|series| series.name.replace("fanin ", "")).collect() },
        series: vec![
            bars("measured", "goodput_share"),
            bars("ceiling of fanin's headers", "goodput_ceiling"),
            bars("ceiling in SwitchML, section 5", "goodput_ceiling_paper"),
        ],
    }
}

fn compare_with_ceilings(case: &mut Case, rate_bps: u64) {
    for series in &mut case.series {
        let Some(fanin) = &series.fanin else { continue };
        let elements = fanin.joined.element_count_max;
        series.derived.insert("goodput_share", series.goodput_gbps * 1e9 / rate_bps as f64);
        series.derived.insert("goodput_ceiling", goodput_ceiling(elements, Format::Int32, "float32"));
        if let Some((_, ceiling)) = PAPER_CEILINGS.iter().find(|(count, _)| *count == elements) {
            series.derived.insert("goodput_ceiling_paper", *ceiling);
        }
    }
}
