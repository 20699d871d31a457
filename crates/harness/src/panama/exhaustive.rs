//! Every interleaving of a small PANAMA cluster: each order of deliveries, with a budget of losses, duplicates and early timeouts,
//! as in [`crate::exhaustive`], whose account of time this shares.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use fanin_protocol::panama::placement::{Controller, Fabric, Policy, Request};
use fanin_protocol::panama::{
    CongestionControl, Context, Event, Floats, Switch, SwitchConfig, Tensors, Verdict, Worker, WorkerConfig,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::PANAMA_HEADER_BYTES;
use fanin_wire::panama::{ElementFormat, Header};
use fanin_wire::{ElementFormat as FaninFormat, Operator};

use crate::exhaustive::graph::Graph;
use crate::exhaustive::hash::{Ready, Wide};
use crate::exhaustive::{Counterexample, Explored};

const TOKEN: u32 = 7;
const DATAGRAM_BYTES_MAX: usize = PANAMA_HEADER_BYTES + 4;

/// How small the cluster is and how much may go wrong.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Workers in each rack; several racks have a switch each, and spines above them.
    pub racks: Vec<u32>,
    /// Trees, each with a spine of its own if there are several racks.
    pub trees: u8,
    /// Blocks of one element that each worker sums.
    pub blocks: u16,
    /// Packets that a worker may have out in a tree.
    pub window: u32,
    /// Packets that a switch's buffers hold.
    pub memory_packets: u32,
    /// Share of the ports that are waited for, in percent.
    pub share_percent: u8,
    /// Packets that may be lost.
    pub losses: u8,
    /// Packets that may be doubled.
    pub duplicates: u8,
    /// Timeouts while packets are under way, beyond one for each loss.
    pub early_timeouts: u8,
}

/// Explores all states of a scope, up to the answers of all FINs.
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
            after.apply(action).map_err(|what| self.counterexample(what, id, Some(action)))?;
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
                if state.apply(action).is_err() {
                    break;
                }
            }
        }
        Counterexample { what, path }
    }
}

/// Where a packet arrives, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    to: u32,
    port: u16,
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
struct Endpoint {
    worker: Worker,
    ledger: Ledger,
}

/// Numbers of which no sum of some equals a sum of others, and each is exact.
#[derive(Clone, Hash)]
struct Ledger {
    rank: u16,
    workers: u16,
    is_partial: bool,
    received: u32,
    wrong: bool,
}

impl Ledger {
    fn number(&self, rank: u16, block: u32) -> f32 {
        ((block % 3 + 1) << (4 * rank)) as f32
    }

    /// How many workers a sum holds; nothing if it is no sum.
    fn holders(&self, sum: f32, block: u32) -> Option<u16> {
        let subsets = 0..1u16 << self.workers;
        let sum_of = |subset: u16| -> f32 {
            (0..self.workers).filter(|rank| subset >> rank & 1 == 1).map(|rank| self.number(rank, block)).sum()
        };
        subsets.into_iter().find(|&subset| sum_of(subset) == sum).map(|subset| subset.count_ones() as u16)
    }
}

impl Tensors for Ledger {
    fn write_block(&mut self, id: BlockId, _: ElementFormat, payload: &mut [u8]) {
        payload.copy_from_slice(&self.number(self.rank, id.block).to_be_bytes());
    }

    fn read_block(&mut self, id: BlockId, _: ElementFormat, worker_count: u16, payload: &[u8]) {
        let sum = payload.try_into().map_or(f32::NAN, f32::from_be_bytes);
        let is_right = self.holders(sum, id.block) == Some(worker_count);
        let is_enough = worker_count == self.workers || self.is_partial;
        self.wrong |= !is_right || !is_enough || self.received & 1 << id.block != 0;
        self.received |= 1 << id.block;
    }
}

#[derive(Clone)]
struct State {
    fabric: Rc<Fabric>,
    switches: Vec<Part<Switch<Floats>>>,
    endpoints: Vec<Part<Endpoint>>,
    /// Sorted.
    packets: Vec<Packet>,
    memory_packets: u32,
    /// Losses, duplicates, early timeouts.
    budget: [u8; 3],
}

fn hash_switch(switch: &Switch<Floats>, hasher: &mut Wide) {
    switch.hash_state(hasher);
}

fn hash_endpoint(endpoint: &Endpoint, hasher: &mut Wide) {
    endpoint.worker.hash_state(hasher);
    endpoint.ledger.hash(hasher);
}

