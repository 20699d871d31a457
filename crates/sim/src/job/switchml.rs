//! SwitchML's values in the simulator: a worker for each tree at every rank, a `Switch` at each tree's root, and a `Leaf` at each switch
//! below it (SwitchML §4, and §7 on several racks). Jobs with several trees send their blocks in equal shares to each.

use anyhow::{anyhow, ensure};
use fanin_protocol::Verdict;
use fanin_protocol::stream::Submission;
use fanin_protocol::switchml::{
    self, Context, JobConfig, Leaf, LeafConfig, LeafVerdict, Side, Switch, WORKERS_PER_JOB_MAX, WireFormat, Worker,
    WorkerConfig, WorkerCounters,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::HEADER_BYTES;

use super::aggregation::{Arrival, Endpoint, EndpointCounters, Event, Outbox, Program, Transmit, Wire};
use super::tree::{Node, Tree};
use super::words::{ELEMENTS, Words, submission};
use crate::packet::NO_HOST;

/// The timer waits long before a round trip was measured, and then for a few of them.
const TIMEOUT_INITIAL: Span = Span::from_ms(10);
const TIMEOUT_MAX: Span = Span::from_ms(200);

/// How a job uses SwitchML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The job's number.
    pub job: u16,
    /// Ranks.
    pub worker_count: u16,
    /// Slots of each tree, a power of two; also the window (SwitchML §4.4).
    pub slots: u32,
    /// Packets with a payload that a bucket takes, on all trees.
    pub block_count: u32,
    /// Bytes on a link of a packet with a payload, and of one without.
    pub packet_bytes: [u16; 2],
    /// Least resend timeout.
    pub timeout_min: Span,
}

impl Settings {
    /// Checks what protocol and packets allow.
    ///
    /// # Errors
    /// Too many workers; slots that are no power of two, or too many.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.worker_count <= WORKERS_PER_JOB_MAX,
            "{} workers: SwitchML's packets have room for {WORKERS_PER_JOB_MAX}",
            self.worker_count
        );
        ensure!(
            self.slots.is_power_of_two() && self.slots <= 1 << 15,
            "slots = {}: a power of two, at most 32768",
            self.slots
        );
        Ok(())
    }

    fn id(&self) -> u32 {
        0x100 + u32::from(self.job & 0xff)
    }

    fn job_config(&self, worker_count: usize) -> JobConfig {
        JobConfig {
            job_id: self.id(),
            job_token: u32::from(self.job),
            worker_count: worker_count as u16,
            lane_count: 1,
            slots_per_lane: self.slots,
            element_count_max: ELEMENTS,
            wire_format: WireFormat::Fanin,
            has_checksum: false,
            accumulator: fanin_wire::Accumulator::BlockFixed,
        }
    }

    fn wire(&self, length: usize, group: u32) -> Wire {
        let bytes = self.packet_bytes[usize::from(length == HEADER_BYTES)];
        // SwitchML has no congestion control: nobody would react to a mark.
        Wire { bytes, group, destination: NO_HOST, is_markable: false, is_marked: false }
    }
}

/// One rank's workers, one for each tree.
#[derive(Debug)]
pub struct Ranked {
    settings: Settings,
    group_first: u32,
    lanes: Vec<Lane>,
    /// Whose turn it is.
    turn: usize,
    words: Words,
    /// Collectives submitted.
    submitted: u64,
    /// Collectives that were told of as complete.
    told: u64,
    failure: Option<String>,
}

/// A worker, and the collectives that its part of is complete.
struct Lane(Worker, u64);

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lane").field(self.0.counters()).finish()
    }
}

/// A rank's endpoint.
pub fn endpoint(settings: &Settings, rank: u16, group_first: u32, trees: &[Tree]) -> Ranked {
    let lane = |tree: &Tree| {
        let worker = Worker::new(WorkerConfig {
            job_id: settings.id(),
            job_token: u32::from(settings.job),
            rank,
            number: tree.number_of_rank[usize::from(rank)],
            worker_count: settings.worker_count,
            lane: 0,
            slots_per_lane: settings.slots,
            element_count_max: ELEMENTS,
            wire_format: WireFormat::Fanin,
            has_checksum: false,
            resend_timeout_initial: TIMEOUT_INITIAL.max(settings.timeout_min),
            resend_timeout_min: settings.timeout_min,
            resend_timeout_max: TIMEOUT_MAX.max(settings.timeout_min),
        });
        Lane(worker, 0)
    };
    Ranked {
        settings: *settings,
        group_first,
        lanes: trees.iter().map(lane).collect(),
        turn: 0,
        words: Words::new(settings.job.into(), rank.into(), settings.worker_count.into()),
        submitted: 0,
        told: 0,
        failure: None,
    }
}

impl Ranked {
    fn submission(&self, lane: usize) -> Submission {
        let blocks = u64::from(self.settings.block_count);
        let first = |lane: usize| (blocks * lane as u64 / self.lanes.len() as u64) as u32;
        submission(self.submitted, self.settings.block_count, first(lane)..first(lane + 1))
    }

    fn take_events(&mut self, lane: usize) {
        while let Some(event) = self.lanes[lane].0.poll_event() {
            match event {
                switchml::Event::Completed { .. } => self.lanes[lane].1 += 1,
                switchml::Event::NonFinite(_) | switchml::Event::Overflowed { .. } => {}
                switchml::Event::Refused { reason, .. } => self.failure = Some(format!("refused: {reason}")),
            }
        }
        if self.words.wrong > 0 {
            self.failure = Some(format!("{} wrong sums", self.words.wrong));
        }
    }
}

