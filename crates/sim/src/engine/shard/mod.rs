//! The nodes that one thread simulates.

mod arrivals;
mod build;
mod check;
mod switch;

use std::sync::Arc;

use crate::datagrams::{DatagramId, Datagrams};
use crate::engine::SwitchOutcome;
use crate::engine::accelerator::Accelerator;
use crate::engine::buffers::Buffers;
use crate::engine::corruption::Corruption;
use crate::fabric::{Routes, SwitchRoutes, next_hop};
use crate::host::{Host, Uplink};
use crate::job::aggregation::Programs;
use crate::link::{Class, Link};
use crate::packet::{Kind, Packet};
use crate::transport::Transport;
use arrivals::Arrivals;
pub use build::build;

const WORD_BITS: usize = 64;
/// So many hosts are brought to the cache at once.
const AHEAD: usize = 8;

/// A packet for another thread's node, and the receiving half of its link there.
#[derive(Clone, Copy, Debug)]
pub struct Mail {
    pub link: u32,
    pub packet: Packet,
}

/// What goes to another thread after a window.
#[derive(Debug, Default)]
pub struct Post {
    letters: Vec<Mail>,
    /// Datagrams of the letters that are some, in their order; a letter's number is its datagram's length.
    datagrams: Vec<u8>,
}

impl Post {
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    fn push(&mut self, link: u32, mut packet: Packet, datagrams: &mut Datagrams) {
        if packet.kind == Kind::Aggregation {
            let id = DatagramId::from_raw(packet.flow);
            let bytes = datagrams.get(id);
            packet.number = bytes.len() as u32;
            self.datagrams.extend_from_slice(bytes);
            datagrams.release(id);
        }
        self.letters.push(Mail { link, packet });
    }
}

/// In place of a word for the far end of a link: another shard has it.
const ELSEWHERE: u32 = u32::MAX;

/// The half of a link that another shard has.
#[derive(Clone, Copy, Debug)]
struct FarEnd {
    shard: u32,
    link: u32,
}

/// What a node has at its ports. Bits of both kinds lie in words of their own, so that idle nodes are passed over quickly.
#[derive(Clone, Copy, Debug)]
struct Ports {
    /// First entry in `inlets` and `outlets`.
    first: u32,
    count: u32,
    /// First word in `arriving` and `unfinished`.
    word: u32,
}

impl Ports {
    fn words(self) -> std::ops::Range<usize> {
        self.word as usize..self.word as usize + (self.count as usize).div_ceil(WORD_BITS)
    }

    #[inline]
    fn set(self, bits: &mut [u64], port: usize) {
        bits[self.word as usize + port / WORD_BITS] |= 1 << (port % WORD_BITS);
    }

    fn clear(self, bits: &mut [u64], port: usize) {
        bits[self.word as usize + port / WORD_BITS] &= !(1 << (port % WORD_BITS));
    }
}

#[derive(Debug)]
struct Switch {
    index: u32,
    ports: Ports,
    routes: SwitchRoutes,
    programs: Programs,
    buffers: Option<Buffers>,
    /// In a box: few have one, and all are passed over window by window.
    accelerator: Option<Box<Accelerator>>,
    outcome: SwitchOutcome,
    failure: Option<String>,
}

#[derive(Debug)]
struct HostNode {
    ports: Ports,
    host: Host,
}

#[derive(Clone, Copy, Debug)]
enum NodeKind {
    Host,
    Switch,
}

/// All that must be looked at to see whether a node has something to do.
#[derive(Clone, Copy, Debug)]
struct NodeRef {
    ports: Ports,
    kind: NodeKind,
    /// In `hosts` or `switches`.
    index: u32,
}

/// A link, who has its sending half, and its place in the whole.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Index of the cable, and which of its directions.
    pub place: u32,
    /// From node and to node.
    pub nodes: [u32; 2],
    /// False for the receiving half.
    pub is_sending: bool,
}

