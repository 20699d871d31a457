//! `fanin bench allreduce`: sizes, types, losses and formats, beside gloo and
//! Open MPI.

use clap::Args;
use serde_json::json;

use super::flags::{BaselineArguments, JobArguments, LinkArguments, RunArguments, TransportArguments, tensors};
use super::report::{Axes, findings};
use crate::bench::fleet::{Format, Job};
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::units::{parse_bytes, parse_loss};

/// What the columns mean, below the flags of every subcommand with this table.
pub const COLUMNS: &str = "Starts a switch, fanin's ranks, and as many ranks of gloo and of Open MPI on this host. In each \
round everybody has a turn; a turn is a barrier, then one all-reduce. Its time is from the last rank's entering it to the \
last rank's leaving it. Every result is checked; the exit status is 1 if a sum is wrong.

min, p50, p99, max: of the times of all rounds. Gbit/s: the tensor's bits over the median time. \"x first\": the median, over \
the rounds, of this contender's time divided by the first one's in the same round; above 1 the first is faster. \"of bound\": \
the least possible time divided by the median time. With shaped links, the least time is fanin's on the link: S/B x \
(payload+40+42)/payload, with S the bytes of the elements as they travel, B the link's rate, 40 bytes of fanin's header and 42 \
of UDP, IP and Ethernet per packet. Without, it is the time of one memcpy of the tensor, measured in the same run. resends, \
queries, lost: contributions sent again, headers that asked whether that is needed, and datagrams lost on purpose, over all \
ranks and rounds. With --accumulator, for each MiB of the tensor, means: rank us/MiB: processor time of a rank; switch us/MiB: of the switch's \
data-plane threads for all ranks together, the barrier before included, if the kernel tells it; sleeps/MiB: how often a rank's \
threads had to wait asleep. wrong: elements that were not the sum.

gloo runs in the interpreter that FANIN_PYTHON names, else in that of .venv beside or above, else in python3. Open MPI needs \
mpicc and mpirun; it runs on loopback only, over shared memory and over TCP.";

/// Flags of `fanin bench allreduce`.
#[derive(Args, Debug)]
#[command(after_long_help = COLUMNS)]
pub struct Arguments {
    /// Worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Tensor sizes.
    #[arg(long, default_value = "4KiB,1MiB,64MiB", value_name = "LIST", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<u64>,
    /// Element types: float32, float16, bfloat16, int32, int64.
    #[arg(long, default_value = "float32", value_name = "LIST", value_delimiter = ',')]
    dtypes: Vec<String>,
    /// Shares of fanin's datagrams to lose at every rank, each way. The others' TCP is not disturbed.
    #[arg(long, default_value = "0", value_name = "LIST", value_delimiter = ',', value_parser = parse_loss)]
    loss: Vec<f64>,
    /// How float sums travel.
    #[arg(long, value_enum, default_value = "int32", value_name = "LIST", value_delimiter = ',')]
    element_format: Vec<Format>,
    #[command(flatten)]
    transport: TransportArguments,
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    link: LinkArguments,
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
    let link = arguments.link.link();
    let mut setting = arguments.run.setting(arguments.ranks, link, arguments.baselines.wanted());
    setting.has_server = arguments.job.has_server();
    let (cases, baselines) = arguments.run.experiment(setting, jobs(arguments)?, tensors).run()?;
    let place = if link.is_some() { "shaped links" } else { "loopback" };
    let axes = Axes::time_over_size(format!("All-reduce, {} ranks, {place}", arguments.ranks));
    let asked =
        json!({ "ranks": arguments.ranks, "link_rate_bps": arguments.link.net, "rounds": arguments.run.rounds });
    let figure = axes.figure(&cases);
    Ok(findings(asked, cases, baselines, figure))
}

fn jobs(arguments: &Arguments) -> anyhow::Result<Vec<(String, Job)>> {
    let mut jobs = Vec::new();
    for &format in &arguments.element_format {
        for &loss in &arguments.loss {
            let format_name = (arguments.element_format.len() > 1).then(|| format.name().to_owned());
            let loss_name = (arguments.loss.len() > 1).then(|| format!("loss {loss}"));
            for (algorithm_name, job) in arguments.job.by_algorithm(&arguments.job.job(format, loss)) {
                let parts = [algorithm_name, format_name.clone(), loss_name.clone()];
                jobs.push((parts.into_iter().flatten().collect(), job));
            }
        }
    }
    arguments.transport.each(&jobs)
}
