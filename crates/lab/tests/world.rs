//! The simulated network as a whole: rates, sums, recovery and repeatability.
#![allow(missing_docs)]

use fanin_lab::world::{
    Contents, JobSpec, LinkSpec, PacketSize, Patience, Protocol, Topology, Workload, World, WorldSpec,
};
use fanin_protocol::atp::{CongestionControl, Indexing, Scale, Tree};
use fanin_protocol::time::{Span, Time};

const WORKERS: usize = 4;
const SIZE: PacketSize = PacketSize { packet_bytes: 306, payload_bytes: 248 };

fn world(loss_ppm: u32) -> World {
    let mut world = World::new(WorldSpec {
        topology: Topology::one_switch(WORKERS + 1),
        link: LinkSpec { gbps: 10.0, delay_ns: 2000, queue_bytes_max: 200_000, loss_ppm: 0 },
        slot_count: 512,
        ecn_threshold_bytes: 30_000,
        slot_age_max: Span::from_ms(5),
        block_elements: 2,
        patience: Patience { initial: Span::from_ms(1), min: Span::from_us(200), max: Span::from_ms(20) },
        seed: 3,
    });
    world.set_host_links(1, |link| link.loss_ppm = loss_ppm);
    world
}

fn job(protocol: Protocol) -> JobSpec {
    let workload =
        Workload::Training { model_chunks: 5000, compute: Span::from_us(20), jitter_ppm: 100_000, rounds: 3 };
    JobSpec {
        protocol,
        hosts: (0..WORKERS).collect(),
        size: SIZE,
        workload,
        starts: Time::ZERO,
        contents: Contents::Words,
    }
}

fn atp() -> Protocol {
    Protocol::Atp {
        tree: Tree::one_switch(WORKERS as u16).unwrap(),
        server: WORKERS,
        window_max: 128,
        congestion_control: CongestionControl::Aimd { window_initial: 32, step: 5 },
        indexing: Indexing::Hash,
        own_slots: None,
        scale: Scale::Static,
    }
}

fn slotted() -> Protocol {
    Protocol::Static { slots_per_lane: 16, lane_count: 8 }
}

/// Runs a job to its end; when each rank completed its last tensor, and packet arrivals.
fn run(protocol: Protocol, loss_ppm: u32) -> (Vec<u64>, u64) {
    let mut world = world(loss_ppm);
    world.add_job(job(protocol)).unwrap();
    world.run_to_the_end(Time::ZERO + Span::from_ms(10_000)).unwrap();
    let last = |rank: usize| world.progress(0)[rank].completed.last().map_or(0, |at| at.as_ns());
    ((0..WORKERS).map(last).collect(), world.hops())
}

#[test]
fn a_link_s_rate_bounds_both_systems() {
    // 15,000 chunks of 306 bytes take 3.67 ms at 10 Gbit/s.
    for protocol in [atp(), slotted()] {
        let (ends, _) = run(protocol.clone(), 0);
        let latest = *ends.iter().max().unwrap();
        assert!((3_672_000..5_000_000).contains(&latest), "{protocol:?}: {latest} ns");
    }
}

#[test]
fn lost_packets_are_recovered_and_every_sum_is_right() {
    for protocol in [atp(), slotted()] {
        let mut world = world(5000);
        world.add_job(job(protocol)).unwrap();
        world.run_to_the_end(Time::ZERO + Span::from_ms(10_000)).unwrap();
        assert!(world.host_links(1).iter().any(|link| link.lost > 10), "losses were meant to happen");
        assert_eq!(world.taken_bytes(0), 15_000.0 * 248.0, "every rank took every chunk once");
    }
}

#[test]
fn a_seed_gives_the_same_run() {
    assert_eq!(run(atp(), 1000), run(atp(), 1000));
}

#[test]
fn nothing_stays_under_way_after_the_end() {
    let mut world = world(0);
    world.add_job(job(atp())).unwrap();
    world.run_until(Time::ZERO + Span::from_ms(100)).unwrap();
    assert_eq!(world.under_way(), 0);
    assert_eq!(world.progress(0)[0].completed.len(), 3);
}
