//! `fanin advise`: whether in-network aggregation would help, before anything is installed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use fanin_lab::advise::{Bound, Prediction, Profile, Question, Scheme, profile_of, rate_worth_it};
use fanin_sim::job::table1::{RATES_BPS, ROWS, Row};
use serde::Serialize;

use crate::bench::output::table;
use crate::bench::units::{parse_rate, show_bytes, show_time};

const ABOUT: &str = "Buckets of gradients are sent one after the other as they are ready, over a link that does nothing else, \
and never wait for a slow server. ring: all-reduce by a ring at its theoretical best, in TCP; real ones take longer. switch: fanin, \
32-bit elements. speed-up: ring / switch. 16-bit: the same with 16-bit elements in both (DDP's compression hooks; \
FANIN_ELEMENT_FORMAT). 8-bit: the switch with 8-bit elements against the ring with 16-bit ones. top 1 %: the largest elements only, without what \
choosing them costs, so at best. waiting: what the network adds to a step, with the ring and with the switch. bound: what the step with \
the switch still waits for: computing, the link, or the buckets that are ready last. How the numbers come about: \
docs/guides/will-it-help.md.";

const CAVEAT: &str = "This is what links and gradients allow. What a switch of yours can sum is its own limit: `fanin bench \
switch` measures it for the software switch on its machine.";
/// A step is worth a switch if it becomes so many times as fast.
const WORTH_IT: f64 = 1.05;
const WIDE: Scheme = Scheme::Switch { element_bytes: 4 };
const HALF: Scheme = Scheme::Switch { element_bytes: 2 };
const BYTE: Scheme = Scheme::Switch { element_bytes: 1 };
const TOP: Scheme = Scheme::TopK { share: 0.01 };

/// Flags of `fanin advise`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    /// A training step recorded with `fanin.record_step`.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    step: Option<PathBuf>,
    /// In place of a recorded step, models of SwitchML's Table 1, by name, or `all`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    model: Vec<String>,
    /// Link rates of the servers.
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = parse_rate, default_value = "10gbit,25gbit,100gbit")]
    rate: Vec<u64>,
    /// Servers that sum; without, as many as in the profile, if these are two at least.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
    workers: Option<u32>,
    /// How many times as fast the machines compute as those of the profile.
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', value_parser = parse_factor, default_value = "1")]
    compute_speedup: Vec<f64>,
    /// From server to server, one way, microseconds; each bucket of a recorded step pays it.
    #[arg(long, value_name = "US", default_value_t = 10.0, value_parser = parse_latency)]
    latency_us: f64,
    /// Print everything as JSON in place of tables.
    #[arg(long)]
    json: bool,
}

/// What is said about a profile.
#[derive(Serialize)]
struct Advice {
    model: String,
    /// Steps that were recorded; 0 for the paper's models.
    recorded_steps: u64,
    buckets: usize,
    bytes: u64,
    compute_seconds: f64,
    workers: u32,
    cases: Vec<Case>,
    limits: Vec<Limit>,
}

/// A link rate and a speed of computing.
#[derive(Serialize)]
struct Case {
    rate_bps: u64,
    compute_speedup: f64,
    ring: Prediction,
    switch: Prediction,
    speedup: f64,
    speedup_16_bit: f64,
    speedup_8_bit: f64,
    speedup_top_1_percent_at_best: f64,
}

/// Up to which link rate the switch pays.
#[derive(Serialize)]
struct Limit {
    compute_speedup: f64,
    rate_bps: Option<f64>,
    rate_16_bit_bps: Option<f64>,
}

/// Answers.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let advice = profiles(arguments)?.into_iter().map(|profile| advise(arguments, &profile));
    let advice = advice.collect::<anyhow::Result<Vec<_>>>()?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&advice)?);
    } else {
        for advice in &advice {
            print(advice);
        }
        println!("{CAVEAT}");
    }
    Ok(0)
}

fn profiles(arguments: &Arguments) -> anyhow::Result<Vec<Profile>> {
    if let Some(file) = &arguments.step {
        return Ok(vec![Profile::read(file)?]);
    }
    let names = || ROWS.map(|row| row.name).join(", ");
    if arguments.model.is_empty() {
        bail!(
            "nothing to look at: give --step FILE, recorded with fanin.record_step in your training script, or --model \
             with one or more of {}, or all",
            names()
        );
    }
    if arguments.model.iter().any(|name| name == "all") {
        return Ok(ROWS.iter().map(profile_of).collect());
    }
    let known = |name: &String| match Row::named(name) {
        Some(row) => Ok(profile_of(row)),
        None => bail!("--model {name}: known are {}; record a step of any other with fanin.record_step", names()),
    };
    arguments.model.iter().map(known).collect()
}

