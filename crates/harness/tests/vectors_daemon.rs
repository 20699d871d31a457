//! Plays the conformance vectors to the real data plane, over UDP sockets on
//! loopback: one socket per job, lane and rank, as workers have them.
//!
//! Nothing is waited for blindly. Behind each packet a further worker of a
//! job of its own sends a Probe, and then a second one. The thread takes
//! datagrams in order and sends what a batch caused before it receives the
//! next, so once the second Probe is back, all that the packet caused lies in
//! the sockets, and what does not lie there was not sent.
//!
//! Behind the XDP program there is no such order. There the program's counters tell how many datagrams a packet caused, and
//! the workers' sockets, in network namespaces behind veths, are read until so many have come.

#[path = "support/veths.rs"]
mod veths;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use fanin_harness::vectors::{Exchange, Outcome, Source, Target, load_folder, replay, suite};
use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobConfig, WireFormat};
use fanin_switch::dataplane::{DataplaneConfig, UdpDataplane, XdpConfig, XdpDataplane};
use fanin_switch::dataplane_api::{Dataplane, JobInstall, TrafficCounters};
use fanin_wire::generated::{BLOCK_EXPONENT_NOT_NEEDED, HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, fanin};
use veths::Veths;

/// Job of the fences; no vector uses its number.
const FENCE: JobConfig = JobConfig {
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
/// Vectors with more workers than this have some that share an interface.
const VETH_COUNT: u16 = 3;
/// For what cannot fail to come on loopback, on a machine that is loaded.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// For counters that another reader kept from being published.
const COUNTERS_WAIT: Duration = Duration::from_millis(20);

struct Job {
    config: JobConfig,
    /// By lane, then by rank.
    sockets: Vec<UdpSocket>,
}

impl Job {
    fn socket(&self, lane: u16, rank: u16) -> Option<&UdpSocket> {
        self.sockets.get(usize::from(lane) * usize::from(self.config.worker_count) + usize::from(rank))
    }
}

/// A data plane to which p4app-switchML workers can be made known.
trait Known: Dataplane {
    fn make_known(&self, job_id: u32, lane: u16, rank: u16, address: SocketAddr);
}

impl Known for UdpDataplane {
    fn make_known(&self, job_id: u32, lane: u16, rank: u16, address: SocketAddr) {
        self.register(job_id, lane, rank, address);
    }
}

impl Known for XdpDataplane {
    fn make_known(&self, job_id: u32, lane: u16, rank: u16, address: SocketAddr) {
        self.register(job_id, lane, rank, address);
    }
}

/// Where workers are.
enum Workers {
    Loopback(SocketAddr),
    /// In front of the XDP program: ranks take turns, so that those of larger jobs share interfaces.
    Behind(Veths),
}

impl Workers {
    fn socket(&self, rank: u16) -> UdpSocket {
        match self {
            Workers::Loopback(switch) => connected("127.0.0.1", *switch),
            Workers::Behind(veths) => veths.socket(rank, connected),
        }
    }
}

struct DaemonTarget {
    dataplane: Box<dyn Known>,
    workers: Workers,
    jobs: Vec<Job>,
    fence: UdpSocket,
    stranger: UdpSocket,
    sent_datagrams: u64,
}

impl DaemonTarget {
    fn start() -> DaemonTarget {
        let dataplane = UdpDataplane::start(&DataplaneConfig::default()).expect("a data plane on loopback");
        let workers = Workers::Loopback(dataplane.ports()[0]);
        DaemonTarget::new(Box::new(dataplane), workers)
    }

    /// `None`, and a line that says why, where there is no XDP.
    fn start_xdp() -> Option<DaemonTarget> {
        let mut veths = Veths::build(VETH_COUNT)?;
        let interfaces = veths.interfaces();
        let dataplane = veths.at_switch(move || {
            let config = DataplaneConfig { address: Ipv4Addr::UNSPECIFIED.into(), ..DataplaneConfig::default() };
            XdpDataplane::start(&config, &XdpConfig { interfaces, slot_memory_bytes: 8 << 20 }).expect("sockets")
        });
        if let Some(reason) = dataplane.fallback_reason() {
            let is_missing = ["built without XDP", "refuses to load"].iter().any(|part| reason.contains(part));
            assert!(is_missing, "{reason}");
            println!("SKIPPED: {reason}");
            return None;
        }
        veths.port = dataplane.ports()[0].port();
        Some(DaemonTarget::new(Box::new(dataplane), Workers::Behind(veths)))
    }

    fn new(dataplane: Box<dyn Known>, workers: Workers) -> DaemonTarget {
        let (fence, stranger) = (workers.socket(0), workers.socket(0));
        dataplane.install(job_install(&FENCE)).expect("the job of the fences");
        DaemonTarget { dataplane, workers, jobs: Vec::new(), fence, stranger, sent_datagrams: 0 }
    }

    /// Without jobs again: loading the program takes the verifier a second.
    fn clear(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.dataplane.remove(job.config.job_id);
        }
    }

    /// What a packet caused behind the XDP program: reads on until all that was counted as sent has come.
    fn settle(&mut self, source: Source, before: &TrafficCounters) -> Result<Exchange, String> {
        let deadline = Instant::now() + ANSWER_WAIT;
        let mut answers = Vec::new();
        loop {
            answers.extend(self.collect(source)?);
            let after = self.counters()?;
            let sent = after.sent_datagrams - before.sent_datagrams;
            let outcome = outcome_of(before, &after, &answers);
            match outcome {
                Ok(outcome) if answers.len() as u64 == sent => return Ok(Exchange { outcome, answers }),
                _ if Instant::now() < deadline => std::thread::yield_now(),
                Ok(outcome) => return Err(format!("{outcome:?}, {sent} datagrams sent, {} came", answers.len())),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, socket: &UdpSocket, packet: &[u8]) -> Result<(), String> {
        self.sent_datagrams += 1;
        socket.send(packet).map(|_| ()).map_err(|error| format!("send: {error}"))
    }

    /// Sends a Probe from `socket` and waits for its echo.
    fn probe(&mut self, socket: &UdpSocket, config: &JobConfig, lane: u16, rank: u16) -> Result<(), String> {
        let slot_index = lane * config.slots_per_lane as u16;
        let mut packet = [0; HEADER_BYTES];
        probe_header(config, slot_index, rank).seal(&mut packet);
        self.send(socket, &packet)?;
        let mut answer = [0; 64];
        socket.set_nonblocking(false).map_err(|error| error.to_string())?;
        let bytes = socket.recv(&mut answer).map_err(|error| format!("no echo of a Probe: {error}"))?;
        match fanin::Header::parse_unsummed(&answer[..bytes]) {
            Ok((header, _)) if header.kind == Kind::ProbeReply => Ok(()),
            other => Err(format!("no echo of a Probe but {other:?}")),
        }
    }

    /// Returns when all that was sent before has been answered.
    fn fence(&mut self) -> Result<(), String> {
        let socket = self.fence.try_clone().map_err(|error| error.to_string())?;
        self.probe(&socket, &FENCE, 0, 0)?;
        self.probe(&socket, &FENCE, 0, 0)
    }

    /// Totals that include every datagram sent so far.
    fn counters(&mut self) -> Result<TrafficCounters, String> {
        let deadline = Instant::now() + ANSWER_WAIT;
        let mut nudge = Instant::now() + COUNTERS_WAIT;
        loop {
            let total = self.dataplane.counters().total;
            if total.received_datagrams == self.sent_datagrams {
                return Ok(total);
            }
            if Instant::now() > deadline {
                return Err(format!("{} datagrams sent, {} received", self.sent_datagrams, total.received_datagrams));
            }
            if Instant::now() > nudge && matches!(self.workers, Workers::Loopback(_)) {
                self.fence()?;
                nudge = Instant::now() + COUNTERS_WAIT;
            }
            std::thread::yield_now();
        }
    }

    /// Empties all sockets.
    fn collect(&self, source: Source) -> Result<Vec<(u16, Vec<u8>)>, String> {
        let mut answers = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            for (place, socket) in job.sockets.iter().enumerate() {
                let ranks = usize::from(job.config.worker_count);
                let (lane, rank) = (place / ranks, place % ranks);
                for datagram in waiting(socket)? {
                    if index != source.job || lane != usize::from(source.lane) {
                        return Err(format!("a datagram reached job {index}, lane {lane}, rank {rank}"));
                    }
                    answers.push((rank as u16, datagram));
                }
            }
        }
        let to_strangers = waiting(&self.stranger)?.into_iter().map(|datagram| (source.rank, datagram));
        answers.extend(to_strangers);
        Ok(answers)
    }

    fn make_known(&mut self, job: &Job) -> Result<(), String> {
        let config = &job.config;
        for lane in 0..config.lane_count {
            for rank in 0..config.worker_count {
                let socket = job.socket(lane, rank).expect("one per lane and rank");
                if config.wire_format == WireFormat::P4app {
                    let address = socket.local_addr().map_err(|error| error.to_string())?;
                    self.dataplane.make_known(config.job_id, lane, rank, address);
                } else {
                    self.probe(socket, config, lane, rank)?;
                }
            }
        }
        // The mailbox is read in order: an answer means that all was done.
        self.dataplane.inspect(config.job_id).map(|_| ()).ok_or_else(|| "the job cannot be inspected".into())
    }
}

impl Target for DaemonTarget {
    fn install(&mut self, config: &JobConfig) -> Result<(), String> {
        self.dataplane.install(job_install(config)).map_err(|error| error.to_string())?;
        let count = usize::from(config.lane_count) * usize::from(config.worker_count);
        let job = Job {
            config: *config,
            sockets: (0..count).map(|place| self.workers.socket(place as u16 % config.worker_count)).collect(),
        };
        self.make_known(&job)?;
        self.jobs.push(job);
        Ok(())
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        self.dataplane.inspect(job_id).ok_or_else(|| format!("no job {job_id:#x}"))?;
        self.dataplane.remove(job_id);
        let left = self.dataplane.inspect(job_id);
        if left.is_none() { Ok(()) } else { Err(format!("job {job_id:#x} is still there")) }
    }

    fn exchange(&mut self, source: Source, packet: &[u8]) -> Result<Exchange, String> {
        let before = self.counters()?;
        let job = self.jobs.get(source.job).ok_or_else(|| format!("no job at position {}", source.job))?;
        let own = job.socket(source.lane, source.rank).ok_or("no socket of that lane and rank")?;
        let from = if source.is_registered { own } else { &self.stranger };
        let from = from.try_clone().map_err(|error| error.to_string())?;
        self.send(&from, packet)?;
        if matches!(self.workers, Workers::Behind(_)) {
            return self.settle(source, &before);
        }
        self.fence()?;
        let answers = self.collect(source)?;
        let after = self.counters()?;
        Ok(Exchange { outcome: outcome_of(&before, &after, &answers)?, answers })
    }
}

/// What the counters say became of one packet.
fn outcome_of(
    before: &TrafficCounters,
    after: &TrafficCounters,
    answers: &[(u16, Vec<u8>)],
) -> Result<Outcome, String> {
    let dropped: Vec<DropReason> = DropReason::ALL
        .into_iter()
        .flat_map(|reason| {
            let times = drops(after, reason) - drops(before, reason);
            std::iter::repeat_n(reason, times as usize)
        })
        .collect();
    let counted = [
        after.contributions - before.contributions,
        after.aggregates - before.aggregates,
        after.resends_answered - before.resends_answered,
    ];
    let kind = answers.first().and_then(|(_, datagram)| Some(fanin::Header::parse_unsummed(datagram).ok()?.0.kind));
    match (counted, dropped.as_slice(), kind) {
        ([1, 0, 0], [], None) => Ok(Outcome::Absorbed),
        ([1, 1, 0], [], _) => Ok(Outcome::Multicast),
        ([0, 0, 1], [], _) => Ok(Outcome::Replied),
        ([0, 0, 0], [reason], None) => Ok(Outcome::Dropped(*reason)),
        ([0, 0, 0], [reason], Some(Kind::Refusal)) => Ok(Outcome::Refused(*reason)),
        ([0, 0, 0], [], Some(Kind::Missing)) => Ok(Outcome::Missing),
        ([0, 0, 0], [], Some(Kind::ProbeReply)) => Ok(Outcome::ProbeReplied),
        _ => Err(format!(
            "contributions, aggregates, resends answered rose by {counted:?}, drops were {dropped:?}, {kind:?} came back"
        )),
    }
}

fn drops(counters: &TrafficCounters, reason: DropReason) -> u64 {
    counters.drops.iter().find(|(name, _)| *name == reason.name()).map_or(0, |(_, count)| *count)
}

fn waiting(socket: &UdpSocket) -> Result<Vec<Vec<u8>>, String> {
    socket.set_nonblocking(true).map_err(|error| error.to_string())?;
    let mut datagrams = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(bytes) => datagrams.push(buffer[..bytes].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(datagrams),
            Err(error) => return Err(format!("receive: {error}")),
        }
    }
}

