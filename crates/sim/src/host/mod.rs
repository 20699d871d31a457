//! A host: flows that it starts, flows that it answers, and its timers.

mod ranks;
mod receiver;
mod sender;
mod table;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) use ranks::time;
use receiver::Receiver;
use sender::Sender;
pub use table::Handle;
use table::Table;

use crate::datagrams::Datagrams;
use crate::job::Rank;
use crate::link::{Class, Link};
use crate::packet::{Kind, Packet};
use crate::transport::Transport;
use crate::workload::{Flow, Source};

/// A flow whose last acknowledgement has reached its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowRecord {
    /// When the application gave it to the sender.
    pub start_ps: u64,
    /// From there until the sender knew that all of it had arrived.
    pub completion_ps: u64,
    /// Payload.
    pub bytes: u64,
    /// Host that sent it.
    pub source: u16,
    /// Host that it was for.
    pub destination: u16,
}

/// A flow that was still going on at the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unended {
    /// As of one that ended; its completion time is what has passed so far.
    pub so_far: FlowRecord,
    /// Payload that its sender knows to have arrived.
    pub acknowledged_bytes: u64,
}

/// What a host's flows have gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Flows given to the sender.
    pub started: u64,
    /// Flows that ended.
    pub completed: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Timers that ran out.
    pub timeouts: u64,
    /// Payload of flows acknowledged, whether they have ended or not.
    pub acknowledged_bytes: u64,
    /// The same of jobs' connections.
    pub job_bytes: u64,
}

/// A host's link to its switch.
pub struct Uplink<'a> {
    /// The link.
    pub link: &'a mut Link,
    /// What it is like.
    pub class: &'a Class,
    /// Bytes of datagrams.
    pub datagrams: &'a mut Datagrams,
}

/// Who may send.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Flow(Handle),
    /// The rank at this place among the host's.
    Rank(u32),
}

impl Uplink<'_> {
    fn offer(&mut self, now_ps: u64, packet: &Packet) {
        self.link.offer(self.class, now_ps, packet);
    }

    fn free_before(&self, end_ps: u64) -> Option<u64> {
        self.link.free_before(end_ps)
    }
}

/// A host.
#[derive(Debug)]
pub struct Host {
    index: u16,
    senders: Table<Sender>,
    /// Flows that may send, in turn. A segment goes to the link only when that is free, so it is still open which one.
    line: VecDeque<Turn>,
    receivers: Table<Receiver>,
    /// Receivers of flows that have not ended, by sender and its handle: for segments that were sent before the first
    /// acknowledgement told the sender where its flow is.
    arriving: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    sources: Vec<Source>,
    ranks: Vec<Rank>,
    /// A rank has computed then.
    rank_ps: u64,
    /// No timer runs out before.
    expiry_ps: u64,
    /// The next flow starts then.
    arrival_ps: u64,
    counters: HostCounters,
    finished: Vec<FlowRecord>,
    samples: Vec<u64>,
}

impl Host {
    /// A host that will start the sources' flows, with ranks of jobs.
    pub fn new(index: u16, sources: Vec<Source>, ranks: Vec<Rank>) -> Host {
        let mut host = Host {
            index,
            senders: Table::default(),
            line: VecDeque::new(),
            receivers: Table::default(),
            arriving: HashMap::default(),
            sources,
            rank_ps: ranks.iter().map(Rank::wake_ps).min().unwrap_or(u64::MAX),
            ranks,
            expiry_ps: u64::MAX,
            arrival_ps: u64::MAX,
            counters: HostCounters::default(),
            finished: Vec::new(),
            samples: Vec::new(),
        };
        host.find_arrival();
        host
    }

    /// Its number.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// When it has something to do without a packet; perhaps earlier than it really has.
    pub fn wake_ps(&self) -> u64 {
        self.expiry_ps.min(self.arrival_ps).min(self.rank_ps)
    }

