//! The dynamic scaling factor (ATP App. B.3, which the paper leaves as future work): large gradients at 10^8 and at scales that
//! workers agree on.

use std::sync::Arc;

use fanin_link::Random;
use fanin_protocol::atp::Scale;
use serde::{Deserialize, Serialize};

use super::cluster::{BLOCK_ELEMENTS, Cluster};
use super::gradients::{Measured, Run};
use crate::findings::{Findings, Plot, Row, Sheet};

/// `experiments/atp/scaling.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the gradients.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Workers of the job.
    pub workers: u16,
    /// Slots of the switch.
    pub slots: u16,
    /// Chunks of the tensor, and how often it is summed.
    pub tensor_chunks: u32,
    /// See `tensor_chunks`.
    pub rounds: u32,
    /// Gradients are drawn evenly from minus this to this, from the smallest on.
    pub magnitudes: Vec<f64>,
}

/// One magnitude both ways.
struct Pair {
    magnitude: f64,
    fixed: Measured,
    dynamic: Measured,
}

const COLUMNS: [&str; 8] = [
    "largest gradient",
    "throughput at 10^8, 1 = no overflow",
    "throughput, dynamic",
    "chunks summed as floats at 10^8, %",
    "the same, dynamic, %",
    "chunks at another scale, dynamic, %",
    "largest error at 10^8, billionths of the block's largest gradient",
    "the same, dynamic",
];

impl Setting {
    /// Smaller, for tests.
    pub fn quicken(&mut self) {
        self.tensor_chunks /= 4;
        self.magnitudes = vec![self.magnitudes[0], 100.0];
    }

    /// App. B.3.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        let pairs: Vec<Pair> =
            self.magnitudes.iter().map(|&magnitude| self.pair(magnitude)).collect::<anyhow::Result<_>>()?;
        let best = pairs.first().ok_or_else(|| anyhow::anyhow!("`magnitudes` must name one at least"))?.fixed.gbps;
        let chunks = f64::from(self.tensor_chunks) * f64::from(self.rounds);
        let columns = COLUMNS.map(String::from).into();
        let rows = pairs.iter().map(|pair| pair.row(best, chunks)).collect();
        let sheet = Sheet { name: "scaling".into(), columns, rows };
        let plot = Plot {
            name: "scaling".into(),
            title: "Throughput by the size of gradients (App. B.3)".into(),
            x_label: "largest gradient".into(),
            y_label: "1 = no overflow".into(),
            is_x_log: true,
            lines: sheet.lines().into_iter().take(2).collect(),
        };
        Ok(Findings {
            experiment: "scaling".into(),
            title: "Large gradients: 10^8 against scales that workers agree on (App. B.3)".into(),
            place: super::SIMULATED.into(),
            rows: self.rows(&sheet),
            notes: vec![
                "The paper leaves the dynamic scale as future work and gives no numbers. Gradients are drawn evenly between the largest \
                 and its negative; each round sums the tensor again, and its first window goes at 10^8."
                    .into(),
            ],
            hops: pairs.iter().map(|pair| pair.fixed.hops + pair.dynamic.hops).sum(),
            sheets: vec![sheet],
            plots: vec![plot],
        })
    }

    fn pair(&self, magnitude: f64) -> anyhow::Result<Pair> {
        let gradients = self.gradients(magnitude);
        let measure = |scale| {
            let Setting { cluster, slots, seed, rounds, .. } = self;
            let (slots, seed, rounds, gradients) = (*slots, *seed, *rounds, gradients.clone());
            Run { cluster, slots, seed, rounds, scale, gradients }.measure()
        };
        Ok(Pair { magnitude, fixed: measure(Scale::Static)?, dynamic: measure(Scale::Dynamic)? })
    }

    fn gradients(&self, magnitude: f64) -> Arc<Vec<Vec<f32>>> {
        let mut random = Random::new(self.seed);
        let elements = self.tensor_chunks as usize * usize::from(BLOCK_ELEMENTS);
        let mut value = |_| (random.bits() as i64 as f64 / 2f64.powi(63) * magnitude) as f32;
        Arc::new((0..self.workers).map(|_| (0..elements).map(&mut value).collect()).collect())
    }

    fn rows(&self, sheet: &Sheet) -> Vec<Row> {
        let (first, last) =
            (sheet.rows.first().cloned().unwrap_or_default(), sheet.rows.last().cloned().unwrap_or_default());
        let window_share = 100.0 * f64::from(self.cluster.window_max) / f64::from(self.tensor_chunks);
        let worst = |column: usize| sheet.rows.iter().map(|row| row[column]).fold(1.0, f64::min);
        vec![
            Row::new(
                "least throughput with large gradients, at 10^8 and dynamic, 1 = no overflow",
                "dynamic: one round trip lost at worst",
                format!("{:.3} and {:.3}", worst(1), worst(2)),
                worst(2) > 0.9 && worst(2) > worst(1),
            )
            .because("The first window's floats are a packet of every worker for each chunk on the server's link, and chunks that wait for them are overtaken, which halves windows."),
            Row::new(
                format!("chunks summed as floats with gradients up to {}, at 10^8 and dynamic", last[0]),
                "dynamic: those of a tensor's first window at most",
                format!("{:.1} % and {:.2} %, a window is {window_share:.2} %", last[3], last[4]),
                last[4] <= window_share * 1.05 && last[4] < last[3],
            ),
            Row::new(
                format!("chunks at another scale with gradients up to {}", first[0]),
                "none: only when the overflow happens frequently",
                format!("{:.1} %", first[5]),
                first[5] == 0.0,
            ),
        ]
    }
}

impl Pair {
    fn row(&self, best: f64, chunks: f64) -> Vec<f64> {
        let percent = |blocks: u64| 100.0 * blocks as f64 / chunks;
        vec![
            self.magnitude,
            self.fixed.gbps / best,
            self.dynamic.gbps / best,
            percent(self.fixed.float_blocks),
            percent(self.dynamic.float_blocks),
            percent(self.dynamic.scaled_blocks),
            self.fixed.error_max * 1e9,
            self.dynamic.error_max * 1e9,
        ]
    }
}
