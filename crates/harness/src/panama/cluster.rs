//! A scenario while it runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

use fanin_link::{Link, Random};
use fanin_protocol::DropReason;
use fanin_protocol::panama::{
    Context, Event as WorkerEvent, Floats, InstallError, Switch, SwitchConfig, Verdict, Worker, WorkerConfig,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::PANAMA_HEADER_BYTES;
use fanin_wire::panama::Header;

use super::memory::{Memory, Sums};
use super::plan::{ELEMENT_COUNT_MAX, configs_at};
use super::{Scenario, Violation};

const DATAGRAM_BYTES_MAX: usize = PANAMA_HEADER_BYTES + ELEMENT_COUNT_MAX as usize * 4;
const RESEND_TIMEOUTS: [Span; 3] = [Span::from_ms(20), Span::from_ms(2), Span::from_ms(200)];

/// The controller removes a job so long after one of its workers has died.
const LEASE: Span = Span::from_ms(30);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { to: u32, port: u8, packet: Vec<u8> },
    Join { job: usize },
    Start { worker: usize },
    Wake { worker: usize },
    Kill { worker: usize },
    Remove { job: usize },
}

/// What a scenario came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events.
    pub steps: u64,
    /// Collectives that completed at one worker.
    pub completed: u64,
    /// Workers whose FINs were answered.
    pub finished: u64,
    /// Contributions sent for the first time.
    pub contributions: u64,
    /// And again.
    pub resends: u64,
    /// Sums made by switches.
    pub aggregates: u64,
    /// Sums and Results that switches sent again.
    pub repeats: u64,
    /// Times that a window was cut.
    pub cuts: u64,
    /// Packets that links lost.
    pub lost: u64,
    /// Contributions for which there was no room.
    pub full: u64,
    /// Packets held back by PAUSE.
    pub paused: u64,
    /// Sums without everybody, at those who took them.
    pub in_part: u64,
    /// Blocks that were summed before this worker sent its own.
    pub left_out: u64,
    /// Workers that died.
    pub deaths: u64,
    /// Trees that the controller chose.
    pub trees: u64,
    /// Times that a job had to wait for its share of the memory.
    pub busy: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.steps += other.steps;
        self.completed += other.completed;
        self.finished += other.finished;
        self.contributions += other.contributions;
        self.resends += other.resends;
        self.aggregates += other.aggregates;
        self.repeats += other.repeats;
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.full += other.full;
        self.paused += other.paused;
        self.in_part += other.in_part;
        self.left_out += other.left_out;
        self.deaths += other.deaths;
        self.trees += other.trees;
        self.busy += other.busy;
    }
}

struct Endpoint {
    job: usize,
    rank: u16,
    worker: Worker,
    is_alive: bool,
    submitted: usize,
    completed: usize,
    has_finished: bool,
    taken: HashSet<(u64, u32)>,
    done: HashSet<u64>,
}

/// A scenario while it runs.
pub struct Cluster {
    scenario: Scenario,
    print: bool,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    scheduled: u64,
    endpoints: Vec<Endpoint>,
    switches: Vec<Switch<Floats>>,
    sums: Sums,
    /// By the node and port that they leave by.
    links: BTreeMap<(u32, u8), Link>,
    /// Packets that wait for the end of a PAUSE, likewise.
    held: BTreeMap<(u32, u8), Vec<Vec<u8>>>,
    /// By switch.
    paused: Vec<u64>,
    random: Random,
    summary: Summary,
}

impl Cluster {
    /// A cluster before its first step; `print` shows every packet.
    pub fn new(scenario: Scenario, print: bool) -> Cluster {
        let config = SwitchConfig {
            memory_packets: scenario.memory_packets,
            pause_packets: scenario.pause_packets,
            element_count_max: ELEMENT_COUNT_MAX,
        };
        let switch_count = scenario.switch_count as usize;
        let mut cluster = Cluster {
            random: Random::new(scenario.seed ^ 0x9a9),
            print,
            now: Time::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            endpoints: Vec::new(),
            switches: (0..switch_count).map(|_| Switch::new(config)).collect(),
            sums: Sums::default(),
            links: BTreeMap::new(),
            held: BTreeMap::new(),
            paused: vec![0; switch_count],
            summary: Summary::default(),
            scenario,
        };
        cluster.build();
        cluster
    }

