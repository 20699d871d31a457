//! Plays ATP's conformance vectors to real data planes and a real parameter server, over UDP sockets on loopback: a data
//! plane for each switch of the tree, and around the node in question one socket for each of its children and for what
//! is above it.
//!
//! Nothing is waited for blindly. Behind each packet come two Probes of a job of its own. A thread takes datagrams in order
//! and sends what a batch caused before it receives the next, so once the second Probe is back, all that the packet caused
//! lies in the sockets, and what does not lie there was not sent.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use fanin_harness::vectors::atp::{
    Arrival, AtpTarget, Exchange, JobSpec, Node, Receiver, SwitchSpec, Vector, VerdictName, level_of, replay,
    verdict_of_server,
};
use fanin_harness::vectors::suite;
use fanin_protocol::DropReason;
use fanin_protocol::atp::{SwitchConfig, Tree};
use fanin_protocol::time::Span;
use fanin_server::{ParameterServer, ServedJob, ServerConfig};
use fanin_switch::dataplane::{DataplaneConfig, UdpDataplane};
use fanin_switch::dataplane_api::{AtpInstall, Dataplane, JobInstall, TrafficCounters, WireFormat};
use fanin_wire::Operator;
use fanin_wire::atp::{ElementFormat, Flags, Header, Kind};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};

/// Job of the fences; no vector uses its number.
const FENCE: u32 = 0xfe;
/// For what cannot fail to come on loopback, on a machine that is loaded.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// For counters that another reader kept from being published.
const COUNTERS_WAIT: Duration = Duration::from_millis(20);
/// A slot that gets at least so old can get old in real time; with a shorter age a running switch could never be young.
const SLOT_AGE_MIN: Span = Span::from_ms(10);
/// Vectors that ask for a moment between young and old, and for a queue of a given length.
const LEFT_OUT: [&str; 2] = ["ecn_is_marked_and_merged.toml", "stale_slot_freed_by_age.toml"];

/// The neighbours of one switch, for one lane of one job.
struct Ends {
    above: UdpSocket,
    /// By child.
    children: Vec<UdpSocket>,
}

struct Job {
    spec: JobSpec,
    tree: Tree,
    /// By node and lane.
    ends: HashMap<(Node, u16), Ends>,
    /// The switch beside the server.
    beside_server: UdpSocket,
}

/// One switch of the tree.
struct SwitchNode {
    dataplane: UdpDataplane,
    /// Of the job of the fences: both ends of its way.
    fence: Ends,
    sent_datagrams: u64,
}

struct ServerNode {
    server: ParameterServer,
    fence: UdpSocket,
    sent_bytes: u64,
}

struct DaemonTarget {
    config: SwitchConfig,
    switches: HashMap<Node, SwitchNode>,
    server: ServerNode,
    /// Every job that was installed, removed ones too.
    jobs: Vec<Job>,
    /// When the packet before came, in the vector's time.
    now_ns: u64,
}

impl SwitchNode {
    fn start(config: SwitchConfig) -> Result<SwitchNode, String> {
        let config = DataplaneConfig { atp: config, ..DataplaneConfig::default() };
        let dataplane = UdpDataplane::start(&config).map_err(|error| error.to_string())?;
        let fence = ends(dataplane.ports()[0], 1);
        dataplane.install(job_install(FENCE, FENCE, 1, 0, &[&fence])).map_err(|error| error.to_string())?;
        Ok(SwitchNode { dataplane, fence, sent_datagrams: 0 })
    }

    fn send(&mut self, socket: &UdpSocket, packet: &[u8]) -> Result<(), String> {
        self.sent_datagrams += 1;
        socket.send(packet).map(|_| ()).map_err(|error| format!("send: {error}"))
    }

