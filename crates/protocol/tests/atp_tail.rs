//! The end of a stream is lost: nothing behind it shows that, so the timer has to find all of it.

use fanin_numeric::BlockExponent;
use fanin_protocol::atp::{
    CongestionControl, Indexing, Scale, Server, ServerConfig, SetUp, Tensors, Tree, Worker, WorkerConfig,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::Operator;
use fanin_wire::atp::{ElementFormat, Header};
use fanin_wire::generated::ATP_HEADER_BYTES;

const CHUNKS: u32 = 64;
const TIMEOUT_MIN: Span = Span::from_ms(2);

struct Ones;

impl Tensors for Ones {
    fn write_block(&mut self, _: BlockId, _: ElementFormat, _: BlockExponent, payload: &mut [u8]) {
        payload.copy_from_slice(&1u32.to_be_bytes());
    }

    fn read_block(&mut self, _: BlockId, _: ElementFormat, _: BlockExponent, payload: &[u8]) {
        assert_eq!(payload, 1u32.to_be_bytes(), "the sum of one worker");
    }
}

fn submission(id: u64) -> Submission {
    Submission {
        id,
        collective_tag: id as u32,
        shape: Shape { shard_count: 1, shard_elements: CHUNKS.into(), block_elements: 1 },
        block_first: 0,
        block_count: CHUNKS,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: fanin_wire::ElementFormat::Int32,
        scaled: false,
    }
}

/// One worker right beside its server: a switch would only pass its packets on.
struct Pair {
    worker: Worker,
    server: Server,
    now: Time,
}

impl Pair {
    fn starting_at(position: u64) -> Pair {
        let tree = Tree::one_switch(1).unwrap();
        let worker = WorkerConfig {
            job_id: 1,
            job_token: 2,
            rank: 0,
            lane: 0,
            way: *tree.way(0),
            level_count: 1,
            slot_count: 8,
            indexing: Indexing::Hash,
            element_count_max: 1,
            window_max: CHUNKS,
            scale: Scale::Dynamic,
            congestion_control: CongestionControl::Off,
            resend_timeout_initial: Span::from_ms(20),
            resend_timeout_min: TIMEOUT_MIN,
            resend_timeout_max: Span::from_ms(1000),
        };
        let server = ServerConfig {
            job_id: 1,
            job_token: 2,
            lane: 0,
            tree,
            slot_count: 8,
            window_max: CHUNKS,
            element_count_max: 1,
            stragglers: None,
            overflow_often: 0,
        };
        let worker = Worker::starting_at(worker, position, 0);
        Pair { worker, server: Server::new(server), now: Time::ZERO }
    }

    /// Everything that is ready, there and back in 50 µs, but for new Fragments from the chunk `lost` on.
    fn exchange(&mut self, lost: u32) -> usize {
        let mut output = [0; ATP_HEADER_BYTES + 4];
        let mut sent = 0;
        while let Some(bytes) = self.worker.poll_transmit(self.now, &mut Ones, &mut output) {
            let (mut header, payload) = Header::parse(&output[..bytes]).unwrap();
            sent += 1;
            if header.chunk_index < lost || header.flags.resend {
                // What the switch of one worker does.
                header.level += 1;
                let payload = payload.to_vec();
                output[ATP_HEADER_BYTES..bytes].copy_from_slice(&payload);
                header.seal(&mut output[..bytes]);
                self.server.handle_packet(self.now, &output[..bytes]);
            }
        }
        self.now += Span::from_us(50);
        while let Some(transmit) = self.server.poll_transmit(&mut output) {
            self.worker.handle_packet(self.now, &output[..transmit.bytes], &mut Ones);
        }
        sent
    }
}

#[test]
fn a_lost_end_takes_the_logarithm_of_its_length() {
    let mut pair = Pair::starting_at(0);
    pair.worker.submit(submission(1));
    pair.worker.submit(submission(2));
    // The first collective is measured, the second is lost but for its first chunk.
    pair.exchange(CHUNKS + 1);
    pair.exchange(CHUNKS + 1);
    assert!(!pair.worker.is_idle());
    let (mut bursts, start) = (Vec::new(), pair.now);
    while !pair.worker.is_idle() {
        pair.now = pair.worker.poll_timeout().expect("it waits for something");
        pair.worker.handle_timeout(pair.now);
        bursts.push(pair.exchange(CHUNKS));
    }
    assert_eq!(bursts, [1, 2, 4, 8, 16, 32], "63 chunks");
    assert!(pair.now.since(start) < TIMEOUT_MIN.saturating_mul(7), "no back-off where it makes progress");
}

#[test]
fn a_stream_may_begin_anywhere() {
    let begin = u64::from(u32::MAX) - 10;
    let mut pair = Pair::starting_at(begin);
    // What a server that has served the lost worker knows.
    let tree = Tree::one_switch(1).unwrap();
    pair.worker.submit(submission(1));
    let way = *tree.way(0);
    let set_up = SetUp { job_token: 2, way, level_count: 1, lost_count: 0, has_newcomer: true };
    pair.worker.set_up_again(pair.now, set_up);
    let mut output = [0; ATP_HEADER_BYTES + 4];
    let mut chunks = Vec::new();
    while let Some(bytes) = pair.worker.poll_transmit(pair.now, &mut Ones, &mut output) {
        let (header, _) = Header::parse(&output[..bytes]).unwrap();
        assert!(!header.flags.resend, "told the token that it has, a worker sends nothing again");
        chunks.push(header.chunk_index);
    }
    assert_eq!(chunks.len(), CHUNKS as usize);
    assert_eq!((chunks[0], chunks[11]), (begin as u32, 0), "chunk indices wrap");
}
