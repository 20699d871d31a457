//! What a run is told as: flow completion times by size, iterations of jobs, and what the links went through.

use serde::Serialize;

use crate::engine::Outcome;
use crate::host::FlowRecord;
use crate::job::IterationRecord;
use crate::scenario::{JobInfo, Scheme};

/// Upper ends of the classes of sizes, bytes.
pub const CLASS_ENDS: [u64; 5] = [10_000, 100_000, 1_000_000, 10_000_000, u64::MAX];

/// Completion times of one class of flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowClass {
    /// No flow is longer.
    pub bytes_max: u64,
    /// Flows that ended.
    pub count: u64,
    /// Flows that had started and not ended, which are in none of the times.
    pub unended: u64,
    /// Completion times: mean and percentiles, microseconds; nothing where no flow ended.
    pub mean_us: Option<f64>,
    /// Median.
    pub p50_us: Option<f64>,
    /// 95 in 100 are no longer.
    pub p95_us: Option<f64>,
    /// 99 in 100 are no longer.
    pub p99_us: Option<f64>,
}

/// One iteration of one job, over all of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Iteration {
    /// The job's number.
    pub job: u16,
    /// From 0.
    pub iteration: u32,
    /// When the last rank began: the end of the iteration before.
    pub start_ps: u64,
    /// When the last rank had its first bucket ready: without `buckets`, when it had computed.
    pub first_ready_ps: u64,
    /// When the last rank had computed.
    pub computed_ps: u64,
    /// When the last rank had the sum.
    pub end_ps: u64,
}

/// One job. Iterations that were not over at the end are left out; where none was, there are no times and no rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// How it sums.
    pub scheme: Scheme,
    /// Ranks.
    pub workers: usize,
    /// Trees of switches; 1 also for schemes that have none.
    pub trees: u32,
    /// Gradients of an iteration.
    pub bytes: u64,
    /// Iterations that all ranks have come to the end of.
    pub iterations: usize,
    /// Times of iterations: mean and percentiles, milliseconds.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 99 in 100 are no longer.
    pub p99_ms: Option<f64>,
    /// Of the mean, what computing does not hide: from the end of computing to the last sum.
    pub communication_ms: Option<f64>,
    /// Mean time of summing, hidden or not: from the first bucket that is ready to the last sum.
    pub summing_ms: Option<f64>,
    /// Gradients by the time of summing, bits per second.
    pub reduced_bps: Option<f64>,
}

/// Iterations that all ranks have come to the end of, by job and number.
pub fn iterations(outcome: &Outcome, jobs: &[JobInfo]) -> Vec<Iteration> {
    let of_one = |records: &[IterationRecord]| {
        let last = |part: fn(&IterationRecord) -> u64| records.iter().map(part).max().unwrap_or(0);
        let is_whole = records.len() == jobs.get(usize::from(records[0].job))?.hosts.len();
        is_whole.then(|| Iteration {
            job: records[0].job,
            iteration: records[0].iteration,
            start_ps: last(|record| record.start_ps),
            first_ready_ps: last(|record| record.first_ready_ps),
            computed_ps: last(|record| record.computed_ps),
            end_ps: last(|record| record.end_ps),
        })
    };
    let same =
        |one: &IterationRecord, other: &IterationRecord| (one.job, one.iteration) == (other.job, other.iteration);
    outcome.iterations.chunk_by(same).filter_map(of_one).collect()
}

