//! `fanin bench net`: shaped links, where summing in the network pays.

use clap::Args;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::case::Case;
use super::flags::{BaselineArguments, JobArguments, RunArguments, job_name, tensors};
use super::report::{Axes, findings};
use super::wire::ring_factor;
use crate::bench::fleet::Format;
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::statistics::median_ratio;
use crate::bench::units::{parse_bytes, parse_rate};
use crate::net::Link;
use crate::switch::{Datapath, OnOff};

const ABOUT: &str = "Puts every rank and the switch into a network namespace of its own (root), shapes every link with htb, and \
removes all of it at the end, after Ctrl-C too.

\"gain\": gloo's time divided by fanin's, the median over the rounds. \"of 2(n-1)/n\": the gain as a share of what traffic \
alone would give: a ring sends 2(n-1)/n times the tensor over each link, a switch the tensor as it travels once. Above 100 % \
the ring left some of the link unused.";

/// Flags of `fanin bench net`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Worker processes, one network namespace each.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Rate of each link, each way, headers up to Ethernet's included.
    #[arg(long, default_value = "500mbit", value_name = "RATE", value_parser = parse_rate)]
    rate: u64,
    /// Largest IP packet.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65535))]
    mtu: u32,
    /// Tensor sizes.
    #[arg(long, default_value = "1MiB,64MiB", value_name = "LIST", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<u64>,
    /// Element types: float32, float16, bfloat16, int32, int64.
    #[arg(long, default_value = "float32", value_name = "LIST", value_delimiter = ',')]
    dtypes: Vec<String>,
    /// How float sums travel.
    #[arg(long, value_enum, default_value = "int32", value_name = "LIST", value_delimiter = ',')]
    element_format: Vec<Format>,
    /// Who receives datagrams at the switch. What XDP sends does not pass the shaping of the switch's links.
    #[arg(long, value_enum, default_value = "sockets", value_name = "PATH")]
    datapath: Datapath,
    /// Whether datagrams carry a checksum.
    #[arg(long, value_enum, default_value = "on", value_name = "SWITCH")]
    checksum: OnOff,
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    baselines: BaselineArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let tensors = tensors(&arguments.sizes, &arguments.dtypes)?;
    let link =
        Link { rate_bps: arguments.rate, mtu_bytes: arguments.mtu, takes_xdp: arguments.datapath == Datapath::Xdp };
    let name = |format: Format| (arguments.element_format.len() > 1).then(|| format.name().to_owned());
    let jobs = arguments.element_format.iter().flat_map(|&format| {
        let jobs = arguments.job.by_algorithm(&arguments.job.job(format, 0.0));
        jobs.into_iter().map(move |(algorithm, job)| (job_name(algorithm.into_iter().chain(name(format))), job))
    });
    let mut setting = arguments.run.setting(arguments.ranks, Some(link), arguments.baselines.wanted());
    setting.switch_flags = switch_flags(arguments);
    setting.has_server = arguments.job.has_server();
    let (mut cases, baselines) = arguments.run.experiment(setting, jobs.collect(), tensors).run()?;
    cases.iter_mut().for_each(compare_with_ring);
    let mbit = arguments.rate as f64 / 1e6;
    let title = format!("All-reduce, {} ranks on links of {mbit} Mbit/s, MTU {}", arguments.ranks, arguments.mtu);
    let asked = json!({
        "ranks": arguments.ranks, "link_rate_bps": arguments.rate, "mtu_bytes": arguments.mtu,
        "rounds": arguments.run.rounds,
    });
    let figure = Axes::time_over_size(title).figure(&cases);
    Ok(findings(asked, cases, baselines, figure))
}

fn switch_flags(arguments: &Arguments) -> Vec<&'static str> {
    let xdp = ["--datapath", "xdp", "--no-fallback"];
    let no_checksum = ["--checksum", "off"];
    let xdp = xdp.into_iter().filter(|_| arguments.datapath == Datapath::Xdp);
    xdp.chain(no_checksum.into_iter().filter(|_| arguments.checksum == OnOff::Off)).collect()
}

fn compare_with_ring(case: &mut Case) {
    let Some(gloo) = case.series("gloo").map(|gloo| gloo.times.rounds_ns.clone()) else { return };
    let (ranks, dtype) = (case.ranks, case.dtype.clone());
    for series in &mut case.series {
        let Some(fanin) = &series.fanin else { continue };
        let gain = median_ratio(&gloo, &series.times.rounds_ns);
        let factor = ring_factor(ranks, &dtype, fanin.job.element_format);
        series.derived.insert("gain_over_gloo", gain);
        // One rank has no ring.
        if factor > 0.0 {
            series.derived.insert("share_of_ring_factor", gain / factor);
        }
    }
}
