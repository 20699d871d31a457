//! The engine: windows of simulated time.
//!
//! A packet that leaves a node arrives at the next one a propagation delay later at the earliest. So within a window as long as the
//! shortest delay, nodes do not affect each other: each takes what arrives in the window, in the order of time and port, and
//! nothing is left of a queue of events. What a window sends arrives after it. The outcome is that of
//! the events in the order of their times, whatever the order of nodes in a window, and however many threads share them.

mod accelerator;
mod buffers;
mod corruption;
mod deadlock;
mod gather;
mod pace;
mod shard;

use std::sync::Mutex;

use anyhow::ensure;

use crate::fabric::Fabric;
use crate::host::{FlowRecord, HostCounters, Unended};
use crate::job::aggregation::{EndpointCounters, Programs};
use crate::job::{IterationRecord, Rank};
use crate::link::LinkCounters;
use crate::scenario::JobInfo;
use crate::transport::Transport;
use crate::workload::Source;
pub use accelerator::{Accelerators, connect_accelerators};
pub use buffers::{Memory, Pause};
use pace::{Attendance, Pace};
use shard::{Post, Shard};

/// Longer windows gain nothing, and times within one must be short numbers.
const WINDOW_PS_MAX: u64 = 10_000_000;
/// Windows between two reports of progress, and two checks.
const REPORT_WINDOWS: u64 = 1024;

/// What is simulated.
pub struct Plan {
    /// The network.
    pub fabric: Fabric,
    /// What its flows do.
    pub transport: Transport,
    /// By host, what it sends.
    pub sources: Vec<Vec<Source>>,
    /// By host, ranks of jobs; hosts beyond the end have none.
    pub ranks: Vec<Vec<Rank>>,
    /// By switch, what aggregates there; switches beyond the end have nothing.
    pub programs: Vec<Programs>,
    /// What the queues of each switch share; without, each has its link's limit for itself.
    pub memory: Option<Memory>,
    /// What paced programs are slowed down by, at switches with a link to themselves ([`connect_accelerators`]).
    pub accelerators: Option<Accelerators>,
    /// What jobs are called, by number; for tables only.
    pub jobs: Vec<JobInfo>,
    /// Decides which packets are corrupted.
    pub seed: u64,
    /// Simulated time.
    pub duration_ps: u64,
    /// Time between two notes of how far hosts and ranks are; `u64::MAX` for none.
    pub sample_ps: u64,
}

/// One link's end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOutcome {
    /// Node that sends into it.
    pub from: u32,
    /// Node at its other end.
    pub to: u32,
    /// What became of its packets.
    pub counters: LinkCounters,
    /// Packets that were on the way at the end.
    pub started: u64,
    /// Packets that waited.
    pub waiting: u64,
    /// Packets that arrived damaged.
    pub corrupted: u64,
    /// If it is paused at the end and something waits: since when it sends nothing; not in the digest.
    pub stopped_since_ps: Option<u64>,
}

impl LinkOutcome {
    /// Whether it is the way into a switch's own accelerator, and its queue that one's buffer.
    pub fn is_accelerator(&self) -> bool {
        self.from == self.to
    }
}

/// What became of packets at a switch beside its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchOutcome {
    /// Datagrams handed to a program, and pause frames received.
    pub taken: u64,
    /// Datagrams sent by a program, those that a queue then dropped included, and pause frames.
    pub emitted: u64,
    /// Of these, frames that stopped a sender.
    pub pauses: u64,
}

/// How far hosts and ranks were, at equal distances in time; the first is one distance from the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// The distance.
    pub every_ps: u64,
    /// By host, payload of its flows that was acknowledged since the start, bytes.
    pub hosts: Vec<Vec<u64>>,
    /// By job, then rank, gradients that it had the sum of since the start, bytes.
    pub ranks: Vec<RankSamples>,
}

/// How far one rank was.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankSamples {
    /// The job's number.
    pub job: u16,
    /// The rank.
    pub rank: u16,
    /// Bytes.
    pub summed: Vec<u64>,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Flows that ended, by start, source and destination.
    pub flows: Vec<FlowRecord>,
    /// Flows that had started and not ended, in the same order; not in the digest.
    pub unended: Vec<Unended>,
    /// By cable, and the direction from its first end before the other; accelerators, after all cables, have one direction each.
    pub links: Vec<LinkOutcome>,
    /// By host.
    pub hosts: Vec<HostCounters>,
    /// By switch.
    pub switches: Vec<SwitchOutcome>,
    /// Of all jobs, by job, iteration and rank.
    pub iterations: Vec<IterationRecord>,
    /// Of all ranks that aggregate in the network.
    pub endpoints: EndpointCounters,
    /// How far hosts and ranks were in between; not in the digest.
    pub samples: Samples,
    /// Places of links whose pauses wait for each other in a circle at the end, and that have sent nothing for long; not in the digest.
    pub deadlocked: Vec<usize>,
}

