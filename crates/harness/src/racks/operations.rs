//! A job over racks in which somebody else chooses every step. Whatever is chosen, every sum is the one that independent
//! arithmetic gives, and when the choices end everything still completes.

use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use fanin_link::{LinkConfig, Random};
use fanin_protocol::switchml::{Worker, WorkerConfig};
use fanin_protocol::time::Time;
use fanin_wire::{Accumulator, ElementFormat, fanin};

use super::{Layout, Node, Program};
use crate::cluster::{Checkers, Host, completed, events_of};
use crate::collective::Collective;
use crate::job::JobPlan;
use crate::operations::{Forgery, Operation, Script};
use crate::scenario::small_job;

/// Contributions that a job aims at.
const CONTRIBUTIONS_AIM: u64 = 30;
/// Most packets under way; more are lost.
const NETWORK_MAX: usize = 4_096;
/// Rounds after the last operation in which all must complete.
const ROUNDS_MAX: usize = 20_000;

/// Runs a script to its end and then until everything has completed.
///
/// # Errors
/// Which rule did not hold, and after which operations.
pub fn run(script: &Script) -> Result<(), String> {
    let mut world = World::new(script.seed)?;
    for (index, &operation) in script.operations.iter().enumerate() {
        world.apply(operation).map_err(|what| format!("operation {index}, {operation:?}: {what}"))?;
    }
    world.complete().map_err(|what| format!("after the last operation: {what}"))
}

#[derive(Clone)]
struct Packet {
    from: Node,
    to: Node,
    lane: u16,
    is_damaged: bool,
    bytes: Vec<u8>,
}

struct World {
    plan: Rc<JobPlan>,
    layout: Layout,
    programs: Vec<Program>,
    /// Packets given to each switch.
    received: Vec<u64>,
    hosts: Vec<Host>,
    submitted: Vec<usize>,
    network: Vec<Packet>,
    checkers: Checkers,
    now: Time,
}

