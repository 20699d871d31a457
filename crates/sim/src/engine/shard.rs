//! The nodes that one thread simulates.

use anyhow::ensure;

use crate::datagrams::{DatagramId, Datagrams};
use crate::engine::{Plan, SwitchOutcome};
use crate::fabric::{Cable, Fabric, Port, Routes, SwitchRoutes};
use crate::host::{Host, Uplink, time};
use crate::job::aggregation::{Arrival, DATAGRAM_BYTES_MAX, Outbox, Programs, Queues};
use crate::link::{Class, Link, LinkConfig};
use crate::packet::{Kind, MARKED, NO_HOST, Packet};
use crate::transport::Transport;
use std::sync::Arc;

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

/// The queues of the ports of one switch.
struct PortQueues<'a> {
    links: &'a mut [Link],
    outlets: &'a [u32],
    classes: &'a [Class],
    class_of: &'a [u8],
    now_ps: u64,
}

impl Queues for PortQueues<'_> {
    fn waiting_bytes(&mut self, port: u16) -> u64 {
        let link = self.outlets[usize::from(port)] as usize;
        self.links[link].start_until(&self.classes[usize::from(self.class_of[link])], self.now_ps);
        self.links[link].queued_bytes()
    }
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
            if packet.kind == Kind::Aggregation {
                let port = (key >> Arrivals::PORT_SHIFT) as u16;
                self.run_program(index, port, &packet);
            } else {
                let port = self.next_hop(index, &packet);
                self.send(ports, port, packet.at_ps, packet);
            }
        }
        arrivals.order.clear();
        arrivals.packets.clear();
        self.arrivals = arrivals;
        self.start_waiting(ports, end_ps);
    }

    #[inline]
    fn send(&mut self, ports: Ports, port: usize, now_ps: u64, packet: Packet) {
        let link = self.outlets[ports.first as usize + port];
        let class = &self.classes[usize::from(self.class_of[link as usize])];
        let is_taken = self.links[link as usize].offer(class, now_ps, packet);
        if !is_taken && packet.kind == Kind::Aggregation {
            self.datagrams.release(DatagramId::from_raw(packet.flow));
        }
        self.note_sent(ports, port, link);
    }

    /// Hands a datagram to the program of its group, or sends it on where there is none.
    fn run_program(&mut self, index: usize, port: u16, packet: &Packet) {
        let switch = &mut self.switches[index];
        let ports = switch.ports;
        let Some(program) = switch.programs.get_mut(packet.peer) else {
            if packet.destination == NO_HOST {
                let group = packet.peer;
                switch.failure.get_or_insert_with(|| format!("a datagram of group {group} has no program here"));
                return;
            }
            let port = self.next_hop(index, packet);
            return self.send(ports, port, packet.at_ps, *packet);
        };
        let id = DatagramId::from_raw(packet.flow);
        let (mut bytes, length) = ([0; DATAGRAM_BYTES_MAX], self.datagrams.get(id).len());
        bytes[..length].copy_from_slice(self.datagrams.get(id));
        self.datagrams.release(id);
        let now = time(packet.at_ps);
        let arrival = Arrival {
            now,
            group: packet.peer,
            port,
            destination: packet.destination,
            is_marked: packet.flags & MARKED != 0,
            datagram: &bytes[..length],
        };
        let mut sends = std::mem::take(&mut self.sends);
        let outlets = ports.first as usize..(ports.first + ports.count) as usize;
        let mut queues = PortQueues {
            links: &mut self.links,
            outlets: &self.outlets[outlets],
            classes: &self.classes,
            class_of: &self.class_of,
            now_ps: packet.at_ps,
        };
        let mut outbox = Outbox::new(now, &mut self.datagrams, &mut queues, &mut sends, &mut switch.failure);
        program.process(&arrival, &mut outbox);
        switch.outcome.taken += 1;
        switch.outcome.emitted += sends.len() as u64;
        for (port, sent) in sends.drain(..) {
            self.send(ports, usize::from(port), packet.at_ps, sent);
        }
        self.sends = sends;
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
    fn next_hop(&self, index: usize, packet: &Packet) -> usize {
        const TIER_BITS: u32 = 5;
        let destination = usize::from(packet.destination);
        let routes = &self.switches[index].routes;
        let route = routes.by_rack[usize::from(self.directory.rack_of[destination])];
        if route.count == 0 {
            return usize::from(self.directory.port_of[destination]);
        }
        let hash = packet.hash.rotate_left(TIER_BITS * routes.tier);
        let choice = (u32::from(hash) * route.count) >> u16::BITS;
        usize::from(routes.choices[(route.first + choice) as usize])
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

/// Divides a plan among threads.
pub fn build(plan: Plan, thread_count: usize) -> anyhow::Result<Vec<Shard>> {
    let routes = plan.fabric.routes()?;
    let ports = plan.fabric.ports();
    let part_count = plan.fabric.part_of.iter().max().map_or(1, |part| part + 1);
    let shard_count = (thread_count.max(1) as u32).min(part_count);
    let mut builder = Builder::new(plan.fabric, shard_count, routes)?;
    let mut ranks = plan.ranks.into_iter();
    for (index, sources) in plan.sources.into_iter().enumerate() {
        let (shard, ports) = builder.add_node(index as u32, &ports[index]);
        let host = Host::new(index as u16, sources, ranks.next().unwrap_or_default());
        builder.shards[shard].hosts.push(HostNode { ports, host });
    }
    let mut programs = plan.programs.into_iter();
    for index in 0..builder.fabric.switch_count {
        let node = builder.fabric.host_count + index;
        let (shard, ports) = builder.add_node(node, &ports[node as usize]);
        let routes = std::mem::take(&mut builder.switch_routes[index as usize]);
        builder.shards[shard].switches.push(Switch {
            index,
            ports,
            routes,
            programs: programs.next().unwrap_or_default(),
            outcome: SwitchOutcome::default(),
            failure: None,
        });
    }
    Ok(builder.shards)
}

struct Builder {
    fabric: Fabric,
    switch_routes: Vec<SwitchRoutes>,
    classes: Vec<LinkConfig>,
    shards: Vec<Shard>,
    /// By cable and direction: the sending half and the receiving half, as shard and link there.
    halves: Vec<[(u32, u32); 2]>,
}

impl Builder {
    fn new(fabric: Fabric, shard_count: u32, mut routes: Routes) -> anyhow::Result<Builder> {
        let switch_routes = std::mem::take(&mut routes.switches);
        let directory = Arc::new(routes);
        let mut classes: Vec<LinkConfig> = Vec::new();
        for config in fabric.cables.iter().flat_map(|cable| cable.links) {
            if !classes.contains(&config) {
                classes.push(config);
            }
        }
        ensure!(classes.len() <= 256, "links of {} kinds: at most 256", classes.len());
        let shards = (0..shard_count).map(|_| Shard {
            links: Vec::new(),
            ends: Vec::new(),
            classes: classes.iter().map(Class::new).collect(),
            class_of: Vec::new(),
            identities: Vec::new(),
            inlets: Vec::new(),
            outlets: Vec::new(),
            arriving: Vec::new(),
            waiting: Vec::new(),
            hosts: Vec::new(),
            switches: Vec::new(),
            directory: Arc::clone(&directory),
            outgoing: (0..shard_count).map(|_| Post::default()).collect(),
            arrivals: Arrivals::default(),
            datagrams: Datagrams::new(DATAGRAM_BYTES_MAX),
            sends: Vec::new(),
        });
        let mut builder =
            Builder { fabric, switch_routes, shards: shards.collect(), halves: Vec::new(), classes: classes.clone() };
        for (index, cable) in builder.fabric.cables.clone().iter().enumerate() {
            for end in 0..2 {
                let halves = builder.add_link(index, cable, end);
                builder.halves.push(halves);
            }
        }
        Ok(builder)
    }

    fn shard_of(&self, node: u32) -> u32 {
        self.fabric.part_of[node as usize] % self.shards.len() as u32
    }

    fn add_link(&mut self, index: usize, cable: &Cable, end: usize) -> [(u32, u32); 2] {
        let nodes = [cable.ends[end], cable.ends[1 - end]];
        let [from, to] = nodes.map(|node| self.shard_of(node));
        let place = (2 * index + end) as u32;
        let class = self.classes.iter().position(|class| *class == cable.links[end]).unwrap_or_default() as u8;
        let mut add = |shard: u32, is_sending| {
            let shard = &mut self.shards[shard as usize];
            shard.links.push(Link::default());
            shard.class_of.push(class);
            // Its receiver is not built yet; add_node sets it.
            shard.ends.push(End::Here { word: u32::MAX, bit: 0 });
            shard.identities.push(Identity { place, nodes, is_sending });
            shard.links.len() as u32 - 1
        };
        let sending = (from, add(from, true));
        if from == to {
            return [sending; 2];
        }
        let receiving = (to, add(to, false));
        self.shards[from as usize].ends[sending.1 as usize] = End::There { shard: to, link: receiving.1 };
        [sending, receiving]
    }

    fn add_node(&mut self, node: u32, ports: &[Port]) -> (usize, Ports) {
        let index = self.shard_of(node) as usize;
        let shard = &mut self.shards[index];
        let word = shard.arriving.len();
        let own = Ports { first: shard.inlets.len() as u32, count: ports.len() as u32, word: word as u32 };
        shard.arriving.resize(word + ports.len().div_ceil(WORD_BITS), 0);
        shard.waiting.resize(shard.arriving.len(), 0);
        for (place, port) in ports.iter().enumerate() {
            let out = self.halves[2 * port.cable as usize + usize::from(port.end)][0].1;
            let into = self.halves[2 * port.cable as usize + 1 - usize::from(port.end)][1].1;
            shard.outlets.push(out);
            shard.inlets.push(into);
            shard.ends[into as usize] =
                End::Here { word: (word + place / WORD_BITS) as u32, bit: (place % WORD_BITS) as u8 };
        }
        (index, own)
    }
}