/// One thread's nodes, with the links that they send into.
pub struct Shard {
    links: Vec<Link>,
    /// By link, the other half if this is the sending one.
    ends: Vec<Option<FarEnd>>,
    classes: Vec<Class>,
    identities: Vec<Identity>,
    /// By link, of those that end here and lose packets; empty where none does.
    corruption: Vec<Option<Corruption>>,
    inlets: Vec<u32>,
    outlets: Vec<u32>,
    /// By port, whether packets are on the way to it.
    arriving: Vec<u64>,
    /// By port, whether the node has something to do there in the next window without an arrival: flows that wait for the link, packets
    /// that wait and are to be handed to another thread, or that take from the switch's memory.
    unfinished: Vec<u64>,
    /// In the order in which they are simulated in a window.
    nodes: Vec<NodeRef>,
    /// By host, when it has something to do without a packet.
    wake_ps: Vec<u64>,
    /// Of the last window.
    end_ps: u64,
    /// What a check has found.
    failure: Option<String>,
    hosts: Vec<HostNode>,
    switches: Vec<Switch>,
    directory: Arc<Routes>,
    outgoing: Vec<Post>,
    arrivals: Arrivals,
    datagrams: Datagrams,
    /// Drawn by the scenario's seed: which paths programs' datagrams take.
    paths: u32,
    /// What a program sends, with its ports.
    sends: Vec<(u16, Packet)>,
}

/// What is to be told of a shard at the end.
pub struct Parts {
    /// What a check has found.
    pub failure: Option<String>,
    /// With how many of its packets arrived damaged here.
    pub links: Vec<(Identity, Link, u64)>,
    pub hosts: Vec<Host>,
    /// By number, and why a program could not go on.
    pub switches: Vec<(u32, SwitchOutcome, Option<String>)>,
}

impl Shard {
    /// Simulates the nodes from `start_ps` to before `end_ps`.
    pub fn run_window(&mut self, start_ps: u64, end_ps: u64, transport: &Transport) {
        self.end_ps = end_ps;
        for place in 0..self.nodes.len() {
            if place.is_multiple_of(AHEAD) {
                self.look_at_hosts(place);
            }
            let NodeRef { ports, kind, index } = self.nodes[place];
            let is_busy = ports.words().any(|word| self.arriving[word] | self.unfinished[word] != 0);
            match kind {
                NodeKind::Switch if is_busy => self.run_switch(index as usize, start_ps, end_ps),
                NodeKind::Host if is_busy || self.wake_ps[index as usize] < end_ps => {
                    self.run_host(index as usize, end_ps, transport);
                }
                _ => {}
            }
        }
    }

    /// Notes how far hosts and ranks are.
    pub fn sample(&mut self, now_ps: u64) {
        self.hosts.iter_mut().for_each(|node| node.host.sample(now_ps));
    }

    /// True if anything is on the way or waits.
    pub fn is_busy(&self) -> bool {
        self.arriving.iter().chain(&self.unfinished).any(|word| *word != 0)
    }

    /// When the first host has something to do without a packet.
    pub fn wake_ps(&self) -> u64 {
        self.wake_ps.iter().copied().min().unwrap_or(u64::MAX)
    }

    /// By shard, packets for its nodes.
    pub fn outgoing(&mut self) -> &mut [Post] {
        &mut self.outgoing
    }

    /// Takes packets from another shard.
    pub fn land(&mut self, post: &mut Post) {
        let mut read = 0;
        for mut letter in post.letters.drain(..) {
            if letter.packet.kind == Kind::Aggregation {
                let bytes = &post.datagrams[read..read + letter.packet.number as usize];
                read += bytes.len();
                letter.packet.flow = self.datagrams.put(bytes, 1).raw();
            }
            let link = &mut self.links[letter.link as usize];
            link.land(&letter.packet);
            self.arriving[link.far_word as usize] |= 1 << link.far_bit;
        }
        post.datagrams.clear();
    }

    /// What is to be told at the end.
    pub fn into_parts(mut self) -> Parts {
        for (link, _) in self.links.iter_mut().zip(&self.identities).filter(|(_, identity)| identity.is_sending) {
            link.start_until(&self.classes[usize::from(link.class)], self.end_ps.saturating_sub(1));
        }
        let switches = self.switches.into_iter().map(|switch| (switch.index, switch.outcome, switch.failure));
        let mut corrupted: Vec<u64> = vec![0; self.links.len()];
        for (lost, corruption) in corrupted.iter_mut().zip(&self.corruption) {
            *lost = corruption.as_ref().map_or(0, Corruption::lost);
        }
        let links = self.identities.into_iter().zip(self.links).zip(corrupted);
        Parts {
            failure: self.failure,
            links: links.map(|((identity, link), corrupted)| (identity, link, corrupted)).collect(),
            hosts: self.hosts.into_iter().map(|node| node.host).collect(),
            switches: switches.collect(),
        }
    }

