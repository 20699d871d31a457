//! Flows and jobs beside each other in a shared network (PANAMA §7, Figs. 8a to 8c).

use anyhow::{Context, ensure};
use fanin_sim::scenario::{CongestionName, JobInfo, Scenario, Scheme, Traffic, TreeChoice};
use serde::{Deserialize, Serialize};

use super::job;
use crate::findings::{Findings, Plot, Row, Sheet};
use crate::trial::{Flow, Progress, Spread, Trial, each, mean_ms, percentile_ms, throughput_gbps};

/// More jobs than that are not tried for a load.
const JOB_COUNT_MAX: u32 = 256;
/// Ours may differ from the paper's ratio by this share.
const TOLERANCE: f64 = 0.2;

/// `experiments/panama/fig8.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Runs with seeds from the scenario's on.
    seeds: u32,
    /// Shares of hosts' links that flows and, alone, rings would take: so many jobs are run.
    loads: Vec<f64>,
    /// What is compared.
    schemes: Vec<Way>,
    /// Jobs arrive one after another for their iterations, at a rate that gives the load, whatever the network does; without, as many as give it are there
    /// all the time.
    #[serde(default)]
    arrive: bool,
    /// Flows that start between these times are counted, ms; others are there all the time.
    counted_ms: [f64; 2],
    /// Flows up to this are short ones, bytes.
    short_bytes_max: u64,
    /// Flows from this on are long ones, bytes.
    long_bytes_min: u64,
    /// One job, of which there will be as many as the load asks for, beside flows.
    scenario: Scenario,
}

/// How jobs sum (PANAMA §7).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Jobs on a network of their own.
    Ideal,
    /// Rings.
    Ring,
    /// Rings whose connections do not see marks, and fill queues until one overflows.
    RingNewreno,
    /// SwitchML on PANAMA's trees: SwitchML*, which has no congestion control, and PANAMA's load balancing (§7).
    Switchml,
    /// The same on trees drawn by lot.
    SwitchmlLot,
    /// PANAMA.
    Panama,
    /// PANAMA on trees drawn by lot, the same as those of [`Way::SwitchmlLot`].
    PanamaLot,
    /// PANAMA that waits for 88 of 100 workers.
    #[serde(rename = "panama-0.88")]
    Panama088,
    /// PANAMA that waits for 94 of 100 workers.
    #[serde(rename = "panama-0.94")]
    Panama094,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Ideal => "ideal",
            Way::Ring => "ring",
            Way::RingNewreno => "ring over NewReno",
            Way::Switchml => "SwitchML*",
            Way::SwitchmlLot => "SwitchML* on drawn trees",
            Way::Panama => "PANAMA",
            Way::PanamaLot => "PANAMA on drawn trees",
            Way::Panama088 => "PANAMA-0.88",
            Way::Panama094 => "PANAMA-0.94",
        }
    }

    fn scheme(self) -> (Scheme, f64) {
        match self {
            Way::Ideal => (Scheme::Ideal, 1.0),
            Way::Ring | Way::RingNewreno => (Scheme::Ring, 1.0),
            Way::Switchml | Way::SwitchmlLot => (Scheme::Switchml, 1.0),
            Way::Panama | Way::PanamaLot => (Scheme::Panama, 1.0),
            Way::Panama088 => (Scheme::Panama, 0.88),
            Way::Panama094 => (Scheme::Panama, 0.94),
        }
    }

    fn trees(self) -> Option<TreeChoice> {
        match self {
            Way::Ideal | Way::Ring | Way::RingNewreno => None,
            Way::SwitchmlLot | Way::PanamaLot => Some(TreeChoice::Lot),
            Way::Switchml | Way::Panama | Way::Panama088 | Way::Panama094 => Some(TreeChoice::Controller),
        }
    }
}

impl super::Setting for Setting {
    fn reseed(&mut self, seed: u64) {
        self.scenario.seed = seed;
    }

    fn quicken(&mut self) {
        self.seeds = 1;
        self.loads.drain(..self.loads.len().saturating_sub(1));
        self.schemes = vec![Way::Ring, Way::Panama];
        self.counted_ms = [1.0, 10.0];
        self.scenario.duration_ms = 20.0;
        if let Ok(job) = job(&mut self.scenario) {
            job.scale /= 10.0;
        }
    }
}

/// A run that is to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    load: f64,
    way: Way,
    seed: u64,
    /// Its place among the scenarios: without jobs all schemes have one.
    scenario: usize,
}

