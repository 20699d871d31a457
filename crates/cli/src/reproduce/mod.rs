//! `fanin reproduce`: experiments of the papers that fanin implements, the paper's number beside ours.

mod atp;
mod conversion;
mod fig12;
mod fig16;
mod fpisa;
mod libra;
pub mod output;
mod page;
mod panama;
mod switchml;
mod training;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use fanin_lab::atp::Options;
use fanin_lab::findings::Findings;
use fanin_lab::numerics::Experiment;

use output::Run;

/// Papers.
#[derive(Subcommand, Debug)]
pub enum Reproduce {
    /// ATP (Lao et al., NSDI 2021): dynamic slots, in simulated time on rated links.
    Atp(PaperArguments<atp::Name>),
    /// FPISA (Yuan et al., NSDI 2022): floats in integer registers; gradients, errors, accuracy, costs.
    Fpisa(PaperArguments<fpisa::Name>),
    /// SwitchML (Sapio et al., NSDI 2021): its quantisation.
    Switchml(PaperArguments<switchml::Name>),
    /// Libra (Ding et al., 2022): float addition by tables.
    Libra(PaperArguments<libra::Name>),
    /// PANAMA (Gebara et al., MLSys 2021): jobs and other traffic in one network, packet by packet.
    Panama(PaperArguments<panama::Name>),
}

/// Flags of every paper.
#[derive(Args, Debug)]
pub struct PaperArguments<N: Paper> {
    /// One experiment; without, all of them.
    experiment: Option<N>,
    /// Seed in place of the parameters' own: of losses, jitter, starts, data and models.
    #[arg(long)]
    seed: Option<u64>,
    /// Parameters in place of the built-in ones, which are in experiments/PAPER. Needs the experiment's name.
    #[arg(long, value_name = "FILE.toml", requires = "experiment")]
    config: Option<PathBuf>,
    /// Write results as JSON and CSV, and drawings as SVG, into this folder. What simulates packet by packet also keeps each run there, in DIR/runs, and goes
    /// on where it was stopped; another build, or other parameters of a run, make it again.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seconds in place of minutes: shows that everything works; its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// The paper's size where the built-in parameters are smaller: PANAMA's Fig. 8, with 1,024 servers. It takes an hour or two of processor time.
    #[arg(long, conflicts_with_all = ["quick", "config"])]
    full: bool,
    /// Recorded gradients (`fanin.record`): a folder, or a file. Experiments on gradients run on them as well. May be given
    /// several times.
    #[arg(long, value_name = "FOLDER")]
    gradients: Vec<PathBuf>,
    /// Print the paper's page of docs/reference in place of tables, or one experiment's section of it.
    #[arg(long, conflicts_with = "quick")]
    markdown: bool,
}

/// A paper's experiments.
pub trait Paper: ValueEnum + PartialEq + Send + Sync + 'static {
    /// How its page begins.
    const HEAD: &'static str;

    /// Runs one.
    ///
    /// # Errors
    /// Parameters that make no sense, a sum that was wrong, or what a process complained about.
    fn run(self, options: &Options) -> anyhow::Result<Findings>;

    /// Whether it has a use for recorded gradients.
    fn reads_gradients(self) -> bool;

    /// Whether it has parameters of the paper's size beside smaller ones.
    fn has_full(self) -> bool {
        false
    }

    /// Why it is left out unless it is named.
    fn left_out(self, _is_quick: bool) -> Option<&'static str> {
        None
    }
}

/// Runs experiments; 0 whether or not the paper's claims hold, which the tables say.
///
/// # Errors
/// Parameters that make no sense, a sum that was wrong, or a file that cannot be written.
pub fn run(command: Reproduce) -> anyhow::Result<i32> {
    match command {
        Reproduce::Atp(arguments) => conduct(arguments),
        Reproduce::Fpisa(arguments) => conduct(arguments),
        Reproduce::Switchml(arguments) => conduct(arguments),
        Reproduce::Libra(arguments) => conduct(arguments),
        Reproduce::Panama(arguments) => conduct(arguments),
    }
}

fn conduct<N: Paper>(arguments: PaperArguments<N>) -> anyhow::Result<i32> {
    let chosen = choose(&arguments);
    if !arguments.gradients.is_empty() && !chosen.iter().any(|name| name.clone().reads_gradients()) {
        let readers = N::value_variants().iter().filter(|name| (*name).clone().reads_gradients());
        bail!("only these experiments read --gradients: {}", readers.map(name_of).collect::<Vec<_>>().join(", "));
    }
    if arguments.full && !chosen.iter().any(|name| name.clone().has_full()) {
        bail!("--full: what there is has the paper's size already, or has no larger one");
    }
    let parameters = arguments.config.as_deref().map(read).transpose()?;
    let options = Options {
        parameters,
        seed: arguments.seed,
        is_quick: arguments.quick,
        is_full: arguments.full,
        kept: arguments.out.as_ref().map(|folder| folder.join("runs")),
        gradients: arguments.gradients,
    };
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let mut runs = Vec::new();
    for name in chosen {
        let started = Instant::now();
        let findings = name.run(&options)?;
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
        let head = if arguments.experiment.is_none() { N::HEAD } else { "" };
        print!("{}", page::page(head, &runs));
    }
    Ok(0)
}

/// The one that is named, or all that can run; says what cannot.
fn choose<N: Paper>(arguments: &PaperArguments<N>) -> Vec<N> {
    if let Some(name) = &arguments.experiment {
        return vec![name.clone()];
    }
    let runs = |name: &&N| match (*name).clone().left_out(arguments.quick) {
        None => true,
        Some(reason) => {
            eprintln!("{} is LEFT OUT: {reason}", name_of(*name));
            false
        }
    };
    N::value_variants().iter().filter(runs).cloned().collect()
}

/// Runs an experiment on the recordings that are named, or else on ones that are made for it.
fn recorded(experiment: Experiment, options: &Options) -> anyhow::Result<Findings> {
    const MADE: &str = include_str!("../../../../experiments/fpisa/recordings.toml");
    if !options.gradients.is_empty() {
        return experiment.run(options);
    }
    let folder = TemporaryFolder::new()?;
    let gradients = training::record(MADE, &folder.0, options.seed, options.is_quick)?;
    let mut findings = experiment.run(&Options { gradients, ..options.clone() })?;
    findings.notes.push("Recorded as experiments/fpisa/recordings.toml says.".into());
    Ok(findings)
}

/// A folder that goes with the value.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> anyhow::Result<TemporaryFolder> {
        let folder = std::env::temp_dir().join(format!("fanin-recordings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(TemporaryFolder(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What is left of it is in the system's folder for that.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn name_of<N: ValueEnum>(name: &N) -> String {
    name.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
