//! The checkers: what must hold after every step, and at the end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use fanin_protocol::switchml::{BlockId, Switch, WireFormat, Worker};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};
use fanin_wire::generated::BLOCK_EXPONENT_NOT_NEEDED;
use fanin_wire::{fanin, p4app};

use super::Cluster;
use super::host::Host;
use crate::bounds;
use crate::job::{Disturbance, JobPlan};
use crate::memory::Received;
use crate::oracle::{self, Expectation};

/// Other jobs' slots are compared around every packet of this many: hashing
/// all memory around every one would take most of the time.
const ISOLATION_EVERY: u64 = 16;

/// A rule that did not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The scenario's seed.
    pub seed: u64,
    /// When.
    pub at: Time,
    /// Which rule, and how.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "seed {} at {} ns: {}\nreplay: cargo run -p fanin-harness --bin swarm -- --seed {} --trace",
            self.seed,
            self.at.as_ns(),
            self.what,
            self.seed
        )
    }
}

/// What a scenario came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hash over every step.
    pub trace_hash: u64,
    /// Steps.
    pub steps: u64,
    /// Collectives that completed at one worker.
    pub completed: u64,
    /// Contributions sent for the first time.
    pub contributions: u64,
    /// Contributions sent again.
    pub resends: u64,
    /// Headers that asked whether to send again.
    pub queries: u64,
    /// Packets that the links lost.
    pub lost: u64,
    /// When the last collective completed, in nanoseconds.
    pub completed_ns: u64,
    /// When the last event happened, in nanoseconds.
    pub ended_ns: u64,
}

/// The oracle's answer for a block, and the payload that its first receiver saw.
type Answer = (Expectation, Option<Vec<u8>>);

/// State of the checkers.
pub struct Checkers {
    plans: Vec<Rc<JobPlan>>,
    /// Per job, by (slot, rank): uses of the slot that this rank's
    /// contribution was counted in.
    counted: Vec<Vec<u32>>,
    answers: HashMap<(usize, u64, u32), Answer>,
    /// Blocks that came unscaled, with the payload that their first receiver saw.
    unscaled: HashMap<(usize, u64, u32), Option<Vec<u8>>>,
    at_switch: u64,
    /// Packets that switches before a restart have counted.
    before_restart: u64,
    restarted: bool,
}

impl Checkers {
    pub fn new(plans: &[Rc<JobPlan>]) -> Checkers {
        let table = |plan: &Rc<JobPlan>| {
            let slots = plan.slots_per_lane as usize * usize::from(plan.lane_count);
            vec![0; slots * usize::from(plan.worker_count)]
        };
        Checkers {
            plans: plans.to_vec(),
            counted: plans.iter().map(table).collect(),
            answers: HashMap::new(),
            unscaled: HashMap::new(),
            at_switch: 0,
            before_restart: 0,
            restarted: false,
        }
    }

    pub fn switch_restarts(&mut self, switch: &Switch) {
        self.before_restart += packets_counted(switch);
        self.restarted = true;
    }

    /// Hash of all slots.
    pub fn state_of(&self, switch: &Switch) -> u64 {
        let mut hasher = DefaultHasher::new();
        switch.hash_state(&mut hasher);
        hasher.finish()
    }

    /// The switch was given a packet that is no worker's.
    pub fn foreign_packet(&mut self) {
        self.at_switch += 1;
    }

    /// Hash of all other jobs' slots, for one packet in a while.
    pub fn others_state(&self, switch: &Switch, plans: &[Rc<JobPlan>], job_id: u32) -> Option<u64> {
        (plans.len() > 1 && self.at_switch.is_multiple_of(ISOLATION_EVERY))
            .then(|| self.state_of_others(switch, plans, job_id))
    }

    pub fn state_of_others(&self, switch: &Switch, plans: &[Rc<JobPlan>], job_id: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        for plan in plans.iter().filter(|plan| plan.job_id != job_id) {
            switch.hash_job_state(plan.job_id, &mut hasher);
        }
        hasher.finish()
    }

