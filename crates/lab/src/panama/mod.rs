//! The simulations of the PANAMA paper (Gebara et al., MLSys 2021, §2 and §7).
//!
//! An experiment's parameters are a file of `experiments/panama`, which is part of the program; another file can take its place.

mod fig1;
mod fig10;
mod fig8;
mod fig9;

use anyhow::Context;
use fanin_sim::scenario::{JobSection, Scenario};
use serde::de::DeserializeOwned;

use crate::atp::Options;
use crate::findings::Findings;
use crate::trial::{Progress, Told};

/// Where the experiments run.
const SIMULATED: &str = "simulated time: every packet of the whole network (`fanin sim`)";

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Fig. 1.
    Fig1,
    /// Figs. 8a to 8c.
    Fig8,
    /// Fig. 9.
    Fig9,
    /// Figs. 10a and 10b.
    Fig10,
}

impl Experiment {
    /// All of them, in the order of the paper.
    pub const ALL: [Experiment; 4] = [Experiment::Fig1, Experiment::Fig8, Experiment::Fig9, Experiment::Fig10];

    /// Its name on the command line, and of its file.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Fig1 => "fig1",
            Experiment::Fig8 => "fig8",
            Experiment::Fig9 => "fig9",
            Experiment::Fig10 => "fig10",
        }
    }

    /// The built-in parameters: as large as the paper's, where that takes hours, or smaller.
    pub fn parameters(self, is_full: bool) -> &'static str {
        match self {
            Experiment::Fig1 => include_str!("../../../../experiments/panama/fig1.toml"),
            Experiment::Fig8 if is_full => include_str!("../../../../experiments/panama/fig8-full.toml"),
            Experiment::Fig8 => include_str!("../../../../experiments/panama/fig8.toml"),
            Experiment::Fig9 => include_str!("../../../../experiments/panama/fig9.toml"),
            Experiment::Fig10 => include_str!("../../../../experiments/panama/fig10.toml"),
        }
    }

    /// Runs it on all processors; runs that are kept there already are not made again.
    ///
    /// # Errors
    /// Parameters that make no sense, with what to write; a run in which a sum was wrong.
    pub fn run(self, options: &Options, told: Told) -> anyhow::Result<Findings> {
        let progress = &Progress::new(told, options.kept.as_deref())?;
        match self {
            Experiment::Fig1 => prepare::<fig1::Setting>(self, options)?.run(progress),
            Experiment::Fig8 => prepare::<fig8::Setting>(self, options)?.run(progress),
            Experiment::Fig9 => prepare::<fig9::Setting>(self, options)?.run(progress),
            Experiment::Fig10 => prepare::<fig10::Setting>(self, options)?.run(progress),
        }
        .with_context(|| format!("experiment {}", self.name()))
    }
}

/// An experiment's parameters.
trait Setting: DeserializeOwned {
    /// A seed in place of its own.
    fn reseed(&mut self, seed: u64);
    /// Less of everything, for tests.
    fn quicken(&mut self);
}

fn prepare<S: Setting>(experiment: Experiment, options: &Options) -> anyhow::Result<S> {
    let text = options.parameters.as_deref().unwrap_or(experiment.parameters(options.is_full));
    let read = toml::from_str(text).with_context(|| {
        let name = experiment.name();
        format!("these are not parameters of {name}: begin with a copy of experiments/panama/{name}.toml")
    });
    let mut setting: S = read?;
    if let Some(seed) = options.seed {
        setting.reseed(seed);
    }
    if options.is_quick {
        setting.quicken();
    }
    Ok(setting)
}

/// The only job's section of a scenario.
fn job(scenario: &mut Scenario) -> anyhow::Result<&mut JobSection> {
    let count = scenario.jobs.len();
    let only = scenario.jobs.first_mut().filter(|_| count == 1);
    only.with_context(|| format!("[scenario] has {count} [[job]] sections: it needs one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_runs_and_says_what_the_paper_has() {
        for experiment in Experiment::ALL {
            let options = Options { is_quick: true, ..Options::default() };
            let findings = experiment.run(&options, &|_| {}).unwrap();
            assert_eq!(findings.experiment, experiment.name());
            assert!(!findings.rows.is_empty() && findings.hops > 1000, "{findings:#?}");
            assert!(findings.sheets.iter().all(|sheet| sheet.rows.iter().all(|row| row.len() == sheet.columns.len())));
            match experiment {
                // GPU, model, ring, PANAMA: a ring of eight sends 1.75 times as much.
                Experiment::Fig1 => {
                    assert!(findings.sheets[0].rows.iter().all(|row| row[2] > row[3]), "{findings:#?}");
                }
                Experiment::Fig10 => {
                    let fixed = &findings.rows[3];
                    assert!(
                        fixed.quantity.contains("without congestion control") && fixed.holds == Some(true),
                        "{findings:#?}"
                    );
                }
                Experiment::Fig8 | Experiment::Fig9 => {}
            }
        }
    }

    #[test]
    fn both_sizes_are_parameters_of_the_figure_and_others_are_refused() {
        let options = |parameters: &str| Options { parameters: Some(parameters.into()), ..Options::default() };
        for is_full in [false, true] {
            for experiment in Experiment::ALL {
                let text = experiment.parameters(is_full);
                assert!(toml::from_str::<toml::Table>(text).is_ok(), "{}", experiment.name());
            }
            prepare::<fig8::Setting>(Experiment::Fig8, &Options { is_full, ..Options::default() }).unwrap();
        }
        let error = Experiment::Fig9.run(&options("speed = 1"), &|_| {}).unwrap_err();
        assert!(format!("{error:#}").contains("experiments/panama/fig9.toml"), "{error:#}");
    }
}
