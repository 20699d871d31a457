//! Scenarios from seeds: each seed switches features on and off and picks
//! their rates ("swarm testing"), so that rare combinations meet.

use std::rc::Rc;

use fanin_link::{LinkConfig, Random};
use fanin_protocol::switchml::WireFormat;
use fanin_protocol::time::{Span, Time};
use fanin_wire::{Accumulator, ElementFormat, Operator};

use crate::collective::{Collective, Data, Kind};
use crate::job::{Disturbance, JobPlan};

/// Packets of new contributions that a scenario aims at.
const CONTRIBUTIONS_AIM: u64 = 500;
/// Faults stop here at the latest.
const FAULTS_UNTIL_MAX: Span = Span::from_ms(60);

/// Tables take longer to make than a scenario.
const LOG_TABLE_PPM: u32 = 30_000;
/// Accumulators of all other simulated jobs.
const ACCUMULATORS: [Accumulator; 9] = [
    Accumulator::BlockFixed,
    Accumulator::BlockFixed,
    Accumulator::BlockFixed,
    Accumulator::BlockFixed,
    Accumulator::StaticFixed,
    Accumulator::Fpisa,
    Accumulator::FpisaA,
    Accumulator::Ieee,
    Accumulator::Exact,
];

/// All that a simulation is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Where it comes from; also the seed of the links.
    pub seed: u64,
    /// Jobs, in the order of their start.
    pub jobs: Vec<JobPlan>,
    /// Links from workers to the switch.
    pub up: LinkConfig,
    /// Links from the switch to workers.
    pub down: LinkConfig,
    /// The switch program restarts empty.
    pub switch_restart: Option<Time>,
    /// No fault and no lateness at all: then nothing may be resent.
    pub calm: bool,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let calm = random.chance(100_000);
        let p4app = random.chance(200_000);
        let faults_until = Time::ZERO + random.span_up_to(FAULTS_UNTIL_MAX);
        let up = link(&mut random, calm, p4app, faults_until);
        let down = link(&mut random, calm, p4app, faults_until);
        let mut jobs = Vec::new();
        for number in 0..*random.choose(&[1, 1, 2, 3]) {
            let wire_format = if p4app { WireFormat::P4app } else { WireFormat::Fanin };
            let job = job(&mut random, number, wire_format, calm, CONTRIBUTIONS_AIM);
            let replacement = match job.disturbance {
                Disturbance::Replacement { at } => Some(replace(&mut random, &job, at)),
                _ => None,
            };
            jobs.push(job);
            jobs.extend(replacement);
        }
        let switch_restart = (!calm && random.chance(50_000)).then(|| Time::ZERO + random.span_up_to(Span::from_ms(5)));
        Scenario { seed, jobs, up, down, switch_restart, calm }
    }

    /// When the last cause of delay is over.
    pub fn settled_from(&self) -> Time {
        let starts =
            self.jobs.iter().flat_map(|job| job.submits.iter().map(|&at| at + job.skew_max).chain([job.starts]));
        let links = [&self.up, &self.down].into_iter().flat_map(|link| {
            let dead = link.dead.iter().map(|&(_, until)| until);
            dead.chain([link.faults_until + link.held_delay_max])
        });
        starts.chain(links).max().unwrap_or(Time::ZERO)
    }
}

/// One job of this layout, in which some `contributions_aim` packets are
/// sent for the first time.
pub fn small_job(seed: u64, contributions_aim: u64) -> JobPlan {
    let jobs = (0..).map(|n| job(&mut Random::new(seed ^ n << 32), 0, WireFormat::Fanin, true, contributions_aim));
    // Large jobs have their place in whole scenarios; here they only take time.
    jobs.into_iter().find(|job| job.worker_count <= 9).expect("every other seed has few workers")
}

fn link(random: &mut Random, calm: bool, in_order: bool, faults_until: Time) -> LinkConfig {
    let delay = Span::from_ns(random.within(500, 60_000));
    let mut config = LinkConfig {
        delay,
        ns_per_byte: *random.choose(&[0, 0, 1, 8]),
        in_order: in_order || random.flip(),
        faults_until,
        ..LinkConfig::default()
    };
    if calm {
        return config;
    }
    let mut rate = |choices: &[u32]| if random.flip() { *random.choose(choices) } else { 0 };
    config.loss_ppm = rate(&[100, 1_000, 10_000, 50_000, 200_000]);
    config.duplicate_ppm = rate(&[1_000, 10_000, 100_000, 400_000]);
    // Neither layout's loss recovery is meant for what the other layer lets
    // through: p4app has no checksum of its own, and Algorithm 3 needs order.
    if !in_order {
        config.damage_ppm = rate(&[1_000, 10_000, 100_000]);
        config.held_ppm = rate(&[1_000, 10_000, 100_000]);
        config.held_delay_max = Span::from_us(random.within(200, 20_000));
    }
    config.jitter_max = if random.flip() { Span::from_us(random.within(1, 500)) } else { Span::ZERO };
    if random.chance(150_000) {
        let from = Time::ZERO + random.span_up_to(Span::from_ms(10));
        config.dead.push((from, from + random.span_up_to(Span::from_ms(30))));
    }
    config
}