    fn run_switch(&mut self, index: usize, start_ps: u64, end_ps: u64) {
        let ports = self.switches[index].ports;
        self.take_arrivals(ports, start_ps, end_ps);
        let mut arrivals = std::mem::take(&mut self.arrivals);
        if self.switches[index].buffers.is_none() {
            self.find_outlets(index, &mut arrivals);
        }
        let mut place = 0;
        loop {
            place += self.forward(index, &arrivals, place);
            let Some(arrival) = arrivals.get(place) else { break };
            self.handle_packet(index, arrival.port, &arrival.packet);
            place += 1;
        }
        arrivals.clear();
        self.arrivals = arrivals;
        self.hand_over(ports, end_ps);
        if self.switches[index].buffers.is_some() {
            self.end_pauses(index, end_ps);
        }
        if self.switches[index].accelerator.is_some() {
            self.end_accelerator_pauses(index, end_ps);
        }
    }

    /// Finds the links of packets that only pass through, and has the cache look at all of them at once.
    fn find_outlets(&self, index: usize, arrivals: &mut Arrivals) {
        let Switch { ports, routes, .. } = &self.switches[index];
        let outlets = &self.outlets[ports.first as usize..(ports.first + ports.count) as usize];
        let mut seen = 0;
        for arrival in arrivals.iter_mut() {
            if matches!(arrival.packet.kind, Kind::Data | Kind::Ack) {
                let port = next_hop(routes, &self.directory, &arrival.packet);
                let outlet = outlets[port];
                arrival.send_to(port as u16, outlet);
                seen ^= self.links[outlet as usize].look_at_end();
            }
        }
        std::hint::black_box(seen);
    }

    /// Sends packets on that only pass through, from this place in the order until one wants more; how many they were.
    fn forward(&mut self, index: usize, arrivals: &Arrivals, first: usize) -> usize {
        let ports = self.switches[index].ports;
        for (count, arrival) in arrivals.from(first).enumerate() {
            let Some(outlet) = arrival.outlet() else { return count };
            let link = &mut self.links[outlet as usize];
            link.offer(&self.classes[usize::from(link.class)], arrival.packet.at_ps, &arrival.packet);
            // The far end looks at it from the next window on.
            match link.far_word {
                ELSEWHERE => ports.set(&mut self.unfinished, arrival.to.into()),
                word => self.arriving[word as usize] |= 1 << link.far_bit,
            }
        }
        arrivals.len() - first
    }

    fn run_host(&mut self, index: usize, end_ps: u64, transport: &Transport) {
        let node = &mut self.hosts[index];
        let ports = node.ports;
        let (inlet, outlet) = (self.inlets[ports.first as usize], self.outlets[ports.first as usize]);
        let [inlet_link, uplink] = self
            .links
            .get_disjoint_mut([inlet as usize, outlet as usize])
            .unwrap_or_else(|_| unreachable!("the two directions of a cable are two links"));
        let class = &self.classes[usize::from(uplink.class)];
        let mut uplink = Uplink { link: uplink, class, datagrams: &mut self.datagrams };
        let mut corruption = self.corruption.get_mut(inlet as usize).and_then(Option::as_mut);
        while let Some(packet) = inlet_link.take_before(end_ps) {
            if corruption.as_mut().is_some_and(|corruption| corruption.takes(&packet)) {
                forget(&packet, uplink.datagrams);
                continue;
            }
            node.host.run_until(packet.at_ps, transport, &mut uplink);
            node.host.handle_packet(&packet, transport, &mut uplink);
        }
        node.host.run_until(end_ps, transport, &mut uplink);
        self.wake_ps[index] = node.host.wake_ps();
        self.unfinished[ports.word as usize] = node.host.has_line().into();
        if inlet_link.is_empty() {
            self.arriving[ports.word as usize] = 0;
        }
        self.note_sent(ports, 0, outlet);
        self.hand_over(ports, end_ps);
    }

