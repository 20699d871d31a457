//! `[[job]]`: training jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use fanin_link::Random;
use fanin_protocol::time::Span;
use fanin_wire::generated::{ATP_HEADER_BYTES, HEADER_BYTES, PANAMA_HEADER_BYTES};
use serde::{Deserialize, Serialize};

use super::CongestionName;
use crate::engine::Plan;
use crate::fabric::Fabric;
use crate::job::aggregation::{Endpoint, Programs};
use crate::job::model::Model;
use crate::job::placement::{Placement, Placer, Rule};
use crate::job::tree::{Planner, Tree};
use crate::job::{Rank, Ring, Rounds, Work, atp, ideal, panama, switchml};
use crate::transport::Transport;

/// Apart from that of traffic, so that jobs leave traffic as it is.
const STREAM: u64 = 0x6a6f_6273;
const IP_UDP_HEADER_BYTES: u16 = 28;
const IP_TCP_HEADER_BYTES: u16 = 40;
const JOB_COUNT_MAX: usize = 10_000;
const BUCKET_COUNT_MAX: usize = 10_000;

/// One job, or several of a kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSection {
    /// What it is called in tables; the model's name and a number otherwise.
    pub name: Option<String>,
    /// Jobs like this.
    #[serde(default = "one")]
    pub count: u32,
    /// A model by name, or several of which each job draws one.
    pub model: Option<Models>,
    /// Gradients of an iteration, if no model says so.
    pub bytes: Option<u64>,
    /// Time to compute gradients, if no model says so.
    pub compute_ms: Option<f64>,
    /// Equal parts that gradients are summed in one after the other, as DDP does, each as soon as it is ready.
    #[serde(default = "one")]
    pub buckets: u32,
    /// Share of computing, at its end, over which buckets become ready, one after another in equal times.
    #[serde(default = "backward")]
    pub backward: f64,
    /// By bucket, the share of computing after which it is ready, in place of both; the last 1.
    pub ready: Option<Vec<f64>>,
    /// Multiplies gradients and computing time.
    #[serde(default = "unscaled")]
    pub scale: f64,
    /// Ranks, or the least and the most of them, between which each job draws its number.
    pub workers: Range<u32>,
    /// `packed`, `random`, or the hosts by rank.
    #[serde(default = "packed")]
    pub placement: Placement,
    /// How gradients are summed.
    pub scheme: Scheme,
    /// When it starts, milliseconds, or the earliest and the latest time, between which each job draws its own.
    #[serde(default = "at_once")]
    pub start_ms: Range<f64>,
    /// Iterations; without, it goes on to the end.
    pub iterations: Option<u32>,
    /// Trees that blocks are spread over, as far as there are roots for them: ATP's only root is beside the server.
    #[serde(default = "one")]
    pub trees: u32,
    /// Slots of each tree: the window. PANAMA: most packets out in a tree.
    #[serde(default = "slots")]
    pub slots: u32,
    /// PANAMA: so many packets out in each tree, in place of its congestion control.
    pub window: Option<u32>,
    /// PANAMA: windows grow in rounds with marks too, as DCTCP's do; without, as Fig. 5 has it.
    #[serde(default)]
    pub grow_when_marked: bool,
    /// PANAMA: a round is of what was out at its begin, as DCTCP's; without, as Fig. 5 has it, of as many Results as the window has by then.
    #[serde(default)]
    pub whole_rounds: bool,
    /// PANAMA: share of each switch's ports that are waited for.
    #[serde(default = "unscaled")]
    pub share: f64,
    /// Elements of a packet that aggregates, bytes; without, what fits into the MTU.
    pub payload_bytes: Option<u16>,
    /// Host of an ATP job's server; without, the last host that has none.
    pub server: Option<u16>,
    /// A ring's congestion control, in place of that of `[transport]`.
    pub congestion: Option<CongestionName>,
    /// Least resend timeout of a scheme that aggregates.
    #[serde(default = "timeout_us")]
    pub timeout_min_us: f64,
}