impl World {
    fn new(seed: u16) -> Result<World, String> {
        let mut plan = small_job(u64::from(seed) ^ 0x7ac5, CONTRIBUTIONS_AIM);
        let as_words = |collective: &Rc<Collective>| {
            Rc::new(Collective { element_format: ElementFormat::Int32, ..(**collective).clone() })
        };
        plan.collectives = plan.collectives.iter().map(as_words).collect();
        plan.accumulator = Accumulator::BlockFixed;
        let plan = Rc::new(plan);
        let layout = Layout::new(plan.job_config(), &groups(seed, plan.worker_count));
        let perfect = LinkConfig::default();
        let host = |rank| {
            let mut host = Host::new(0, &plan, rank, &perfect, &perfect, 0);
            let number = layout.number(rank);
            for (lane, place) in (0u16..).zip(&mut host.lanes) {
                place.worker = Worker::new(WorkerConfig { number, ..plan.worker_config(rank, lane) });
            }
            host
        };
        Ok(World {
            programs: layout.programs()?,
            received: vec![0; layout.places.len()],
            hosts: (0..plan.worker_count).map(host).collect(),
            submitted: vec![0; usize::from(plan.worker_count)],
            network: Vec::new(),
            checkers: Checkers::new(std::slice::from_ref(&plan)),
            now: Time::ZERO,
            layout,
            plan,
        })
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Submit(rank) => self.submit(usize::from(rank) % self.hosts.len()),
            Operation::Timeout(rank, lane) => {
                self.time_out(usize::from(rank) % self.hosts.len(), u16::from(lane) % self.plan.lane_count)
            }
            Operation::Deliver(number) => match self.pick(number) {
                Some(index) => {
                    let packet = self.network.swap_remove(index);
                    self.deliver(&packet)
                }
                None => Ok(()),
            },
            Operation::Lose(number) => {
                self.pick(number).map(|index| self.network.swap_remove(index));
                Ok(())
            }
            Operation::Duplicate(number) => {
                if let Some(index) = self.pick(number) {
                    let copy = self.network[index].clone();
                    self.send(copy);
                }
                Ok(())
            }
            Operation::Damage(number, bit) => {
                if let Some(index) = self.pick(number).filter(|&index| !self.network[index].is_damaged) {
                    let Packet { bytes, is_damaged, .. } = &mut self.network[index];
                    let bit = usize::from(bit) % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    *is_damaged = true;
                }
                Ok(())
            }
            Operation::Forge(number, forgery) => self.forge(number, forgery),
        }
    }

    fn pick(&self, number: u16) -> Option<usize> {
        (!self.network.is_empty()).then(|| usize::from(number) % self.network.len())
    }

    fn send(&mut self, packet: Packet) {
        if self.network.len() < NETWORK_MAX {
            self.network.push(packet);
        }
    }

    fn submit(&mut self, rank: usize) -> Result<(), String> {
        let next = self.submitted[rank];
        let Some(collective) = self.plan.collectives.get(next).cloned() else { return Ok(()) };
        self.submitted[rank] += 1;
        let plan = self.plan.clone();
        for (lane, submission) in collective.submissions(plan.worker_count, plan.lane_count, plan.element_count_max) {
            self.hosts[rank].lanes[usize::from(lane)].worker.submit(submission);
            self.drain(rank, lane)?;
        }
        Ok(())
    }

    fn time_out(&mut self, rank: usize, lane: u16) -> Result<(), String> {
        let worker = &mut self.hosts[rank].lanes[usize::from(lane)].worker;
        if let Some(due) = worker.poll_timeout() {
            self.now = self.now.max(due);
            worker.handle_timeout(self.now);
        }
        self.drain(rank, lane)
    }

    fn deliver(&mut self, packet: &Packet) -> Result<(), String> {
        match packet.to {
            Node::Worker(rank) => {
                let host = &mut self.hosts[usize::from(rank)];
                let lane = &mut host.lanes[usize::from(packet.lane)];
                lane.handled += 1;
                lane.worker.handle_packet(self.now, &packet.bytes, &mut host.memory);
                self.drain(usize::from(rank), packet.lane)
            }
            Node::Switch(number) => {
                let place = usize::from(number);
                self.received[place] += 1;
                let sent = self.layout.process(number, &mut self.programs[place], packet.from, &packet.bytes)?;
                for (to, bytes) in sent {
                    self.send(Packet { from: packet.to, to, lane: packet.lane, is_damaged: false, bytes });
                }
                if self.programs[place].packets() != self.received[place] {
                    return Err(format!("switch {number} did not count a packet"));
                }
                Ok(())
            }
        }
    }

    /// A stranger's copy of a packet must never change anything.
    fn forge(&mut self, number: u16, forgery: Forgery) -> Result<(), String> {
        let Some(index) = self.pick(number) else { return Ok(()) };
        let Packet { from, to: Node::Switch(number), ref bytes, .. } = self.network[index] else { return Ok(()) };
        let Ok((header, _)) = fanin::Header::parse(bytes) else { return Ok(()) };
        let other = |right: u32, change: u32| right ^ change.max(1);
        let header = match forgery {
            Forgery::Token(change) => fanin::Header { job_token: other(header.job_token, change), ..header },
            Forgery::Job(change) => fanin::Header { job_id: other(header.job_id, change), ..header },
            Forgery::Rank(more) => fanin::Header { worker_rank: 256u16.saturating_add(more).min(0xfffe), ..header },
            Forgery::Slot(more) => fanin::Header { slot_index: 0x4000 | more, ..header },
            Forgery::Chunk(more) => {
                let far = self.plan.slots_per_lane * 4 * (u32::from(more) + 1);
                fanin::Header { chunk_index: header.chunk_index.wrapping_add(far), ..header }
            }
            // Only of a chunk that has begun can a switch tell; see `crate::operations`.
            Forgery::Tag(change) => fanin::Header { job_token: other(header.job_token, change), ..header },
        };
        let mut forged = bytes.clone();
        header.seal(&mut forged);
        let place = usize::from(number);
        let before = hash_of(&self.programs[place]);
        self.received[place] += 1;
        let sent = self.layout.process(number, &mut self.programs[place], from, &forged).unwrap_or_default();
        if !sent.is_empty() || hash_of(&self.programs[place]) != before {
            return Err(format!("a forged packet had an effect at switch {number}: {forgery:?}"));
        }
        Ok(())
    }

    fn drain(&mut self, rank: usize, lane: u16) -> Result<(), String> {
        let mut buffer = vec![0; self.plan.datagram_bytes_max()];
        let (from, to) = (Node::Worker(rank as u16), self.layout.home(rank as u16));
        loop {
            let host = &mut self.hosts[rank];
            let worker = &mut host.lanes[usize::from(lane)].worker;
            let Some(bytes) = worker.poll_transmit(self.now, &mut host.memory, &mut buffer) else { break };
            self.send(Packet { from, to, lane, is_damaged: false, bytes: buffer[..bytes].to_vec() });
        }
        let (non_finite, done) = events_of(&mut self.hosts[rank], lane);
        done.into_iter().try_for_each(|collective| completed(&mut self.hosts[rank], collective))?;
        self.checkers.after_worker(&mut self.hosts[rank], &non_finite, lane)
    }

    /// No more faults: everything is submitted, delivered and, where it was lost, asked for again.
    fn complete(&mut self) -> Result<(), String> {
        for rank in 0..self.hosts.len() {
            while self.submitted[rank] < self.plan.collectives.len() {
                self.submit(rank)?;
            }
        }
        for _ in 0..ROUNDS_MAX {
            for packet in std::mem::take(&mut self.network) {
                self.deliver(&packet)?;
            }
            if !self.network.is_empty() {
                continue;
            }
            if self.hosts.iter().all(Host::is_done) {
                return Ok(());
            }
            for rank in 0..self.hosts.len() {
                (0..self.plan.lane_count).try_for_each(|lane| self.time_out(rank, lane))?;
            }
        }
        let left: Vec<_> = self.hosts.iter().map(|host| host.lanes_left.clone()).collect();
        Err(format!("no progress: {left:?} lanes are left of each collective"))
    }
}

/// Racks of one worker and more, in groups of one rack and more.
fn groups(seed: u16, worker_count: u16) -> Vec<Vec<u16>> {
    let mut random = Random::new(u64::from(seed) ^ 0x6a0);
    let has_groups = random.flip();
    let mut groups: Vec<Vec<u16>> = Vec::new();
    let mut left = worker_count;
    while left > 0 {
        let workers = random.within(1, left.into()) as u16;
        left -= workers;
        match groups.last_mut() {
            Some(group) if has_groups && random.flip() => group.push(workers),
            _ => groups.push(vec![workers]),
        }
    }
    // Some that are alone stand beside their group's switch or the root, without a rack.
    for rack in groups.iter_mut().flatten() {
        if *rack == 1 && random.flip() {
            *rack = 0;
        }
    }
    groups
}

fn hash_of(program: &Program) -> u64 {
    let mut hasher = DefaultHasher::new();
    program.hash_state(&mut hasher);
    hasher.finish()
}
