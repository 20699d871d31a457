//! Libra's experiments on numbers.

use clap::ValueEnum;
use fanin_lab::atp::Options;
use fanin_lab::findings::Findings;
use fanin_lab::numerics::Experiment;

use super::{Paper, page};

/// One of the Libra paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Precision of float sums, by tables and as integers.
    Table2,
}

impl Paper for Name {
    const HEAD: &'static str = page::LIBRA;

    fn run(self, options: &Options) -> anyhow::Result<Findings> {
        Experiment::LibraTable2.run(options)
    }

    fn reads_gradients(self) -> bool {
        true
    }
}
