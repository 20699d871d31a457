//! How much faster training alone gets (PANAMA §2, Fig. 1).

use anyhow::ensure;
use fanin_sim::scenario::{Models, Scenario, Scheme};
use serde::{Deserialize, Serialize};

use super::job;
use crate::findings::{Findings, Row, Sheet};
use crate::trial::{Progress, Trial, each};

/// The speed-ups that the paper prints: the least and the most of its models.
const PRINTED: [(&str, [f64; 2]); 2] = [("P100", [1.15, 1.53]), ("A100", [1.06, 1.28])];

/// `experiments/panama/fig1.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// By name.
    models: Vec<String>,
    /// A speed-up may differ from the paper's estimate by this share.
    tolerance: f64,
    gpu: Vec<Gpu>,
    /// One job; its model, scheme and speed are set.
    scenario: Scenario,
}

/// A generation of GPUs, and the network that it comes with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    name: String,
    /// Rate of the links.
    gbps: f64,
    /// Than the P100.
    faster: f64,
    /// Simulated time, enough for a few iterations.
    duration_ms: f64,
}

/// What a run came to.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    iteration_ms: f64,
    summing_ms: f64,
    /// Of the gradients' bits, twice: they go and come.
    link_ms: f64,
    compute_ms: f64,
    hops: u64,
}

impl super::Setting for Setting {
    fn reseed(&mut self, seed: u64) {
        self.scenario.seed = seed;
    }

    fn quicken(&mut self) {
        self.models.truncate(2);
        for gpu in &mut self.gpu {
            gpu.duration_ms /= 2.0;
        }
    }
}

impl Setting {
    /// Fig. 1.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, progress: &Progress) -> anyhow::Result<Findings> {
        ensure!(!self.models.is_empty() && !self.gpu.is_empty(), "models and [[gpu]]: name at least one of each");
        let runs = self.cases().flat_map(|(_, gpu, model)| [Scheme::Ring, Scheme::Panama].map(|by| (gpu, model, by)));
        let scenarios: Vec<Scenario> =
            runs.map(|(gpu, model, scheme)| self.scenario(gpu, model, scheme)).collect::<anyhow::Result<_>>()?;
        let measured =
            each(&scenarios, "fig1", progress, |place, trial| Ok(Measured::new(scenarios[place].links.gbps, trial)))?;
        let mut rows = Vec::new();
        let mut numbers = Vec::new();
        for ((place, gpu, model), pair) in self.cases().zip(measured.chunks_exact(2)) {
            let [ring, panama] = [&pair[0], &pair[1]];
            let ratio = ring.link_ms / (ring.link_ms + ring.compute_ms);
            let (estimate, speedup) = (1.0 / (1.0 - ratio / 2.0), ring.iteration_ms / panama.iteration_ms);
            let times = [ring.iteration_ms, panama.iteration_ms, ring.summing_ms, panama.summing_ms];
            let which = [place / self.models.len(), place % self.models.len()].map(|place| place as f64);
            numbers.push([&which[..], &times, &[ratio, estimate, speedup]].concat());
            let holds = (speedup - estimate).abs() <= self.tolerance * estimate;
            let what = format!("{}, {} Gbit/s, {model}: ring / PANAMA", gpu.name, gpu.gbps);
            let row = Row::new(what, format!("{estimate:.2}"), format!("{speedup:.2}"), holds);
            rows.push(row.because("The paper's estimate is for a ring that sends twice the gradients, without headers; a ring of n sends 2 (n - 1) / n times."));
        }
        let columns = "GPU,model,ring: iteration ms,PANAMA: iteration ms,ring: summing ms,PANAMA: summing ms,communication (Fig. 1a),paper's estimate,speed-up";
        let names: Vec<&str> = self.gpu.iter().map(|gpu| gpu.name.as_str()).collect();
        Ok(Findings {
            experiment: "fig1".into(),
            title: "How much faster training alone gets (§2, Fig. 1)".into(),
            place: super::SIMULATED.into(),
            notes: self.notes(&numbers, &names),
            rows,
            sheets: vec![Sheet {
                name: "iterations".into(),
                columns: columns.split(',').map(String::from).collect(),
                rows: numbers,
            }],
            plots: Vec::new(),
            hops: measured.iter().map(|run| run.hops).sum(),
        })
    }

    /// Each GPU with each model, in the order of runs.
    fn cases(&self) -> impl Iterator<Item = (usize, &Gpu, &str)> {
        let pairs = self.gpu.iter().flat_map(|gpu| self.models.iter().map(move |model| (gpu, model.as_str())));
        pairs.enumerate().map(|(place, (gpu, model))| (place, gpu, model))
    }

    fn notes(&self, numbers: &[Vec<f64>], names: &[&str]) -> Vec<String> {
        let of = |generation: usize, column: usize| {
            let rows = numbers.iter().filter(move |row| row[0] as usize == generation);
            rows.map(move |row| row[column])
                .fold([f64::INFINITY, 0.0f64], |[least, most], x| [least.min(x), most.max(x)])
        };
        let mut notes = vec![
            "The paper's numbers are its rule 1 / (1 - r / 2), with r the share of communication in an iteration. Times of computing are TensorFlow's public ones for the P100, which give the ends that the paper \
             prints; it has measured those of its V100 and A100 itself and does not tell them: ours are the P100's, divided by `faster`."
                .to_string(),
        ];
        for (generation, gpu) in self.gpu.iter().enumerate() {
            let ([share_least, share_most], [least, most]) = (of(generation, 6), of(generation, 7));
            let printed = PRINTED.iter().find(|(name, _)| *name == gpu.name);
            let printed =
                printed.map_or("prints none".into(), |(_, [least, most])| format!("prints {least} to {most}"));
            notes.push(format!(
                "{}, {} times as fast as the P100, {} Gbit/s: communication {share_least:.2} to {share_most:.2} of an iteration (Fig. 1a: 0.11 to 0.70 over all), by the rule {least:.2} to {most:.2} times as fast; the paper {printed}.",
                gpu.name, gpu.faster, gpu.gbps
            ));
        }
        notes.push(format!("GPUs in the sheet: {}. Models: {}.", names.join(", "), self.models.join(", ")));
        notes
    }

    fn scenario(&self, gpu: &Gpu, model: &str, scheme: Scheme) -> anyhow::Result<Scenario> {
        let mut scenario = self.scenario.clone();
        scenario.title = format!("fig1: {}, {model}, {scheme}", gpu.name);
        (scenario.links.gbps, scenario.duration_ms) = (gpu.gbps, gpu.duration_ms);
        let job = job(&mut scenario)?;
        (job.model, job.scheme, job.faster) = (Some(Models::One(model.into())), scheme, gpu.faster);
        Ok(scenario)
    }
}

impl Measured {
    fn new(gbps: f64, trial: &Trial) -> Measured {
        let info = &trial.jobs[0];
        let [iteration_ms, summing_ms] =
            [trial.iteration_ms()[0], trial.aggregation_ms()[0]].map(|ms| ms.unwrap_or(f64::NAN));
        Measured {
            iteration_ms,
            summing_ms,
            link_ms: 2.0 * info.bytes as f64 * 8e-6 / gbps,
            compute_ms: info.compute_ps as f64 / 1e9,
            hops: trial.outcome.packet_hops(),
        }
    }
}
