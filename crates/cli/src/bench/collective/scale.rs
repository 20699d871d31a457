//! `fanin bench scale`: the same tensor among more and more ranks.

use clap::Args;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::flags::{BaselineArguments, JobArguments, LinkArguments, RunArguments, TransportArguments, tensors};
use super::report::{Axes, findings};
use crate::bench::fleet::Format;
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::plot::Shape;
use crate::bench::units::{parse_bytes, show_bytes};

const ABOUT: &str = "One number of ranks after the other, each with processes of its own; turns are taken among the contenders of one \
number. On one host all ranks share its cores, so times grow with their number whatever the algorithm does.";

/// Flags of `fanin bench scale`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Numbers of worker processes.
    #[arg(
        long,
        default_value = "2,4,8,16",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=250)
    )]
    ranks: Vec<u16>,
    /// Tensor size.
    #[arg(long, default_value = "16MiB", value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    #[command(flatten)]
    link: LinkArguments,
    #[command(flatten)]
    transport: TransportArguments,
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
    let tensors = tensors(&[arguments.size], &["float32".to_owned()])?;
    let (mut cases, mut baselines) = (Vec::new(), Vec::new());
    for &ranks in &arguments.ranks {
        let setting = arguments.run.setting(ranks, arguments.link.link(), arguments.baselines.wanted());
        let jobs = arguments.transport.each(&[(Vec::new(), arguments.job.job(Format::Int32, 0.0))])?;
        let (more, used) = arguments.run.experiment(setting, jobs, tensors.clone()).run()?;
        cases.extend(more);
        baselines = used;
    }
    let axes = Axes {
        title: format!("All-reduce of {}", show_bytes(arguments.size)),
        x_label: "ranks",
        x: |case, _| f64::from(case.ranks),
        y_label: "median time, ms",
        y: |_, series| series.times.p50_ns as f64 / 1e6,
        shape: Shape::Lines { log_y: true, x_bytes: false },
    };
    let asked = json!({
        "ranks": arguments.ranks, "link_rate_bps": arguments.link.net, "rounds": arguments.run.rounds,
    });
    let figure = axes.figure(&cases);
    Ok(findings(asked, cases, baselines, figure))
}
