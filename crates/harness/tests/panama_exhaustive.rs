//! Small PANAMA clusters, all of them: every order of deliveries, losses, duplicates and timeouts, up to the answers of all FINs.
#![cfg(not(any(feature = "canary", feature = "canary-second")))]

use std::time::Instant;

use fanin_harness::panama::exhaustive::{Scope, explore};

fn scope() -> Scope {
    Scope {
        racks: vec![2],
        trees: 1,
        blocks: 2,
        window: 2,
        memory_packets: 100,
        share_percent: 100,
        losses: 1,
        duplicates: 1,
        early_timeouts: 0,
    }
}

fn holds(scope: &Scope, states_min: u64) {
    let start = Instant::now();
    let explored = explore(scope).unwrap_or_else(|found| panic!("{found}"));
    println!("{explored:?} in {:.1} s: {scope:?}", start.elapsed().as_secs_f32());
    assert!(explored.states >= states_min, "the explorer no longer explores: {explored:?}");
}

#[test]
fn two_workers_two_blocks() {
    holds(&scope(), 40_000);
}

/// Memory for one packet of each port and one sum, whatever workers send.
#[test]
fn the_least_memory() {
    holds(&Scope { memory_packets: 3, blocks: 3, ..scope() }, 8_000);
}

/// A switch below another, where sums are asked for again.
#[test]
fn two_racks() {
    holds(&Scope { racks: vec![1, 1], blocks: 1, window: 1, early_timeouts: 1, ..scope() }, 150_000);
}

#[test]
fn two_trees() {
    holds(&Scope { trees: 2, racks: vec![1, 1], window: 1, duplicates: 0, ..scope() }, 400_000);
}

/// One of two is enough: Results come to workers that have not sent.
#[test]
fn half_of_the_workers() {
    holds(&Scope { share_percent: 50, ..scope() }, 700_000);
}