fn connected(own: &str, peer: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((own, 0)).expect("a socket");
    socket.connect(peer).expect("an address of the switch");
    socket.set_read_timeout(Some(ANSWER_WAIT)).expect("a timeout above zero");
    socket
}

fn job_install(config: &JobConfig) -> JobInstall {
    JobInstall {
        job_id: config.job_id,
        job_token: config.job_token,
        world_size: config.worker_count,
        lane_count: config.lane_count,
        slots_per_lane: config.slots_per_lane,
        element_count_max: config.element_count_max,
        atp: None,
        racks: None,
        has_checksum: config.has_checksum,
        accumulator: config.accumulator,
        wire_format: match config.wire_format {
            WireFormat::Fanin => fanin_switch::dataplane_api::WireFormat::FaninV1,
            WireFormat::P4app => fanin_switch::dataplane_api::WireFormat::P4appSwitchml,
        },
    }
}

fn probe_header(config: &JobConfig, slot_index: u16, rank: u16) -> fanin::Header {
    fanin::Header {
        kind: Kind::Probe,
        job_id: config.job_id,
        job_token: config.job_token,
        worker_rank: rank,
        slot_index,
        slot_parity: 0,
        chunk_index: 0,
        collective_tag: 0,
        block_exponent_next: BLOCK_EXPONENT_NOT_NEEDED,
        element_count: 0,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    }
}

