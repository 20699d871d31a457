//! Twins of the structures in `xdp/include/state.h` and `net.h`. Loading fails where a size differs.

use fanin_protocol::DropReason;
use fanin_wire::generated::{WORKER_COUNT_MAX, XDP_ELEMENT_COUNT_MAX};

/// Elements lie in pairs, the first in a word's upper half.
pub(crate) const PAIRS_MAX: usize = XDP_ELEMENT_COUNT_MAX as usize / 2;

/// `struct job`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Job {
    pub is_live: u32,
    pub job_id: u32,
    pub job_token: u32,
    pub worker_count: u32,
    pub lane_count: u32,
    pub slots_per_lane: u32,
    pub slots_shift: u32,
    pub slot_count: u32,
    pub slot_base: u32,
    pub peer_base: u32,
    pub element_count_max: u32,
    pub has_checksum: u32,
    pub is_shared: u32,
}

/// `struct copy`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub contributed: [u64; WORKER_COUNT_MAX as usize / 64],
    pub chunk_index: u32,
    pub collective_tag: u32,
    pub contribution_count: u16,
    pub element_count: u16,
    pub block_exponent_next: i16,
    pub destination: u16,
    pub element_format: u8,
    pub operator: u8,
    pub shift: u8,
    pub unused: [u8; 5],
}

/// `struct slot`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub is_held: u32,
    pub job_id: u32,
    pub copies: [Copy; 2],
    pub pairs: [[u64; PAIRS_MAX]; 2],
}

/// `struct peer`. Addresses and ports are in network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub mac: [u8; 6],
    pub local_mac: [u8; 6],
    pub address: u32,
    pub local_address: u32,
    pub port: u16,
    pub local_port: u16,
    pub ifindex: u32,
    pub unused: u32,
    pub seen_ns: u64,
}

/// `struct member_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemberKey {
    pub group: u32,
    pub ifindex: u32,
}

/// `struct headers` of `xdp/traffic.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    bytes: [u8; 82],
    unused: [u8; 6],
}

/// `struct position` of `xdp/traffic.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    rank: u32,
    chunk_index: u32,
}

impl Headers {
    pub fn from_bytes(bytes: &[u8; 82]) -> Headers {
        Headers { bytes: *bytes, unused: [0; 6] }
    }
}

/// Packets by outcome, of one job number since the program was loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams of jobs that the program serves.
    pub received_datagrams: u64,
    /// Their UDP payload.
    pub received_bytes: u64,
    /// Datagrams sent for these jobs, each copy of a multicast counted, whether by the program or by the sockets behind it.
    pub sent_datagrams: u64,
    /// Their UDP payload.
    pub sent_bytes: u64,
    /// Contributions counted into a slot.
    pub contributions: u64,
    /// Chunks completed.
    pub aggregates: u64,
    /// Aggregates sent again to one worker.
    pub replies: u64,
    /// Probes answered.
    pub probes: u64,
    /// Queries answered with Missing.
    pub missing: u64,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    fn zip(self, other: &Counters, with: fn(u64, u64) -> u64) -> Counters {
        Counters {
            received_datagrams: with(self.received_datagrams, other.received_datagrams),
            received_bytes: with(self.received_bytes, other.received_bytes),
            sent_datagrams: with(self.sent_datagrams, other.sent_datagrams),
            sent_bytes: with(self.sent_bytes, other.sent_bytes),
            contributions: with(self.contributions, other.contributions),
            aggregates: with(self.aggregates, other.aggregates),
            replies: with(self.replies, other.replies),
            probes: with(self.probes, other.probes),
            missing: with(self.missing, other.missing),
            drops: std::array::from_fn(|reason| with(self.drops[reason], other.drops[reason])),
        }
    }

    /// The sum of both.
    pub fn plus(self, other: &Counters) -> Counters {
        self.zip(other, u64::wrapping_add)
    }

    /// What was counted since `earlier`.
    pub fn since(self, earlier: &Counters) -> Counters {
        self.zip(earlier, u64::wrapping_sub)
    }
}

impl Copy {
    /// As if the use before the stream's first had completed.
    pub fn fresh(chunk_index: u32) -> Copy {
        Copy {
            contributed: [0; WORKER_COUNT_MAX as usize / 64],
            chunk_index,
            collective_tag: 0,
            contribution_count: 0,
            element_count: 0,
            block_exponent_next: 0,
            destination: 0,
            element_format: 0,
            operator: 0,
            shift: 0,
            unused: [0; 5],
        }
    }

    pub fn has_contributed(&self, rank: u16) -> bool {
        self.contributed[usize::from(rank) / 64] >> (rank % 64) & 1 == 1
    }
}

macro_rules! plain {
    ($($name:ty),*) => { $(
        // SAFETY: `repr(C)`, integers only, and no padding between or behind them, so that all its bytes are initialised
        // and any bytes make a value.
        unsafe impl aya::Pod for $name {}
    )* };
}

plain!(Job, Slot, Peer, MemberKey, Headers, Position, Counters);
