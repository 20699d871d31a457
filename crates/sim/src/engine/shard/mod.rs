//! The nodes that one thread simulates.

mod build;
mod switch;

use std::sync::Arc;

use crate::datagrams::{DatagramId, Datagrams};
use crate::engine::SwitchOutcome;
use crate::engine::buffers::Buffers;
use crate::fabric::{Routes, SwitchRoutes};
use crate::host::{Host, Uplink};
use crate::job::aggregation::Programs;
use crate::link::{Class, Link};
use crate::packet::{Kind, Packet};
use crate::transport::Transport;
pub use build::build;
use switch::next_hop;

const WORD_BITS: usize = 64;

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

/// Where a link ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// At a node of this shard: the bit that says that packets are on the way.
    Here { word: u32, bit: u8 },
    /// At another shard's node: its half of the link there.
    There { shard: u32, link: u32 },
}

/// What a node has at its ports. Bits of both kinds lie in words of their own, so that idle nodes are passed over quickly.
#[derive(Clone, Copy, Debug)]
struct Ports {
    /// First entry in `inlets` and `outlets`.
    first: u32,
    count: u32,
    /// First word in `arriving` and `waiting`.
    word: u32,
}

impl Ports {
    fn words(self) -> std::ops::Range<usize> {
        self.word as usize..self.word as usize + (self.count as usize).div_ceil(WORD_BITS)
    }
}

#[derive(Debug)]
struct Switch {
    index: u32,
    ports: Ports,
    routes: SwitchRoutes,
    programs: Programs,
    buffers: Option<Buffers>,
    outcome: SwitchOutcome,
    failure: Option<String>,
}

#[derive(Debug)]
struct HostNode {
    ports: Ports,
    host: Host,
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
    ends: Vec<End>,
    classes: Vec<Class>,
    /// By link.
    class_of: Vec<u8>,
    identities: Vec<Identity>,
    inlets: Vec<u32>,
    outlets: Vec<u32>,
    /// By port, whether packets are on the way to it.
    arriving: Vec<u64>,
    /// By port, whether packets wait in its queue.
    waiting: Vec<u64>,
    hosts: Vec<HostNode>,
    switches: Vec<Switch>,
    directory: Arc<Routes>,
    outgoing: Vec<Post>,
    arrivals: Arrivals,
    datagrams: Datagrams,
    /// What a program sends, with its ports.
    sends: Vec<(u16, Packet)>,
}

/// What is to be told of a shard at the end.
pub struct Parts {
    pub links: Vec<(Identity, Link)>,
    pub hosts: Vec<Host>,
    /// By number, and why a program could not go on.
    pub switches: Vec<(u32, SwitchOutcome, Option<String>)>,
}

/// What arrives at one node in one window.
#[derive(Default)]
struct Arrivals {
    packets: Vec<Packet>,
    /// Time in the window, port and place in `packets`, in one number to sort by.
    order: Vec<u64>,
}

impl Arrivals {
    const PORT_SHIFT: u32 = 20;
    const TIME_SHIFT: u32 = 36;
    /// Up to here insertion beats a sort that prepares for worse.
    const INSERTION_MAX: usize = 48;

    #[inline]
    fn push(&mut self, packet: Packet, port: usize, start_ps: u64) {
        let place = self.packets.len() as u64;
        assert!(place < 1 << Self::PORT_SHIFT, "a node takes at most 1,048,576 packets in a window");
        self.order.push((packet.at_ps - start_ps) << Self::TIME_SHIFT | (port as u64) << Self::PORT_SHIFT | place);
        self.packets.push(packet);
    }

    /// In the order of time, ties in that of ports. Mostly sorted and mostly short.
    #[inline]
    fn sort(&mut self) {
        if self.order.len() > Self::INSERTION_MAX {
            self.order.sort_unstable();
            return;
        }
        for sorted in 1..self.order.len() {
            let key = self.order[sorted];
            let mut place = sorted;
            while place > 0 && self.order[place - 1] > key {
                self.order[place] = self.order[place - 1];
                place -= 1;
            }
            self.order[place] = key;
        }
    }
}

impl Shard {
    /// Simulates the nodes from `start_ps` to before `end_ps`.
    pub fn run_window(&mut self, start_ps: u64, end_ps: u64, transport: &Transport) {
        for index in 0..self.switches.len() {
            let words = self.switches[index].ports.words();
            if words.clone().any(|word| self.arriving[word] | self.waiting[word] != 0) {
                self.run_switch(index, start_ps, end_ps);
            }
        }
        for index in 0..self.hosts.len() {
            let node = &self.hosts[index];
            let word = node.ports.word as usize;
            if self.arriving[word] | self.waiting[word] != 0 || node.host.wake_ps() < end_ps {
                self.run_host(index, end_ps, transport);
            }
        }
    }

    /// Notes how far hosts and ranks are.
    pub fn sample(&mut self) {
        self.hosts.iter_mut().for_each(|node| node.host.sample());
    }

    /// True if anything is on the way or waits.
    pub fn is_busy(&self) -> bool {
        self.arriving.iter().chain(&self.waiting).any(|word| *word != 0)
    }

