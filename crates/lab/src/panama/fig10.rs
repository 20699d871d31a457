//! Who gets what of a shared link (PANAMA §7, Fig. 10).

use anyhow::{bail, ensure};
use fanin_sim::job::placement::Placement;
use fanin_sim::report::Interval;
use fanin_sim::scenario::{Range, Scenario, Traffic};
use serde::Deserialize;

use super::job;
use crate::findings::{Findings, Row, Sheet};
use crate::trial::{Progress, Spread, Trial, each};

/// `experiments/panama/fig10.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The job starts so much later in each run, ms: two flows whose packets keep meeting in the same way may share very unequally.
    later_ms: Vec<f64>,
    /// Shares are of the time from here to the end.
    from_ms: f64,
    /// Without congestion control: so many packets out.
    window: u32,
    /// A half holds if it is no farther from it than this.
    tolerance: f64,
    /// One flow, which starts first, and one job.
    scenario: Scenario,
}

impl super::Setting for Setting {
    fn reseed(&mut self, seed: u64) {
        self.scenario.seed = seed;
    }

    fn quicken(&mut self) {
        self.later_ms.truncate(1);
        self.scenario.duration_ms = self.from_ms + (self.scenario.duration_ms - self.from_ms) / 5.0;
    }
}

/// What joins the flow.
#[derive(Clone, Copy, PartialEq)]
enum Joins {
    /// A job as Fig. 5 has it.
    Job,
    /// One whose rounds are of what was out at their begin.
    Whole,
    /// The same, and its windows grow in rounds with marks, too.
    Growing,
    /// One without congestion control.
    Fixed,
    /// A second flow, between the job's hosts.
    Flow,
}

const JOINS: [Joins; 5] = [Joins::Job, Joins::Whole, Joins::Growing, Joins::Fixed, Joins::Flow];

