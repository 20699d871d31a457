//! Plays the conformance vectors to the XDP program, frame by frame, in the kernel but without an interface. What the
//! program passes up is handled as the daemon does: completed and sent, or given to the switch program in Rust.

use std::path::Path;

use fanin_harness::vectors::{Exchange, Outcome, ProgramTarget, Source, Target, Vector, load_folder, replay};
use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobConfig, WireFormat, without_payload};
use fanin_wire::generated::HEADER_BYTES;
use fanin_wire::{ElementFormat, Kind, Operator, fanin};
use fanin_xdp::{Action, Counters, KernelSwitch, Settings, XdpError};

const PORT: u16 = 48_864;
/// Ethernet, IPv4 and UDP.
const HEADERS_BYTES: usize = 14 + 20 + 8;

struct KernelTarget {
    kernel: KernelSwitch,
    jobs: Vec<JobConfig>,
    /// Has the jobs that the kernel does not serve.
    behind: ProgramTarget,
    /// Positions in `behind` by position in `jobs`.
    places: Vec<usize>,
    output: Vec<u8>,
}

impl KernelTarget {
    fn load() -> Result<KernelTarget, XdpError> {
        let settings = Settings { port_first: PORT, port_count: 1, own_address: None, slot_count: 1024 };
        let kernel = KernelSwitch::load(&settings)?;
        Ok(KernelTarget {
            kernel,
            jobs: Vec::new(),
            behind: ProgramTarget::default(),
            places: Vec::new(),
            output: vec![0; 4096],
        })
    }

    /// Without jobs again: loading the program takes the verifier a second.
    fn clear(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.kernel.remove(job.job_id);
        }
        self.behind = ProgramTarget::default();
        self.places.clear();
    }

    /// What the program made of the frame, as the receiving ranks see it.
    fn answers(&self, action: Action, source: Source, datagram: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, String> {
        let everyone = |datagram: &[u8], destination: Option<u16>| {
            let ranks = 0..self.jobs[source.job].worker_count;
            let has_checksum = self.jobs[source.job].has_checksum;
            ranks.map(|rank| (rank, copy_for(rank, destination, has_checksum, datagram))).collect()
        };
        match action {
            Action::Drop => Ok(Vec::new()),
            Action::Transmit => Ok(vec![(source.rank, datagram.to_vec())]),
            Action::Broadcast => {
                let (header, _) = fanin::Header::parse_unsummed(datagram).map_err(|error| error.to_string())?;
                Ok(everyone(datagram, Some(header.destination).filter(|&rank| rank != 0xffff)))
            }
            Action::Pass => {
                let mut whole = [0; 2048];
                let carrier = self.kernel.carrier(self.jobs[source.job].job_id).ok_or("passed up without a job")?;
                let completed = carrier.complete(datagram, &mut whole).ok_or("passed up, but not to be completed")?;
                if completed.lane != source.lane {
                    return Err(format!("an Aggregate of lane {}", completed.lane));
                }
                let whole = &whole[..completed.bytes];
                Ok(match completed.receiver {
                    Some(rank) => vec![(rank, whole.to_vec())],
                    None => everyone(whole, completed.destination),
                })
            }
        }
    }
}

impl Target for KernelTarget {
    fn install(&mut self, config: &JobConfig) -> Result<(), String> {
        if is_for_kernel(config) {
            self.kernel.install(*config, config.has_checksum).map_err(|error| error.to_string())?;
        } else {
            self.behind.install(config)?;
        }
        let earlier = self.jobs.iter().filter(|job| !is_for_kernel(job)).count();
        self.places.push(earlier);
        self.jobs.push(*config);
        Ok(())
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        if self.kernel.remove(job_id) { Ok(()) } else { self.behind.remove(job_id) }
    }

