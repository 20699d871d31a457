//! The evaluation of the ATP paper (Lao et al., NSDI 2021, §5 and App. B, D).
//!
//! An experiment's parameters are a file of `experiments/atp`, which is part of the program; another file can take its place.

mod cluster;
mod congestion;
mod fairness;
mod gradients;
mod hashing;
mod loss;
mod overflow;
mod recorded;
mod scaling;
mod sharing;
mod traffic;

use std::path::PathBuf;

use anyhow::Context;
use serde::de::DeserializeOwned;

use crate::findings::Findings;
use crate::recording::Recording;

/// Where the experiments run.
const SIMULATED: &str = "simulated time: fanin's Worker, Switch and Server values on rated links";

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// §5.2.2.
    Traffic,
    /// Fig. 10.
    Fig10,
    /// Fig. 13.
    Fig13,
    /// Fig. 14.
    Fig14,
    /// Fig. 15.
    Fig15,
    /// App. D.2.
    Fairness,
    /// §5.3, Table 1.
    Overflow,
    /// App. B.3.
    Scaling,
}

/// How to run it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Parameters in place of the built-in ones.
    pub parameters: Option<String>,
    /// A seed in place of the parameters' own.
    pub seed: Option<u64>,
    /// Smaller, for tests: its numbers mean little.
    pub is_quick: bool,
    /// The paper's size, where the built-in parameters are smaller; it may take hours.
    pub is_full: bool,
    /// Where the simulator's runs are kept, so that an experiment goes on where it was stopped; without, nowhere.
    pub kept: Option<PathBuf>,
    /// Recordings of `fanin.record`, for [`Experiment::Overflow`]; the others have no use for them.
    pub gradients: Vec<PathBuf>,
}

/// A setting as the options want it.
macro_rules! prepare {
    ($setting:ty, $experiment:expr, $options:expr) => {{
        let mut setting: $setting = read($experiment, $options)?;
        setting.seed = $options.seed.unwrap_or(setting.seed);
        if $options.is_quick {
            setting.quicken();
        }
        setting
    }};
}

/// Runs a setting of its kind.
macro_rules! run {
    ($setting:ty, $experiment:expr, $options:expr) => {
        prepare!($setting, $experiment, $options).run()
    };
}

impl Experiment {
    /// All of them, in the order of the paper.
    pub const ALL: [Experiment; 8] = [
        Experiment::Traffic,
        Experiment::Fig10,
        Experiment::Fig13,
        Experiment::Fig14,
        Experiment::Fig15,
        Experiment::Fairness,
        Experiment::Overflow,
        Experiment::Scaling,
    ];

    /// Its name on the command line, and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Traffic => "traffic",
            Experiment::Fig10 => "fig10",
            Experiment::Fig13 => "fig13",
            Experiment::Fig14 => "fig14",
            Experiment::Fig15 => "fig15",
            Experiment::Fairness => "fairness",
            Experiment::Overflow => "overflow",
            Experiment::Scaling => "scaling",
        }
    }

    /// The built-in parameters.
    pub fn parameters(self) -> &'static str {
        match self {
            Experiment::Traffic => include_str!("../../../../experiments/atp/traffic.toml"),
            Experiment::Fig10 => include_str!("../../../../experiments/atp/fig10.toml"),
            Experiment::Fig13 => include_str!("../../../../experiments/atp/fig13.toml"),
            Experiment::Fig14 => include_str!("../../../../experiments/atp/fig14.toml"),
            Experiment::Fig15 => include_str!("../../../../experiments/atp/fig15.toml"),
            Experiment::Fairness => include_str!("../../../../experiments/atp/fairness.toml"),
            Experiment::Overflow => include_str!("../../../../experiments/atp/overflow.toml"),
            Experiment::Scaling => include_str!("../../../../experiments/atp/scaling.toml"),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Parameters that make no sense, with what to write; a run in which a sum was wrong or a job did not end.
    pub fn run(self, options: &Options) -> anyhow::Result<Findings> {
        match self {
            Experiment::Traffic => run!(traffic::Setting, self, options),
            Experiment::Fig10 => run!(loss::Setting, self, options),
            Experiment::Fig13 => run!(sharing::Setting, self, options),
            Experiment::Fig14 => run!(hashing::Setting, self, options),
            Experiment::Fig15 => run!(congestion::Setting, self, options),
            Experiment::Fairness => run!(fairness::Setting, self, options),
            Experiment::Scaling => run!(scaling::Setting, self, options),
            Experiment::Overflow => {
                let recordings = options.gradients.iter().map(|path| Recording::read(path));
                let recordings: Vec<Recording> = recordings.collect::<anyhow::Result<_>>()?;
                prepare!(overflow::Setting, self, options).run(&recordings)
            }
        }
        .with_context(|| format!("experiment {}", self.name()))
    }
}

fn read<T: DeserializeOwned>(experiment: Experiment, options: &Options) -> anyhow::Result<T> {
    let text = options.parameters.as_deref().unwrap_or(experiment.parameters());
    toml::from_str(text).with_context(|| {
        format!("these are not parameters of {0}: begin with a copy of experiments/atp/{0}.toml", experiment.name())
    })
}
