//! `fanin bench ddp`: training steps, and how much of the communication they
//! hide.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::collective::flags::{LinkArguments, RunArguments};
use super::fleet::{Setting, Stage, TorchRanks};
use super::output::{BaselineUse, Findings, OutputArguments, percent, table};
use super::plot::{self, Figure, Shape};
use super::process::ask_all;
use super::statistics::{Times, last_in_to_last_out, median, median_ratio};
use super::units::{parse_bytes, show_bytes, show_time};

const SCRIPT: &str = include_str!("../../../../python/fanin/bench_ddp.py");
/// A transformer's step, a hundred times over what it takes on a slow link.
const STEP_LIMIT: Duration = Duration::from_secs(120);

const ABOUT: &str = "Trains a small transformer with PyTorch's DistributedDataParallel, in three copies that take turns: over fanin, over \
gloo, and without any communication. Its gradients are also all-reduced alone, in DDP's buckets. Needs an interpreter with \
PyTorch and the fanin package (FANIN_PYTHON).

\"step\": forward, backward and update, from the last rank's entering it to the last rank's leaving it. \"alone\": the \
gradients' all-reduce without a model. \"hidden\": 1 - (step - step without communication) / alone: the share of the \
communication that the backward pass hid, the median over the rounds; where all ranks share one host's cores, communication \
takes its processor time from the backward pass and little can be hidden. \"gain\": gloo's step over fanin's in the same round. \
wrong: gradient elements on which fanin and gloo differ by more than rounding.";

/// Flags of `fanin bench ddp`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    /// Numbers of worker processes.
    #[arg(
        long,
        default_value = "2,4",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    ranks: Vec<u16>,
    /// Steps in one turn.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    steps: u32,
    /// Size of DDP's buckets (bucket_cap_mb): a bucket's all-reduce begins when the backward pass has its last gradient.
    #[arg(long, default_value = "25MiB", value_name = "SIZE", value_parser = parse_bucket)]
    bucket: u64,
    #[command(flatten)]
    link: LinkArguments,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    pub output: OutputArguments,
}

fn parse_bucket(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0..4096 => Err(format!("{text:?}: a bucket has at least 4KiB")),
        bytes => Ok(bytes),
    }
}

/// One number of ranks.
#[derive(Debug, Serialize)]
struct Case {
    ranks: u16,
    gradient_bytes: u64,
    /// Steps without communication.
    local: Times,
    series: Vec<Series>,
    wrong_elements: u64,
}

/// One backend.
#[derive(Debug, Serialize)]
struct Series {
    name: &'static str,
    step: Times,
    /// The gradients' all-reduce without a model.
    alone: Times,
    hidden_share: f64,
    /// gloo's step over this one's, in the same round.
    gain_over_gloo: f64,
}

/// What is measured in each round; true: the all-reduce alone.
const TURNS: [(&str, bool); 5] = [("local", false), ("fanin", false), ("gloo", false), ("fanin", true), ("gloo", true)];

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let (mut cases, mut baselines) = (Vec::new(), Vec::new());
    for &ranks in &arguments.ranks {
        let setting = arguments.run.setting(ranks, arguments.link.link(), None);
        let (case, version) = measure_ranks(arguments, &setting)?;
        baselines = vec![BaselineUse { name: "gloo".into(), used: true, version: Some(version), reason: None }];
        cases.push(case);
    }
    let header =
        ["ranks", "gradients", "who", "step min", "p50", "max", "alone p50", "without", "hidden", "gain", "wrong"];
    let mut table = table(&header, 3);
    cases.iter().for_each(|case| case.add_to(&mut table));
    let place = arguments.link.net.map_or("loopback".into(), |rate| format!("links of {} Mbit/s", rate as f64 / 1e6));
    let line = |index: usize| plot::Series {
        name: cases[0].series[index].name.into(),
        points: cases.iter().enumerate().map(|(x, case)| (x as f64, 100.0 * case.series[index].hidden_share)).collect(),
    };
    Ok(Findings {
        setting: json!({
            "ranks": arguments.ranks, "link_rate_bps": arguments.link.net, "steps": arguments.steps,
            "bucket_bytes": arguments.bucket, "rounds": arguments.run.rounds,
        }),
        baselines,
        table,
        caption: vec![format!(
            "{place}, {} rounds of {} steps each, buckets of {}",
            arguments.run.rounds,
            arguments.steps,
            show_bytes(arguments.bucket)
        )],
        figure: Figure {
            title: format!("DDP: communication hidden behind backward, {place}"),
            x_label: "ranks".into(),
            y_label: "percent".into(),
            shape: Shape::Bars { groups: cases.iter().map(|case| case.ranks.to_string()).collect() },
            series: (0..2).map(line).collect(),
        },
        wrong_elements: cases.iter().map(|case| case.wrong_elements).sum(),
        cases: json!(cases),
    })
}