    fn exchange(&mut self, source: Source, packet: &[u8]) -> Result<Exchange, String> {
        let frame = frame_of(source, packet);
        let before = self.kernel.counters();
        let (action, bytes) = self.kernel.run(&frame, &mut self.output).map_err(|error| error.to_string())?;
        let after = self.kernel.counters();
        if action == Action::Pass && after == before {
            assert_eq!(self.output[..bytes], frame, "a frame of no concern is left as it is");
            if is_for_kernel(&self.jobs[source.job]) {
                // The daemon's own switch has no such job, nor any job where the vector has one of the kernel's only.
                return stranger(source, packet);
            }
            return self.behind.exchange(Source { job: self.places[source.job], ..source }, packet);
        }
        let datagram = check_headers(&frame, &self.output[..bytes], action)?;
        let answers = self.answers(action, source, datagram)?;
        Ok(Exchange { outcome: outcome_of(&after.since(&before), &answers)?, answers })
    }
}

/// What a switch without jobs says.
fn stranger(source: Source, packet: &[u8]) -> Result<Exchange, String> {
    let mut empty = ProgramTarget::default();
    let other = JobConfig {
        job_id: 0xfe,
        job_token: 0xfe,
        worker_count: 1,
        lane_count: 1,
        slots_per_lane: 1,
        element_count_max: 1,
        has_checksum: true,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        wire_format: WireFormat::Fanin,
    };
    empty.install(&other)?;
    empty.exchange(Source { job: 0, ..source }, packet)
}

fn copy_for(rank: u16, destination: Option<u16>, has_checksum: bool, aggregate: &[u8]) -> Vec<u8> {
    let mut copy = aggregate.to_vec();
    if destination.is_some_and(|only| only != rank) {
        copy.truncate(HEADER_BYTES);
        without_payload(aggregate, has_checksum, &mut copy);
    }
    copy
}

/// What the counters say became of one packet.
fn outcome_of(counted: &Counters, answers: &[(u16, Vec<u8>)]) -> Result<Outcome, String> {
    let reasons = DropReason::ALL.into_iter().zip(counted.drops);
    let dropped: Vec<DropReason> = reasons.flat_map(|(reason, times)| vec![reason; times as usize]).collect();
    let counts = [counted.contributions, counted.aggregates, counted.replies, counted.probes, counted.missing];
    let kind = answers.first().and_then(|(_, datagram)| Some(fanin::Header::parse_unsummed(datagram).ok()?.0.kind));
    let sent_bytes: usize = answers.iter().map(|(_, datagram)| datagram.len()).sum();
    if (counted.sent_datagrams, counted.sent_bytes) != (answers.len() as u64, sent_bytes as u64) {
        return Err(format!("{} datagrams of {sent_bytes} bytes, counted: {counted:?}", answers.len()));
    }
    match (counts, dropped.as_slice(), kind) {
        ([1, 0, 0, 0, 0], [], None) => Ok(Outcome::Absorbed),
        ([1, 1, 0, 0, 0], [], Some(Kind::Aggregate)) => Ok(Outcome::Multicast),
        ([0, 0, 1, 0, 0], [], Some(Kind::Aggregate)) => Ok(Outcome::Replied),
        ([0, 0, 0, 1, 0], [], Some(Kind::ProbeReply)) => Ok(Outcome::ProbeReplied),
        ([0, 0, 0, 0, 1], [], Some(Kind::Missing)) => Ok(Outcome::Missing),
        ([0, 0, 0, 0, 0], [reason], None) => Ok(Outcome::Dropped(*reason)),
        ([0, 0, 0, 0, 0], [reason], Some(Kind::Refusal)) => Ok(Outcome::Refused(*reason)),
        _ => Err(format!("counted {counted:?}, {kind:?} came back")),
    }
}

/// A worker's frame. Each rank and lane has its own addresses.
fn frame_of(source: Source, datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS_BYTES + datagram.len()];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0xff]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 1, (source.rank >> 8) as u8, source.rank as u8]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..22].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0]);
    frame[16..18].copy_from_slice(&(28 + datagram.len() as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 1, (source.rank >> 8) as u8, source.rank as u8, 10, 0, 0, 254]);
    let sum = ipv4_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&(5000 + source.lane).to_be_bytes());
    frame[36..38].copy_from_slice(&PORT.to_be_bytes());
    frame[38..40].copy_from_slice(&(8 + datagram.len() as u16).to_be_bytes());
    frame[HEADERS_BYTES..].copy_from_slice(datagram);
    frame
}