    /// What its flows have gone through.
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// Takes the records of the flows that have ended since the last call.
    pub fn drain_finished(&mut self) -> impl Iterator<Item = FlowRecord> + '_ {
        self.finished.drain(..)
    }

    /// Its flows that have not ended at `now_ps`, without connections of jobs.
    pub fn unended(&mut self, now_ps: u64) -> impl Iterator<Item = Unended> + '_ {
        let index = self.index;
        let flows = self.senders.iter_mut().filter(|(_, sender)| !sender.is_stream());
        flows.map(move |(_, sender)| Unended {
            so_far: sender.record(now_ps, index),
            acknowledged_bytes: sender.acknowledged_bytes(),
        })
    }

    /// Notes how much of its flows was acknowledged, and of its ranks' gradients summed.
    pub fn sample(&mut self, now_ps: u64) {
        self.samples.push(self.counters.acknowledged_bytes);
        self.ranks.iter_mut().for_each(|rank| rank.sample(now_ps));
    }

    /// What was noted.
    pub fn samples(&self) -> &[u64] {
        &self.samples
    }

    /// Its ranks.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Some number that is known once the cache has what a packet like this is handled with.
    #[inline]
    pub fn look_at(&self, packet: &Packet) -> u64 {
        let flow = match packet.kind {
            Kind::Data => self.receivers.get(Handle::from_raw(packet.peer)).map_or(0, Receiver::look),
            Kind::Ack => self.senders.get(Handle::from_raw(packet.flow)).map_or(0, Sender::look),
            Kind::Aggregation | Kind::Pause => 0,
        };
        flow ^ self.counters.acknowledged_bytes ^ self.line.len() as u64
    }

    /// Does what is due before `end_ps`, in the order of its times.
    #[inline]
    pub fn run_until(&mut self, end_ps: u64, transport: &Transport, uplink: &mut Uplink) {
        while self.wake_ps() < end_ps {
            let now_ps = self.wake_ps();
            self.send_before(now_ps, transport, uplink);
            if self.arrival_ps <= now_ps {
                self.start_flows(now_ps, transport);
            } else if self.rank_ps <= now_ps {
                self.wake_ranks(now_ps, transport);
            } else {
                self.expire(now_ps, transport);
            }
            self.send_at(now_ps, transport, uplink);
        }
        self.send_before(end_ps, transport, uplink);
    }

    /// A packet has arrived; everything that was due earlier is done.
    #[inline]
    pub fn handle_packet(&mut self, packet: &Packet, transport: &Transport, uplink: &mut Uplink) {
        match packet.kind {
            Kind::Data => self.handle_data(packet, transport, uplink),
            Kind::Ack => self.handle_ack(packet, transport, uplink),
            Kind::Aggregation => self.handle_datagram(packet, uplink),
            Kind::Pause => uplink.link.obey(uplink.class, packet),
        }
        self.send_at(packet.at_ps, transport, uplink);
    }

    /// True while flows wait for the link.
    pub fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Sends whenever the link becomes free before `end_ps`.
    fn send_before(&mut self, end_ps: u64, transport: &Transport, uplink: &mut Uplink) {
        while !self.line.is_empty() {
            let Some(free_ps) = uplink.free_before(end_ps) else { return };
            self.send_first(free_ps, transport, uplink);
        }
    }

    /// Sends if the link is free at `now_ps`, when something has changed.
    #[inline]
    fn send_at(&mut self, now_ps: u64, transport: &Transport, uplink: &mut Uplink) {
        if !self.line.is_empty() && uplink.free_before(now_ps + 1).is_some() {
            self.send_first(now_ps, transport, uplink);
        }
    }

    /// The first in line that may send does, and stands behind the others if it may send more. Then the link is busy, or
    /// nobody is in line.
    fn send_first(&mut self, now_ps: u64, transport: &Transport, uplink: &mut Uplink) {
        while let Some(turn) = self.line.pop_front() {
            let (has_sent, has_more) = match turn {
                Turn::Flow(handle) => self.send_of_flow(handle, now_ps, transport, uplink),
                Turn::Rank(place) => self.send_of_rank(place, now_ps, uplink),
            };
            if has_more {
                self.line.push_back(turn);
            }
            if has_sent {
                return;
            }
        }
    }

    #[inline]
    fn send_of_flow(
        &mut self,
        handle: Handle,
        now_ps: u64,
        transport: &Transport,
        uplink: &mut Uplink,
    ) -> (bool, bool) {
        let Some(sender) = self.senders.get_mut(handle) else { return (false, false) };
        let is_sending = sender.may_send();
        if is_sending {
            sender.send_next(now_ps, transport, &mut self.counters, uplink);
            self.expiry_ps = self.expiry_ps.min(sender.expiry_ps());
        }
        sender.is_in_line = sender.may_send();
        (is_sending, sender.is_in_line)
    }

    fn handle_data(&mut self, packet: &Packet, transport: &Transport, uplink: &mut Uplink) {
        let known = Handle::from_raw(packet.peer);
        let handle = if known.is_none() { self.find_receiver(packet) } else { known };
        let Some(receiver) = self.receivers.get_mut(handle) else {
            // It ended here, and its sender has not heard of it.
            uplink.offer(packet.at_ps, &receiver::answer(packet, u32::MAX, handle, self.index, transport));
            return;
        };
        let received = receiver.take(packet);
        if packet.tag != 0 {
            uplink.offer(packet.at_ps, &receiver::answer(packet, received, handle, self.index, transport));
            self.take_ring_segments(packet.tag - 1, received, packet.at_ps, transport);
            return;
        }
        let is_whole = receiver.is_whole();
        uplink.offer(packet.at_ps, &receiver::answer(packet, received, handle, self.index, transport));
        if is_whole {
            self.receivers.remove(handle);
            self.arriving.remove(&key(packet));
        }
    }

    fn find_receiver(&mut self, packet: &Packet) -> Handle {
        let receivers = &mut self.receivers;
        let raw = *self.arriving.entry(key(packet)).or_insert_with(|| receivers.insert(Receiver::default()).raw());
        Handle::from_raw(raw)
    }

    fn handle_ack(&mut self, packet: &Packet, transport: &Transport, uplink: &mut Uplink) {
        let handle = Handle::from_raw(packet.flow);
        // An answer to a segment sent twice may come after the end of its flow.
        let Some(sender) = self.senders.get_mut(handle) else { return };
        sender.handle_ack(packet, transport, &mut self.counters, uplink);
        self.expiry_ps = self.expiry_ps.min(sender.expiry_ps());
        if sender.is_done() {
            self.counters.completed += 1;
            self.finished.push(sender.record(packet.at_ps, self.index));
            self.senders.remove(handle);
        } else if sender.may_send() && !sender.is_in_line {
            sender.is_in_line = true;
            self.line.push_back(Turn::Flow(handle));
        }
    }

    fn start_flows(&mut self, now_ps: u64, transport: &Transport) {
        for index in 0..self.sources.len() {
            while self.sources[index].next_ps() <= now_ps {
                let flow = self.sources[index].take();
                self.start_flow(&flow, now_ps, transport);
            }
        }
        self.find_arrival();
    }

    fn start_flow(&mut self, flow: &Flow, now_ps: u64, transport: &Transport) {
        self.counters.started += 1;
        let index = self.index;
        let handle = self.senders.insert_with(|handle| Sender::new(index, handle, flow, now_ps, transport));
        self.line.push_back(Turn::Flow(handle));
    }

    fn find_arrival(&mut self) {
        self.arrival_ps = self.sources.iter().map(Source::next_ps).min().unwrap_or(u64::MAX);
    }

    fn expire(&mut self, now_ps: u64, transport: &Transport) {
        let mut next_ps = u64::MAX;
        for (handle, sender) in self.senders.iter_mut() {
            if sender.expiry_ps() <= now_ps {
                sender.handle_timeout(now_ps, transport, &mut self.counters);
                if !std::mem::replace(&mut sender.is_in_line, true) {
                    self.line.push_back(Turn::Flow(handle));
                }
            }
            next_ps = next_ps.min(sender.expiry_ps());
        }
        self.expiry_ps = next_ps.min(self.expire_ranks(now_ps));
    }
}

fn key(packet: &Packet) -> u64 {
    u64::from(packet.source) << 32 | u64::from(packet.flow)
}

/// One multiplication: keys are small numbers, not chosen by strangers.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
