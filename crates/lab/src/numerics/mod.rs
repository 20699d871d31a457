//! The numerics laboratory: accumulators over recorded gradients, and the papers' experiments on number formats.
//!
//! [`compare()`] runs every [`Accumulator`] over a recording and reports errors against the exact sum. The experiments' parameters
//! are files of `experiments/fpisa`, `experiments/libra` and `experiments/switchml`, which are part of the program.

mod accumulator;
mod compare;
mod errors;
mod slots;
mod table2;

pub use accumulator::{Accumulator, Summer, format_name, parse_format, round_to};
pub use compare::{Comparison, Entry, ParameterErrors, Question, compare};
pub use errors::{Distribution, ExactSum};

use anyhow::Context;

use crate::atp::Options;
use crate::findings::Findings;
use crate::recording::Recording;

/// One experiment that is plain arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Libra, Table 2.
    LibraTable2,
}

/// A setting as the options want it, run on recordings.
macro_rules! run {
    ($setting:ty, $experiment:expr, $options:expr, $recordings:expr) => {{
        let text = $options.parameters.as_deref().unwrap_or($experiment.parameters());
        let mut setting: $setting = toml::from_str(text).with_context(|| {
            format!("these are not parameters of it: begin with a copy of experiments/{}.toml", $experiment.file())
        })?;
        setting.seed = $options.seed.unwrap_or(setting.seed);
        if $options.is_quick {
            setting.quicken();
        }
        setting.run($recordings)
    }};
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 1] = [Experiment::LibraTable2];

    /// Its parameters' file in `experiments`, without the ending.
    pub fn file(self) -> &'static str {
        match self {
            Experiment::LibraTable2 => "libra/table2",
        }
    }

    /// The built-in parameters.
    pub fn parameters(self) -> &'static str {
        match self {
            Experiment::LibraTable2 => include_str!("../../../../experiments/libra/table2.toml"),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Parameters that make no sense, with what to write, or recordings that cannot be used.
    pub fn run(self, options: &Options) -> anyhow::Result<Findings> {
        let recordings = options.gradients.iter().map(|path| Recording::read(path));
        let recordings: Vec<Recording> = recordings.collect::<anyhow::Result<_>>()?;
        match self {
            Experiment::LibraTable2 => run!(table2::Setting, self, options, &recordings),
        }
        .with_context(|| format!("experiment {}", self.file()))
    }
}