    /// Makes a child known, and waits until what it sent has come out above.
    fn probe(&mut self, probe: &Header, child: &UdpSocket, above: &UdpSocket) -> Result<(), String> {
        self.send(child, &sealed(probe))?;
        let datagram = next(above)?;
        match Header::parse(&datagram) {
            Ok((header, _)) if header.kind == Kind::Probe => Ok(()),
            other => Err(format!("no Probe came out above, but {other:?}")),
        }
    }

    /// Returns when all that was sent before has been handled.
    fn fence(&mut self) -> Result<(), String> {
        let [child, above] = [&self.fence.children[0], &self.fence.above].map(UdpSocket::try_clone);
        let (child, above) = (child.map_err(|error| error.to_string())?, above.map_err(|error| error.to_string())?);
        let probe = probe_header(FENCE, FENCE, 0, 0, 0);
        self.probe(&probe, &child, &above)?;
        self.probe(&probe, &child, &above)
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
            if Instant::now() > nudge {
                self.fence()?;
                nudge = Instant::now() + COUNTERS_WAIT;
            }
            std::thread::yield_now();
        }
    }
}

impl ServerNode {
    fn start() -> ServerNode {
        let config = ServerConfig {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port_base: 0,
            thread_count: 1,
            spin: Duration::ZERO,
            loss: None,
        };
        let server = ParameterServer::start(&config).expect("a parameter server on loopback");
        let fence = connected(server.addresses()[0]);
        let tree = Tree::one_switch(1).expect("a tree");
        let job = ServedJob {
            job_id: FENCE,
            job_token: FENCE,
            tree,
            slot_count: 1,
            window_max: 1,
            element_count_max: 1,
            lanes: vec![(0, server.addresses()[0].port())],
            stragglers: None,
        };
        server.serve(&job).expect("the job of the fences");
        ServerNode { server, fence, sent_bytes: 0 }
    }

    fn send(&mut self, socket: &UdpSocket, packet: &[u8]) -> Result<(), String> {
        self.sent_bytes += packet.len() as u64;
        socket.send(packet).map(|_| ()).map_err(|error| format!("send: {error}"))
    }

    fn fence(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            let socket = self.fence.try_clone().map_err(|error| error.to_string())?;
            let probe = Header { level: 1, ..probe_header(FENCE, FENCE, 0, 0, 0) };
            self.send(&socket, &sealed(&probe))?;
            let datagram = next(&socket)?;
            let kind = Header::parse(&datagram).map(|(header, _)| header.kind);
            if kind != Ok(Kind::ProbeReply) {
                return Err(format!("no echo of a Probe but {kind:?}"));
            }
        }
        Ok(())
    }

    fn drops(&mut self) -> Result<[u64; DropReason::ALL.len()], String> {
        let deadline = Instant::now() + ANSWER_WAIT;
        let mut nudge = Instant::now() + COUNTERS_WAIT;
        loop {
            let totals = self.server.totals();
            if totals.received_bytes == self.sent_bytes {
                return Ok(totals.drops);
            }
            if Instant::now() > deadline {
                return Err(format!("{} bytes sent, {} received", self.sent_bytes, totals.received_bytes));
            }
            if Instant::now() > nudge {
                self.fence()?;
                nudge = Instant::now() + COUNTERS_WAIT;
            }
            std::thread::yield_now();
        }
    }
}

impl DaemonTarget {
    fn start() -> DaemonTarget {
        let config = switch_config(&SwitchSpec::default());
        DaemonTarget { config, switches: HashMap::new(), server: ServerNode::start(), jobs: Vec::new(), now_ns: 0 }
    }

    /// At least as much time passes as in the vector.
    fn wait_until(&mut self, now_ns: u64) {
        std::thread::sleep(Duration::from_nanos(now_ns.saturating_sub(self.now_ns)));
        self.now_ns = now_ns;
    }

