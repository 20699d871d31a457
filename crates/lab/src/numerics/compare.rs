//! Every accumulator over the same recorded gradients, against the exact sum.

use anyhow::ensure;
use fanin_numeric::Telemetry;
use fanin_numeric::certificate::Contributions;
use fanin_numeric::register_pair::FloatFormat;
use serde::Serialize;

use super::accumulator::{Accumulator, Summer, format_name, round_to};
use super::errors::{Distribution, ExactSum};
use crate::findings::Plot;
use crate::recording::Recording;

/// What to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Which accumulators.
    pub accumulators: Vec<Accumulator>,
    /// To which gradients are rounded before they are summed.
    pub format: FloatFormat,
    /// The first so many ranks of the recording; all of them if `None`.
    pub workers: Option<usize>,
}

/// What one accumulator did to all elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its name.
    pub accumulator: &'static str,
    /// Elements summed.
    pub elements: u64,
    /// Share of elements that are the exact sum, percent.
    pub exact_percent: f64,
    /// Magnitudes of `result - exact sum` that half, 99 % and all of the elements do not exceed.
    pub median: f64,
    /// See `median`.
    pub p99: f64,
    /// See `median`.
    pub largest: f64,
    /// Mean of `result - exact sum`: which way the sums drift.
    pub bias: f64,
    /// Relative errors that half and 99 % of the elements whose exact sum is not zero do not exceed.
    pub relative_median: f64,
    /// See `relative_median`.
    pub relative_p99: f64,
    /// Results that are infinite or not a number though the sum is one.
    pub not_finite: u64,
    /// Elements whose bits differ when the ranks come in the opposite order, percent.
    pub order_percent: f64,
    /// The largest error over what the accumulator's certificate allows it; `None` where it promises nothing finite.
    pub of_bound: Option<f64>,
    /// Sums that left their register.
    pub overflow: u64,
    /// Results beyond the largest number.
    pub saturation: u64,
    /// Sums replaced by a larger contribution.
    pub overwrite: u64,
    /// Contributions shifted into the headroom.
    pub left_shift: u64,
    /// Operands of which alignment or read-out left nothing.
    pub flushed_to_zero: u64,
    /// Additions whose alignment dropped bits.
    pub lost_bits: u64,
}

/// A parameter's errors under one accumulator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParameterErrors {
    /// The parameter's name.
    pub parameter: String,
    /// The accumulator's.
    pub accumulator: &'static str,
    /// Elements, over all steps.
    pub elements: u64,
    /// Share of elements that are the exact sum, percent.
    pub exact_percent: f64,
    /// Magnitudes as in [`Entry`].
    pub median: f64,
    /// See `median`.
    pub p99: f64,
    /// See `median`.
    pub largest: f64,
    /// Results that are no numbers.
    pub not_finite: u64,
}

/// All accumulators beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The recording's name.
    pub recording: String,
    /// The format of the tensors.
    pub format: &'static str,
    /// Tensors in a sum.
    pub workers: usize,
    /// Sums: steps of the recording.
    pub steps: usize,
    /// Elements of which some contribution is not a number or infinite: left out of all errors.
    pub elements_without_sum: u64,
    /// A line for each accumulator, in the order asked for.
    pub entries: Vec<Entry>,
    /// The same by parameter.
    pub parameters: Vec<ParameterErrors>,
    /// What of the recording was left out.
    pub notes: Vec<String>,
    /// Distributions.
    #[serde(skip)]
    pub plots: Vec<Plot>,
}

/// What one accumulator's sums of all steps are counted into.
struct Tally {
    absolute: Distribution,
    relative: Distribution,
    parameters: Vec<Distribution>,
    telemetry: Telemetry,
    order_changes: u64,
    of_bound: Option<f64>,
}

