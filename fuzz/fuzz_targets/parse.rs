//! Any bytes, sealed or not, to a switch and to a worker in either layout:
//! no panic, and what parses is emitted as it was.
#![no_main]

use fanin_numeric::BlockExponent;
use fanin_protocol::switchml::{
    BlockId, Context, JobConfig, Participants, Shape, Submission, Switch, Tensors, WireFormat, Worker, WorkerConfig,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::HEADER_BYTES;
use fanin_wire::{ElementFormat, Kind, Operator, fanin, p4app};
use libfuzzer_sys::fuzz_target;

const ELEMENTS: u16 = 32;
const JOB_ID: u8 = 1;
const JOB_TOKEN: u8 = 2;

struct Zeros;

impl Tensors for Zeros {
    fn block_exponent(&mut self, _: BlockId) -> BlockExponent {
        BlockExponent::MIN
    }
    fn write_block(&mut self, _: BlockId, _: BlockExponent, payload: &mut [u8]) {
        payload.fill(0);
    }
    fn read_block(&mut self, _: BlockId, _: BlockExponent, _: u8, _: &[u8]) {}
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let wire_format = if choice & 1 == 0 { WireFormat::Fanin } else { WireFormat::P4app };
    let mut packet = bytes.to_vec();
    if choice & 2 != 0 {
        repair(choice, &mut packet);
    }
    round_trip(&packet);
    to_the_switch(wire_format, &packet);
    to_a_worker(wire_format, &packet);
});

/// Makes any bytes a packet of the job, of the kind that is asked for, with a
/// valid checksum: chance would hardly do that.
fn repair(choice: u8, packet: &mut [u8]) {
    if packet.len() < HEADER_BYTES {
        return;
    }
    let kind = Kind::ALL[usize::from(choice >> 2 & 7) % Kind::ALL.len()];
    packet[..4].copy_from_slice(&[0xFA, 0x91, 1, kind.code()]);
    if choice & 0x20 == 0 {
        packet[4..12].copy_from_slice(&[0, 0, 0, JOB_ID, 0, 0, 0, JOB_TOKEN]);
    }
    if let Some(header) = fanin::Header::parse_unchecked(packet)
        && header.datagram_bytes() == packet.len()
    {
        header.seal(packet);
    }
}

fn round_trip(packet: &[u8]) {
    if let Ok((header, _)) = fanin::Header::parse(packet) {
        let mut again = packet.to_vec();
        header.seal(&mut again);
        assert_eq!(again, packet);
    }
    if let Ok((header, _)) = p4app::Header::parse(packet) {
        let mut again = packet.to_vec();
        header.seal(&mut again);
        assert_eq!(p4app::Header::parse(&again).map(|(header, _)| header), Ok(header));
    }
}

fn to_the_switch(wire_format: WireFormat, packet: &[u8]) {
    let mut switch = Switch::new();
    let job = JobConfig {
        job_id: u32::from(JOB_ID),
        job_token: u32::from(JOB_TOKEN),
        worker_count: 2,
        lane_count: 1,
        slots_per_lane: 2,
        element_count_max: ELEMENTS,
        has_checksum: true,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        wire_format,
    };
    switch.install(job).expect("a valid job");
    let context = Context { now: Time::ZERO, wire_format, source_rank: Some(1) };
    let mut output = [0; 4096];
    switch.process(&context, packet, &mut output);
    switch.process(&context, packet, &mut output);
}

fn to_a_worker(wire_format: WireFormat, packet: &[u8]) {
    let mut worker = Worker::new(WorkerConfig {
        job_id: u32::from(JOB_ID),
        job_token: u32::from(JOB_TOKEN),
        rank: 0,
        number: 0,
        worker_count: 2,
        lane: 0,
        slots_per_lane: 2,
        element_count_max: ELEMENTS,
        has_checksum: true,
        wire_format,
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
        element_format: ElementFormat::Int32,
        scaled: true,
    });
    let mut output = [0; 4096];
    while worker.poll_transmit(Time::ZERO, &mut Zeros, &mut output).is_some() {}
    worker.handle_packet(Time::from_ns(1), packet, &mut Zeros);
    while worker.poll_transmit(Time::from_ns(2), &mut Zeros, &mut output).is_some() {}
    while worker.poll_event().is_some() {}
}
