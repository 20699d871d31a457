//! Every interleaving of a small tree of switches: each order of deliveries, with a budget of losses, duplicates and early
//! timeouts, as in [`crate::exhaustive`], whose workers and account of time this shares.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use fanin_protocol::switchml::WireFormat;
use fanin_wire::Kind;

use super::{Layout, Node, Program};
use crate::cluster::describe;
use crate::exhaustive::graph::Graph;
use crate::exhaustive::hash::{Ready, Wide};
use crate::exhaustive::{Counterexample, Explored, Scope as FlatScope, node, packet};

/// How small the tree is and how much may go wrong.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Workers of each rack, by group; a group of several racks has a switch of its own.
    pub groups: Vec<Vec<u16>>,
    /// Slots of the one lane.
    pub slots: u32,
    /// Blocks that each worker sums.
    pub blocks: u32,
    /// Whether blocks are scaled, so that the first use of each slot is an announce.
    pub scaled: bool,
    /// Packets that may be lost.
    pub losses: u8,
    /// Packets that may be doubled.
    pub duplicates: u8,
    /// Timeouts while packets are under way, beyond one for each loss.
    pub early_timeouts: u8,
}

impl Scope {
    fn flat(&self) -> FlatScope {
        FlatScope {
            workers: self.groups.iter().flatten().map(|rack| (*rack).max(1)).sum(),
            slots: self.slots,
            blocks: self.blocks,
            scaled: self.scaled,
            losses: self.losses,
            duplicates: self.duplicates,
            early_timeouts: self.early_timeouts,
            death: false,
            in_order: false,
            wire_format: WireFormat::Fanin,
        }
    }
}

/// Explores all states of a scope.
///
/// # Errors
/// The first state found in which a rule does not hold, or from which no fault-free way leads to completion.
pub fn explore(scope: &Scope) -> Result<Explored, Counterexample> {
    let layout = Rc::new(Layout::new(node::job(&scope.flat()), &scope.groups));
    let mut search = Search { scope, layout, ids: HashMap::default(), graph: Graph::new(), frontier: VecDeque::new() };
    let first = search.first().map_err(|what| Counterexample { what, path: Vec::new() })?;
    search.visit(first, u32::MAX, Action::Start);
    let mut explored = Explored::default();
    while let Some((id, state)) = search.frontier.pop_front() {
        explored.complete += u64::from(state.is_complete());
        explored.steps += search.expand(id, &state)?;
    }
    explored.states = search.ids.len() as u64;
    match search.graph.find_stuck() {
        None => Ok(explored),
        Some(id) => Err(search.counterexample("no way leads to completion from here".into(), id, None)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start,
    Deliver(u8),
    Lose(u8),
    Duplicate(u8),
    TimeoutEarly(u8),
    Timeout(u8),
}

struct Search<'a> {
    scope: &'a Scope,
    layout: Rc<Layout>,
    ids: HashMap<u128, u32, Ready>,
    graph: Graph<Action>,
    /// Breadth first, so that a counterexample is a shortest one.
    frontier: VecDeque<(u32, State)>,
}

impl Search<'_> {
    fn first(&self) -> Result<State, String> {
        State::new(&self.layout, self.scope)
    }

    fn visit(&mut self, state: State, parent: u32, action: Action) -> u32 {
        let next = self.ids.len() as u32;
        let id = *self.ids.entry(state.fingerprint()).or_insert(next);
        if id == next {
            self.graph.add(parent, action, state.is_complete());
            self.frontier.push_back((id, state));
        }
        id
    }

    fn expand(&mut self, id: u32, state: &State) -> Result<u64, Counterexample> {
        let actions = state.actions();
        for &action in &actions {
            let mut after = state.clone();
            after.apply(action).map_err(|what| self.counterexample(what, id, Some(action)))?;
            let after = self.visit(after, id, action);
            if matches!(action, Action::Deliver(_) | Action::Timeout(_)) {
                self.graph.connect(id, after);
            }
        }
        Ok(actions.len() as u64)
    }

    fn counterexample(&self, what: String, id: u32, last: Option<Action>) -> Counterexample {
        let mut path = Vec::new();
        if let Ok(mut state) = self.first() {
            for action in self.graph.path(id).into_iter().chain(last) {
                path.push(state.describe(action));
                if state.apply(action).is_err() {
                    break;
                }
            }
        }
        Counterexample { what, path }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    from: Node,
    to: Node,
    bytes: Vec<u8>,
}

/// A part and the hash of all that decides what it does; shared between states until it changes.
struct Part<T> {
    value: Rc<T>,
    print: u128,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Part { value: self.value.clone(), print: self.print }
    }
}

#[derive(Clone)]
struct State {
    layout: Rc<Layout>,
    programs: Vec<Part<Program>>,
    workers: Vec<Part<node::Node>>,
    /// Sorted.
    packets: Vec<Packet>,
    /// Losses, duplicates, early timeouts.
    budget: [u8; 3],
}

fn program(value: Program) -> Part<Program> {
    let mut hasher = Wide::new();
    value.hash_state(&mut hasher);
    Part { value: Rc::new(value), print: hasher.wide() }
}

fn worker(value: node::Node) -> Part<node::Node> {
    let print = value.fingerprint();
    Part { value: Rc::new(value), print }
}

