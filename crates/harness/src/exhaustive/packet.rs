//! Packets of the small cluster, known by number.

use std::hash::Hash;

use fanin_protocol::switchml::WireFormat;
use fanin_wire::{Kind, fanin};

use super::hash::Wide;

/// Who gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    Switch { from: u8 },
    Worker { rank: u8 },
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub to: Place,
    pub chunk: u32,
    /// A Query, or the answer that it is missing: whether no later packet
    /// about its chunk was sent. Attempt numbers grow for ever, but this is
    /// all that they decide.
    pub latest: Option<bool>,
    pub bytes: Vec<u8>,
}

impl Packet {
    pub fn new(to: Place, bytes: Vec<u8>, latest: bool, wire_format: WireFormat) -> Packet {
        let asks = wire_format == WireFormat::Fanin && [Kind::Query as u8, Kind::Missing as u8].contains(&bytes[3]);
        Packet { to, chunk: chunk_of(&bytes, wire_format), latest: asks.then_some(latest), bytes }
    }

    pub fn rank(&self) -> usize {
        match self.to {
            Place::Switch { from: rank } | Place::Worker { rank } => usize::from(rank),
        }
    }

    /// Equal for packets that have the same effect. Leaves out the attempt
    /// number and the checksum over it.
    pub fn fingerprint(&self, wire_format: WireFormat) -> u128 {
        let mut hasher = Wide::new();
        (self.to, self.latest).hash(&mut hasher);
        match wire_format {
            WireFormat::P4app => self.bytes.hash(&mut hasher),
            WireFormat::Fanin => {
                (&self.bytes[..29], &self.bytes[30..36], &self.bytes[40..]).hash(&mut hasher);
            }
        }
        hasher.wide()
    }

    /// The same packet with another attempt number.
    pub fn with_attempt(&self, attempt: u8) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if let Ok((header, _)) = fanin::Header::parse(&self.bytes) {
            fanin::Header { detail: attempt, ..header }.seal(&mut bytes);
        }
        bytes
    }
}

/// The chunk that a packet is about.
pub fn chunk_of(bytes: &[u8], wire_format: WireFormat) -> u32 {
    let at = match wire_format {
        WireFormat::Fanin => 16,
        WireFormat::P4app => 2,
    };
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
