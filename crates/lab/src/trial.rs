//! Runs of the simulator, several at a time, and what is read from them.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use fanin_sim::engine::{self, Outcome};
use fanin_sim::host::FlowRecord;
use fanin_sim::report::{self, Interval, Iteration};
use fanin_sim::scenario::{JobInfo, Scenario};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kept::Kept;

/// Hears how far a longer experiment is.
pub type Told<'a> = &'a (dyn Fn(&str) + Sync);

/// How far a longer experiment is.
#[derive(Clone)]
pub struct Progress<'a> {
    /// Hears of each run.
    pub told: Told<'a>,
    /// Where runs are kept; those that are there are not made again.
    pub kept: Option<Kept>,
}

impl<'a> Progress<'a> {
    /// Keeps runs in a folder, if there is one.
    ///
    /// # Errors
    /// As [`Kept::open`].
    pub fn new(told: Told<'a>, folder: Option<&Path>) -> anyhow::Result<Progress<'a>> {
        Ok(Progress { told, kept: folder.map(Kept::open).transpose()? })
    }
}

/// One run.
pub struct Trial {
    /// What came of it.
    pub outcome: Outcome,
    /// Its jobs, by number.
    pub jobs: Vec<JobInfo>,
}

/// A flow, and whether it was over at the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Payload.
    pub bytes: u64,
    /// Until its end, or else until the end of the run.
    pub time_ps: u64,
    /// Payload that had arrived by then.
    pub arrived_bytes: u64,
    /// It was over.
    pub has_ended: bool,
}

impl Trial {
    /// Runs a scenario on this thread.
    ///
    /// # Errors
    /// A scenario that makes no sense, or a run that fails.
    pub fn run(scenario: &Scenario) -> anyhow::Result<Trial> {
        scenario.check()?;
        let plan = scenario.plan()?;
        let jobs = plan.jobs.clone();
        Ok(Trial { outcome: engine::run(plan, 1, |_| true)?, jobs })
    }

    /// Flows that started in a part of the time, those that had not ended included.
    pub fn flows(&self, start_ms: [f64; 2]) -> Vec<Flow> {
        let [from, until] = start_ms.map(|ms| (ms * 1e9) as u64);
        let is_counted = |flow: &FlowRecord| (from..until).contains(&flow.start_ps);
        let ended = self.outcome.flows.iter().filter(|flow| is_counted(flow)).map(|flow| Flow {
            bytes: flow.bytes,
            time_ps: flow.completion_ps,
            arrived_bytes: flow.bytes,
            has_ended: true,
        });
        let unended = self.outcome.unended.iter().filter(|flow| is_counted(&flow.so_far)).map(|flow| Flow {
            bytes: flow.so_far.bytes,
            time_ps: flow.so_far.completion_ps,
            arrived_bytes: flow.acknowledged_bytes,
            has_ended: false,
        });
        ended.chain(unended).collect()
    }

    /// By job, the mean time of its iterations, ms; nothing of a job that came to the end of none.
    pub fn iteration_ms(&self) -> Vec<Option<f64>> {
        self.means(|one| one.end_ps - one.start_ps)
    }

    /// The same of summing after all is computed: without `buckets`, all of it.
    pub fn aggregation_ms(&self) -> Vec<Option<f64>> {
        self.means(|one| one.end_ps - one.computed_ps)
    }

    fn means(&self, part: fn(&Iteration) -> u64) -> Vec<Option<f64>> {
        let mut sums = vec![(0, 0u32); self.jobs.len()];
        for one in report::iterations(&self.outcome, &self.jobs) {
            let (sum, count) = &mut sums[usize::from(one.job)];
            (*sum, *count) = (*sum + part(&one), *count + 1);
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum as f64 / f64::from(count) / 1e9)).collect()
    }

    /// Throughput after so many ms.
    pub fn intervals_after(&self, from_ms: f64) -> Vec<Interval> {
        let every_ps = self.outcome.samples.every_ps;
        let mut intervals = report::intervals(&self.outcome, self.jobs.len());
        intervals.retain(|interval| interval.end_ps.saturating_sub(every_ps) as f64 >= from_ms * 1e9);
        intervals
    }
}

