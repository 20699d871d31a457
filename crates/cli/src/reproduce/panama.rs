//! PANAMA's simulations.

use clap::ValueEnum;
use fanin_lab::atp::Options;
use fanin_lab::findings::Findings;
use fanin_lab::panama::Experiment;

use super::{Paper, page};

/// One of the PANAMA paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// How much faster training alone gets.
    Fig1,
    /// Flows and jobs beside each other: Figs. 8a to 8c. At an eighth of the paper's size without --full.
    Fig8,
    /// Several trees beside long flows.
    Fig9,
    /// Shares of a link that a flow and a job share: Figs. 10a and 10b.
    Fig10,
}

impl Paper for Name {
    const HEAD: &'static str = page::PANAMA;

    fn run(self, options: &Options) -> anyhow::Result<Findings> {
        let experiment = match self {
            Name::Fig1 => Experiment::Fig1,
            Name::Fig8 => Experiment::Fig8,
            Name::Fig9 => Experiment::Fig9,
            Name::Fig10 => Experiment::Fig10,
        };
        experiment.run(options, &|line| eprintln!("{line}"))
    }

    fn reads_gradients(self) -> bool {
        false
    }

    fn has_full(self) -> bool {
        self == Name::Fig8
    }
}