fn job(random: &mut Random, number: u32, wire_format: WireFormat, calm: bool, aim: u64) -> JobPlan {
    let worker_count = worker_count(random);
    let element_count_max = match wire_format {
        WireFormat::P4app => *random.choose(&[32, 64]),
        WireFormat::Fanin => *random.choose(&[1, 2, 7, 16, 32]),
    };
    // Every worker sends each chunk.
    let chunks = (aim / u64::from(worker_count)).max(6);
    let accumulator = match wire_format {
        WireFormat::P4app => Accumulator::BlockFixed,
        WireFormat::Fanin => accumulator(random),
    };
    let shape = (worker_count, element_count_max);
    let collectives = collectives(random, shape, (wire_format, accumulator), chunks);
    let pause = if random.flip() { Span::ZERO } else { random.span_up_to(Span::from_us(300)) };
    let submits = (0..collectives.len() as u64).map(|n| Time::ZERO + pause.saturating_mul(n)).collect();
    let skew_max = if calm || random.flip() { Span::ZERO } else { random.span_up_to(Span::from_ms(8)) };
    let mut job = JobPlan {
        job_id: random.below(1 << 24) as u32 * 256 + number * 7,
        job_token: random.bits() as u32,
        worker_count,
        lane_count: *random.choose(&[1, 1, 2, 3]),
        slots_per_lane: *random.choose(&[1, 2, 4, 8, 16]),
        element_count_max,
        wire_format,
        accumulator,
        collectives,
        starts: Time::ZERO,
        submits,
        skew_max,
        resend_timeouts: [Span::from_ms(10), Span::from_ms(1), Span::from_ms(40)],
        disturbance: Disturbance::None,
    };
    if !calm && random.chance(300_000) {
        job.disturbance = disturbance(random, &job);
    }
    job
}

/// Tables come of bits that the choice leaves alone, so that seeds without any are what they were before.
fn accumulator(random: &mut Random) -> Accumulator {
    let with_tables = Random::new(random.clone().bits()).chance(LOG_TABLE_PPM);
    let other = *random.choose(&ACCUMULATORS);
    if with_tables { Accumulator::LogTable } else { other }
}

fn worker_count(random: &mut Random) -> u16 {
    if random.chance(30_000) { random.within(64, 100) as u16 } else { random.within(1, 9) as u16 }
}

/// The next run of a job that loses its number at `at`.
fn replace(random: &mut Random, old: &JobPlan, at: Time) -> JobPlan {
    // Both a new generation of the number and only a new token must do.
    let job_id = if random.flip() { old.job_id } else { old.job_id.wrapping_add(256) };
    let submits = old.submits.iter().map(|&time| time + (at - Time::ZERO)).collect();
    JobPlan {
        job_id,
        job_token: old.job_token.wrapping_add(1),
        starts: at,
        submits,
        disturbance: Disturbance::None,
        ..old.clone()
    }
}

fn disturbance(random: &mut Random, job: &JobPlan) -> Disturbance {
    let rank = random.below(u64::from(job.worker_count)) as u16;
    let at = Time::ZERO + random.span_up_to(Span::from_ms(3));
    match random.below(5) {
        0 => Disturbance::Death { rank, at },
        1 => Disturbance::Cut { rank, at, upward: random.flip() },
        2 => Disturbance::Removal { at },
        3 if job.wire_format == WireFormat::Fanin => Disturbance::Replacement { at },
        4 if job.wire_format == WireFormat::Fanin && job.worker_count > 1 => {
            Disturbance::Mismatch { rank, collective: random.below(job.collectives.len() as u64) }
        }
        _ => Disturbance::None,
    }
}

fn collectives(
    random: &mut Random,
    (worker_count, k): (u16, u16),
    forms: (WireFormat, Accumulator),
    chunks: u64,
) -> Vec<Rc<Collective>> {
    let count = random.within(1, 6);
    let elements_max = (chunks * u64::from(k) / count).max(2);
    (0..count).map(|id| Rc::new(collective(random, id, worker_count, elements_max, forms))).collect()
}

fn collective(
    random: &mut Random,
    id: u64,
    worker_count: u16,
    elements_max: u64,
    (wire_format, accumulator): (WireFormat, Accumulator),
) -> Collective {
    let root = random.below(u64::from(worker_count)) as u16;
    let kind = match random.below(10) {
        0 => Kind::Reduce { root },
        1 | 2 => Kind::ReduceScatter,
        3 => Kind::AllGather,
        4 => Kind::Broadcast { root },
        5 => Kind::Barrier,
        _ => Kind::AllReduce,
    };
    let copies = matches!(kind, Kind::AllGather | Kind::Broadcast { .. } | Kind::Barrier);
    let shards = if matches!(kind, Kind::ReduceScatter | Kind::AllGather) { u64::from(worker_count) } else { 1 };
    let non_finite_ppm = if random.chance(100_000) { 2_000 } else { 0 };
    let data = if copies || random.flip() { Data::Words } else { Data::Floats { non_finite_ppm } };
    let scaled = data != Data::Words;
    let operator = match (wire_format, copies) {
        (WireFormat::P4app, _) => Operator::Add,
        _ if scaled => Operator::Add,
        (WireFormat::Fanin, true) => *random.choose(&[Operator::Add, Operator::Or, Operator::Xor]),
        (WireFormat::Fanin, false) => *random.choose(&Operator::ALL),
    };
    let element_format = match scaled && wire_format == WireFormat::Fanin {
        true => *random.choose(&float_formats(accumulator)),
        false => ElementFormat::Int32,
    };
    let shard_elements = match kind {
        Kind::Barrier => 0,
        _ => random.below(elements_max / shards + 2),
    };
    Collective { id, kind, data, operator, element_format, shard_elements, seed: random.bits() }
}

/// What floats that are summed can travel as.
fn float_formats(accumulator: Accumulator) -> Vec<ElementFormat> {
    // Int32 is left to what is no sum of floats where the accumulator has a format of its own.
    let has_own = accumulator != Accumulator::BlockFixed;
    let is_own = |format: &ElementFormat| accumulator.takes(*format) && !(has_own && *format == ElementFormat::Int32);
    ElementFormat::ALL.into_iter().filter(is_own).collect()
}
