//! What a scenario is made of.

use fanin_link::{LinkConfig, Random};
use fanin_protocol::panama::placement::{Controller, Fabric, Plan, Policy, Request};
use fanin_protocol::panama::{CongestionControl, TreeConfig};
use fanin_protocol::stream::{Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::{ElementFormat, Operator};

/// Largest payload of every scenario, in elements.
pub const ELEMENT_COUNT_MAX: u16 = 6;
/// Binary32 holds so many digits of base 4 exactly.
const WORKER_COUNT_MAX: u64 = 11;
/// And bfloat16 so many.
const WORKER_COUNT_MAX_16: usize = 4;
/// Contributions that a job aims at.
const CONTRIBUTIONS_AIM: u64 = 500;
const FAULTS_UNTIL_MAX: Span = Span::from_ms(60);

/// One job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Id; the number is unique.
    pub job_id: u32,
    /// Of this instance.
    pub job_token: u32,
    /// Where its workers are, by rank.
    pub hosts: Vec<u32>,
    /// What the controller chose.
    pub plan: Plan,
    /// Most packets out in a tree.
    pub window_max: u32,
    /// How windows follow the network.
    pub congestion_control: CongestionControl,
    /// What every worker submits, in order.
    pub collectives: Vec<Submission>,
    /// Not all workers are waited for.
    pub is_partial: bool,
    /// Switches learn of it.
    pub joins: Time,
    /// Workers start up to this much later.
    pub skew_max: Span,
    /// Workers submit a collective only when the one before is complete.
    pub is_stepwise: bool,
    /// This rank ends suddenly.
    pub death: Option<(u16, Time)>,
}

/// All that a simulation is made from.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it comes from.
    pub seed: u64,
    /// Hosts and switches.
    pub fabric: Fabric,
    /// Of the fabric.
    pub switch_count: u32,
    /// Jobs; they share all switches.
    pub jobs: Vec<JobPlan>,
    /// Packets that a switch's buffers hold.
    pub memory_packets: u32,
    /// With so many, ports are paused.
    pub pause_packets: u32,
    /// Senders keep to PAUSE.
    pub is_pausing: bool,
    /// Every link, both ways.
    pub link: LinkConfig,
    /// Chance that a packet meets a long queue.
    pub ecn_ppm: u32,
    /// No fault, no lateness, memory for all: then nothing is sent twice.
    pub calm: bool,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0x9a4a);
        let calm = random.chance(100_000);
        let (fabric, switch_count) = fabric(&mut random);
        let tree_count_max = random.within(1, 4) as u8;
        let mut controller = Controller::new(fabric.clone(), Policy { tree_count_max, aggregation_bytes_min: 0 });
        let job_count = if calm { 1 } else { *random.choose(&[1, 1, 2, 3]) };
        let jobs: Vec<JobPlan> = (0..job_count).map(|number| job(&mut random, &mut controller, number, calm)).collect();
        let needed = memory_min(&jobs);
        let memory_packets = if calm { 100_000 } else { needed * *random.choose(&[2, 3, 8, 1000]) + 1 };
        Scenario {
            seed,
            fabric,
            switch_count,
            jobs,
            memory_packets,
            pause_packets: memory_packets / *random.choose(&[2, 4, 1000]) as u32,
            is_pausing: !calm && random.flip(),
            link: link(&mut random, calm),
            ecn_ppm: if random.flip() { *random.choose(&[1_000, 30_000, 500_000]) } else { 0 },
            calm,
        }
    }
}

/// What the busiest switch needs so that every port has room for one packet.
fn memory_min(jobs: &[JobPlan]) -> u32 {
    let mut by_switch = std::collections::BTreeMap::<u32, u32>::new();
    for (switch, config) in jobs.iter().flat_map(|job| &job.plan.trees).flat_map(|tree| &tree.switches) {
        *by_switch.entry(*switch).or_default() += config.ports.count_ones() + 1;
    }
    by_switch.into_values().max().unwrap_or(1)
}

fn fabric(random: &mut Random) -> (Fabric, u32) {
    let (hosts, switches, cables) = match random.below(3) {
        0 => {
            let hosts = random.within(1, 8) as u32;
            (hosts, 1, (0..hosts).map(|host| [host, hosts]).collect())
        }
        1 => leaf_spine(random.within(2, 3) as u32, random.within(1, 3) as u32, random.within(1, 4) as u32),
        _ => fat_tree_of_4(),
    };
    let fabric = Fabric::new(hosts, switches, &cables).unwrap_or_else(|error| panic!("a fabric: {error:?}"));
    (fabric, switches)
}

fn leaf_spine(leaves: u32, spines: u32, hosts_per_leaf: u32) -> (u32, u32, Vec<[u32; 2]>) {
    let hosts = leaves * hosts_per_leaf;
    let down = (0..hosts).map(|host| [host, hosts + host / hosts_per_leaf]);
    let up = (0..leaves * spines).map(|pair| [hosts + pair / spines, hosts + leaves + pair % spines]);
    (hosts, leaves + spines, down.chain(up).collect())
}