    /// When the first host has something to do without a packet.
    pub fn wake_ps(&self) -> u64 {
        self.hosts.iter().map(|node| node.host.wake_ps()).min().unwrap_or(u64::MAX)
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
            self.links[letter.link as usize].land(letter.packet);
            self.note_started(letter.link);
        }
        post.datagrams.clear();
    }

    /// What is to be told at the end.
    pub fn into_parts(self) -> Parts {
        let switches = self.switches.into_iter().map(|switch| (switch.index, switch.outcome, switch.failure));
        Parts {
            links: self.identities.into_iter().zip(self.links).collect(),
            hosts: self.hosts.into_iter().map(|node| node.host).collect(),
            switches: switches.collect(),
        }
    }

    fn run_switch(&mut self, index: usize, start_ps: u64, end_ps: u64) {
        let ports = self.switches[index].ports;
        self.take_arrivals(ports, start_ps, end_ps);
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for &key in &arrivals.order {
            let packet = arrivals.packets[key as usize & ((1 << Arrivals::PORT_SHIFT) - 1)];
            let from = (key >> Arrivals::PORT_SHIFT) as u16;
            match packet.kind {
                Kind::Data | Kind::Ack => {
                    let port = next_hop(&self.switches[index].routes, &self.directory, &packet);
                    self.send(index, from, port, packet.at_ps, packet);
                }
                Kind::Aggregation => self.run_program(index, from, &packet),
                Kind::Pause => self.take_pause(index, from, &packet),
            }
        }
        arrivals.order.clear();
        arrivals.packets.clear();
        self.arrivals = arrivals;
        self.start_waiting(ports, end_ps);
        if self.switches[index].buffers.is_some() {
            self.end_pauses(index, end_ps);
        }
    }

    fn run_host(&mut self, index: usize, end_ps: u64, transport: &Transport) {
        let node = &mut self.hosts[index];
        let ports = node.ports;
        let (inlet, outlet) = (self.inlets[ports.first as usize], self.outlets[ports.first as usize]);
        let [inlet_link, uplink] = self
            .links
            .get_disjoint_mut([inlet as usize, outlet as usize])
            .unwrap_or_else(|_| unreachable!("the two directions of a cable are two links"));
        let class = &self.classes[usize::from(self.class_of[outlet as usize])];
        let mut uplink = Uplink { link: uplink, class, datagrams: &mut self.datagrams };
        while let Some(packet) = inlet_link.take_before(end_ps) {
            node.host.run_until(packet.at_ps, transport, &mut uplink);
            node.host.handle_packet(&packet, transport, &mut uplink);
        }
        node.host.run_until(end_ps, transport, &mut uplink);
        uplink.link.start_until(class, end_ps - 1);
        let has_more = uplink.link.has_waiting() || node.host.has_line();
        if !inlet_link.has_started() {
            self.arriving[ports.word as usize] = 0;
        }
        self.waiting[ports.word as usize] = u64::from(has_more);
        self.note_started(outlet);
    }

    fn take_arrivals(&mut self, ports: Ports, start_ps: u64, end_ps: u64) {
        for (step, word) in ports.words().enumerate() {
            let mut bits = self.arriving[word];
            while bits != 0 {
                let port = step * WORD_BITS + bits.trailing_zeros() as usize;
                let link = &mut self.links[self.inlets[ports.first as usize + port] as usize];
                while let Some(packet) = link.take_before(end_ps) {
                    self.arrivals.push(packet, port, start_ps);
                }
                let bit = bits & bits.wrapping_neg();
                if !link.has_started() {
                    self.arriving[word] ^= bit;
                }
                bits ^= bit;
            }
        }
        self.arrivals.sort();
    }

    #[inline]
    fn note_sent(&mut self, ports: Ports, port: usize, link: u32) {
        if self.links[link as usize].has_waiting() {
            self.waiting[ports.word as usize + port / WORD_BITS] |= 1 << (port % WORD_BITS);
        }
        self.note_started(link);
    }

    /// The node at the link's other end looks at it from the next window on.
    #[inline]
    fn note_started(&mut self, link: u32) {
        let sent = &mut self.links[link as usize];
        if !sent.has_started() {
            return;
        }
        match self.ends[link as usize] {
            End::Here { word, bit } => self.arriving[word as usize] |= 1 << bit,
            End::There { shard, link } => {
                while let Some(packet) = sent.take_before(u64::MAX) {
                    self.outgoing[shard as usize].push(link, packet, &mut self.datagrams);
                }
            }
        }
    }

    /// Starts what may start before the window's end.
    fn start_waiting(&mut self, ports: Ports, end_ps: u64) {
        for (step, word) in ports.words().enumerate() {
            let mut bits = self.waiting[word];
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                let port = step * WORD_BITS + bits.trailing_zeros() as usize;
                let link = self.outlets[ports.first as usize + port];
                let class = &self.classes[usize::from(self.class_of[link as usize])];
                self.links[link as usize].start_until(class, end_ps - 1);
                if !self.links[link as usize].has_waiting() {
                    self.waiting[word] ^= bit;
                }
                self.note_started(link);
                bits ^= bit;
            }
        }
    }
}