/// How a job sums.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// On a network of its own, where every link carries the gradients once in each direction and nothing else.
    Ideal,
    /// Ring all-reduce over flows of `[transport]`.
    Ring,
    /// SwitchML.
    Switchml,
    /// ATP, with a server at a host of its own.
    Atp,
    /// PANAMA, on the trees of its controller.
    Panama,
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Scheme::Ideal => "ideal",
            Scheme::Ring => "ring",
            Scheme::Switchml => "switchml",
            Scheme::Atp => "atp",
            Scheme::Panama => "panama",
        })
    }
}

/// Models by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Models {
    /// One.
    One(String),
    /// One of these, drawn by lot; a name may stand several times.
    Any(Vec<String>),
}

/// A number, or the ends of a range to draw from.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Range<T> {
    /// The same for all.
    Exactly(T),
    /// Least and most.
    Between(T, T),
}

impl<T: Copy> Range<T> {
    /// The number, or the least one.
    pub fn least(self) -> T {
        match self {
            Range::Exactly(value) | Range::Between(value, _) => value,
        }
    }
}

fn one() -> u32 {
    1
}

/// As is usual of backward passes.
fn backward() -> f64 {
    2.0 / 3.0
}

fn slots() -> u32 {
    128
}

fn unscaled() -> f64 {
    1.0
}

fn timeout_us() -> f64 {
    1000.0
}

fn packed() -> Placement {
    Placement::Rule(Rule::Packed)
}

fn at_once() -> Range<f64> {
    Range::Exactly(0.0)
}

/// A job as tables name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobInfo {
    /// Its name.
    pub name: String,
    /// How it sums.
    pub scheme: Scheme,
    /// Hosts, by rank.
    pub hosts: Vec<u16>,
    /// Gradients of an iteration.
    pub bytes: u64,
    /// Time to compute them.
    pub compute_ps: u64,
    /// By bucket, when it is ready after the begin of an iteration.
    pub ready_ps: Vec<u64>,
    /// When it starts.
    pub start_ps: u64,
    /// Trees that it has.
    pub trees: u32,
}

impl JobInfo {
    /// Gradients of a bucket; all are alike.
    fn bucket_bytes(&self) -> u64 {
        self.bytes.div_ceil(self.ready_ps.len() as u64)
    }
}

/// Puts jobs on a plan's network.
pub struct Installer<'a> {
    sections: &'a [JobSection],
    mtu_bytes: u16,
    transport: Transport,
    atp: atp::Section,
}

