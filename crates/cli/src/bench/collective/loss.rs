//! `fanin bench loss`: what lost datagrams cost.

use clap::Args;
use serde_json::json;

use super::allreduce::COLUMNS;
use super::case::Case;
use super::flags::{JobArguments, LinkArguments, RunArguments, tensors};
use super::report::{Axes, findings};
use crate::bench::fleet::Format;
use crate::bench::output::{Findings, OutputArguments};
use crate::bench::plot::Shape;
use crate::bench::units::{parse_bytes, parse_loss};

const ABOUT: &str = "One job per loss rate; in each round every job has a turn, so \"x first\" is the time against no loss. Datagrams \
are lost at every rank, each way, one by one, by a seeded generator, so that a super-packet is not lost as a whole. Every \
element of every result is compared with the exact sum. \"resends/lost\": contributions that were sent again for every datagram \
lost.";

/// Flags of `fanin bench loss`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{ABOUT}\n\n{COLUMNS}"))]
pub struct Arguments {
    /// Worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    ranks: u16,
    /// Tensor size.
    #[arg(long, default_value = "64MiB", value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    /// Shares of datagrams to lose. 0, which the others are compared with, is always among them.
    #[arg(long, default_value = "0,0.001,0.01", value_name = "LIST", value_delimiter = ',', value_parser = parse_loss)]
    loss: Vec<f64>,
    #[command(flatten)]
    link: LinkArguments,
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let tensors = tensors(&[arguments.size], &["float32".to_owned()])?;
    let mut losses = arguments.loss.clone();
    losses.retain(|loss| *loss > 0.0);
    losses.insert(0, 0.0);
    let jobs = losses.iter().map(|&loss| (format!("fanin loss {loss}"), arguments.job.job(Format::Int32, loss)));
    let setting = arguments.run.setting(arguments.ranks, arguments.link.link(), None);
    let (mut cases, baselines) = arguments.run.experiment(setting, jobs.collect(), tensors).run()?;
    cases.iter_mut().for_each(count_resends);
    let axes = Axes {
        title: format!("All-reduce with losses, {} ranks", arguments.ranks),
        x_label: "",
        x: |_, _| 0.0,
        y_label: "time against no loss",
        y: |_, series| series.ratio_to_first,
        shape: Shape::Bars { groups: vec![String::new()] },
    };
    let asked = json!({
        "ranks": arguments.ranks, "link_rate_bps": arguments.link.net, "losses": losses, "rounds": arguments.run.rounds,
    });
    let figure = axes.figure(&cases);
    Ok(findings(asked, cases, baselines, figure))
}

fn count_resends(case: &mut Case) {
    for series in &mut case.series {
        let Some(counters) = series.counters.filter(|counters| counters.losses_injected > 0) else { continue };
        series.derived.insert("resends_per_loss", counters.resends as f64 / counters.losses_injected as f64);
    }
}
