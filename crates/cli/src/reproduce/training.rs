//! Training in Python (`fanin.numerics.curves`), for accuracy curves and for recordings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use fanin_lab::findings::{Findings, Plot, Row, Sheet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::fleet::python;
use crate::bench::process::{Process, ask_all};

/// The first import of PyTorch reads gigabytes.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);
/// For one run.
const RUN_LIMIT: Duration = Duration::from_secs(3600);
/// A quick run's steps.
const QUICK_STEPS: u32 = 6;

/// A model, and for how long it is trained.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Of `fanin.numerics.models`.
    model: String,
    steps: u32,
    rate: f64,
}

/// Parameters of accuracy curves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curves {
    seeds: Vec<u64>,
    workers: u32,
    batch: u32,
    formats: Vec<String>,
    /// The first is what the others are compared with.
    accumulators: Vec<String>,
    points: u32,
    models: Vec<Model>,
}

/// Parameters of recordings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recordings {
    seed: u64,
    workers: u32,
    batch: u32,
    steps_recorded: u32,
    models: Vec<Model>,
}

/// What a paper says of its curves.
pub struct Claim {
    pub experiment: &'static str,
    pub title: &'static str,
    /// Beside the difference of the last accuracies.
    pub paper: &'static str,
    /// Points of percent that the claim allows.
    pub points_max: f64,
    /// Why rows differ that do.
    pub reason: &'static str,
    pub note: &'static str,
}

/// One run's answer.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    /// Step, training loss since the last point, test accuracy.
    points: Vec<(f64, f64, f64)>,
    counts: Counts,
    lost_elements: u64,
    additions: u64,
    elements: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Counts {
    overflow: u64,
    overwrite: u64,
    left_shift: u64,
}

/// A Python process that trains.
struct Trainer {
    process: [Process; 1],
    version: String,
}

impl Trainer {
    fn start() -> anyhow::Result<Trainer> {
        let python = python();
        let command = [python.clone(), "-m".into(), "fanin.numerics.curves".into()];
        let process = Process::start("training".into(), None, &command, &[("OMP_NUM_THREADS", "1")])?;
        let mut trainer = Trainer { process: [process], version: String::new() };
        let probe = trainer.ask(&json!({ "op": "probe" }), IMPORT_LIMIT).with_context(|| {
            format!("{} cannot train; FANIN_PYTHON names an interpreter with PyTorch and fanin", python.display())
        })?;
        trainer.version = probe["version"].as_str().unwrap_or("unknown").to_owned();
        Ok(trainer)
    }

    fn ask(&mut self, request: &Value, limit: Duration) -> anyhow::Result<Value> {
        Ok(ask_all(&mut self.process, &[request.to_string()], limit)?.remove(0))
    }
}

/// Trains each model of a file of recordings and returns the folders that hold their gradients, under `folder`.
///
/// # Errors
/// No PyTorch, or a folder that cannot be written.
pub fn record(parameters: &str, folder: &Path, seed: Option<u64>, is_quick: bool) -> anyhow::Result<Vec<PathBuf>> {
    let recordings: Recordings = toml::from_str(parameters).context("parameters of recordings")?;
    let mut trainer = Trainer::start()?;
    let mut folders = Vec::new();
    for model in &recordings.models {
        let steps = if is_quick { QUICK_STEPS } else { model.steps };
        let count = if is_quick { 1 } else { recordings.steps_recorded };
        let name = format!("{}-{}", model.model, recordings.workers);
        eprintln!("{name}: training {steps} steps to record gradients");
        let into = folder.join(name);
        let request = json!({
            "op": "train", "model": model.model, "format": "float32", "accumulator": "ieee",
            "workers": recordings.workers, "batch": recordings.batch, "rate": model.rate, "steps": steps, "points": 1,
            "seed": seed.unwrap_or(recordings.seed), "record": into, "record_steps": recorded_steps(steps, count),
        });
        trainer.ask(&request, RUN_LIMIT)?;
        folders.push(into);
    }
    Ok(folders)
}

/// As many of the beginning, of the middle and of the end.
fn recorded_steps(steps: u32, count: u32) -> Vec<u32> {
    let begins = [0, steps.saturating_sub(count) / 2, steps.saturating_sub(count)];
    begins.iter().flat_map(|begin| *begin..begin + count).collect()
}

/// One model in one format: the runs of each accumulator, by seed.
struct Case {
    name: String,
    runs: Vec<Vec<Run>>,
}

/// Trains every model in every format with every accumulator from every seed.
///
/// # Errors
/// Parameters that make no sense, no PyTorch, or what the training complained about.
pub fn curves(parameters: &str, seed: Option<u64>, is_quick: bool, claim: &Claim) -> anyhow::Result<Findings> {
    let mut setting: Curves =
        toml::from_str(parameters).with_context(|| format!("parameters of {}", claim.experiment))?;
    setting.seeds = seed.map_or(setting.seeds, |seed| vec![seed]);
    if is_quick {
        setting.quicken();
    }
    ensure!(setting.accumulators.len() > 1 && !setting.seeds.is_empty(), "name two accumulators and a seed at least");
    let mut trainer = Trainer::start()?;
    let mut cases = Vec::new();
    for model in &setting.models {
        for format in &setting.formats {
            let case = setting.case(&mut trainer, model, format)?;
            cases.push(case);
        }
    }
    Ok(setting.findings(&cases, &trainer.version, claim))
}

