//! `fanin bench small`: latency of small tensors.

use clap::Args;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::experiment::Experiment;
use super::flags::{BaselineArguments, JobArguments, RunArguments, TransportArguments, tensors};
use super::report::{Axes, findings};
use crate::bench::fleet::Format;
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::units::parse_bytes;

const ABOUT: &str = "A turn is many all-reduces, each after a barrier and checked; p50 and p99 are of all of them, \"x first\" \
compares the medians of turns. With more ranks than cores every wait for a rank that sleeps costs a time slice: gloo, which \
sleeps, looks slow then, and Open MPI over shared memory, which polls, is the one to compare with.";

/// Flags of `fanin bench small`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Tensor sizes.
    #[arg(
        long,
        default_value = "4B,256B,1KiB,4KiB,16KiB,64KiB,256KiB",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_bytes
    )]
    sizes: Vec<u64>,
    /// All-reduces in one turn.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: u32,
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
    let tensors = tensors(&arguments.sizes, &["float32".to_owned()])?;
    let setting = arguments.run.setting(arguments.ranks, None, arguments.baselines.wanted());
    let jobs = arguments.transport.each(&[(Vec::new(), arguments.job.job(Format::Int32, 0.0))])?;
    let experiment = arguments.run.experiment(setting, jobs, tensors);
    let (cases, baselines) = Experiment { repeat: arguments.repeat, ..experiment }.run()?;
    let axes = Axes::time_over_size(format!("Latency of all-reduce, {} ranks, loopback", arguments.ranks));
    let asked = json!({
        "ranks": arguments.ranks, "rounds": arguments.run.rounds, "repeat": arguments.repeat,
    });
    let figure = axes.figure(&cases);
    Ok(findings(asked, cases, baselines, figure))
}
