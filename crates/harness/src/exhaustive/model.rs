//! The parts of the small cluster in all states that they can be in.
//!
//! A cluster's state is a combination of few states of the switch, of each
//! worker and of packets. Each of these is kept once and known by number, and
//! what a packet does to it is worked out once; so the real programs decide
//! everything, and the search itself only combines numbers.

use std::collections::HashMap;
use std::rc::Rc;

use fanin_protocol::switchml::{Context, Switch};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};

use super::Scope;
use super::hash::{Ready, Wide, WideBuild};
use super::node::{self, Node};
use super::packet::{Packet, Place, chunk_of};

/// What the switch does with a packet.
#[derive(Clone, Debug)]
pub struct SwitchStep {
    pub switch: u16,
    pub counted: bool,
    pub sent: Vec<u16>,
}

/// What a worker does with a packet or a timeout.
#[derive(Clone, Debug)]
pub struct NodeStep {
    pub node: u16,
    pub sent: Vec<u16>,
}

/// Values known by number.
struct Known<T> {
    numbers: HashMap<u128, u16, Ready>,
    values: Vec<T>,
}

impl<T> Known<T> {
    fn new() -> Known<T> {
        Known { numbers: HashMap::default(), values: Vec::new() }
    }

    fn number(&mut self, fingerprint: u128, value: impl FnOnce() -> T) -> Result<u16, String> {
        if let Some(&number) = self.numbers.get(&fingerprint) {
            return Ok(number);
        }
        let number = u16::try_from(self.values.len()).map_err(|_| "the scope is too large")?;
        self.numbers.insert(fingerprint, number);
        self.values.push(value());
        Ok(number)
    }

    fn get(&self, number: u16) -> &T {
        &self.values[usize::from(number)]
    }
}

/// All states of the parts seen so far, and all steps between them.
pub struct Model {
    pub scope: Scope,
    switches: Known<Switch>,
    nodes: Known<Node>,
    packets: Known<Packet>,
    switch_steps: HashMap<u32, Rc<SwitchStep>, WideBuild>,
    node_steps: HashMap<u32, Rc<NodeStep>, WideBuild>,
    timeouts: HashMap<u16, Rc<NodeStep>, WideBuild>,
    /// The packet that a Query becomes when its chunk is sent again.
    old_twins: HashMap<u16, u16, WideBuild>,
}

impl Model {
    pub fn new(scope: &Scope) -> Model {
        Model {
            scope: *scope,
            switches: Known::new(),
            nodes: Known::new(),
            packets: Known::new(),
            switch_steps: HashMap::default(),
            node_steps: HashMap::default(),
            timeouts: HashMap::default(),
            old_twins: HashMap::default(),
        }
    }

    /// The switch and the workers after they have sent their first window.
    pub fn start(&mut self) -> Result<(u16, Vec<NodeStep>), String> {
        let mut switch = Switch::new();
        switch.install(node::job(&self.scope)).map_err(|error| format!("{error:?}"))?;
        let switch = self.switches.number(fingerprint(&switch), || switch)?;
        let workers = 0..self.scope.workers;
        let steps = workers.map(|rank| self.settle(Node::new(&self.scope, rank), rank as u8));
        Ok((switch, steps.collect::<Result<_, _>>()?))
    }

    pub fn node(&self, number: u16) -> &Node {
        self.nodes.get(number)
    }

    /// Whether the switch waits for somebody, and names this rank alone wherever it does.
    pub fn is_waiting_for(&self, switch: u16, rank: u16) -> bool {
        let snapshot = self.switches.get(switch).inspect(node::job(&self.scope).job_id);
        let mut waiting = snapshot.iter().flat_map(|snapshot| &snapshot.lanes).flat_map(|lane| &lane.oldest).peekable();
        waiting.peek().is_some() && waiting.all(|slot| slot.missing_ranks == [rank])
    }

    pub fn packet(&self, number: u16) -> &Packet {
        self.packets.get(number)
    }