fn job_reports(iterations: &[Iteration], jobs: &[JobInfo]) -> Vec<JobReport> {
    let of_job = |(number, job): (usize, &JobInfo)| {
        let own: Vec<&Iteration> = iterations.iter().filter(|one| usize::from(one.job) == number).collect();
        let mut times: Vec<u64> = own.iter().map(|one| one.end_ps - one.start_ps).collect();
        times.sort_unstable();
        let mean = |part: fn(&Iteration) -> u64| {
            let sum: u64 = own.iter().map(|one| part(one)).sum();
            (!own.is_empty()).then(|| sum as f64 / own.len() as f64 / 1e9)
        };
        let summing_ms = mean(|one| one.end_ps - one.first_ready_ps);
        let percentile_ms = |share: f64| percentile(&times, share).map(|ps| ps / 1e9);
        JobReport {
            name: job.name.clone(),
            scheme: job.scheme,
            workers: job.hosts.len(),
            trees: job.trees,
            bytes: job.bytes,
            iterations: times.len(),
            mean_ms: mean(|one| one.end_ps - one.start_ps),
            p50_ms: percentile_ms(0.5),
            p99_ms: percentile_ms(0.99),
            communication_ms: mean(|one| one.end_ps - one.computed_ps),
            summing_ms,
            reduced_bps: summing_ms.map(|ms| job.bytes as f64 * 8e3 / ms.max(1e-9)),
        }
    };
    jobs.iter().enumerate().map(of_job).collect()
}

/// Nearest rank: a percentile is a time that was taken. Nothing of nothing.
fn percentile(sorted: &[u64], share: f64) -> Option<f64> {
    let rank = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(rank).map(|&time| time as f64)
}

/// All that is worth a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Flows given to senders.
    pub flows_started: u64,
    /// Flows that ended.
    pub flows_completed: u64,
    /// By size, without empty classes; the last has all flows.
    pub classes: Vec<FlowClass>,
    /// By number.
    pub jobs: Vec<JobReport>,
    /// Packets times links.
    pub packet_hops: u64,
    /// Packets that queues marked.
    pub marked: u64,
    /// Packets that full queues turned away.
    pub dropped: u64,
    /// Packets that were damaged on a link.
    pub corrupted: u64,
    /// Frames that stopped a sender.
    pub pauses: u64,
    /// Links that stand still in circles of pauses at the end ([`Outcome::deadlocked`]).
    pub deadlocked_links: usize,
    /// Segments sent again.
    pub resent: u64,
    /// Timers that ran out.
    pub timeouts: u64,
    /// Datagrams with gradients sent again by ranks that aggregate.
    pub aggregation_resent: u64,
    /// Their questions whether a datagram was lost.
    pub aggregation_asked: u64,
    /// Sums that ranks have taken, each found to be right.
    pub sums: u64,
    /// Of these, sums that some rank is not in (PANAMA-0.88), which are only known to be within bounds; the others are exact.
    pub partial_sums: u64,
    /// The longest that any queue of a switch has been, bytes.
    pub queued_bytes_max: u64,
    /// Payload acknowledged, a host and second, on the average.
    pub goodput_bps: f64,
    /// [`Outcome::digest`], hexadecimal.
    pub digest: String,
}

impl Report {
    /// Of an outcome after so much simulated time, with the plan's jobs.
    pub fn new(outcome: &Outcome, jobs: &[JobInfo], duration_ps: u64) -> Report {
        let sum = |part: fn(&crate::host::HostCounters) -> u64| outcome.hosts.iter().map(part).sum::<u64>();
        let hosts = outcome.hosts.len() as u32;
        let from_switches = || outcome.links.iter().filter(|link| link.from >= hosts).map(|link| &link.counters);
        let queues = outcome.links.iter().filter(|link| link.from >= hosts && !link.is_accelerator());
        let seconds = duration_ps as f64 / 1e12;
        Report {
            flows_started: sum(|host| host.started),
            flows_completed: sum(|host| host.completed),
            classes: classes(outcome),
            jobs: job_reports(&iterations(outcome, jobs), jobs),
            packet_hops: outcome.packet_hops(),
            marked: from_switches().map(|link| link.marked).sum(),
            dropped: from_switches().map(|link| link.dropped).sum(),
            corrupted: outcome.links.iter().map(|link| link.corrupted).sum(),
            pauses: outcome.switches.iter().map(|switch| switch.pauses).sum(),
            deadlocked_links: outcome.deadlocked.len(),
            resent: sum(|host| host.resent),
            timeouts: sum(|host| host.timeouts),
            aggregation_resent: outcome.endpoints.resent,
            aggregation_asked: outcome.endpoints.asked,
            sums: outcome.endpoints.sums,
            partial_sums: outcome.endpoints.partial,
            queued_bytes_max: queues.map(|link| link.counters.queued_bytes_max).max().unwrap_or(0),
            goodput_bps: sum(|host| host.acknowledged_bytes) as f64 * 8.0 / seconds / f64::from(hosts),
            digest: format!("{:016x}", outcome.digest()),
        }
    }
}

