//! Every interleaving of a small ATP cluster: each order of deliveries, with a budget of losses, duplicates and early
//! timeouts, as in [`crate::exhaustive`], whose account of time this shares.
//!
//! The parts are shared between states until they change, and states are told apart by 128-bit hashes.

mod scope;

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use fanin_numeric::{BlockExponent, block_fixed, static_fixed};
use fanin_protocol::atp::{
    CongestionControl, Context, Event, Indexing, JobConfig, Scale, Server, ServerConfig, Switch, SwitchConfig, Tensors,
    Tree, Verdict, Worker, WorkerConfig,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat as FaninFormat, Operator};

pub use scope::Scope;

use crate::exhaustive::graph::Graph;
use crate::exhaustive::hash::{Ready, Wide};
use crate::exhaustive::{Counterexample, Explored};

const TOKEN: u32 = 7;
const DATAGRAM_BYTES_MAX: usize = ATP_HEADER_BYTES + 4;

/// Explores all states of a scope.
///
/// # Errors
/// The first state found in which a rule does not hold, or from which no fault-free way leads to completion.
pub fn explore(scope: &Scope) -> Result<Explored, Counterexample> {
    let mut search = Search { scope, ids: HashMap::default(), graph: Graph::new(), frontier: VecDeque::new() };
    let first = State::new(scope).map_err(|what| Counterexample { what, path: Vec::new() })?;
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
    Restart,
}

impl Action {
    fn is_fault(self) -> bool {
        !matches!(self, Action::Start | Action::Deliver(_) | Action::Timeout(_))
    }
}

struct Search<'a> {
    scope: &'a Scope,
    ids: HashMap<u128, u32, Ready>,
    graph: Graph<Action>,
    /// Breadth first, so that a counterexample is a shortest one.
    frontier: VecDeque<(u32, State)>,
}

impl Search<'_> {
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
            after.apply(self.scope, action).map_err(|what| self.counterexample(what, id, Some(action)))?;
            let after = self.visit(after, id, action);
            if !action.is_fault() {
                self.graph.connect(id, after);
            }
        }
        Ok(actions.len() as u64)
    }

    fn counterexample(&self, what: String, id: u32, last: Option<Action>) -> Counterexample {
        let mut path = Vec::new();
        if let Ok(mut state) = State::new(self.scope) {
            for action in self.graph.path(id).into_iter().chain(last) {
                path.push(state.describe(action));
                if state.apply(self.scope, action).is_err() {
                    break;
                }
            }
        }
        Counterexample { what, path }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Node {
    Worker(u8),
    Switch(u8),
    Server(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    from: Node,
    to: Node,
    bytes: Vec<u8>,
}

/// A part of the cluster and the hash of all that decides what it does.
struct Part<T> {
    value: Rc<T>,
    print: u128,
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Part { value: self.value.clone(), print: self.print }
    }
}

impl<T: Clone> Part<T> {
    fn new(value: T, hash: impl Fn(&T, &mut Wide)) -> Part<T> {
        let mut hasher = Wide::new();
        hash(&value, &mut hasher);
        Part { value: Rc::new(value), print: hasher.wide() }
    }

    fn change<R>(&mut self, hash: impl Fn(&T, &mut Wide), change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = (*self.value).clone();
        let result = change(&mut value);
        *self = Part::new(value, hash);
        result
    }
}

#[derive(Clone)]
struct Lane {
    worker: Worker,
    ledger: Ledger,
    switch: u8,
}

/// Words that no sum of some of them equals a sum of others.
#[derive(Clone, Hash)]
struct Ledger {
    job: u8,
    rank: u16,
    workers: u16,
    received: u32,
    wrong: bool,
}

impl Ledger {
    fn word(&self, rank: u16, block: u32) -> u32 {
        (block + 1 + 3 * u32::from(self.job)) << (8 * rank)
    }

    /// Those of all ranks but the first are out of 32 bits at 10^8.
    fn float(&self, rank: u16, block: u32) -> f32 {
        self.word(rank, block) as f32 + 0.5
    }
}

impl Tensors for Ledger {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        block_fixed::exponent_f32(&[self.float(self.rank, id.block)])
    }

    fn write_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &mut [u8]) {
        let value = self.float(self.rank, id.block);
        match format {
            ElementFormat::RawFloat32 => payload.copy_from_slice(&raw(self.rank, id.block).to_le_bytes()),
            ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => unreachable!("scopes have raw binary32 only"),
            ElementFormat::Int32 => payload.copy_from_slice(&self.word(self.rank, id.block).to_be_bytes()),
            ElementFormat::Float32 => payload.copy_from_slice(&value.to_be_bytes()),
            ElementFormat::Fixed32 if exponent == BlockExponent::NOT_NEEDED => {
                static_fixed::quantize_f32(&[value], payload);
            }
            ElementFormat::Fixed32 => {
                block_fixed::quantize_f32(&[value], block_fixed::scale(exponent, self.workers), payload);
            }
        }
    }

    fn read_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &[u8]) {
        let sum: u32 = (0..self.workers).map(|rank| self.word(rank, id.block)).sum();
        let floats: f32 = (0..self.workers).map(|rank| self.float(rank, id.block)).sum();
        // Exact at every power of two that these numbers ask for.
        let is_right = match format {
            ElementFormat::RawFloat32 => {
                let exact: f64 = (0..self.workers).map(|rank| f64::from(raw(rank, id.block))).sum();
                payload == (exact as f32).to_le_bytes()
            }
            ElementFormat::RawFloat16 | ElementFormat::RawBfloat16 => false,
            ElementFormat::Int32 => payload == sum.to_be_bytes(),
            ElementFormat::Float32 => payload == floats.to_be_bytes(),
            ElementFormat::Fixed32 => {
                let units = block_fixed::scale(exponent, self.workers) * floats;
                exponent != BlockExponent::NOT_NEEDED && payload == (units as i32).to_be_bytes()
            }
        };
        self.wrong |= !is_right || self.received & 1 << id.block != 0;
        self.received |= 1 << id.block;
    }
}