/// PANAMA Fig. 3.
fn fat_tree_of_4() -> (u32, u32, Vec<[u32; 2]>) {
    let (edge, upper, core) = (16, 24, 32);
    let down = (0..16).map(|host| [host, edge + host / 2]);
    let middle = (0..16).map(|pair| [edge + pair / 2, upper + pair / 4 * 2 + pair % 2]);
    let top = (0..16).map(|pair| [upper + pair / 2, core + pair % 4]);
    (16, 20, down.chain(middle).chain(top).collect())
}

fn link(random: &mut Random, calm: bool) -> LinkConfig {
    let mut config = LinkConfig {
        delay: Span::from_ns(random.within(500, 40_000)),
        ns_per_byte: *random.choose(&[0, 1, 8]),
        in_order: calm || random.chance(750_000),
        faults_until: Time::ZERO + random.span_up_to(FAULTS_UNTIL_MAX),
        ..LinkConfig::default()
    };
    if calm {
        return config;
    }
    let mut rate = |choices: &[u32]| if random.flip() { *random.choose(choices) } else { 0 };
    config.loss_ppm = rate(&[100, 1_000, 10_000, 50_000]);
    config.duplicate_ppm = rate(&[1_000, 10_000, 100_000, 300_000]);
    config.damage_ppm = rate(&[1_000, 10_000]);
    if !config.in_order {
        config.held_ppm = rate(&[1_000, 10_000]);
        config.held_delay_max = Span::from_us(random.within(200, 20_000));
        config.jitter_max = if random.flip() { Span::from_us(random.within(1, 300)) } else { Span::ZERO };
    }
    config
}

fn job(random: &mut Random, controller: &mut Controller, number: u32, calm: bool) -> JobPlan {
    let host_count = u64::from(controller_hosts(controller));
    let worker_count = random.within(1, host_count.min(WORKER_COUNT_MAX));
    let mut hosts: Vec<u32> = (0..host_count as u32).collect();
    for place in 0..worker_count {
        hosts.swap(place as usize, random.within(place, host_count - 1) as usize);
    }
    hosts.truncate(worker_count as usize);
    let is_partial = !calm && random.chance(250_000);
    let window_max = *random.choose(&[1, 4, 8, 32]);
    let request = Request {
        job_id: 0x100 * random.within(1, 9) as u32 + number,
        job_token: random.bits() as u32,
        hosts: hosts.clone(),
        bytes: 0,
        window_max,
        share_percent: if is_partial { *random.choose(&[50, 75, 88]) } else { 100 },
    };
    let plan = controller.place(&request).unwrap_or_else(|refusal| panic!("the controller refuses: {refusal}")).clone();
    let aim = (CONTRIBUTIONS_AIM / worker_count).max(8);
    let mut collectives = Vec::new();
    let mut blocks = 0;
    while blocks < aim {
        let submission = collective(random, hosts.len(), collectives.len() as u64);
        blocks += u64::from(submission.block_count);
        collectives.push(submission);
    }
    let cwnd_initial = random.within(1, window_max.into()) as u32;
    let dctcp = CongestionControl::Dctcp {
        cwnd_initial,
        ssthresh_initial: 8,
        gain_shift: 4,
        grows_when_marked: false,
        whole_rounds: false,
    };
    JobPlan {
        job_id: request.job_id,
        job_token: request.job_token,
        plan,
        window_max,
        congestion_control: if random.flip() { dctcp } else { CongestionControl::Fixed { window: window_max } },
        collectives,
        is_partial,
        joins: if calm || random.flip() { Time::ZERO } else { Time::ZERO + random.span_up_to(Span::from_ms(3)) },
        skew_max: if calm || random.flip() { Span::ZERO } else { random.span_up_to(Span::from_ms(3)) },
        is_stepwise: random.flip(),
        death: (!calm && worker_count > 1 && random.chance(80_000))
            .then(|| (random.below(worker_count) as u16, Time::ZERO + random.span_up_to(Span::from_ms(5)))),
        hosts,
    }
}

fn controller_hosts(controller: &Controller) -> u32 {
    controller.fabric().host_count()
}

fn collective(random: &mut Random, worker_count: usize, id: u64) -> Submission {
    let is_short = worker_count <= WORKER_COUNT_MAX_16 && random.chance(300_000);
    let element_format = match is_short {
        true => *random.choose(&[ElementFormat::Float16, ElementFormat::Bfloat16]),
        false => ElementFormat::Int32,
    };
    let shape = Shape {
        shard_count: 1,
        shard_elements: random.within(0, 60),
        block_elements: random.within(1, ELEMENT_COUNT_MAX.into()) as u16,
    };
    let sole = random.chance(150_000).then(|| random.below(worker_count as u64) as u16);
    Submission {
        id,
        collective_tag: 0xc011_0000 | id as u32,
        shape,
        block_first: 0,
        block_count: shape.block_count() as u32,
        contributors: sole.map_or(Participants::Everyone, Participants::Rank),
        receivers: Participants::Everyone,
        operator: Operator::Add,
        element_format,
        scaled: true,
    }
}

/// What a job's trees ask of one switch.
pub fn configs_at(job: &JobPlan, switch: u32) -> impl Iterator<Item = TreeConfig> + '_ {
    let switches = job.plan.trees.iter().flat_map(|tree| &tree.switches);
    switches.filter(move |(other, _)| *other == switch).map(|(_, config)| *config)
}
