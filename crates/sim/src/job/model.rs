//! Gradients and computing times of published models.

use anyhow::{Context, ensure};

use super::table1::{ROWS, Row};

/// One model on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// As scenarios name it.
    pub name: &'static str,
    /// Gradients of a step, as float32.
    pub bytes: u64,
    /// Time to compute a step, microseconds.
    pub compute_us: f64,
}

/// Parameters of the models as published with torchvision, 4 bytes each; times on a P100 are batch size by images per second from TensorFlow's
/// public benchmarks of May 2017 (synthetic data, one GPU). PANAMA §2 measured with the same programs: the times give the
/// extremes of its Fig. 1. GoogLeNet is not on that list: its rate of 500 images a second is an assumption.
const MODELS: [Model; 6] = [
    Model { name: "alexnet", bytes: 61_100_840 * 4, compute_us: 512.0 / 2987.0 * 1e6 },
    Model { name: "vgg16", bytes: 138_357_544 * 4, compute_us: 64.0 / 154.0 * 1e6 },
    Model { name: "resnet50", bytes: 25_557_032 * 4, compute_us: 64.0 / 219.0 * 1e6 },
    Model { name: "resnet152", bytes: 60_192_808 * 4, compute_us: 64.0 / 91.8 * 1e6 },
    Model { name: "inception3", bytes: 23_834_568 * 4, compute_us: 64.0 / 142.0 * 1e6 },
    Model { name: "googlenet", bytes: 6_624_904 * 4, compute_us: 64.0 / 500.0 * 1e6 },
];

impl Model {
    /// By its name: one of PANAMA's, or of SwitchML's [`table1`](super::table1).
    ///
    /// # Errors
    /// For a name that is not in the table, with those that are.
    pub fn named(name: &str) -> anyhow::Result<Model> {
        if let Some(model) = MODELS.iter().find(|model| model.name == name) {
            return Ok(*model);
        }
        let of_table = Row::named(name).map(Model::of_table);
        of_table.with_context(|| {
            let ours = MODELS.iter().map(|model| model.name.to_owned());
            let names: Vec<String> = ours.chain(ROWS.iter().map(|row| row.name.to_lowercase())).collect();
            format!("no model is called {name:?}: take one of {}, or give bytes and compute_ms", names.join(", "))
        })
    }

    /// A step computes as long as it would without what the network adds.
    fn of_table(row: &Row) -> Model {
        Model { name: row.name, bytes: row.bytes() as u64, compute_us: row.compute_seconds() * 1e6 }
    }

    /// A smaller or larger one, with the same ratio of communication to computing.
    ///
    /// # Errors
    /// For a factor that leaves nothing.
    pub fn scaled(self, factor: f64) -> anyhow::Result<Model> {
        ensure!(factor.is_finite() && factor > 0.0 && factor <= 1000.0, "scale = {factor}: above 0, at most 1000");
        let bytes = (self.bytes as f64 * factor) as u64;
        Ok(Model { bytes: bytes.max(1), compute_us: self.compute_us * factor, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PANAMA Fig. 1, P100 and 10 Gbit/s: communication is up to 0.70 of an iteration, and aggregating in the network speeds training up by 1.15 to 1.53.
    #[test]
    fn models_have_the_extremes_of_panamas_figure() {
        let names = ["alexnet", "vgg16", "resnet50", "resnet152", "inception3"];
        let ratios = names.map(|name| {
            let model = Model::named(name).unwrap();
            let ring_us = 2.0 * model.bytes as f64 * 8.0 / 1e4;
            ring_us / (ring_us + model.compute_us)
        });
        let speed_up = |ratio: f64| 1.0 / (1.0 - ratio / 2.0);
        let highest = ratios.iter().copied().fold(0.0, f64::max);
        let lowest = ratios.iter().copied().fold(1.0, f64::min);
        assert!((highest - 0.70).abs() < 0.01, "{ratios:?}");
        assert!((speed_up(highest) - 1.53).abs() < 0.01 && (speed_up(lowest) - 1.15).abs() < 0.01, "{ratios:?}");
    }
}
