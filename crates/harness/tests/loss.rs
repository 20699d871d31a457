//! What loss costs: resends stay in proportion to it.
#![cfg(not(feature = "canary"))]

use std::rc::Rc;

use fanin_harness::collective::{Collective, Data, Kind};
use fanin_harness::job::{Disturbance, JobPlan};
use fanin_harness::{Cluster, Scenario, Summary};
use fanin_link::LinkConfig;
use fanin_protocol::switchml::WireFormat;
use fanin_protocol::time::{Span, Time};
use fanin_wire::{ElementFormat, Operator};

const CHUNKS: u64 = 2_000;
const K: u16 = 8;

fn all_reduce(seed: u64) -> Collective {
    Collective {
        id: 0,
        kind: Kind::AllReduce,
        data: Data::Words,
        operator: Operator::Add,
        element_format: ElementFormat::Int32,
        shard_elements: CHUNKS * u64::from(K),
        seed,
    }
}

fn scenario(seed: u64, worker_count: u16, loss_ppm: u32, skew_max: Span, wire_format: WireFormat) -> Scenario {
    let element_count_max = if wire_format == WireFormat::P4app { 32 } else { K };
    let job = JobPlan {
        job_id: 0x100,
        job_token: 1,
        worker_count,
        lane_count: 1,
        slots_per_lane: 64,
        element_count_max,
        wire_format,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        collectives: vec![Rc::new(Collective {
            shard_elements: CHUNKS * u64::from(element_count_max),
            ..all_reduce(seed)
        })],
        starts: Time::ZERO,
        submits: vec![Time::ZERO],
        skew_max,
        resend_timeouts: [Span::from_ms(10), Span::from_ms(1), Span::from_ms(100)],
        disturbance: Disturbance::None,
    };
    let link = LinkConfig {
        delay: Span::from_us(10),
        jitter_max: Span::from_us(5),
        ns_per_byte: 8,
        loss_ppm,
        in_order: true,
        faults_until: Time::from_ns(u64::MAX / 2),
        ..LinkConfig::default()
    };
    Scenario { seed, jobs: vec![job], up: link.clone(), down: link, switch_restart: None, calm: false }
}

fn run(scenario: Scenario) -> Summary {
    let summary = Cluster::new(scenario, false).run().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{summary:?}");
    summary
}

fn per_mille(part: u64, whole: u64) -> u64 {
    part * 1_000 / whole
}

#[test]
fn nothing_is_resent_without_loss() {
    for workers in [1, 2, 8, 64] {
        let summary = run(scenario(1, workers, 0, Span::ZERO, WireFormat::Fanin));
        assert_eq!((summary.resends, summary.queries), (0, 0), "{workers} workers");
        assert_eq!(summary.contributions, u64::from(workers) * CHUNKS);
    }
}

/// One percent each way. A worker resends what the switch lacks, which is
/// the upward loss alone; the rest are headers that ask.
#[test]
fn at_one_percent_loss_resends_stay_close_to_one_percent() {
    for workers in [2, 4, 8] {
        let summary = run(scenario(2, workers, 10_000, Span::ZERO, WireFormat::Fanin));
        let resends = per_mille(summary.resends, summary.contributions);
        assert!((5..20).contains(&resends), "{workers} workers: {resends} per mille resent");
        let bound = summary.lost * u64::from(workers);
        assert!(summary.queries < bound, "{workers} workers: more than one question per worker and loss: {summary:?}");
        // Without loss it takes 1.2 ms. A recovery that waits for its timer
        // instead of acting on what it hears takes tens of milliseconds.
        assert!(summary.completed_ns < 10_000_000, "{workers} workers recover too slowly: {summary:?}");
        // In bytes of the usual packet of 256 elements.
        let extra = per_mille(summary.resends * 1_064 + summary.queries * 40, summary.contributions * 1_064);
        assert!(extra < 30, "{workers} workers send {extra} per mille more bytes");
    }
}

/// Algorithm 4 without Queries: every worker resends each chunk that one lost.
#[test]
fn p4app_resends_less_than_each_loss_times_the_workers() {
    for workers in [2, 4, 8] {
        let summary = run(scenario(3, workers, 10_000, Span::ZERO, WireFormat::P4app));
        let bound = summary.lost * (u64::from(workers) + 2);
        assert!(summary.resends < bound, "{workers} workers: {summary:?}");
    }
}

/// Waiting for a straggler costs a header per back-off step, not a window.
#[test]
fn a_straggler_causes_no_storm() {
    let late = Span::from_ms(500);
    let summary = run(scenario(4, 4, 0, late, WireFormat::Fanin));
    assert_eq!(summary.resends, 0);
    assert!(summary.queries < 100, "{summary:?}");
}
