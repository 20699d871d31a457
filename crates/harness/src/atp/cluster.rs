//! A scenario while it runs.

mod by_hand;
mod loss;
mod memory;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use fanin_link::{Link, LinkConfig, Random};
use fanin_protocol::DropReason;
use fanin_protocol::atp::{
    Context, Event as WorkerEvent, JobConfig, Server, ServerConfig, Switch, SwitchConfig, Verdict, Worker,
    WorkerConfig, answers_probe, without_payload, write_probe,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::ATP_HEADER_BYTES;

pub(super) use by_hand::Sent;

use super::plan::ELEMENT_COUNT_MAX;
use super::{JobPlan, Scenario, Violation};
use memory::{Memory, Sums};

const DATAGRAM_BYTES_MAX: usize = ATP_HEADER_BYTES + ELEMENT_COUNT_MAX as usize * 4;
const RESEND_TIMEOUTS: [Span; 3] = [Span::from_ms(20), Span::from_ms(2), Span::from_ms(200)];

/// Numbers of endpoints, switches and servers in the cluster's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Node {
    Worker(usize),
    Switch(usize),
    Server(usize),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Arrive { from: Node, to: Node, packet: Vec<u8> },
    Start { worker: usize },
    Wake { worker: usize },
    Kill { worker: usize },
    WakeServer { server: usize },
    SetUpAgain { job: usize },
    TellWorker { worker: usize },
    RestartSwitches,
}

/// What a scenario came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events.
    pub steps: u64,
    /// Collectives that completed at one lane of one worker.
    pub completed: u64,
    /// Fragments sent for the first time, and again.
    pub fragments: u64,
    /// Sent again for whatever reason.
    pub resends: u64,
    /// Chunks that came to a server in one Fragment.
    pub whole: u64,
    /// Chunks completed by servers.
    pub chunks: u64,
    /// Chunks summed again as floats.
    pub saturated: u64,
    /// Chunks summed at another scale than 10^8.
    pub scaled: u64,
    /// Fragments that met another chunk in their slot.
    pub collisions: u64,
    /// Chunks whose slot was replaced.
    pub remapped: u64,
    /// Slots taken back from a chunk that nobody touched.
    pub abandoned: u64,
    /// Times that a window was halved.
    pub cuts: u64,
    /// Packets that links lost.
    pub lost: u64,
    /// Jobs that were set up again without a worker.
    pub set_up_again: u64,
    /// Jobs in which somebody took a lost worker's place.
    pub replaced: u64,
    /// Chunks completed without workers that were late.
    pub in_part: u64,
    /// Sums that some worker was not in, at those who took them.
    pub declared: u64,
    /// Collectives whose source was lost, at those who wanted it.
    pub sources_lost: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.steps += other.steps;
        self.completed += other.completed;
        self.fragments += other.fragments;
        self.resends += other.resends;
        self.whole += other.whole;
        self.chunks += other.chunks;
        self.saturated += other.saturated;
        self.scaled += other.scaled;
        self.collisions += other.collisions;
        self.remapped += other.remapped;
        self.abandoned += other.abandoned;
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.set_up_again += other.set_up_again;
        self.replaced += other.replaced;
        self.in_part += other.in_part;
        self.declared += other.declared;
        self.sources_lost += other.sources_lost;
    }
}

struct Endpoint {
    job: usize,
    rank: u16,
    lane: u16,
    worker: Worker,
    switch: usize,
    config: WorkerConfig,
    is_alive: bool,
    /// Begins in the middle, in place of one that died.
    is_replacement: bool,
    has_probed: bool,
    completed: u64,
}

struct SwitchNode {
    program: Switch,
    parent: Option<usize>,
    /// Switches between it and the servers.
    depth: u8,
    /// By job number, lane and child: who it is.
    children: HashMap<(u8, u16, u8), Node>,
    received: u64,
    passed: u64,
}

/// A scenario while it runs.
pub struct Cluster {
    scenario: Scenario,
    print: bool,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    scheduled: u64,
    endpoints: Vec<Endpoint>,
    switches: Vec<SwitchNode>,
    /// By job, then lane.
    servers: Vec<Server>,
    /// When each server is to look at those who are late.
    server_wakes: Vec<Option<Time>>,
    /// What was taken so far: everybody must take the same.
    sums: Sums,
    links: BTreeMap<(Node, Node), Link>,
    /// Where nobody but the caller carries packets and lets time pass.
    by_hand: Option<Vec<Sent>>,
    random: Random,
    summary: Summary,
}