/// How many jobs a run has.
#[derive(Clone, Copy, Debug)]
enum Jobs {
    /// From the begin to the end.
    Number(u32),
    /// Arrivals.
    PerSecond(f64),
}

impl Jobs {
    fn is_none(self) -> bool {
        matches!(self, Jobs::Number(0))
    }
}

/// What is read from a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    short_p99_ms: Option<f64>,
    short_mean_ms: f64,
    /// Flows up to 100 kB.
    tiny_p99_ms: Option<f64>,
    long_gbps: f64,
    /// By job.
    iteration_ms: Vec<Option<f64>>,
    counts: Counts,
    /// Mean share of the time that hosts' links to their switches were sending.
    busy: f64,
    hops: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Counts {
    short: usize,
    short_going_on: usize,
    long: usize,
    jobs: usize,
}

impl Setting {
    /// Figs. 8a to 8c.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, progress: &Progress) -> anyhow::Result<Findings> {
        let (runs, scenarios) = self.runs()?;
        let made = each(&scenarios, &self.what(), progress, |_, trial| self.measure(trial))?;
        let measured: Vec<Measured> = runs.iter().map(|run| made[run.scenario].clone()).collect();
        let results = Results { setting: self, runs: &runs, measured: &measured };
        let sheets = vec![results.medians(), results.sheet()];
        let plot = |name: &str, title: &str, y_label: &str, part: fn(&Measured) -> f64| Plot {
            name: name.into(),
            title: title.into(),
            x_label: "load on hosts' links, if jobs were rings alone".into(),
            y_label: y_label.into(),
            is_x_log: false,
            lines: results.lines(part),
        };
        let p99 = |one: &Measured| one.short_p99_ms.unwrap_or(f64::NAN);
        Ok(Findings {
            experiment: "fig8".into(),
            title: "Flows and jobs beside each other (§7, Figs. 8a to 8c)".into(),
            place: super::SIMULATED.into(),
            rows: results.rows(),
            notes: results.notes(),
            sheets,
            plots: vec![
                plot("short", "Short flows (Fig. 8a)", "99 in 100 took no longer, ms", p99),
                plot("long", "Long flows (Fig. 8b)", "mean throughput, Gbit/s", |one| one.long_gbps),
                plot("training", "Training (Fig. 8c)", "mean iteration, ms", |one| one.mean_iteration_ms()),
            ],
            hops: made.iter().map(|one| one.hops).sum(),
        })
    }

    fn runs(&self) -> anyhow::Result<(Vec<Run>, Vec<Scenario>)> {
        let [from, until] = self.counted_ms;
        ensure!(
            0.0 <= from && from < until && until <= self.scenario.duration_ms,
            "counted_ms = [{from}, {until}]: within the {} ms of the run, and the first before the second",
            self.scenario.duration_ms
        );
        ensure!(
            !self.loads.is_empty() && !self.schemes.is_empty() && self.seeds > 0,
            "loads, schemes and seeds: one at least"
        );
        let (mut runs, mut scenarios) = (Vec::new(), Vec::new());
        for &load in &self.loads {
            for seed in (0..u64::from(self.seeds)).map(|step| self.scenario.seed + step) {
                let jobs =
                    if self.arrive { self.arrivals(load, seed)? } else { Jobs::Number(self.job_count(load, seed)?) };
                for (place, &way) in self.schemes.iter().enumerate() {
                    if place == 0 || !jobs.is_none() {
                        scenarios.push(self.scenario(way, jobs, seed, load)?);
                    }
                    runs.push(Run { load, way, seed, scenario: scenarios.len() - 1 });
                }
            }
        }
        Ok((runs, scenarios))
    }

    fn scenario(&self, way: Way, jobs: Jobs, seed: u64, load: f64) -> anyhow::Result<Scenario> {
        let mut scenario = Scenario { seed, ..self.scenario.clone() };
        let what = if jobs.is_none() { "flows alone" } else { way.name() };
        scenario.title = format!("fig8: load {load}, {what}");
        let job = job(&mut scenario)?;
        (job.scheme, job.share) = way.scheme();
        // A ring's paths are drawn after its trees: so they are the same whatever the others have.
        job.trees = if job.scheme == Scheme::Ring { 1 } else { job.trees };
        job.congestion = (way == Way::RingNewreno).then_some(CongestionName::Newreno);
        job.choose_trees = way.trees();
        match jobs {
            Jobs::Number(0) => scenario.jobs.clear(),
            Jobs::Number(count) => job.count = count,
            Jobs::PerSecond(rate) => (job.count, job.arrivals_per_s) = (JOB_COUNT_MAX, Some(rate)),
        }
        Ok(scenario)
    }

    /// Share of hosts' links that is left to jobs.
    fn wanted(&self, load: f64) -> anyhow::Result<f64> {
        let of = |traffic: &Traffic| if let Traffic::Poisson { load, .. } = traffic { *load } else { 0.0 };
        let background: f64 = self.scenario.traffic.iter().map(of).sum();
        ensure!(load >= background - 1e-9, "a load of {load}, and flows alone are {background}");
        Ok(load - background)
    }

    /// So many jobs that with them the load is reached; those of a smaller load are the first of them.
    fn job_count(&self, load: f64, seed: u64) -> anyhow::Result<u32> {
        let mut wanted = self.wanted(load)?;
        if wanted <= 1e-9 {
            return Ok(0);
        }
        let plan = self.scenario(Way::Ideal, Jobs::Number(JOB_COUNT_MAX), seed, load)?.plan()?;
        for (place, info) in plan.jobs.iter().enumerate() {
            wanted -= self.ring_load(info, plan.fabric.host_count);
            if wanted <= 0.0 {
                return Ok(place as u32 + 1);
            }
        }
        anyhow::bail!("{JOB_COUNT_MAX} jobs are less than a load of {load}: let them be larger")
    }

    /// So many jobs a second that, as rings, they bring the load's bytes.
    fn arrivals(&self, load: f64, seed: u64) -> anyhow::Result<Jobs> {
        let wanted = self.wanted(load)?;
        if wanted <= 1e-9 {
            return Ok(Jobs::Number(0));
        }
        let plan = self.scenario(Way::Ideal, Jobs::Number(JOB_COUNT_MAX), seed, load)?.plan()?;
        let iterations = self.scenario.jobs.first().and_then(|job| job.iterations);
        let iterations = iterations.context("arrive = true: jobs need a number of iterations")?;
        let bits = |info: &JobInfo| 16.0 * (info.hosts.len() - 1) as f64 * info.bytes as f64 * f64::from(iterations);
        let mean = plan.jobs.iter().map(bits).sum::<f64>() / plan.jobs.len() as f64;
        Ok(Jobs::PerSecond(wanted * f64::from(plan.fabric.host_count) * self.scenario.links.gbps * 1e9 / mean))
    }

    /// Share of all hosts' links that the job takes as a ring, if it is alone.
    fn ring_load(&self, info: &JobInfo, hosts: u32) -> f64 {
        let workers = info.hosts.len() as f64;
        let sent_ms = 2.0 * (workers - 1.0) / workers * info.bytes as f64 * 8e3 / (self.scenario.links.gbps * 1e9);
        workers * sent_ms / (sent_ms + info.compute_ps as f64 / 1e9) / f64::from(hosts)
    }

    /// What decides about [`Setting::measure`].
    fn what(&self) -> String {
        format!("fig8: from {:?} ms, short {}, long {}", self.counted_ms, self.short_bytes_max, self.long_bytes_min)
    }

    fn measure(&self, trial: &Trial) -> anyhow::Result<Measured> {
        let flows = trial.flows(self.counted_ms);
        let of =
            |is_in: &dyn Fn(&Flow) -> bool| flows.iter().filter(|flow| is_in(flow)).copied().collect::<Vec<Flow>>();
        let short = of(&|flow| flow.bytes < self.short_bytes_max);
        let tiny = of(&|flow| flow.bytes <= 100_000);
        let long = of(&|flow| flow.bytes >= self.long_bytes_min);
        let hosts = trial.outcome.hosts.len() as u32;
        let sent =
            trial.outcome.links.iter().filter(|link| link.from < hosts).map(|link| link.counters.sent_bytes as f64);
        let possible = self.scenario.links.gbps * 1e9 / 8.0 * self.scenario.duration_ms / 1e3 * f64::from(hosts);
        Ok(Measured {
            short_p99_ms: percentile_ms(&short, 0.99),
            short_mean_ms: mean_ms(&short),
            tiny_p99_ms: percentile_ms(&tiny, 0.99),
            long_gbps: throughput_gbps(&long),
            iteration_ms: trial.iteration_ms(),
            counts: Counts {
                short: short.len(),
                short_going_on: short.iter().filter(|flow| !flow.has_ended).count(),
                long: long.len(),
                jobs: trial.jobs.len(),
            },
            busy: sent.sum::<f64>() / possible,
            hops: trial.outcome.packet_hops(),
        })
    }
}

