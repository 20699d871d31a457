//! What ATP's workers send again: where ranks are late and nothing is lost, and where the end of a tensor is lost.
#![allow(missing_docs)]

use fanin_lab::world::{
    Contents, JobSpec, LinkSpec, PacketSize, Patience, Protocol, Topology, Workload, World, WorldSpec,
};
use fanin_protocol::atp::{CongestionControl, Indexing, Tree, WorkerCounters};
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

#[test]
fn measure() {
    for (chunks, late, loss) in [
        (1000, 0, 0),
        (1000, 5, 0),
        (1000, 15, 0),
        (100, 5, 0),
        (1000, 50, 0),
        (60, 0, 20_000),
        (60, 0, 100_000),
        (1000, 0, 1000),
        (1000, 0, 10_000),
        (1000, 5, 1000),
        (5000, 5, 0),
    ] {
        let Outcome { timeouts, overtaken, cuts, round } = run(chunks, Span::from_ms(late), loss);
        println!(
            "chunks {chunks} late {late} ms loss {loss}: timeouts {timeouts} overtaken {overtaken} cuts {cuts} round {:.3} ms",
            round.as_ns() as f64 / 1e6
        );
    }
}
