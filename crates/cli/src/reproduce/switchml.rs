//! SwitchML's experiments on numbers.

use anyhow::Context;
use clap::ValueEnum;
use fanin_lab::advise::Table2;
use fanin_lab::atp::Options;
use fanin_lab::findings::Findings;
use fanin_lab::numerics::Experiment;
use fanin_lab::replay::Setting;
use fanin_lab::trial::Progress;

use super::training::{self, Claim};
use super::{Paper, fig12, is_root, page, recorded};

/// One of the SwitchML paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Accuracy over training, with the quantisation and without (PyTorch).
    Fig2,
    /// Speed-ups of a step over a ring at 100 Gbit/s, packet by packet.
    Fig4,
    /// The same with 16 workers, for the models that the network holds up.
    Fig5,
    /// Convergence of several models with the quantisation (PyTorch).
    Fig11,
    /// Time to sum integers, float32 and float16.
    Fig12,
    /// The bounds of App. E.
    Theorems,
    /// Speed-ups over a ring, predicted from Table 1.
    Table2,
}

const FIG2: Claim = Claim {
    experiment: "fig2",
    title: "Accuracy with SwitchML's quantisation (§4.6, Fig. 2)",
    paper: "similar: 91 to 93 % in the last points",
    points_max: 0.5,
    reason: "Small test sets: an image is 0.05 points.",
    note: "The paper's model is a ResNet110 on CIFAR10, 64,000 steps.",
};
const FIG11: Claim = Claim {
    experiment: "fig11",
    title: "Convergence with quantisation, in one process (App. E, Fig. 11)",
    paper: "negligible loss",
    points_max: 0.5,
    reason: "Small test sets: an image is 0.05 points.",
    note: "The paper's figure has its benchmark models on one GPU; these are small ones on a CPU. half-wire and byte-wire are fanin's narrow \
           formats; of its own 16-bit one the paper expects poor convergence, since half the range is missing, which it is not here.",
};

impl Paper for Name {
    const HEAD: &'static str = page::SWITCHML;

    fn run(self, options: &Options) -> anyhow::Result<Findings> {
        let curves = |built_in: &str, claim: &Claim| {
            let parameters = options.parameters.as_deref().unwrap_or(built_in);
            training::curves(parameters, options.seed, options.is_quick, claim)
        };
        match self {
            Name::Fig2 => curves(include_str!("../../../../experiments/switchml/fig2.toml"), &FIG2),
            Name::Fig11 => curves(include_str!("../../../../experiments/switchml/fig11.toml"), &FIG11),
            Name::Fig4 => replay("fig4", include_str!("../../../../experiments/switchml/fig4.toml"), options),
            Name::Fig5 => replay("fig5", include_str!("../../../../experiments/switchml/fig5.toml"), options),
            Name::Fig12 => fig12::run(options),
            Name::Table2 => table2(options),
            Name::Theorems => recorded(Experiment::SwitchmlTheorems, options),
        }
    }

    fn reads_gradients(self) -> bool {
        self == Name::Theorems
    }

    /// Real sockets need root.
    fn left_out(self, _is_quick: bool) -> Option<&'static str> {
        let needs = "it runs in network namespaces, as root";
        (self == Name::Fig12 && !is_root()).then_some(needs)
    }
}

fn replay(figure: &str, built_in: &str, options: &Options) -> anyhow::Result<Findings> {
    let title = "Speed-up of a training step over a ring, replayed (§6.2, Figs. 4 and 5)";
    let progress = Progress::new(&|line| eprintln!("{line}"), options.kept.as_deref())?;
    Setting::read(figure, built_in, options)?.run(figure, title, &progress)
}

fn table2(options: &Options) -> anyhow::Result<Findings> {
    let built_in = include_str!("../../../../experiments/switchml/table2.toml");
    let setting: Table2 = toml::from_str(options.parameters.as_deref().unwrap_or(built_in))
        .context("these are not parameters of it: begin with a copy of experiments/switchml/table2.toml")?;
    setting.run()
}
