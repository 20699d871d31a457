//! Training steps of SwitchML's Table 1 replayed packet by packet, with a ring and with a switch (SwitchML §6.2, Figs. 4 and 5).

use anyhow::{Context, ensure};
use fanin_sim::job::table1::{ROWS, Row as Model};
use fanin_sim::scenario::{Scenario, Scheme};
use serde::Deserialize;

use crate::advise::{Profile, profile_of};
use crate::atp::Options;
use crate::findings::{Findings, Row, Sheet};
use crate::trial::{Progress, each};

/// `experiments/switchml/fig4.toml` and `fig5.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// By the name of Table 1.
    models: Vec<String>,
    /// Machines that compute so many times as fast as the table's.
    compute_speedups: Vec<f64>,
    /// Equal parts of the gradients, each summed when it is ready.
    buckets: u32,
    /// Larger models are made so large, with times of computing to match: their buckets would still take far longer than their latencies.
    bytes_max: u64,
    /// What the paper's speed-ups over NCCL on RDMA are between.
    paper: [f64; 2],
    /// What the paper says in words of models, on its own machines.
    #[serde(default)]
    words: Words,
    /// One job; gradients, times, scale and scheme are set.
    scenario: Scenario,
}

/// §6.2 has the bars of Fig. 4 without numbers, and these words.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Words {
    /// "Major improvements".
    major: Vec<String>,
    /// "Somewhat lower", "modest".
    modest: Vec<String>,
    /// "Not network-bound at 100 Gbps", or not among the models that are.
    not_bound: Vec<String>,
}

impl Words {
    /// The words, and the speed-ups that are taken for them.
    fn of(&self, model: &str) -> Option<(&'static str, [f64; 2])> {
        let has = |models: &[String]| models.iter().any(|one| one == model);
        // The dividing lines are ours. A major improvement is at least Table 2's prediction for the lesser of its two models.
        if has(&self.major) {
            Some(("a major improvement: 1.2 or more", [MAJOR, f64::INFINITY]))
        } else if has(&self.modest) {
            Some(("a modest one: 1.05 to 1.2", [ABOUT_ONE, MAJOR]))
        } else if has(&self.not_bound) {
            Some(("not bound by the network: 0.95 to 1.05", [2.0 - ABOUT_ONE, ABOUT_ONE]))
        } else {
            None
        }
    }
}

const MAJOR: f64 = 1.2;
const ABOUT_ONE: f64 = 1.05;
/// The largest and the least speed-up may differ from the paper's by this share.
const TOLERANCE: f64 = 0.2;

/// A run that is to be made.
struct Run {
    model: &'static Model,
    compute_speedup: f64,
    scheme: Scheme,
}

const IDEAL_RING: &str = "NCCL's ring is slower than this one, which takes what packets take: Table 2's prediction for such a ring is lower, too.";
const SCHEMES: [Scheme; 2] = [Scheme::Ring, Scheme::Switchml];

impl Setting {
    /// From the options' parameters or the built-in ones of the figure.
    ///
    /// # Errors
    /// Parameters that make no sense.
    pub fn read(figure: &str, built_in: &str, options: &Options) -> anyhow::Result<Setting> {
        let text = options.parameters.as_deref().unwrap_or(built_in);
        let read = toml::from_str(text);
        let mut setting: Setting = read.with_context(|| {
            format!("these are not parameters of {figure}: begin with a copy of experiments/switchml/{figure}.toml")
        })?;
        setting.scenario.seed = options.seed.unwrap_or(setting.scenario.seed);
        if options.is_quick {
            setting.models.truncate(2);
            setting.bytes_max /= 20;
        }
        Ok(setting)
    }