impl Cluster {
    /// A cluster before its first step; `print` shows every packet.
    pub fn new(scenario: Scenario, print: bool) -> Cluster {
        let mut cluster = Cluster {
            random: Random::new(scenario.seed ^ 0xfa9),
            print,
            now: Time::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            endpoints: Vec::new(),
            switches: Vec::new(),
            servers: Vec::new(),
            server_wakes: Vec::new(),
            sums: Sums::default(),
            links: BTreeMap::new(),
            by_hand: None,
            summary: Summary::default(),
            scenario,
        };
        cluster.build();
        cluster
    }

    fn build(&mut self) {
        // By the children passed from the root down: jobs share switches.
        let mut by_path: HashMap<Vec<u8>, usize> = HashMap::new();
        self.switch_at(&mut by_path, &[]);
        let jobs = self.scenario.jobs.clone();
        for (index, job) in jobs.iter().enumerate() {
            for lane in 0..job.lane_count {
                self.servers.push(Server::new(server_config(job, lane, self.scenario.slot_count)));
                self.server_wakes.push(None);
            }
            for rank in 0..job.tree.worker_count() {
                let way = job.tree.way(rank);
                let levels = (way.level + 1..job.tree.level_count()).rev();
                let path: Vec<u8> = levels.map(|level| way.children[usize::from(level)]).collect();
                let switch = self.switch_at(&mut by_path, &path);
                let starts = Time::ZERO + self.random.span_up_to(job.skew_max);
                for lane in 0..job.lane_count {
                    self.add_endpoint(index, rank, lane, switch, starts);
                }
            }
        }
        for (job, plan) in jobs.iter().enumerate() {
            if let (Some((_, at)), Some(after)) = (plan.death, plan.goes_on_after) {
                self.schedule(at + after, Event::SetUpAgain { job });
            }
        }
        if let Some(at) = self.scenario.switch_restart {
            self.schedule(at, Event::RestartSwitches);
        }
    }

    fn add_endpoint(&mut self, job: usize, rank: u16, lane: u16, switch: usize, starts: Time) {
        let plan = &self.scenario.jobs[job];
        let config = worker_config(plan, rank, lane, self.scenario.slot_count);
        let death = plan.death.filter(|&(dying, _)| dying == rank).map(|(_, at)| at);
        let number = self.endpoints.len();
        self.endpoints.push(Endpoint {
            job,
            rank,
            lane,
            worker: Worker::new(config),
            switch,
            config,
            is_alive: true,
            is_replacement: false,
            has_probed: false,
            completed: 0,
        });
        self.schedule(starts, Event::Start { worker: number });
        if let Some(at) = death {
            self.schedule(at, Event::Kill { worker: number });
        }
    }

    fn switch_at(&mut self, by_path: &mut HashMap<Vec<u8>, usize>, path: &[u8]) -> usize {
        if let Some(&switch) = by_path.get(path) {
            return switch;
        }
        let parent = path.split_last().map(|(_, above)| self.switch_at(by_path, above));
        let depth = path.len() as u8;
        let program = fresh_program(&self.scenario, depth);
        self.switches.push(SwitchNode { program, parent, depth, children: HashMap::new(), received: 0, passed: 0 });
        by_path.insert(path.to_vec(), self.switches.len() - 1);
        self.switches.len() - 1
    }