    /// Takes a job into service at one switch and makes its neighbours known there.
    fn install_at(&mut self, node: Node, spec: &JobSpec, tree: &Tree) -> Result<Vec<Ends>, String> {
        if !self.switches.contains_key(&node) {
            self.switches.insert(node, SwitchNode::start(self.config)?);
        }
        let switch = self.switches.get_mut(&node).ok_or("no switch")?;
        let children = usize::from(spec.children(node));
        let port = switch.dataplane.ports()[0];
        let lanes: Vec<Ends> = (0..spec.lane_count).map(|_| ends(port, children)).collect();
        let level = level_of(node, tree);
        let of_lanes: Vec<&Ends> = lanes.iter().collect();
        let install = JobInstall {
            element_count_max: self.config.element_count_max,
            ..job_install(spec.job_id, spec.job_token, tree.worker_count(), level, &of_lanes)
        };
        switch.dataplane.install(install).map_err(|error| error.to_string())?;
        for (lane, ends) in (0..).zip(&lanes) {
            for (child, socket) in (0..).zip(&ends.children) {
                let probe = probe_header(spec.job_id, spec.job_token, lane, level, child);
                switch.probe(&probe, socket, &ends.above)?;
            }
        }
        Ok(lanes)
    }

    fn at_switch(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        let switch = self.switches.get_mut(&arrival.node).ok_or("no such switch")?;
        let stranger = connected(switch.dataplane.ports()[0]);
        let job = &self.jobs[arrival.job];
        let ends = job.ends.get(&(arrival.node, arrival.lane));
        let level = level_of(arrival.node, &job.tree);
        let from = ends.and_then(|ends| sender(packet, level, ends)).unwrap_or(&stranger);
        let before = switch.counters()?;
        switch.send(from, packet)?;
        switch.fence()?;
        let after = switch.counters()?;
        let reason = dropped(&before, &after)?;
        let mut answers = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            for ((node, lane), ends) in job.ends.iter().filter(|((node, _), _)| *node == arrival.node) {
                let children = (0..).map(Receiver::Child).zip(&ends.children);
                for (receiver, socket) in children.chain([(Receiver::Up, &ends.above)]) {
                    for datagram in waiting(socket)? {
                        if (index, *lane) != (arrival.job, arrival.lane) {
                            return Err(format!(
                                "a datagram left {node:?} to {receiver:?} of job {index}, lane {lane}"
                            ));
                        }
                        let is_back = reason.is_some() && std::ptr::eq(socket, from);
                        answers.push((if is_back { Receiver::Sender } else { receiver }, datagram));
                    }
                }
            }
        }
        answers.extend(waiting(&stranger)?.into_iter().map(|datagram| (Receiver::Sender, datagram)));
        let counted = after.contributions - before.contributions;
        let is_from_above = ends.is_some_and(|ends| std::ptr::eq(from, &ends.above));
        let verdict = match (reason, answers.first().map(|(receiver, _)| *receiver)) {
            (None, None) if counted == 1 => VerdictName::Absorb,
            // Some ways lead to nobody.
            (None, None) if is_from_above => VerdictName::Down,
            (Some(_), None) if counted == 0 => VerdictName::Drop,
            (Some(_), Some(Receiver::Sender)) if counted == 0 => VerdictName::Refuse,
            (None, Some(Receiver::Up)) => VerdictName::Up,
            (None, Some(Receiver::Child(_))) if counted == 0 => VerdictName::Down,
            other => return Err(format!("contributions rose by {counted}, and of drops and answers came {other:?}")),
        };
        Ok(Exchange { verdict, reason, answers })
    }

    fn at_server(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        let job = &self.jobs[arrival.job];
        let before = self.server.drops()?;
        self.server.send(&job.beside_server, packet)?;
        self.server.fence()?;
        let after = self.server.drops()?;
        let reason = DropReason::ALL.into_iter().find(|&reason| after[reason as usize] > before[reason as usize]);
        for (index, other) in self.jobs.iter().enumerate().filter(|(index, _)| *index != arrival.job) {
            if !waiting(&other.beside_server)?.is_empty() {
                return Err(format!("the server answered job {index}"));
            }
        }
        let answers: Vec<_> =
            waiting(&job.beside_server)?.into_iter().map(|answer| (Receiver::Switch, answer)).collect();
        let verdict = verdict_of_server(answers.first().map(|(_, answer)| answer.as_slice()), reason);
        Ok(Exchange { verdict, reason, answers })
    }
}