/// Nearest rank, where what has not ended took longer than everything that has. Nothing if the rank is one of these, or there is no flow.
pub fn percentile_ms(flows: &[Flow], share: f64) -> Option<f64> {
    let mut times: Vec<u64> = flows.iter().filter(|flow| flow.has_ended).map(|flow| flow.time_ps).collect();
    times.sort_unstable();
    let rank = ((flows.len() as f64 * share).ceil() as usize).max(1);
    times.get(rank - 1).map(|&time| time as f64 / 1e9)
}

/// Of the flows' times, in which those that have not ended stand with the time so far: at least so long.
pub fn mean_ms(flows: &[Flow]) -> f64 {
    flows.iter().map(|flow| flow.time_ps as f64 / 1e9).sum::<f64>() / flows.len() as f64
}

/// Of what each flow had arrived in its time, Gbit/s.
pub fn throughput_gbps(flows: &[Flow]) -> f64 {
    let rates = flows.iter().map(|flow| flow.arrived_bytes as f64 * 8e3 / flow.time_ps.max(1) as f64);
    rates.sum::<f64>() / flows.len() as f64
}

/// Runs scenarios on all processors, and returns of each run what `measure` takes from it, in the order of the scenarios. `what` says what that is, with
/// everything besides the scenario that decides about it: a run that is kept under the same words is not made again.
///
/// # Errors
/// The first run that fails, or cannot be kept; the others are left out then.
pub fn each<T: Send + Serialize + DeserializeOwned>(
    scenarios: &[Scenario],
    what: &str,
    progress: &Progress,
    measure: impl Fn(usize, &Trial) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let make = |place, scenario: &Scenario| Trial::run(scenario).and_then(|trial| measure(place, &trial));
    let Some(kept) = &progress.kept else { return all(scenarios, progress.told, make) };
    let name = |scenario: &Scenario| kept.name(&[what.as_bytes(), format!("{scenario:?}").as_bytes()]);
    let there = scenarios.iter().filter(|scenario| kept.read::<T>(&name(scenario)).is_some()).count();
    (progress.told)(&format!(
        "{} runs, of which {there} are there already in {}",
        scenarios.len(),
        kept.folder().display()
    ));
    all(scenarios, progress.told, |place, scenario| {
        let name = name(scenario);
        if let Some(measured) = kept.read(&name) {
            return Ok(measured);
        }
        let measured = make(place, scenario)?;
        kept.write(&name, &measured)?;
        // As it will be read the next time, to the last bit; what no file can hold is made again then.
        Ok(kept.read(&name).unwrap_or(measured))
    })
}