    fn take_arrivals(&mut self, ports: Ports, start_ps: u64, end_ps: u64) {
        self.look_at_arrivals(ports);
        for (step, word) in ports.words().enumerate() {
            let mut bits = self.arriving[word];
            while bits != 0 {
                let port = step * WORD_BITS + bits.trailing_zeros() as usize;
                let link = &mut self.links[self.inlets[ports.first as usize + port] as usize];
                while let Some(packet) = link.first_before(end_ps) {
                    let bytes = packet.bytes;
                    self.arrivals.push(packet, port as u16);
                    link.remove_first(bytes);
                }
                let bit = bits & bits.wrapping_neg();
                if link.is_empty() {
                    self.arriving[word] ^= bit;
                }
                bits ^= bit;
            }
        }
        if !self.corruption.is_empty() {
            self.lose_corrupted(ports);
        }
        self.arrivals.sort(start_ps);
    }

    #[cold]
    fn lose_corrupted(&mut self, ports: Ports) {
        let Shard { arrivals, corruption, inlets, datagrams, .. } = self;
        arrivals.retain(|arrival| {
            let link = inlets[ports.first as usize + usize::from(arrival.port)];
            let is_lost =
                corruption[link as usize].as_mut().is_some_and(|corruption| corruption.takes(&arrival.packet));
            if is_lost {
                forget(&arrival.packet, datagrams);
            }
            !is_lost
        });
    }

    /// Has the oldest packets brought to the cache all at once: when they are taken, each waits for what the one before decides.
    fn look_at_arrivals(&self, ports: Ports) {
        let mut seen = 0;
        for (step, word) in ports.words().enumerate() {
            let mut bits = self.arriving[word];
            while bits != 0 {
                let port = step * WORD_BITS + bits.trailing_zeros() as usize;
                seen ^= self.links[self.inlets[ports.first as usize + port] as usize].first_ps();
                bits &= bits - 1;
            }
        }
        std::hint::black_box(seen);
    }

    /// The same for the next hosts, and for their flows.
    fn look_at_hosts(&self, place: usize) {
        let nodes = self.nodes[place..].iter().take(AHEAD);
        let hosts = || nodes.clone().filter(|node| matches!(node.kind, NodeKind::Host));
        let link = |links: &[u32], node: &NodeRef| &self.links[links[node.ports.first as usize] as usize];
        let mut seen = 0;
        for node in hosts() {
            seen ^= link(&self.inlets, node).first_ps() ^ link(&self.outlets, node).look_at_end();
        }
        std::hint::black_box(seen);
        for node in hosts() {
            let inlet = link(&self.inlets, node);
            if let Some(packet) = inlet.first_before(self.end_ps) {
                seen ^= self.hosts[node.index as usize].host.look_at(packet);
            }
        }
        std::hint::black_box(seen);
    }

    /// Has the far end look at a link from the next window on.
    #[inline]
    fn note_sent(&mut self, ports: Ports, port: usize, link: u32) {
        let link = &self.links[link as usize];
        match link.far_word {
            _ if link.is_empty() => {}
            ELSEWHERE => ports.set(&mut self.unfinished, port),
            word => self.arriving[word as usize] |= 1 << link.far_bit,
        }
    }

    /// Hands packets that have started before the window's end to the threads that have the far ends of their links.
    fn hand_over(&mut self, ports: Ports, end_ps: u64) {
        if self.outgoing.len() == 1 {
            return;
        }
        for (step, word) in ports.words().enumerate() {
            let mut bits = self.unfinished[word];
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits ^= bit;
                let port = step * WORD_BITS + bit.trailing_zeros() as usize;
                let index = self.outlets[ports.first as usize + port] as usize;
                let Some(end) = self.ends[index] else { continue };
                let link = &mut self.links[index];
                link.start_until(&self.classes[usize::from(link.class)], end_ps - 1);
                while let Some(packet) = link.take_started() {
                    self.outgoing[end.shard as usize].push(end.link, packet, &mut self.datagrams);
                }
                if link.is_empty() {
                    self.unfinished[word] ^= bit;
                }
            }
        }
    }
}

/// Lets go of what is kept for a packet that goes nowhere.
fn forget(packet: &Packet, datagrams: &mut Datagrams) {
    if packet.kind == Kind::Aggregation {
        datagrams.release(DatagramId::from_raw(packet.flow));
    }
}