impl Outcome {
    /// Packets times links that they were sent over.
    pub fn packet_hops(&self) -> u64 {
        self.links.iter().filter(|link| !link.is_accelerator()).map(|link| link.counters.sent).sum()
    }

    /// At each switch, what has come in whole has gone out, waits, was dropped, or was taken by a program.
    ///
    /// # Errors
    /// The first switch where packets are not accounted for: a bug of the simulator or of a program.
    pub fn check(&self) -> anyhow::Result<()> {
        let hosts = self.hosts.len();
        let mut balance = vec![0i128; hosts + self.switches.len()];
        for link in &self.links {
            balance[link.to as usize] +=
                i128::from(link.counters.sent) - i128::from(link.started) - i128::from(link.corrupted);
            balance[link.from as usize] -=
                i128::from(link.counters.sent) + i128::from(link.counters.dropped) + i128::from(link.waiting);
        }
        for (index, switch) in self.switches.iter().enumerate() {
            let left = balance[hosts + index] + i128::from(switch.emitted) - i128::from(switch.taken);
            ensure!(left == 0, "switch {index}: {left} packets more came than went; this is a bug, please report it");
        }
        Ok(())
    }

    /// 64 bits of everything that happened (FNV-1a): equal for equal runs, on every machine and with any number of threads.
    pub fn digest(&self) -> u64 {
        let flows = self.flows.iter().flat_map(|flow| {
            [flow.start_ps, flow.completion_ps, flow.bytes, u64::from(flow.source) << 16 | u64::from(flow.destination)]
        });
        let links = self.links.iter().flat_map(|link| {
            let LinkCounters { sent, sent_bytes, marked, dropped, queued_bytes_max } = link.counters;
            [sent, sent_bytes, marked, dropped, queued_bytes_max, link.started, link.waiting]
        });
        let hosts = self.hosts.iter().flat_map(|host| {
            [host.started, host.completed, host.resent, host.timeouts, host.acknowledged_bytes, host.job_bytes]
        });
        let iterations = self.iterations.iter().flat_map(|at| {
            let place = u64::from(at.job) << 48 | u64::from(at.rank) << 32 | u64::from(at.iteration);
            [place, at.start_ps, at.computed_ps, at.end_ps]
        });
        let switches = self.switches.iter().filter(|switch| switch.taken + switch.emitted > 0);
        let switches = switches.flat_map(|switch| [switch.taken, switch.emitted, switch.pauses]);
        let corrupted = self.links.iter().map(|link| link.corrupted).filter(|&count| count > 0);
        let words = flows.chain(links).chain(hosts).chain(iterations).chain(switches).chain(corrupted);
        let bytes = words.flat_map(u64::to_le_bytes);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Runs a plan on `thread_count` threads; `report` is told the simulated time now and then, and ends the run by saying false.
///
/// # Errors
/// For a network that cannot work, a link without propagation delay, or a plan that does not fit the network; if a sum was wrong,
/// a program refused a datagram, or packets are not accounted for.
pub fn run(plan: Plan, thread_count: usize, mut report: impl FnMut(u64) -> bool) -> anyhow::Result<Outcome> {
    let window_ps = window(&plan.fabric)?;
    ensure!(plan.sources.len() == plan.fabric.host_count as usize, "one list of sources for each host");
    ensure!(plan.ranks.len() <= plan.sources.len(), "ranks at more hosts than there are");
    let (transport, duration_ps, sample_ps) = (plan.transport, plan.duration_ps, plan.sample_ps.max(1));
    // Copies that a program makes may be more than what was paused for; rings and ideal jobs make none.
    let is_lossless =
        plan.memory.is_some_and(|memory| memory.pause.is_some()) && plan.programs.iter().all(Programs::is_empty);
    let quiet_ps = deadlock::quiet_ps(plan.memory.as_ref(), &plan.fabric);
    let built = shard::build(plan, thread_count)?;
    let shard_count = built.len();
    let pace = Pace::new(shard_count);
    let mail: Vec<Mutex<Post>> = (0..2 * shard_count * shard_count).map(|_| Mutex::default()).collect();
    let work = |index| Work {
        index,
        shard_count,
        window_ps,
        duration_ps,
        sample_ps,
        transport: &transport,
        pace: &pace,
        mail: &mail,
    };
    let shards = std::thread::scope(|scope| {
        let mut built = built.into_iter().enumerate();
        // The calling thread has the first share, and reports.
        let own = built.next();
        let others: Vec<_> =
            built.map(|(index, shard)| scope.spawn(move || work(index).run(shard, |_| true))).collect();
        let own = own.map(|(index, shard)| work(index).run(shard, &mut report));
        let join = |thread: std::thread::ScopedJoinHandle<'_, Shard>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        own.into_iter().chain(others.into_iter().map(join)).collect::<Vec<_>>()
    });
    let mut outcome = gather::outcome(shards, duration_ps)?;
    outcome.samples.every_ps = sample_ps;
    outcome.deadlocked =
        quiet_ps.map_or_else(Vec::new, |quiet| deadlock::deadlocked(&outcome.links, duration_ps, quiet));
    outcome.check()?;
    let dropped: u64 = outcome.links.iter().map(|link| link.counters.dropped).sum();
    ensure!(
        !is_lossless || dropped == 0,
        "{dropped} packets were dropped in spite of pauses; this is a bug, please report it"
    );
    Ok(outcome)
}

fn window(fabric: &Fabric) -> anyhow::Result<u64> {
    let delays = fabric.cables.iter().flat_map(|cable| cable.links).map(|link| link.delay_ps);
    let shortest = delays.min().unwrap_or(0);
    ensure!(
        shortest > 0,
        "every link needs a propagation delay: nodes are simulated apart for as long as the shortest"
    );
    Ok(shortest.min(WINDOW_PS_MAX))
}

/// One thread's part of a run.
struct Work<'a> {
    index: usize,
    shard_count: usize,
    window_ps: u64,
    duration_ps: u64,
    sample_ps: u64,
    transport: &'a Transport,
    pace: &'a Pace,
    mail: &'a [Mutex<Post>],
}

impl Work<'_> {
    fn run(&self, mut shard: Shard, mut report: impl FnMut(u64) -> bool) -> Shard {
        let _attendance = Attendance(self.pace);
        let (mut start_ps, mut end_ps, mut parity, mut windows) = (0, 0, 0, 0u64);
        let mut sample_ps = self.sample_ps;
        while start_ps < self.duration_ps {
            sample_ps = self.sample(&mut shard, sample_ps, start_ps);
            end_ps = (start_ps + self.window_ps).min(self.duration_ps);
            shard.run_window(start_ps, end_ps, self.transport);
            let has_posted = self.post(&mut shard, parity);
            let mut next_ps = if has_posted || shard.is_busy() { end_ps } else { shard.wake_ps().max(end_ps) };
            windows += 1;
            if windows.is_multiple_of(REPORT_WINDOWS) && !(shard.check(end_ps) && report(end_ps)) {
                next_ps = Pace::STOP;
            }
            next_ps = self.pace.agree(self.index, parity, next_ps);
            self.collect(&mut shard, parity);
            if next_ps == Pace::STOP || next_ps >= self.duration_ps {
                break;
            }
            start_ps = next_ps / self.window_ps * self.window_ps;
            parity ^= 1;
        }
        self.sample(&mut shard, sample_ps, self.duration_ps);
        shard.check(end_ps);
        shard
    }

