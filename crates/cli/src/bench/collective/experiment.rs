//! The rounds of one fleet.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::case::{Case, Counters, FaninSetting, Series};
use super::wire::wire_bound_ns;
use crate::bench::fleet::{Fleet, Job, Joined, Setting, Work};
use crate::bench::output::BaselineUse;
use crate::bench::statistics::{Times, last_in_to_last_out, median_ratio, percentile};
use crate::bench::threads::data_plane_ns;
use crate::bench::units::{show_bytes, show_time};

/// What to measure with one fleet.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub setting: Setting,
    /// fanin's settings, with a name each; the first is what all others are compared with.
    pub jobs: Vec<(String, Job)>,
    /// Sizes in bytes and element types.
    pub tensors: Vec<(u64, String)>,
    pub rounds: u32,
    /// Rounds before them that do not count.
    pub warmup: u32,
    /// All-reduces in each round.
    pub repeat: u32,
}

/// Who takes a turn in each round.
enum Contender {
    Fanin { name: String, job: Job, joined: Joined },
    Baseline { name: &'static str, index: usize },
}

/// What one contender's rounds gave.
#[derive(Default)]
struct Tally {
    rounds: Vec<Vec<u64>>,
    wrong_elements: u64,
    counters_before: Counters,
    /// Of all ranks, in as many all-reduces of a rank.
    cpu_ns: u64,
    sleeps: u64,
    all_reduces: u64,
    /// The switch's, in as many all-reduces of all ranks together, their barriers included; of no rounds where the system
    /// does not tell.
    switch_cpu_ns: Vec<u64>,
    rounds_all_reduces: u64,
    counters: Counters,
    round_trip_ns: Option<u64>,
}

impl Experiment {
    /// Starts the fleet, measures every tensor and ends the fleet.
    ///
    /// # Errors
    /// Whatever kept fanin or a baseline that had started from finishing a
    /// round.
    pub fn run(&self) -> anyhow::Result<(Vec<Case>, Vec<BaselineUse>)> {
        let mut fleet = Fleet::start(&self.setting)?;
        let cases = self.run_in(&mut fleet)?;
        Ok((cases, fleet.baselines_used.clone()))
    }

    /// Measures every tensor in a fleet that was started with this
    /// experiment's setting.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn run_in(&self, fleet: &mut Fleet) -> anyhow::Result<Vec<Case>> {
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .map(|(name, job)| Ok((name.clone(), job.clone(), fleet.join(job)?)))
            .collect::<anyhow::Result<_>>()?;
        let measure = |(bytes, dtype): &(u64, String)| {
            let ours = jobs.iter().cloned().map(|(name, job, joined)| Contender::Fanin { name, job, joined });
            let theirs = fleet.baselines_for(dtype).into_iter();
            let theirs = theirs.map(|(index, name)| Contender::Baseline { name, index });
            self.measure(fleet, &ours.chain(theirs).collect::<Vec<_>>(), *bytes, dtype)
        };
        self.tensors.iter().map(measure).collect()
    }

    fn measure(&self, fleet: &mut Fleet, turns: &[Contender], bytes: u64, dtype: &str) -> anyhow::Result<Case> {
        let memcpy_ns = time_memcpy(bytes);
        let mut tallies: Vec<Tally> = turns.iter().map(|_| Tally::default()).collect();
        for round in 0..self.warmup + self.rounds {
            let work = Work { bytes, dtype, round, repeat: self.repeat };
            // Another one begins each round, so that nobody always comes after the same neighbour.
            for turn in (0..turns.len()).map(|place| (place + round as usize) % turns.len()) {
                let (replies, switch_cpu_ns) = match &turns[turn] {
                    Contender::Fanin { job, joined, .. } if job.accumulator.is_some() => {
                        let before_ns = data_plane_ns(fleet.switch_id()).ok();
                        let replies = fleet.round(joined, &work)?;
                        let after_ns = data_plane_ns(fleet.switch_id()).ok();
                        (replies, before_ns.zip(after_ns).map(|(before, after)| after.saturating_sub(before)))
                    }
                    Contender::Fanin { joined, .. } => (fleet.round(joined, &work)?, None),
                    Contender::Baseline { index, .. } => (fleet.baseline_round(*index, &work)?, None),
                };
                tallies[turn].add(&replies, switch_cpu_ns, round >= self.warmup)?;
            }
        }
        let link = self.setting.link;
        let rounds_of_first = tallies.first().map(|tally| Times::of_rounds(&tally.rounds).rounds_ns);
        let series = turns.iter().zip(tallies).map(|(contender, tally)| {
            let bound_ns = match (contender, link) {
                (Contender::Fanin { job, joined, .. }, Some(link)) => {
                    Some(wire_bound_ns(bytes, dtype, job.element_format, joined.element_count_max, link.rate_bps))
                }
                (Contender::Baseline { .. }, Some(_)) => None,
                (_, None) => Some(memcpy_ns as f64),
            };
            tally.series(contender, bytes, bound_ns, rounds_of_first.as_deref().unwrap_or(&[]))
        });
        let case = Case {
            ranks: self.setting.ranks,
            size_bytes: bytes,
            dtype: dtype.into(),
            link_rate_bps: link.map(|link| link.rate_bps),
            mtu_bytes: link.map(|link| link.mtu_bytes),
            series: series.collect(),
        };
        eprintln!("{}", progress(&case));
        Ok(case)
    }
}