/// Servers that sum.
fn workers(arguments: &Arguments, profile: &Profile) -> anyhow::Result<u32> {
    match (arguments.workers, profile.world_size) {
        (Some(workers), _) => Ok(workers),
        (None, 0 | 1) => bail!(
            "the step of {} was recorded with {} ranks, which sum nothing over a network: say with --workers N how many servers \
             are to sum",
            profile.model,
            profile.world_size
        ),
        (None, recorded) => Ok(u32::try_from(recorded).unwrap_or(u32::MAX)),
    }
}

fn advise(arguments: &Arguments, profile: &Profile) -> anyhow::Result<Advice> {
    let workers = workers(arguments, profile)?;
    // A model of the table has evenly cut gradients in place of buckets, which would pay latencies that no run has.
    let latency_seconds = if is_of_table(profile) { 0.0 } else { arguments.latency_us / 1e6 };
    let question =
        |rate_bps: f64, compute_speedup: f64| Question { rate_bps, workers, latency_seconds, compute_speedup };
    let mut cases = Vec::new();
    for compute_speedup in &arguments.compute_speedup {
        for rate_bps in &arguments.rate {
            cases.push(case(&question(*rate_bps as f64, *compute_speedup), *rate_bps, profile));
        }
    }
    let limit = |compute_speedup: &f64| {
        let question = question(RATES_BPS[0], *compute_speedup);
        let up_to = |scheme, ring| rate_worth_it(&question, profile, scheme, ring, WORTH_IT);
        let (rate_bps, rate_16_bit_bps) = (up_to(WIDE, profile.element_bytes), up_to(HALF, 2));
        Limit { compute_speedup: *compute_speedup, rate_bps, rate_16_bit_bps }
    };
    Ok(Advice {
        model: profile.model.clone(),
        recorded_steps: profile.steps,
        buckets: profile.buckets.len(),
        bytes: profile.bytes(),
        compute_seconds: profile.compute_seconds(),
        workers,
        cases,
        limits: arguments.compute_speedup.iter().map(limit).collect(),
    })
}

/// Nothing was recorded.
fn is_of_table(profile: &Profile) -> bool {
    profile.steps == 0
}

fn case(question: &Question, rate_bps: u64, profile: &Profile) -> Case {
    Case {
        rate_bps,
        compute_speedup: question.compute_speedup,
        ring: question.predict(profile, Scheme::Ring { element_bytes: profile.element_bytes }),
        switch: question.predict(profile, WIDE),
        speedup: question.speedup(profile, WIDE, profile.element_bytes),
        speedup_16_bit: question.speedup(profile, HALF, 2),
        speedup_8_bit: question.speedup(profile, BYTE, 2),
        speedup_top_1_percent_at_best: question.speedup(profile, TOP, profile.element_bytes),
    }
}

fn print(advice: &Advice) {
    let Advice { model, buckets, bytes, compute_seconds, workers, .. } = advice;
    let source = match advice.recorded_steps {
        0 => "SwitchML's Table 1".to_owned(),
        steps => format!("{buckets} buckets, medians of {steps} steps"),
    };
    let (bytes, computing) = (show_bytes(*bytes), seconds(*compute_seconds));
    println!("{model} ({source}): {bytes} of gradients, {computing} of computing a step; {workers} servers");
    let mut rows = table(
        &["link", "computing", "ring", "switch", "speed-up", "16-bit", "8-bit", "top 1 %", "waiting", "bound"],
        2,
    );
    for case in &advice.cases {
        rows.add_row([
            rate(case.rate_bps as f64),
            format!("{}x", case.compute_speedup),
            seconds(case.ring.step_seconds),
            seconds(case.switch.step_seconds),
            times(case.speedup),
            times(case.speedup_16_bit),
            times(case.speedup_8_bit),
            times(case.speedup_top_1_percent_at_best),
            format!("{} > {}", percent(&case.ring), percent(&case.switch)),
            bound(case.switch.bound).to_owned(),
        ]);
    }
    println!("{rows}");
    for limit in &advice.limits {
        println!("{}", verdict(limit));
    }
    println!();
}

