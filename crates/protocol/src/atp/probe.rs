//! Asking whether a job's longest datagrams get to its server and back, before they are needed.

use fanin_wire::atp::{ElementFormat, Flags, Header, Kind};
use fanin_wire::generated::{ATP_HEADER_BYTES, Operator, RANK_ALL};

use super::WorkerConfig;

/// Writes a Probe of `element_count` elements to `output`, which must hold it; returns its length. Every switch on the way
/// learns from it where the worker is. `attempt` tells answers apart, as far as that is needed.
pub fn write_probe(config: &WorkerConfig, element_count: u16, attempt: u8, output: &mut [u8]) -> usize {
    let header = Header {
        kind: Kind::Probe,
        job_id: config.job_id,
        job_token: config.job_token,
        chunk_index: 0,
        collective_tag: 0,
        contributed: config.way.contributed(config.level_count),
        fan_in: config.way.fan_in,
        level: config.way.level,
        flags: Flags::default(),
        lane: config.lane,
        slot_index: 0,
        slot_index_next: 0,
        worker_rank: config.rank,
        element_count,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: attempt,
        destination: RANK_ALL,
        scale: 0,
        scale_next: 0,
        echo: 0,
    };
    let datagram = &mut output[..header.datagram_bytes()];
    datagram[ATP_HEADER_BYTES..].fill(0);
    header.seal(datagram);
    datagram.len()
}

/// Whether a datagram answers a Probe of this worker with as many elements.
pub fn answers_probe(config: &WorkerConfig, element_count: u16, datagram: &[u8]) -> bool {
    Header::parse(datagram).is_ok_and(|(header, _)| {
        header.kind == Kind::ProbeReply
            && (header.job_id, header.job_token) == (config.job_id, config.job_token)
            && (header.worker_rank, header.lane) == (config.rank, config.lane)
            && header.element_count == element_count
    })
}
