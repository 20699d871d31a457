//! SwitchML's App. E on recorded gradients: the aggregation error is bounded, and nothing overflows.

use anyhow::ensure;
use fanin_numeric::block_fixed;
use serde::{Deserialize, Serialize};

use super::errors::ExactSum;
use super::slots::agreed_exponent;
use crate::findings::{Findings, Row, Sheet};
use crate::recording::{Recording, Step};

/// `experiments/switchml/theorems.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Elements that share a scaling factor.
    pub block_elements: usize,
}

/// How the scaling factor of a block is chosen.
#[derive(Clone, Copy)]
enum Factor {
    /// `(2^31 - n) / (n B)`, with the largest magnitude `B` of the block (Theorem 2).
    Largest,
    /// `(2^31 - 1) / (n 2^m)` (§4.6).
    Paper,
    /// fanin's: a power of two (spec/PROTOCOL.md).
    PowerOfTwo,
}

/// The extremes over all blocks.
#[derive(Clone, Copy, Default)]
struct Extremes {
    /// `|result - exact| f / n`: 1 is Theorem 1's bound.
    error: f64,
    /// `|sum of words| / 2^31`: 1 is where 32 bits end.
    sum: f64,
    /// The largest error itself, beside the largest gradient.
    error_largest: f64,
    blocks: u64,
    elements: u64,
}

const FACTORS: [(Factor, &str); 3] = [
    (Factor::Largest, "f = (2^31 - n) / (n B), Theorem 2"),
    (Factor::Paper, "f = (2^31 - 1) / (n 2^m), §4.6"),
    (Factor::PowerOfTwo, "fanin's f, a power of two"),
];

impl Setting {
    /// Quantises, adds and compares every block.
    ///
    /// # Errors
    /// Blocks of no elements; more ranks than a job has.
    pub fn run(&self, recordings: &[Recording]) -> anyhow::Result<Findings> {
        ensure!(self.block_elements > 0, "block_elements = 0: use 1 or more");
        let (mut rows, mut numbers) = (Vec::new(), Vec::new());
        for recording in recordings {
            let n = recording.rank_count();
            ensure!(n <= usize::from(u16::MAX), "{}: {n} ranks are more than a job has", recording.label);
            let largest = f64::from(recording.largest());
            for (factor, name) in FACTORS {
                let mut found = Extremes::default();
                recording.steps.iter().for_each(|step| self.add_step(step, factor, &mut found));
                rows.extend(found.rows(&format!("{}, {name}", recording.label), largest, n));
                numbers.push(vec![numbers.len() as f64, n as f64, found.error, found.sum, found.error_largest]);
            }
        }
        let columns = ["row", "workers", "largest error over n / f", "largest sum over 2^31", "largest error"];
        Ok(Findings {
            experiment: "theorems".into(),
            title: "The aggregation error is bounded and nothing overflows (App. E, Theorems 1 and 2)".into(),
            place: "plain arithmetic on recorded gradients".into(),
            rows,
            notes: [
                vec![
                    "Rounding to the nearest halves Theorem 1's bound, which holds for any rounding to a neighbour. The error is that of \
                     sum / f, before it is rounded to a float32."
                        .to_owned(),
                ],
                recordings.iter().flat_map(Recording::labelled_notes).collect(),
            ]
            .concat(),
            sheets: vec![Sheet { name: "extremes".into(), columns: columns.map(String::from).into(), rows: numbers }],
            plots: Vec::new(),
            hops: 0,
        })
    }

    fn add_step(&self, step: &Step, factor: Factor, found: &mut Extremes) {
        for first in (0..step.ranks[0].len()).step_by(self.block_elements) {
            let places = first..(first + self.block_elements).min(step.ranks[0].len());
            let block: Vec<Vec<f32>> = step.ranks.iter().map(|rank| rank[places.clone()].to_vec()).collect();
            found.add_block(&block, factor);
        }
    }
}

impl Factor {
    /// Of a block; `None` for one of zeros, or with what is not a number.
    fn of(self, block: &[Vec<f32>]) -> Option<f64> {
        let exponent = agreed_exponent(block);
        let largest = block.iter().flatten().fold(0.0f64, |largest, value| largest.max(value.abs().into()));
        if largest == 0.0 || !exponent.is_finite() {
            return None;
        }
        let n = block.len() as f64;
        Some(match self {
            Factor::Largest => (2f64.powi(31) - n) / (n * largest),
            Factor::Paper => (2f64.powi(31) - 1.0) / (n * 2f64.powi(exponent.0.into())),
            Factor::PowerOfTwo => block_fixed::scale(exponent, block.len() as u16).into(),
        })
    }
}

impl Extremes {
    fn add_block(&mut self, block: &[Vec<f32>], factor: Factor) {
        let Some(f) = factor.of(block) else { return };
        self.blocks += 1;
        for place in 0..block[0].len() {
            let values = || block.iter().map(|rank| rank[place]);
            // Whole numbers below 2^53: f64 adds them exactly.
            let words: f64 = values().map(|value| (f64::from(value) * f).round_ties_even()).sum();
            let exact = ExactSum::of(values());
            // 52 bits of the quotient are enough beside an error of a word's half.
            let error = (words / f - exact.rounded).abs();
            self.error = self.error.max(error * f / block.len() as f64);
            self.sum = self.sum.max(words.abs() / 2f64.powi(31));
            self.error_largest = self.error_largest.max(error);
            self.elements += 1;
        }
    }

    fn rows(&self, name: &str, gradient_largest: f64, n: usize) -> [Row; 2] {
        let bounded = format!(
            "{:.3} over {} elements in {} blocks; {:.1e} at most, beside gradients of up to {gradient_largest:.2}",
            self.error, self.elements, self.blocks, self.error_largest
        );
        [
            Row::new(format!("{name}: largest error over n / f, n = {n}"), "1 at most", bounded, self.error <= 1.0),
            Row::new(
                format!("{name}: largest sum over 2^31"),
                "1 at most",
                format!("{:.6}", self.sum),
                self.sum <= 1.0,
            ),
        ]
    }
}
