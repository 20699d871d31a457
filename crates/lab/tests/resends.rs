//! What ATP's workers send again: where ranks are late and nothing is lost, and where the end of a tensor is lost.
#![allow(missing_docs)]

use fanin_lab::world::{
    Contents, JobSpec, LinkSpec, PacketSize, Patience, Protocol, Topology, Workload, World, WorldSpec,
};
use fanin_protocol::atp::{CongestionControl, Indexing, Scale, Tree, WorkerCounters};
use fanin_protocol::time::{Span, Time};

const WORKERS: usize = 4;
const ROUNDS: u32 = 100;
const SIZE: PacketSize = PacketSize { packet_bytes: 1200, payload_bytes: 1024 };

/// All workers' counters, and the time of a round.
struct Outcome {
    timeouts: u64,
    overtaken: u64,
    cuts: u64,
    round: Span,
}

/// Rounds of computing for 1 ms, up to `late` more, and a tensor of `chunks` chunks; the timers are those of real sockets.
fn run(chunks: u32, late: Span, loss_ppm: u32) -> Outcome {
    let mut world = World::new(WorldSpec {
        topology: Topology::one_switch(WORKERS + 1),
        link: LinkSpec { gbps: 10.0, delay_ns: 5000, queue_bytes_max: 400_000, loss_ppm: 0 },
        slot_count: 2048,
        ecn_threshold_bytes: 200_000,
        slot_age_max: Span::from_ms(100),
        block_elements: 2,
        patience: Patience { initial: Span::from_ms(20), min: Span::from_ms(2), max: Span::from_ms(1000) },
        seed: 3,
    });
    world.set_host_links(1, |link| link.loss_ppm = loss_ppm);
    let compute = Span::from_ms(1);
    let jitter_ppm = (late.as_ns() * 1_000_000 / compute.as_ns()) as u32;
    let protocol = Protocol::Atp {
        tree: Tree::one_switch(WORKERS as u16).unwrap(),
        server: WORKERS,
        window_max: 256,
        congestion_control: CongestionControl::Aimd { window_initial: 200, step: 1 },
        indexing: Indexing::Hash,
        own_slots: None,
        scale: Scale::Static,
    };
    let workload = Workload::Training { model_chunks: chunks, compute, jitter_ppm, rounds: ROUNDS };
    let hosts = (0..WORKERS).collect();
    world
        .add_job(JobSpec { protocol, hosts, size: SIZE, workload, starts: Time::ZERO, contents: Contents::Words })
        .unwrap();
    world.run_to_the_end(Time::ZERO + Span::from_ms(100_000)).unwrap();
    let counters = (0..WORKERS).filter_map(|rank| world.worker_counters(0, rank));
    let sum = |of: fn(&WorkerCounters) -> u64| counters.clone().map(of).sum();
    let round_ns = world.progress(0)[0].round_ns(1).unwrap();
    Outcome {
        timeouts: sum(|counters| counters.resends_timeout),
        overtaken: sum(|counters| counters.resends_overtaken),
        cuts: sum(|counters| counters.cuts),
        round: Span::from_ns(round_ns as u64),
    }
}

fn describe(outcome: &Outcome) -> String {
    let Outcome { timeouts, overtaken, cuts, round } = outcome;
    format!("timeouts {timeouts}, overtaken {overtaken}, cuts {cuts}, round {:.3} ms", round.as_ns() as f64 / 1e6)
}

#[test]
fn ranks_that_are_late_cost_hardly_a_resend() {
    // Timers that did not know of lateness: 137 and 337 resends, 191 windows halved; 374, 351 and 157.
    for late_ms in [5, 15] {
        let outcome = run(1000, Span::from_ms(late_ms), 0);
        let text = describe(&outcome);
        println!("late by up to {late_ms} ms: {text}");
        assert!(outcome.timeouts <= 20 && outcome.overtaken <= 100 && outcome.cuts <= 40, "{text}");
    }
}

#[test]
fn punctual_ranks_send_nothing_again() {
    let outcome = run(1000, Span::ZERO, 0);
    assert_eq!((outcome.timeouts, outcome.overtaken, outcome.cuts), (0, 0, 0));
}

#[test]
fn losses_are_found_as_soon_as_without_lateness() {
    // 2.142 and 3.670 ms by timers that did not know of lateness.
    for (loss_ppm, round_us_max) in [(1_000, 2_200), (10_000, 3_800)] {
        let outcome = run(1000, Span::ZERO, loss_ppm);
        println!("{loss_ppm} ppm: {}", describe(&outcome));
        assert!(outcome.round <= Span::from_us(round_us_max), "{}", describe(&outcome));
    }
}