fn classes(outcome: &Outcome) -> Vec<FlowClass> {
    let mut low = 0;
    let mut classes = Vec::new();
    for end in CLASS_ENDS {
        classes.extend(class(outcome, low, end));
        low = end;
    }
    classes.extend(class(outcome, 0, u64::MAX));
    classes
}

/// Flows longer than `low` and up to `bytes_max`.
fn class(outcome: &Outcome, low: u64, bytes_max: u64) -> Option<FlowClass> {
    let is_in = |flow: &FlowRecord| flow.bytes > low && flow.bytes <= bytes_max;
    let ended = outcome.flows.iter().filter(|flow| is_in(flow));
    let mut times: Vec<u64> = ended.map(|flow| flow.completion_ps).collect();
    let unended = outcome.unended.iter().filter(|flow| is_in(&flow.so_far)).count() as u64;
    times.sort_unstable();
    let at = |share: f64| percentile(&times, share).map(|ps| ps / 1e6);
    let sum = times.iter().fold(0.0, |sum, &time| sum + time as f64);
    (times.len() as u64 + unended > 0).then(|| FlowClass {
        bytes_max,
        count: times.len() as u64,
        unended,
        mean_us: (!times.is_empty()).then(|| sum / times.len() as f64 / 1e6),
        p50_us: at(0.5),
        p95_us: at(0.95),
        p99_us: at(0.99),
    })
}

/// What was carried from one note to the next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its end.
    pub end_ps: u64,
    /// Payload of all flows that was acknowledged, bits per second.
    pub flows_bps: f64,
    /// Hosts of which any was.
    pub active_hosts: usize,
    /// Jain's index over these hosts, 1 if all had the same; nothing of none.
    pub fairness: Option<f64>,
    /// By job, gradients summed at a rank, bits per second on the average.
    pub jobs_bps: Vec<f64>,
}

/// Throughput and fairness over time.
pub fn intervals(outcome: &Outcome, job_count: usize) -> Vec<Interval> {
    let samples = &outcome.samples;
    let seconds = samples.every_ps as f64 / 1e12;
    let grown = |of: &[u64], place: usize| of[place] - place.checked_sub(1).map_or(0, |before| of[before]);
    let interval = |place: usize| {
        let carried: Vec<f64> = samples.hosts.iter().map(|host| grown(host, place) as f64 * 8.0 / seconds).collect();
        let active: Vec<f64> = carried.into_iter().filter(|&rate| rate > 0.0).collect();
        // Not `sum`, which begins at -0.
        let sum = active.iter().fold(0.0, |sum, rate| sum + rate);
        let squares: f64 = active.iter().map(|rate| rate * rate).sum();
        let mut jobs = vec![(0.0, 0u32); job_count];
        for rank in &samples.ranks {
            let (bps, ranks) = &mut jobs[usize::from(rank.job)];
            *bps += grown(&rank.summed, place) as f64 * 8.0 / seconds;
            *ranks += 1;
        }
        Interval {
            end_ps: (place as u64 + 1) * samples.every_ps,
            flows_bps: sum,
            active_hosts: active.len(),
            fairness: (!active.is_empty()).then(|| sum * sum / (active.len() as f64 * squares)),
            jobs_bps: jobs.into_iter().map(|(bps, ranks)| bps / f64::from(ranks.max(1))).collect(),
        }
    };
    (0..samples.hosts.first().map_or(0, Vec::len)).map(interval).collect()
}
