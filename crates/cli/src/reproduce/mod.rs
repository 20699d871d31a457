//! `fanin reproduce`: experiments of the papers that fanin implements, the paper's number beside ours.

mod fig16;
mod output;
mod page;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use fanin_lab::atp::{Experiment, Options};

use output::Run;

/// Papers.
#[derive(Subcommand, Debug)]
pub enum Reproduce {
    /// ATP (Lao et al., NSDI 2021): dynamic slots, in simulated time on rated links.
    Atp(AtpArguments),
}

/// One of the ATP paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Traffic to the server, two levels against racks alone (§5.2.2).
    Traffic,
    /// Loss at one worker, against SwitchML.
    Fig10,
    /// Dynamic against static slots.
    Fig13,
    /// Hashed, linear and static slots.
    Fig14,
    /// Congestion control on and off.
    Fig15,
    /// A job beside a TCP flow, on real sockets in network namespaces (root).
    Fig16,
    /// Two jobs beside each other (App. D.2).
    Fairness,
    /// Sums that leave 32 bits (§5.3, Table 1).
    Overflow,
}

/// Flags of `fanin reproduce atp`.
#[derive(Args, Debug)]
pub struct AtpArguments {
    /// One experiment; without, all of them.
    experiment: Option<Name>,
    /// Seed of losses, jitter and starts, in place of the parameters' own.
    #[arg(long)]
    seed: Option<u64>,
    /// Parameters in place of the built-in ones, which are in experiments/atp. Needs the experiment's name.
    #[arg(long, value_name = "FILE.toml", requires = "experiment")]
    config: Option<PathBuf>,
    /// Write results as JSON and CSV, and drawings as SVG, into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seconds in place of minutes: shows that everything works; its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// Recorded gradients (`fanin.record`): a folder, or a file. The experiment `overflow` runs on them as well. May be given
    /// several times.
    #[arg(long, value_name = "FOLDER")]
    gradients: Vec<PathBuf>,
    /// Print the page docs/reference/atp-evaluation.md in place of tables, or one experiment's section of it.
    #[arg(long, conflicts_with = "quick")]
    markdown: bool,
}

impl Name {
    /// In simulated time; `None` for what runs on real sockets.
    fn simulated(self) -> Option<Experiment> {
        Some(match self {
            Name::Traffic => Experiment::Traffic,
            Name::Fig10 => Experiment::Fig10,
            Name::Fig13 => Experiment::Fig13,
            Name::Fig14 => Experiment::Fig14,
            Name::Fig15 => Experiment::Fig15,
            Name::Fairness => Experiment::Fairness,
            Name::Overflow => Experiment::Overflow,
            Name::Fig16 => return None,
        })
    }
}

/// Runs experiments; 0 whether or not the paper's claims hold, which the tables say.
///
/// # Errors
/// Parameters that make no sense, a sum that was wrong, or a file that cannot be written.
pub fn run(command: Reproduce) -> anyhow::Result<i32> {
    let Reproduce::Atp(arguments) = command;
    let chosen = match arguments.experiment {
        Some(name) => vec![name],
        // Real sockets need root, and a quick look must not.
        None if arguments.quick || !is_root() => {
            eprintln!("fig16 is LEFT OUT: it runs in network namespaces, as root and by name or without --quick");
            Name::value_variants().iter().copied().filter(|name| name.simulated().is_some()).collect()
        }
        None => Name::value_variants().to_vec(),
    };
    if !arguments.gradients.is_empty() && !chosen.contains(&Name::Overflow) {
        bail!("only the experiment overflow reads --gradients: fanin reproduce atp overflow --gradients FOLDER");
    }
    let parameters = arguments.config.as_deref().map(read).transpose()?;
    let options =
        Options { parameters, seed: arguments.seed, is_quick: arguments.quick, gradients: arguments.gradients };
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let mut runs = Vec::new();
    for name in chosen {
        let started = Instant::now();
        let findings = match name.simulated() {
            Some(experiment) => experiment.run(&options)?,
            None => fig16::run(options.parameters.as_deref(), options.is_quick)?,
        };
        let run = Run { findings, seconds: started.elapsed().as_secs_f64() };
        if let Some(folder) = &arguments.out {
            run.write(folder)?;
        }
        if !arguments.markdown {
            run.print();
        }
        runs.push(run);
    }
    if arguments.markdown {
        let head = if arguments.experiment.is_none() { page::HEAD } else { "" };
        print!("{}", page::page(head, &runs));
    }
    Ok(0)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
