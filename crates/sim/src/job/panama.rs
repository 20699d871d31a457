//! PANAMA's values in the simulator: a `Worker` at every rank, the trees that its `Controller` chooses, and one `Switch` of 64 MB at every
//! switch of the network, which all jobs share (PANAMA §3, §4, §7).

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow, ensure};
use fanin_link::Random;
use fanin_protocol::panama::placement::{Controller, Fabric, Plan, Policy, Refusal, Request, TreePlan};
use fanin_protocol::panama::{
    self, CongestionControl, Context, Floats, Switch, SwitchConfig, Tensors, TreeConfig, Verdict, Worker, WorkerConfig,
};
use fanin_protocol::stream::{BlockId, Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::generated::PANAMA_HEADER_BYTES;
use fanin_wire::panama::{ElementFormat, Header};
use fanin_wire::{ElementFormat as FaninFormat, Operator};

use super::aggregation::{Arrival, Endpoint, EndpointCounters, Event, Outbox, Program, Programs, Transmit, Wire};
use super::tree::{Node, Tree, draw_roots};
use crate::fabric;
use crate::packet::NO_HOST;

/// Memory of an accelerator (PANAMA §7).
const MEMORY_BYTES: u32 = 64_000_000;
/// Job numbers have 8 bits.
const JOB_COUNT_MAX: u16 = 256;
/// The timer waits long before a round trip was measured, and then for a few of them.
const TIMEOUT_INITIAL: Span = Span::from_ms(10);
const TIMEOUT_MAX: Span = Span::from_ms(200);

/// How a job uses PANAMA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The job's number.
    pub job: u16,
    /// Ranks.
    pub worker_count: u16,
    /// Most packets out in a tree, a power of two.
    pub window_max: u32,
    /// So many packets out in each tree, in place of Fig. 5's congestion control.
    pub window: Option<u32>,
    /// Windows grow in rounds with marks too, as DCTCP's do.
    pub grows_when_marked: bool,
    /// Rounds are those of what was out at their begin, as DCTCP's are.
    pub whole_rounds: bool,
    /// Share of the workers that are waited for (PANAMA-0.88, PANAMA-0.94).
    pub share: f64,
    /// Packets with a payload that a bucket takes, on all trees.
    pub block_count: u32,
    /// Bytes on a link of a packet with a payload, and of one without.
    pub packet_bytes: [u16; 2],
    /// Least resend timeout.
    pub timeout_min: Span,
}

impl Settings {
    fn id(&self) -> u32 {
        id(self.job)
    }

    fn token(&self) -> u32 {
        self.job.into()
    }

    fn congestion_control(&self) -> CongestionControl {
        match (self.window, CongestionControl::FIG_5) {
            (Some(window), _) => CongestionControl::Fixed { window },
            (None, CongestionControl::Dctcp { cwnd_initial, ssthresh_initial, gain_shift, .. }) => {
                let (grows_when_marked, whole_rounds) = (self.grows_when_marked, self.whole_rounds);
                CongestionControl::Dctcp { cwnd_initial, ssthresh_initial, gain_shift, grows_when_marked, whole_rounds }
            }
            (None, other) => other,
        }
    }

    fn wire(&self, header: &Header, group: u32) -> Wire {
        let bytes = self.packet_bytes[usize::from(header.element_count == 0)];
        // The accelerator mirrors the ECN bit into the IP header (PANAMA §4.2).
        Wire { bytes, group, destination: NO_HOST, is_markable: true, is_marked: header.flags.ecn }
    }
}

/// All PANAMA jobs of a network.
pub struct Network {
    controller: Controller,
    /// Of switches.
    names: Vec<String>,
    /// By switch: what each tree is told, and its group.
    trees: BTreeMap<u32, Vec<(TreeConfig, u32, Settings)>>,
}

impl Network {
    /// On a network; jobs get up to 64 trees, as they ask.
    ///
    /// # Errors
    /// If a host has not exactly one cable.
    pub fn new(fabric: &fabric::Fabric) -> anyhow::Result<Network> {
        let cables: Vec<[u32; 2]> = fabric.cables.iter().map(|cable| cable.ends).collect();
        let names = (fabric.host_count..fabric.node_count()).map(|node| fabric.name(node)).collect();
        let fabric = Fabric::new(fabric.host_count, fabric.switch_count, &cables);
        let fabric = fabric.map_err(|error| anyhow!("PANAMA's controller does not know this network: {error:?}"))?;
        let policy = Policy { tree_count_max: 64, aggregation_bytes_min: 0 };
        Ok(Network { controller: Controller::new(fabric, policy), names, trees: BTreeMap::new() })
    }