impl State {
    fn new(layout: &Rc<Layout>, scope: &Scope) -> Result<State, String> {
        let flat = scope.flat();
        let mut state = State {
            layout: layout.clone(),
            programs: layout.programs()?.into_iter().map(program).collect(),
            workers: (0..flat.workers)
                .map(|rank| worker(node::Node::numbered(&flat, rank, layout.number(rank))))
                .collect(),
            packets: Vec::new(),
            budget: [scope.losses, scope.duplicates, scope.early_timeouts],
        };
        (0..state.workers.len()).try_for_each(|rank| state.change(rank, |_| ()))?;
        Ok(state)
    }

    fn fingerprint(&self) -> u128 {
        let mut hasher = Wide::new();
        self.programs.iter().for_each(|part| hasher.write_u128(part.print));
        self.workers.iter().for_each(|part| hasher.write_u128(part.print));
        for packet in &self.packets {
            (packet.from, packet.to, self.is_latest(packet)).hash(&mut hasher);
            // All but the number of the attempt and the checksum over it.
            (&packet.bytes[..29], &packet.bytes[30..36], &packet.bytes[40..]).hash(&mut hasher);
        }
        self.budget.hash(&mut hasher);
        hasher.wide()
    }

    /// Attempt numbers grow for ever; all that they decide is whether a worker takes a Missing, or one that answers this
    /// packet, for the answer to its latest Query.
    fn is_latest(&self, packet: &Packet) -> Option<bool> {
        let asks = [Kind::Query as u8, Kind::Missing as u8].contains(&packet.bytes[3]);
        let ((Node::Worker(rank), _) | (_, Node::Worker(rank))) = (packet.from, packet.to) else { return None };
        let latest = self.workers[usize::from(rank)].value.attempt_last(chunk_of(&packet.bytes));
        asks.then_some(packet.bytes[29] == latest)
    }

    fn is_complete(&self) -> bool {
        self.workers.iter().all(|worker| worker.value.is_done())
    }

    fn actions(&self) -> Vec<Action> {
        let [losses, duplicates, early_timeouts] = self.budget;
        let mut actions = Vec::new();
        for index in
            (0..self.packets.len()).filter(|&index| index == 0 || self.packets[index - 1] != self.packets[index])
        {
            let packet = index as u8;
            actions.push(Action::Deliver(packet));
            actions.extend((losses > 0).then_some(Action::Lose(packet)));
            actions.extend((duplicates > 0).then_some(Action::Duplicate(packet)));
        }
        for (rank, _) in self.workers.iter().enumerate().filter(|(_, worker)| worker.value.waits()) {
            match self.packets.is_empty() {
                true => actions.push(Action::Timeout(rank as u8)),
                false if early_timeouts > 0 => actions.push(Action::TimeoutEarly(rank as u8)),
                false => {}
            }
        }
        actions
    }

    fn apply(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Start => Ok(()),
            Action::Deliver(index) => {
                let packet = self.packets.remove(usize::from(index));
                self.deliver(&packet)
            }
            Action::Lose(index) => {
                self.budget[0] -= 1;
                // The timer of a lost packet may run out before others arrive.
                self.budget[2] += 1;
                self.packets.remove(usize::from(index));
                Ok(())
            }
            Action::Duplicate(index) => {
                self.budget[1] -= 1;
                self.packets.insert(usize::from(index), self.packets[usize::from(index)].clone());
                Ok(())
            }
            Action::TimeoutEarly(rank) => {
                self.budget[2] -= 1;
                self.change(rank.into(), node::Node::handle_timeout)
            }
            Action::Timeout(rank) => self.change(rank.into(), node::Node::handle_timeout),
        }
    }

    fn deliver(&mut self, packet: &Packet) -> Result<(), String> {
        match packet.to {
            Node::Worker(rank) => {
                self.change(rank.into(), |worker| worker.handle_packet(chunk_of(&packet.bytes), &packet.bytes))
            }
            Node::Switch(number) => {
                let part = &mut self.programs[usize::from(number)];
                let mut value = (*part.value).clone();
                let sent = self.layout.process(number, &mut value, packet.from, &packet.bytes)?;
                *part = program(value);
                sent.into_iter().for_each(|(to, bytes)| self.send(packet.to, to, bytes));
                Ok(())
            }
        }
    }

    /// Changes a worker, then takes all that it sends and checks what it says.
    fn change(&mut self, rank: usize, change: impl FnOnce(&mut node::Node)) -> Result<(), String> {
        let mut value = (*self.workers[rank].value).clone();
        change(&mut value);
        let sent = value.drain(chunk_of)?;
        self.workers[rank] = worker(value);
        let home = self.layout.home(rank as u16);
        sent.into_iter().for_each(|bytes| self.send(Node::Worker(rank as u16), home, bytes));
        Ok(())
    }

    fn send(&mut self, from: Node, to: Node, bytes: Vec<u8>) {
        let packet = Packet { from, to, bytes };
        let place = self.packets.partition_point(|other| *other < packet);
        self.packets.insert(place, packet);
    }

    fn describe(&self, action: Action) -> String {
        let packet = |index: u8| {
            let Packet { from, to, bytes } = &self.packets[usize::from(index)];
            format!("{from:?} to {to:?}: {}", describe(bytes))
        };
        match action {
            Action::Deliver(index) => format!("deliver {}", packet(index)),
            Action::Lose(index) => format!("lose {}", packet(index)),
            Action::Duplicate(index) => format!("duplicate {}", packet(index)),
            other => format!("{other:?}"),
        }
    }
}

fn chunk_of(bytes: &[u8]) -> u32 {
    packet::chunk_of(bytes, WireFormat::Fanin)
}
