//! What a scenario is made of.

use fanin_link::{LinkConfig, Random};
use fanin_protocol::atp::{CongestionControl, Indexing, JobConfig, OVERFLOW_OFTEN, Scale, Stragglers, Tree, Way};
use fanin_protocol::stream::{Participants, Shape, Submission};
use fanin_protocol::time::{Span, Time};
use fanin_wire::{Accumulator, ElementFormat, Operator};

/// Largest payload of every scenario, in elements.
pub const ELEMENT_COUNT_MAX: u16 = 8;
/// Contributions that a job of a seed's scenario aims at, and of a small one.
const CONTRIBUTIONS_AIM: u64 = 600;
const CONTRIBUTIONS_AIM_SMALL: u64 = 30;
/// Faults stop here at the latest.
const FAULTS_UNTIL_MAX: Span = Span::from_ms(60);

/// One job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// Id; the number is unique.
    pub job_id: u32,
    /// Of this instance.
    pub job_token: u32,
    /// Where its workers are.
    pub tree: Tree,
    /// Streams of each worker.
    pub lane_count: u16,
    /// Most chunks out.
    pub window_max: u32,
    /// How windows follow the network.
    pub congestion_control: CongestionControl,
    /// Whether workers ask for scales.
    pub scale: Scale,
    /// Overflows among 64 sums from which on they get them.
    pub overflow_often: u8,
    /// Most numbers that are summed are below this.
    pub magnitude: f32,
    /// How chunks are spread over slots.
    pub indexing: Indexing,
    /// What every lane of every worker submits, in order.
    pub collectives: Vec<Submission>,
    /// How sums of floats are added.
    pub accumulator: Accumulator,
    /// Workers start up to this much later than one another.
    pub skew_max: Span,
    /// This rank ends suddenly.
    pub death: Option<(u16, Time)>,
    /// And the job is set up again on those that are left, this much later.
    pub goes_on_after: Option<Span>,
    /// And somebody takes the lost rank's place.
    pub replacement: Option<Replacement>,
    /// What the servers do about workers that are late.
    pub stragglers: Option<Stragglers>,
    /// This rank does nothing for a while.
    pub pause: Option<(u16, Time, Time)>,
}

impl JobPlan {
    /// What a switch of this level is told.
    pub fn at_switch(&self, level: u8) -> JobConfig {
        JobConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            lane_count: self.lane_count,
            level,
            accumulator: self.accumulator,
            worker_count: self.tree.worker_count(),
        }
    }
}

/// Somebody in a lost rank's place.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// Collectives before the boundary at which the others admit it.
    pub after: usize,
    /// The tree with everybody.
    pub tree: Tree,
    /// The boundary is behind.
    pub has_come: bool,
}

/// All that a simulation is made from.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it comes from.
    pub seed: u64,
    /// Jobs; they share all switches.
    pub jobs: Vec<JobPlan>,
    /// Slots of each switch.
    pub slot_count: u16,
    /// Age after which slots are taken back.
    pub slot_age_max: Span,
    /// Every link, both ways.
    pub link: LinkConfig,
    /// Chance that a Fragment finds a long queue at a switch.
    pub ecn_ppm: u32,
    /// Switches lose all their slots.
    pub switch_restart: Option<Time>,
    /// No fault, no lateness, a slot for every chunk: then nothing is sent twice.
    pub calm: bool,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0xa7b);
        let calm = random.chance(100_000);
        let job_count = if calm { 1 } else { *random.choose(&[1, 1, 2, 2, 3]) };
        let link = link(&mut random, calm);
        let jobs = (0..job_count).map(|number| job(&mut random, number, calm, CONTRIBUTIONS_AIM));
        let mut jobs: Vec<JobPlan> = jobs.collect();
        if !calm {
            let mut random = Random::new(seed ^ 0x10_55);
            jobs.iter_mut().for_each(|job| lose_and_be_late(&mut random, job));
        }
        let mut random = Random::new(seed ^ 0x5ca1e);
        jobs.iter_mut().for_each(|job| scale(&mut random, job));
        let mut random = Random::new(seed ^ 0xacc);
        jobs.iter_mut().for_each(|job| add_otherwise(&mut random, job));
        Scenario {
            seed,
            jobs,
            slot_count: if calm { 4096 } else { *random.choose(&[1, 2, 3, 8, 64, 1024]) },
            slot_age_max: Span::from_ms(random.within(1, 40)),
            link,
            ecn_ppm: if !calm && random.flip() { *random.choose(&[1_000, 30_000, 500_000]) } else { 0 },
            switch_restart: (!calm && random.chance(100_000)).then(|| Time::ZERO + random.span_up_to(Span::from_ms(8))),
            calm,
        }
    }
}