#[test]
fn every_vector_passes_on_the_data_plane() {
    suite::replay_all(|_| true, DaemonTarget::start).assert_all_passed();
}

#[test]
fn a_wrong_vector_fails_on_the_data_plane_too() {
    suite::assert_wrong_vectors_fail(DaemonTarget::start);
}

#[test]
fn every_vector_passes_behind_the_xdp_program() {
    if cfg!(feature = "canary") {
        return println!("SKIPPED: the deliberate bug is not in the XDP program");
    }
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../spec/vectors"));
    let vectors = load_folder(folder).unwrap();
    let Some(mut target) = DaemonTarget::start_xdp() else { return };
    let mut failures = Vec::new();
    let mut packets = 0;
    for (file, vector) in &vectors {
        target.clear();
        match replay(file, vector, &mut target) {
            Ok(sent) => packets += sent,
            Err(mismatch) => failures.push(mismatch.to_string()),
        }
    }
    let kernel = target.dataplane.path().kernel.expect("the program's counters");
    println!("{} of {} vectors, {packets} packets", vectors.len() - failures.len(), vectors.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(kernel.contributions > 100 && kernel.aggregates > 20, "in the kernel: {kernel:?}");
}

/// A restarted worker has another port.
#[test]
fn a_worker_that_moves_to_another_port_is_answered_there() {
    let Some(mut target) = DaemonTarget::start_xdp() else { return };
    // The first and the fourth rank share an interface, so that the sockets send this job's sums.
    for (job_id, worker_count) in [(0x0105, 2), (0x0106, 4)] {
        let config = JobConfig { job_id, job_token: job_id, worker_count, element_count_max: 32, ..FENCE };
        target.install(&config).unwrap();
        let job = target.jobs.len() - 1;
        for chunk_index in 0..4 {
            // Every rank moves in turn, between its chunks.
            let moved = chunk_index as u16 % worker_count;
            target.jobs[job].sockets[usize::from(moved)] = target.workers.socket(moved);
            for rank in 0..worker_count {
                let source = Source { job, lane: 0, rank, is_registered: true };
                let exchange = target.exchange(source, &contribution(&config, chunk_index, rank)).unwrap();
                let is_last = rank == worker_count - 1;
                assert_eq!(exchange.answers.len(), if is_last { usize::from(worker_count) } else { 0 }, "{exchange:?}");
            }
        }
    }
}

fn contribution(config: &JobConfig, chunk_index: u32, rank: u16) -> Vec<u8> {
    let header = fanin::Header {
        kind: Kind::Contribution,
        chunk_index,
        slot_parity: (chunk_index % 2) as u8,
        element_count: 2,
        ..probe_header(config, 0, rank)
    };
    let mut packet = vec![0; header.datagram_bytes()];
    packet[HEADER_BYTES + 3] = rank as u8 + 1;
    header.seal(&mut packet);
    packet
}
