//! One state of the small cluster and what can happen in it.

use fanin_protocol::switchml::WireFormat;

use super::model::{Model, NodeStep};
use super::node::Node;
use super::packet::Place;
use super::{CHUNKS_MAX, WORKERS_MAX};
use crate::cluster::describe;

const PACKETS_MAX: usize = 24;
/// In place of a rank.
const NOBODY: u8 = u8::MAX;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The state before all steps.
    Start,
    /// A packet arrives.
    Deliver(u8),
    /// A packet is lost.
    Lose(u8),
    /// A packet is doubled.
    Duplicate(u8),
    /// A worker's timer runs out while packets are under way.
    TimeoutEarly(u8),
    /// A worker's timer runs out when nothing else can happen.
    Timeout(u8),
    /// A worker ends. What it has sent is still under way.
    Die(u8),
}

impl Action {
    /// Whether it takes from a budget.
    pub fn is_fault(self) -> bool {
        matches!(self, Action::Lose(_) | Action::Duplicate(_) | Action::TimeoutEarly(_) | Action::Die(_))
    }
}

/// All of the cluster, in the model's numbers. Two states are equal exactly
/// when everything that can follow is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    switch: u16,
    nodes: [u16; WORKERS_MAX],
    /// Contributions counted, as bits: by chunk, then by worker.
    counted: u32,
    losses_left: u8,
    duplicates_left: u8,
    early_timeouts_left: u8,
    /// The worker that has ended.
    dead: u8,
    packet_count: u8,
    /// Sorted; where links keep order, by link and then in sending order.
    packets: [u16; PACKETS_MAX],
}

impl State {
    /// All workers have sent their first window.
    pub fn new(model: &mut Model) -> Result<State, String> {
        let scope = model.scope;
        let (switch, steps) = model.start()?;
        let mut state = State {
            switch,
            nodes: [0; WORKERS_MAX],
            counted: 0,
            losses_left: scope.losses,
            duplicates_left: scope.duplicates,
            early_timeouts_left: scope.early_timeouts,
            dead: NOBODY,
            packet_count: 0,
            packets: [0; PACKETS_MAX],
        };
        for (rank, step) in steps.iter().enumerate() {
            state.follow(model, rank, step)?;
        }
        Ok(state)
    }

    /// Whether every worker has all its sums; or has them or waits, and the switch says for whom: only a worker that has ended.
    pub fn is_complete(&self, model: &Model) -> bool {
        let mut waiting = self.workers(model).map(|rank| model.node(self.nodes[rank])).filter(|node| !node.is_done());
        match waiting.next() {
            None => true,
            Some(_) if self.dead == NOBODY => false,
            Some(first) => {
                first.waits() && waiting.all(Node::waits) && model.is_waiting_for(self.switch, self.dead.into())
            }
        }
    }

    /// Those that have not ended.
    fn workers(&self, model: &Model) -> impl Iterator<Item = usize> + use<> {
        let dead = usize::from(self.dead);
        (0..usize::from(model.scope.workers)).filter(move |&rank| rank != dead)
    }

    fn network(&self) -> &[u16] {
        &self.packets[..usize::from(self.packet_count)]
    }

    /// Everything that can happen next.
    pub fn actions(&self, model: &Model) -> Vec<Action> {
        let mut actions = Vec::new();
        for index in (0..self.network().len()).filter(|&index| self.can_move(model, index)) {
            let packet = index as u8;
            actions.push(Action::Deliver(packet));
            actions.extend((self.losses_left > 0).then_some(Action::Lose(packet)));
            actions.extend((self.duplicates_left > 0).then_some(Action::Duplicate(packet)));
        }
        for rank in self.workers(model).filter(|&rank| model.node(self.nodes[rank]).waits()) {
            match self.network().is_empty() {
                true => actions.push(Action::Timeout(rank as u8)),
                false if self.early_timeouts_left > 0 => actions.push(Action::TimeoutEarly(rank as u8)),
                false => {}
            }
        }
        if model.scope.death && self.dead == NOBODY {
            actions.extend(self.workers(model).map(|rank| Action::Die(rank as u8)));
        }
        actions
    }