impl Endpoint for Ranked {
    fn submit(&mut self, _now: Time) {
        for lane in 0..self.lanes.len() {
            let submission = self.submission(lane);
            if submission.block_count > 0 {
                self.lanes[lane].0.submit(submission);
            }
        }
        self.submitted += 1;
    }

    fn poll_transmit(&mut self, now: Time, output: &mut [u8]) -> Option<Transmit> {
        for _ in 0..self.lanes.len() {
            let lane = self.turn;
            self.turn = if lane + 1 == self.lanes.len() { 0 } else { lane + 1 };
            if let Some(length) = self.lanes[lane].0.poll_transmit(now, &mut self.words, output) {
                return Some(Transmit { length, wire: self.settings.wire(length, self.group_first + lane as u32) });
            }
        }
        None
    }

    fn handle_packet(&mut self, arrival: &Arrival) {
        let lane = (arrival.group - self.group_first) as usize;
        self.lanes[lane].0.handle_packet(arrival.now, arrival.datagram, &mut self.words);
        self.take_events(lane);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.lanes.iter().filter_map(|lane| lane.0.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.lanes.iter_mut().for_each(|lane| lane.0.handle_timeout(now));
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(failure) = self.failure.take() {
            return Some(Event::Failed(failure));
        }
        // Lanes without blocks have a part of no collective.
        let has_part = |lane: &usize| self.submission(*lane).block_count > 0;
        let complete = (0..self.lanes.len()).filter(has_part).map(|lane| self.lanes[lane].1).min().unwrap_or(0);
        (complete > self.told).then(|| {
            self.told += 1;
            Event::Completed
        })
    }

    fn counters(&self) -> EndpointCounters {
        let sum = |part: fn(&WorkerCounters) -> u64| self.lanes.iter().map(|lane| part(lane.0.counters())).sum();
        EndpointCounters {
            resent: sum(|own| own.resends),
            asked: sum(|own| own.queries),
            sums: self.words.sums,
            partial: 0,
        }
    }
}

/// The program of a tree's switch for one group.
///
/// # Errors
/// If the protocol does not take the job.
pub fn program(settings: &Settings, node: &Node, group: u32) -> anyhow::Result<Box<dyn Program>> {
    let job = settings.job_config(node.children.len());
    let refused = |error| anyhow!("switch {} does not take the job: {error:?}", node.switch);
    let (settings, children) = (*settings, node.children.clone());
    let Some((parent, number)) = node.parent else {
        let mut switch = Switch::new();
        let child_of_rank = node.child_of_rank.iter().map(|child| child.unwrap_or(u16::MAX)).collect();
        switch.install_root(job, child_of_rank).map_err(refused)?;
        return Ok(Box::new(Root { settings, group, children, switch }));
    };
    let mut leaf = Leaf::new();
    leaf.install(LeafConfig { job, number, receivers: node.child_of_rank.clone() }).map_err(refused)?;
    Ok(Box::new(Below { settings, group, children, parent, leaf }))
}

/// What both send to children.
fn send_down(
    settings: &Settings,
    group: u32,
    children: &[u16],
    verdict: Verdict,
    asker: Option<u16>,
    outbox: &mut Outbox,
) {
    match verdict {
        Verdict::Drop(_) => {}
        Verdict::Refuse { reason, .. } => outbox.fail(format!("a datagram of group {group} is refused: {reason}")),
        Verdict::Reply { bytes } | Verdict::Missing { bytes } | Verdict::ProbeReply { bytes } => {
            let port = asker.and_then(|child| children.get(usize::from(child)));
            outbox.send(port.map_or(&[], std::slice::from_ref), bytes, &settings.wire(bytes, group));
        }
        // All ranks receive every sum here, so nobody gets a header only.
        Verdict::Multicast { bytes, .. } => outbox.send(children, bytes, &settings.wire(bytes, group)),
    }
}

struct Root {
    settings: Settings,
    group: u32,
    children: Vec<u16>,
    switch: Switch,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("group", &self.group).field("counters", self.switch.counters()).finish()
    }
}

impl Program for Root {
    fn process(&mut self, arrival: &Arrival, outbox: &mut Outbox) {
        let context = Context { now: arrival.now, wire_format: WireFormat::Fanin, source_rank: None };
        let verdict = self.switch.process(&context, arrival.datagram, outbox.space());
        let asker = self.switch.admitted().map(|admitted| admitted.rank);
        send_down(&self.settings, self.group, &self.children, verdict, asker, outbox);
    }
}

struct Below {
    settings: Settings,
    group: u32,
    children: Vec<u16>,
    parent: u16,
    leaf: Leaf,
}

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Below").field("group", &self.group).field("counters", self.leaf.counters()).finish()
    }
}

impl Program for Below {
    fn process(&mut self, arrival: &Arrival, outbox: &mut Outbox) {
        let from = if arrival.port == self.parent { Side::Above } else { Side::Below };
        match self.leaf.process(arrival.now, from, arrival.datagram, outbox.space()) {
            LeafVerdict::Up { bytes } => outbox.send(&[self.parent], bytes, &self.settings.wire(bytes, self.group)),
            LeafVerdict::ToChild { child, bytes, .. } => {
                let to = self.children.get(usize::from(child)).copied();
                outbox.send(to.as_slice(), bytes, &self.settings.wire(bytes, self.group));
            }
            LeafVerdict::Below(verdict) => {
                let asker = self.leaf.admitted().map(|admitted| admitted.rank);
                send_down(&self.settings, self.group, &self.children, verdict, asker, outbox);
            }
        }
    }
}
