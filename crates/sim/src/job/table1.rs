//! SwitchML's Table 1 (Sapio et al., NSDI 2021, §2.2), measured there with 8 workers and NVIDIA P100 GPUs, and the speed-ups that its
//! Table 2 (§3) has for the same models.

/// A model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// As the paper calls it.
    pub name: &'static str,
    /// Of its float32 parameters. The paper says MB; its times agree with 2^20 bytes.
    pub size_mib: f64,
    /// At the two [`RATES_BPS`].
    pub at: [Measured; 2],
    /// Scaling factor for a hypothetical faster GPU at which 100 Gbit/s are saturated.
    pub alpha: f64,
    /// Table 2's speed-ups of in-network aggregation over a ring at the two rates, where it has them.
    pub speedup: [Option<f64>; 2],
}

/// A row's numbers at one link rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// A step, ms.
    pub step_ms: f64,
    /// Percent of it in which the model communicates.
    pub communication_percent: f64,
    /// Percent of that which overlaps with computing.
    pub overlap_percent: f64,
}

/// The link rates of the tables, bits per second.
pub const RATES_BPS: [f64; 2] = [10e9, 100e9];
/// Their workers.
pub const WORKERS: u32 = 8;

const fn at(step_ms: f64, communication_percent: f64, overlap_percent: f64) -> Measured {
    Measured { step_ms, communication_percent, overlap_percent }
}

/// The tables.
#[rustfmt::skip]
pub const ROWS: [Row; 8] = [
    Row { name: "DeepLight", size_mib: 2319.0, at: [at(2101.0, 97.0, 2.0), at(258.0, 79.0, 20.0)], alpha: 1.0, speedup: [Some(1.80), Some(1.67)] },
    Row { name: "LSTM", size_mib: 1627.0, at: [at(1534.0, 94.0, 10.0), at(312.0, 46.0, 56.0)], alpha: 1.5, speedup: [Some(1.77), Some(1.20)] },
    Row { name: "BERT", size_mib: 1274.0, at: [at(1677.0, 67.0, 3.0), at(668.0, 17.0, 35.0)], alpha: 3.5, speedup: [Some(1.54), Some(1.14)] },
    Row { name: "VGG19", size_mib: 548.0, at: [at(661.0, 73.0, 67.0), at(499.0, 10.0, 99.0)], alpha: 6.7, speedup: [Some(1.60), None] },
    Row { name: "UGATIT", size_mib: 511.0, at: [at(1612.0, 28.0, 84.0), at(1212.0, 4.0, 99.0)], alpha: 17.6, speedup: [Some(1.22), None] },
    Row { name: "NCF", size_mib: 121.0, at: [at(149.0, 72.0, 4.0), at(46.0, 23.0, 27.0)], alpha: 1.2, speedup: [Some(1.54), Some(1.22)] },
    Row { name: "SSD", size_mib: 98.0, at: [at(293.0, 26.0, 99.0), at(293.0, 3.0, 99.0)], alpha: 15.2, speedup: [Some(1.01), None] },
    Row { name: "ResNet-50", size_mib: 87.0, at: [at(299.0, 29.0, 67.0), at(270.0, 3.0, 94.0)], alpha: 19.8, speedup: [Some(1.05), None] },
];

impl Row {
    /// The row of that name, in any case.
    pub fn named(name: &str) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name))
    }

    /// Bytes of the parameters.
    pub fn bytes(&self) -> f64 {
        self.size_mib * f64::from(1 << 20)
    }

    /// A step without what the network adds, as the mean of the two rates, seconds.
    pub fn compute_seconds(&self) -> f64 {
        self.at.iter().map(Measured::compute_seconds).sum::<f64>() / 2.0
    }
}

impl Measured {
    fn compute_seconds(&self) -> f64 {
        let communication_seconds = self.step_ms / 1e3 * self.communication_percent / 100.0;
        self.step_ms / 1e3 - communication_seconds * (1.0 - self.overlap_percent / 100.0)
    }
}