    /// After the switch program handled one packet.
    pub fn after_switch(
        &mut self,
        switch: &Switch,
        from: &Host,
        packet: &[u8],
        damaged: bool,
        verdict: &Verdict,
    ) -> Result<(), String> {
        self.at_switch += 1;
        if self.before_restart + packets_counted(switch) != self.at_switch {
            return Err(format!("the switch did not count a packet with {verdict:?}"));
        }
        if damaged && !is_parse_failure(verdict) {
            return Err(format!("a damaged packet was not recognised: {verdict:?}"));
        }
        if let Verdict::Refuse { reason, .. } = verdict
            && from.plan.is_healthy()
            && !self.restarted
        {
            return Err(format!("a worker in good order was refused: {reason:?}"));
        }
        let counted = matches!(verdict, Verdict::Drop(DropReason::AwaitingOthers) | Verdict::Multicast { .. });
        if counted { self.count(from, packet) } else { Ok(()) }
    }

    /// No contribution counts twice, none is skipped, and no worker is more
    /// than one use of a slot ahead of another (SwitchML §4.5).
    fn count(&mut self, from: &Host, packet: &[u8]) -> Result<(), String> {
        let plan = &self.plans[from.job];
        let (slot, chunk) = slot_and_chunk(plan.wire_format, packet).ok_or("an unreadable packet was counted")?;
        let n = usize::from(plan.worker_count);
        let row = &mut self.counted[from.job][usize::from(slot) * n..][..n];
        let (round, uses) = (chunk / plan.slots_per_lane, row[usize::from(from.rank)]);
        if round != uses {
            return Err(format!(
                "rank {} chunk {chunk} on slot {slot} counted as use {round}, but {uses} uses were counted before",
                from.rank
            ));
        }
        row[usize::from(from.rank)] += 1;
        match row.iter().min() {
            Some(&least) if round > least => {
                Err(format!("rank {} is at use {round} of slot {slot}, another at {least}", from.rank))
            }
            _ => Ok(()),
        }
    }

    /// After a worker was called: its new results, and its bookkeeping.
    pub fn after_worker(&mut self, host: &mut Host, non_finite: &[BlockId], lane: u16) -> Result<(), String> {
        let lane = &host.lanes[usize::from(lane)];
        if packets_of(&lane.worker) != lane.handled {
            return Err(format!("rank {} did not count a packet: {:?}", host.rank, lane.worker.counters()));
        }
        let counters = lane.worker.counters();
        if host.plan.wire_format == WireFormat::Fanin && counters.resends > counters.missing {
            return Err(format!("rank {} resent what the switch did not lack: {counters:?}", host.rank));
        }
        for received in host.memory.take_received() {
            if !host.blocks_received.insert((received.id.collective, received.id.block)) {
                return Err(format!("rank {} received {:?} twice", host.rank, received.id));
            }
            self.check_block(host, &received, non_finite.contains(&received.id))
                .map_err(|what| format!("rank {} of job {}: {what}", host.rank, host.job))?;
        }
        Ok(())
    }

