//! A cluster in which somebody else chooses every step: a fuzzer, or a
//! seeded generator. Whatever is chosen, the checkers of [`crate::cluster`]
//! hold, and when the choices end everything still completes.

use std::rc::Rc;

use fanin_link::{LinkConfig, Random};
use fanin_protocol::switchml::{Context, Switch, WireFormat, without_payload};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};
use fanin_wire::fanin;
use fanin_wire::generated::HEADER_BYTES;

use crate::cluster::{Checkers, Host, completed, describe, events_of};
use crate::job::JobPlan;
use crate::scenario::small_job;

/// Contributions that a job aims at.
const CONTRIBUTIONS_AIM: u64 = 30;
/// Most packets under way; more are lost.
const NETWORK_MAX: usize = 4_096;
/// Rounds after the last operation in which all must complete.
const ROUNDS_MAX: usize = 20_000;

/// One step. Numbers are taken modulo what there is to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub enum Operation {
    /// A worker calls its next collective.
    Submit(u8),
    /// A packet arrives.
    Deliver(u16),
    /// A packet is lost.
    Lose(u16),
    /// A packet is doubled.
    Duplicate(u16),
    /// A bit of a packet flips.
    Damage(u16, u16),
    /// A lane's timer runs out.
    Timeout(u8, u8),
    /// A stranger sends a changed copy of a packet to the switch.
    Forge(u16, Forgery),
}

/// What a stranger gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub enum Forgery {
    /// Another run's token.
    Token(u32),
    /// Another job.
    Job(u32),
    /// A rank that the job does not have.
    Rank(u16),
    /// Another slot, so that it does not belong to the chunk.
    Slot(u16),
    /// A chunk of the distant future.
    Chunk(u16),
    /// Another collective.
    Tag(u32),
}

/// A job and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct Script {
    /// Picks the job.
    pub seed: u16,
    /// In order.
    pub operations: Vec<Operation>,
}

impl Script {
    /// The script of a seed, for runs without a fuzzer.
    pub fn from_seed(seed: u64) -> Script {
        let mut random = Random::new(seed ^ 0x0de1);
        let count = random.within(20, 600);
        let operations = (0..count).map(|_| operation(&mut random)).collect();
        Script { seed: random.bits() as u16, operations }
    }
}

fn operation(random: &mut Random) -> Operation {
    let (packet, small) = (random.bits() as u16, random.bits() as u8);
    match random.below(100) {
        0..10 => Operation::Submit(small),
        10..70 => Operation::Deliver(packet),
        70..78 => Operation::Lose(packet),
        78..88 => Operation::Duplicate(packet),
        88..90 => Operation::Damage(packet, random.bits() as u16),
        90..96 => Operation::Timeout(small, random.bits() as u8),
        _ => Operation::Forge(packet, forgery(random)),
    }
}

fn forgery(random: &mut Random) -> Forgery {
    let bits = random.bits();
    match random.below(6) {
        0 => Forgery::Token(bits as u32),
        1 => Forgery::Job(bits as u32),
        2 => Forgery::Rank(bits as u16),
        3 => Forgery::Slot(bits as u16),
        4 => Forgery::Chunk(bits as u16),
        _ => Forgery::Tag(bits as u32),
    }
}

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

struct Packet {
    /// The worker it is from or for.
    rank: usize,
    lane: u16,
    to_switch: bool,
    damaged: bool,
    bytes: Vec<u8>,
}

struct World {
    plan: Rc<JobPlan>,
    switch: Switch,
    hosts: Vec<Host>,
    submitted: Vec<usize>,
    network: Vec<Packet>,
    checkers: Checkers,
    now: Time,
}

