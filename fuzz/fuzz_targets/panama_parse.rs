//! Any bytes, sealed or not, to a PANAMA switch, below another or not, and to a worker: no panic, what parses is emitted as it was, and
//! memory is kept to.
#![no_main]

use fanin_protocol::panama::{
    CongestionControl, Context, Floats, Switch, SwitchConfig, Tensors, TreeConfig, Worker, WorkerConfig,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::PANAMA_HEADER_BYTES;
use fanin_wire::panama::{ElementFormat, Header, Kind};
use fanin_wire::{ElementFormat as FaninFormat, Operator};
use libfuzzer_sys::fuzz_target;

const ELEMENTS: u16 = 16;
const JOB_ID: u32 = 1;
const JOB_TOKEN: u32 = 2;
const WINDOW: u32 = 4;
const MEMORY: u32 = 6;

struct Zeros;

impl Tensors for Zeros {
    fn write_block(&mut self, _: BlockId, _: ElementFormat, payload: &mut [u8]) {
        payload.fill(0);
    }
    fn read_block(&mut self, _: BlockId, _: ElementFormat, _: u16, _: &[u8]) {}
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut packets: Vec<Vec<u8>> = bytes.chunks(PANAMA_HEADER_BYTES + 9).map(<[u8]>::to_vec).collect();
    packets.iter_mut().for_each(|packet| repair(packet));
    packets.iter().for_each(|packet| round_trip(packet));
    to_a_switch(choice & 1 == 1, choice >> 1 & 1 == 1, &packets);
    to_a_worker(&packets);
});

/// The first byte says whether to make the rest a packet of the job with a valid checksum: chance would hardly do that.
fn repair(packet: &mut Vec<u8>) {
    if packet.len() <= PANAMA_HEADER_BYTES {
        return;
    }
    let choice = packet.remove(0);
    if choice & 1 == 0 {
        return;
    }
    let kind = Kind::ALL[usize::from(choice >> 1 & 3) % Kind::ALL.len()];
    packet[..12].copy_from_slice(&[0xFA, 0x93, 1, kind.code(), 0, 0, 0, JOB_ID as u8, 0, 0, 0, JOB_TOKEN as u8]);
    // Small numbers meet.
    for field in [12, 16] {
        packet[field..field + 3].fill(0);
        packet[field + 3] &= 7;
    }
    packet[24] &= 1;
    let elements = (packet.len() - PANAMA_HEADER_BYTES) / 4;
    packet[32..34].copy_from_slice(&(elements as u16).to_be_bytes());
    packet[34] = 0;
    packet.truncate(PANAMA_HEADER_BYTES + 4 * elements);
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

fn to_a_switch(is_root: bool, is_partial: bool, packets: &[Vec<u8>]) {
    let config = SwitchConfig { memory_packets: MEMORY, pause_packets: 2, element_count_max: ELEMENTS };
    let mut switch: Switch<Floats> = Switch::new(config);
    let tree = TreeConfig {
        job_id: JOB_ID,
        job_token: JOB_TOKEN,
        tree: 0,
        ports: 0b101,
        parent: (!is_root).then_some(1),
        window_max: WINDOW,
        quorum: if is_partial { 1 } else { 2 },
    };
    switch.install(tree).expect("a valid tree");
    let mut output = [0; 4096];
    for (number, packet) in packets.iter().enumerate() {
        let context = Context { port: (number % 4) as u8, is_marked: number % 5 == 0 };
        let mut next = Some(switch.process(&context, packet, &mut output));
        while let Some(verdict) = next {
            if let Some(header) = verdict.header() {
                let written = Header::parse(&output[..header.datagram_bytes()]).expect("what leaves is a datagram");
                assert_eq!(written.0, *header);
            }
            next = switch.proceed(&mut output);
        }
        assert!(switch.packet_count() <= MEMORY + if is_root { 0 } else { WINDOW });
        assert_eq!(switch.paused_ports() & !0b101, 0);
    }
    switch.remove(JOB_ID);
    assert_eq!(switch.packet_count(), 0);
}

fn to_a_worker(packets: &[Vec<u8>]) {
    let mut worker = Worker::new(WorkerConfig {
        job_id: JOB_ID,
        job_token: JOB_TOKEN,
        rank: 0,
        tree_count: 2,
        window_max: WINDOW,
        congestion_control: CongestionControl::FIG_5,
        resend_timeout_initial: Span::from_ms(10),
        resend_timeout_min: Span::from_ms(1),
        resend_timeout_max: Span::from_ms(50),
    });
    let shape = Shape { shard_count: 1, shard_elements: 20, block_elements: 2 };
    let submission = Submission {
        id: 0,
        collective_tag: 0,
        shape,
        block_first: 0,
        block_count: shape.block_count() as u32,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: FaninFormat::Int32,
        scaled: true,
    };
    worker.submit(submission).expect("a sum of floats");
    worker.finish();
    let mut output = [0; 4096];
    for (number, packet) in (1..).zip(packets) {
        while worker.poll_transmit(Time::from_ns(number), &mut Zeros, &mut output).is_some() {}
        worker.handle_packet(Time::from_ns(number), packet, number % 3 == 0, &mut Zeros);
        while worker.poll_event().is_some() {}
        (0..2).for_each(|tree| assert!(worker.outstanding(tree) <= u64::from(WINDOW)));
    }
}
