//! FPISA's experiments on numbers.

use clap::ValueEnum;
use fanin_lab::atp::Options;
use fanin_lab::findings::Findings;
use fanin_lab::numerics::Experiment;

use super::training::{self, Claim};
use super::{Paper, conversion, page, recorded};

/// One of the FPISA paper's experiments.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// How fast a core changes the byte order of floats (§4.1).
    Fig6,
    /// Largest over smallest gradient among the workers.
    Fig7,
    /// Errors of FPISA-A and their causes.
    Fig8,
    /// Accuracy over training, with default additions and with FPISA-A (PyTorch).
    Fig9,
    /// Cores that a worker's conversions need for a line of 100 Gbit/s.
    Fig10,
}

const FIG9: Claim = Claim {
    experiment: "fig9",
    title: "Accuracy with default additions and with FPISA-A (§5.2.2, Fig. 9)",
    paper: "less than 0.1 % apart after 40 epochs",
    points_max: 0.1,
    reason: "With left shifts of up to 7 bits the register has no room for eight workers: sums overflow, and a weight whose sum did is \
             not updated. The paper reports no overflow; with safe headroom there is none.",
    note: "The paper's models are MobileNetV2, VGG19, ResNet-50 and GoogleNet on CIFAR-10, 40 epochs; these are small ones, a few \
           epochs, on a CPU. With float16 the weights are rounded to float16 and the loss is scaled by 1024; sums, and what travels, are \
           float16, what the model computes in between is float32. A sum that overflows is marked and left out of the update.",
};

impl Paper for Name {
    const HEAD: &'static str = page::FPISA;

    fn run(self, options: &Options) -> anyhow::Result<Findings> {
        match self {
            Name::Fig6 => conversion::byte_order(options),
            Name::Fig7 => recorded(Experiment::FpisaFig7, options),
            Name::Fig8 => recorded(Experiment::FpisaFig8, options),
            Name::Fig9 => {
                let built_in = include_str!("../../../../experiments/fpisa/fig9.toml");
                let parameters = options.parameters.as_deref().unwrap_or(built_in);
                training::curves(parameters, options.seed, options.is_quick, &FIG9)
            }
            Name::Fig10 => conversion::cores(options),
        }
    }

    fn reads_gradients(self) -> bool {
        matches!(self, Name::Fig7 | Name::Fig8)
    }
}