impl World {
    fn new(seed: u16) -> Result<World, String> {
        let plan = Rc::new(small_job(u64::from(seed), CONTRIBUTIONS_AIM));
        let mut switch = Switch::new();
        switch.install(plan.job_config()).map_err(|error| format!("install: {error:?}"))?;
        let perfect = LinkConfig::default();
        let host = |rank| Host::new(0, &plan, rank, &perfect, &perfect, 0);
        Ok(World {
            switch,
            hosts: (0..plan.worker_count).map(host).collect(),
            submitted: vec![0; usize::from(plan.worker_count)],
            network: Vec::new(),
            checkers: Checkers::new(std::slice::from_ref(&plan)),
            now: Time::ZERO,
            plan,
        })
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Submit(rank) => self.submit(usize::from(rank) % self.hosts.len()),
            Operation::Timeout(rank, lane) => {
                self.timeout(usize::from(rank) % self.hosts.len(), u16::from(lane) % self.plan.lane_count)
            }
            Operation::Deliver(packet) => match self.pick(packet) {
                Some(index) => {
                    let packet = self.network.swap_remove(index);
                    self.deliver(&packet)
                }
                None => Ok(()),
            },
            Operation::Lose(packet) => {
                self.pick(packet).map(|index| self.network.swap_remove(index));
                Ok(())
            }
            Operation::Duplicate(packet) => {
                if let Some(index) = self.pick(packet) {
                    let Packet { rank, lane, to_switch, damaged, ref bytes } = self.network[index];
                    let copy = Packet { rank, lane, to_switch, damaged, bytes: bytes.clone() };
                    self.send(copy);
                }
                Ok(())
            }
            Operation::Damage(packet, bit) => {
                if let Some(index) = self.pick(packet).filter(|&index| !self.network[index].damaged) {
                    let packet = &mut self.network[index];
                    let bit = usize::from(bit) % (packet.bytes.len() * 8);
                    packet.bytes[bit / 8] ^= 1 << (bit % 8);
                    packet.damaged = true;
                }
                Ok(())
            }
            Operation::Forge(packet, forgery) => self.forge(packet, forgery),
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

    fn timeout(&mut self, rank: usize, lane: u16) -> Result<(), String> {
        let worker = &mut self.hosts[rank].lanes[usize::from(lane)].worker;
        if let Some(due) = worker.poll_timeout() {
            self.now = self.now.max(due);
            worker.handle_timeout(self.now);
        }
        self.drain(rank, lane)
    }

    fn deliver(&mut self, packet: &Packet) -> Result<(), String> {
        if packet.to_switch {
            return self.at_switch(packet);
        }
        let host = &mut self.hosts[packet.rank];
        let lane = &mut host.lanes[usize::from(packet.lane)];
        lane.handled += 1;
        lane.worker.handle_packet(self.now, &packet.bytes, &mut host.memory);
        self.drain(packet.rank, packet.lane)
    }

    fn process(&mut self, bytes: &[u8], output: &mut [u8]) -> Verdict {
        let context = Context { now: self.now, wire_format: WireFormat::Fanin, source_rank: None };
        self.switch.process(&context, bytes, output)
    }

    fn at_switch(&mut self, packet: &Packet) -> Result<(), String> {
        let mut output = vec![0; self.plan.datagram_bytes_max()];
        let verdict = self.process(&packet.bytes, &mut output);
        let from = &self.hosts[packet.rank];
        self.checkers.after_switch(&self.switch, from, &packet.bytes, packet.damaged, &verdict)?;
        let (to_sender, bytes) = match verdict {
            Verdict::Drop(_) => return Ok(()),
            Verdict::Refuse { reason, .. } => {
                return Err(format!("a worker in good order was refused: {reason:?}, {}", describe(&packet.bytes)));
            }
            Verdict::Reply { bytes } | Verdict::Missing { bytes } | Verdict::ProbeReply { bytes } => (true, bytes),
            Verdict::Multicast { bytes, .. } => (false, bytes),
        };
        let destination = match verdict {
            Verdict::Multicast { destination, .. } => destination.map(usize::from),
            _ => None,
        };
        let mut bare = [0; HEADER_BYTES];
        if destination.is_some() {
            without_payload(&output[..bytes], true, &mut bare);
        }
        let ranks = if to_sender { packet.rank..packet.rank + 1 } else { 0..self.hosts.len() };
        for rank in ranks {
            let gets_payload = destination.is_none_or(|destination| destination == rank);
            let bytes = if gets_payload { output[..bytes].to_vec() } else { bare.to_vec() };
            self.send(Packet { rank, lane: packet.lane, to_switch: false, damaged: false, bytes });
        }
        Ok(())
    }

    /// A stranger's packet must never be counted, and never answered with a
    /// sum, except that nobody can tell a copy with the right token.
    fn forge(&mut self, packet: u16, forgery: Forgery) -> Result<(), String> {
        let Some(index) = self.pick(packet) else { return Ok(()) };
        let Ok((header, _)) = fanin::Header::parse(&self.network[index].bytes) else { return Ok(()) };
        let header = self.falsify(header, forgery);
        let mut bytes = self.network[index].bytes.clone();
        header.seal(&mut bytes);
        let mut output = vec![0; self.plan.datagram_bytes_max()];
        let before = self.checkers.state_of(&self.switch);
        let verdict = self.process(&bytes, &mut output);
        self.checkers.foreign_packet();
        match verdict {
            Verdict::Drop(DropReason::AwaitingOthers) | Verdict::Multicast { .. } => {
                Err(format!("a forged packet was counted: {forgery:?}"))
            }
            _ if self.checkers.state_of(&self.switch) != before => {
                Err(format!("a forged packet changed the slots: {forgery:?} {verdict:?}"))
            }
            _ => Ok(()),
        }
    }

    fn falsify(&self, header: fanin::Header, forgery: Forgery) -> fanin::Header {
        let (job, other) = (self.plan.job_config(), |right: u32, change: u32| right ^ change.max(1));
        match forgery {
            Forgery::Token(change) => fanin::Header { job_token: other(job.job_token, change), ..header },
            Forgery::Job(change) => fanin::Header { job_id: other(job.job_id, change), ..header },
            Forgery::Rank(more) => fanin::Header { worker_rank: job.worker_count.saturating_add(more), ..header },
            Forgery::Slot(slot) => {
                let slot_count = (job.slots_per_lane * u32::from(job.lane_count)) as u16;
                fanin::Header { slot_index: (slot_count + slot % 64) & 0x7fff, ..header }
            }
            Forgery::Chunk(more) => {
                let far = job.slots_per_lane * 4 * (u32::from(more) + 1);
                fanin::Header { chunk_index: header.chunk_index.wrapping_add(far), ..header }
            }
            // Only where somebody has begun the chunk can the switch tell; a
            // Query never changes anything.
            Forgery::Tag(change) => {
                let tag = other(header.collective_tag, change);
                fanin::Header { collective_tag: tag, kind: fanin_wire::Kind::Query, ..header }
            }
        }
    }

    fn drain(&mut self, rank: usize, lane: u16) -> Result<(), String> {
        let mut buffer = vec![0; self.plan.datagram_bytes_max()];
        loop {
            let host = &mut self.hosts[rank];
            let worker = &mut host.lanes[usize::from(lane)].worker;
            let Some(bytes) = worker.poll_transmit(self.now, &mut host.memory, &mut buffer) else { break };
            self.send(Packet { rank, lane, to_switch: true, damaged: false, bytes: buffer[..bytes].to_vec() });
        }
        let (non_finite, done) = events_of(&mut self.hosts[rank], lane);
        done.into_iter().try_for_each(|collective| completed(&mut self.hosts[rank], collective))?;
        self.checkers.after_worker(&mut self.hosts[rank], &non_finite, lane)
    }

    /// No more faults: everything is submitted, delivered and, where it was
    /// lost, asked for again.
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
                (0..self.plan.lane_count).try_for_each(|lane| self.timeout(rank, lane))?;
            }
        }
        let left: Vec<_> = self.hosts.iter().map(|host| host.lanes_left.clone()).collect();
        Err(format!("no progress: {left:?} lanes are left of each collective"))
    }
}