    /// Equal packets are one choice; links in order have one next packet.
    fn can_move(&self, model: &Model, index: usize) -> bool {
        let (before, packet) = (&self.network()[..index], self.network()[index]);
        if model.scope.in_order {
            return before.iter().all(|&other| model.packet(other).to != model.packet(packet).to);
        }
        before.last() != Some(&packet)
    }

    /// Takes one step.
    pub fn apply(&mut self, model: &mut Model, action: Action) -> Result<(), String> {
        match action {
            Action::Start => {}
            Action::Deliver(index) => {
                let packet = self.remove(usize::from(index));
                self.deliver(model, packet)?;
            }
            Action::Lose(index) => {
                self.losses_left -= 1;
                // The timer of a lost packet may run out before others arrive.
                self.early_timeouts_left += 1;
                self.remove(usize::from(index));
            }
            Action::Duplicate(index) => {
                self.duplicates_left -= 1;
                self.insert(usize::from(index), self.packets[usize::from(index)])?;
            }
            Action::TimeoutEarly(rank) => {
                self.early_timeouts_left -= 1;
                self.timeout(model, usize::from(rank))?;
            }
            Action::Timeout(rank) => self.timeout(model, usize::from(rank))?,
            Action::Die(rank) => self.die(model, rank),
        }
        self.drop_the_past(model)
    }

    fn die(&mut self, model: &Model, rank: u8) {
        self.dead = rank;
        for index in (0..self.network().len()).rev() {
            if self.is_for_nobody(model, self.packets[index]) {
                self.remove(index);
            }
        }
    }

    fn is_for_nobody(&self, model: &Model, packet: u16) -> bool {
        model.packet(packet).to == Place::Worker { rank: self.dead }
    }

    fn timeout(&mut self, model: &mut Model, rank: usize) -> Result<(), String> {
        let step = model.timeout(self.nodes[rank], rank as u8)?;
        self.follow(model, rank, &step)
    }

    fn deliver(&mut self, model: &mut Model, packet: u16) -> Result<(), String> {
        let (to, rank) = (model.packet(packet).to, model.packet(packet).rank());
        if let Place::Worker { .. } = to {
            let step = model.at_worker(self.nodes[rank], packet)?;
            return self.follow(model, rank, &step);
        }
        let step = model.at_switch(self.switch, packet)?;
        self.switch = step.switch;
        if step.counted {
            self.count(model, packet)?;
        }
        for &answer in &step.sent {
            if !self.is_for_nobody(model, answer) {
                self.send(model, answer)?;
            }
        }
        Ok(())
    }

    /// No contribution counts twice.
    fn count(&mut self, model: &Model, packet: u16) -> Result<(), String> {
        let packet = model.packet(packet);
        let bit = 1 << (packet.chunk as usize * usize::from(model.scope.workers) + packet.rank());
        if self.counted & bit != 0 {
            return Err(format!("rank {}'s contribution to chunk {} counted twice", packet.rank(), packet.chunk));
        }
        self.counted |= bit;
        Ok(())
    }

    /// A worker is in a new state and sends.
    fn follow(&mut self, model: &mut Model, rank: usize, step: &NodeStep) -> Result<(), String> {
        self.nodes[rank] = step.node;
        for &packet in &step.sent {
            let chunk = model.packet(packet).chunk;
            let mut changed = false;
            for index in 0..self.network().len() {
                let earlier = model.packet(self.packets[index]);
                if earlier.rank() == rank && earlier.chunk == chunk && earlier.latest == Some(true) {
                    self.packets[index] = model.old_twin(self.packets[index])?;
                    changed = true;
                }
            }
            if changed {
                self.sort(model);
            }
        }
        step.sent.iter().try_for_each(|&packet| self.send(model, packet))
    }

