//! Stage 5: what leaves the switch, and which way.

use fanin_wire::atp::{Header, Kind};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};

use super::slot::Slot;
use crate::DropReason;
use crate::atp::floats::echo;

/// The decision about one packet. Where bytes leave the switch, they are in the output buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing leaves; the reason is counted.
    Drop(DropReason),
    /// `bytes` go back to the sender, which learns why its packet was not accepted.
    Refuse {
        /// Why.
        reason: DropReason,
        /// Length of the Refusal.
        bytes: usize,
    },
    /// `bytes` go on towards the job's server.
    Up {
        /// Length of the Fragment.
        bytes: usize,
    },
    /// `bytes` go to children of this switch.
    Down {
        /// Job number, the low eight bits of the job id.
        job_number: u8,
        /// The job's lane.
        lane: u16,
        /// Length of the datagram.
        bytes: usize,
        /// A bit per child.
        children: u32,
        /// When set, only this child gets the payload; the others get the header, made by [`without_payload`].
        payload_child: Option<u8>,
    },
}

/// Passes a Fragment on as it is, one level up.
pub(super) fn forward(header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
    let header = Header { level: header.level + 1, ..*header };
    Verdict::Up { bytes: write(&header, payload, output) }
}

/// Sends a slot's sum, complete or not, one level up, in place of the Fragment in hand. `emit` writes the elements, and returns how
/// many of them it found beyond their format.
pub(super) fn send_sum(
    slot: &Slot,
    emit: impl FnOnce(&mut [u8]) -> u32,
    header: &Header,
    output: &mut [u8],
) -> Verdict {
    let mut sum = Header {
        level: header.level + 1,
        element_count: slot.element_count,
        slot_index_next: header.slot_index,
        scale_next: slot.scale_next,
        ..*header
    };
    sum.contributed[usize::from(header.level)] = slot.contributed;
    sum.flags.ecn |= slot.ecn;
    if slot.contributed.count_ones() > 1 {
        sum.worker_rank = RANK_ALL;
    }
    let datagram = &mut output[..sum.datagram_bytes()];
    sum.echo = echo(emit(&mut datagram[ATP_HEADER_BYTES..]));
    sum.seal(datagram);
    Verdict::Up { bytes: datagram.len() }
}

/// Passes a Parameter or a Refusal on to the children it is for, one level down.
pub(super) fn distribute(header: &Header, payload: &[u8], output: &mut [u8]) -> Verdict {
    let way = header.contributed[usize::from(header.level)];
    let is_multicast = header.kind == Kind::Parameter && header.worker_rank == RANK_ALL;
    let has_one_reader = is_multicast && header.destination != RANK_ALL && header.element_count > 0;
    // Without a way the one reader is behind another switch, and these children get a header only.
    let reader = (way != 0).then(|| way.trailing_zeros() as u8);
    let (header, payload) = match reader {
        None if has_one_reader => (&Header { element_count: 0, ..*header }, &[][..]),
        _ => (header, payload),
    };
    let below = Header { level: header.level.saturating_sub(1), ..*header };
    Verdict::Down {
        job_number: (header.job_id & 0xff) as u8,
        lane: header.lane,
        bytes: write(&below, payload, output),
        children: if is_multicast { u32::MAX } else { way },
        payload_child: reader.filter(|_| has_one_reader),
    }
}

/// Tells the sender why its Fragment was not accepted, where the reason is one that it can act on.
pub(super) fn refuse(reason: DropReason, header: &Header, output: &mut [u8]) -> Verdict {
    if !reason.is_refused() || header.kind != Kind::Fragment {
        return Verdict::Drop(reason);
    }
    Verdict::Refuse { reason, bytes: refusal(reason, header, output) }
}

/// Writes the Refusal of a Fragment; returns its length.
pub(in crate::atp) fn refusal(reason: DropReason, header: &Header, output: &mut [u8]) -> usize {
    let level = header.level.saturating_sub(1);
    let refusal = Header { kind: Kind::Refusal, detail: reason.code(), element_count: 0, level, ..*header };
    write(&refusal, &[], output)
}

/// Writes to `output` the header-only form of a Parameter, for the children that are not on the way to its one reader.
/// Returns its length; 0 for what is no ATP datagram.
pub fn without_payload(parameter: &[u8], output: &mut [u8]) -> usize {
    let Ok((header, _)) = Header::parse(parameter) else { return 0 };
    write(&Header { element_count: 0, ..header }, &[], output)
}

fn write(header: &Header, payload: &[u8], output: &mut [u8]) -> usize {
    let datagram = &mut output[..header.datagram_bytes()];
    datagram[ATP_HEADER_BYTES..].copy_from_slice(payload);
    header.seal(datagram);
    datagram.len()
}