impl AtpTarget for DaemonTarget {
    fn set_up(&mut self, switches: &SwitchSpec) -> Result<(), String> {
        self.config = switch_config(switches);
        Ok(())
    }

    fn install(&mut self, spec: &JobSpec, tree: &Tree) -> Result<(), String> {
        let racks = (0..spec.racks.len()).map(|rack| Node::Rack(rack as u8));
        let mut ends = HashMap::new();
        for node in racks.chain([Node::Root]) {
            let lanes = self.install_at(node, spec, tree)?;
            ends.extend((0..).zip(lanes).map(|(lane, of_lane)| ((node, lane), of_lane)));
        }
        let server = &self.server.server;
        let job = ServedJob {
            job_id: spec.job_id,
            job_token: spec.job_token,
            tree: tree.clone(),
            slot_count: self.config.slot_count,
            window_max: spec.window_max,
            element_count_max: self.config.element_count_max,
            lanes: (0..spec.lane_count).map(|lane| (lane, server.addresses()[0].port())).collect(),
            stragglers: None,
        };
        server.serve(&job).map_err(|error| error.to_string())?;
        let beside_server = connected(server.addresses()[0]);
        self.jobs.push(Job { spec: spec.clone(), tree: tree.clone(), ends, beside_server });
        Ok(())
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        let job = self.jobs.iter().find(|job| job.spec.job_id == job_id).ok_or(format!("no job {job_id:#x}"))?;
        for (node, _) in job.ends.keys() {
            let dataplane = &self.switches[node].dataplane;
            dataplane.remove(job_id);
            if dataplane.inspect(job_id).is_some() {
                return Err(format!("job {job_id:#x} is still at {node:?}"));
            }
        }
        self.server.server.remove(job_id);
        Ok(())
    }

    fn exchange(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        self.wait_until(arrival.now_ns);
        match arrival.node {
            Node::Server => self.at_server(arrival, packet),
            _ => self.at_switch(arrival, packet),
        }
    }
}

/// The clock and the queue are real: no queue is long here, and a slot is old only in vectors that wait for it.
fn switch_config(spec: &SwitchSpec) -> SwitchConfig {
    let age = Span::from_ns(spec.slot_age_ns_max);
    SwitchConfig {
        slot_count: spec.slot_count,
        element_count_max: spec.element_count_max,
        slot_age_max: if age >= SLOT_AGE_MIN { age } else { Span::from_ms(3_600_000) },
        ecn_threshold_bytes: u32::MAX,
    }
}

/// Whose packet it is: what goes up comes from a child, and what comes down from above. `None` for what tells nothing.
fn sender<'a>(packet: &[u8], level: u8, ends: &'a Ends) -> Option<&'a UdpSocket> {
    let (header, _) = Header::parse(packet).ok()?;
    if !matches!(header.kind, Kind::Fragment | Kind::Probe) {
        return Some(&ends.above);
    }
    ends.children.get(header.contributed[usize::from(level)].trailing_zeros() as usize)
}

/// The one reason for which a packet was dropped in between.
fn dropped(before: &TrafficCounters, after: &TrafficCounters) -> Result<Option<DropReason>, String> {
    let drops = |counters: &TrafficCounters, reason: DropReason| {
        counters.drops.iter().find(|(name, _)| *name == reason.name()).map_or(0, |(_, count)| *count)
    };
    let risen: Vec<(DropReason, u64)> = DropReason::ALL
        .into_iter()
        .map(|reason| (reason, drops(after, reason) - drops(before, reason)))
        // Not a loss: a Fragment that waits in its slot.
        .filter(|(reason, count)| *count > 0 && *reason != DropReason::AwaitingOthers)
        .collect();
    match risen.as_slice() {
        [] => Ok(None),
        [(reason, 1)] => Ok(Some(*reason)),
        other => Err(format!("one packet was dropped as {other:?}")),
    }
}

