//! ATP's values in the simulator (Lao et al., NSDI 2021): a worker at every rank, a server at a host of its own, and a switch program at the switches beside
//! workers and beside the server (§3.4: two levels). Switches between these only pass packets on. A switch's slots are shared by all jobs.

use std::collections::BTreeMap;

use anyhow::{anyhow, ensure};
use fanin_protocol::atp::{
    self, CongestionControl, Context, Indexing, JobConfig, OVERFLOW_OFTEN, Scale, Server, ServerConfig, Switch,
    SwitchConfig, Tree, Verdict, Way, Worker, WorkerConfig,
};
use fanin_protocol::stream::Submission;
use fanin_protocol::time::{Span, Time};
use fanin_wire::Accumulator;
use fanin_wire::atp::{Header, Kind, LEVEL_COUNT_MAX};
use fanin_wire::generated::{ATP_FAN_IN_MAX, ATP_HEADER_BYTES};
use serde::Deserialize;

use super::aggregation::{
    Arrival, DATAGRAM_BYTES_MAX, Endpoint, EndpointCounters, Event, Outbox, Program, Transmit, Wire,
};
use super::words::{ELEMENTS, Words, submission};

const TIMEOUT_INITIAL: Span = Span::from_ms(10);
const TIMEOUT_MAX: Span = Span::from_ms(200);
/// A switch tells 256 jobs apart.
const JOB_COUNT_MAX: u16 = 256;

/// `[atp]`: what all ATP jobs have in common.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Section {
    /// Slots of each switch, for all jobs together (ATP: aggregators).
    pub slots: u16,
    /// Most packets that a rank has out, a power of two.
    pub window_max: u32,
    /// Packets out at the start (ATP §3.7: 200 of 306 bytes).
    pub window_initial: u32,
    /// Packets by which the window grows in a round trip (§3.7: one MTU).
    pub window_step: u32,
    /// A longer queue marks what a program sends into it.
    pub mark_bytes: u32,
    /// A slot untouched for so long is taken from its chunk.
    pub slot_age_max_us: u32,
}

impl Default for Section {
    fn default() -> Self {
        Section {
            slots: 2048,
            window_max: 512,
            window_initial: 40,
            window_step: 1,
            mark_bytes: 85 * 1500,
            slot_age_max_us: 5000,
        }
    }
}

impl Section {
    /// Checks what the protocol allows.
    ///
    /// # Errors
    /// For numbers out of bounds.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.slots > 0, "slots = 0: a switch needs at least one");
        let Section { window_max, window_initial, .. } = *self;
        ensure!(
            window_max.is_power_of_two() && window_max <= 1 << 16,
            "window_max = {window_max}: a power of two, at most 65536"
        );
        ensure!((1..=window_max).contains(&window_initial), "window_initial = {window_initial}: from 1 to window_max");
        ensure!(self.window_step > 0, "window_step = 0: the window would not grow");
        Ok(())
    }
}

/// One job.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it has in common with others.
    pub shared: Section,
    /// Its number.
    pub job: u16,
    /// Its one group.
    pub group: u32,
    /// Hosts, by rank.
    pub hosts: Vec<u16>,
    /// Host of its server.
    pub server: u16,
    /// Packets with a payload that a bucket takes.
    pub block_count: u32,
    /// Bytes on a link of a packet with a payload, and of one without.
    pub packet_bytes: [u16; 2],
    /// Least resend timeout.
    pub timeout_min: Span,
}

/// A switch's part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The node.
    pub node: u32,
    /// Counted from the workers up.
    pub level: u8,
    /// By child, a host that is it or behind it.
    pub children: Vec<u16>,
}

impl Part {
    /// Whether a datagram is for this switch, and does not only come by on the way between another rack and the server: what goes up says at
    /// which level, what comes down goes to one of the switch's children.
    fn takes(&self, arrival: &Arrival, server: u16) -> bool {
        if arrival.destination != server {
            return self.children.contains(&arrival.destination);
        }
        // What cannot be read is refused by the switch.
        Header::parse(arrival.datagram).map_or(true, |(header, _)| header.level == self.level || !is_upward(&header))
    }
}

