//! The switch program as a value, without sockets.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fanin_protocol::Verdict;
use fanin_protocol::switchml::{Context, JobConfig, Switch, WireFormat};
use fanin_protocol::time::Time;
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, fanin};
use serde::Serialize;

use super::Arguments;
use crate::bench::process::check_interrupted;
use crate::bench::statistics::median;

const JOB_ID: u32 = 1;
const JOB_TOKEN: u32 = 2;
/// The yardstick's block: with its target, half of a megabyte of second-level cache.
const COPY_BYTES: usize = 256 << 10;
/// Bytes of contributions in a batch, about a receive batch: they and the slots stay in the cache.
const BATCH_BYTES: usize = 128 << 10;

/// One payload.
#[derive(Debug, Serialize)]
pub struct Case {
    pub payload_bytes: u64,
    /// One contribution through the program.
    pub packet_ns: f64,
    /// Of these, parsing its header and its CRC-32C.
    pub checks_ns: f64,
    pub memcpy_gb_per_s: f64,
    /// Payload bytes per second over memcpy's, of the same round.
    pub share_of_memcpy: f64,
    /// The same, with the checks' time taken off.
    pub share_without_checks: f64,
    /// Elements of Aggregates that were not the sum.
    pub wrong_elements: u64,
}

/// Contributions of all ranks to all slots, and the switch that sums them.
struct Core {
    switch: Switch,
    slots: u32,
    ranks: u16,
    chunk: u32,
    packets: Vec<Vec<u8>>,
    output: Vec<u8>,
}

/// Measures every payload, beside a memcpy, round by round.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Case>> {
    let sample = Duration::from_millis(arguments.sample_ms);
    let measure = |&payload_bytes: &u64| {
        check_interrupted()?;
        let mut core = Core::new(payload_bytes as usize, arguments.ranks);
        let rounds: Vec<_> = (0..arguments.rounds).map(|_| Round::measure(&mut core, sample)).collect();
        let of = |value: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
        let bytes = payload_bytes as f64;
        let case = Case {
            payload_bytes,
            packet_ns: of(&|round| round.packet_ns),
            checks_ns: of(&|round| round.checks_ns),
            memcpy_gb_per_s: of(&|round| 1.0 / round.copy_ns_per_byte),
            share_of_memcpy: of(&|round| round.copy_ns_per_byte * bytes / round.packet_ns),
            share_without_checks: of(&|round| {
                round.copy_ns_per_byte * bytes / (round.packet_ns - round.checks_ns).max(f64::MIN_POSITIVE)
            }),
            wrong_elements: core.count_wrong(),
        };
        eprintln!("core, {payload_bytes} B: {:.1} ns, {:.0} % of memcpy", case.packet_ns, 100.0 * case.share_of_memcpy);
        Ok(case)
    };
    arguments.payloads.iter().map(measure).collect()
}

/// One turn of everything.
struct Round {
    packet_ns: f64,
    checks_ns: f64,
    copy_ns_per_byte: f64,
}

impl Round {
    fn measure(core: &mut Core, sample: Duration) -> Round {
        let (source, mut target) = (vec![1u8; COPY_BYTES], vec![2u8; COPY_BYTES]);
        let copy = repeat(sample, || time(|| black_box(&mut target).copy_from_slice(black_box(&source))));
        let packets = core.packets.len() as f64;
        let packet_ns = repeat(sample, || core.batch()) / packets;
        let checks_ns = repeat(sample, || {
            core.renew();
            time(|| {
                core.packets.iter().for_each(|packet| {
                    let _ = black_box(fanin::Header::parse(packet));
                });
            })
        }) / packets;
        Round { packet_ns, checks_ns, copy_ns_per_byte: copy / COPY_BYTES as f64 }
    }
}

impl Core {
    fn new(payload_bytes: usize, ranks: u16) -> Core {
        let elements = (payload_bytes / 4) as u16;
        let per_slot = payload_bytes * usize::from(ranks);
        let slots = ((BATCH_BYTES / per_slot).max(2) as u32).next_power_of_two();
        let config = JobConfig {
            job_id: JOB_ID,
            job_token: JOB_TOKEN,
            worker_count: ranks,
            lane_count: 1,
            slots_per_lane: slots,
            element_count_max: elements,
            has_checksum: true,
            accumulator: fanin_wire::Accumulator::BlockFixed,
            wire_format: WireFormat::Fanin,
        };
        let mut switch = Switch::new();
        switch.install(config).unwrap_or_else(|error| panic!("the flags' bounds allow only jobs that fit: {error:?}"));
        let packet = |slot, rank| {
            let header = header(slot, slot, 0, rank, elements);
            let mut bytes = vec![0; header.datagram_bytes()];
            fill(&mut bytes[HEADER_BYTES..], rank);
            bytes
        };
        let packets = (0..slots).flat_map(|slot| (0..ranks).map(move |rank| packet(slot, rank))).collect();
        Core { switch, slots, ranks, chunk: 0, packets, output: vec![0; HEADER_BYTES + payload_bytes] }
    }

