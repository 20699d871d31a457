//! Small ATP clusters, all of them: every order of deliveries, losses, duplicates, timeouts and restarts.
#![cfg(not(feature = "canary"))]

use std::time::Instant;

use fanin_harness::atp::exhaustive::{Scope, explore};
use fanin_protocol::atp::Tree;
use fanin_wire::Accumulator;

fn scope() -> Scope {
    Scope { chunks: 2, window_max: 2, losses: 1, duplicates: 1, ..Scope::least() }
}

fn holds(scope: &Scope, states_min: u64) {
    let start = Instant::now();
    let explored = explore(scope).unwrap_or_else(|found| panic!("{found}"));
    println!("{explored:?} in {:.1} s: {scope:?}", start.elapsed().as_secs_f32());
    assert!(explored.states >= states_min, "the explorer no longer explores: {explored:?}");
}

/// Both chunks want the one slot.
#[test]
fn two_workers_one_slot_two_chunks() {
    holds(&scope(), 80_000);
}

#[test]
fn two_jobs_collide_on_one_slot() {
    holds(&Scope { jobs: 2, chunks: 1, ..scope() }, 120_000);
}

#[test]
fn a_switch_that_forgets_its_slots() {
    holds(&Scope { restarts: 1, early_timeouts: 1, chunks: 1, ..scope() }, 30_000);
}

/// The first chunk's sum leaves 32 bits; the second is sent at the scale that the first one's answer tells.
#[test]
fn a_scale_that_is_told() {
    holds(&Scope { floats: true, window_max: 1, chunks: 3, ..scope() }, 10_000);
}

/// Three workers, so that there are parts: 2^24 and 1 and 1 are 2^24 + 2 only if no part of them was rounded.
#[test]
fn an_exact_sum_is_rounded_once() {
    let tree = Tree::one_switch(3).expect("a tree");
    holds(&Scope { tree, accumulator: Accumulator::Exact, chunks: 1, duplicates: 0, ..scope() }, 1_000);
}

/// A worker in a rack and one beside the server: two levels.
#[test]
fn two_levels() {
    holds(&Scope { tree: Tree::racks(&[1], 1).expect("a tree"), chunks: 1, early_timeouts: 1, ..scope() }, 25_000);
}