    fn build(&mut self) {
        let jobs = self.scenario.jobs.clone();
        for (index, job) in jobs.iter().enumerate() {
            self.summary.trees += job.plan.trees.len() as u64;
            self.schedule(job.joins, Event::Join { job: index });
            for rank in 0..job.hosts.len() as u16 {
                let worker = self.endpoints.len();
                self.endpoints.push(Endpoint {
                    job: index,
                    rank,
                    worker: Worker::new(WorkerConfig {
                        job_id: job.job_id,
                        job_token: job.job_token,
                        rank,
                        tree_count: job.plan.trees.len() as u8,
                        window_max: job.window_max,
                        congestion_control: job.congestion_control,
                        resend_timeout_initial: RESEND_TIMEOUTS[0],
                        resend_timeout_min: RESEND_TIMEOUTS[1],
                        resend_timeout_max: RESEND_TIMEOUTS[2],
                    }),
                    is_alive: true,
                    submitted: 0,
                    completed: 0,
                    has_finished: false,
                    taken: HashSet::new(),
                    done: HashSet::new(),
                });
                if let Some((_, at)) = job.death.filter(|&(dying, _)| dying == rank) {
                    self.schedule(at, Event::Kill { worker });
                }
            }
        }
    }

    /// Runs until nothing is left to happen, or until everything that can complete should have.
    ///
    /// # Errors
    /// The first violation of a checker.
    pub fn run(mut self) -> Result<Summary, Violation> {
        let settled = self.scenario.link.faults_until + self.scenario.link.held_delay_max + Span::from_ms(10);
        let deadline = settled + RESEND_TIMEOUTS[2].saturating_mul(300);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > deadline || self.is_done() {
                break;
            }
            self.now = at;
            self.summary.steps += 1;
            self.step(event).map_err(|what| self.violation(what))?;
        }
        self.at_the_end().map_err(|what| self.violation(what))?;
        Ok(self.summary)
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.scenario.seed, at: self.now, what }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn is_done(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.has_finished || self.cannot_finish(endpoint))
    }

    /// A job without one of its workers stands still: even a quorum waits for nobody's last window for ever.
    fn cannot_finish(&self, endpoint: &Endpoint) -> bool {
        self.scenario.jobs[endpoint.job].death.is_some_and(|(_, at)| at <= self.now)
    }

    fn is_cut_off(&self, job_id: u32) -> bool {
        self.scenario.jobs.iter().any(|job| job.job_id == job_id && job.death.is_some_and(|(_, at)| at <= self.now))
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive { to, port, packet } => match to.checked_sub(self.scenario.fabric.host_count()) {
                Some(switch) => self.at_switch(switch as usize, port, &packet),
                None => self.at_host(to, &packet),
            },
            Event::Join { job } => self.join(job),
            Event::Start { worker } => {
                let endpoint = &mut self.endpoints[worker];
                let job = &self.scenario.jobs[endpoint.job];
                let first = if job.is_stepwise { 1 } else { job.collectives.len() };
                submit(endpoint, job, first)?;
                self.after_worker(worker)
            }
            Event::Wake { worker } => {
                self.endpoints[worker].worker.handle_timeout(self.now);
                self.after_worker(worker)
            }
            Event::Kill { worker } => {
                self.endpoints[worker].is_alive = false;
                self.summary.deaths += 1;
                let job = self.endpoints[worker].job;
                self.schedule(self.now + LEASE, Event::Remove { job });
                Ok(())
            }
            Event::Remove { job } => {
                let job_id = self.scenario.jobs[job].job_id;
                self.switches.iter_mut().for_each(|switch| _ = switch.remove(job_id));
                Ok(())
            }
        }
    }

    /// Sets a job up at all its switches; where its share of the memory is still in use, later.
    fn join(&mut self, job: usize) -> Result<(), String> {
        let plan = &self.scenario.jobs[job];
        // It may have come to its end before it came to its beginning.
        if self.is_cut_off(plan.job_id) {
            return Ok(());
        }
        let mut is_busy = false;
        for (number, switch) in (self.scenario.fabric.host_count()..).zip(&mut self.switches) {
            for config in configs_at(plan, number) {
                if switch.has_tree(config.job_id, config.tree) {
                    continue;
                }
                match switch.install(config) {
                    Ok(()) => {}
                    Err(InstallError::Busy) => is_busy = true,
                    Err(error) => return Err(format!("switch {number} does not install: {error:?}")),
                }
            }
        }
        if is_busy {
            self.summary.busy += 1;
            self.schedule(self.now + Span::from_us(300), Event::Join { job });
            return Ok(());
        }
        let workers = 0..self.endpoints.len();
        for worker in workers.filter(|&worker| self.endpoints[worker].job == job).collect::<Vec<_>>() {
            let starts = self.now + self.random.span_up_to(self.scenario.jobs[job].skew_max);
            self.schedule(starts, Event::Start { worker });
        }
        Ok(())
    }

    fn send(&mut self, from: u32, port: u8, packet: &[u8]) {
        let Some((to, there)) = self.scenario.fabric.neighbour(from, port.into()) else { return };
        let held_by = to.checked_sub(self.scenario.fabric.host_count()).filter(|_| self.scenario.is_pausing);
        if held_by.is_some_and(|switch| self.paused[switch as usize] >> there & 1 == 1) {
            self.summary.paused += 1;
            return self.held.entry((from, port)).or_default().push(packet.to_vec());
        }
        let seed = self.scenario.seed ^ (self.links.len() as u64) << 40;
        let link = self.links.entry((from, port)).or_insert_with(|| Link::new(self.scenario.link.clone(), seed));
        let mut deliveries = Vec::new();
        link.send(self.now, packet, |delivery| deliveries.push(delivery));
        if self.print {
            let header = Header::parse(packet).map(|(header, _)| header);
            println!("{:>12} {from} -> {to} {} arrive: {header:?}", self.now.as_ns(), deliveries.len());
        }
        for delivery in deliveries {
            self.schedule(delivery.at, Event::Arrive { to, port: there as u8, packet: delivery.packet });
        }
    }

    fn at_switch(&mut self, number: usize, port: u8, packet: &[u8]) -> Result<(), String> {
        let context = Context { port, is_marked: self.random.chance(self.scenario.ecn_ppm) };
        let mut output = [0; DATAGRAM_BYTES_MAX];
        let mut verdict = self.switches[number].process(&context, packet, &mut output);
        loop {
            self.follow(number, &verdict, &output)?;
            match self.switches[number].proceed(&mut output) {
                Some(next) => verdict = next,
                None => break,
            }
        }
        let (held, room) = (self.switches[number].packet_count(), self.scenario.memory_packets);
        let is_partial = self.scenario.jobs.iter().any(|job| job.is_partial);
        if held > room && !is_partial {
            return Err(format!("switch {number} holds {held} packets, and has room for {room}"));
        }
        self.release(number);
        Ok(())
    }

    fn follow(&mut self, number: usize, verdict: &Verdict, output: &[u8]) -> Result<(), String> {
        let here = self.scenario.fabric.host_count() + number as u32;
        let bytes = verdict.header().map_or(0, Header::datagram_bytes);
        match *verdict {
            Verdict::Drop(_) => {}
            Verdict::Refuse { reason: DropReason::UnknownJob, header } if self.is_cut_off(header.job_id) => {}
            Verdict::Refuse { reason, header } => return Err(format!("switch {number} refuses {header:?}: {reason}")),
            Verdict::Up { port, .. } => self.send(here, port, &output[..bytes]),
            Verdict::Down { ports, .. } => {
                for port in (0..64).filter(|port| ports >> port & 1 == 1) {
                    self.send(here, port, &output[..bytes]);
                }
            }
        }
        Ok(())
    }

    /// Pauses and resumes ports; what was held goes on its way.
    fn release(&mut self, number: usize) {
        let paused = self.switches[number].paused_ports();
        let resumed = std::mem::replace(&mut self.paused[number], paused) & !paused;
        let here = self.scenario.fabric.host_count() + number as u32;
        for port in (0..64).filter(|port| resumed >> port & 1 == 1) {
            let Some((from, there)) = self.scenario.fabric.neighbour(here, port) else { continue };
            for packet in self.held.remove(&(from, there as u8)).unwrap_or_default() {
                self.send(from, there as u8, &packet);
            }
        }
    }

    fn at_host(&mut self, host: u32, packet: &[u8]) -> Result<(), String> {
        let is_marked = self.random.chance(self.scenario.ecn_ppm);
        for number in 0..self.endpoints.len() {
            let endpoint = &mut self.endpoints[number];
            let job = &self.scenario.jobs[endpoint.job];
            if !endpoint.is_alive || job.hosts[usize::from(endpoint.rank)] != host {
                continue;
            }
            let Endpoint { worker, rank, taken, .. } = endpoint;
            let mut memory = Memory { job, rank: *rank, sums: &mut self.sums, taken, wrong: None, in_part: 0 };
            worker.handle_packet(self.now, packet, is_marked, &mut memory);
            self.summary.in_part += memory.in_part;
            if let Some(wrong) = memory.wrong {
                return Err(format!("job {:#x}, rank {rank}: {wrong}", job.job_id));
            }
            self.after_worker(number)?;
        }
        Ok(())
    }

    /// Takes what a worker says and sends.
    fn after_worker(&mut self, number: usize) -> Result<(), String> {
        self.take_events(number)?;
        let endpoint = &mut self.endpoints[number];
        if !endpoint.is_alive {
            return Ok(());
        }
        let job = &self.scenario.jobs[endpoint.job];
        let host = job.hosts[usize::from(endpoint.rank)];
        let mut sent = Vec::new();
        let mut output = [0; DATAGRAM_BYTES_MAX];
        let Endpoint { worker, rank, taken, .. } = endpoint;
        let mut memory = Memory { job, rank: *rank, sums: &mut self.sums, taken, wrong: None, in_part: 0 };
        while let Some(transmit) = worker.poll_transmit(self.now, &mut memory, &mut output) {
            sent.push(output[..transmit.bytes].to_vec());
        }
        for tree in 0..job.plan.trees.len() as u8 {
            let (out, bound) = (worker.outstanding(tree), u64::from(job.window_max));
            if out > bound {
                return Err(format!("rank {rank}: {out} packets are out in tree {tree}, at most {bound} may"));
            }
        }
        let wake = worker.poll_timeout();
        sent.into_iter().for_each(|packet| self.send(host, 0, &packet));
        if let Some(at) = wake {
            self.schedule(at.max(self.now), Event::Wake { worker: number });
        }
        Ok(())
    }

    fn take_events(&mut self, number: usize) -> Result<(), String> {
        let endpoint = &mut self.endpoints[number];
        let job = &self.scenario.jobs[endpoint.job];
        while let Some(event) = endpoint.worker.poll_event() {
            match event {
                WorkerEvent::Completed { collective } => {
                    // Trees are in order, each by itself.
                    if !endpoint.done.insert(collective) {
                        return Err(format!("collective {collective} completes twice"));
                    }
                    endpoint.completed += 1;
                    self.summary.completed += 1;
                    if job.is_stepwise {
                        submit(endpoint, job, endpoint.completed + 1)?;
                    }
                }
                WorkerEvent::Finished => endpoint.has_finished = true,
                WorkerEvent::Refused { reason, .. } => {
                    return Err(format!("rank {} is refused: {reason}", endpoint.rank));
                }
            }
        }
        Ok(())
    }

    fn at_the_end(&mut self) -> Result<(), String> {
        for endpoint in &self.endpoints {
            let job = &self.scenario.jobs[endpoint.job];
            let has_all = endpoint.completed == job.collectives.len() && endpoint.has_finished;
            if !has_all && !self.cannot_finish(endpoint) {
                let (waits, completed) = (endpoint.worker.oldest_outstanding(), endpoint.completed);
                return Err(format!(
                    "job {:#x}, rank {}: {completed} of {} collectives, finished: {}, waits for {waits:?}",
                    job.job_id,
                    endpoint.rank,
                    job.collectives.len(),
                    endpoint.has_finished,
                ));
            }
        }
        self.count();
        self.check_rest()
    }

    fn count(&mut self) {
        for endpoint in &self.endpoints {
            let counters = endpoint.worker.counters();
            self.summary.finished += u64::from(endpoint.has_finished);
            self.summary.contributions += counters.contributions;
            self.summary.resends += counters.resends_overtaken + counters.resends_timeout + counters.resends_early;
            self.summary.cuts += counters.cuts;
            self.summary.left_out += counters.left_out;
        }
        for switch in &self.switches {
            self.summary.aggregates += switch.counters().aggregates;
            self.summary.repeats += switch.counters().repeats;
            self.summary.full += switch.counters().drops[DropReason::BufferFull as usize];
        }
        self.summary.lost = self.links.values().map(|link| link.counters().lost).sum();
    }

    /// Finished jobs have left nothing in any buffer, and what is removed takes everything along.
    fn check_rest(&mut self) -> Result<(), String> {
        let cut_off: Vec<u32> =
            self.scenario.jobs.iter().filter(|job| job.death.is_some()).map(|job| job.job_id).collect();
        for (number, switch) in self.switches.iter_mut().enumerate() {
            cut_off.iter().for_each(|&job_id| {
                switch.remove(job_id);
            });
            if switch.packet_count() != 0 {
                return Err(format!("switch {number} still holds {} packets", switch.packet_count()));
            }
        }
        let Summary { resends, repeats, full, .. } = self.summary;
        if self.scenario.calm && resends + repeats + full > 0 {
            return Err(format!("{resends} packets were sent again, {repeats} repeated, for {full} there was no room"));
        }
        Ok(())
    }
}

/// Submits collectives up to a number of them, and says when that was the last.
fn submit(endpoint: &mut Endpoint, job: &super::JobPlan, until: usize) -> Result<(), String> {
    while endpoint.submitted < until.min(job.collectives.len()) {
        let submission = job.collectives[endpoint.submitted];
        endpoint
            .worker
            .submit(submission)
            .map_err(|reason| format!("a worker does not take {submission:?}: {reason}"))?;
        endpoint.submitted += 1;
    }
    if endpoint.submitted == job.collectives.len() {
        endpoint.worker.finish();
    }
    Ok(())
}