fn is_upward(header: &Header) -> bool {
    matches!(header.kind, Kind::Fragment | Kind::Probe)
}

/// A job's tree, and the switches in it.
///
/// # Errors
/// For more children of a switch than packets have room for.
pub fn tree(hosts: &[u16], server: u16, switch_of: impl Fn(u16) -> u32) -> anyhow::Result<(Tree, Vec<Part>)> {
    let root = switch_of(server);
    let mut parts: Vec<Part> = Vec::new();
    let mut place = |node: u32, host: u16, is_new_child: bool| {
        let part = parts.iter().position(|part| part.node == node).unwrap_or_else(|| {
            parts.push(Part { node, level: 0, children: Vec::new() });
            parts.len() - 1
        });
        if is_new_child {
            parts[part].children.push(host);
        }
        parts[part].children.len() - 1
    };
    let mut seats = Vec::new();
    for (rank, &host) in hosts.iter().enumerate() {
        let node = switch_of(host);
        let own = place(node, host, true);
        let at_root = if node == root {
            own
        } else {
            match hosts[..rank].iter().position(|&other| switch_of(other) == node) {
                Some(first) => {
                    let (_, _, at_root): (u32, usize, usize) = seats[first];
                    at_root
                }
                None => place(root, host, true),
            }
        };
        seats.push((node, own, at_root));
    }
    let has_racks = seats.iter().any(|(node, ..)| *node != root);
    let fan_in = |node: u32| parts.iter().find(|part| part.node == node).map_or(0, |part| part.children.len());
    for part in &parts {
        let count = part.children.len();
        ensure!(
            count <= ATP_FAN_IN_MAX as usize,
            "{count} ranks or racks below one switch: ATP's packets have room for {ATP_FAN_IN_MAX}"
        );
    }
    let way = |&(node, own, at_root): &(u32, usize, usize)| {
        let mut way = Way { level: 0, children: [0; LEVEL_COUNT_MAX], fan_in: [0; LEVEL_COUNT_MAX] };
        let top = usize::from(has_racks);
        way.level = if node == root { top as u8 } else { 0 };
        way.children[top] = at_root as u8;
        way.fan_in[top] = fan_in(root) as u8;
        if node != root {
            way.children[0] = own as u8;
            way.fan_in[0] = fan_in(node) as u8;
        }
        way
    };
    let ways = seats.iter().map(way).collect();
    let tree = Tree::new(1 + u8::from(has_racks), ways).map_err(|error| anyhow!("no tree for ATP: {error:?}"))?;
    let levelled = |part: Part| Part { level: u8::from(has_racks && part.node == root), ..part };
    Ok((tree, parts.into_iter().map(levelled).collect()))
}

impl Settings {
    fn id(&self) -> u32 {
        0x100 + u32::from(self.job)
    }

    fn wire(&self, length: usize) -> Wire {
        let bytes = self.packet_bytes[usize::from(length <= ATP_HEADER_BYTES)];
        Wire { bytes, group: self.group, destination: self.server, is_markable: true, is_marked: false }
    }
}

/// Hands over a datagram as ATP's programs read it: where a queue on the way has marked its IP header, its own header is marked, and
/// so sums and Parameters carry the mark on (§3.7).
fn with_mark<T>(arrival: &Arrival, take: impl FnOnce(&[u8]) -> T) -> T {
    let header = arrival.is_marked.then(|| Header::parse(arrival.datagram).ok()).flatten();
    let Some((mut header, _)) = header else { return take(arrival.datagram) };
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let datagram = &mut buffer[..arrival.datagram.len()];
    datagram.copy_from_slice(arrival.datagram);
    header.flags.ecn = true;
    header.seal(datagram);
    take(datagram)
}

/// One rank's endpoint.
pub struct Ranked {
    settings: Settings,
    worker: Worker,
    words: Words,
    submitted: u64,
}