    /// Runs until nothing is left to happen, or until everything that can complete should have.
    ///
    /// # Errors
    /// The first violation of a checker.
    pub fn run(mut self) -> Result<Summary, Violation> {
        let settled = self.scenario.link.faults_until + self.scenario.link.held_delay_max + Span::from_ms(10);
        let deadline = settled + RESEND_TIMEOUTS[2].saturating_mul(300);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > deadline {
                break;
            }
            self.now = at;
            self.summary.steps += 1;
            self.step(event).map_err(|what| self.violation(what))?;
            if self.is_done() {
                break;
            }
        }
        self.at_the_end().map_err(|what| self.violation(what))?;
        Ok(self.summary)
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.scenario.seed, at: self.now, what }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        if self.by_hand.is_some() {
            return;
        }
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    pub(super) fn is_done(&self) -> bool {
        self.endpoints.iter().all(|endpoint| self.cannot_finish(endpoint) || self.has_finished(endpoint))
    }

    fn has_finished(&self, endpoint: &Endpoint) -> bool {
        endpoint.completed == self.scenario.jobs[endpoint.job].collectives.len() as u64
    }

    /// A job without one of its workers stands still, unless it is set up again.
    fn cannot_finish(&self, endpoint: &Endpoint) -> bool {
        let job = &self.scenario.jobs[endpoint.job];
        let is_gone = |rank: u16| rank == endpoint.rank && job.replacement.is_none();
        job.death.is_some_and(|(rank, at)| at <= self.now && (job.goes_on_after.is_none() || is_gone(rank)))
    }

    pub(super) fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive { from, to: Node::Switch(switch), packet } => self.at_switch(from, switch, &packet),
            Event::Arrive { to: Node::Server(server), packet, .. } => self.at_server(server, &packet),
            Event::Arrive { to: Node::Worker(worker), packet, .. } => self.at_worker(worker, Some(&packet)),
            Event::Start { worker } => {
                let endpoint = &mut self.endpoints[worker];
                if endpoint.is_replacement {
                    return Ok(());
                }
                let job = &self.scenario.jobs[endpoint.job];
                let first = job.replacement.as_ref().map_or(job.collectives.len(), |replacement| replacement.after);
                job.collectives[..first].iter().for_each(|&submission| endpoint.worker.submit(submission));
                let mut probe = [0; DATAGRAM_BYTES_MAX];
                let bytes = write_probe(&endpoint.config, ELEMENT_COUNT_MAX, 0, &mut probe);
                let switch = endpoint.switch;
                self.send(Node::Worker(worker), Node::Switch(switch), &probe[..bytes]);
                self.at_worker(worker, None)
            }
            Event::Wake { worker } => {
                self.endpoints[worker].worker.handle_timeout(self.now);
                self.at_worker(worker, None)
            }
            Event::Kill { worker } => {
                self.endpoints[worker].is_alive = false;
                Ok(())
            }
            Event::WakeServer { server } => {
                self.server_wakes[server] = None;
                self.servers[server].handle_timeout(self.now);
                self.drain_server(server);
                Ok(())
            }
            Event::SetUpAgain { job } => self.set_up_again(job),
            Event::TellWorker { worker } => self.tell_worker(worker),
            Event::RestartSwitches => {
                for switch in &mut self.switches {
                    switch.program = fresh_program(&self.scenario, switch.depth);
                    (switch.received, switch.passed) = (0, 0);
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, from: Node, to: Node, packet: &[u8]) {
        if let Some(sent) = &mut self.by_hand {
            return sent.push(Sent { from, to, packet: packet.to_vec(), is_damaged: false });
        }
        let seed = self.scenario.seed ^ (self.links.len() as u64) << 40;
        let config: &LinkConfig = &self.scenario.link;
        let link = self.links.entry((from, to)).or_insert_with(|| Link::new(config.clone(), seed));
        let mut deliveries = Vec::new();
        link.send(self.now, packet, |delivery| deliveries.push(delivery));
        if self.print {
            let header = fanin_wire::atp::Header::parse(packet).map(|(header, _)| header);
            println!("{:>12} {from:?} -> {to:?} {} arrive: {header:?}", self.now.as_ns(), deliveries.len());
        }
        for delivery in deliveries {
            self.schedule(delivery.at, Event::Arrive { from, to, packet: delivery.packet });
        }
    }

    fn at_switch(&mut self, from: Node, number: usize, packet: &[u8]) -> Result<(), String> {
        let is_long = self.random.chance(self.scenario.ecn_ppm);
        let context = Context { now: self.now, egress_queue_bytes: if is_long { u32::MAX } else { 0 } };
        let mut output = [0; DATAGRAM_BYTES_MAX];
        let switch = &mut self.switches[number];
        let verdict = switch.program.process(&context, packet, &mut output);
        switch.received += 1;
        if let Some(admitted) = switch.program.admitted() {
            switch.children.insert((admitted.job_number, admitted.lane, admitted.child), from);
        }
        let parent = switch.parent;
        switch.passed += u64::from(!matches!(verdict, Verdict::Drop(_) | Verdict::Refuse { .. }));
        match verdict {
            Verdict::Drop(_) => {}
            // Somebody has not been told yet that his job was set up again.
            Verdict::Refuse { reason: DropReason::StaleToken, .. } if self.somebody_goes_on() => {}
            Verdict::Refuse { reason, .. } => return Err(format!("switch {number} refuses {from:?}: {reason}")),
            Verdict::Up { bytes } => {
                let to = parent.map_or_else(|| self.server_of(&output[..bytes]), |parent| Some(Node::Switch(parent)));
                self.send(Node::Switch(number), to.ok_or("a Fragment without a server")?, &output[..bytes]);
            }
            Verdict::Down { job_number, lane, bytes, children, payload_child } => {
                let mut header = [0; ATP_HEADER_BYTES];
                let header_bytes = without_payload(&output[..bytes], &mut header);
                let known = (0..32).filter(|child| children >> child & 1 == 1);
                let to: Vec<_> = known
                    .filter_map(|child| Some((child, *self.switches[number].children.get(&(job_number, lane, child))?)))
                    .collect();
                for (child, node) in to {
                    let whole = payload_child.is_none_or(|reader| reader == child);
                    let datagram = if whole { &output[..bytes] } else { &header[..header_bytes] };
                    self.send(Node::Switch(number), node, datagram);
                }
            }
        }
        Ok(())
    }

    fn server_of(&self, fragment: &[u8]) -> Option<Node> {
        let (header, _) = fanin_wire::atp::Header::parse(fragment).ok()?;
        let place = self.scenario.jobs.iter().position(|job| job.job_id == header.job_id)?;
        let before: u16 = self.scenario.jobs[..place].iter().map(|job| job.lane_count).sum();
        Some(Node::Server(usize::from(before + header.lane)))
    }

    fn at_server(&mut self, number: usize, packet: &[u8]) -> Result<(), String> {
        self.servers[number].handle_packet(self.now, packet);
        self.drain_server(number);
        Ok(())
    }

    fn drain_server(&mut self, number: usize) {
        let mut output = [0; DATAGRAM_BYTES_MAX];
        while let Some(transmit) = self.servers[number].poll_transmit(&mut output) {
            self.send(Node::Server(number), Node::Switch(0), &output[..transmit.bytes]);
        }
        if let (Some(due), None) = (self.servers[number].poll_timeout(), self.server_wakes[number]) {
            self.server_wakes[number] = Some(due);
            self.schedule(due.max(self.now), Event::WakeServer { server: number });
        }
    }

    fn at_worker(&mut self, number: usize, packet: Option<&[u8]>) -> Result<(), String> {
        let endpoint = &mut self.endpoints[number];
        if !endpoint.is_alive {
            return Ok(());
        }
        let job = &self.scenario.jobs[endpoint.job];
        if let Some((_, from, until)) = job.pause.filter(|&(rank, ..)| rank == endpoint.rank)
            && (from..until).contains(&self.now)
        {
            self.schedule(until, Event::Wake { worker: number });
            return Ok(());
        }
        let mut memory = Memory::new(job, endpoint.lane, endpoint.rank, self.now, &mut self.sums);
        if let Some(packet) = packet {
            let is_reply = answers_probe(&endpoint.config, ELEMENT_COUNT_MAX, packet);
            endpoint.has_probed |= is_reply;
            if !is_reply {
                endpoint.worker.handle_packet(self.now, packet, &mut memory);
            }
        }
        let mut output = [0; DATAGRAM_BYTES_MAX];
        let mut outgoing = Vec::new();
        while let Some(bytes) = endpoint.worker.poll_transmit(self.now, &mut memory, &mut output) {
            outgoing.push(output[..bytes].to_vec());
        }
        self.summary.declared += memory.declared;
        if let Some(wrong) = memory.wrong {
            return Err(wrong);
        }
        while let Some(event) = endpoint.worker.poll_event() {
            match event {
                WorkerEvent::Completed { .. } => {
                    endpoint.completed += 1;
                    self.summary.completed += 1;
                }
                WorkerEvent::SourceLost { .. } => self.summary.sources_lost += 1,
                WorkerEvent::Refused { reason: DropReason::StaleToken, .. } if job.goes_on_after.is_some() => {}
                WorkerEvent::Refused { reason, .. } => return Err(format!("worker {number} is refused: {reason}")),
            }
        }
        let (wake, switch) = (endpoint.worker.poll_timeout(), endpoint.switch);
        for packet in outgoing {
            self.send(Node::Worker(number), Node::Switch(switch), &packet);
        }
        if let Some(at) = wake {
            self.schedule(at.max(self.now), Event::Wake { worker: number });
        }
        self.admit_at_boundary(self.endpoints[number].job)
    }

    pub(super) fn at_the_end(&mut self) -> Result<(), String> {
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            if !self.cannot_finish(endpoint) && !self.has_finished(endpoint) {
                let oldest = endpoint.worker.oldest_outstanding();
                return Err(format!("worker {number} has not finished: {} done, {oldest:?}", endpoint.completed));
            }
            if self.scenario.calm && !endpoint.has_probed {
                return Err(format!("the Probe of worker {number} was not answered although nothing was lost"));
            }
            let counters = endpoint.worker.counters();
            let again = counters.resends_overtaken + counters.resends_timeout + counters.resends_float;
            let resends = again + counters.resends_around;
            self.summary.fragments += counters.fragments;
            self.summary.resends += resends;
            self.summary.remapped += counters.remapped;
            self.summary.cuts += counters.cuts;
        }
        for switch in &mut self.switches {
            let dropped: u64 = switch.program.counters().drops.iter().sum();
            if switch.received != switch.passed + dropped {
                return Err(format!(
                    "{} packets at a switch, {} passed on, {dropped} dropped",
                    switch.received, switch.passed
                ));
            }
            self.summary.collisions += switch.program.counters().collisions;
            self.summary.abandoned += switch.program.counters().abandoned;
            for job in &self.scenario.jobs {
                switch.program.remove(job.job_id);
            }
            if switch.program.slots_in_use(None) > 0 {
                return Err("a slot outlives all jobs".into());
            }
        }
        for server in &self.servers {
            self.summary.whole += server.counters().chunks_whole;
            self.summary.chunks += server.counters().chunks;
            self.summary.saturated += server.counters().saturated;
            self.summary.scaled += server.counters().scaled;
            self.summary.in_part += server.counters().completed_in_part;
        }
        self.summary.lost = self.links.values().map(|link| link.counters().lost).sum();
        // A chunk that is summed twice, or past its switch, is overtaken by those behind it.
        let Summary { saturated, collisions, resends, .. } = self.summary;
        if self.scenario.calm && saturated + collisions == 0 && resends > 0 {
            return Err(format!("{resends} packets were sent again although nothing was lost"));
        }
        Ok(())
    }
}