/// Sums every step of a recording with each accumulator.
///
/// # Errors
/// More workers than the recording has ranks, or than an accumulator has room for.
pub fn compare(recording: &Recording, question: &Question) -> anyhow::Result<Comparison> {
    let ranks = recording.rank_count();
    let workers = question.workers.unwrap_or(ranks);
    ensure!(
        workers > 0 && workers <= ranks,
        "{workers} workers, but {} has {ranks} ranks: use 1 to {ranks}",
        recording.label
    );
    let summers = question.accumulators.iter().map(|accumulator| accumulator.prepare(question.format, workers));
    let summers: Vec<Summer> = summers.collect::<anyhow::Result<_>>()?;
    let mut tallies: Vec<Tally> = summers.iter().map(|_| Tally::new(recording.parameters.len())).collect();
    let mut elements_without_sum = 0;
    for step in &recording.steps {
        let ranks = &step.ranks[..workers];
        let sums = StepSums::of(ranks, question.format);
        elements_without_sum += sums.sums.iter().filter(|sum| sum.is_none()).count() as u64;
        for (summer, tally) in summers.iter().zip(&mut tallies) {
            tally.add_step(summer, ranks, &sums, &recording.parameters)?;
        }
    }
    let named = || question.accumulators.iter().zip(&tallies);
    let curves = |of: fn(&Tally) -> &Distribution| {
        named().map(|(accumulator, tally)| (accumulator.name().to_owned(), of(tally).curve())).collect()
    };
    Ok(Comparison {
        recording: recording.label.clone(),
        format: format_name(question.format),
        workers,
        steps: recording.steps.len(),
        elements_without_sum,
        entries: named().map(|(accumulator, tally)| tally.entry(*accumulator)).collect(),
        parameters: named()
            .flat_map(|(accumulator, tally)| tally.by_parameter(*accumulator, &recording.parameters))
            .collect(),
        notes: recording.notes.clone(),
        plots: vec![
            plot("errors", "Errors against the exact sum", "error, magnitude", curves(|tally| &tally.absolute)),
            plot("relative-errors", "Errors over the exact sum", "error / exact sum", curves(|tally| &tally.relative)),
        ],
    })
}

fn plot(name: &str, title: &str, x_label: &str, lines: Vec<(String, Vec<(f64, f64)>)>) -> Plot {
    Plot {
        name: name.into(),
        title: title.into(),
        x_label: x_label.into(),
        y_label: "elements with no larger error, %".into(),
        is_x_log: true,
        lines: lines.into_iter().filter(|(_, points)| !points.is_empty()).collect(),
    }
}

/// The exact sums of one step.
struct StepSums {
    /// By element; `None` where some contribution is no number.
    sums: Vec<Option<ExactSum>>,
    contributions: Vec<Contributions>,
}

impl StepSums {
    fn of(ranks: &[Vec<f32>], format: FloatFormat) -> StepSums {
        let values = |place: usize| ranks.iter().map(move |rank| round_to(format, rank[place]));
        let sum = |place| values(place).all(f32::is_finite).then(|| ExactSum::of(values(place)));
        let places = 0..ranks[0].len();
        StepSums {
            sums: places.clone().map(sum).collect(),
            contributions: places.map(|place| contributions(values(place))).collect(),
        }
    }

    /// The largest magnitudes of each block of so many elements; infinite where some contribution is no number, which spoils a block.
    fn blocks(&self, block_elements: usize) -> Vec<Contributions> {
        let known: Vec<_> = self.sums.iter().zip(&self.contributions).collect();
        let largest = |of: Contributions, (sum, own): &(&Option<ExactSum>, &Contributions)| {
            let spoilt = if sum.is_some() { 0.0 } else { f64::INFINITY };
            Contributions {
                worker_count: own.worker_count,
                magnitude_max: of.magnitude_max.max(own.magnitude_max).max(spoilt),
                magnitude_sum: of.magnitude_sum.max(own.magnitude_sum).max(spoilt),
            }
        };
        let none = Contributions { worker_count: 0, magnitude_max: 0.0, magnitude_sum: 0.0 };
        known.chunks(block_elements).map(|block| block.iter().fold(none, largest)).collect()
    }
}