    fn check_block(&mut self, host: &Host, received: &Received, non_finite: bool) -> Result<(), String> {
        let (plan, id) = (&self.plans[host.job], received.id);
        let collective = &plan.collectives[id.collective as usize];
        if !collective.element_format.is_block_scaled() && received.exponent == BLOCK_EXPONENT_NOT_NEEDED {
            return self.check_unscaled(host, received, non_finite);
        }
        if self.unscaled.contains_key(&(host.job, id.collective, id.block)) {
            return Err(format!("{id:?} overflowed for this rank only"));
        }
        let is_resent = collective.is_float() && !collective.element_format.is_block_scaled();
        if is_resent && !bounds::may_overflow(plan, collective, id) {
            return Err(format!("{id:?}: no sum leaves the accumulator {}", plan.accumulator.label()));
        }
        let key = (host.job, id.collective, id.block);
        if let Entry::Vacant(unasked) = self.answers.entry(key) {
            unasked.insert((oracle::expect(plan, collective, id)?, None));
        }
        let (expected, first_payload) = self.answers.get_mut(&key).ok_or("no expectation")?;
        if expected.exponent.is_some_and(|exponent| exponent != received.exponent) {
            return Err(format!("{id:?} has exponent {}, not {:?}", received.exponent, expected.exponent));
        }
        let is_non_finite = expected.exponent == Some(oracle::NON_FINITE);
        if is_non_finite != non_finite {
            return Err(format!("{id:?}: non-finite is {is_non_finite}, reported {non_finite}"));
        }
        let (shard, ..) = collective.place(id, plan.element_count_max);
        if is_non_finite || !collective.receives(host.rank, shard) {
            let empty = received.payload.is_empty();
            return if empty { Ok(()) } else { Err(format!("{id:?} came with elements for another rank")) };
        }
        let got: Vec<Option<u32>> = received.elements.iter().map(|&bits| Some(bits)).collect();
        if got != expected.elements {
            return Err(wrong_sum(id, &got, &expected.elements));
        }
        match first_payload {
            Some(first) if *first != received.payload => Err(format!("{id:?} differs between workers")),
            Some(_) => Ok(()),
            None => {
                *first_payload = Some(received.payload.clone());
                Ok(())
            }
        }
    }
}

impl Checkers {
    /// A sum of floats as the job's accumulator has it: within its bound, and the same bytes for all who take it.
    fn check_unscaled(&mut self, host: &Host, received: &Received, non_finite: bool) -> Result<(), String> {
        let (plan, id) = (&self.plans[host.job], received.id);
        let collective = &plan.collectives[id.collective as usize];
        let key = (host.job, id.collective, id.block);
        if self.answers.contains_key(&key) || non_finite {
            return Err(format!("{id:?} overflowed for other ranks only"));
        }
        let (shard, _, count) = collective.place(id, plan.element_count_max);
        let receives = collective.receives(host.rank, shard);
        if received.elements.len() as u64 != if receives { count } else { 0 } {
            return Err(format!("{id:?} has {} elements", received.elements.len()));
        }
        let first = self.unscaled.entry(key).or_default();
        if !receives {
            return Ok(());
        }
        match first {
            Some(first) if *first != received.payload => Err(format!("{id:?} differs between workers")),
            Some(_) => Ok(()),
            None => {
                *first = Some(received.payload.clone());
                bounds::check(plan, collective, id, &received.elements)
                    .map_err(|what| format!("WRONG SUM: {id:?} {what}"))
            }
        }
    }
}

fn wrong_sum(id: BlockId, got: &[Option<u32>], expected: &[Option<u32>]) -> String {
    let first = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    let at = |list: &[Option<u32>]| list.get(first).copied().flatten();
    format!(
        "WRONG SUM: {id:?} element {first} is {:x?}, must be {:x?} ({} and {} elements)",
        at(got),
        at(expected),
        got.len(),
        expected.len()
    )
}

/// A collective is complete once each of its lanes says so, once.
pub fn completed(host: &mut Host, collective: u64) -> Result<(), String> {
    let left = &mut host.lanes_left[collective as usize];
    *left = left.checked_sub(1).ok_or_else(|| format!("collective {collective} completed twice"))?;
    Ok(())
}

pub fn same_state(before: u64, after: u64) -> Result<(), String> {
    if before == after { Ok(()) } else { Err("a packet of one job changed another job's slots".into()) }
}

fn packets_counted(switch: &Switch) -> u64 {
    let counters = switch.counters();
    counters.contributions + counters.replies + counters.probes + counters.missing + counters.drops.iter().sum::<u64>()
}

