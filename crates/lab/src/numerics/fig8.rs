//! FPISA's Fig. 8: errors of FPISA-A over recorded gradients, and their causes.

use anyhow::{Context, ensure};
use fanin_numeric::Telemetry;
use fanin_numeric::register_pair::FloatFormat;
use serde::{Deserialize, Serialize};

use super::accumulator::{Accumulator, Summer};
use super::errors::Distribution;
use super::phases::{PHASES, phases};
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::recording::{Recording, Step};

/// `experiments/fpisa/fig8.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Names of accumulators, the paper's first.
    pub accumulators: Vec<String>,
    /// The range of the paper's errors.
    pub error_low: f64,
    /// See `error_low`.
    pub error_high: f64,
}

/// Errors of one accumulator over some steps.
#[derive(Default)]
struct Errors {
    distribution: Distribution,
    telemetry: Telemetry,
    additions: u64,
}

impl Setting {
    /// Sums every step with each accumulator and with float32 additions.
    ///
    /// # Errors
    /// A name of no accumulator, a recording of one rank, or of more than an accumulator has room for.
    pub fn run(&self, recordings: &[Recording]) -> anyhow::Result<Findings> {
        ensure!(self.error_low > 0.0 && self.error_low < self.error_high, "error_low and error_high are no range");
        let accumulators: Vec<Accumulator> =
            self.accumulators.iter().map(|name| name.parse()).collect::<anyhow::Result<_>>().context("accumulators")?;
        let (mut rows, mut lines, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for recording in recordings {
            ensure!(recording.rank_count() > 1, "{} has one rank: a sum needs two", recording.label);
            for accumulator in &accumulators {
                let summer = accumulator.prepare(FloatFormat::Float32, recording.rank_count())?;
                for (phase, steps) in PHASES.iter().zip(phases(recording)) {
                    let errors = Errors::of(&summer, steps)?;
                    let name = format!("{}, {accumulator}, {phase}", recording.label);
                    numbers.push(self.numbers(numbers.len(), &errors));
                    rows.extend(self.rows(&name, *accumulator, &errors));
                    if *accumulator != Accumulator::Fpisa || *phase == PHASES[0] {
                        lines.push((name, errors.distribution.curve()));
                    }
                }
            }
        }
        let columns = [
            "row",
            "below the range, %",
            "in the range, %",
            "above, %",
            "overwrites per addition, %",
            "left shifts per addition, %",
            "overflowed elements, %",
            "largest error",
        ];
        Ok(Findings {
            experiment: "fig8".into(),
            title: "Errors of FPISA-A against float32 addition (§5.2.1, Fig. 8)".into(),
            place: "plain arithmetic on recorded gradients".into(),
            rows,
            notes: [
                vec![
                    "fpisa-a is the paper's, bit for bit: left shifts of up to 7. An element whose register overflows is marked and read \
                     out as NaN here; a switch without that check would answer a wrapped number. fpisa-a-safe shifts by \
                     7 - ceil(log2 workers) at most, which cannot overflow."
                        .to_owned(),
                    "A row of fpisa-a, of which alone the paper has numbers, holds: errors if those in its range and the smaller ones \
                     together are above 95 %, causes if both shares are below its, overflow if there is none."
                        .to_owned(),
                ],
                recordings.iter().flat_map(Recording::labelled_notes).collect(),
            ]
            .concat(),
            sheets: vec![Sheet { name: "errors".into(), columns: columns.map(String::from).into(), rows: numbers }],
            plots: vec![Plot {
                name: "errors".into(),
                title: "Errors against float32 addition".into(),
                x_label: "error, magnitude".into(),
                y_label: "elements with no larger error, %".into(),
                is_x_log: true,
                lines: lines.into_iter().filter(|(_, points)| !points.is_empty()).collect(),
            }],
            hops: 0,
        })
    }

    /// Percent below the paper's range, in it, and above.
    fn shares(&self, errors: &Errors) -> [f64; 3] {
        let (low, high) =
            (errors.distribution.share_within(self.error_low), errors.distribution.share_within(self.error_high));
        [100.0 * low, 100.0 * (high - low), 100.0 * (1.0 - high)]
    }

    fn rows(&self, name: &str, accumulator: Accumulator, errors: &Errors) -> Vec<Row> {
        let [below, within, above] = self.shares(errors);
        let is_papers = accumulator == Accumulator::FpisaA;
        let paper = |words: &str| if is_papers { words.to_owned() } else { String::new() };
        let Errors { distribution, telemetry, .. } = errors;
        let [overwrites, left_shifts] =
            [errors.per_addition(telemetry.overwrite), errors.per_addition(telemetry.left_shift)];
        let (low, high) = (self.error_low, self.error_high);
        let ours =
            format!("{within:.1} %, {below:.1} % smaller, {above:.1} % larger, {:.1e} at most", distribution.largest);
        let first = Row::new(format!("{name}: errors from {low:.0e} to {high:.0e}, or smaller"), paper("above 95 %"), ours, within + below > 95.0)
            .because("What is smaller, zero among it, is counted apart; what is larger are overwrites (FPISA-A), and roundings of larger sums.");
        if accumulator == Accumulator::Fpisa {
            return vec![first];
        }
        let ours = format!("{overwrites:.2} %, {left_shifts:.2} %");
        let causes = Row::new(
            format!("{name}: overwrites, left shifts, of all additions"),
            paper("below 0.9 %, below 0.1 %"),
            ours,
            !is_papers || (overwrites < 0.9 && left_shifts < 0.1),
        )
        .because(paper("The paper counts those that lead to errors; here are all, most of which lose nothing."));
        let ours = format!("{:.2} % of elements", errors.overflowed());
        let overflow =
            Row::new(format!("{name}: overflow"), paper("none"), ours, telemetry.overflow == 0).because(paper(
                "A value shifted left by 7 fills the register by itself: fewer workers than headroom are not enough.",
            ));
        vec![first, causes, overflow]
    }

    fn numbers(&self, row: usize, errors: &Errors) -> Vec<f64> {
        let counts = errors.telemetry;
        let causes =
            [errors.per_addition(counts.overwrite), errors.per_addition(counts.left_shift), errors.overflowed()];
        [&[row as f64][..], &self.shares(errors), &causes, &[errors.distribution.largest]].concat()
    }
}

impl Errors {
    fn of(summer: &Summer, steps: &[Step]) -> anyhow::Result<Errors> {
        let mut errors = Errors::default();
        for step in steps {
            let tensors: Vec<&[f32]> = step.ranks.iter().map(Vec::as_slice).collect();
            let (mut found, mut wanted) = (vec![0.0; tensors[0].len()], vec![0.0; tensors[0].len()]);
            summer.sum(&tensors, &mut found, &mut errors.telemetry)?;
            let ieee = Accumulator::Ieee.prepare(FloatFormat::Float32, tensors.len())?;
            ieee.sum(&tensors, &mut wanted, &mut Telemetry::default())?;
            for (found, wanted) in found.iter().zip(&wanted) {
                errors.distribution.add(f64::from(*found) - f64::from(*wanted));
            }
            errors.additions += (found.len() * (tensors.len() - 1)) as u64;
        }
        Ok(errors)
    }

    fn per_addition(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.additions.max(1) as f64
    }

    /// Percent of elements.
    fn overflowed(&self) -> f64 {
        let elements = self.distribution.count + self.distribution.not_finite;
        100.0 * self.telemetry.overflow as f64 / elements.max(1) as f64
    }
}