impl<'a> Installer<'a> {
    /// For a scenario's jobs.
    pub fn new(sections: &'a [JobSection], mtu_bytes: u16, transport: Transport, atp: atp::Section) -> Installer<'a> {
        Installer { sections, mtu_bytes, transport, atp }
    }

    /// Adds all jobs to a plan.
    ///
    /// # Errors
    /// For a job that cannot be, with its place.
    pub fn install(&self, seed: u64, plan: &mut Plan) -> anyhow::Result<()> {
        if self.sections.is_empty() {
            return Ok(());
        }
        // Hosts without exactly one cable are found here, before trees are looked for.
        plan.fabric.routes().context("[topology]")?;
        plan.ranks.resize_with(plan.fabric.host_count as usize, Vec::new);
        plan.programs.resize_with(plan.fabric.switch_count as usize, Programs::default);
        let mut placer = Placer::new(plan.fabric.host_count);
        let mut seeds = Random::new(seed ^ STREAM);
        let mut group = 0;
        // By switch: ATP's programs are shared by jobs, and added when all have been seen.
        let mut shared: BTreeMap<usize, atp::Shared> = BTreeMap::new();
        let mut accelerators = panama::Network::new(&plan.fabric)?;
        for (place, section) in self.sections.iter().enumerate() {
            let context = || format!("[[job]] {}", place + 1);
            for _ in 0..section.count {
                ensure!(plan.jobs.len() < JOB_COUNT_MAX, "more than {JOB_COUNT_MAX} jobs");
                let drawn = section.draw(plan.jobs.len(), &mut placer, &mut seeds.split()).with_context(context)?;
                if section.scheme == Scheme::Atp {
                    self.add_atp(section, drawn, &mut group, &mut placer, plan, &mut shared).with_context(context)?;
                } else if section.scheme == Scheme::Panama {
                    self.add_panama(section, drawn, &mut group, &mut accelerators, plan).with_context(context)?;
                } else {
                    self.add(section, drawn, &mut group, plan).with_context(context)?;
                }
            }
        }
        for (switch, program) in shared {
            let groups = program.groups();
            plan.programs[switch].add(Box::new(program), groups);
        }
        accelerators.install(&mut plan.programs)
    }

    fn add_panama(
        &self,
        section: &JobSection,
        drawn: Drawn,
        group: &mut u32,
        accelerators: &mut panama::Network,
        plan: &mut Plan,
    ) -> anyhow::Result<()> {
        let Drawn { mut info, .. } = drawn;
        let packets = self.packets(section, info.bucket_bytes(), PANAMA_HEADER_BYTES)?;
        let number = plan.jobs.len() as u16;
        let settings = panama::Settings {
            job: number,
            worker_count: info.hosts.len() as u16,
            window_max: section.slots,
            window: section.window,
            grows_when_marked: section.grow_when_marked,
            whole_rounds: section.whole_rounds,
            share: section.share,
            block_count: packets.count,
            packet_bytes: packets.bytes,
            timeout_min: section.timeout_min(),
        };
        let tree_count = accelerators.place(&settings, &info.hosts, section.trees, *group)?.trees.len() as u32;
        let (groups, tree_max) = ([*group, *group + tree_count], tree_count as u8);
        let works = (0..info.hosts.len() as u16).map(|rank| {
            let endpoint = panama::endpoint(&settings, rank, groups[0], tree_max);
            Work::Endpoint { endpoint: Box::new(endpoint), groups, is_in_line: false }
        });
        let works = works.collect();
        info.trees = tree_count;
        *group += tree_count;
        add_ranks(section, info, packets.count, works, plan);
        Ok(())
    }

    fn add(&self, section: &JobSection, drawn: Drawn, group: &mut u32, plan: &mut Plan) -> anyhow::Result<()> {
        let Drawn { mut info, mut random } = drawn;
        let trees = {
            let planner = Planner::new(&plan.fabric);
            choose_trees(&planner, &info.hosts, section.trees, &mut random)?
        };
        info.trees = trees.len() as u32;
        let number = plan.jobs.len() as u16;
        let works = match info.scheme {
            Scheme::Ideal => self.ideal(section, &info, &trees, &plan.fabric)?,
            Scheme::Ring => self.ring(section, &info, plan, &mut random)?,
            Scheme::Atp => unreachable!("has a way of its own, because switches share slots"),
            Scheme::Panama => unreachable!("has a way of its own, because jobs share accelerators"),
            Scheme::Switchml => self.switchml(section, &info, number, *group, &trees, &mut plan.programs)?,
        };
        *group += info.trees;
        let block_count = self.packets(section, info.bucket_bytes(), HEADER_BYTES)?.count;
        add_ranks(section, info, block_count, works, plan);
        Ok(())
    }

    fn add_atp(
        &self,
        section: &JobSection,
        drawn: Drawn,
        group: &mut u32,
        placer: &mut Placer,
        plan: &mut Plan,
        shared: &mut BTreeMap<usize, atp::Shared>,
    ) -> anyhow::Result<()> {
        let info = JobInfo { trees: 1, ..drawn.info };
        let server = section.server.map_or_else(|| placer.server(&info.hosts), Ok)?;
        ensure!(
            u32::from(server) < plan.fabric.host_count && !info.hosts.contains(&server),
            "server = {server}: a host that has no rank of the job, 0 to {}",
            plan.fabric.host_count - 1
        );
        let packets = self.packets(section, info.bucket_bytes(), ATP_HEADER_BYTES)?;
        let settings = atp::Settings {
            shared: self.atp,
            job: plan.jobs.len() as u16,
            group: *group,
            hosts: info.hosts.clone(),
            server,
            block_count: packets.count,
            packet_bytes: packets.bytes,
            timeout_min: section.timeout_min(),
        };
        let planner = Planner::new(&plan.fabric);
        let (tree, parts) = atp::tree(&info.hosts, server, |host| planner.switch_of(host))?;
        for part in &parts {
            let switch = (part.node - plan.fabric.host_count) as usize;
            shared.entry(switch).or_insert_with(|| atp::program(&self.atp)).install(&settings, part)?;
        }
        let groups = [*group, *group + 1];
        *group += 1;
        let work = |endpoint: Box<dyn Endpoint>| Work::Endpoint { endpoint, groups, is_in_line: false };
        let works = (0..info.hosts.len() as u16).map(|rank| Ok(work(Box::new(atp::endpoint(&settings, &tree, rank)?))));
        let works = works.collect::<anyhow::Result<Vec<_>>>()?;
        let never = Rounds { start_ps: 0, ready_ps: Arc::default(), count: 0, bytes: 0, block_count: 0 };
        let serving = work(Box::new(atp::server(&settings, &tree)));
        plan.ranks[usize::from(server)].push(Rank::new(settings.job, u16::MAX, never, serving));
        add_ranks(section, info, packets.count, works, plan);
        Ok(())
    }

    /// As long as the packets of an otherwise idle tree take from the first bit to the last.
    fn ideal(
        &self,
        section: &JobSection,
        info: &JobInfo,
        trees: &[Tree],
        fabric: &Fabric,
    ) -> anyhow::Result<Vec<Work>> {
        let packets = self.packets(section, info.bucket_bytes(), HEADER_BYTES)?;
        let communication_ps = ideal::passage_ps(fabric, trees, packets.count, packets.bytes[0]);
        let communication_ps = u64::try_from(communication_ps).context("gradients that take years to send")?;
        Ok(info.hosts.iter().map(|_| Work::Ideal { communication_ps }).collect())
    }

    fn ring(
        &self,
        section: &JobSection,
        info: &JobInfo,
        plan: &Plan,
        random: &mut Random,
    ) -> anyhow::Result<Vec<Work>> {
        let uses_marks = self.transport.congestion.uses_marks();
        ensure!(
            uses_marks || section.congestion != Some(CongestionName::Dctcp),
            "congestion = \"dctcp\": only where [transport] has it too"
        );
        let workers = info.hosts.len();
        let fastest_bps = plan.fabric.access_bps().into_iter().max().unwrap_or(0);
        let sendable = u128::from(fastest_bps) * u128::from(plan.duration_ps) / 8_000_000_000_000;
        let segments = sendable / u128::from(self.transport.segment_bytes).max(1);
        ensure!(segments < u128::from(u32::MAX), "a rank could send more than 2^32 segments: shorten the run");
        let work = |rank: usize| {
            let next = info.hosts[(rank + 1) % workers];
            let ring = Ring::new(next, random.bits() as u16, info.bucket_bytes(), workers as u32);
            Work::Ring(Ring { uses_marks: section.congestion != Some(CongestionName::Newreno), ..ring })
        };
        Ok((0..workers).map(work).collect())
    }

    fn switchml(
        &self,
        section: &JobSection,
        info: &JobInfo,
        number: u16,
        group_first: u32,
        trees: &[Tree],
        programs: &mut [Programs],
    ) -> anyhow::Result<Vec<Work>> {
        let packets = self.packets(section, info.bucket_bytes(), HEADER_BYTES)?;
        let settings = switchml::Settings {
            job: number,
            worker_count: info.hosts.len() as u16,
            slots: section.slots,
            block_count: packets.count,
            packet_bytes: packets.bytes,
            timeout_min: section.timeout_min(),
        };
        settings.check()?;
        for (tree, group) in trees.iter().zip(group_first..) {
            for node in &tree.nodes {
                programs[node.switch as usize].add(switchml::program(&settings, node, group)?, [group]);
            }
        }
        let endpoint = |rank| Box::new(switchml::endpoint(&settings, rank, group_first, trees));
        Ok(self.endpoints(info, group_first, trees, |rank| endpoint(rank)))
    }

    fn endpoints(
        &self,
        info: &JobInfo,
        group_first: u32,
        trees: &[Tree],
        endpoint: impl Fn(u16) -> Box<dyn Endpoint>,
    ) -> Vec<Work> {
        let groups = [group_first, group_first + trees.len() as u32];
        let work = |rank| Work::Endpoint { endpoint: endpoint(rank), groups, is_in_line: false };
        (0..info.hosts.len() as u16).map(work).collect()
    }

    fn packets(&self, section: &JobSection, bytes: u64, header_bytes: usize) -> anyhow::Result<Packets> {
        let overhead = header_bytes as u16 + IP_UDP_HEADER_BYTES;
        let payload_max = self.mtu_bytes.saturating_sub(overhead) / 4 * 4;
        let payload = section.payload_bytes.unwrap_or(payload_max);
        ensure!(
            payload > 0 && payload <= payload_max && payload.is_multiple_of(4),
            "payload_bytes = {payload}: a multiple of 4 from 4 to {payload_max}, which is what the MTU leaves"
        );
        let count = u32::try_from(bytes.div_ceil(payload.into())).context("gradients of more than 2^32 packets")?;
        // The transport's header and Ethernet's share, with IP and UDP in the place of IP and TCP.
        let ethernet = self.transport.header_bytes - IP_TCP_HEADER_BYTES;
        let on_link = |payload: u16| (payload + overhead + ethernet).max(self.transport.frame_bytes_min);
        Ok(Packets { count, bytes: [on_link(payload), on_link(0)] })
    }
}

fn add_ranks(section: &JobSection, info: JobInfo, block_count: u32, works: Vec<Work>, plan: &mut Plan) {
    let number = plan.jobs.len() as u16;
    let rounds = Rounds {
        start_ps: info.start_ps,
        ready_ps: info.ready_ps.as_slice().into(),
        count: section.iterations.unwrap_or(u32::MAX),
        bytes: info.bytes,
        block_count,
    };
    for (rank, (work, &host)) in works.into_iter().zip(&info.hosts).enumerate() {
        plan.ranks[usize::from(host)].push(Rank::new(number, rank as u16, rounds.clone(), work));
    }
    plan.jobs.push(info);
}

/// What gradients are sent as.
struct Packets {
    count: u32,
    /// On a link: with a payload, and without.
    bytes: [u16; 2],
}

/// A job whose lots are drawn.
struct Drawn {
    info: JobInfo,
    /// For paths and trees.
    random: Random,
}

impl JobSection {
    /// Draws in an order that does not depend on the scheme: another scheme has the same jobs on the same hosts.
    fn draw(&self, number: usize, placer: &mut Placer, random: &mut Random) -> anyhow::Result<Drawn> {
        let (mut models, mut sizes, mut places, mut starts, paths) =
            (random.split(), random.split(), random.split(), random.split(), random.split());
        let model = self.model(&mut models)?;
        let workers = match self.workers {
            Range::Exactly(workers) => workers,
            Range::Between(least, most) => {
                ensure!(least <= most, "workers = [{least}, {most}]: the least first");
                sizes.within(least.into(), most.into()) as u32
            }
        };
        ensure!((2..=65_535).contains(&workers), "workers = {workers}: from 2 to 65,535");
        let start_ms = match self.start_ms {
            Range::Exactly(start) => start,
            Range::Between(first, last) => {
                first + (last - first) * ((starts.bits() >> 11) as f64 / (1u64 << 53) as f64)
            }
        };
        ensure!(start_ms.is_finite() && (0.0..=3.6e6).contains(&start_ms), "start_ms = {start_ms}: from 0 to an hour");
        ensure!(
            self.congestion.is_none() || self.scheme == Scheme::Ring,
            "congestion: of a job with scheme = \"ring\" only; others have their own"
        );
        ensure!(self.iterations != Some(0), "iterations = 0: leave it out for no end");
        ensure!((1..=256).contains(&self.trees), "trees = {}: from 1 to 256", self.trees);
        ensure!((1.0..=1e8).contains(&self.timeout_min_us), "timeout_min_us = {}: from 1 to 1e8", self.timeout_min_us);
        let is_plain = |name: &String| !name.contains([',', '"', '\n']);
        ensure!(self.name.as_ref().is_none_or(is_plain), "name: without commas, quotes and line ends");
        let hosts = placer.place(&self.placement, workers, &mut places)?;
        let name = match &self.name {
            Some(name) if self.count == 1 => name.clone(),
            Some(name) => format!("{name}-{number}"),
            None => format!("{}-{number}", model.name),
        };
        let compute_ps = (model.compute_us * 1e6) as u64;
        let info = JobInfo {
            name,
            scheme: self.scheme,
            hosts,
            bytes: model.bytes,
            compute_ps,
            ready_ps: self.ready(model.bytes)?.iter().map(|share| (share * compute_ps as f64) as u64).collect(),
            start_ps: (start_ms * 1e9) as u64,
            trees: 0,
        };
        Ok(Drawn { info, random: paths })
    }