impl State {
    fn new(scope: &Scope) -> Result<State, String> {
        let fabric = fabric(scope);
        let hosts: Vec<u32> = (0..fabric.host_count()).collect();
        let mut controller = Controller::new(fabric.clone(), Policy { tree_count_max: scope.trees, ..Policy::PAPER });
        let request = Request {
            job_id: 1,
            job_token: TOKEN,
            hosts: hosts.clone(),
            bytes: u64::MAX,
            window_max: scope.window,
            share_percent: scope.share_percent,
        };
        let plan = controller.place(&request).map_err(|refusal| refusal.to_string())?;
        let switch_count =
            1 + plan.trees.iter().flat_map(|tree| &tree.switches).map(|&(switch, _)| switch).max().unwrap_or(0);
        let config =
            SwitchConfig { memory_packets: scope.memory_packets, pause_packets: u32::MAX, element_count_max: 1 };
        let mut switches = vec![Switch::new(config); (switch_count - fabric.host_count()) as usize];
        for (switch, config) in plan.trees.iter().flat_map(|tree| &tree.switches) {
            let switch = &mut switches[(switch - fabric.host_count()) as usize];
            switch.install(*config).map_err(|error| format!("not installed: {error:?}"))?;
        }
        let tree_count = plan.trees.len() as u8;
        let mut state = State {
            fabric: Rc::new(fabric),
            switches: switches.into_iter().map(|switch| Part::new(switch, hash_switch)).collect(),
            endpoints: hosts
                .iter()
                .map(|&rank| Part::new(endpoint(scope, rank as u16, tree_count), hash_endpoint))
                .collect(),
            packets: Vec::new(),
            memory_packets: scope.memory_packets,
            budget: [scope.losses, scope.duplicates, scope.early_timeouts],
        };
        (0..hosts.len()).try_for_each(|rank| state.run(rank, |_| ()))?;
        Ok(state)
    }

    fn fingerprint(&self) -> u128 {
        let mut hasher = Wide::new();
        self.switches.iter().for_each(|part| hasher.write_u128(part.print));
        self.endpoints.iter().for_each(|part| hasher.write_u128(part.print));
        for packet in &self.packets {
            // All but the number of the attempt and the checksum over it.
            (packet.to, packet.port, &packet.bytes[..35], &packet.bytes[PANAMA_HEADER_BYTES..]).hash(&mut hasher);
        }
        self.budget.hash(&mut hasher);
        hasher.wide()
    }

