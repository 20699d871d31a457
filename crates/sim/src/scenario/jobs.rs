//! Puts the jobs of `[[job]]` sections on a network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, ensure};
use fanin_link::Random;
use fanin_wire::generated::{ATP_HEADER_BYTES, HEADER_BYTES, PANAMA_HEADER_BYTES};
use serde::Serialize;

use super::CongestionName;
use super::section::{Drawn, JobSection, Scheme, TreeChoice};
use crate::engine::Plan;
use crate::fabric::Fabric;
use crate::job::aggregation::{Endpoint, Programs};
use crate::job::placement::Placer;
use crate::job::tree::{Planner, Tree, draw_roots};
use crate::job::{Rank, Ring, Rounds, Work, atp, ideal, panama, switchml};
use crate::transport::Transport;

/// Apart from that of traffic, so that jobs leave traffic as it is.
const STREAM: u64 = 0x6a6f_6273;
const IP_UDP_HEADER_BYTES: u16 = 28;
const IP_TCP_HEADER_BYTES: u16 = 40;
const JOB_COUNT_MAX: usize = 10_000;

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
        let mut names = BTreeSet::new();
        // By switch: ATP's programs are shared by jobs, and added when all have been seen.
        let mut shared: BTreeMap<usize, atp::Shared> = BTreeMap::new();
        let mut accelerators = panama::Network::new(&plan.fabric)?;
        for (place, section) in self.sections.iter().enumerate() {
            let context = || format!("[[job]] {}", place + 1);
            let mut arrivals = section.arrivals(&mut seeds).with_context(context)?;
            for drawn_count in 0.. {
                let arrival_ps = arrivals.as_mut().and_then(Iterator::next);
                if arrival_ps.map_or(drawn_count >= section.count, |at| at >= plan.duration_ps) {
                    break;
                }
                ensure!(
                    drawn_count < section.count,
                    "[[job]] {}: more than count = {drawn_count} jobs arrive before the end: give a larger count or a smaller arrivals_per_s",
                    place + 1
                );
                ensure!(plan.jobs.len() < JOB_COUNT_MAX, "more than {JOB_COUNT_MAX} jobs");
                let mut drawn = section.draw(plan.jobs.len(), &mut placer, &mut seeds.split()).with_context(context)?;
                drawn.info.start_ps = arrival_ps.unwrap_or(drawn.info.start_ps);
                check_name(&drawn.info.name, &mut names).with_context(context)?;
                if section.scheme == Scheme::Atp {
                    self.add_atp(section, drawn, &mut group, &mut placer, plan, &mut shared).with_context(context)?;
                } else if section.scheme == Scheme::Panama {
                    self.add_panama(section, drawn, &mut group, &mut accelerators, plan).with_context(context)?;
                } else {
                    self.add(section, drawn, &mut group, &mut accelerators, plan).with_context(context)?;
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
        let Drawn { mut info, mut random } = drawn;
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
        let lot = (section.tree_choice() == TreeChoice::Lot).then_some(&mut random);
        let tree_count = accelerators.place(&settings, &info.hosts, section.trees, lot, *group)?;
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

    fn add(
        &self,
        section: &JobSection,
        drawn: Drawn,
        group: &mut u32,
        accelerators: &mut panama::Network,
        plan: &mut Plan,
    ) -> anyhow::Result<()> {
        let Drawn { mut info, mut random } = drawn;
        let number = plan.jobs.len() as u16;
        let trees = match section.tree_choice() {
            TreeChoice::Controller => accelerators.trees(number, &info.hosts, section.trees)?,
            TreeChoice::Lot => draw_trees(&Planner::new(&plan.fabric), &info.hosts, section.trees, &mut random)?,
        };
        info.trees = trees.len() as u32;
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

/// Tables have a column for each job, beside that of all flows.
fn check_name(name: &str, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    ensure!(name != "flows", "name = \"flows\": throughput.csv has a column of this name for flows");
    ensure!(names.insert(name.into()), "name: two jobs are called \"{name}\": give each a name of its own");
    Ok(())
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

/// As many trees as wanted, with different roots, as far as there are roots.
fn draw_trees(planner: &Planner, hosts: &[u16], count: u32, random: &mut Random) -> anyhow::Result<Vec<Tree>> {
    let roots = draw_roots(planner.roots(hosts)?, count, random);
    Ok(roots.into_iter().map(|(root, choice)| planner.tree(hosts, root, choice)).collect())
}