    /// Notes how far all are at each time from `sample_ps` to `now_ps` at which that is due; returns the next.
    fn sample(&self, shard: &mut Shard, mut sample_ps: u64, now_ps: u64) -> u64 {
        while sample_ps <= now_ps {
            shard.sample(sample_ps);
            sample_ps = sample_ps.saturating_add(self.sample_ps);
        }
        sample_ps
    }

    fn slot(&self, from: usize, to: usize, parity: usize) -> &Mutex<Post> {
        &self.mail[(parity * self.shard_count + from) * self.shard_count + to]
    }

    /// Hands packets for other threads' nodes over.
    fn post(&self, shard: &mut Shard, parity: usize) -> bool {
        let mut has_posted = false;
        for (to, letters) in shard.outgoing().iter_mut().enumerate().filter(|(_, letters)| !letters.is_empty()) {
            has_posted = true;
            let mut slot = self.slot(self.index, to, parity).lock().unwrap_or_else(|broken| broken.into_inner());
            std::mem::swap(&mut *slot, letters);
        }
        has_posted
    }

    fn collect(&self, shard: &mut Shard, parity: usize) {
        for from in (0..self.shard_count).filter(|&from| from != self.index) {
            let mut slot = self.slot(from, self.index, parity).lock().unwrap_or_else(|broken| broken.into_inner());
            shard.land(&mut slot);
        }
    }
}