    fn is_complete(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.value.worker.is_finished())
    }

    fn actions(&self) -> Vec<Action> {
        let [losses, duplicates, early_timeouts] = self.budget;
        let mut actions = Vec::new();
        let is_first = |index: usize| index == 0 || self.packets[index - 1] != self.packets[index];
        for packet in (0..self.packets.len()).filter(|&index| is_first(index)).map(|index| index as u8) {
            actions.push(Action::Deliver(packet));
            actions.extend((losses > 0).then_some(Action::Lose(packet)));
            actions.extend((duplicates > 0).then_some(Action::Duplicate(packet)));
        }
        let endpoints = (0u8..).zip(&self.endpoints);
        for (number, _) in endpoints.filter(|(_, endpoint)| endpoint.value.worker.poll_timeout().is_some()) {
            match self.packets.is_empty() {
                true => actions.push(Action::Timeout(number)),
                false if early_timeouts > 0 => actions.push(Action::TimeoutEarly(number)),
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
            Action::TimeoutEarly(rank) => {
                self.budget[2] -= 1;
                self.timeout(rank)
            }
            Action::Timeout(rank) => self.timeout(rank),
        }
    }

    fn timeout(&mut self, rank: u8) -> Result<(), String> {
        self.run(usize::from(rank), |endpoint| {
            if let Some(due) = endpoint.worker.poll_timeout() {
                endpoint.worker.handle_timeout(due);
            }
        })
    }

    fn deliver(&mut self, packet: Packet) -> Result<(), String> {
        let Packet { to, port, bytes } = packet;
        let Some(number) = to.checked_sub(self.fabric.host_count()) else {
            return self.run(to as usize, |endpoint| {
                endpoint.worker.handle_packet(Time::ZERO, &bytes, false, &mut endpoint.ledger);
            });
        };
        let context = Context { port: port as u8, is_marked: false };
        let (outputs, held) = self.switches[number as usize].change(hash_switch, |switch| {
            let mut output = [0; DATAGRAM_BYTES_MAX];
            let mut outputs = Vec::new();
            let mut next = Some(switch.process(&context, &bytes, &mut output));
            while let Some(verdict) = next {
                let bytes = verdict.header().map_or(0, Header::datagram_bytes);
                outputs.push((verdict, output[..bytes].to_vec()));
                next = switch.proceed(&mut output);
            }
            (outputs, switch.packet_count())
        });
        if held > self.memory_packets {
            return Err(format!("switch {number} holds {held} packets, and has room for {}", self.memory_packets));
        }
        for (verdict, bytes) in outputs {
            match verdict {
                Verdict::Drop(_) => {}
                Verdict::Refuse { reason, .. } => return Err(format!("switch {number} refuses: {reason}")),
                Verdict::Up { port, .. } => self.send(to, port.into(), bytes),
                Verdict::Down { ports, .. } => {
                    let ports = (0..64).filter(|port| ports >> port & 1 == 1);
                    ports.for_each(|port| self.send(to, port, bytes.clone()));
                }
            }
        }
        Ok(())
    }

    /// Changes an endpoint, then takes all that it sends and checks what it says.
    fn run(&mut self, rank: usize, change: impl FnOnce(&mut Endpoint)) -> Result<(), String> {
        let (sent, refused) = self.endpoints[rank].change(hash_endpoint, |endpoint| {
            change(endpoint);
            let (mut sent, mut buffer) = (Vec::new(), [0; DATAGRAM_BYTES_MAX]);
            while let Some(transmit) = endpoint.worker.poll_transmit(Time::ZERO, &mut endpoint.ledger, &mut buffer) {
                sent.push(buffer[..transmit.bytes].to_vec());
            }
            let mut events = std::iter::from_fn(|| endpoint.worker.poll_event());
            (sent, events.any(|event| matches!(event, Event::Refused { .. })))
        });
        sent.into_iter().for_each(|bytes| self.send(rank as u32, 0, bytes));
        if self.endpoints[rank].value.ledger.wrong || refused {
            return Err(format!("rank {rank}: a WRONG SUM, one taken twice, or a refusal"));
        }
        Ok(())
    }

    fn send(&mut self, from: u32, port: u16, bytes: Vec<u8>) {
        if let Some((to, port)) = self.fabric.neighbour(from, port) {
            let packet = Packet { to, port, bytes };
            let place = self.packets.partition_point(|other| *other < packet);
            self.packets.insert(place, packet);
        }
    }

    fn describe(&self, action: Action) -> String {
        let packet = |index: u8| {
            let Packet { to, port, bytes } = &self.packets[usize::from(index)];
            match Header::parse(bytes) {
                Err(error) => format!("to {to}, port {port}: {error}"),
                Ok((header, payload)) => format!(
                    "to {to}, port {port}: {} of tree {}, VID {}, awaited {}, {:?} {payload:?}",
                    header.kind, header.tree, header.vid, header.awaited_vid, header.flags
                ),
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

/// Racks under as many spines as there are trees, or a rack by itself.
fn fabric(scope: &Scope) -> Fabric {
    let hosts: u32 = scope.racks.iter().sum();
    let racks = scope.racks.len() as u32;
    let rack_of = (0u32..).zip(&scope.racks).flat_map(|(rack, &workers)| (0..workers).map(move |_| rack));
    let mut cables: Vec<[u32; 2]> = (0..).zip(rack_of).map(|(host, rack)| [host, hosts + rack]).collect();
    let spines = if racks > 1 { u32::from(scope.trees) } else { 0 };
    cables.extend((0..racks * spines).map(|pair| [hosts + pair / spines, hosts + racks + pair % spines]));
    Fabric::new(hosts, racks + spines, &cables).unwrap_or_else(|error| unreachable!("racks are a fabric: {error:?}"))
}

fn endpoint(scope: &Scope, rank: u16, tree_count: u8) -> Endpoint {
    let mut worker = Worker::new(WorkerConfig {
        job_id: 1,
        job_token: TOKEN,
        rank,
        tree_count,
        window_max: scope.window,
        congestion_control: CongestionControl::Fixed { window: scope.window },
        resend_timeout_initial: Span::from_ns(1),
        resend_timeout_min: Span::from_ns(1),
        resend_timeout_max: Span::from_ns(1),
    });
    let taken = worker.submit(Submission {
        id: 0,
        collective_tag: 7,
        shape: Shape { shard_count: 1, shard_elements: scope.blocks.into(), block_elements: 1 },
        block_first: 0,
        block_count: scope.blocks.into(),
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: FaninFormat::Int32,
        scaled: true,
    });
    taken.unwrap_or_else(|reason| unreachable!("a sum of floats: {reason}"));
    worker.finish();
    let workers = scope.racks.iter().sum::<u32>() as u16;
    let is_partial = scope.share_percent < 100;
    Endpoint { worker, ledger: Ledger { rank, workers, is_partial, received: 0, wrong: false } }
}