/// Whether it helps, in a sentence.
fn verdict(limit: &Limit) -> String {
    let computing = match limit.compute_speedup {
        1.0 => "Computing as fast as in the profile".to_owned(),
        factor => format!("Computing {factor} times as fast"),
    };
    let worth = |rate_bps: Option<f64>| match rate_bps {
        Some(rate_bps) if rate_bps >= 9.9e12 => {
            "makes a step at least 5 % faster than a ring on links of any rate".into()
        }
        Some(rate_bps) => format!("makes a step at least 5 % faster than a ring on links of up to {}", rate(rate_bps)),
        None => "makes no step 5 % faster than a ring, on links of any rate: do without it".into(),
    };
    let half = match (limit.rate_bps, limit.rate_16_bit_bps) {
        (Some(wide), Some(half)) if half < 0.99 * wide => {
            format!("; with 16-bit elements in both, up to {}", rate(half))
        }
        (Some(_), None) => "; with 16-bit elements in both, on none".into(),
        (None, Some(half)) => format!("; with 16-bit elements in both it pays up to {}", rate(half)),
        _ => String::new(),
    };
    format!("{computing}, the switch {}{half}.", worth(limit.rate_bps))
}

fn bound(bound: Bound) -> &'static str {
    match bound {
        Bound::Compute => "computing",
        Bound::Link => "the link",
        Bound::LastBuckets => "last buckets",
    }
}

fn percent(prediction: &Prediction) -> String {
    format!("{:.0} %", 100.0 * prediction.waiting_seconds / prediction.step_seconds)
}

fn times(speedup: f64) -> String {
    format!("{speedup:.2}x")
}

fn seconds(seconds: f64) -> String {
    show_time(Duration::from_secs_f64(seconds))
}

/// "10 Gbit/s", with two significant digits.
fn rate(bps: f64) -> String {
    let (value, unit) = if bps < 1e9 { (bps / 1e6, "Mbit/s") } else { (bps / 1e9, "Gbit/s") };
    if value < 10.0 { format!("{value:.1} {unit}").replace(".0 ", " ") } else { format!("{value:.0} {unit}") }
}

fn parse_factor(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(factor) if (0.01..=1000.0).contains(&factor) => Ok(factor),
        _ => Err(format!("{text:?}: use a factor from 0.01 to 1000")),
    }
}

fn parse_latency(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(latency_us) if (0.0..=1e6).contains(&latency_us) => Ok(latency_us),
        _ => Err(format!("{text:?}: use microseconds from 0 to a million")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_say_up_to_which_rate_it_pays_or_that_it_does_not() {
        let limit = |rate_bps, rate_16_bit_bps| verdict(&Limit { compute_speedup: 1.0, rate_bps, rate_16_bit_bps });
        assert!(
            limit(Some(2.5e10), Some(1e10)).contains("up to 25 Gbit/s; with 16-bit elements in both, up to 10 Gbit/s")
        );
        assert!(limit(Some(2.5e10), None).ends_with("in both, on none."));
        assert!(
            limit(None, Some(5e8)).contains("do without it; with 16-bit elements in both it pays up to 500 Mbit/s")
        );
        assert!(limit(None, None).ends_with("do without it."));
        assert!(limit(Some(1e13), Some(1e13)).ends_with("of any rate."));
    }

    #[test]
    fn a_step_of_one_rank_does_not_say_how_many_servers_sum() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let arguments = |more: &[&str]| <Line as clap::Parser>::parse_from([&["fanin"], more].concat()).arguments;
        let profile = |ranks| Profile::new("mine", ranks, Vec::new(), 0.1);
        for ranks in [0, 1] {
            let error = workers(&arguments(&[]), &profile(ranks)).unwrap_err().to_string();
            assert!(error.contains("--workers N") && error.contains(&format!("{ranks} ranks")), "{error}");
            assert_eq!(workers(&arguments(&["--workers", "8"]), &profile(ranks)).unwrap(), 8);
        }
        assert_eq!(workers(&arguments(&[]), &profile(3)).unwrap(), 3);
    }

    #[test]
    fn rates_are_shown_in_their_unit() {
        assert_eq!([1e8, 2.5e9, 1e9, 1e11].map(rate), ["100 Mbit/s", "2.5 Gbit/s", "1 Gbit/s", "100 Gbit/s"]);
    }
}
