//! Writing what the server has to say.

use fanin_wire::atp::{Flags, Header, Kind, LEVEL_COUNT_MAX};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};

use super::Server;
use super::chunk::{Chunk, Phase};
use crate::DropReason;
use crate::atp::Missing;
use crate::atp::switch::decide;

/// A datagram for the job's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length.
    pub bytes: usize,
}

/// What waits to be sent.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// A chunk's sum, or the wish for floats, to one rank or `RANK_ALL`.
    Parameter { chunk_index: u32, receiver: u16 },
    /// A Fragment was not used.
    Refusal(DropReason, Header),
    /// A worker asks for the way.
    ProbeReply(Header),
}

impl core::hash::Hash for Answer {
    fn hash<H: core::hash::Hasher>(&self, hasher: &mut H) {
        match self {
            Answer::Parameter { chunk_index, receiver } => (0, chunk_index, receiver).hash(hasher),
            Answer::Refusal(reason, header) => (1, reason, header.chunk_index, header.worker_rank).hash(hasher),
            Answer::ProbeReply(header) => (2, header.worker_rank, header.element_count).hash(hasher),
        }
    }
}

impl Server {
    /// Writes the next datagram to `output`, which must hold the job's largest. All go to the switch beside the server.
    pub fn poll_transmit(&mut self, output: &mut [u8]) -> Option<Transmit> {
        loop {
            match self.answers.pop_front()? {
                Answer::Refusal(reason, header) => {
                    return Some(Transmit { bytes: decide::refusal(reason, &header, output) });
                }
                Answer::ProbeReply(probe) => return Some(Transmit { bytes: reply_to_probe(&probe, output) }),
                Answer::Parameter { chunk_index, receiver } => {
                    let chunk = &self.chunks[self.place(chunk_index)];
                    // It may have gone on since, and then nobody awaits it.
                    if chunk.chunk_index == chunk_index && !matches!(chunk.phase, Phase::Collecting) {
                        return Some(Transmit { bytes: self.write(chunk, receiver, output) });
                    }
                }
            }
        }
    }

    fn write(&self, chunk: &Chunk, receiver: u16, output: &mut [u8]) -> usize {
        let header = self.header(chunk, receiver);
        let datagram = &mut output[..header.datagram_bytes()];
        chunk.emit(&mut datagram[ATP_HEADER_BYTES..]);
        header.seal(datagram);
        datagram.len()
    }

    fn header(&self, chunk: &Chunk, receiver: u16) -> Header {
        let tree = &self.config.tree;
        let reader = if receiver == RANK_ALL { chunk.destination } else { receiver };
        // Nobody reads what was for a worker that was lost.
        let has_reader = chunk.destination == RANK_ALL || !tree.lost().contains(chunk.destination);
        let is_reader =
            has_reader && (chunk.destination == RANK_ALL || receiver == RANK_ALL || receiver == chunk.destination);
        let is_everybody = reader == RANK_ALL || tree.lost().contains(reader);
        let way = if is_everybody { [0; LEVEL_COUNT_MAX] } else { tree.way(reader).contributed(tree.level_count()) };
        let mut header = Header {
            kind: Kind::Parameter,
            job_id: self.config.job_id,
            job_token: self.config.job_token,
            chunk_index: chunk.chunk_index,
            collective_tag: chunk.collective_tag,
            contributed: way,
            fan_in: [0; LEVEL_COUNT_MAX],
            level: tree.level_count() - 1,
            flags: Flags { ecn: chunk.ecn, is_saturated: !chunk.is_complete(), ..Flags::default() },
            lane: self.config.lane,
            slot_index: chunk.slot_index,
            slot_index_next: chunk.slot_index_next,
            worker_rank: receiver,
            element_count: if chunk.is_complete() && is_reader { chunk.element_count } else { 0 },
            element_format: chunk.element_format,
            operator: chunk.operator,
            detail: 0,
            destination: chunk.destination,
            scale: chunk.scale,
            scale_next: if chunk.is_complete() { chunk.scale_next } else { 0 },
            echo: 0,
        };
        if chunk.is_complete() {
            Missing::from(&chunk.contributed, tree.worker_count()).write(&mut header);
        }
        header
    }
}

/// Why a datagram for none of a server's lanes is dropped, and the length of the Refusal that was written to `output`, 0 if
/// there is none. `is_job_known`: the server has other lanes of the job that the datagram names.
pub fn refuse_stray(datagram: &[u8], is_job_known: bool, output: &mut [u8]) -> (DropReason, usize) {
    let header = match Header::parse(datagram) {
        Ok((header, _)) => header,
        Err(error) => return (error.into(), 0),
    };
    let reason = if is_job_known { DropReason::BadSlot } else { DropReason::UnknownJob };
    if header.kind != Kind::Fragment {
        return (reason, 0);
    }
    (reason, decide::refusal(reason, &header, output))
}

/// As long as the Probe, and back on its way.
fn reply_to_probe(probe: &Header, output: &mut [u8]) -> usize {
    let header = Header { kind: Kind::ProbeReply, level: probe.level - 1, ..*probe };
    let datagram = &mut output[..header.datagram_bytes()];
    datagram[ATP_HEADER_BYTES..].fill(0);
    header.seal(datagram);
    datagram.len()
}
