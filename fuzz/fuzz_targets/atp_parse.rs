//! Any bytes, sealed or not, to an ATP switch, server and worker: no panic, and what parses is emitted as it was.
#![no_main]

use fanin_numeric::BlockExponent;
use fanin_protocol::atp::{
    CongestionControl, Context, Indexing, JobConfig, Scale, Server, ServerConfig, Switch, SwitchConfig, Tensors, Tree,
    Verdict, Worker, WorkerConfig, without_payload,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::atp::{ElementFormat, Header, Kind};
use fanin_wire::generated::ATP_HEADER_BYTES;
use fanin_wire::{Accumulator, ElementFormat as FaninFormat, Operator};
use libfuzzer_sys::fuzz_target;

const ELEMENTS: u16 = 32;
const JOB_ID: u8 = 1;
const JOB_TOKEN: u8 = 2;
const SLOTS: u16 = 4;
const WINDOW: u32 = 2;

struct Zeros;

impl Tensors for Zeros {
    fn write_block(&mut self, _: BlockId, _: ElementFormat, _: BlockExponent, payload: &mut [u8]) {
        payload.fill(0);
    }
    fn read_block(&mut self, _: BlockId, _: ElementFormat, _: BlockExponent, _: &[u8]) {}
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut packet = bytes.to_vec();
    if choice & 1 != 0 {
        repair(choice, &mut packet);
    }
    round_trip(&packet);
    let level = choice >> 6 & 1;
    let accumulator = if choice & 0x80 == 0 { Accumulator::StaticFixed } else { raw(level, packet.len()) };
    to_a_switch(level, accumulator, &packet);
    to_the_server(accumulator, &packet);
    to_a_worker(&packet);
});

/// An accumulator of floats. Making log-table's tables would take longer than all the rest.
fn raw(level: u8, length: usize) -> Accumulator {
    match length / 2 % 4 {
        0 => Accumulator::Fpisa,
        1 => Accumulator::FpisaA,
        // Only the lowest level adds exactly.
        2 if level == 0 => Accumulator::Exact,
        _ => Accumulator::Ieee,
    }
}

/// Makes any bytes a packet of the job, of the kind that is asked for, with a valid checksum: chance would hardly do that.
fn repair(choice: u8, packet: &mut [u8]) {
    if packet.len() < ATP_HEADER_BYTES {
        return;
    }
    let kind = Kind::ALL[usize::from(choice >> 1 & 7) % Kind::ALL.len()];
    packet[..4].copy_from_slice(&[0xFA, 0x92, 1, kind.code()]);
    if choice & 0x10 == 0 {
        packet[4..12].copy_from_slice(&[0, 0, 0, JOB_ID, 0, 0, 0, JOB_TOKEN]);
    }
    if choice & 0x20 != 0 {
        let element_bytes = Header::parse_unchecked(packet).map_or(4, |header| header.element_format.bytes());
        let elements = (packet.len() - ATP_HEADER_BYTES) / element_bytes;
        packet[50..52].copy_from_slice(&(elements as u16).to_be_bytes());
    }
    if let Some(header) = Header::parse_unchecked(packet)
        && header.datagram_bytes() == packet.len()
    {
        header.seal(packet);
    }
}

fn round_trip(packet: &[u8]) {
    if let Ok((header, payload)) = Header::parse(packet) {
        let mut again = packet.to_vec();
        header.seal(&mut again);
        // Bits of the flags that mean nothing yet are not kept.
        assert_eq!(Header::parse(&again), Ok((header, payload)));
    }
}

fn tree() -> Tree {
    Tree::racks(&[2, 1], 1).expect("a tree")
}

fn to_a_switch(level: u8, accumulator: Accumulator, packet: &[u8]) {
    let mut switch = Switch::new(SwitchConfig {
        slot_count: SLOTS,
        element_count_max: ELEMENTS,
        slot_age_max: Span::from_ns(1),
        ecn_threshold_bytes: 10,
    });
    let job = JobConfig {
        job_id: JOB_ID.into(),
        job_token: JOB_TOKEN.into(),
        lane_count: 2,
        level,
        accumulator,
        worker_count: tree().worker_count(),
    };
    switch.install(job).expect("a valid job");
    let mut output = [0; 4096];
    let mut header = [0; ATP_HEADER_BYTES];
    for (now, queue) in [(0, 0), (1, 11), (9, 0)] {
        let context = Context { now: Time::from_ns(now), egress_queue_bytes: queue };
        let verdict = switch.process(&context, packet, &mut output);
        let bytes = match verdict {
            Verdict::Drop(_) => continue,
            Verdict::Refuse { bytes, .. } | Verdict::Up { bytes } => bytes,
            Verdict::Down { bytes, .. } => {
                assert_eq!(without_payload(&output[..bytes], &mut header), ATP_HEADER_BYTES);
                bytes
            }
        };
        Header::parse(&output[..bytes]).expect("what leaves a switch is a datagram");
    }
    switch.remove(JOB_ID.into());
    assert_eq!(switch.slots_in_use(None), 0);
}

fn to_the_server(accumulator: Accumulator, packet: &[u8]) {
    let mut server = Server::new(ServerConfig {
        job_id: JOB_ID.into(),
        job_token: JOB_TOKEN.into(),
        lane: 0,
        tree: tree(),
        slot_count: SLOTS,
        window_max: WINDOW,
        element_count_max: ELEMENTS,
        stragglers: None,
        accumulator,
        overflow_often: 1,
    });
    let mut output = [0; 4096];
    for _ in 0..2 {
        server.handle_packet(Time::ZERO, packet);
        while let Some(transmit) = server.poll_transmit(&mut output) {
            Header::parse(&output[..transmit.bytes]).expect("what leaves a server is a datagram");
        }
    }
}

fn to_a_worker(packet: &[u8]) {
    let tree = tree();
    let mut worker = Worker::new(WorkerConfig {
        job_id: JOB_ID.into(),
        job_token: JOB_TOKEN.into(),
        rank: 0,
        lane: 0,
        way: *tree.way(0),
        level_count: tree.level_count(),
        slot_count: SLOTS,
        indexing: Indexing::Hash,
        element_count_max: ELEMENTS,
        window_max: WINDOW,
        scale: Scale::Dynamic,
        congestion_control: CongestionControl::Aimd { window_initial: 2, step: 1 },
        resend_timeout_initial: Span::from_ms(10),
        resend_timeout_min: Span::from_ms(1),
        resend_timeout_max: Span::from_ms(50),
    });
    let shape = Shape { shard_count: 1, shard_elements: 100, block_elements: ELEMENTS };
    worker.submit(Submission {
        id: 0,
        collective_tag: 3,
        shape,
        block_first: 0,
        block_count: shape.block_count() as u32,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: FaninFormat::Int32,
        scaled: true,
    });
    let mut output = [0; 4096];
    while worker.poll_transmit(Time::ZERO, &mut Zeros, &mut output).is_some() {}
    worker.handle_packet(Time::from_ns(1), packet, &mut Zeros);
    while worker.poll_transmit(Time::from_ns(2), &mut Zeros, &mut output).is_some() {}
    while worker.poll_event().is_some() {}
}
