//! Runs simulated clusters from seeds: one of them with every step shown, or
//! a range of them on all processors.

use std::process::ExitCode;

use clap::Parser;
use fanin_harness::{atp, panama, swarm};

/// Simulated clusters from seeds.
#[derive(Parser)]
struct Arguments {
    /// ATP's clusters in place of SwitchML's.
    #[arg(long)]
    atp: bool,
    /// PANAMA's clusters in place of SwitchML's.
    #[arg(long, conflicts_with = "atp")]
    panama: bool,
    /// Replay this seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Show every step of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run all seeds of A..B, without B.
    #[arg(long, value_parser = parse_range, default_value = "0..2000")]
    seeds: (u64, u64),
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (first, end) = text.split_once("..").ok_or("write a range as A..B")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is not a number"));
    Ok((number(first)?, number(end)?))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.atp {
        return run_atp(&arguments);
    }
    if arguments.panama {
        return run_panama(&arguments);
    }
    if let Some(seed) = arguments.seed {
        println!("{:#?}", fanin_harness::Scenario::from_seed(seed));
        return report(fanin_harness::run_seed(seed, arguments.trace).map(|summary| format!("{summary:?}")));
    }
    let (first, end) = arguments.seeds;
    report(swarm::run(first..end).map(|total| total.to_string()))
}

fn run_atp(arguments: &Arguments) -> ExitCode {
    if let Some(seed) = arguments.seed {
        println!("{:#?}", atp::Scenario::from_seed(seed));
        return report(atp::run_seed(seed, arguments.trace).map(|summary| format!("{summary:?}")));
    }
    let (first, end) = arguments.seeds;
    report(atp::run(first..end).map(|total| format!("{} seeds: {total:?}", end - first)))
}

fn run_panama(arguments: &Arguments) -> ExitCode {
    if let Some(seed) = arguments.seed {
        println!("{:#?}", panama::Scenario::from_seed(seed));
        return report(panama::run_seed(seed, arguments.trace).map(|summary| format!("{summary:?}")));
    }
    let (first, end) = arguments.seeds;
    report(panama::run(first..end).map(|total| format!("{} seeds: {total:?}", end - first)))
}

fn report(outcome: Result<String, impl std::fmt::Display>) -> ExitCode {
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("{violation}");
            ExitCode::FAILURE
        }
    }
}