fn measure_ranks(arguments: &Arguments, setting: &Setting) -> anyhow::Result<(Case, String)> {
    let stage = Stage::build(setting)?;
    let environment = [("FANIN_SWITCH", stage.controller.as_str())];
    let TorchRanks { mut ranks, version } =
        TorchRanks::start("training rank", SCRIPT, &stage.places, setting, &environment)?;
    let build = json!({ "op": "build", "bucket_bytes": arguments.bucket }).to_string();
    let built = ask_all(&mut ranks, &vec![build; usize::from(setting.ranks)], STEP_LIMIT)?;
    let number = |reply: &Value, key: &str| {
        reply.get(key).and_then(Value::as_u64).with_context(|| format!("a rank's reply has no number {key:?}"))
    };
    let mut rounds: [Vec<Vec<u64>>; 5] = Default::default();
    for round in 0..arguments.run.warmup + arguments.run.rounds {
        for turn in (0..TURNS.len()).map(|place| (place + round as usize) % TURNS.len()) {
            let (contender, alone) = TURNS[turn];
            let request = json!({ "op": "round", "contender": contender, "alone": alone, "repeat": arguments.steps });
            let requests = vec![request.to_string(); ranks.len()];
            let replies = ask_all(&mut ranks, &requests, STEP_LIMIT * arguments.steps)?;
            if round >= arguments.run.warmup {
                rounds[turn].push(last_in_to_last_out(&replies)?);
            }
        }
    }
    let wrong: anyhow::Result<u64> = built.iter().map(|reply| number(reply, "wrong_elements")).sum();
    let case = Case::new(setting.ranks, number(&built[0], "gradient_bytes")?, wrong?, &rounds);
    eprintln!(
        "{} ranks: hidden {}",
        case.ranks,
        case.series.iter().map(Series::progress).collect::<Vec<_>>().join(", ")
    );
    Ok((case, version))
}

impl Case {
    fn new(ranks: u16, gradient_bytes: u64, wrong_elements: u64, rounds: &[Vec<Vec<u64>>; 5]) -> Case {
        let [local, fanin, gloo, fanin_alone, gloo_alone] = rounds.each_ref().map(|rounds| Times::of_rounds(rounds));
        let series = |name, step: &Times, alone: Times| Series {
            name,
            hidden_share: hidden_share(&step.rounds_ns, &local.rounds_ns, &alone.rounds_ns),
            gain_over_gloo: median_ratio(&gloo.rounds_ns, &step.rounds_ns),
            step: step.clone(),
            alone,
        };
        let series = vec![series("fanin", &fanin, fanin_alone), series("gloo", &gloo, gloo_alone)];
        Case { ranks, gradient_bytes, local, series, wrong_elements }
    }

    fn add_to(&self, table: &mut comfy_table::Table) {
        let time = |ns: u64| show_time(Duration::from_nanos(ns));
        for series in &self.series {
            let step = &series.step;
            let mut cells = vec![self.ranks.to_string(), show_bytes(self.gradient_bytes), series.name.into()];
            cells.extend([step.min_ns, step.p50_ns, step.max_ns, series.alone.p50_ns, self.local.p50_ns].map(time));
            cells.extend([percent(series.hidden_share), format!("{:.2}", series.gain_over_gloo)]);
            cells.push(self.wrong_elements.to_string());
            table.add_row(cells);
        }
    }
}

impl Series {
    fn progress(&self) -> String {
        format!("{} {}", self.name, percent(self.hidden_share))
    }
}

/// 1 - (step - local) / alone, the median over the rounds. Not cut to 0 and 1:
/// below 0, training made the communication slower than it is alone.
fn hidden_share(step: &[u64], local: &[u64], alone: &[u64]) -> f64 {
    let share =
        |((step, local), alone): ((&u64, &u64), &u64)| 1.0 - (*step as f64 - *local as f64) / (*alone).max(1) as f64;
    median(&step.iter().zip(local).zip(alone).map(share).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_does_not_pay_for_was_hidden() {
        assert_eq!(hidden_share(&[130], &[100], &[40]), 0.25);
        assert_eq!(hidden_share(&[100], &[100], &[40]), 1.0);
        assert_eq!(hidden_share(&[180], &[100], &[40]), -1.0);
    }
}