/// A rank's endpoint.
///
/// # Errors
/// For more jobs than a switch tells apart.
pub fn endpoint(settings: &Settings, tree: &Tree, rank: u16) -> anyhow::Result<Ranked> {
    ensure!(settings.job < JOB_COUNT_MAX, "a switch tells {JOB_COUNT_MAX} ATP jobs apart: use fewer jobs");
    let shared = &settings.shared;
    let worker = Worker::new(WorkerConfig {
        job_id: settings.id(),
        job_token: settings.id(),
        rank,
        lane: 0,
        way: *tree.way(rank),
        level_count: tree.level_count(),
        slot_count: shared.slots,
        indexing: Indexing::Hash,
        element_count_max: ELEMENTS,
        window_max: shared.window_max,
        scale: Scale::Static,
        congestion_control: CongestionControl::Aimd { window_initial: shared.window_initial, step: shared.window_step },
        resend_timeout_initial: TIMEOUT_INITIAL.max(settings.timeout_min),
        resend_timeout_min: settings.timeout_min,
        resend_timeout_max: TIMEOUT_MAX.max(settings.timeout_min),
    });
    let words = Words::new(settings.job.into(), rank.into(), settings.hosts.len() as u32);
    Ok(Ranked { settings: settings.clone(), worker, words, submitted: 0 })
}

impl std::fmt::Debug for Ranked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ranked").field(self.worker.counters()).finish()
    }
}

impl Endpoint for Ranked {
    fn submit(&mut self, _now: Time) {
        let blocks = self.settings.block_count;
        let whole: Submission = submission(self.submitted, blocks, 0..blocks);
        self.worker.submit(whole);
        self.submitted += 1;
    }

    fn poll_transmit(&mut self, now: Time, output: &mut [u8]) -> Option<Transmit> {
        let length = self.worker.poll_transmit(now, &mut self.words, output)?;
        Some(Transmit { length, wire: self.settings.wire(length) })
    }

    fn handle_packet(&mut self, arrival: &Arrival) {
        with_mark(arrival, |datagram| self.worker.handle_packet(arrival.now, datagram, &mut self.words));
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.worker.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.worker.handle_timeout(now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        if self.words.wrong > 0 {
            return Some(Event::Failed(format!("{} wrong sums", std::mem::take(&mut self.words.wrong))));
        }
        std::iter::from_fn(|| self.worker.poll_event()).find_map(|event| match event {
            atp::Event::Completed { .. } => Some(Event::Completed),
            atp::Event::Refused { reason, .. } => Some(Event::Failed(format!("refused: {reason}"))),
            // Nobody is lost here, and floats may go again.
            atp::Event::SourceLost { .. } | atp::Event::Overflowed { .. } => None,
        })
    }

    fn counters(&self) -> EndpointCounters {
        let counters = self.worker.counters();
        let resent = counters.resends_overtaken + counters.resends_timeout + counters.resends_float;
        EndpointCounters { resent: resent + counters.resends_around, asked: 0, sums: self.words.sums, partial: 0 }
    }
}

/// A job's server.
pub struct Serving {
    settings: Settings,
    server: Server,
}

/// The endpoint of a job's server.
pub fn server(settings: &Settings, tree: &Tree) -> Serving {
    let server = Server::new(ServerConfig {
        job_id: settings.id(),
        job_token: settings.id(),
        lane: 0,
        tree: tree.clone(),
        slot_count: settings.shared.slots,
        window_max: settings.shared.window_max,
        element_count_max: ELEMENTS,
        stragglers: None,
        accumulator: Accumulator::StaticFixed,
        overflow_often: OVERFLOW_OFTEN,
    });
    Serving { settings: settings.clone(), server }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Serving").field(self.server.counters()).finish()
    }
}

impl Endpoint for Serving {
    /// A server contributes nothing.
    fn submit(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, output: &mut [u8]) -> Option<Transmit> {
        let length = self.server.poll_transmit(output)?.bytes;
        Some(Transmit { length, wire: self.settings.wire(length) })
    }

    fn handle_packet(&mut self, arrival: &Arrival) {
        with_mark(arrival, |datagram| self.server.handle_packet(arrival.now, datagram));
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _now: Time) {}

    fn poll_event(&mut self) -> Option<Event> {
        None
    }

    fn counters(&self) -> EndpointCounters {
        EndpointCounters::default()
    }
}

/// A switch's program for all its ATP jobs.
pub struct Shared {
    switch: Switch,
    /// By group.
    jobs: BTreeMap<u32, (Settings, Part)>,
}