    /// Trees for a job, up to `tree_count`, with roots that are drawn if there is a `lot`; the first has the group `group_first`. Returns how many.
    ///
    /// # Errors
    /// What the controller refuses, and numbers that are out of bounds.
    pub fn place(
        &mut self,
        settings: &Settings,
        hosts: &[u16],
        tree_count: u32,
        lot: Option<&mut Random>,
        group_first: u32,
    ) -> anyhow::Result<u32> {
        let percent = settings.share * 100.0;
        ensure!(
            (1.0..=100.0).contains(&percent.round()) && (percent - percent.round()).abs() < 1e-6,
            "share = {}: in whole hundredths, from 0.01 to 1",
            settings.share
        );
        ensure!(
            settings.window_max.is_power_of_two() && settings.window_max <= 1 << 15,
            "slots = {}: a power of two, at most 32768",
            settings.window_max
        );
        ensure!(settings.window != Some(0), "window = 0: at least one packet has to be out");
        let request = Request {
            window_max: settings.window_max,
            share_percent: percent.round() as u8,
            ..request(settings.job, hosts)
        };
        let plan = self.choose(&request, tree_count, lot)?;
        let host_count = self.controller.fabric().host_count();
        for (tree, group) in plan.trees.iter().zip(group_first..) {
            for &(switch, config) in &tree.switches {
                self.trees.entry(switch - host_count).or_default().push((config, group, *settings));
            }
        }
        Ok(plan.trees.len() as u32)
    }

    /// Trees for a job of another scheme, which has no accelerators there.
    ///
    /// # Errors
    /// What the controller refuses.
    pub fn trees(&mut self, job: u16, hosts: &[u16], tree_count: u32) -> anyhow::Result<Vec<Tree>> {
        let plan = self.choose(&request(job, hosts), tree_count, None)?;
        Ok(plan.trees.iter().map(|tree| as_tree(self.controller.fabric(), tree, hosts)).collect())
    }

    fn choose(&mut self, request: &Request, tree_count: u32, lot: Option<&mut Random>) -> anyhow::Result<Plan> {
        let number = request.job_token;
        ensure!(number < JOB_COUNT_MAX.into(), "more than {JOB_COUNT_MAX} jobs, and the controller is to place one");
        ensure!((1..=64).contains(&tree_count), "trees = {tree_count}: PANAMA has room for 64");
        self.controller.set_tree_count_max(tree_count as u8);
        let placed = match lot {
            None => self.controller.place(request),
            Some(random) => self.controller.roots(request).and_then(|(_, roots)| {
                let drawn = draw_roots(roots, tree_count, random);
                self.controller.place_at(request, &drawn.iter().map(|&(root, _)| root).collect::<Vec<_>>())
            }),
        };
        placed.cloned().map_err(|refusal| match refusal {
            Refusal::TooManyPorts(node) => {
                let name = &self.names[(node - self.controller.fabric().host_count()) as usize];
                anyhow!("{name} would need ports beyond 64: spread the workers over more racks")
            }
            other => anyhow!("{other}"),
        })
    }

    /// Puts the accelerators at their switches, when all jobs are there.
    ///
    /// # Errors
    /// If an accelerator's memory is too small.
    pub fn install(self, programs: &mut [Programs]) -> anyhow::Result<()> {
        for (number, trees) in self.trees {
            let packet_bytes = trees.iter().map(|(.., settings)| settings.packet_bytes[0]).max().unwrap_or(1);
            let memory_packets = MEMORY_BYTES / u32::from(packet_bytes);
            let config = SwitchConfig { memory_packets, pause_packets: u32::MAX, element_count_max: 1 };
            let mut switch = Switch::new(config);
            let mut of_job = BTreeMap::new();
            for (tree, group, settings) in &trees {
                let installed = switch.install(*tree);
                installed
                    .map_err(|error| anyhow!("{error:?}"))
                    .with_context(|| format!("accelerator of switch {number}"))?;
                of_job.insert((tree.job_id, tree.tree), (*group, *settings));
            }
            let groups: Vec<u32> = trees.iter().map(|(_, group, _)| *group).collect();
            programs[number as usize].add(Box::new(Accelerator { switch, memory_packets, trees: of_job }), groups);
        }
        Ok(())
    }
}

fn id(job: u16) -> u32 {
    0x100 + u32::from(job)
}

fn request(job: u16, hosts: &[u16]) -> Request {
    Request {
        job_id: id(job),
        job_token: job.into(),
        hosts: hosts.iter().map(|&host| host.into()).collect(),
        bytes: u64::MAX,
        window_max: 1,
        share_percent: 100,
    }
}

