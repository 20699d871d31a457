//! What a program sends while it handles one datagram.

use fanin_protocol::time::Time;

use super::{DATAGRAM_BYTES_MAX, Wire};
use crate::datagrams::{DatagramId, Datagrams};
use crate::packet::{ECT, Kind, MARKED, Packet};

/// The queues of a switch, at the time of the datagram in hand.
pub trait Queues {
    /// Bytes that wait at a port.
    fn waiting_bytes(&mut self, port: u16) -> u64;
    /// The port that a packet would leave by.
    fn port_of(&self, packet: &Packet) -> u16;
}

/// What a program sends while it handles one datagram: it leaves when the program is done.
pub struct Outbox<'a> {
    now: Time,
    switch: u32,
    paths: u32,
    buffer: [u8; DATAGRAM_BYTES_MAX],
    datagrams: &'a mut Datagrams,
    queues: &'a mut dyn Queues,
    sends: &'a mut Vec<(u16, Packet)>,
    failure: &'a mut Option<String>,
}

impl<'a> Outbox<'a> {
    /// For one datagram at a switch; `paths` is the same all over a run and decides which paths are taken; packets go to `sends`, each with its port.
    pub fn new(
        now: Time,
        switch: u32,
        paths: u32,
        datagrams: &'a mut Datagrams,
        queues: &'a mut dyn Queues,
        sends: &'a mut Vec<(u16, Packet)>,
        failure: &'a mut Option<String>,
    ) -> Outbox<'a> {
        Outbox { now, switch, paths, buffer: [0; DATAGRAM_BYTES_MAX], datagrams, queues, sends, failure }
    }

    /// The time of the datagram in hand.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Where to write a datagram before it is sent.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Bytes that wait at a port, without those that this outbox is about to send.
    pub fn waiting_bytes(&mut self, port: u16) -> u64 {
        self.queues.waiting_bytes(port)
    }

    /// Bytes that wait at the port towards a host.
    pub fn waiting_bytes_towards(&mut self, destination: u16, group: u32) -> u64 {
        let wire = Wire { bytes: 0, group, destination, is_markable: false, is_marked: false };
        let port = self.queues.port_of(&self.routed(DatagramId::default(), &wire));
        self.queues.waiting_bytes(port)
    }

    /// Takes the path that all datagrams of the group take from here to there; from other switches it is another one.
    fn routed(&self, datagram: DatagramId, wire: &Wire) -> Packet {
        let ends = self.switch << 16 | u32::from(wire.destination);
        let hash = (wire.group.wrapping_mul(0x9e37_79b9) ^ ends ^ self.paths).wrapping_mul(0x85eb_ca6b);
        Packet { hash: (hash >> 16) as u16, ..packet_of(datagram, wire) }
    }

    /// Sends the first `length` bytes of the space towards each of the hosts. The next switch with a program for the group takes it.
    pub fn route(&mut self, destinations: &[u16], length: usize, wire: &Wire) {
        if destinations.is_empty() {
            return;
        }
        let id = self.datagrams.put(&self.buffer[..length], destinations.len() as u16);
        for &destination in destinations {
            let packet = self.routed(id, &Wire { destination, ..*wire });
            self.sends.push((self.queues.port_of(&packet), packet));
        }
    }

    /// Sends the first `length` bytes of the space out of each of the ports.
    pub fn send(&mut self, ports: &[u16], length: usize, wire: &Wire) {
        if ports.is_empty() {
            return;
        }
        let id = self.datagrams.put(&self.buffer[..length], ports.len() as u16);
        self.sends.extend(ports.iter().map(|&port| (port, packet_of(id, wire))));
    }

    /// Tells the sender at a port's other end to stop, or to go on: the link stops as a whole. Not for switches that
    /// pause by themselves (`[switches] pause`), whose orders would be mixed up with these.
    pub fn pause(&mut self, port: u16, is_pause: bool) {
        self.sends.push((port, Packet { kind: Kind::Pause, number: is_pause.into(), ..Packet::default() }));
    }

    /// Ends the run as failed: what has happened must not.
    pub fn fail(&mut self, failure: String) {
        self.failure.get_or_insert(failure);
    }
}

/// A datagram's packet.
pub(crate) fn packet_of(datagram: DatagramId, wire: &Wire) -> Packet {
    let markable = if wire.is_markable { ECT } else { 0 };
    let marked = if wire.is_marked { MARKED } else { 0 };
    Packet {
        flow: datagram.raw(),
        peer: wire.group,
        destination: wire.destination,
        bytes: wire.bytes,
        kind: Kind::Aggregation,
        flags: markable | marked,
        ..Packet::default()
    }
}