fn packets_of(worker: &Worker) -> u64 {
    let counters = worker.counters();
    counters.aggregates + counters.refusals + counters.missing + counters.drops.iter().sum::<u64>()
}

fn is_parse_failure(verdict: &Verdict) -> bool {
    use DropReason::{BadChecksum, BadElementFormat, BadKind, BadLength, BadMagic, BadOperator, BadVersion, Truncated};
    let Verdict::Drop(reason) = verdict else { return false };
    [Truncated, BadMagic, BadVersion, BadKind, BadLength, BadElementFormat, BadOperator, BadChecksum].contains(reason)
}

fn slot_and_chunk(wire_format: WireFormat, packet: &[u8]) -> Option<(u16, u32)> {
    match wire_format {
        WireFormat::Fanin => {
            fanin::Header::parse(packet).ok().map(|(header, _)| (header.slot_index, header.chunk_index))
        }
        WireFormat::P4app => p4app::Header::parse(packet).ok().map(|(header, _)| (header.slot_index, header.packet_id)),
    }
}

/// A packet in a trace.
pub fn describe(packet: &[u8]) -> String {
    if let Ok((header, _)) = fanin::Header::parse(packet) {
        return format!(
            "{:?} job {:#x} rank {} slot {}.{} chunk {} exponent {} elements {} detail {}",
            header.kind,
            header.job_id,
            header.worker_rank as i16,
            header.slot_index,
            header.slot_parity,
            header.chunk_index,
            header.block_exponent_next,
            header.element_count,
            header.detail
        );
    }
    match p4app::Header::parse(packet) {
        Ok((header, _)) => format!("{header:?}"),
        Err(_) => format!("{} unreadable bytes", packet.len()),
    }
}

/// After the last event.
pub fn at_the_end(cluster: &Cluster) -> Result<Summary, String> {
    packets_conserved(cluster)?;
    for host in &cluster.hosts {
        let restarted = cluster.scenario.switch_restart.is_some();
        match host.plan.disturbance {
            _ if restarted => removed_or_done(host)?,
            Disturbance::None => must_be_done(host)?,
            Disturbance::Removal { .. } | Disturbance::Replacement { .. } => removed_or_done(host)?,
            Disturbance::Death { rank, .. } | Disturbance::Cut { rank, .. } => stuck_visibly(cluster, host, rank)?,
            Disturbance::Mismatch { collective, .. } => must_not_be_done(host, collective)?,
        }
    }
    somebody_was_told_of_mismatches(cluster)?;
    let summary = summarise(cluster);
    if cluster.scenario.calm && summary.resends + summary.queries > 0 {
        let Summary { resends, queries, .. } = summary;
        return Err(format!("{resends} resends and {queries} queries although nothing was lost or late"));
    }
    Ok(summary)
}

/// Sent = delivered + dropped with a reason + still on the way.
fn packets_conserved(cluster: &Cluster) -> Result<(), String> {
    let on_the_way = |wanted: usize| {
        let events = cluster.events.iter().map(|std::cmp::Reverse((.., event))| event);
        events.fold([0, 0], |[up, down], event| match event {
            super::Event::ToSwitch { from, .. } if from.host == wanted => [up + 1, down],
            super::Event::ToWorker { to, .. } if to.host == wanted => [up, down + 1],
            _ => [up, down],
        })
    };
    for (index, host) in cluster.hosts.iter().enumerate() {
        let [up, down] = if cluster.events.is_empty() { [0, 0] } else { on_the_way(index) };
        for (link, arrived) in [(&host.up, host.up_arrived + up), (&host.down, host.down_arrived + down)] {
            let counters = link.counters();
            let gone = counters.lost + counters.blackholed;
            if counters.sent + counters.duplicated != gone + arrived {
                return Err(format!("packets of host {index} vanished: {counters:?}, {arrived} accounted for"));
            }
        }
    }
    Ok(())
}