/// A part of whose sum loses what the others add, if it is rounded.
fn raw(rank: u16, block: u32) -> f32 {
    if rank == 0 { 16_777_216.0 } else { (block + 1) as f32 }
}

#[derive(Clone)]
struct State {
    switches: Vec<Part<Switch>>,
    /// By switch: its parent.
    parents: Rc<Vec<Option<u8>>>,
    servers: Vec<Part<Server>>,
    lanes: Vec<Part<Lane>>,
    /// Sorted.
    packets: Vec<Packet>,
    budget: [u8; 4],
}

fn hash_switch(switch: &Switch, hasher: &mut Wide) {
    switch.hash_state(hasher);
}

fn hash_server(server: &Server, hasher: &mut Wide) {
    server.hash_state(hasher);
}

fn hash_lane(lane: &Lane, hasher: &mut Wide) {
    lane.worker.hash_state(hasher);
    lane.ledger.hash(hasher);
}

impl State {
    fn new(scope: &Scope) -> Result<State, String> {
        let (paths, parents) = switches(&scope.tree);
        let mut state = State {
            switches: paths.iter().map(|path| Part::new(program(scope, path.len()), hash_switch)).collect(),
            parents: Rc::new(parents),
            servers: (0..scope.jobs).map(|job| Part::new(server(scope, job), hash_server)).collect(),
            lanes: Vec::new(),
            packets: Vec::new(),
            budget: [scope.losses, scope.duplicates, scope.early_timeouts, scope.restarts],
        };
        for job in 0..scope.jobs {
            for rank in 0..scope.tree.worker_count() {
                let path = path_of(&scope.tree, rank);
                let switch = paths.iter().position(|known| *known == path).unwrap_or(0) as u8;
                state.lanes.push(Part::new(lane(scope, job, rank, switch), hash_lane));
                state.run(state.lanes.len() - 1, |_| ())?;
            }
        }
        Ok(state)
    }

    fn fingerprint(&self) -> u128 {
        let mut hasher = Wide::new();
        self.switches.iter().for_each(|part| hasher.write_u128(part.print));
        self.servers.iter().for_each(|part| hasher.write_u128(part.print));
        self.lanes.iter().for_each(|part| hasher.write_u128(part.print));
        for packet in &self.packets {
            // All but the number of the attempt and the checksum over it.
            (packet.from, packet.to, &packet.bytes[..53], &packet.bytes[54..60]).hash(&mut hasher);
            packet.bytes[ATP_HEADER_BYTES..].hash(&mut hasher);
        }
        self.budget.hash(&mut hasher);
        hasher.wide()
    }

    fn is_complete(&self) -> bool {
        self.lanes.iter().all(|lane| lane.value.worker.is_idle())
    }