/// The UDP payload of what the program made of `sent`, once the headers before it have been found right.
fn check_headers<'a>(sent: &[u8], got: &'a [u8], action: Action) -> Result<&'a [u8], String> {
    if got.len() < HEADERS_BYTES {
        return Err(format!("{} bytes are no frame", got.len()));
    }
    if action == Action::Drop {
        return Ok(&[]);
    }
    let turned = action == Action::Transmit;
    let (to, from, source, destination) =
        if turned { (6..12, 0..6, 30..34, 26..30) } else { (0..6, 6..12, 26..30, 30..34) };
    let ports = if turned { [36..38, 34..36] } else { [34..36, 36..38] };
    let addressed = got[..6] == sent[to]
        && got[6..12] == sent[from]
        && got[26..30] == sent[source]
        && got[30..34] == sent[destination]
        && got[34..36] == sent[ports[0].clone()]
        && got[36..38] == sent[ports[1].clone()];
    let length = |at: usize| usize::from(u16::from_be_bytes([got[at], got[at + 1]]));
    let lengths = length(16) == got.len() - 14 && length(38) == got.len() - 34;
    if !addressed || !lengths || ipv4_checksum(&got[14..34]) != 0 {
        return Err(format!("headers {:?} of {action:?} to {:?}", &got[..HEADERS_BYTES], &sent[..HEADERS_BYTES]));
    }
    Ok(&got[HEADERS_BYTES..])
}

fn ipv4_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum + (sum >> 16)) as u16
}

/// The daemon serves other jobs by its sockets.
fn is_for_kernel(job: &JobConfig) -> bool {
    job.wire_format == WireFormat::Fanin && job.accumulator == fanin_wire::Accumulator::BlockFixed
}