/// A tree of the controller as other schemes take it.
fn as_tree(fabric: &Fabric, plan: &TreePlan, hosts: &[u16]) -> Tree {
    let mut tree = Tree { nodes: Vec::new(), number_of_rank: vec![0; hosts.len()] };
    let bitmaps: BTreeMap<u32, u64> = plan.switches.iter().map(|(switch, config)| (*switch, config.ports)).collect();
    // From the ranks up: what is below a child is known.
    for (switch, config) in &plan.switches {
        let children: Vec<u16> = (0..64).filter(|port| config.ports >> port & 1 == 1).collect();
        let mut child_of_rank = vec![None; hosts.len()];
        for (number, &port) in (0..).zip(&children) {
            let below = fabric.neighbour(*switch, port).map_or(u32::MAX, |(node, _)| node);
            let node = tree.nodes.iter().find(|node| node.switch + fabric.host_count() == below);
            for (rank, &host) in hosts.iter().enumerate() {
                if u32::from(host) == below {
                    tree.number_of_rank[rank] = number;
                }
                if u32::from(host) == below || node.is_some_and(|node| node.child_of_rank[rank].is_some()) {
                    child_of_rank[rank] = Some(number);
                }
            }
        }
        let parent = config.parent.and_then(|port| {
            let (above, there) = fabric.neighbour(*switch, port.into())?;
            let before = bitmaps.get(&above)? & ((1 << there) - 1);
            Some((port.into(), before.count_ones() as u16))
        });
        tree.nodes.push(Node { switch: switch - fabric.host_count(), parent, children, child_of_rank });
    }
    tree
}

/// The program of a switch.
struct Accelerator {
    switch: Switch<Floats>,
    memory_packets: u32,
    /// By job and tree.
    trees: BTreeMap<(u32, u8), (u32, Settings)>,
}

impl std::fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accelerator").field("counters", self.switch.counters()).finish()
    }
}

impl Accelerator {
    fn follow(&self, verdict: &Verdict, outbox: &mut Outbox) {
        let Some(header) = verdict.header() else { return };
        let Some((group, settings)) = self.trees.get(&(header.job_id, header.tree)) else { return };
        let (wire, length) = (settings.wire(header, *group), header.datagram_bytes());
        match *verdict {
            Verdict::Drop(_) => {}
            Verdict::Refuse { reason, .. } => outbox.fail(format!("a datagram of group {group} is refused: {reason}")),
            Verdict::Up { port, .. } => outbox.send(&[port.into()], length, &wire),
            Verdict::Down { ports, .. } => {
                let mut list = [0; 64];
                let mut count = 0;
                for port in (0..64).filter(|port| ports >> port & 1 == 1) {
                    list[count] = port;
                    count += 1;
                }
                outbox.send(&list[..count], length, &wire);
            }
        }
    }
}

impl Program for Accelerator {
    fn process(&mut self, arrival: &Arrival, outbox: &mut Outbox) {
        let context = Context { port: arrival.port as u8, is_marked: arrival.is_marked };
        let mut next = Some(self.switch.process(&context, arrival.datagram, outbox.space()));
        while let Some(verdict) = next {
            self.follow(&verdict, outbox);
            next = self.switch.proceed(outbox.space());
        }
    }

    fn is_paced(&self) -> bool {
        true
    }

    fn check(&self) -> Option<String> {
        let (used, most) = (self.switch.packet_count(), self.memory_packets);
        (used > most).then(|| format!("{used} packets in an accelerator's memory, which has room for {most}"))
    }
}

/// One rank's worker.
pub struct Ranked {
    settings: Settings,
    group_first: u32,
    worker: Worker,
    numbers: Numbers,
    submitted: u64,
    failure: Option<String>,
    /// Collectives that are complete and not told of.
    completed: u64,
}

impl std::fmt::Debug for Ranked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranked").field("counters", self.worker.counters()).finish()
    }
}

/// A rank's endpoint.
pub fn endpoint(settings: &Settings, rank: u16, group_first: u32, tree_count: u8) -> Ranked {
    let worker = Worker::new(WorkerConfig {
        job_id: settings.id(),
        job_token: settings.token(),
        rank,
        tree_count,
        window_max: settings.window_max,
        congestion_control: settings.congestion_control(),
        resend_timeout_initial: TIMEOUT_INITIAL.max(settings.timeout_min),
        resend_timeout_min: settings.timeout_min,
        resend_timeout_max: TIMEOUT_MAX.max(settings.timeout_min),
    });
    let numbers = Numbers {
        rank: rank.into(),
        worker_count: settings.worker_count.into(),
        is_partial: settings.share < 1.0,
        sums: 0,
        partial: 0,
        wrong: 0,
    };
    Ranked { settings: *settings, group_first, worker, numbers, submitted: 0, failure: None, completed: 0 }
}

