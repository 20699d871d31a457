//! How much faster training alone gets (PANAMA §2, Fig. 1).

use fanin_sim::scenario::{Models, Scenario, Scheme};
use serde::Deserialize;

use super::job;
use crate::findings::{Findings, Row, Sheet};
use crate::trial::{Progress, each};

/// `experiments/panama/fig1.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// By name.
    models: Vec<String>,
    /// A speed-up may differ from the paper's estimate by this share.
    tolerance: f64,
    /// One job; its model and scheme are set.
    scenario: Scenario,
}

impl super::Setting for Setting {
    fn reseed(&mut self, seed: u64) {
        self.scenario.seed = seed;
    }

    fn quicken(&mut self) {
        self.models.truncate(2);
        self.scenario.duration_ms /= 2.0;
    }
}

impl Setting {
    /// Fig. 1b.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, progress: &Progress) -> anyhow::Result<Findings> {
        let runs = self.models.iter().flat_map(|model| [(model, Scheme::Ring), (model, Scheme::Panama)]);
        let scenarios: Vec<Scenario> =
            runs.map(|(model, scheme)| self.scenario(model, scheme)).collect::<anyhow::Result<_>>()?;
        let measured = each(&scenarios, "fig1", progress, |_, trial| {
            let info = &trial.jobs[0];
            let rate_bps = self.scenario.links.gbps * 1e9;
            let time = [trial.iteration_ms()[0], trial.aggregation_ms()[0]].map(|ms| ms.unwrap_or(f64::NAN));
            // Gradients go and come, as long as the link takes for twice their bits.
            let link_ms = 2.0 * info.bytes as f64 * 8e3 / rate_bps;
            Ok((time, link_ms, info.compute_ps as f64 / 1e9, trial.outcome.packet_hops()))
        })?;
        let mut rows = Vec::new();
        let mut numbers = Vec::new();
        for (place, (model, pair)) in self.models.iter().zip(measured.chunks_exact(2)).enumerate() {
            let [(ring, link_ms, compute_ms, _), (panama, ..)] = [pair[0], pair[1]];
            let ratio = link_ms / (link_ms + compute_ms);
            let (estimate, speedup) = (1.0 / (1.0 - ratio / 2.0), ring[0] / panama[0]);
            numbers.push(vec![place as f64, ring[0], panama[0], ring[1], panama[1], ratio, estimate, speedup]);
            let holds = (speedup - estimate).abs() <= self.tolerance * estimate;
            let row =
                Row::new(format!("{model}: ring / PANAMA"), format!("{estimate:.2}"), format!("{speedup:.2}"), holds);
            rows.push(row.because("The paper's estimate is for a ring that sends twice the gradients, without headers; a ring of n sends 2 (n - 1) / n times."));
        }
        let columns = "model,ring: iteration ms,PANAMA: iteration ms,ring: summing ms,PANAMA: summing ms,communication (Fig. 1a),paper's estimate,speed-up";
        Ok(Findings {
            experiment: "fig1".into(),
            title: "How much faster training alone gets (§2, Fig. 1)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![
                "The paper's numbers are its rule 1 / (1 - r / 2), with r the share of communication in an iteration, for the P100 and 10 Gbit/s: it prints 1.15 to 1.53, and r up to 0.70. Times of computing are TensorFlow's public ones, which give these ends; those \
                 of its V100 and A100 are not public."
                    .into(),
                format!("Models in the sheet: {}.", self.models.join(", ")),
            ],
            sheets: vec![Sheet { name: "iterations".into(), columns: columns.split(',').map(String::from).collect(), rows: numbers }],
            plots: Vec::new(),
            hops: measured.iter().map(|run| run.3).sum(),
        })
    }

    fn scenario(&self, model: &str, scheme: Scheme) -> anyhow::Result<Scenario> {
        let mut scenario = self.scenario.clone();
        scenario.title = format!("fig1: {model}, {scheme}");
        let job = job(&mut scenario)?;
        (job.model, job.scheme) = (Some(Models::One(model.into())), scheme);
        Ok(scenario)
    }
}