    fn sort(&mut self, model: &Model) {
        if !model.scope.in_order {
            self.packets[..usize::from(self.packet_count)].sort_unstable();
        }
    }

    fn send(&mut self, model: &Model, packet: u16) -> Result<(), String> {
        let place = match model.scope.in_order {
            // Each direction of each link in its order, one after another.
            true => self.network().partition_point(|&other| model.packet(other).to <= model.packet(packet).to),
            false => self.network().partition_point(|&other| other < packet),
        };
        self.insert(place, packet)
    }

    fn insert(&mut self, place: usize, packet: u16) -> Result<(), String> {
        let count = usize::from(self.packet_count);
        if count == PACKETS_MAX {
            return Err("the scope has too many packets under way".into());
        }
        self.packets.copy_within(place..count, place + 1);
        self.packets[place] = packet;
        self.packet_count += 1;
        Ok(())
    }

    fn remove(&mut self, place: usize) -> u16 {
        let packet = self.packets[place];
        self.packets.copy_within(place + 1..usize::from(self.packet_count), place);
        self.packet_count -= 1;
        self.packets[usize::from(self.packet_count)] = 0;
        packet
    }

    /// Packets about a chunk whose sum their worker already has change
    /// nothing, now or later: nobody needs to try all orders of them. That is
    /// what the chunk index is for, so it is checked here; at a switch that
    /// speaks p4app's layout it does not hold.
    fn drop_the_past(&mut self, model: &mut Model) -> Result<(), String> {
        let mut index = 0;
        while index < self.network().len() {
            if !self.is_past(model, self.packets[index]) {
                index += 1;
                continue;
            }
            let packet = self.remove(index);
            self.check_no_effect(model, packet)?;
        }
        Ok(())
    }

    fn check_no_effect(&self, model: &mut Model, packet: u16) -> Result<(), String> {
        let rank = model.packet(packet).rank();
        let changed = match model.packet(packet).to {
            Place::Worker { .. } => {
                let step = model.at_worker(self.nodes[rank], packet)?;
                step.node != self.nodes[rank] || !step.sent.is_empty()
            }
            Place::Switch { .. } => {
                let step = model.at_switch(self.switch, packet)?;
                // The switch may answer once more; that answer is past, too.
                let answered = step.sent.iter().any(|&answer| !self.is_past(model, answer));
                step.switch != self.switch || step.counted || answered
            }
        };
        match changed {
            true => Err(format!("a packet of the past had an effect: {}", describe(&model.packet(packet).bytes))),
            false => Ok(()),
        }
    }

    /// Whether the worker that the packet is from or for has its chunk's sum,
    /// or has asked again since.
    fn is_past(&self, model: &Model, packet: u16) -> bool {
        let packet = model.packet(packet);
        debug_assert!((packet.chunk as usize) < CHUNKS_MAX);
        let answered = model.node(self.nodes[packet.rank()]).answered & 1 << packet.chunk != 0;
        let to_worker = matches!(packet.to, Place::Worker { .. });
        if model.scope.wire_format == WireFormat::P4app && !to_worker {
            return false;
        }
        answered || (to_worker && packet.latest == Some(false))
    }

    /// A step in words.
    pub fn describe(&self, model: &Model, action: Action) -> String {
        let packet = |index: u8| {
            let packet = model.packet(self.packets[usize::from(index)]);
            format!("{:?} {}", packet.to, describe(&packet.bytes))
        };
        match action {
            Action::Start => "start".into(),
            Action::Deliver(index) => format!("deliver to {}", packet(index)),
            Action::Lose(index) => format!("lose, to {}", packet(index)),
            Action::Duplicate(index) => format!("duplicate, to {}", packet(index)),
            Action::TimeoutEarly(rank) => format!("early timeout of rank {rank}"),
            Action::Timeout(rank) => format!("timeout of rank {rank}"),
            Action::Die(rank) => format!("rank {rank} ends"),
        }
    }
}
