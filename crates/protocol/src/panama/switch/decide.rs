//! Stage 5: what leaves the switch, and by which ports.

use fanin_wire::generated::{PANAMA_HEADER_BYTES, RANK_ALL};
use fanin_wire::panama::{Flags, Header, Kind};

use super::accumulate::Buffers;
use super::job::Tree;
use super::place::State;
use crate::DropReason;

/// The decision about one packet, with the header of what leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing leaves; the reason is counted.
    Drop(DropReason),
    /// A header goes back by the port that the packet came in by; the reason is counted.
    Refuse {
        /// Why.
        reason: DropReason,
        /// The Refusal.
        header: Header,
    },
    /// A sum goes on towards the root.
    Up {
        /// The port.
        port: u8,
        /// The Contribution.
        header: Header,
    },
    /// A packet goes to children of this switch.
    Down {
        /// A bit per port.
        ports: u64,
        /// The Result or Refusal.
        header: Header,
    },
}

impl Verdict {
    /// The header of what leaves, if anything does.
    pub fn header(&self) -> Option<&Header> {
        match self {
            Verdict::Drop(_) => None,
            Verdict::Refuse { header, .. } | Verdict::Up { header, .. } | Verdict::Down { header, .. } => Some(header),
        }
    }
}

/// Sends a new sum towards the root, or the root's down to all. `share` is the room that this switch has for each port.
pub(super) fn sum<B>(tree: &Tree<B>, vid: u64, share: u16) -> Verdict {
    let header = describe(tree, vid, share);
    match tree.config.parent {
        Some(port) => Verdict::Up { port, header },
        None => Verdict::Down { ports: tree.config.ports, header },
    }
}

/// Sends what a port asks for: the Result to that port, or the sum up once more.
pub(super) fn repeat<B>(tree: &Tree<B>, port: u8, vid: u64, share: u16) -> Verdict {
    let mut header = describe(tree, vid, share);
    match tree.config.parent {
        Some(port) if header.kind == Kind::Contribution => {
            header.flags.resend = true;
            Verdict::Up { port, header }
        }
        _ => Verdict::Down { ports: 1 << port, header },
    }
}

/// Answers a FIN of a tree that has ended.
pub(super) fn repeat_fin<B>(tree: &Tree<B>, port: u8, fin: &Header) -> Verdict {
    let flags = Flags { fin: true, ..Flags::default() };
    let header = Header { kind: Kind::Result, flags, worker_rank: RANK_ALL, element_count: 0, ..*fin };
    debug_assert!(tree.finished.is_some());
    Verdict::Down { ports: 1 << port, header }
}

/// Passes a packet from above on to all ports.
pub(super) fn pass_down<B>(tree: &Tree<B>, header: &Header) -> Verdict {
    Verdict::Down { ports: tree.config.ports, header: *header }
}

/// Tells the sender why its Contribution was not accepted.
pub(super) fn refusal(reason: DropReason, header: &Header) -> Header {
    Header { kind: Kind::Refusal, detail: reason.code(), element_count: 0, ..*header }
}

/// Writes the payload of a VID behind its header.
pub(super) fn write_payload<B: Buffers>(tree: &Tree<B>, vid: u64, header: &Header, datagram: &mut [u8]) {
    tree.buffers.emit(tree.index(vid), header.element_format, &mut datagram[PANAMA_HEADER_BYTES..]);
}

fn describe<B>(tree: &Tree<B>, vid: u64, share: u16) -> Header {
    let place = tree.place(vid);
    let is_result = place.state == State::Result;
    Header {
        kind: if is_result { Kind::Result } else { Kind::Contribution },
        job_id: tree.config.job_id,
        job_token: tree.config.job_token,
        vid: vid as u32,
        awaited_vid: tree.floor as u32,
        collective_tag: place.collective_tag,
        tree: tree.config.tree,
        flags: Flags { fin: place.fin, ecn: place.ecn, resend: false },
        cwnd_cap: place.cwnd_cap.min(share),
        worker_count: place.worker_count,
        worker_rank: RANK_ALL,
        element_count: place.element_count,
        element_format: place.element_format,
        detail: 0,
    }
}