    /// Makes the packets the next chunks' of all slots: a worker's work, not the switch's.
    fn renew(&mut self) {
        let (ranks, slots, base) = (usize::from(self.ranks), self.slots, self.chunk);
        let elements = ((self.output.len() - HEADER_BYTES) / 4) as u16;
        for (index, packet) in self.packets.iter_mut().enumerate() {
            let (slot, rank) = ((index / ranks) as u32, (index % ranks) as u16);
            let parity = ((base / slots) & 1) as u8;
            header(base.wrapping_add(slot), slot, parity, rank, elements).seal(packet);
        }
    }

    /// One contribution of every rank to every slot: the switch's time.
    fn batch(&mut self) -> Duration {
        self.renew();
        let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
        let (switch, output) = (&mut self.switch, &mut self.output);
        let elapsed = time(|| {
            for packet in &self.packets {
                black_box(switch.process(&context, packet, output));
            }
        });
        self.chunk = self.chunk.wrapping_add(self.slots);
        elapsed
    }

    /// Elements of one more batch's Aggregates that are not the sum; all of
    /// a slot's if there is none.
    fn count_wrong(&mut self) -> u64 {
        self.renew();
        let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
        let (ranks, elements) = (usize::from(self.ranks), (self.output.len() - HEADER_BYTES) / 4);
        let mut wrong = 0;
        for (index, packet) in self.packets.iter().enumerate() {
            let verdict = self.switch.process(&context, packet, &mut self.output);
            let last = index % ranks == ranks - 1;
            let sum = |element: usize| (0..self.ranks).map(|rank| value(rank, element)).sum::<i32>();
            wrong += match (last, matches!(verdict, Verdict::Multicast { .. })) {
                (true, true) => {
                    let words = self.output[HEADER_BYTES..].chunks_exact(4).enumerate();
                    words.filter(|(element, word)| **word != sum(*element).to_be_bytes()).count() as u64
                }
                (false, false) => 0,
                _ => elements as u64,
            };
        }
        self.chunk = self.chunk.wrapping_add(self.slots);
        wrong
    }
}

fn header(chunk_index: u32, slot: u32, slot_parity: u8, rank: u16, elements: u16) -> fanin::Header {
    fanin::Header {
        kind: Kind::Contribution,
        job_id: JOB_ID,
        job_token: JOB_TOKEN,
        worker_rank: rank,
        slot_index: slot as u16,
        slot_parity,
        chunk_index,
        collective_tag: 3,
        block_exponent_next: 0,
        element_count: elements,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    }
}

fn fill(payload: &mut [u8], rank: u16) {
    for (element, word) in payload.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&value(rank, element).to_be_bytes());
    }
}

/// Different for every rank and element, so that no wrong sum is right by chance.
fn value(rank: u16, element: usize) -> i32 {
    (i32::from(rank) + 1) * 1009 - element as i32 * 31
}

/// Nanoseconds of one `run`, the mean of as many as last about `sample`.
fn repeat(sample: Duration, mut run: impl FnMut() -> Duration) -> f64 {
    let (mut elapsed, mut count) = (Duration::ZERO, 0u32);
    while elapsed < sample {
        elapsed += run();
        count += 1;
    }
    elapsed.as_nanos() as f64 / f64::from(count)
}

fn time(run: impl FnOnce()) -> Duration {
    let started = Instant::now();
    run();
    started.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_sums_batch_after_batch() {
        for (payload_bytes, ranks) in [(256, 4), (1408, 3), (8192, 4), (1024, 1)] {
            let mut core = Core::new(payload_bytes, ranks);
            for _ in 0..5 {
                core.batch();
            }
            assert_eq!(core.count_wrong(), 0, "{payload_bytes} bytes, {ranks} ranks");
        }
    }

    #[test]
    fn a_changed_contribution_is_seen() {
        let mut core = Core::new(1024, 2);
        let element = &mut core.packets[3][HEADER_BYTES + 7];
        *element ^= 1;
        assert_eq!(core.count_wrong(), 1);
    }
}
