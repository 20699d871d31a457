//! FPISA's Fig. 7: how far apart the workers' gradients of one element are.

use serde::{Deserialize, Serialize};

use super::phases::{PHASES, phases};
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::recording::{Recording, Step};

/// `experiments/fpisa/fig7.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The largest power of two that is shown.
    pub ratio_log2_max: u32,
    /// The paper's mark, as a power of two.
    pub headroom: u32,
}

/// Elements by the ratio of the largest to the smallest magnitude among the workers.
#[derive(Default)]
struct Ratios {
    /// Those whose ratio is below `2^(k+1)` but not below `2^k`.
    classes: Vec<u64>,
    /// Some worker has zero, and not all of them.
    some_zero: u64,
    /// No worker has anything.
    all_zero: u64,
}

impl Setting {
    /// Counts.
    ///
    /// # Errors
    /// None: what is not a number is left out.
    pub fn run(&self, recordings: &[Recording]) -> anyhow::Result<Findings> {
        let (mut rows, mut lines, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for recording in recordings {
            for (phase, steps) in PHASES.iter().zip(phases(recording)) {
                let ratios = Ratios::of(steps);
                let below = ratios.percent_below(self.headroom);
                rows.push(self.row(recording, phase, &ratios, below));
                let points = (1..=self.ratio_log2_max).map(|k| (2f64.powi(k as i32), ratios.percent_below(k)));
                lines.push((format!("{}, {phase}", recording.label), points.collect::<Vec<_>>()));
            }
        }
        for k in 1..=self.ratio_log2_max {
            let of_each = lines.iter().map(|(_, points)| points[k as usize - 1].1);
            table.push([f64::from(k)].into_iter().chain(of_each).collect());
        }
        let names = lines.iter().map(|(name, _)| format!("{name}, %"));
        let columns = ["log2 of the ratio".to_owned()].into_iter().chain(names).collect();
        Ok(Findings {
            experiment: "fig7".into(),
            title: "Largest over smallest gradient among the workers of an element (§5.1, Fig. 7)".into(),
            place: "plain arithmetic on recorded gradients".into(),
            rows,
            notes: [vec![RULE.to_owned()], recordings.iter().flat_map(Recording::labelled_notes).collect()].concat(),
            sheets: vec![Sheet { name: "ratios".into(), columns, rows: table }],
            plots: vec![Plot {
                name: "ratios".into(),
                title: "Ratio of the largest to the smallest magnitude".into(),
                x_label: "ratio".into(),
                y_label: "elements below it, %".into(),
                is_x_log: true,
                lines,
            }],
            hops: 0,
        })
    }

    fn row(&self, recording: &Recording, phase: &str, ratios: &Ratios, below: f64) -> Row {
        let workers = recording.rank_count();
        let quantity =
            format!("{}, {phase}: elements with a ratio below 2^{}, {workers} workers", recording.label, self.headroom);
        let ours = format!("{below:.1} %, and {:.1} % that some worker has as zero", ratios.percent_some_zero());
        Row::new(quantity, "about 83 % (first epoch, 8 workers)", ours, (below - 83.0).abs() <= WITHIN).because(
            "Small batches spread the workers' gradients as training goes on; the paper does not say what it does with zeros, which are \
             left out of the ratio here.",
        )
    }
}

const RULE: &str = "A row holds if it is within 10 points of the paper's 83 %.";
const WITHIN: f64 = 10.0;

impl Ratios {
    fn of(steps: &[Step]) -> Ratios {
        let mut ratios = Ratios::default();
        for step in steps {
            for place in 0..step.ranks[0].len() {
                ratios.add(step.ranks.iter().map(|rank| f64::from(rank[place].abs())));
            }
        }
        ratios
    }

    fn add(&mut self, magnitudes: impl Iterator<Item = f64>) {
        let (low, high) =
            magnitudes.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        match (low == 0.0, high == 0.0) {
            (_, true) => self.all_zero += 1,
            (true, false) => self.some_zero += 1,
            _ if !high.is_finite() => {}
            _ => {
                let class = (high / low).log2().floor() as usize;
                self.classes.resize(self.classes.len().max(class + 1), 0);
                self.classes[class] += 1;
            }
        }
    }

    /// Of the elements that no worker has as zero, those with a ratio below `2^log2`.
    fn percent_below(&self, log2: u32) -> f64 {
        let below: u64 = self.classes.iter().take(log2 as usize).sum();
        100.0 * below as f64 / self.classes.iter().sum::<u64>().max(1) as f64
    }

    /// Of all elements.
    fn percent_some_zero(&self) -> f64 {
        let all = self.classes.iter().sum::<u64>() + self.some_zero + self.all_zero;
        100.0 * self.some_zero as f64 / all.max(1) as f64
    }
}