    fn actions(&self) -> Vec<Action> {
        let [losses, duplicates, early_timeouts, restarts] = self.budget;
        let mut actions = Vec::new();
        for index in
            (0..self.packets.len()).filter(|&index| index == 0 || self.packets[index - 1] != self.packets[index])
        {
            let packet = index as u8;
            actions.push(Action::Deliver(packet));
            actions.extend((losses > 0).then_some(Action::Lose(packet)));
            actions.extend((duplicates > 0).then_some(Action::Duplicate(packet)));
        }
        for (number, _) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.value.worker.poll_timeout().is_some())
        {
            match self.packets.is_empty() {
                true => actions.push(Action::Timeout(number as u8)),
                false if early_timeouts > 0 => actions.push(Action::TimeoutEarly(number as u8)),
                false => {}
            }
        }
        actions.extend((restarts > 0).then_some(Action::Restart));
        actions
    }

    fn apply(&mut self, scope: &Scope, action: Action) -> Result<(), String> {
        match action {
            Action::Start => Ok(()),
            Action::Deliver(index) => {
                let packet = self.packets.remove(usize::from(index));
                self.deliver(packet)
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
            Action::TimeoutEarly(lane) => {
                self.budget[2] -= 1;
                self.timeout(lane)
            }
            Action::Timeout(lane) => self.timeout(lane),
            Action::Restart => {
                self.budget[3] -= 1;
                for (switch, parent) in self.switches.iter_mut().zip(self.parents.iter()) {
                    *switch = Part::new(program(scope, usize::from(parent.is_some())), hash_switch);
                }
                Ok(())
            }
        }
    }

    fn timeout(&mut self, lane: u8) -> Result<(), String> {
        self.run(usize::from(lane), |lane| {
            if let Some(due) = lane.worker.poll_timeout() {
                lane.worker.handle_timeout(due);
            }
        })
    }

    fn deliver(&mut self, packet: Packet) -> Result<(), String> {
        match packet.to {
            Node::Switch(switch) => self.at_switch(usize::from(switch), &packet),
            Node::Server(server) => {
                let part = &mut self.servers[usize::from(server)];
                let sent = part.change(hash_server, |server| {
                    server.handle_packet(Time::ZERO, &packet.bytes);
                    let mut buffer = [0; DATAGRAM_BYTES_MAX];
                    std::iter::from_fn(|| server.poll_transmit(&mut buffer).map(|sent| buffer[..sent.bytes].to_vec()))
                        .collect::<Vec<_>>()
                });
                sent.into_iter().for_each(|bytes| self.send(packet.to, Node::Switch(0), bytes));
                Ok(())
            }
            Node::Worker(lane) => self.run(usize::from(lane), |lane| {
                lane.worker.handle_packet(Time::ZERO, &packet.bytes, &mut lane.ledger);
            }),
        }
    }

    fn at_switch(&mut self, number: usize, packet: &Packet) -> Result<(), String> {
        let here = Node::Switch(number as u8);
        let mut output = [0; DATAGRAM_BYTES_MAX];
        let context = Context { now: Time::ZERO, egress_queue_bytes: 0 };
        let verdict =
            self.switches[number].change(hash_switch, |switch| switch.process(&context, &packet.bytes, &mut output));
        match verdict {
            Verdict::Drop(_) => {}
            Verdict::Refuse { reason, .. } => return Err(format!("switch {number} refuses: {reason}")),
            Verdict::Up { bytes } => {
                let server = Node::Server(output[7]);
                let to = self.parents[number].map_or(server, Node::Switch);
                self.send(here, to, output[..bytes].to_vec());
            }
            Verdict::Down { job_number, bytes, children, .. } => {
                for (child, to) in self.children(number, job_number) {
                    if children >> child & 1 == 1 {
                        self.send(here, to, output[..bytes].to_vec());
                    }
                }
            }
        }
        Ok(())
    }

    /// Children of a switch with their numbers, those of one job.
    fn children(&self, number: usize, job: u8) -> Vec<(u8, Node)> {
        let mut children = Vec::new();
        for (lane, part) in self.lanes.iter().enumerate().filter(|(_, part)| part.value.ledger.job == job) {
            if usize::from(part.value.switch) == number {
                children.push((part.value.ledger.rank, Node::Worker(lane as u8)));
            }
        }
        // Switches are children of the root in their order; workers' numbers at a switch follow their ranks.
        let below = (0u8..).zip(self.parents.iter()).filter(|(_, parent)| **parent == Some(number as u8));
        let switches: Vec<Node> = below.map(|(child, _)| Node::Switch(child)).collect();
        let workers = children.into_iter().map(|(_, node)| node);
        (0u8..).zip(switches.into_iter().chain(workers)).collect()
    }

    /// Changes a lane, then takes all that it sends and checks what it says.
    fn run(&mut self, number: usize, change: impl FnOnce(&mut Lane)) -> Result<(), String> {
        let (sent, refused) = self.lanes[number].change(hash_lane, |lane| {
            change(lane);
            let (mut sent, mut buffer) = (Vec::new(), [0; DATAGRAM_BYTES_MAX]);
            while let Some(bytes) = lane.worker.poll_transmit(Time::ZERO, &mut lane.ledger, &mut buffer) {
                sent.push(buffer[..bytes].to_vec());
            }
            let mut events = std::iter::from_fn(|| lane.worker.poll_event());
            (sent, events.any(|event| matches!(event, Event::Refused { .. })))
        });
        let switch = Node::Switch(self.lanes[number].value.switch);
        sent.into_iter().for_each(|bytes| self.send(Node::Worker(number as u8), switch, bytes));
        let Ledger { job, rank, wrong, .. } = self.lanes[number].value.ledger;
        if wrong || refused {
            return Err(format!("job {job}, rank {rank}: a WRONG SUM, one taken twice, or a refusal"));
        }
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
            match Header::parse(bytes) {
                Err(error) => format!("{from:?} to {to:?}: {error}"),
                Ok((header, payload)) => {
                    let rank =
                        if header.worker_rank == RANK_ALL { "all".into() } else { header.worker_rank.to_string() };
                    format!(
                        "{from:?} to {to:?}: {} of job {}, chunk {}, rank {rank}, {:?} {:?} {payload:?}",
                        header.kind, header.job_id, header.chunk_index, header.contributed, header.flags
                    )
                }
            }
        };
        match action {
            Action::Deliver(index) => format!("deliver {}", packet(index)),
            Action::Lose(index) => format!("lose {}", packet(index)),
            Action::Duplicate(index) => format!("duplicate {}", packet(index)),
            other => format!("{other:?}"),
        }
    }
}