fn fresh_program(scenario: &Scenario, depth: u8) -> Switch {
    let mut program = Switch::new(SwitchConfig {
        slot_count: scenario.slot_count,
        element_count_max: ELEMENT_COUNT_MAX,
        slot_age_max: scenario.slot_age_max,
        ecn_threshold_bytes: 1000,
    });
    for job in &scenario.jobs {
        // A job with fewer levels has no switch so far down.
        let Some(level) = (job.tree.level_count() - 1).checked_sub(depth) else { continue };
        let config = JobConfig { job_id: job.job_id, job_token: job.job_token, lane_count: job.lane_count, level };
        program.install(config).unwrap_or_else(|error| panic!("the plans' job numbers differ: {error:?}"));
    }
    program
}

fn server_config(job: &JobPlan, lane: u16, slot_count: u16) -> ServerConfig {
    ServerConfig {
        job_id: job.job_id,
        job_token: job.job_token,
        lane,
        tree: job.tree.clone(),
        slot_count,
        window_max: job.window_max,
        element_count_max: ELEMENT_COUNT_MAX,
        stragglers: job.stragglers,
        overflow_often: job.overflow_often,
    }
}

fn worker_config(job: &JobPlan, rank: u16, lane: u16, slot_count: u16) -> WorkerConfig {
    WorkerConfig {
        job_id: job.job_id,
        job_token: job.job_token,
        rank,
        lane,
        way: *job.tree.way(rank),
        level_count: job.tree.level_count(),
        slot_count,
        indexing: job.indexing,
        element_count_max: ELEMENT_COUNT_MAX,
        window_max: job.window_max,
        scale: job.scale,
        congestion_control: job.congestion_control,
        resend_timeout_initial: RESEND_TIMEOUTS[0],
        resend_timeout_min: RESEND_TIMEOUTS[1],
        resend_timeout_max: RESEND_TIMEOUTS[2],
    }
}
