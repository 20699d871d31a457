//! A whole cluster as one value: workers, links and a switch program under
//! virtual time, with checkers that look at every step.

mod check;
mod host;
mod trace;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;

use fanin_link::{Delivery, Random};
use fanin_protocol::Verdict;
use fanin_protocol::switchml::{Context, Submission, Switch, without_payload};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::HEADER_BYTES;

use crate::job::{Disturbance, JobPlan};
use crate::scenario::Scenario;

pub(crate) use check::{Checkers, completed};
pub use check::{Summary, Violation, describe};
pub(crate) use host::{Host, events_of};

use host::Endpoint;
use trace::Trace;

/// What happens next at some instant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToSwitch { from: Endpoint, packet: Vec<u8>, damaged: bool },
    ToWorker { to: Endpoint, packet: Vec<u8>, damaged: bool },
    Submit { host: usize, collective: usize },
    Wake { lane: Endpoint },
    Kill { host: usize },
    Install { job: usize },
    Remove { job: usize },
    RestartSwitch,
}

/// A scenario while it runs.
pub struct Cluster {
    scenario: Scenario,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Orders events of one instant by when they were scheduled.
    scheduled: u64,
    switch: Switch,
    plans: Vec<Rc<JobPlan>>,
    hosts: Vec<Host>,
    /// Where the switch has learned that each (job number, lane, rank) is.
    peers: HashMap<(u8, u16, u16), Endpoint>,
    checkers: Checkers,
    trace: Trace,
    datagram_bytes_max: usize,
}

impl Cluster {
    /// A cluster before its first step; `print` shows every step.
    pub fn new(scenario: Scenario, print: bool) -> Cluster {
        let plans: Vec<Rc<JobPlan>> = scenario.jobs.iter().cloned().map(Rc::new).collect();
        let datagram_bytes_max = plans.iter().map(|plan| plan.datagram_bytes_max()).max().unwrap_or(HEADER_BYTES);
        let mut cluster = Cluster {
            now: Time::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            switch: Switch::new(),
            hosts: Vec::new(),
            peers: HashMap::new(),
            checkers: Checkers::new(&plans),
            trace: Trace::new(print),
            datagram_bytes_max,
            plans,
            scenario,
        };
        cluster.schedule_jobs();
        cluster
    }