/// Child numbers from the root down to a worker's switch.
fn path_of(tree: &Tree, rank: u16) -> Vec<u8> {
    let way = tree.way(rank);
    (way.level + 1..tree.level_count()).rev().map(|level| way.children[usize::from(level)]).collect()
}

/// The paths of all switches, the root's first, and each one's parent. Two levels at most.
fn switches(tree: &Tree) -> (Vec<Vec<u8>>, Vec<Option<u8>>) {
    let mut paths = vec![Vec::new()];
    for rank in 0..tree.worker_count() {
        let path = path_of(tree, rank);
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let parents = paths.iter().map(|path| (!path.is_empty()).then_some(0)).collect();
    (paths, parents)
}

/// The program of the switch that is `depth` below the root.
fn program(scope: &Scope, depth: usize) -> Switch {
    let mut program = Switch::new(SwitchConfig {
        slot_count: scope.slots,
        element_count_max: 1,
        slot_age_max: Span::from_ns(u64::MAX),
        ecn_threshold_bytes: u32::MAX,
    });
    for job in 0..scope.jobs {
        let config = JobConfig {
            job_id: job.into(),
            job_token: TOKEN,
            lane_count: 1,
            level: scope.tree.level_count() - 1 - depth as u8,
            accumulator: scope.accumulator,
            worker_count: scope.tree.worker_count(),
        };
        program.install(config).unwrap_or_else(|error| unreachable!("job numbers differ: {error:?}"));
    }
    program
}

fn server(scope: &Scope, job: u8) -> Server {
    Server::new(ServerConfig {
        job_id: job.into(),
        job_token: TOKEN,
        lane: 0,
        tree: scope.tree.clone(),
        slot_count: scope.slots,
        window_max: scope.window_max,
        element_count_max: 1,
        stragglers: None,
        accumulator: scope.accumulator,
        overflow_often: 1,
    })
}

fn lane(scope: &Scope, job: u8, rank: u16, switch: u8) -> Lane {
    let mut worker = Worker::new(WorkerConfig {
        job_id: job.into(),
        job_token: TOKEN,
        rank,
        lane: 0,
        way: *scope.tree.way(rank),
        level_count: scope.tree.level_count(),
        slot_count: scope.slots,
        indexing: Indexing::Hash,
        element_count_max: 1,
        window_max: scope.window_max,
        scale: if scope.floats { Scale::Dynamic } else { Scale::Static },
        congestion_control: CongestionControl::Off,
        resend_timeout_initial: Span::from_ns(1),
        resend_timeout_min: Span::from_ns(1),
        resend_timeout_max: Span::from_ns(1),
    });
    worker.submit(Submission {
        id: 0,
        collective_tag: 7,
        shape: Shape { shard_count: 1, shard_elements: scope.chunks.into(), block_elements: 1 },
        block_first: 0,
        block_count: scope.chunks.into(),
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: if scope.accumulator.is_raw() { FaninFormat::RawFloat32 } else { FaninFormat::Int32 },
        scaled: scope.floats,
    });
    let ledger = Ledger { job, rank, workers: scope.tree.worker_count(), received: 0, wrong: false };
    Lane { worker, ledger, switch }
}
