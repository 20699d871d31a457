//! What several trees are worth (PANAMA §7, Fig. 9).

use fanin_sim::scenario::{Scenario, Scheme, Traffic};
use serde::Deserialize;

use super::job;
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::trial::{Progress, Spread, each};

/// `experiments/panama/fig9.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Runs with seeds from the scenario's on: paths are drawn by lot.
    seeds: u32,
    /// Numbers of long flows: the first ones of the scenario's list.
    long_flows: Vec<usize>,
    /// One job, and a list of flows.
    scenario: Scenario,
}

impl super::Setting for Setting {
    fn reseed(&mut self, seed: u64) {
        self.scenario.seed = seed;
    }

    fn quicken(&mut self) {
        self.seeds = 1;
        self.scenario.duration_ms /= 10.0;
        self.long_flows = vec![0, *self.long_flows.last().unwrap_or(&0)];
    }
}

/// How the job sums.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    name: &'static str,
    scheme: Scheme,
    trees: u32,
}

const WAYS: [Way; 4] = [
    Way { name: "PANAMA, 4 trees", scheme: Scheme::Panama, trees: 4 },
    Way { name: "PANAMA, 1 tree", scheme: Scheme::Panama, trees: 1 },
    Way { name: "ring", scheme: Scheme::Ring, trees: 1 },
    Way { name: "SwitchML, 4 trees", scheme: Scheme::Switchml, trees: 4 },
];

impl Setting {
    /// Fig. 9.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, progress: &Progress) -> anyhow::Result<Findings> {
        let seeds = || 0..u64::from(self.seeds);
        let of_count =
            |&count: &usize| WAYS.into_iter().flat_map(move |way| seeds().map(move |seed| (count, way, seed)));
        let runs: Vec<(usize, Way, u64)> = self.long_flows.iter().flat_map(of_count).collect();
        let scenarios = runs.iter().map(|&(count, way, seed)| self.scenario(count, way, seed));
        let scenarios: Vec<Scenario> = scenarios.collect::<anyhow::Result<_>>()?;
        let measured = each(&scenarios, "fig9", progress, |_, trial| {
            Ok((trial.aggregation_ms()[0], trial.outcome.packet_hops()))
        })?;
        // A run that came to the end of no sum took longer than all others.
        let latency = |count: usize, way: Way| {
            let own = runs.iter().zip(&measured).filter(move |((other, name, _), _)| (*other, *name) == (count, way));
            Spread::new(own.map(|(_, (ms, _))| ms.unwrap_or(f64::INFINITY)))
        };
        let most = self.long_flows.iter().copied().max().unwrap_or(0);
        let [four, one, ring, switchml] = WAYS.map(|way| latency(most, way));
        let rows = vec![
            Row::new(format!("{most} long flows: PANAMA's 4 trees against 1, ms"), "4 trees faster", format!("{four} against {one}"), four.median() < one.median()),
            Row::new(format!("{most} long flows: PANAMA's 4 trees against a ring, ms"), "4 trees faster", format!("{four} against {ring}"), four.median() < ring.median())
                .because("A ring's connections keep their own windows; a mark on any branch of a tree slows all ranks down, and the worst tree binds the others."),
            Row::new(format!("{most} long flows: 1 tree against a ring, ms"), "1 tree can be slower", format!("{one} against {ring}"), one.median() > ring.median()),
            Row::new(format!("{most} long flows: SwitchML on 4 trees, ms"), "not shown", switchml.to_string(), true).unjudged().because("It does not give way."),
        ];
        let mut columns = vec!["long flows".to_owned()];
        columns.extend(WAYS.iter().map(|way| format!("{}, ms", way.name)));
        let numbers = self.long_flows.iter().map(|&count| {
            let medians = WAYS.iter().map(|way| latency(count, *way).median());
            std::iter::once(count as f64).chain(medians).collect()
        });
        let sheet = Sheet { name: "latency".into(), columns, rows: numbers.collect() };
        Ok(Findings {
            experiment: "fig9".into(),
            title: "Time to sum beside long flows, on several trees and one (§7, Fig. 9)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![format!(
                "Medians with the least and the most of {} seeds, which draw the paths of flows and connections; `inf` is a run that summed nothing in {} ms.",
                self.seeds, self.scenario.duration_ms
            )],
            plots: vec![Plot {
                name: "latency".into(),
                title: "Time to sum beside long flows".into(),
                x_label: "long flows".into(),
                y_label: "median time to sum, ms".into(),
                is_x_log: false,
                lines: sheet.lines(),
            }],
            sheets: vec![sheet],
            hops: measured.iter().map(|run| run.1).sum(),
        })
    }

    fn scenario(&self, count: usize, way: Way, seed: u64) -> anyhow::Result<Scenario> {
        let mut scenario = self.scenario.clone();
        scenario.title = format!("fig9: {count} long flows, {}", way.name);
        scenario.seed += seed;
        for traffic in &mut scenario.traffic {
            if let Traffic::List { flows } = traffic {
                anyhow::ensure!(count <= flows.len(), "long_flows has {count}, and the list has {} flows", flows.len());
                flows.truncate(count);
            }
        }
        let job = job(&mut scenario)?;
        (job.scheme, job.trees) = (way.scheme, way.trees);
        Ok(scenario)
    }
}