impl Scenario {
    /// A scenario for somebody who chooses every step: few chunks, nothing that happens by itself but long queues.
    pub fn small(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0x5a1);
        let job_count = *random.choose(&[1, 1, 2]);
        let plan = |number| JobPlan { death: None, ..job(&mut random, number, false, CONTRIBUTIONS_AIM_SMALL) };
        let mut jobs: Vec<JobPlan> = (0..job_count).map(plan).collect();
        let mut scales = Random::new(seed ^ 0x5ca1e);
        jobs.iter_mut().for_each(|job| scale(&mut scales, job));
        let mut random = Random::new(seed ^ 0xacc);
        jobs.iter_mut().for_each(|job| add_otherwise(&mut random, job));
        Scenario {
            seed,
            jobs,
            slot_count: *random.choose(&[1, 2, 3, 8]),
            slot_age_max: Span::from_ms(random.within(1, 40)),
            link: LinkConfig::default(),
            ecn_ppm: *random.choose(&[0, 30_000]),
            switch_restart: None,
            calm: false,
        }
    }
}

fn link(random: &mut Random, calm: bool) -> LinkConfig {
    let mut config = LinkConfig {
        delay: Span::from_ns(random.within(500, 40_000)),
        ns_per_byte: *random.choose(&[0, 1, 8]),
        in_order: calm || random.flip(),
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

fn job(random: &mut Random, number: u32, calm: bool, contributions_aim: u64) -> JobPlan {
    let tree = tree(random);
    let worker_count = tree.worker_count();
    let window_max = *random.choose(&[4, 8, 32]);
    let aim = (contributions_aim / u64::from(worker_count)).max(8);
    let mut collectives = Vec::new();
    let mut chunks = 0;
    while chunks < aim {
        let submission = collective(random, worker_count, collectives.len() as u64);
        chunks += u64::from(submission.block_count);
        collectives.push(submission);
    }
    let initial = random.within(1, window_max.into()) as u32;
    let aimd = CongestionControl::Aimd { window_initial: initial, step: *random.choose(&[1, 5]) };
    let death = (!calm && worker_count > 1 && random.chance(100_000))
        .then(|| (random.below(worker_count.into()) as u16, Time::ZERO + random.span_up_to(Span::from_ms(5))));
    JobPlan {
        job_id: 0x100 * random.within(1, 9) as u32 + number,
        job_token: random.bits() as u32,
        tree,
        lane_count: *random.choose(&[1, 1, 2]),
        window_max,
        congestion_control: if random.flip() { aimd } else { CongestionControl::Off },
        indexing: if calm || random.flip() { Indexing::Hash } else { Indexing::Linear },
        collectives,
        accumulator: Accumulator::StaticFixed,
        skew_max: if calm || random.flip() { Span::ZERO } else { random.span_up_to(Span::from_ms(3)) },
        death,
        scale: Scale::Static,
        overflow_often: OVERFLOW_OFTEN,
        magnitude: 0.1,
        goes_on_after: None,
        replacement: None,
        stragglers: None,
        pause: None,
    }
}

/// Jobs whose floats travel as they lie in memory.
fn add_otherwise(random: &mut Random, job: &mut JobPlan) {
    use Accumulator::{Exact, Fpisa, FpisaA, Ieee, LogTable, StaticFixed};
    // Of bits that the choice leaves alone, so that seeds without tables are what they were before there were any. They take longer to make
    // than a scenario, and every switch and server of a job makes some.
    let with_tables = Random::new(random.clone().bits()).chance(20_000);
    let other = *random.choose(&[StaticFixed, StaticFixed, StaticFixed, Fpisa, FpisaA, Ieee, Exact]);
    let accumulator = if with_tables { LogTable } else { other };
    // An exact sum is made at one level.
    if accumulator == StaticFixed || accumulator == Exact && job.tree.level_count() > 1 {
        return;
    }
    job.accumulator = accumulator;
    for submission in job.collectives.iter_mut().filter(|submission| submission.scaled) {
        let raw = [ElementFormat::RawFloat32, ElementFormat::RawFloat16, ElementFormat::RawBfloat16];
        (submission.scaled, submission.element_format) = (false, *random.choose(&raw));
    }
}

/// Jobs whose gradients want a scale of their own, some of which do not get it.
fn scale(random: &mut Random, job: &mut JobPlan) {
    job.scale = if random.chance(700_000) { Scale::Dynamic } else { Scale::Static };
    job.overflow_often = *random.choose(&[0, 1, OVERFLOW_OFTEN]);
    job.magnitude = *random.choose(&[0.1, 0.1, 40.0, 1e6]);
}

/// Jobs that go on without a worker, for good or for a while.
fn lose_and_be_late(random: &mut Random, job: &mut JobPlan) {
    let worker_count = job.tree.worker_count();
    if worker_count == 1 {
        return;
    }
    let (rank, other) = (random.below(worker_count.into()) as u16, random.below(worker_count.into()) as u16);
    if job.death.is_some() && random.flip() || random.chance(250_000) {
        let at = Time::ZERO + random.span_up_to(Span::from_ms(5));
        job.death = job.death.or(Some((rank, at)));
        job.goes_on_after = Some(random.span_up_to(Span::from_ms(20)));
        let after = random.within(0, job.collectives.len() as u64) as usize;
        job.replacement = random.flip().then(|| Replacement { after, tree: job.tree.clone(), has_come: false });
    }
    if random.chance(250_000) {
        let from = Time::ZERO + random.span_up_to(Span::from_ms(5));
        job.pause = Some((other, from, from + random.span_up_to(Span::from_ms(60))));
        job.stragglers = Some(Stragglers {
            after: Span::from_us(random.within(200, 8_000)),
            share_min_percent: *random.choose(&[0, 50, 75]),
            rest_of_collective: random.flip(),
            chunks_kept: 2 * job.window_max * *random.choose(&[1, 2, 64]),
        });
    }
}

fn tree(random: &mut Random) -> Tree {
    let mut count = |low, high| random.within(low, high) as u8;
    let tree = match count(0, 3) {
        0 => Tree::one_switch(u16::from(count(1, 9))),
        1 => Tree::one_switch(2),
        2 => {
            let racks: Vec<u8> = (0..count(1, 3)).map(|_| count(1, 4)).collect();
            let beside = count(0, 2);
            Tree::racks(&racks, beside)
        }
        _ => {
            let way =
                |rank: u8| Way { level: 0, children: [rank & 1, rank >> 1 & 1, rank >> 2, 0], fan_in: [2, 2, 2, 0] };
            Tree::new(3, (0..8).map(way).collect())
        }
    };
    tree.unwrap_or_else(|error| panic!("the plans' trees are trees: {error:?}"))
}

fn collective(random: &mut Random, worker_count: u16, id: u64) -> Submission {
    let scaled = random.chance(600_000);
    let elements = random.within(0, 60);
    let rank = random.below(worker_count.into()) as u16;
    let operator = if scaled { Operator::Add } else { *random.choose(&Operator::ALL) };
    let sharded = random.chance(150_000);
    let shape = Shape {
        shard_count: if sharded { worker_count } else { 1 },
        shard_elements: if sharded { elements / u64::from(worker_count) } else { elements },
        block_elements: random.within(1, ELEMENT_COUNT_MAX.into()) as u16,
    };
    let gather = !scaled && operator == Operator::Or;
    let contributors = match (gather && random.flip(), sharded) {
        (true, true) => Participants::ShardOwner,
        (true, false) => Participants::Rank(rank),
        _ => Participants::Everyone,
    };
    let receivers = match (contributors == Participants::Everyone && random.chance(200_000), sharded) {
        (true, true) => Participants::ShardOwner,
        (true, false) => Participants::Rank(rank),
        _ => Participants::Everyone,
    };
    Submission {
        id,
        collective_tag: 0xc011_0000 | id as u32,
        shape,
        block_first: 0,
        block_count: shape.block_count() as u32,
        contributors,
        receivers,
        operator,
        element_format: ElementFormat::Int32,
        scaled,
    }
}