/// A switch without jobs.
pub fn program(shared: &Section) -> Shared {
    let switch = Switch::new(SwitchConfig {
        slot_count: shared.slots,
        element_count_max: ELEMENTS,
        slot_age_max: Span::from_us(shared.slot_age_max_us.into()),
        ecn_threshold_bytes: shared.mark_bytes,
    });
    Shared { switch, jobs: BTreeMap::new() }
}

impl Shared {
    /// Adds a job.
    ///
    /// # Errors
    /// If the switch does not take it.
    pub fn install(&mut self, settings: &Settings, part: &Part) -> anyhow::Result<()> {
        let id = settings.id();
        let config = JobConfig {
            job_id: id,
            job_token: id,
            lane_count: 1,
            level: part.level,
            accumulator: Accumulator::StaticFixed,
            // Fixed point does not ask.
            worker_count: 0,
        };
        self.switch.install(config).map_err(|error| anyhow!("a switch does not take the job: {error:?}"))?;
        self.jobs.insert(settings.group, (settings.clone(), part.clone()));
        Ok(())
    }

    /// The groups of its jobs.
    pub fn groups(&self) -> Vec<u32> {
        self.jobs.keys().copied().collect()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(self.switch.counters()).finish()
    }
}

impl Program for Shared {
    fn process(&mut self, arrival: &Arrival, outbox: &mut Outbox) {
        let Some((settings, part)) = self.jobs.get(&arrival.group) else {
            return outbox.fail(format!("no ATP job has group {}", arrival.group));
        };
        if !part.takes(arrival, settings.server) {
            outbox.space()[..arrival.datagram.len()].copy_from_slice(arrival.datagram);
            let length = arrival.datagram.len();
            let wire = Wire { is_marked: arrival.is_marked, ..settings.wire(length) };
            return outbox.route(&[arrival.destination], length, &wire);
        }
        let waiting = outbox.waiting_bytes_towards(settings.server, arrival.group);
        let context = Context { now: arrival.now, egress_queue_bytes: waiting.min(u32::MAX.into()) as u32 };
        match with_mark(arrival, |datagram| self.switch.process(&context, datagram, outbox.space())) {
            Verdict::Drop(_) => {}
            Verdict::Refuse { reason, .. } => {
                outbox.fail(format!("a datagram of group {} is refused: {reason}", arrival.group));
            }
            Verdict::Up { bytes } => outbox.route(&[settings.server], bytes, &settings.wire(bytes)),
            Verdict::Down { bytes, children, .. } => {
                // All ranks receive every sum here, so no child gets a header only.
                let is_wanted = |child: usize| children.checked_shr(child as u32).is_some_and(|rest| rest & 1 == 1);
                let mut hosts = [0u16; ATP_FAN_IN_MAX as usize];
                let mut count = 0;
                for (_, &host) in part.children.iter().enumerate().filter(|(child, _)| is_wanted(*child)) {
                    hosts[count] = host;
                    count += 1;
                }
                outbox.route(&hosts[..count], bytes, &settings.wire(bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_meet_at_their_own_switch_and_beside_the_server() {
        // Two hosts at each switch.
        let switch_of = |host: u16| u32::from(host / 2);
        let (tree, parts) = tree(&[0, 2, 3, 5], 1, switch_of).unwrap();
        assert_eq!(tree.level_count(), 2);
        let part = |node: u32| parts.iter().find(|part| part.node == node).unwrap();
        assert_eq!((part(0).level, &part(0).children[..]), (1, &[0u16, 2, 5][..]), "a worker, and two racks");
        assert_eq!((part(1).level, &part(1).children[..]), (0, &[2u16, 3][..]));
        assert_eq!((tree.way(0).level, tree.way(3).level), (1, 0));
        assert_eq!(tree.way(2).children[..2], [1, 1]);
    }

    #[test]
    fn a_job_at_the_servers_switch_has_one_level() {
        let (tree, parts) = tree(&[0, 1], 2, |_| 0).unwrap();
        assert_eq!((tree.level_count(), parts.len(), parts[0].level), (1, 1, 0));
        assert!(super::tree(&(0..33).collect::<Vec<u16>>(), 40, |_| 0).is_err(), "33 children");
    }
}
