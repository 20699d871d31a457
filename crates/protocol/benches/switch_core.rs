//! The switch program without sockets, in its steady state: nanoseconds per packet and share of a memory copy.
//!
//! `cargo bench -p fanin-protocol`. One core; packets, slots and outcomes lie in the second-level cache. A job is
//! installed once, and its slots are used again for ever with advancing chunks, as on a running switch. Each pass
//! measures in turn the program with its checksums, the program without them, the checksum alone and a copy,
//! because machines drift; the table shows medians over the passes. Figures are payload bytes per packet received; a
//! copy moves the same bytes once. With n workers every n-th packet also makes an Aggregate, so n/(n+1) is the most
//! that a program without arithmetic could reach. Nothing is asserted.
//!
//! `-- --passes N` runs a fixed number of passes of each, for a profiler or an instruction counter; `--only NAME`
//! leaves the others out (`whole`, `unsummed`, `checksum`, `copy`).

use std::hint::black_box;
use std::time::{Duration, Instant};

use fanin_protocol::switchml::{Context, JobConfig, Switch, WireFormat};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};
use fanin_wire::generated::{CHECKSUM_OFFSET, CHUNK_INDEX_OFFSET, HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, fanin};

const WORKERS: u16 = 4;
const PASSES: usize = 2001;
/// Payload bytes of one pass: with the slots and the Aggregates they fit a cache of 512 KiB.
const PASS_BYTES: usize = 192 << 10;

/// What a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `Switch::process`.
    Whole,
    /// `Switch::process_unsummed`: neither checks nor writes a checksum.
    Unsummed,
    /// `Header::parse` alone, which checks the checksum.
    Checksum,
    /// As many payload bytes, copied.
    Copy,
}

const PARTS: [(Part, &str); 4] =
    [(Part::Whole, "whole"), (Part::Unsummed, "unsummed"), (Part::Checksum, "checksum"), (Part::Copy, "copy")];

/// A job in its steady state.
struct Core {
    switch: Switch,
    packets: Vec<Vec<u8>>,
    output: Vec<u8>,
    slots: u32,
    /// First chunk of the next pass.
    chunk_next: u32,
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Core {
    /// Each pass uses both copies of every slot once.
    fn new(elements: u16) -> Core {
        let chunk_bytes = 2 * usize::from(WORKERS) * usize::from(elements) * 4;
        let slots = (PASS_BYTES / chunk_bytes).next_power_of_two().max(2) as u32;
        let mut switch = Switch::new();
        let config = JobConfig {
            job_id: 1,
            job_token: 2,
            worker_count: WORKERS,
            lane_count: 1,
            slots_per_lane: slots,
            element_count_max: elements,
            has_checksum: true,
            accumulator: fanin_wire::Accumulator::BlockFixed,
            wire_format: WireFormat::Fanin,
        };
        switch.install(config).expect("a valid job");
        let packets: Vec<_> = (0..2 * slots)
            .flat_map(|chunk| (0..WORKERS).map(move |rank| packet(rank, chunk, slots, elements)))
            .collect();
        let bytes = packets.len() * usize::from(elements) * 4;
        Core {
            switch,
            packets,
            output: vec![0; HEADER_BYTES + usize::from(elements) * 4],
            slots,
            chunk_next: 0,
            source: vec![1; bytes],
            target: vec![0; bytes],
        }
    }

    /// One pass; how long it took.
    fn pass(&mut self, part: Part) -> Duration {
        let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
        let output = &mut self.output;
        let mut aggregates = 0;
        let start = Instant::now();
        match part {
            Part::Copy => black_box(&mut self.target).copy_from_slice(black_box(&self.source)),
            Part::Checksum => {
                self.packets.iter().for_each(|packet| aggregates += u32::from(fanin::Header::parse(packet).is_ok()))
            }
            Part::Whole => {
                for packet in &self.packets {
                    aggregates += count(self.switch.process(&context, packet, output));
                }
            }
            Part::Unsummed => {
                for packet in &self.packets {
                    aggregates += count(self.switch.process_unsummed(&context, packet, output));
                }
            }
        }
        let elapsed = start.elapsed();
        if matches!(part, Part::Whole | Part::Unsummed) {
            assert_eq!(aggregates, 2 * self.slots, "every chunk completes once a pass");
            self.advance();
        }
        elapsed
    }

    /// Makes the packets those of the following chunks.
    fn advance(&mut self) {
        let before = self.chunk_next;
        self.chunk_next = before.wrapping_add(2 * self.slots);
        // A CRC is linear: what a change of the chunk index does to it does not depend on the other bytes.
        let [sample_before, sample_after] =
            [before, self.chunk_next].map(|chunk| checksum_of(&rechunked(&self.packets[0], chunk)));
        for packet in &mut self.packets {
            let chunk = field(packet, CHUNK_INDEX_OFFSET) - before + self.chunk_next;
            put(packet, CHUNK_INDEX_OFFSET, chunk);
            let checksum = field(packet, CHECKSUM_OFFSET) ^ sample_before ^ sample_after;
            put(packet, CHECKSUM_OFFSET, checksum);
        }
    }
}

/// 1 for a chunk's last packet; panics if the program did not take the packet.
fn count(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Multicast { .. } => 1,
        Verdict::Drop(DropReason::AwaitingOthers) => 0,
        other => panic!("the benchmark's packets are valid: {other:?}"),
    }
}

