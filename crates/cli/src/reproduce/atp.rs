//! ATP's experiments.

use clap::ValueEnum;
use fanin_lab::atp::{Experiment, Options};
use fanin_lab::findings::Findings;

use super::{Paper, fig16, is_root, page};

/// One of the ATP paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
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
    /// Large gradients, at 10^8 and at scales that workers agree on (App. B.3).
    Scaling,
}

impl Paper for Name {
    const HEAD: &'static str = page::ATP;

    fn run(self, options: &Options) -> anyhow::Result<Findings> {
        let simulated = match self {
            Name::Traffic => Experiment::Traffic,
            Name::Fig10 => Experiment::Fig10,
            Name::Fig13 => Experiment::Fig13,
            Name::Fig14 => Experiment::Fig14,
            Name::Fig15 => Experiment::Fig15,
            Name::Fairness => Experiment::Fairness,
            Name::Overflow => Experiment::Overflow,
            Name::Scaling => Experiment::Scaling,
            Name::Fig16 => return fig16::run(options.parameters.as_deref(), options.is_quick),
        };
        simulated.run(options)
    }

    fn reads_gradients(self) -> bool {
        self == Name::Overflow
    }

    /// Real sockets need root, and a quick look must not.
    fn left_out(self, is_quick: bool) -> Option<&'static str> {
        let needs = "it runs in network namespaces, as root and by name or without --quick";
        (self == Name::Fig16 && (is_quick || !is_root())).then_some(needs)
    }
}