    /// A packet arrives at the switch.
    pub fn at_switch(&mut self, switch: u16, packet: u16) -> Result<Rc<SwitchStep>, String> {
        if let Some(step) = self.switch_steps.get(&pair(switch, packet)) {
            return Ok(step.clone());
        }
        let mut program = self.switches.get(switch).clone();
        let arrived = self.packets.get(packet).clone();
        let from = arrived.rank() as u8;
        let context =
            Context { now: Time::ZERO, wire_format: self.scope.wire_format, source_rank: Some(u16::from(from)) };
        let mut output = [0; 256];
        let verdict = program.process(&context, &arrived.bytes, &mut output);
        let (counted, receivers, bytes) = match verdict {
            Verdict::Drop(DropReason::AwaitingOthers) => (true, 0..0, 0),
            Verdict::Drop(DropReason::DuplicateContribution | DropReason::StaleChunk) => (false, 0..0, 0),
            Verdict::Reply { bytes } | Verdict::Missing { bytes } => (false, from..from + 1, bytes),
            Verdict::Multicast { bytes, .. } => (true, 0..self.scope.workers as u8, bytes),
            other => return Err(format!("the switch decided {other:?}")),
        };
        let latest = arrived.latest.unwrap_or(false);
        let sent = receivers.map(|rank| {
            self.know(Packet::new(Place::Worker { rank }, output[..bytes].to_vec(), latest, self.scope.wire_format))
        });
        let sent = sent.collect::<Result<_, _>>()?;
        let switch_after = self.switches.number(fingerprint(&program), || program)?;
        let step = Rc::new(SwitchStep { switch: switch_after, counted, sent });
        self.switch_steps.insert(pair(switch, packet), step.clone());
        Ok(step)
    }

    /// A packet arrives at a worker.
    pub fn at_worker(&mut self, node: u16, packet: u16) -> Result<Rc<NodeStep>, String> {
        if let Some(step) = self.node_steps.get(&pair(node, packet)) {
            return Ok(step.clone());
        }
        let (mut worker, arrived) = (self.nodes.get(node).clone(), self.packets.get(packet));
        let (chunk, rank) = (arrived.chunk, arrived.rank() as u8);
        let bytes = match arrived.latest {
            Some(latest) => {
                let attempt = worker.attempt_last(chunk);
                arrived.with_attempt(if latest { attempt } else { attempt.wrapping_sub(1) })
            }
            None => arrived.bytes.clone(),
        };
        worker.handle_packet(chunk, &bytes);
        let step = Rc::new(self.settle(worker, rank)?);
        self.node_steps.insert(pair(node, packet), step.clone());
        Ok(step)
    }

    /// A worker's timer runs out.
    pub fn timeout(&mut self, node: u16, rank: u8) -> Result<Rc<NodeStep>, String> {
        if let Some(step) = self.timeouts.get(&node) {
            return Ok(step.clone());
        }
        let mut worker = self.nodes.get(node).clone();
        worker.handle_timeout();
        let step = Rc::new(self.settle(worker, rank)?);
        self.timeouts.insert(node, step.clone());
        Ok(step)
    }

    /// What a packet in the network becomes when its worker sends about the
    /// same chunk again.
    pub fn old_twin(&mut self, packet: u16) -> Result<u16, String> {
        if let Some(&twin) = self.old_twins.get(&packet) {
            return Ok(twin);
        }
        let known = self.packets.get(packet);
        let twin = Packet { latest: known.latest.map(|_| false), ..known.clone() };
        let twin = self.know(twin)?;
        self.old_twins.insert(packet, twin);
        Ok(twin)
    }

    fn settle(&mut self, mut worker: Node, rank: u8) -> Result<NodeStep, String> {
        let wire_format = self.scope.wire_format;
        let packets = worker.drain(|bytes| chunk_of(bytes, wire_format))?;
        let packets =
            packets.into_iter().map(|bytes| Packet::new(Place::Switch { from: rank }, bytes, true, wire_format));
        let sent = packets.map(|packet| self.know(packet)).collect::<Result<_, _>>()?;
        Ok(NodeStep { node: self.nodes.number(worker.fingerprint(), || worker)?, sent })
    }

    fn know(&mut self, packet: Packet) -> Result<u16, String> {
        self.packets.number(packet.fingerprint(self.scope.wire_format), || packet)
    }
}

fn pair(part: u16, packet: u16) -> u32 {
    u32::from(part) << 16 | u32::from(packet)
}

fn fingerprint(switch: &Switch) -> u128 {
    let mut hasher = Wide::new();
    switch.hash_state(&mut hasher);
    hasher.wide()
}