fn packet(rank: u16, chunk_index: u32, slots: u32, elements: u16) -> Vec<u8> {
    let header = fanin::Header {
        kind: Kind::Contribution,
        job_id: 1,
        job_token: 2,
        worker_rank: rank,
        slot_index: (chunk_index & (slots - 1)) as u16,
        slot_parity: ((chunk_index / slots) & 1) as u8,
        chunk_index,
        collective_tag: 3,
        block_exponent_next: 0,
        element_count: elements,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    };
    let mut bytes = vec![rank as u8; header.datagram_bytes()];
    header.seal(&mut bytes);
    bytes
}

/// The packet with another chunk index and the checksum that belongs to it.
fn rechunked(packet: &[u8], chunk_index: u32) -> Vec<u8> {
    let header = fanin::Header::parse_unchecked(packet).expect("a packet of ours");
    let mut bytes = packet.to_vec();
    fanin::Header { chunk_index, ..header }.seal(&mut bytes);
    bytes
}

fn checksum_of(packet: &[u8]) -> u32 {
    field(packet, CHECKSUM_OFFSET)
}

fn field(packet: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(packet[offset..offset + 4].try_into().expect("four bytes"))
}

fn put(packet: &mut [u8], offset: usize, value: u32) {
    packet[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// One line of the table.
fn measure(elements: u16) {
    let mut core = Core::new(elements);
    let mut times = PARTS.map(|_| Vec::with_capacity(PASSES));
    for _ in 0..PASSES {
        for ((part, _), times) in PARTS.iter().zip(&mut times) {
            times.push(core.pass(*part));
        }
    }
    let packets = core.packets.len() as f64;
    let [whole, unsummed, checksum, copy] = times.map(|times| median(times) / packets);
    let payload_bytes = f64::from(elements) * 4.0;
    println!(
        "{payload_bytes:>6} B  {:>7.1} ns {:>5.1} % of copy   {:>7.1} ns {:>5.1} %   {:>7.1} ns   {:>7.1} ns ({:.0} GB/s)",
        whole * 1e9,
        copy / whole * 100.0,
        unsummed * 1e9,
        copy / unsummed * 100.0,
        checksum * 1e9,
        copy * 1e9,
        payload_bytes / copy / 1e9,
    );
}

/// What follows a flag on the command line.
fn argument(flag: &str) -> Option<String> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == flag)?;
    arguments.get(at + 1).cloned()
}

/// A fixed amount of work and no clock that decides anything.
fn run_passes(passes: usize) {
    let elements = argument("--elements").and_then(|count| count.parse().ok()).unwrap_or(256);
    let only = argument("--only");
    let mut core = Core::new(elements);
    for (part, name) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            for _ in 0..passes {
                core.pass(part);
            }
        }
    }
    println!("{} packets a pass", core.packets.len());
}

fn main() {
    if let Some(passes) = argument("--passes").and_then(|passes| passes.parse().ok()) {
        return run_passes(passes);
    }
    println!("switch program, {WORKERS} workers, one core, medians of {PASSES} passes of each, interleaved");
    println!("payload  with checksum             without                parse + CRC  copy");
    for elements in [64, 256, 352, 2048] {
        measure(elements);
    }
}