fn ends(switch: SocketAddr, children: usize) -> Ends {
    Ends { above: connected(switch), children: (0..children).map(|_| connected(switch)).collect() }
}

fn connected(peer: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    socket.connect(peer).expect("an address on loopback");
    socket.set_read_timeout(Some(ANSWER_WAIT)).expect("a timeout above zero");
    socket
}

/// The next datagram, which must come.
fn next(socket: &UdpSocket) -> Result<Vec<u8>, String> {
    socket.set_nonblocking(false).map_err(|error| error.to_string())?;
    let mut buffer = vec![0; 2048];
    let bytes = socket.recv(&mut buffer).map_err(|error| format!("nothing came: {error}"))?;
    buffer.truncate(bytes);
    Ok(buffer)
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

fn job_install(job_id: u32, job_token: u32, world_size: u16, level: u8, lanes: &[&Ends]) -> JobInstall {
    let above = |ends: &&Ends| ends.above.local_addr().expect("a bound socket");
    JobInstall {
        job_id,
        job_token,
        world_size,
        lane_count: lanes.len() as u16,
        slots_per_lane: 4,
        element_count_max: 1,
        wire_format: WireFormat::FaninV1,
        has_checksum: true,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        atp: Some(AtpInstall {
            level,
            children: lanes[0].children.iter().map(|_| None).collect(),
            up: lanes.iter().map(above).collect(),
        }),
        racks: None,
    }
}

fn probe_header(job_id: u32, job_token: u32, lane: u16, level: u8, child: u8) -> Header {
    let at_level = |value| std::array::from_fn(|other| if other == usize::from(level) { value } else { 0 });
    Header {
        kind: Kind::Probe,
        job_id,
        job_token,
        chunk_index: 0,
        collective_tag: 0,
        contributed: at_level(1 << child),
        fan_in: at_level(u32::from(child) + 1).map(|value: u32| value as u8),
        level,
        flags: Flags::default(),
        lane,
        slot_index: 0,
        slot_index_next: 0,
        worker_rank: 0,
        element_count: 0,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        scale: 0,
        scale_next: 0,
        echo: 0,
    }
}

fn sealed(header: &Header) -> Vec<u8> {
    let mut packet = vec![0; ATP_HEADER_BYTES];
    header.seal(&mut packet);
    packet
}

#[test]
fn every_vector_passes_on_data_planes_and_a_parameter_server() {
    suite::replay_all_atp(&LEFT_OUT, DaemonTarget::start).assert_all_passed();
}

#[test]
#[cfg(not(feature = "canary"))]
fn a_wrong_vector_fails_on_data_planes_too() {
    let play = |expect: &str| {
        let text = format!(
            "title = \"a sum\"\nsource = \"this test\"\n[job]\nworker_count = 1\n[[step]]\n\
             send = {{ rank = 0, elements = [1] }}\nexpect = {{ {expect} }}\n"
        );
        let vector = Vector::parse(&text).expect("the text is a vector");
        replay("inline.toml", &vector, &mut DaemonTarget::start()).map_err(|error| error.to_string())
    };
    assert_eq!(play("verdict = \"up\", elements = [1]"), Ok(1));
    let wrong_sum = play("verdict = \"up\", elements = [2]").expect_err("the sum is wrong");
    assert!(wrong_sum.ends_with("elements of what leaves to Up: expected [2], got [1]"), "{wrong_sum}");
    let silence = play("verdict = \"absorb\"").expect_err("the verdict is wrong");
    assert!(silence.ends_with("verdict: expected absorb, got up"), "{silence}");
}
