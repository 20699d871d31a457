//! What a program sends while it handles one datagram.

use fanin_protocol::time::Time;

use super::{DATAGRAM_BYTES_MAX, Wire};
use crate::datagrams::{DatagramId, Datagrams};
use crate::packet::{ECT, Kind, MARKED, Packet};

/// The queues of a switch, at the time of the datagram in hand.
pub trait Queues {
    /// Bytes that wait at a port.
    fn waiting_bytes(&mut self, port: u16) -> u64;
}

/// What a program sends while it handles one datagram: it leaves when the program is done.
pub struct Outbox<'a> {
    now: Time,
    buffer: [u8; DATAGRAM_BYTES_MAX],
    datagrams: &'a mut Datagrams,
    queues: &'a mut dyn Queues,
    sends: &'a mut Vec<(u16, Packet)>,
    failure: &'a mut Option<String>,
}

impl<'a> Outbox<'a> {
    /// For one datagram; packets go to `sends`, each with its port.
    pub fn new(
        now: Time,
        datagrams: &'a mut Datagrams,
        queues: &'a mut dyn Queues,
        sends: &'a mut Vec<(u16, Packet)>,
        failure: &'a mut Option<String>,
    ) -> Outbox<'a> {
        Outbox { now, buffer: [0; DATAGRAM_BYTES_MAX], datagrams, queues, sends, failure }
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

    /// Sends the first `length` bytes of the space out of each of the ports.
    pub fn send(&mut self, ports: &[u16], length: usize, wire: &Wire) {
        if ports.is_empty() {
            return;
        }
        let id = self.datagrams.put(&self.buffer[..length], ports.len() as u16);
        self.sends.extend(ports.iter().map(|&port| (port, packet_of(id, wire))));
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