    /// Runs until nothing is left to happen, or until a job that can no
    /// longer complete has shown that it does not.
    ///
    /// # Errors
    /// The first violation of a checker.
    pub fn run(mut self) -> Result<Summary, Violation> {
        let deadline = self.deadline();
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= deadline) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.step(event).map_err(|what| self.violation(what))?;
        }
        check::at_the_end(&self).map_err(|what| self.violation(what))
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.scenario.seed, at: self.now, what }
    }

    /// Bounded progress: when this is over after the last fault, everything
    /// that can complete has. Resends come at most one longest timeout apart.
    fn deadline(&self) -> Time {
        let patience = self.plans.iter().map(|plan| plan.resend_timeouts[2]).max().unwrap_or(Span::ZERO);
        self.scenario.settled_from() + patience.saturating_mul(20)
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn schedule_jobs(&mut self) {
        let mut random = Random::new(self.scenario.seed ^ 0x5ced);
        for job in 0..self.plans.len() {
            let plan = self.plans[job].clone();
            self.schedule(plan.starts, Event::Install { job });
            let first_host = self.hosts.len();
            for rank in 0..plan.worker_count {
                let (up, down) = (&self.scenario.up, &self.scenario.down);
                let host = Host::new(job, &plan, rank, up, down, self.scenario.seed);
                self.hosts.push(host);
                self.schedule_submits(&plan, first_host + usize::from(rank), &mut random);
            }
            match plan.disturbance {
                Disturbance::Death { rank, at } => {
                    self.schedule(at, Event::Kill { host: first_host + usize::from(rank) });
                }
                Disturbance::Removal { at } | Disturbance::Replacement { at } => {
                    self.schedule(at, Event::Remove { job });
                }
                Disturbance::None | Disturbance::Cut { .. } | Disturbance::Mismatch { .. } => {}
            }
        }
        if let Some(at) = self.scenario.switch_restart {
            self.schedule(at, Event::RestartSwitch);
        }
    }

    /// A worker submits in order, whatever its lateness.
    fn schedule_submits(&mut self, plan: &JobPlan, host: usize, random: &mut Random) {
        let mut earliest = Time::ZERO;
        for (collective, &at) in plan.submits.iter().enumerate() {
            earliest = earliest.max(at + random.span_up_to(plan.skew_max));
            self.schedule(earliest, Event::Submit { host, collective });
        }
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::ToSwitch { from, packet, damaged } => self.at_switch(from, &packet, damaged),
            Event::ToWorker { to, packet, damaged } => self.at_worker(to, &packet, damaged),
            Event::Submit { host, collective } => self.submit(host, collective),
            Event::Wake { lane } => self.wake(lane),
            Event::Kill { host } => {
                self.note("kill", [host as u64, 0, 0]);
                self.hosts[host].alive = false;
                Ok(())
            }
            Event::Install { job } => self.install(job),
            Event::Remove { job } => {
                self.note("remove", [job as u64, 0, 0]);
                self.switch.remove(self.plans[job].job_id);
                self.forget_peers(job);
                Ok(())
            }
            Event::RestartSwitch => {
                self.note("restart", [0; 3]);
                self.checkers.switch_restarts(&self.switch);
                self.switch = Switch::new();
                self.peers.clear();
                Ok(())
            }
        }
    }

    fn note(&mut self, name: &str, numbers: [u64; 3]) {
        self.trace.step(self.now, name, numbers, &[], || format!("{numbers:?}"));
    }

    fn install(&mut self, job: usize) -> Result<(), String> {
        self.note("install", [job as u64, 0, 0]);
        self.forget_peers(job);
        self.switch.install(self.plans[job].job_config()).map_err(|error| format!("install: {error:?}"))
    }

    fn forget_peers(&mut self, job: usize) {
        let number = self.plans[job].job_id as u8;
        self.peers.retain(|&(job_number, ..), _| job_number != number);
    }

    fn submit(&mut self, host: usize, collective: usize) -> Result<(), String> {
        self.note("submit", [host as u64, collective as u64, 0]);
        let plan = self.hosts[host].plan.clone();
        let submissions =
            plan.collectives[collective].submissions(plan.worker_count, plan.lane_count, plan.element_count_max);
        for (lane, submission) in submissions {
            let submission = self.mistake(host, submission);
            self.hosts[host].lanes[usize::from(lane)].worker.submit(submission);
            self.drain(Endpoint { host, lane })?;
        }
        Ok(())
    }

    /// A worker that calls another collective than the rest.
    fn mistake(&self, host: usize, submission: Submission) -> Submission {
        let wrong = match self.hosts[host].plan.disturbance {
            Disturbance::Mismatch { rank, collective } => rank == self.hosts[host].rank && submission.id >= collective,
            _ => false,
        };
        Submission { collective_tag: submission.collective_tag ^ u32::from(wrong), ..submission }
    }

    fn wake(&mut self, lane: Endpoint) -> Result<(), String> {
        let now = self.now;
        let state = &mut self.hosts[lane.host].lanes[usize::from(lane.lane)];
        state.wake_at = None;
        if state.worker.poll_timeout().is_some_and(|due| due <= now) {
            state.worker.handle_timeout(now);
            self.note("timeout", [lane.host as u64, u64::from(lane.lane), 0]);
        }
        self.drain(lane)
    }

    fn at_worker(&mut self, to: Endpoint, packet: &[u8], damaged: bool) -> Result<(), String> {
        let host = &mut self.hosts[to.host];
        host.down_arrived += 1;
        if !host.alive {
            return Ok(());
        }
        let lane = &mut host.lanes[usize::from(to.lane)];
        lane.handled += 1;
        let now = self.now;
        lane.worker.handle_packet(now, packet, &mut host.memory);
        self.trace.step(now, "at worker", [to.host as u64, u64::from(to.lane), 0], packet, || {
            format!("{to:?} {}{}", check::describe(packet), if damaged { " damaged" } else { "" })
        });
        self.drain(to)
    }

    fn at_switch(&mut self, from: Endpoint, packet: &[u8], damaged: bool) -> Result<(), String> {
        self.hosts[from.host].up_arrived += 1;
        let plan = self.hosts[from.host].plan.clone();
        let registered =
            self.plans.iter().any(|other| other.job_id == plan.job_id) && self.switch.inspect(plan.job_id).is_some();
        let context = Context {
            now: self.now,
            wire_format: plan.wire_format,
            source_rank: registered.then_some(self.hosts[from.host].rank),
        };
        let mut output = vec![0; self.datagram_bytes_max];
        let others = self.checkers.others_state(&self.switch, &self.plans, plan.job_id);
        let verdict = self.switch.process(&context, packet, &mut output);
        self.trace.step(self.now, "at switch", [from.host as u64, u64::from(from.lane), 0], packet, || {
            format!("{from:?} {} -> {verdict:?}", check::describe(packet))
        });
        self.checkers.after_switch(&self.switch, &self.hosts[from.host], packet, damaged, &verdict)?;
        if let Some(before) = others {
            let after = self.checkers.state_of_others(&self.switch, &self.plans, plan.job_id);
            check::same_state(before, after)?;
        }
        self.send_from_switch(from, verdict, &output);
        Ok(())
    }

    fn send_from_switch(&mut self, from: Endpoint, verdict: Verdict, output: &[u8]) {
        if let Some(sender) = self.switch.admitted() {
            self.peers.insert((sender.job_number, sender.lane, sender.rank), from);
        }
        match verdict {
            Verdict::Drop(_) => {}
            Verdict::Refuse { bytes, .. }
            | Verdict::Reply { bytes }
            | Verdict::Missing { bytes }
            | Verdict::ProbeReply { bytes } => self.send_down(from, &output[..bytes]),
            Verdict::Multicast { job_number, lane, bytes, destination } => {
                let full = &output[..bytes];
                let mut bare = [0; HEADER_BYTES];
                if destination.is_some() {
                    without_payload(full, true, &mut bare);
                }
                // Ranks in order, or the trace would depend on the map.
                for rank in 0..self.hosts[from.host].plan.worker_count {
                    let Some(&to) = self.peers.get(&(job_number, lane, rank)) else { continue };
                    let gets_payload = destination.is_none_or(|destination| destination == rank);
                    self.send_down(to, if gets_payload { full } else { &bare });
                }
            }
        }
    }

    fn send_down(&mut self, to: Endpoint, packet: &[u8]) {
        let mut deliveries: Vec<Delivery> = Vec::new();
        self.hosts[to.host].down.send(self.now, packet, |delivery| deliveries.push(delivery));
        for Delivery { at, packet, damaged } in deliveries {
            self.schedule(at, Event::ToWorker { to, packet, damaged });
        }
    }

    /// Takes all that a lane has to say after any call.
    fn drain(&mut self, endpoint: Endpoint) -> Result<(), String> {
        let now = self.now;
        let host = &mut self.hosts[endpoint.host];
        if !host.alive {
            return Ok(());
        }
        let mut deliveries: Vec<Delivery> = Vec::new();
        let mut buffer = vec![0; host.plan.datagram_bytes_max()];
        let lane = &mut host.lanes[usize::from(endpoint.lane)];
        while let Some(bytes) = lane.worker.poll_transmit(now, &mut host.memory, &mut buffer) {
            host.up.send(now, &buffer[..bytes], |delivery| deliveries.push(delivery));
        }
        let due = lane.worker.poll_timeout();
        let wake = due.filter(|&due| lane.wake_at.is_none_or(|wake| due < wake)).map(|due| due.max(now));
        lane.wake_at = wake.or(lane.wake_at);
        self.take_events(endpoint)?;
        if let Some(at) = wake {
            self.schedule(at, Event::Wake { lane: endpoint });
        }
        for Delivery { at, packet, damaged } in deliveries {
            self.schedule(at, Event::ToSwitch { from: endpoint, packet, damaged });
        }
        Ok(())
    }

    fn take_events(&mut self, endpoint: Endpoint) -> Result<(), String> {
        let host = &mut self.hosts[endpoint.host];
        let (non_finite, done) = events_of(host, endpoint.lane);
        if !done.is_empty() {
            host.completed_last = self.now;
        }
        done.into_iter().try_for_each(|collective| completed(host, collective))?;
        self.checkers.after_worker(host, &non_finite, endpoint.lane)
    }
}