impl Endpoint for Ranked {
    fn submit(&mut self, _now: Time) {
        let blocks = self.settings.block_count;
        let taken = self.worker.submit(Submission {
            id: self.submitted,
            collective_tag: self.submitted as u32,
            shape: Shape { shard_count: 1, shard_elements: blocks.into(), block_elements: 1 },
            block_first: 0,
            block_count: blocks,
            contributors: Participants::Everyone,
            receivers: Participants::Everyone,
            operator: Operator::Add,
            element_format: FaninFormat::Int32,
            scaled: true,
        });
        self.failure = self.failure.take().or(taken.err().map(|reason| format!("not submitted: {reason}")));
        self.submitted += 1;
    }

    fn poll_transmit(&mut self, now: Time, output: &mut [u8]) -> Option<Transmit> {
        let panama::Outgoing { header, block } = self.worker.poll_header(now)?;
        let length = header.datagram_bytes();
        if let Some(id) = block {
            self.numbers.write_block(id, header.element_format, &mut output[PANAMA_HEADER_BYTES..length]);
        }
        header.seal(&mut output[..length]);
        let wire = self.settings.wire(&header, self.group_first + u32::from(header.tree));
        Some(Transmit { length, wire })
    }

    fn handle_packet(&mut self, arrival: &Arrival) {
        self.worker.handle_packet(arrival.now, arrival.datagram, arrival.is_marked, &mut self.numbers);
        while let Some(event) = self.worker.poll_event() {
            match event {
                panama::Event::Completed { .. } => self.completed += 1,
                panama::Event::Finished => {}
                panama::Event::Refused { reason, .. } => self.failure = Some(format!("refused: {reason}")),
            }
        }
        if self.numbers.wrong > 0 {
            self.failure = Some(format!("{} wrong sums", self.numbers.wrong));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.worker.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.worker.handle_timeout(now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(failure) = self.failure.take() {
            return Some(Event::Failed(failure));
        }
        self.completed.checked_sub(1).map(|left| {
            self.completed = left;
            Event::Completed
        })
    }

    fn counters(&self) -> EndpointCounters {
        let counters = self.worker.counters();
        let resent = counters.resends_timeout + counters.resends_overtaken;
        EndpointCounters {
            resent,
            asked: counters.resends_early,
            sums: self.numbers.sums,
            partial: self.numbers.partial,
        }
    }
}

/// What ranks contribute, one float a block, and the check of every sum: whole numbers, so that a sum of all is exact,
/// and one that somebody is not in (partial synchronization) is a whole number within bounds.
struct Numbers {
    rank: u32,
    worker_count: u32,
    /// Not everybody is in every sum.
    is_partial: bool,
    sums: u64,
    /// Of these, sums that somebody is not in.
    partial: u64,
    wrong: u64,
}

impl Numbers {
    fn base(id: BlockId) -> u32 {
        let seed = id.block ^ (id.collective as u32) << 24;
        (seed ^ seed >> 15).wrapping_mul(0x85eb_ca6b) >> 24
    }

    /// Rank r contributes r more than the base. Of k contributions the sum is known if k is all of them, and else within bounds.
    fn is_sum(&self, id: BlockId, worker_count: u32, sum: f32) -> bool {
        let (n, k, base) = (self.worker_count, worker_count, Self::base(id));
        if k == 0 || k > n || k < n && !self.is_partial {
            return false;
        }
        let least = k * base + k * (k - 1) / 2;
        let most = least + k * (n - k);
        sum.fract() == 0.0 && (least as f32..=most as f32).contains(&sum)
    }
}

impl Tensors for Numbers {
    fn write_block(&mut self, id: BlockId, _: ElementFormat, payload: &mut [u8]) {
        payload.copy_from_slice(&((Self::base(id) + self.rank) as f32).to_be_bytes());
    }

    fn read_block(&mut self, id: BlockId, _: ElementFormat, worker_count: u16, payload: &[u8]) {
        let sum = payload.try_into().map_or(f32::NAN, f32::from_be_bytes);
        self.sums += 1;
        self.partial += u64::from(u32::from(worker_count) < self.worker_count);
        self.wrong += u64::from(!self.is_sum(id, worker_count.into(), sum));
    }
}