    /// Replays all models.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, figure: &str, title: &str, progress: &Progress) -> anyhow::Result<Findings> {
        let runs = self.runs()?;
        let scenarios = runs.iter().map(|run| self.scenario(figure, run)).collect::<anyhow::Result<Vec<_>>>()?;
        let measured = each(&scenarios, "replay", progress, |_, trial| {
            let ms = trial.iteration_ms()[0].context("no iteration ended: let duration_ms be longer")?;
            Ok((ms, trial.outcome.packet_hops()))
        })?;
        let (mut rows, mut numbers, mut speedups) = (Vec::new(), Vec::new(), Vec::new());
        for (pair, times) in runs.chunks_exact(2).zip(measured.chunks_exact(2)) {
            let (run, [ring, switch]) = (&pair[0], [times[0].0, times[1].0]);
            rows.push(self.row(run, ring / switch));
            speedups.push(ring / switch);
            let place = ROWS.iter().position(|row| row.name == run.model.name).unwrap_or(0);
            numbers.push(vec![place as f64, run.compute_speedup, ring, switch, ring / switch]);
        }
        rows.extend(self.ends(&speedups));
        let columns = ["model", "compute speed-up", "ring: step, ms", "switch: step, ms", "speed-up"];
        Ok(Findings {
            experiment: figure.into(),
            title: title.into(),
            place: "simulated time: every packet (`fanin sim`)".into(),
            rows,
            notes: vec![
                "The paper's bars are not printed as numbers; it says between which they are over NCCL on RDMA, the nearest to this ring, which has no costs but those of packets. Over NCCL on TCP the paper has more, up to ten times: that is \
                 TCP's processing at 100 Gbit/s, which is not simulated."
                    .into(),
                format!(
                    "Gradients become ready as `fanin advise` fits it to Table 1, in {} equal buckets; the paper replayed recorded traces, which are not public. Models in the sheet are numbered as in Table 1.",
                    self.buckets
                ),
                format!(
                    "Models above {:.0} MB are scaled down to it, with their times of computing: what a packet or a round takes weighs more in them than in the whole model. Where the dividing lines between the paper's words lie is our choice.",
                    self.bytes_max as f64 / 1e6
                ),
            ],
            sheets: vec![Sheet { name: "steps".into(), columns: columns.map(String::from).into(), rows: numbers }],
            plots: Vec::new(),
            hops: measured.iter().map(|run| run.1).sum(),
        })
    }

    fn runs(&self) -> anyhow::Result<Vec<Run>> {
        ensure!((1..=1000).contains(&self.buckets), "buckets = {}: from 1 to 1000", self.buckets);
        let mut runs = Vec::new();
        for name in &self.models {
            let model = Model::named(name).with_context(|| format!("{name} is no model of Table 1"))?;
            for &compute_speedup in &self.compute_speedups {
                ensure!(compute_speedup > 0.0, "compute_speedups: {compute_speedup} is not above 0");
                runs.extend(SCHEMES.map(|scheme| Run { model, compute_speedup, scheme }));
            }
        }
        Ok(runs)
    }

    fn row(&self, run: &Run, speedup: f64) -> Row {
        let quantity = format!("{}, computing {} times as fast", run.model.name, run.compute_speedup);
        let words = if run.compute_speedup == 1.0 { self.words.of(run.model.name) } else { None };
        let [least, most] = self.paper;
        let (paper, [from, until]) = match words {
            Some((words, band)) => (words.to_owned(), band),
            // Rounding of the figure's ends.
            None => (format!("{least} to {most}"), [least - 0.05, most + 0.05]),
        };
        let row = Row::new(quantity, paper, format!("{speedup:.2}"), (from..=until).contains(&speedup));
        if row.holds == Some(true) { row } else { row.because(IDEAL_RING) }
    }

    /// Of all models together.
    fn ends(&self, speedups: &[f64]) -> [Row; 2] {
        let found =
            [speedups.iter().copied().fold(f64::INFINITY, f64::min), speedups.iter().copied().fold(0.0, f64::max)];
        [("the least of these", 0), ("the largest of these", 1)].map(|(quantity, end)| {
            let (paper, ours) = (self.paper[end], found[end]);
            let row =
                Row::new(quantity, format!("{paper}"), format!("{ours:.2}"), (ours - paper).abs() <= TOLERANCE * paper);
            if row.holds == Some(true) { row } else { row.because(IDEAL_RING) }
        })
    }

    fn scenario(&self, figure: &str, run: &Run) -> anyhow::Result<Scenario> {
        let mut scenario = self.scenario.clone();
        scenario.title =
            format!("{figure}: {}, computing {} times as fast, {}", run.model.name, run.compute_speedup, run.scheme);
        let count = scenario.jobs.len();
        let job = scenario.jobs.first_mut().filter(|_| count == 1).context("[scenario] needs one [[job]] section")?;
        let profile = profile_of(run.model);
        job.bytes = Some(profile.bytes());
        job.scale = (self.bytes_max as f64 / profile.bytes() as f64).min(1.0);
        job.compute_ms = Some(profile.compute_seconds() * 1e3 / run.compute_speedup);
        job.ready = Some(ready(&profile, self.buckets));
        job.scheme = run.scheme;
        Ok(scenario)
    }
}

