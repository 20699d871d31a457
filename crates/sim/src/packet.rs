//! A packet in flight: a header and a length, no payload.

/// The largest number of hosts: they are named by 16 bits in every packet.
pub const HOST_COUNT_MAX: usize = 1 << 16;

/// What a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A segment of a flow.
    #[default]
    Data,
    /// What a receiver answers to a segment.
    Ack,
    /// A datagram of a protocol that aggregates; its bytes lie in [`crate::datagrams`].
    Aggregation,
    /// What a port tells the one at its link's other end: to stop sending ([`Packet::number`] is 1) or to go on (0).
    Pause,
}

/// One packet: 32 bytes, two to a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// When its last bit is at the other end of the link that it is on; set when it starts to be sent.
    pub at_ps: u64,
    /// Data: which segment of the flow, from 0. Ack: how many segments have arrived without a gap.
    pub number: u32,
    /// The flow's place at its sender ([`crate::host::Handle`]). Aggregation: where the datagram lies.
    pub flow: u32,
    /// The flow's place at its receiver, or [`crate::host::Handle::NONE`] while the sender does not know it. Aggregation: its
    /// group, one tree of one job.
    pub peer: u32,
    /// Host that sent it.
    pub source: u16,
    /// Host that it is for; [`NO_HOST`] if only the next node is meant.
    pub destination: u16,
    /// Length on the link, its headers and what Ethernet adds included.
    pub bytes: u16,
    /// Picks one of several equal paths: the same for all packets of a flow in one direction.
    pub hash: u16,
    /// What it is.
    pub kind: Kind,
    /// [`MARKED`], [`ECHO`], [`LAST`], [`ECT`].
    pub flags: u8,
    /// Data: the job's number and one, or 0 for a flow of no job.
    pub tag: u16,
}

/// The hash of acknowledgements, by that of their segments: another path, as a hash of the turned-round addresses would give.
#[inline]
pub const fn hash_of_answers(hash: u16) -> u16 {
    hash.rotate_left(7) ^ 0x5bd1
}

/// Bytes of a pause frame on a link, with what Ethernet adds.
pub const PAUSE_BYTES: u16 = 84;

/// Of a datagram that the next node's program is to handle.
pub const NO_HOST: u16 = u16::MAX;

/// A queue on the way was longer than its threshold (ECN: CE).
pub const MARKED: u8 = 1;
/// The segment that this acknowledges was marked (ECE, one for each segment).
pub const ECHO: u8 = 2;
/// The flow's last segment.
pub const LAST: u8 = 4;
/// Its sender reacts to marks; without it, queues never mark (ECN: ECT).
pub const ECT: u8 = 8;

const _: () = assert!(size_of::<Packet>() == 32);