    /// Shares of computing after which buckets are ready.
    fn ready(&self, bytes: u64) -> anyhow::Result<Vec<f64>> {
        let shares = match &self.ready {
            Some(shares) => shares.clone(),
            None => {
                ensure!((0.0..=1.0).contains(&self.backward), "backward = {}: a share from 0 to 1", self.backward);
                let left = |bucket: u32| f64::from(self.buckets - bucket) / f64::from(self.buckets);
                (1..=self.buckets).map(|bucket| 1.0 - self.backward * left(bucket)).collect()
            }
        };
        ensure!(self.ready.is_none() || self.buckets == 1, "buckets and ready: give one of them");
        let count = shares.len();
        ensure!(
            (1..=BUCKET_COUNT_MAX).contains(&count) && count as u64 <= bytes,
            "{count} buckets of {bytes} bytes: from 1 to {BUCKET_COUNT_MAX}, with a byte each at least"
        );
        ensure!(
            shares.is_sorted() && shares[0] >= 0.0 && shares[count - 1] == 1.0,
            "ready: shares of computing from 0 on, none before the one before it, and the last 1"
        );
        Ok(shares)
    }

    fn timeout_min(&self) -> Span {
        Span::from_ns((self.timeout_min_us * 1000.0) as u64)
    }

    fn model(&self, random: &mut Random) -> anyhow::Result<Model> {
        let named = match &self.model {
            None => None,
            Some(Models::One(name)) => Some(Model::named(name)?),
            Some(Models::Any(names)) => {
                ensure!(!names.is_empty(), "model = []: name at least one");
                Some(Model::named(random.choose::<String>(names))?)
            }
        };
        let bytes = self.bytes.or(named.map(|model| model.bytes));
        let compute_us = self.compute_ms.map(|ms| ms * 1000.0).or(named.map(|model| model.compute_us));
        let bytes = bytes.context("what does it sum? Give a model, or bytes and compute_ms")?;
        let compute_us = compute_us.context("how long does it compute? Give a model or compute_ms")?;
        ensure!(bytes > 0, "bytes = 0: a job sums at least a byte");
        ensure!((0.0..=3.6e9).contains(&compute_us), "compute_ms = {}: from 0 to an hour", compute_us / 1000.0);
        Model { name: named.map_or("job", |model| model.name), bytes, compute_us }.scaled(self.scale)
    }
}

/// As many trees as wanted, with different roots, as far as there are roots.
fn choose_trees(planner: &Planner, hosts: &[u16], count: u32, random: &mut Random) -> anyhow::Result<Vec<Tree>> {
    let mut roots = planner.roots(hosts)?;
    let mut trees = Vec::new();
    while (trees.len() as u32) < count && !roots.is_empty() {
        let root = roots.swap_remove(random.below(roots.len() as u64) as usize);
        trees.push(planner.tree(hosts, root, random.bits() as u32));
    }
    Ok(trees)
}