/// `None`, and a line that says why, where the program cannot be loaded.
fn target() -> Option<KernelTarget> {
    match KernelTarget::load() {
        Ok(target) => Some(target),
        Err(error @ (XdpError::NotBuilt | XdpError::NotPermitted { .. })) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_vector_passes_in_the_kernel() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors"));
    let vectors = load_folder(folder).unwrap();
    let mut failures = Vec::new();
    let mut packets = 0;
    let Some(mut target) = target() else { return };
    for (file, vector) in &vectors {
        target.clear();
        match replay(file, vector, &mut target) {
            Ok(sent) => packets += sent,
            Err(mismatch) => failures.push(mismatch.to_string()),
        }
    }
    println!("{} of {} vectors, {packets} packets", vectors.len() - failures.len(), vectors.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(vectors.len() >= 57, "only {} vectors found", vectors.len());
}

#[test]
fn a_wrong_vector_fails_in_the_kernel_too() {
    let play = |expect: &str| {
        let text = format!(
            "title = \"a sum\"\nsource = \"this test\"\n[job]\nworker_count = 1\n[[step]]\n\
             send = {{ rank = 0, elements = [1] }}\nexpect = {{ {expect} }}\n"
        );
        let outcome = replay("inline.toml", &Vector::parse(&text).unwrap(), &mut target()?);
        Some(outcome.map_err(|error| error.to_string()))
    };
    let Some(right) = play("verdict = \"multicast\", elements = [1]") else { return };
    assert_eq!(right, Ok(1));
    let wrong_sum = play("verdict = \"multicast\", elements = [2]").unwrap().unwrap_err();
    assert!(wrong_sum.ends_with("elements of the answer to rank 0: expected [2], got [1]"), "{wrong_sum}");
    let silence = play("verdict = \"drop\", reason = \"stale_chunk\"").unwrap().unwrap_err();
    assert!(silence.ends_with("verdict: expected drop, got multicast"), "{silence}");
}

const JOB: JobConfig = JobConfig {
    job_id: 0x0107,
    job_token: 7,
    worker_count: 3,
    lane_count: 1,
    slots_per_lane: 4,
    element_count_max: 352,
    has_checksum: true,
    accumulator: fanin_wire::Accumulator::BlockFixed,
    wire_format: WireFormat::Fanin,
};

/// The kernel's program and the one in Rust, which must do the same.
struct Twins {
    kernel: KernelTarget,
    program: ProgramTarget,
    state: u64,
}

impl Twins {
    fn load() -> Option<Twins> {
        let mut twins = Twins { kernel: target()?, program: ProgramTarget::default(), state: 1 };
        twins.kernel.install(&JOB).unwrap();
        twins.program.install(&JOB).unwrap();
        Some(twins)
    }

    /// Sends a contribution of each rank, of as many elements as `counts` says, to both.
    fn chunk(&mut self, chunk_index: u32, counts: [u16; 3], case: (ElementFormat, Operator)) {
        for (rank, count) in (0u16..).zip(counts) {
            let packet = random_contribution(&mut self.state, chunk_index, rank, case, count);
            let source = Source { job: 0, lane: 0, rank, is_registered: true };
            let (got, expected) = (self.kernel.exchange(source, &packet), self.program.exchange(source, &packet));
            assert_eq!(got, expected, "{count} {} elements, {}, rank {rank}", case.0, case.1);
        }
    }
}

/// The vectors are short; steps of the loops over elements and over the checksum are many words long.
#[test]
fn sums_of_every_length_are_those_of_the_switch_program() {
    let Some(mut twins) = Twins::load() else { return };
    let cases = [ElementFormat::Int32, ElementFormat::Float16, ElementFormat::Bfloat16, ElementFormat::Int8]
        .into_iter()
        .flat_map(|format| Operator::ALL.into_iter().map(move |operator| (format, operator)))
        .filter(|&(format, operator)| format == ElementFormat::Int32 || operator == Operator::Add)
        .flat_map(|case| (1..=352).map(move |count| (case, count)));
    for (chunk_index, (case, count)) in (0u32..).zip(cases) {
        twins.chunk(chunk_index, [count; 3], case);
    }
}

/// An empty last contribution has no room for the sum, which then leaves through the daemon's socket.
#[test]
fn sums_without_room_in_the_packet_are_made_whole_outside() {
    let Some(mut twins) = Twins::load() else { return };
    let formats = [ElementFormat::Int32, ElementFormat::Float16, ElementFormat::Bfloat16, ElementFormat::Int8];
    let cases = formats.into_iter().flat_map(|format| [1, 7, 256, 351].map(|count| (format, count)));
    for (chunk_index, (format, count)) in (0u32..).zip(cases) {
        twins.chunk(chunk_index, [count, count, 0], (format, Operator::Add));
    }
}

fn random_contribution(
    state: &mut u64,
    chunk_index: u32,
    rank: u16,
    (element_format, operator): (ElementFormat, Operator),
    element_count: u16,
) -> Vec<u8> {
    let header = fanin::Header {
        kind: Kind::Contribution,
        job_id: JOB.job_id,
        job_token: JOB.job_token,
        worker_rank: rank,
        slot_index: (chunk_index % JOB.slots_per_lane) as u16,
        slot_parity: (chunk_index / JOB.slots_per_lane % 2) as u8,
        chunk_index,
        collective_tag: 1,
        block_exponent_next: 0,
        element_count,
        element_format,
        operator,
        detail: 0,
        destination: 0xffff,
        echo: 0,
    };
    let mut packet = vec![0; header.datagram_bytes()];
    for byte in &mut packet[HEADER_BYTES..] {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (*state >> 56) as u8;
    }
    if element_format == ElementFormat::Bfloat16 {
        // Of random bits few have a fraction to round or fit in 31 bits: every other number gets an exponent around these.
        for bytes in packet[HEADER_BYTES..].chunks_exact_mut(4) {
            bytes[0] = (bytes[0] & 0x80) | (0x3d + bytes[2] % 0x14);
        }
    }
    header.seal(&mut packet);
    packet
}