fn all<T: Send>(
    scenarios: &[Scenario],
    told: Told,
    make: impl Fn(usize, &Scenario) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(scenarios.len());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Mutex<Option<anyhow::Result<T>>>> = scenarios.iter().map(|_| Mutex::default()).collect();
    let work = || {
        while let Some((place, scenario)) = at(scenarios, next.fetch_add(1, Ordering::Relaxed)) {
            let result = make(place, scenario);
            let title = format!("{}, seed {}", scenario.title, scenario.seed);
            if result.is_err() {
                next.store(scenarios.len(), Ordering::Relaxed);
            }
            *results[place].lock().unwrap_or_else(|broken| broken.into_inner()) = Some(result.context(title.clone()));
            let count = done.fetch_add(1, Ordering::Relaxed) + 1;
            told(&format!("{count} of {}: {title}", scenarios.len()));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let results = results.into_iter().map(|result| result.into_inner().unwrap_or_else(|broken| broken.into_inner()));
    // What a failure has left out is none; the failure itself is there.
    results.flatten().collect()
}

fn at(scenarios: &[Scenario], place: usize) -> Option<(usize, &Scenario)> {
    Some((place, scenarios.get(place)?))
}

/// A number for each seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread(Vec<f64>);

impl Spread {
    /// In ascending order.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Spread(values)
    }

    /// Of an even number, the mean of the middle two; no number of none.
    pub fn median(&self) -> f64 {
        let count = self.0.len();
        match count {
            0 => f64::NAN,
            _ => (self.0[(count - 1) / 2] + self.0[count / 2]) / 2.0,
        }
    }
}

impl std::fmt::Display for Spread {
    /// The median, with the least and the most of several.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("none"),
            [one] => write!(f, "{one:.2}"),
            [least, .., most] => write!(f, "{:.2} ({least:.2} to {most:.2})", self.median()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(time_ps: u64, has_ended: bool) -> Flow {
        Flow { bytes: 1000, time_ps, arrived_bytes: 500, has_ended }
    }

    #[test]
    fn what_has_not_ended_counts_as_the_slowest() {
        let mut flows: Vec<Flow> = (1..=99).map(|ms| flow(ms * 1_000_000_000, true)).collect();
        assert_eq!(percentile_ms(&flows, 0.99), Some(99.0));
        flows.push(flow(1, false));
        assert_eq!(percentile_ms(&flows, 0.99), Some(99.0), "one in a hundred is beyond it");
        flows.push(flow(1, false));
        assert_eq!((percentile_ms(&flows, 0.99), percentile_ms(&flows, 0.5)), (None, Some(51.0)));
        assert_eq!(percentile_ms(&[], 0.5), None);
    }

    #[test]
    fn a_spread_is_a_median_between_its_ends() {
        assert_eq!(Spread::new([3.0, 1.0, 2.0]).to_string(), "2.00 (1.00 to 3.00)");
        assert_eq!((Spread::new([1.5]).to_string(), Spread::new([]).to_string()), ("1.50".into(), "none".into()));
        assert_eq!(Spread::new([4.0, 2.0]).median(), 3.0);
    }

    #[test]
    fn flows_that_go_on_are_counted_where_they_started_and_runs_come_back_in_order() {
        let text = |bytes: u64| {
            format!(
                "duration_ms = 2\n[topology]\nshape = 'star'\nhosts = 3\n[[traffic]]\nkind = 'list'\nflows = [[0, 1, 1000, 0.0], [0, 2, {bytes}, 500.0]]"
            )
        };
        let scenarios = [2000, 9_000_000].map(|bytes| Scenario::parse(&text(bytes)).unwrap());
        let progress = Progress::new(&|_| {}, None).unwrap();
        let counts = each(&scenarios, "flows", &progress, |_, trial| {
            let flows = trial.flows([0.4, 1.0]);
            assert_eq!(trial.flows([0.0, 1.0]).len(), 2);
            Ok((flows.len(), flows[0].has_ended, flows[0].arrived_bytes))
        });
        let counts = counts.unwrap();
        assert_eq!(counts[0], (1, true, 2000));
        // 1.5 ms of 10 Gbit/s, without what headers and the first round trips take.
        assert!(!counts[1].1 && (1_400_000..1_850_000).contains(&counts[1].2), "{counts:?}");
    }

    #[test]
    fn what_was_interrupted_goes_on_and_comes_to_the_same() {
        let text = "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 3\n[[traffic]]\nkind = 'list'\nflows = [[0, 1, 1000, 0.0]]";
        let scenarios: Vec<Scenario> =
            (1..=3).map(|seed| Scenario { seed, ..Scenario::parse(text).unwrap() }).collect();
        let folder = std::env::temp_dir().join(format!("fanin-trials-{}", std::process::id()));
        let progress = Progress::new(&|_| {}, Some(&folder)).unwrap();
        let made = AtomicUsize::new(0);
        let run = |scenarios: &[Scenario], what: &str, limit: usize| {
            made.store(0, Ordering::Relaxed);
            let all = each(scenarios, what, &progress, |_, trial| {
                anyhow::ensure!(made.fetch_add(1, Ordering::Relaxed) < limit, "interrupted");
                Ok((trial.outcome.flows[0].completion_ps as f64 / 3.0, None::<f64>))
            });
            (all.ok(), made.load(Ordering::Relaxed))
        };
        let (interrupted, _) = run(&scenarios, "times", 1);
        assert_eq!(interrupted, None);
        let (whole, again) = run(&scenarios, "times", 9);
        assert!(whole.as_ref().is_some_and(|times| times.len() == 3) && again == 2, "{again} runs, one was there");
        assert_eq!(run(&scenarios, "times", 0), (whole, 0), "all are there");
        assert_eq!(run(&scenarios, "other times", 9).1, 3, "something else is measured");
        let other: Vec<Scenario> = scenarios.iter().map(|one| Scenario { duration_ms: 2.0, ..one.clone() }).collect();
        assert_eq!(run(&other, "times", 9).1, 3, "other scenarios");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
