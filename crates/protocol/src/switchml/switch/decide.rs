//! Stage 5: what leaves the switch.

use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{Kind, ProbePath, fanin, p4app};

use super::accumulate;
use super::admit::Contribution;
use super::job::{Job, WireFormat};
use crate::{DropReason, Verdict};

/// The chunk is complete: its Aggregate goes to every worker. Its elements
/// are in `output` already.
#[inline(always)]
pub(super) fn multicast<const SUMMED: bool>(job: &mut Job, contribution: &Contribution, output: &mut [u8]) -> Verdict {
    job.counters.aggregates += 1;
    let element_count = job.copy(contribution).element_count;
    let bytes = match job.config.wire_format {
        WireFormat::Fanin => seal_fanin::<SUMMED>(job, contribution, RANK_ALL, element_count, output),
        WireFormat::P4app => seal_p4app(job, contribution, output),
    };
    let destination = job.copy(contribution).destination;
    Verdict::Multicast {
        job_number: (job.config.job_id & 0xff) as u8,
        lane: job.lane(contribution.slot_index),
        bytes,
        destination: job.child_towards(destination),
    }
}

/// The worker missed a complete chunk: its Aggregate goes to it alone.
#[cold]
pub(super) fn reply(job: &mut Job, contribution: Contribution, output: &mut [u8]) -> Verdict {
    job.counters.replies += 1;
    let contribution = &contribution;
    let copy = job.copy(contribution);
    let gets_payload = job.child_towards(copy.destination).is_none_or(|child| child == contribution.rank);
    let element_count = if gets_payload { copy.element_count } else { 0 };
    let payload_bytes = usize::from(element_count) * copy.element_format.bytes();
    let first = job.header_bytes();
    accumulate::emit(job, contribution, element_count, &mut output[first..][..payload_bytes]);
    let bytes = match job.config.wire_format {
        WireFormat::Fanin => seal_fanin::<true>(job, contribution, contribution.rank, element_count, output),
        WireFormat::P4app => seal_p4app(job, contribution, output),
    };
    Verdict::Reply { bytes }
}

/// Tells the sender why its packet was not accepted, where the reason is one
/// that the sender can act on.
#[cold]
pub(super) fn refuse(reason: DropReason, header: fanin::Header, has_checksum: bool, output: &mut [u8]) -> Verdict {
    // Never answer an answer: two switches could send it to and fro for ever.
    if !reason.is_refused() || !matches!(header.kind, Kind::Contribution | Kind::Query | Kind::Probe) {
        return Verdict::Drop(reason);
    }
    let refusal = fanin::Header { kind: Kind::Refusal, detail: reason.code(), element_count: 0, ..header };
    seal(&refusal, has_checksum, &mut output[..HEADER_BYTES]);
    Verdict::Refuse { reason, bytes: HEADER_BYTES }
}

/// Tells the sender of a Query that its contribution has not arrived.
#[cold]
pub(super) fn missing(has_checksum: bool, query: fanin::Header, output: &mut [u8]) -> Verdict {
    let missing = fanin::Header { kind: Kind::Missing, element_count: 0, ..query };
    seal(&missing, has_checksum, &mut output[..HEADER_BYTES]);
    Verdict::Missing { bytes: HEADER_BYTES }
}

/// Sends a Probe back at its full length, which shows that the path carries
/// datagrams of that length both ways.
#[cold]
pub(super) fn answer_probe(has_checksum: bool, header: fanin::Header, payload: &[u8], output: &mut [u8]) -> Verdict {
    let reply = fanin::Header { kind: Kind::ProbeReply, ..header };
    let datagram = &mut output[..reply.datagram_bytes()];
    datagram[HEADER_BYTES..].copy_from_slice(payload);
    seal(&reply, has_checksum, datagram);
    Verdict::ProbeReply { bytes: datagram.len() }
}

/// What the sender of a Probe asked for, from the switch's answer to it.
pub fn probe_path(probe_reply: &[u8]) -> ProbePath {
    let header = fanin::Header::parse_unchecked(probe_reply);
    let code = header.and_then(|header| u8::try_from(header.echo).ok());
    code.and_then(|code| ProbePath::try_from(code).ok()).unwrap_or(ProbePath::Unicast)
}

/// Writes to `output` the header-only form of an Aggregate, for the workers
/// that are not its destination. Returns its length.
pub fn without_payload(aggregate: &[u8], has_checksum: bool, output: &mut [u8]) -> usize {
    let (header, _) = fanin::Header::parse_unsummed(aggregate).expect("the switch's own Aggregate parses");
    seal(&fanin::Header { element_count: 0, ..header }, has_checksum, &mut output[..HEADER_BYTES]);
    HEADER_BYTES
}

/// How a job's datagrams are written.
pub(super) fn seal(header: &fanin::Header, has_checksum: bool, datagram: &mut [u8]) {
    if has_checksum { header.seal(datagram) } else { header.seal_unsummed(datagram) }
}

/// Writes the header in front of an Aggregate's elements.
#[inline(always)]
fn seal_fanin<const SUMMED: bool>(
    job: &Job,
    contribution: &Contribution,
    receiver: u16,
    element_count: u16,
    output: &mut [u8],
) -> usize {
    let copy = job.copy(contribution);
    let header = fanin::Header {
        kind: Kind::Aggregate,
        job_id: job.config.job_id,
        job_token: job.config.job_token,
        worker_rank: receiver,
        slot_index: contribution.slot_index,
        slot_parity: contribution.slot_parity,
        chunk_index: copy.chunk_index,
        collective_tag: copy.collective_tag,
        block_exponent_next: copy.block_exponent_next.0,
        element_count,
        element_format: copy.element_format,
        operator: copy.operator,
        detail: contribution.detail,
        destination: copy.destination,
        echo: accumulate::echo(job, contribution),
    };
    let datagram = &mut output[..header.datagram_bytes()];
    if SUMMED && job.config.has_checksum {
        header.seal(datagram)
    } else {
        header.seal_unsummed(datagram)
    }
    datagram.len()
}

/// As [`seal_fanin`], for a layout with one packet size: every contribution
/// and so every sum is that long.
fn seal_p4app(job: &Job, contribution: &Contribution, output: &mut [u8]) -> usize {
    let copy = job.copy(contribution);
    let header = p4app::Header {
        job_number: (job.config.job_id & 0xff) as u8,
        packet_id: contribution.echo,
        slot_index: contribution.slot_index,
        slot_parity: contribution.slot_parity,
        exponent: copy.block_exponent_next.0 as i8,
        element_count: copy.element_count,
    };
    let datagram = &mut output[..header.datagram_bytes()];
    header.seal(datagram);
    datagram.len()
}