impl Curves {
    fn quicken(&mut self) {
        self.seeds.truncate(1);
        self.points = 2;
        self.models.iter_mut().for_each(|model| model.steps = QUICK_STEPS);
    }

    fn case(&self, trainer: &mut Trainer, model: &Model, format: &str) -> anyhow::Result<Case> {
        let name = format!("{}, {format}", model.model);
        let mut runs = Vec::new();
        for accumulator in &self.accumulators {
            let mut of_seeds = Vec::new();
            for seed in &self.seeds {
                let request = json!({
                    "op": "train", "model": model.model, "format": format, "accumulator": accumulator,
                    "workers": self.workers, "batch": self.batch, "rate": model.rate, "steps": model.steps,
                    "points": self.points, "seed": seed,
                });
                let run: Run = serde_json::from_value(trainer.ask(&request, RUN_LIMIT)?)?;
                let last = run.points.last().map_or(0.0, |point| point.2);
                eprintln!("{name}, {accumulator}, seed {seed}: {:.2} %", 100.0 * last);
                of_seeds.push(run);
            }
            runs.push(of_seeds);
        }
        Ok(Case { name, runs })
    }

    fn findings(&self, cases: &[Case], version: &str, claim: &Claim) -> Findings {
        let seeds = self.seeds.len();
        Findings {
            experiment: claim.experiment.into(),
            title: claim.title.into(),
            place: format!(
                "PyTorch {version}, {} workers in one process, batches of {}, seeds: {seeds}",
                self.workers, self.batch
            ),
            rows: cases.iter().flat_map(|case| self.rows(case, claim)).collect(),
            notes: vec![claim.note.to_owned()],
            sheets: cases.iter().map(|case| self.sheet(case)).collect(),
            plots: cases.iter().map(|case| self.plot(case)).collect(),
            hops: 0,
        }
    }

    fn rows(&self, case: &Case, claim: &Claim) -> Vec<Row> {
        let base = last_accuracies(&case.runs[0]);
        let spread = spread(&base);
        let others = self.accumulators.iter().zip(&case.runs).skip(1);
        let row = |(name, runs): (&String, &Vec<Run>)| {
            let found = last_accuracies(runs);
            let difference = mean(&found) - mean(&base);
            let ours = format!(
                "{difference:+.2} points ({:.2} % against {:.2} %, whose seeds lie {spread:.2} apart{})",
                mean(&found),
                mean(&base),
                causes(runs)
            );
            let quantity = format!("{}: accuracy with {name} against {}", case.name, self.accumulators[0]);
            let holds = -difference <= claim.points_max.max(spread);
            Row::new(quantity, claim.paper, ours, holds).because(if holds { "" } else { claim.reason })
        };
        others.map(row).collect()
    }

    /// Means over the seeds.
    fn sheet(&self, case: &Case) -> Sheet {
        let steps = case.runs[0][0].points.iter().map(|point| point.0);
        let names = self
            .accumulators
            .iter()
            .flat_map(|name| [format!("{name}, accuracy, %"), format!("{name}, training loss")]);
        let row = |(place, step): (usize, f64)| {
            let of = |runs: &Vec<Run>| {
                let at = |value: fn(&(f64, f64, f64)) -> f64| {
                    mean(&runs.iter().map(|run| value(&run.points[place])).collect::<Vec<_>>())
                };
                [100.0 * at(|point| point.2), at(|point| point.1)]
            };
            [step].into_iter().chain(case.runs.iter().flat_map(of)).collect()
        };
        Sheet {
            name: case.name.replace(", ", "-"),
            columns: ["step".to_owned()].into_iter().chain(names).collect(),
            rows: steps.enumerate().map(row).collect(),
        }
    }

    fn plot(&self, case: &Case) -> Plot {
        let sheet = self.sheet(case);
        let line = |(place, name): (usize, &String)| {
            let points = sheet.rows.iter().map(|row| (row[0], row[1 + 2 * place])).collect();
            (name.clone(), points)
        };
        Plot {
            name: sheet.name.clone(),
            title: format!("Test accuracy, {}", case.name),
            x_label: "step".into(),
            y_label: "accuracy, %".into(),
            is_x_log: false,
            lines: self.accumulators.iter().enumerate().map(line).collect(),
        }
    }
}

/// Percent, by seed.
fn last_accuracies(runs: &[Run]) -> Vec<f64> {
    runs.iter().filter_map(|run| run.points.last()).map(|point| 100.0 * point.2).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn spread(values: &[f64]) -> f64 {
    let (low, high) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    (high - low).max(0.0)
}

/// What the sums met, if anything.
fn causes(runs: &[Run]) -> String {
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let percent = |count: u64, all: u64| 100.0 * count as f64 / all.max(1) as f64;
    let (overwrites, shifts) = (sum(|run| run.counts.overwrite), sum(|run| run.counts.left_shift));
    if overwrites + shifts == 0 {
        return String::new();
    }
    let (additions, elements) = (sum(|run| run.additions), sum(|run| run.elements));
    format!(
        "; {:.2} % of additions overwrite, {:.1} % shift left, {:.3} % of sums overflow and are left out",
        percent(overwrites, additions),
        percent(shifts, additions),
        percent(sum(|run| run.lost_elements).max(sum(|run| run.counts.overflow)), elements)
    )
}