impl Measured {
    fn mean_iteration_ms(&self) -> f64 {
        let times: Vec<f64> = self.iteration_ms.iter().flatten().copied().collect();
        times.iter().sum::<f64>() / times.len() as f64
    }

    /// Of the jobs that came to the end of an iteration in both runs, as in [`Measured::mean_iteration_ms`]; of what no job came to one in, as in [`quotient`].
    fn iteration_ratio(&self, other: &Measured) -> Option<f64> {
        let both: Vec<(f64, f64)> = (self.iteration_ms.iter().zip(&other.iteration_ms))
            .filter_map(|(own, other)| Some(((*own)?, (*other)?)))
            .collect();
        if both.is_empty() {
            return quotient(number(self.mean_iteration_ms()), number(other.mean_iteration_ms()));
        }
        let (own, other) = both.iter().fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
        Some(own / other)
    }
}

/// Of two times, where none is one too long to be known: it is infinitely many times as long as one that is known, and two of them cannot be compared.
fn quotient(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above, below) {
        (Some(above), Some(below)) => number(above / below),
        (None, Some(_)) => Some(f64::INFINITY),
        (Some(_), None) => Some(0.0),
        (None, None) => None,
    }
}

fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// Ratios of the seeds in which there is one.
struct Ratios {
    spread: Spread,
    used: usize,
    seeds: usize,
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} of {} seeds", self.spread, self.used, self.seeds)
    }
}

