//! Workers and a switch in one loop without a network: what goes in comes out.

use fanin_numeric::{BlockExponent, block_fixed};
use fanin_protocol::Verdict;
use fanin_protocol::switchml::{
    BlockId, Context, Event, JobConfig, Participants, Shape, Submission, Switch, Tensors, WireFormat, Worker,
    WorkerConfig,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::{ElementFormat, Operator};

const K: u16 = 32;

struct Floats {
    values: Vec<Vec<f32>>,
    worker_count: u16,
}

impl Floats {
    fn range(&self, id: BlockId) -> std::ops::Range<usize> {
        let start = id.block as usize * usize::from(K);
        start..(start + usize::from(K)).min(self.values[id.collective as usize].len())
    }
}

impl Tensors for Floats {
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        block_fixed::exponent_f32(&self.values[id.collective as usize][self.range(id)])
    }
    fn write_block(&mut self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]) {
        let f = block_fixed::scale(exponent, self.worker_count);
        block_fixed::quantize_f32(&self.values[id.collective as usize][self.range(id)], f, payload);
    }
    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, _: u8, payload: &[u8]) {
        let range = self.range(id);
        let out = &mut self.values[id.collective as usize][range];
        if payload.is_empty() {
            return block_fixed::fill_nan_f32(out);
        }
        block_fixed::dequantize_f32(payload, block_fixed::scale(exponent, self.worker_count), 1.0, out);
    }
}

fn config(rank: u16, worker_count: u16, wire_format: WireFormat) -> WorkerConfig {
    WorkerConfig {
        job_id: 7,
        job_token: 99,
        rank,
        number: rank,
        worker_count,
        lane: 0,
        slots_per_lane: 4,
        element_count_max: K,
        has_checksum: true,
        wire_format,
        resend_timeout_initial: Span::from_ms(10),
        resend_timeout_min: Span::from_ms(1),
        resend_timeout_max: Span::from_ms(100),
    }
}

fn submission(id: u64, elements: usize) -> Submission {
    let shape = Shape { shard_count: 1, shard_elements: elements as u64, block_elements: K };
    Submission {
        id,
        collective_tag: id as u32,
        shape,
        block_first: 0,
        block_count: shape.block_count() as u32,
        contributors: Participants::Everyone,
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format: ElementFormat::Int32,
        scaled: true,
    }
}

fn run(worker_count: u16, lengths: &[usize], wire_format: WireFormat) -> (Vec<Floats>, Vec<Event>) {
    let mut switch = Switch::new();
    switch
        .install(JobConfig {
            job_id: 7,
            job_token: 99,
            worker_count,
            lane_count: 1,
            slots_per_lane: 4,
            element_count_max: K,
            has_checksum: true,
            accumulator: fanin_wire::Accumulator::BlockFixed,
            wire_format,
        })
        .unwrap();
    let mut workers: Vec<Worker> =
        (0..worker_count).map(|rank| Worker::new(config(rank, worker_count, wire_format))).collect();
    let mut tensors: Vec<Floats> = (0..worker_count)
        .map(|rank| Floats {
            worker_count,
            values: lengths
                .iter()
                .map(|&n| (0..n).map(|i| (i as f32 - 20.0) * f32::from(rank + 1)).collect())
                .collect(),
        })
        .collect();
    for worker in &mut workers {
        for (id, &elements) in lengths.iter().enumerate() {
            worker.submit(submission(id as u64, elements));
        }
    }
    let mut events = Vec::new();
    let mut now = Time::ZERO;
    for _ in 0..10_000 {
        now += Span::from_us(1);
        for rank in 0..workers.len() {
            let mut packet = [0; 2048];
            let Some(bytes) = workers[rank].poll_transmit(now, &mut tensors[rank], &mut packet) else { continue };
            let mut output = [0; 2048];
            let context = Context { now, wire_format, source_rank: Some(rank as u16) };
            match switch.process(&context, &packet[..bytes], &mut output) {
                Verdict::Multicast { bytes, .. } => {
                    for (worker, tensors) in workers.iter_mut().zip(&mut tensors) {
                        worker.handle_packet(now, &output[..bytes], tensors);
                    }
                }
                Verdict::Drop(reason) => assert_eq!(reason.name(), "awaiting_others"),
                other => panic!("unexpected {other:?}"),
            }
        }
        for worker in &mut workers {
            while let Some(event) = worker.poll_event() {
                events.push(event);
            }
        }
    }
    assert!(workers.iter().all(Worker::is_idle));
    (tensors, events)
}

#[test]
fn three_workers_sum_several_tensors_in_one_stream() {
    for wire_format in [WireFormat::Fanin, WireFormat::P4app] {
        let lengths = [1000, 5, 129, 64];
        let (tensors, events) = run(3, &lengths, wire_format);
        for floats in &tensors {
            for (values, n) in floats.values.iter().zip(lengths) {
                assert_eq!(values.len(), n);
                for (i, value) in values.iter().enumerate() {
                    assert_eq!(*value, (i as f32 - 20.0) * 6.0, "element {i} of {n} in {wire_format:?}");
                }
            }
        }
        assert_eq!(events.len(), 3 * lengths.len());
    }
}

#[test]
fn one_worker_sums_alone() {
    let (tensors, _) = run(1, &[77], WireFormat::Fanin);
    assert_eq!(tensors[0].values[0][76], 56.0);
}
