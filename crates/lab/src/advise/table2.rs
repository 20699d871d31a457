//! SwitchML's Table 2: speed-ups over a ring, predicted from Table 1.

use anyhow::ensure;
use fanin_sim::job::table1::{RATES_BPS, ROWS, Row as Model};
use serde::{Deserialize, Serialize};

use super::models::{paper_question, profile_of};
use super::predict::{Question, Scheme};
use crate::findings::{Findings, Row, Sheet};

/// `experiments/switchml/table2.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Servers that sum.
    pub workers: u32,
    /// Speed-ups may differ from the paper's by this share.
    pub tolerance: f64,
}

/// Models of which Table 1's overlaps say least about when gradients are ready.
const GUESSED: &str = "When its gradients are ready is fitted to two overlaps; the paper had traces.";
const HEADERS: &str =
    "fanin's headers are larger than those of the paper's emulation, and a ring of 8 sends 1.75 times the bytes.";

impl Setting {
    /// Predicts all rows.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn run(&self) -> anyhow::Result<Findings> {
        ensure!((2..=4096).contains(&self.workers), "workers = {}: use 2 to 4096", self.workers);
        ensure!((0.0..=1.0).contains(&self.tolerance), "tolerance = {}: use 0 to 1", self.tolerance);
        let mut rows = Vec::new();
        let mut numbers = Vec::new();
        for (index, model) in ROWS.iter().enumerate() {
            let profile = profile_of(model);
            for (rate_bps, paper) in RATES_BPS.into_iter().zip(model.speedup) {
                let question = Question { workers: self.workers, ..paper_question(rate_bps) };
                let speedup = |scheme| question.speedup(&profile, scheme, 4);
                let ours = speedup(Scheme::Switch { element_bytes: 4 });
                let top = speedup(Scheme::TopK { share: 0.01 });
                numbers.push(vec![index as f64, rate_bps / 1e9, ours, top, paper.unwrap_or(f64::NAN)]);
                rows.extend(paper.map(|paper| self.row(model, rate_bps, paper, ours)));
            }
        }
        Ok(Findings {
            experiment: "table2".into(),
            title: "Speed-up of a step over a ring, predicted (§3, Table 2)".into(),
            place: format!("{} workers; arithmetic on Table 1, no packets", self.workers),
            rows,
            notes: vec![
                "How it counts: docs/guides/will-it-help.md. The paper replayed recorded traces of all-reduce calls; they are not public. \
                 `fanin advise --step FILE` does it for a step of yours."
                    .into(),
                "Table 2's columns of compression depend on another study's times of computing and are not repeated; the sheet has the \
                 largest 1 % without them, at best."
                    .into(),
                format!("A row holds if ours is within {:.0} % of the paper's.", 100.0 * self.tolerance),
            ],
            sheets: vec![Sheet {
                name: "speedups".into(),
                columns: ["model", "link rate, Gbit/s", "switch", "top 1 % at best", "paper"].map(String::from).into(),
                rows: numbers,
            }],
            plots: Vec::new(),
            hops: 0,
        })
    }

    fn row(&self, model: &Model, rate_bps: f64, paper: f64, ours: f64) -> Row {
        let holds = (ours - paper).abs() <= self.tolerance * paper;
        let quantity = format!("{}, {} Gbit/s", model.name, rate_bps / 1e9);
        let row = Row::new(quantity, format!("{paper:.2}x"), format!("{ours:.2}x"), holds);
        match (holds, (ours - paper).abs() > 0.05) {
            (false, _) => row.because(GUESSED),
            (true, true) => row.because(HEADERS),
            (true, false) => row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_rows_are_as_in_the_paper_and_the_others_say_why() {
        let findings = Setting { workers: 8, tolerance: 0.1 }.run().unwrap();
        assert_eq!(findings.rows.len(), 12);
        assert!(findings.rows.iter().filter(|row| row.holds == Some(true)).count() >= 10, "{:#?}", findings.rows);
        assert!(findings.rows.iter().all(|row| row.holds == Some(true) || !row.remark.is_empty()));
        assert!(Setting { workers: 1, tolerance: 0.1 }.run().is_err());
    }
}