impl Setting {
    /// Figs. 10a and 10b.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self, progress: &Progress) -> anyhow::Result<Findings> {
        self.check()?;
        let runs: Vec<(Joins, f64)> =
            JOINS.into_iter().flat_map(|joins| self.later_ms.iter().map(move |&later| (joins, later))).collect();
        let scenarios: Vec<Scenario> =
            runs.iter().map(|&(joins, later)| self.scenario(joins, later)).collect::<anyhow::Result<_>>()?;
        let measured = each(&scenarios, &format!("fig10 from {} ms", self.from_ms), progress, |place, trial| {
            Ok((self.rates(runs[place].0, trial)?, trial.outcome.packet_hops()))
        })?;
        let share = |joins: Joins| {
            let own = runs.iter().zip(&measured).filter(move |((one, _), _)| *one == joins);
            Spread::new(own.map(|(_, ([flow, other], _))| other / (flow + other)))
        };
        let is_half = |spread: &Spread| (spread.median() - 0.5).abs() <= self.tolerance;
        let [job, whole, growing, fixed, flow] = JOINS.map(share);
        let rows = vec![
            Row::new("share of a job that joins a flow (Fig. 10a)", "0.5", job.to_string(), is_half(&job)).because(
                "Fig. 5 read to the letter cuts more often than DCTCP for the same marks, and does not grow in rounds with marks: the next rows.",
            ),
            Row::new("the same, rounds of what was out at their begin", "0.5", whole.to_string(), is_half(&whole))
                .because("It still does not grow in rounds with marks, which DCTCP does at each acknowledgement."),
            Row::new("the same, and windows grow in rounds with marks", "0.5", growing.to_string(), is_half(&growing)),
            Row::new("the same without congestion control (Fig. 10b)", "the flow starves", fixed.to_string(), fixed.median() > 0.9),
            Row::new("a second flow in place of the job", "0.5", flow.to_string(), is_half(&flow)),
        ];
        let numbers = runs.iter().zip(&measured).map(|(&(joins, later), &([flow, other], _))| {
            let place = JOINS.iter().position(|one| *one == joins).unwrap_or(0);
            vec![place as f64, later, flow, other]
        });
        let columns = ["case", "later by, ms", "the flow, Gbit/s", "what joins it, Gbit/s"];
        Ok(Findings {
            experiment: "fig10".into(),
            title: "Shares of a link that a flow and a job share (§7, Fig. 10)".into(),
            place: super::SIMULATED.into(),
            rows,
            notes: vec![format!(
                "Payload after {} ms; medians with the least and the most of {} starts. Cases of the sheet: 0 to 4 as the rows.",
                self.from_ms,
                self.later_ms.len()
            )],
            sheets: vec![Sheet {
                name: "shares".into(),
                columns: columns.map(String::from).into(),
                rows: numbers.collect(),
            }],
            plots: Vec::new(),
            hops: measured.iter().map(|run| run.1).sum(),
        })
    }

    fn check(&self) -> anyhow::Result<()> {
        let Scenario { samples, duration_ms, .. } = self.scenario;
        ensure!(samples > 0, "samples = 0: shares are read from samples, let there be some hundred");
        ensure!(!self.later_ms.is_empty(), "later_ms: one at least");
        ensure!(self.from_ms >= 0.0, "from_ms = {}: not below 0", self.from_ms);
        let every_ms = duration_ms / f64::from(samples);
        // Two whole intervals, wherever the first begins.
        ensure!(
            self.from_ms + 3.0 * every_ms <= duration_ms,
            "from_ms = {}: at least three samples before the end, of {duration_ms} ms with one every {every_ms} ms",
            self.from_ms
        );
        Ok(())
    }

    fn scenario(&self, joins: Joins, later_ms: f64) -> anyhow::Result<Scenario> {
        let mut scenario = self.scenario.clone();
        let name = match joins {
            Joins::Job => "job",
            Joins::Whole => "job of whole rounds",
            Joins::Growing => "job of whole rounds that grows when marked",
            Joins::Fixed => "job without congestion control",
            Joins::Flow => "flow",
        };
        scenario.title = format!("fig10: a {name}, {later_ms} ms later");
        let job = job(&mut scenario)?;
        let start_ms = job.start_ms.least() + later_ms;
        job.start_ms = Range::Exactly(start_ms);
        job.whole_rounds = matches!(joins, Joins::Whole | Joins::Growing);
        job.grow_when_marked = joins == Joins::Growing;
        job.window = (joins == Joins::Fixed).then_some(self.window);
        let hosts = job.placement.clone();
        if joins == Joins::Flow {
            scenario.jobs.clear();
            let Placement::Hosts(hosts) = hosts else {
                bail!("placement: the job's hosts by number, for the flow in its place");
            };
            let [first, .., last] = hosts[..] else {
                bail!("placement: two hosts at least");
            };
            let flow = (first, last, u64::from(u32::MAX), start_ms * 1000.0);
            scenario.traffic.push(Traffic::List { flows: vec![flow] });
        }
        Ok(scenario)
    }

    /// The first flow's rate and that of what joined it, Gbit/s.
    fn rates(&self, joins: Joins, trial: &Trial) -> anyhow::Result<[f64; 2]> {
        // By their starts.
        let sources: Vec<usize> = trial.outcome.unended.iter().map(|flow| flow.so_far.source.into()).collect();
        let wanted = if joins == Joins::Flow { 2 } else { 1 };
        ensure!(
            sources.len() == wanted && trial.outcome.flows.is_empty(),
            "{} flows were going on at the end and {} were over, where {wanted} should share the link to the end: [[scenario.traffic]] is one flow, with more bytes than it can send in {} ms",
            sources.len(),
            trial.outcome.flows.len(),
            self.scenario.duration_ms
        );
        if joins == Joins::Flow {
            return Ok([self.host_gbps(trial, sources[0])?, self.host_gbps(trial, sources[1])?]);
        }
        let intervals = trial.intervals_after(self.from_ms);
        ensure!(!intervals.is_empty(), "no sample after {} ms", self.from_ms);
        let mean = |part: fn(&Interval) -> f64| intervals.iter().map(part).sum::<f64>() / intervals.len() as f64 / 1e9;
        Ok([mean(|interval| interval.flows_bps), mean(|interval| interval.jobs_bps[0])])
    }

    fn host_gbps(&self, trial: &Trial, host: usize) -> anyhow::Result<f64> {
        let samples = &trial.outcome.samples;
        let first = ((self.from_ms * 1e9) as u64).div_ceil(samples.every_ps).max(1) as usize - 1;
        let own = samples.hosts.get(host).and_then(|own| own.get(first..)).unwrap_or_default();
        let [first, .., last] = *own else {
            bail!("less than two samples after {} ms", self.from_ms);
        };
        Ok((last - first) as f64 * 8e3 / ((own.len() as u64 - 1) * samples.every_ps) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panama::{Experiment, Setting as _};

    #[test]
    fn what_shares_cannot_be_read_from_is_refused() {
        let cases = [
            ("from_ms = 275", "from_ms = 499", "before the end"),
            ("duration_ms = 500", "duration_ms = 500\nsamples = 0", "samples = 0"),
            ("later_ms = [0.0, 0.37, 0.71]", "later_ms = []", "one at least"),
            ("1000000000, 0.0", "1000000, 0.0", "more bytes than it can send"),
            ("placement = [1, 3]", "placement = 'packed'", "by number"),
        ];
        for (old, new, expected) in cases {
            let text = Experiment::Fig10.parameters(false).replacen(old, new, 1);
            assert!(text.contains(new), "{new}");
            let mut setting: Setting = toml::from_str(&text).unwrap();
            if expected != "before the end" {
                setting.quicken();
            }
            let error = setting.run(&Progress::new(&|_| {}, None).unwrap()).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{new}: {error:#}");
        }
    }
}