impl Tally {
    fn add(&mut self, replies: &[Value], switch_cpu_ns: Option<u64>, counts: bool) -> anyhow::Result<()> {
        let samples = last_in_to_last_out(replies)?;
        let samples_per_reply = samples.len() as u64;
        self.wrong_elements +=
            replies.iter().map(|reply| number(reply, "wrong_elements")).sum::<anyhow::Result<u64>>()?;
        let counters = Counters::sum(replies);
        if counts {
            self.counters = counters;
            self.rounds.push(samples);
        } else {
            self.counters_before = counters;
        }
        if counts {
            // gloo and Open MPI do not tell.
            let total = |key| replies.iter().filter_map(|reply| reply.get(key).and_then(Value::as_u64)).sum::<u64>();
            self.cpu_ns += total("cpu_ns");
            self.sleeps += total("sleeps");
            self.all_reduces += replies.len() as u64 * samples_per_reply;
            self.switch_cpu_ns.extend(switch_cpu_ns);
            self.rounds_all_reduces += samples_per_reply;
        }
        self.round_trip_ns = replies[0].pointer("/stats/round_trip_ns").and_then(Value::as_u64);
        Ok(())
    }

    fn series(self, contender: &Contender, bytes: u64, bound_ns: Option<f64>, first: &[u64]) -> Series {
        let times = Times::of_rounds(&self.rounds);
        let (name, fanin) = match contender {
            Contender::Baseline { name, .. } => ((*name).to_owned(), None),
            Contender::Fanin { name, job, joined } => {
                (name.clone(), Some(FaninSetting { job: job.clone(), joined: joined.clone() }))
            }
        };
        let p50 = times.p50_ns.max(1) as f64;
        let mut derived = BTreeMap::new();
        if fanin.as_ref().is_some_and(|setting| setting.job.accumulator.is_some()) {
            let mebibytes = |all_reduces| (all_reduces * bytes) as f64 / f64::from(1 << 20);
            derived.insert("cpu_us_per_mib", self.cpu_ns as f64 / 1e3 / mebibytes(self.all_reduces));
            derived.insert("sleeps_per_mib", self.sleeps as f64 / mebibytes(self.all_reduces));
            if self.switch_cpu_ns.len() == self.rounds.len() {
                let switch_cpu_ns = self.switch_cpu_ns.iter().sum::<u64>();
                derived.insert("switch_us_per_mib", switch_cpu_ns as f64 / 1e3 / mebibytes(self.rounds_all_reduces));
            }
        }
        Series {
            name,
            goodput_gbps: bytes as f64 * 8.0 / p50,
            ratio_to_first: median_ratio(&times.rounds_ns, first),
            bound_ns,
            share_of_bound: bound_ns.map(|bound| bound / p50),
            wrong_elements: self.wrong_elements,
            counters: fanin.is_some().then(|| self.counters.since(&self.counters_before)),
            round_trip_ns: self.round_trip_ns,
            times,
            fanin,
            derived,
        }
    }
}

fn progress(case: &Case) -> String {
    let time = |series: &Series| show_time(std::time::Duration::from_nanos(series.times.p50_ns));
    let times: Vec<_> = case.series.iter().map(|series| format!("{} {}", series.name, time(series))).collect();
    let wrong = if case.wrong_elements() > 0 { " WRONG ELEMENTS" } else { "" };
    format!("{} ranks, {} {}: {}{wrong}", case.ranks, show_bytes(case.size_bytes), case.dtype, times.join(", "))
}

fn number(value: &Value, key: &str) -> anyhow::Result<u64> {
    value.get(key).and_then(Value::as_u64).with_context(|| format!("a rank's reply has no number {key:?}"))
}

/// Median of a few copies between buffers that are already mapped.
fn time_memcpy(bytes: u64) -> u64 {
    let source = vec![1u8; bytes as usize];
    let mut target = vec![2u8; bytes as usize];
    let copy = |_| {
        let started = Instant::now();
        target.copy_from_slice(&source);
        std::hint::black_box(&mut target);
        started.elapsed().as_nanos() as u64
    };
    let times: Vec<u64> = (0..5).map(copy).collect();
    percentile(&times, 50)
}
