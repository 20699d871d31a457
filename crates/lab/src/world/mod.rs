//! A network of rated links, the switch programs on it and the jobs that use it, in simulated time.
//!
//! Every packet is handled by the protocols' own values, byte for byte as on a socket; only its length on a link is that of
//! the paper's packet, because a few elements stand for all of a payload. A link hands packets over in order, so one
//! entry of the event queue stands for all that are under way on it. The same seed gives the same run.

mod contents;
mod endpoint;
mod job;
mod link;
mod route;
mod run;
mod workload;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::{anyhow, ensure};
use fanin_link::Random;
use fanin_protocol::time::{Span, Time};
use fanin_protocol::{atp, switchml};
use fanin_sim::datagrams::Datagrams;
use fanin_wire::generated::{ATP_HEADER_BYTES, HEADER_BYTES};

pub use contents::Contents;
pub use job::{JobSpec, PacketSize, Patience, Protocol};
pub use link::{LinkCounters, LinkSpec};
pub use route::LinkId;
pub use workload::{Progress, Workload};

use endpoint::Endpoint;
use job::Job;
use link::RatedLink;
use route::{LinkNames, Route};

/// Which switch each host and each switch hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By switch: the one above it.
    pub parents: Vec<Option<usize>>,
    /// By host: its switch.
    pub hosts: Vec<usize>,
}

impl Topology {
    /// All hosts at one switch.
    pub fn one_switch(host_count: usize) -> Topology {
        Topology { parents: vec![None], hosts: vec![0; host_count] }
    }
}

/// The network and its switches.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// Who hangs where.
    pub topology: Topology,
    /// From hosts and between switches. Hosts wait for their own link: their queues have no end.
    pub link: LinkSpec,
    /// Slots of each switch, for all ATP jobs together.
    pub slot_count: u16,
    /// A longer queue towards the server marks what joins it.
    pub ecn_threshold_bytes: u32,
    /// A slot untouched for so long is taken from its chunk.
    pub slot_age_max: Span,
    /// Elements that stand for a payload.
    pub block_elements: u16,
    /// How soon workers send again.
    pub patience: Patience,
    /// Of losses and jitter.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive {
        link: u32,
    },
    Wake {
        endpoint: u32,
    },
    /// A rank has computed: it submits its next tensor.
    Submit {
        job: u16,
        rank: u16,
    },
}

struct SwitchNode {
    atp: atp::Switch,
    /// By job, where it has slots of its own.
    own: Vec<Option<atp::Switch>>,
    slotted: switchml::Switch,
}

/// Where packets of a job go at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    None,
    Worker { rank: u16 },
    Server,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Switch(usize),
    Host(usize),
}

/// A world while it runs.
pub struct World {
    spec: WorldSpec,
    now: Time,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    packets: Datagrams,
    links: Vec<RatedLink>,
    ends: Vec<End>,
    switches: Vec<SwitchNode>,
    /// By host, then job.
    roles: Vec<Vec<Role>>,
    jobs: Vec<Job>,
    endpoints: Vec<Endpoint>,
    random: Random,
    output: Vec<u8>,
    /// Links of the multicast in hand.
    fan_out: Vec<LinkId>,
    /// Packets that arrived somewhere.
    hops: u64,
}