/// All runs and what they came to.
struct Results<'a> {
    setting: &'a Setting,
    runs: &'a [Run],
    measured: &'a [Measured],
}

impl Results<'_> {
    fn of(&self, load: f64, way: Way) -> impl Iterator<Item = &Measured> {
        let is_it = move |run: &&Run| (run.load, run.way) == (load, way);
        self.runs.iter().zip(self.measured).filter(move |(run, _)| is_it(run)).map(|(_, one)| one)
    }

    /// At the highest load, seed by seed; nothing if one of the two was not run.
    fn ratio(&self, ways: [Way; 2], ratio: impl Fn(&Measured, &Measured) -> Option<f64>) -> Option<Ratios> {
        let load = self.setting.loads.iter().copied().fold(0.0, f64::max);
        let [above, below] = ways.map(|way| self.of(load, way).collect::<Vec<_>>());
        let ratios: Vec<f64> = above.iter().zip(&below).filter_map(|(above, below)| ratio(above, below)).collect();
        let is_run = !above.is_empty() && !below.is_empty();
        is_run.then(|| Ratios { used: ratios.len(), seeds: above.len(), spread: Spread::new(ratios) })
    }

    fn rows(&self) -> Vec<Row> {
        let p99 = |above: &Measured, below: &Measured| quotient(above.short_p99_ms, below.short_p99_ms);
        let tiny = |above: &Measured, below: &Measured| quotient(above.tiny_p99_ms, below.tiny_p99_ms);
        let mean =
            |above: &Measured, below: &Measured| quotient(number(above.short_mean_ms), number(below.short_mean_ms));
        // Turned over: no throughput is the worst.
        let rate =
            |above: &Measured, below: &Measured| quotient(number(1.0 / below.long_gbps), number(1.0 / above.long_gbps));
        let training = |above: &Measured, below: &Measured| above.iteration_ratio(below);
        let rows = [
            ("99 % of short flows: ring / PANAMA (Fig. 8a)", 4.5, self.ratio([Way::Ring, Way::Panama], p99)),
            ("99 % of short flows: ring over NewReno / PANAMA", 4.5, self.ratio([Way::RingNewreno, Way::Panama], p99)),
            ("99 % of flows up to 100 kB: ring / PANAMA", 4.5, self.ratio([Way::Ring, Way::Panama], tiny)),
            (
                "99 % of flows up to 100 kB: ring over NewReno / PANAMA",
                4.5,
                self.ratio([Way::RingNewreno, Way::Panama], tiny),
            ),
            ("mean of short flows: ring / PANAMA", 2.0, self.ratio([Way::Ring, Way::Panama], mean)),
            ("99 % of short flows: SwitchML* / PANAMA", 3.5, self.ratio([Way::Switchml, Way::Panama], p99)),
            ("99 % of short flows: PANAMA / ideal", 1.0, self.ratio([Way::Panama, Way::Ideal], p99)),
            ("throughput of long flows: PANAMA / ring (Fig. 8b)", 1.33, self.ratio([Way::Panama, Way::Ring], rate)),
            ("training time: ring / PANAMA (Fig. 8c)", 1.34, self.ratio([Way::Ring, Way::Panama], training)),
            ("training time: ring over NewReno / PANAMA", 1.34, self.ratio([Way::RingNewreno, Way::Panama], training)),
            ("training time: PANAMA / SwitchML*", 1.05, self.ratio([Way::Panama, Way::Switchml], training)),
            (
                "training time: PANAMA / SwitchML*, both on drawn trees",
                1.05,
                self.ratio([Way::PanamaLot, Way::SwitchmlLot], training),
            ),
            (
                "training time: PANAMA / SwitchML* on drawn trees",
                1.05,
                self.ratio([Way::Panama, Way::SwitchmlLot], training),
            ),
        ];
        let row = |(quantity, paper, ours): (&str, f64, Option<Ratios>)| {
            let ours = ours?;
            let holds = (ours.spread.median() - paper).abs() <= TOLERANCE * paper;
            let row = Row::new(quantity, format!("{paper}"), ours.to_string(), holds);
            Some(if holds {
                row
            } else {
                row.because("docs/reference/panama-evaluation.md says what was found about it.")
            })
        };
        rows.into_iter().filter_map(row).collect()
    }

    fn notes(&self) -> Vec<String> {
        let setting = self.setting;
        let [from, until] = setting.counted_ms;
        let worst = self
            .measured
            .iter()
            .map(|one| one.counts.short_going_on as f64 / one.counts.short.max(1) as f64)
            .fold(0.0, f64::max);
        let busiest = setting.loads.iter().copied().fold(0.0, f64::max);
        vec![
            format!(
                "At a load of {busiest}; medians with the least and the most of {} seeds, of ratios between runs of the same seed. A scheme without a number, since more than one in a hundred flows or all iterations were not over, is infinitely worse than one that has it; a seed in which neither has one is left out. Counted are flows that start from {from} to {until} ms of {} ms, while traffic goes on at the same rate to the end: a flow that is not over then counts as slower than \
                 every one that is (99 %), with the time so far (mean), and with what has arrived of it (throughput). Of short flows these are at most {:.2} % of a run.",
                setting.seeds, setting.scenario.duration_ms, 100.0 * worst
            ),
            "Load is what flows and jobs as rings would take of hosts' links if nothing slowed them down: jobs wait for their sums, so they take less when it is crowded; the sheets have what was taken. Training times are of jobs that came to the end of an iteration in both runs.".into(),
            format!("Schemes in the sheet: {}.", setting.schemes.iter().enumerate().map(|(place, way)| format!("{place} {}", way.name())).collect::<Vec<_>>().join(", ")),
        ]
    }

    /// One row for each load and scheme.
    fn medians(&self) -> Sheet {
        let columns = "load,scheme,links busy,short flows 99 % ms,short flows mean ms,up to 100 kB 99 % ms,long flows Gbit/s,iteration ms";
        let mut rows = Vec::new();
        for &load in &self.setting.loads {
            for (place, &way) in self.setting.schemes.iter().enumerate() {
                let median = |part: &dyn Fn(&Measured) -> f64| Spread::new(self.of(load, way).map(part)).median();
                rows.push(vec![
                    load,
                    place as f64,
                    median(&|one| one.busy),
                    median(&|one| one.short_p99_ms.unwrap_or(f64::INFINITY)),
                    median(&|one| one.short_mean_ms),
                    median(&|one| one.tiny_p99_ms.unwrap_or(f64::INFINITY)),
                    median(&|one| one.long_gbps),
                    median(&Measured::mean_iteration_ms),
                ]);
            }
        }
        Sheet { name: "medians".into(), columns: columns.split(',').map(String::from).collect(), rows }
    }

    /// One row for each run.
    fn sheet(&self) -> Sheet {
        let columns = "load,scheme,seed,links busy,short flows,of these going on,short flows 99 % ms,short flows mean ms,up to 100 kB 99 % ms,long flows,long flows Gbit/s,jobs,of these without iteration,iteration ms";
        let place = |way| self.setting.schemes.iter().position(|one| *one == way).unwrap_or(0) as f64;
        let row = |(run, one): (&Run, &Measured)| {
            let counts = one.counts;
            let without = one.iteration_ms.iter().filter(|ms| ms.is_none()).count();
            let first = [
                run.load,
                place(run.way),
                run.seed as f64,
                one.busy,
                counts.short as f64,
                counts.short_going_on as f64,
            ];
            let times = [
                one.short_p99_ms.unwrap_or(f64::INFINITY),
                one.short_mean_ms,
                one.tiny_p99_ms.unwrap_or(f64::INFINITY),
            ];
            let last = [counts.long as f64, one.long_gbps, counts.jobs as f64, without as f64, one.mean_iteration_ms()];
            first.into_iter().chain(times).chain(last).collect()
        };
        let rows = self.runs.iter().zip(self.measured).map(row).collect();
        Sheet { name: "runs".into(), columns: columns.split(',').map(String::from).collect(), rows }
    }

    /// By scheme, medians over load.
    fn lines(&self, part: fn(&Measured) -> f64) -> Vec<(String, Vec<(f64, f64)>)> {
        let line = |&way: &Way| {
            let point = |&load: &f64| (load, Spread::new(self.of(load, way).map(part)).median());
            (way.name().to_owned(), self.setting.loads.iter().map(point).filter(|point| point.1.is_finite()).collect())
        };
        self.setting.schemes.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(iteration_ms: &[Option<f64>]) -> Measured {
        let counts = Counts { short: 1, short_going_on: 0, long: 1, jobs: iteration_ms.len() };
        let iteration_ms = iteration_ms.to_vec();
        Measured {
            short_p99_ms: None,
            short_mean_ms: 1.0,
            tiny_p99_ms: None,
            long_gbps: 1.0,
            iteration_ms,
            counts,
            busy: 0.5,
            hops: 1,
        }
    }

    #[test]
    fn schemes_differ_in_nothing_but_the_scheme_and_flows_alone_are_run_once() {
        let text = include_str!("../../../../experiments/panama/fig8.toml");
        let text = text.replace("loads = [0.4, 0.8]", "loads = [0.2, 0.4]");
        let setting: Setting = toml::from_str(&text).unwrap();
        let (runs, scenarios) = setting.runs().unwrap();
        assert_eq!((runs.len(), scenarios.len()), (2 * 3 * 5, 3 + 3 * 5));
        for run in &runs {
            let jobs = &scenarios[run.scenario].jobs;
            assert_eq!(jobs.is_empty(), run.load == 0.2);
            assert!(jobs.iter().all(|job| (job.scheme, job.share) == run.way.scheme()));
            assert_eq!(scenarios[run.scenario].seed, run.seed);
        }
    }

    #[test]
    fn jobs_that_arrive_bring_the_load() {
        let text = include_str!("../../../../experiments/panama/fig8.toml");
        let text = text.replace("seeds = 3", "seeds = 1\narrive = true").replace("[0.4, 0.8]", "[0.8]");
        let without: Setting = toml::from_str(&text).unwrap();
        assert!(without.runs().unwrap_err().to_string().contains("number of iterations"));
        let setting: Setting =
            toml::from_str(&text.replace("start_ms = [0.0, 20.0]", "start_ms = 0.0\niterations = 4")).unwrap();
        let (_, scenarios) = setting.runs().unwrap();
        let jobs = scenarios[1].plan().unwrap().jobs;
        let sent: f64 = jobs.iter().map(|job| 8.0 * (job.hosts.len() - 1) as f64 * job.bytes as f64).sum();
        // 128 links of 10 Gbit/s for 180 ms; twice for a ring, of each job's 4 iterations.
        let load = 8.0 * sent / (128.0 * 10e9 * 0.18);
        assert!((0.4..0.8).contains(&load), "{} jobs bring {load} of 0.6", jobs.len());
    }

    #[test]
    fn what_collapses_is_infinitely_worse_and_not_left_out() {
        assert_eq!(quotient(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(quotient(None, Some(2.0)), Some(f64::INFINITY));
        assert_eq!(quotient(Some(3.0), None), Some(0.0));
        assert_eq!(quotient(None, None), None);
        let [both, first, none] = [[Some(2.0), Some(4.0)], [Some(4.0), None], [None, None]].map(|ms| measured(&ms));
        assert_eq!(first.iteration_ratio(&both), Some(2.0), "of the first job alone");
        assert_eq!(none.iteration_ratio(&both), Some(f64::INFINITY));
        assert_eq!((both.iteration_ratio(&none), none.iteration_ratio(&none)), (Some(0.0), None));
        let ratios = [Some(1.0), Some(f64::INFINITY), None].into_iter().flatten();
        let ratios = Ratios { spread: Spread::new(ratios), used: 2, seeds: 3 };
        assert_eq!(ratios.to_string(), "inf (1.00 to inf), 2 of 3 seeds");
    }
}