/// Shares of computing after which each of so many equal parts of a profile's gradients is ready.
fn ready(profile: &Profile, buckets: u32) -> Vec<f64> {
    let (bytes, seconds) = (profile.bytes() as f64, profile.compute_seconds());
    let mut chunks = profile.buckets.iter();
    let (mut there, mut ready_seconds) = (0.0, 0.0);
    let mut shares: Vec<f64> = (1..=buckets)
        .map(|bucket| {
            while there < bytes * f64::from(bucket) / f64::from(buckets) * (1.0 - 1e-9) {
                let Some(chunk) = chunks.next() else { break };
                (there, ready_seconds) = (there + chunk.bytes as f64, chunk.ready_seconds);
            }
            (ready_seconds / seconds).min(1.0)
        })
        .collect();
    // The last gradient ends the backward pass.
    if let Some(last) = shares.last_mut() {
        *last = 1.0;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Progress<'static> {
        Progress::new(&|_| {}, None).unwrap()
    }
    use crate::advise::Bucket;

    #[test]
    fn parts_are_ready_when_their_last_byte_is() {
        let chunk = |bytes, ready_seconds| Bucket { bytes, ready_seconds };
        let profile = Profile::new("x", 8, vec![chunk(30, 1.0), chunk(30, 2.0), chunk(40, 4.0)], 0.0);
        assert_eq!(ready(&profile, 2), [0.5, 1.0]);
        assert_eq!(ready(&profile, 4), [0.25, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn a_model_that_computes_long_gains_nothing_and_one_that_sends_much_nearly_two() {
        let text = "models = ['SSD', 'DeepLight']\ncompute_speedups = [1]\nbuckets = 10\nbytes_max = 5_000_000\npaper = [1, 2.1]\n[words]\nmajor = ['SSD']\nmodest = []\nnot-bound = ['DeepLight']\n[scenario]\nduration_ms = 1000\n\
                    [scenario.topology]\nshape = 'star'\nhosts = 4\n[scenario.links]\ngbps = 10\n[[scenario.job]]\nworkers = 4\n\
                    iterations = 2\nscheme = 'ring'";
        let options = Options { parameters: Some(text.into()), ..Options::default() };
        let findings = Setting::read("fig4", "", &options).unwrap().run("fig4", "", &quiet()).unwrap();
        let speedups: Vec<f64> = findings.sheets[0].rows.iter().map(|row| row[4]).collect();
        // A ring of 4 sends 1.5 times the gradients.
        assert!((0.95..1.1).contains(&speedups[0]) && (1.3..1.6).contains(&speedups[1]), "{speedups:?}");
        // Words that are the wrong way round do not hold, and a ring of 4 is too far from 2.1.
        let holds: Vec<bool> = findings.rows.iter().filter_map(|row| row.holds).collect();
        assert_eq!(holds, [false, false, true, false], "{findings:#?}");
        let right = text
            .replace("['SSD']\nmodest", "['DeepLight']\nmodest")
            .replace("not-bound = ['DeepLight']", "not-bound = ['SSD']");
        let options = Options { parameters: Some(right), ..Options::default() };
        let findings = Setting::read("fig4", "", &options).unwrap().run("fig4", "", &quiet()).unwrap();
        assert!(findings.rows[..3].iter().all(|row| row.holds == Some(true)), "{findings:#?}");
        let unknown =
            Options { parameters: Some(text.replace("models = ['SSD'", "models = ['HAL'")), ..Options::default() };
        let error = Setting::read("fig4", "", &unknown).unwrap().run("fig4", "", &quiet()).unwrap_err();
        assert!(error.to_string().contains("HAL"), "{error:#}");
    }
}