fn must_be_done(host: &Host) -> Result<(), String> {
    if host.is_done() && host.lanes.iter().all(|lane| lane.worker.is_idle()) {
        return Ok(());
    }
    let oldest: Vec<_> = host.lanes.iter().map(|lane| lane.worker.oldest_outstanding()).collect();
    Err(format!("no progress: rank {} of job {} left {:?}, {oldest:?}", host.rank, host.job, host.lanes_left))
}

fn removed_or_done(host: &Host) -> Result<(), String> {
    // The new run has another token, and perhaps another generation.
    refused_or_done(host, DropReason::UnknownJob).or_else(|_| refused_or_done(host, DropReason::StaleToken))
}

/// The layout of p4app has no refusals: there, being stuck is all one sees.
fn refused_or_done(host: &Host, reason: DropReason) -> Result<(), String> {
    let told = host.refusals.contains(&reason) || host.plan.wire_format == WireFormat::P4app;
    let unreachable = !host.alive || host.up.config().is_dead(Time::from_ns(u64::MAX - 1));
    let deaf = host.down.config().is_dead(Time::from_ns(u64::MAX - 1));
    if host.is_done() || told || unreachable || deaf {
        return Ok(());
    }
    Err(format!("rank {} of job {} was not told {reason:?}: {:?}", host.rank, host.job, host.refusals))
}

/// Survivors know that they wait, and the switch knows for whom.
fn stuck_visibly(cluster: &Cluster, host: &Host, lost_rank: u16) -> Result<(), String> {
    if host.rank == lost_rank || host.is_done() {
        return Ok(());
    }
    let waits = host
        .lanes
        .iter()
        .any(|lane| lane.worker.oldest_outstanding().is_some() && lane.worker.poll_timeout().is_some());
    if !waits {
        return Err(format!("rank {} is not done and does not wait either", host.rank));
    }
    let snapshot = cluster.switch.inspect(host.plan.job_id).ok_or("the switch lost the job")?;
    let stuck: Vec<_> = snapshot.lanes.iter().flat_map(|lane| &lane.oldest).collect();
    if stuck.is_empty() || stuck.iter().any(|slot| slot.missing_ranks != [lost_rank]) {
        return Err(format!("rank {lost_rank} is lost, but the switch says {stuck:?}"));
    }
    Ok(())
}

fn must_not_be_done(host: &Host, collective: u64) -> Result<(), String> {
    let done = host.lanes_left[collective as usize] == 0;
    if done { Err(format!("collective {collective} completed although a worker was in another one")) } else { Ok(()) }
}

fn somebody_was_told_of_mismatches(cluster: &Cluster) -> Result<(), String> {
    let restarted = cluster.scenario.switch_restart.is_some();
    for (job, plan) in cluster.plans.iter().enumerate() {
        let Disturbance::Mismatch { .. } = plan.disturbance else { continue };
        let mut hosts = cluster.hosts.iter().filter(|host| host.job == job);
        if !restarted && !hosts.any(|host| host.refusals.contains(&DropReason::CollectiveMismatch)) {
            return Err(format!("nobody of job {job} was told of the mismatch"));
        }
    }
    Ok(())
}

fn summarise(cluster: &Cluster) -> Summary {
    let mut summary = Summary {
        trace_hash: cluster.trace.hash(),
        steps: cluster.trace.steps(),
        ended_ns: cluster.now.as_ns(),
        ..Summary::default()
    };
    for host in &cluster.hosts {
        summary.completed_ns = summary.completed_ns.max(host.completed_last.as_ns());
        summary.completed += host.lanes_left.iter().filter(|&&left| left == 0).count() as u64;
        summary.lost += host.up.counters().lost + host.down.counters().lost;
        for lane in &host.lanes {
            summary.contributions += lane.worker.counters().contributions;
            summary.resends += lane.worker.counters().resends;
            summary.queries += lane.worker.counters().queries;
        }
    }
    summary
}
