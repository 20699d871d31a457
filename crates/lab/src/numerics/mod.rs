//! The numerics laboratory: accumulators over recorded gradients, and the papers' experiments on number formats.
//!
//! [`compare()`] runs every [`Accumulator`] over a recording and reports errors against the exact sum. The experiments' parameters
//! are files of `experiments/fpisa`, `experiments/libra` and `experiments/switchml`, which are part of the program.

mod accumulator;
mod compare;
mod errors;
mod fig7;
mod fig8;
mod phases;
mod slots;
mod table2;
mod theorems;

pub use accumulator::{Accumulator, Summer, format_name, parse_format, round_to};
pub use compare::{Comparison, Entry, ParameterErrors, Question, compare};
pub use errors::{Distribution, ExactSum};

use anyhow::Context;
use serde::de::DeserializeOwned;

use crate::atp::Options;
use crate::findings::Findings;
use crate::recording::Recording;

/// One experiment that is plain arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// FPISA, Fig. 7.
    FpisaFig7,
    /// FPISA, Fig. 8.
    FpisaFig8,
    /// Libra, Table 2.
    LibraTable2,
    /// SwitchML, App. E.
    SwitchmlTheorems,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 4] =
        [Experiment::FpisaFig7, Experiment::FpisaFig8, Experiment::LibraTable2, Experiment::SwitchmlTheorems];

    /// Its parameters' file in `experiments`, without the ending.
    pub fn file(self) -> &'static str {
        match self {
            Experiment::FpisaFig7 => "fpisa/fig7",
            Experiment::FpisaFig8 => "fpisa/fig8",
            Experiment::LibraTable2 => "libra/table2",
            Experiment::SwitchmlTheorems => "switchml/theorems",
        }
    }

    /// The built-in parameters.
    pub fn parameters(self) -> &'static str {
        match self {
            Experiment::FpisaFig7 => include_str!("../../../../experiments/fpisa/fig7.toml"),
            Experiment::FpisaFig8 => include_str!("../../../../experiments/fpisa/fig8.toml"),
            Experiment::LibraTable2 => include_str!("../../../../experiments/libra/table2.toml"),
            Experiment::SwitchmlTheorems => include_str!("../../../../experiments/switchml/theorems.toml"),
        }
    }

    /// Runs it on the options' recordings; Libra's runs without any as well.
    ///
    /// # Errors
    /// Parameters that make no sense, with what to write, or recordings that cannot be used.
    pub fn run(self, options: &Options) -> anyhow::Result<Findings> {
        let recordings = options.gradients.iter().map(|path| Recording::read(path));
        let recordings: Vec<Recording> = recordings.collect::<anyhow::Result<_>>()?;
        match self {
            Experiment::FpisaFig7 => self.setting::<fig7::Setting>(options)?.run(&recordings),
            Experiment::FpisaFig8 => self.setting::<fig8::Setting>(options)?.run(&recordings),
            Experiment::LibraTable2 => {
                let mut setting: table2::Setting = self.setting(options)?;
                setting.seed = options.seed.unwrap_or(setting.seed);
                if options.is_quick {
                    setting.quicken();
                }
                setting.run(&recordings)
            }
            Experiment::SwitchmlTheorems => self.setting::<theorems::Setting>(options)?.run(&recordings),
        }
        .with_context(|| format!("experiment {}", self.file()))
    }

    fn setting<T: DeserializeOwned>(self, options: &Options) -> anyhow::Result<T> {
        let text = options.parameters.as_deref().unwrap_or(self.parameters());
        toml::from_str(text).with_context(|| {
            format!("these are not parameters of it: begin with a copy of experiments/{}.toml", self.file())
        })
    }
}