impl World {
    /// A network without jobs.
    pub fn new(spec: WorldSpec) -> World {
        let datagram_bytes_max = ATP_HEADER_BYTES.max(HEADER_BYTES) + usize::from(spec.block_elements) * 4;
        let mut world = World {
            now: Time::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            packets: Datagrams::new(datagram_bytes_max),
            links: Vec::new(),
            ends: Vec::new(),
            switches: Vec::new(),
            roles: vec![Vec::new(); spec.topology.hosts.len()],
            jobs: Vec::new(),
            endpoints: Vec::new(),
            random: Random::new(spec.seed),
            output: vec![0; datagram_bytes_max],
            fan_out: Vec::new(),
            hops: 0,
            spec,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        let Topology { parents, hosts } = self.spec.topology.clone();
        for (host, switch) in hosts.into_iter().enumerate() {
            self.add_link(LinkSpec { queue_bytes_max: u64::MAX, ..self.spec.link }, End::Switch(switch));
            self.add_link(self.spec.link, End::Host(host));
        }
        for (switch, parent) in parents.into_iter().enumerate() {
            // The root's links lead nowhere and carry nothing.
            self.add_link(self.spec.link, End::Switch(parent.unwrap_or(switch)));
            self.add_link(self.spec.link, End::Switch(switch));
            let atp = self.program(self.spec.slot_count);
            self.switches.push(SwitchNode { atp, own: Vec::new(), slotted: switchml::Switch::new() });
        }
    }

    fn program(&self, slot_count: u16) -> atp::Switch {
        atp::Switch::new(atp::SwitchConfig {
            slot_count,
            element_count_max: self.spec.block_elements,
            slot_age_max: self.spec.slot_age_max,
            ecn_threshold_bytes: self.spec.ecn_threshold_bytes,
        })
    }

    fn add_link(&mut self, spec: LinkSpec, end: End) {
        let seed = self.spec.seed ^ (self.links.len() as u64 + 1) << 32;
        self.links.push(RatedLink::new(spec, seed));
        self.ends.push(end);
    }

    /// Adds a job; returns its number.
    ///
    /// # Errors
    /// If switches do not take it.
    pub fn add_job(&mut self, spec: JobSpec) -> anyhow::Result<usize> {
        let number = self.jobs.len();
        let id = 0x100 + number as u32;
        ensure!(number < 256, "a switch has 256 job numbers; use fewer jobs");
        let (routes, lane_count, header_bytes) = match &spec.protocol {
            Protocol::Atp { tree, server, .. } => {
                (route::atp_routes(&self.spec.topology, tree, &spec.hosts, *server), 1, ATP_HEADER_BYTES)
            }
            Protocol::Static { lane_count, .. } => {
                (route::static_routes(&self.spec.topology, &spec.hosts), *lane_count, HEADER_BYTES)
            }
        };
        let job = Job {
            id,
            server: job::server(&spec, id, self.spec.slot_count, self.spec.block_elements),
            routes,
            endpoint_first: self.endpoints.len(),
            lane_count,
            progress: vec![Progress::default(); spec.hosts.len()],
            header_bytes,
            block_elements: self.spec.block_elements,
            spec,
        };
        self.install(&job)?;
        self.place(&job, number);
        self.jobs.push(job);
        self.start(number);
        Ok(number)
    }

    fn install(&mut self, job: &Job) -> anyhow::Result<()> {
        for switch in 0..self.switches.len() {
            let own = match job.spec.protocol {
                Protocol::Atp { own_slots: Some(count), .. } => Some(self.program(count)),
                _ => None,
            };
            self.switches[switch].own.push(own);
        }
        for (switch, route) in job.routes.iter().enumerate() {
            let Some(Route::Program { level, .. }) = route else { continue };
            let node = &mut self.switches[switch];
            match &job.spec.protocol {
                Protocol::Atp { .. } => {
                    let config = atp::JobConfig { job_id: job.id, job_token: job.id, lane_count: 1, level: *level };
                    let program = node.own.last_mut().and_then(Option::as_mut).unwrap_or(&mut node.atp);
                    program
                        .install(config)
                        .map_err(|error| anyhow!("switch {switch} does not take a job: {error:?}"))?;
                }
                Protocol::Static { slots_per_lane, lane_count } => {
                    let config = switchml::JobConfig {
                        job_id: job.id,
                        job_token: job.id,
                        worker_count: job.rank_count() as u16,
                        lane_count: *lane_count,
                        slots_per_lane: *slots_per_lane,
                        element_count_max: self.spec.block_elements,
                        wire_format: switchml::WireFormat::Fanin,
                        has_checksum: false,
                        accumulator: fanin_wire::Accumulator::BlockFixed,
                    };
                    let installed = node.slotted.install(config);
                    installed.map_err(|error| anyhow!("switch {switch} does not take a static job: {error:?}"))?;
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, job: &Job, number: usize) {
        for roles in &mut self.roles {
            roles.push(Role::None);
        }
        if let Protocol::Atp { server, .. } = job.spec.protocol {
            self.roles[server][number] = Role::Server;
        }
        for (rank, &host) in job.spec.hosts.iter().enumerate() {
            self.roles[host][number] = Role::Worker { rank: rank as u16 };
            for lane in 0..job.lane_count {
                let spec = &self.spec;
                let (slots, elements) = (spec.slot_count, spec.block_elements);
                self.endpoints.push(job::endpoint(job, number, rank as u16, lane, slots, elements, &spec.patience));
            }
        }
    }

    fn start(&mut self, number: usize) {
        let (starts, ranks) = (self.jobs[number].spec.starts, self.jobs[number].rank_count());
        for rank in 0..ranks {
            let at = starts + self.compute_time(number);
            self.schedule(at, Event::Submit { job: number as u16, rank: rank as u16 });
        }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Datagrams under way.
    pub fn under_way(&self) -> usize {
        self.packets.count()
    }

    /// Packets that arrived somewhere.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// How far a job's ranks are.
    pub fn progress(&self, job: usize) -> &[Progress] {
        &self.jobs[job].progress
    }

    /// Bytes of sums that each rank of a job has taken, on average.
    pub fn taken_bytes(&self, job: usize) -> f64 {
        let job = &self.jobs[job];
        let last = job.endpoint(job.rank_count(), 0);
        let blocks: u64 = self.endpoints[job.endpoint_first..last].iter().map(|endpoint| endpoint.memory.blocks).sum();
        blocks as f64 * job.spec.size.payload_bytes as f64 / job.rank_count() as f64
    }

    /// Bytes of sums that one rank has taken.
    pub fn taken_bytes_of(&self, job: usize, rank: usize) -> f64 {
        let job = &self.jobs[job];
        let lanes = job.endpoint(rank, 0)..job.endpoint(rank + 1, 0);
        let blocks: u64 = self.endpoints[lanes].iter().map(|endpoint| endpoint.memory.blocks).sum();
        blocks as f64 * job.spec.size.payload_bytes as f64
    }

    /// Counters of an ATP job's server.
    pub fn server_counters(&self, job: usize) -> Option<atp::ServerCounters> {
        self.jobs[job].server.as_ref().map(|server| server.counters().clone())
    }

    /// Counters of one rank of an ATP job.
    pub fn worker_counters(&self, job: usize, rank: usize) -> Option<&atp::WorkerCounters> {
        match &self.endpoints[self.jobs[job].endpoint(rank, 0)].worker {
            endpoint::Worker::Atp(worker) => Some(worker.counters()),
            endpoint::Worker::Static(_) => None,
        }
    }

    /// Chunks that one rank of an ATP job may have out.
    pub fn window(&self, job: usize, rank: usize) -> Option<u64> {
        match &self.endpoints[self.jobs[job].endpoint(rank, 0)].worker {
            endpoint::Worker::Atp(worker) => Some(worker.window()),
            endpoint::Worker::Static(_) => None,
        }
    }

    /// Blocks that rank 0 of a job took as floats.
    pub fn float_blocks(&self, job: usize) -> u64 {
        self.endpoints[self.jobs[job].endpoint(0, 0)].memory.float_blocks
    }

    /// Blocks that rank 0 of a job took at another scale than 10^8.
    pub fn scaled_blocks(&self, job: usize) -> u64 {
        self.endpoints[self.jobs[job].endpoint(0, 0)].memory.scaled_blocks
    }

    /// Largest difference that a sum of gradients has had from the exact one, as a share of the largest number that any rank has in
    /// its block.
    pub fn error_max(&self, job: usize) -> f64 {
        self.endpoints[self.jobs[job].endpoint(0, 0)].memory.error_max
    }

    /// Counters of a switch's ATP program.
    pub fn switch_counters(&self, switch: usize) -> &atp::SwitchCounters {
        self.switches[switch].atp.counters()
    }

    /// What became of the packets that a host sent, and of those towards it.
    pub fn host_links(&self, host: usize) -> [&LinkCounters; 2] {
        let names = self.link_names();
        [self.links[names.host_up(host)].counters(), self.links[names.host_down(host)].counters()]
    }

    /// Packets that found a queue full, anywhere.
    pub fn dropped(&self) -> u64 {
        self.links.iter().map(|link| link.counters().dropped).sum()
    }

    /// Changes the two links of a host: from it, and to it.
    pub fn set_host_links(&mut self, host: usize, change: impl Fn(&mut LinkSpec)) {
        let names = self.link_names();
        for link in [names.host_up(host), names.host_down(host)] {
            let mut spec = self.links[link].spec();
            change(&mut spec);
            self.links[link].set(spec);
        }
    }

    fn link_names(&self) -> LinkNames {
        LinkNames { host_count: self.spec.topology.hosts.len() }
    }
}