fn contributions(values: impl Iterator<Item = f32>) -> Contributions {
    let start = Contributions { worker_count: 0, magnitude_max: 0.0, magnitude_sum: 0.0 };
    values.fold(start, |known, value| {
        let magnitude = f64::from(value.abs());
        Contributions {
            worker_count: known.worker_count + 1,
            magnitude_max: known.magnitude_max.max(magnitude),
            magnitude_sum: known.magnitude_sum + magnitude,
        }
    })
}

impl Tally {
    fn new(parameters: usize) -> Tally {
        Tally {
            absolute: Distribution::default(),
            relative: Distribution::default(),
            parameters: vec![Distribution::default(); parameters],
            telemetry: Telemetry::default(),
            order_changes: 0,
            of_bound: None,
        }
    }

    fn add_step(
        &mut self,
        summer: &Summer,
        ranks: &[Vec<f32>],
        sums: &StepSums,
        parameters: &[(String, usize)],
    ) -> anyhow::Result<()> {
        let mut tensors: Vec<&[f32]> = ranks.iter().map(Vec::as_slice).collect();
        let (mut forward, mut backward) = (vec![0.0; ranks[0].len()], vec![0.0; ranks[0].len()]);
        summer.sum(&tensors, &mut forward, &mut self.telemetry)?;
        tensors.reverse();
        summer.sum(&tensors, &mut backward, &mut Telemetry::default())?;
        self.order_changes += forward.iter().zip(&backward).filter(|(a, b)| a.to_bits() != b.to_bits()).count() as u64;
        let blocks = sums.blocks(summer.block_elements());
        let mut first = 0;
        for ((_, length), errors) in parameters.iter().zip(&mut self.parameters) {
            let places = first..first + length;
            let known = sums.sums[places.clone()].iter().zip(&sums.contributions[places.clone()]);
            for (place, ((sum, contributions), result)) in places.clone().zip(known.zip(&forward[places])) {
                let Some(sum) = sum else { continue };
                let error = sum.error_of(*result);
                self.absolute.add(error);
                errors.add(error);
                if sum.rounded != 0.0 {
                    self.relative.add(error / sum.rounded);
                }
                let promised = summer.certify(contributions, &blocks[place / summer.block_elements()]);
                let bound = promised.map_or(f64::INFINITY, |known| known.absolute_error);
                if bound.is_finite() {
                    let share = if error == 0.0 { 0.0 } else { error.abs() / bound };
                    self.of_bound = Some(self.of_bound.unwrap_or(0.0).max(share));
                }
            }
            first += length;
        }
        Ok(())
    }

    fn by_parameter(&self, accumulator: Accumulator, parameters: &[(String, usize)]) -> Vec<ParameterErrors> {
        let named = parameters.iter().zip(&self.parameters);
        let errors = |((name, _), errors): (&(String, usize), &Distribution)| ParameterErrors {
            parameter: name.clone(),
            accumulator: accumulator.name(),
            elements: errors.count + errors.not_finite,
            exact_percent: 100.0 * errors.exact_share(),
            median: errors.quantile(0.5),
            p99: errors.quantile(0.99),
            largest: errors.largest,
            not_finite: errors.not_finite,
        };
        named.map(errors).collect()
    }

    fn entry(&self, accumulator: Accumulator) -> Entry {
        let (absolute, relative, counts) = (&self.absolute, &self.relative, self.telemetry);
        let elements = absolute.count + absolute.not_finite;
        Entry {
            accumulator: accumulator.name(),
            elements,
            exact_percent: 100.0 * absolute.exact_share(),
            median: absolute.quantile(0.5),
            p99: absolute.quantile(0.99),
            largest: absolute.largest,
            bias: absolute.bias(),
            relative_median: relative.quantile(0.5),
            relative_p99: relative.quantile(0.99),
            not_finite: absolute.not_finite,
            order_percent: 100.0 * self.order_changes as f64 / elements.max(1) as f64,
            of_bound: self.of_bound,
            overflow: counts.overflow,
            saturation: counts.saturation,
            overwrite: counts.overwrite,
            left_shift: counts.left_shift,
            flushed_to_zero: counts.flushed_to_zero,
            lost_bits: counts.lost_bits,
        }
    }
}
