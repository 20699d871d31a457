//! Small scopes, all of them: every order of deliveries, losses, duplicates
//! and timeouts.
#![cfg(not(feature = "canary"))]

use std::time::Instant;

use fanin_harness::exhaustive::{Counterexample, Explored, Scope, explore};
use fanin_protocol::switchml::WireFormat;

const SCOPE: Scope = Scope {
    workers: 2,
    slots: 2,
    blocks: 3,
    scaled: false,
    losses: 2,
    duplicates: 2,
    early_timeouts: 0,
    death: false,
    in_order: false,
    wire_format: WireFormat::Fanin,
};

fn run(scope: &Scope) -> Result<Explored, Counterexample> {
    let start = Instant::now();
    let outcome = explore(scope);
    let seconds = start.elapsed().as_secs_f32();
    match &outcome {
        Ok(Explored { states, steps, complete }) => {
            println!("{states} states, {steps} steps, {complete} complete, {seconds:.1} s: {scope:?}");
        }
        Err(counterexample) => println!("{seconds:.1} s: {scope:?}\n{counterexample}"),
    }
    outcome
}

fn holds(scope: &Scope, states_min: u64) {
    let explored = run(scope).unwrap_or_else(|found| panic!("{found}"));
    assert!(explored.states >= states_min, "the explorer no longer explores: {explored:?}");
}

#[test]
fn two_workers_two_slots_three_chunks() {
    holds(&SCOPE, 5_000_000);
}

/// Each copy of the one slot is used twice.
#[test]
fn two_workers_one_slot_four_chunks() {
    holds(&Scope { slots: 1, blocks: 4, early_timeouts: 2, ..SCOPE }, 50_000);
}

/// The first use of each slot only announces the exponent.
#[test]
fn two_workers_two_slots_three_scaled_blocks() {
    holds(&Scope { scaled: true, losses: 1, duplicates: 1, early_timeouts: 1, ..SCOPE }, 100_000);
}

#[test]
fn three_workers_one_slot_three_chunks() {
    holds(&Scope { workers: 3, slots: 1, losses: 1, duplicates: 2, early_timeouts: 1, ..SCOPE }, 50_000);
}

#[test]
fn one_worker_two_slots_three_chunks() {
    holds(&Scope { workers: 1, duplicates: 1, early_timeouts: 1, ..SCOPE }, 1_000);
}

/// Whoever is left completes, or waits for the one that has ended, whom the switch names.
#[test]
fn a_worker_that_ends_at_any_moment_is_named() {
    let scope = Scope { death: true, losses: 1, duplicates: 1, ..SCOPE };
    holds(&scope, 50_000);
    holds(&Scope { scaled: true, duplicates: 0, ..scope }, 25_000);
    holds(&Scope { workers: 3, slots: 1, duplicates: 0, blocks: 2, ..scope }, 10_000);
}

/// Algorithm 3 and 4 as published, on links that keep order.
#[test]
fn p4app_in_order() {
    let scope = Scope { in_order: true, wire_format: WireFormat::P4app, early_timeouts: 2, ..SCOPE };
    holds(&Scope { losses: 1, ..scope }, 10_000);
    holds(&Scope { slots: 1, blocks: 4, ..scope }, 10_000);
}

/// The hole of Algorithm 3: one bit cannot tell a chunk from the one that
/// used the same copy two uses earlier. One duplicate held back is enough.
#[test]
fn p4app_sums_a_packet_that_was_held_back_twice_and_fanin_does_not() {
    let p4app = Scope { slots: 1, losses: 0, duplicates: 1, wire_format: WireFormat::P4app, ..SCOPE };
    let found = run(&p4app).expect_err("the hole of Algorithm 3 is not found");
    assert!(found.what.contains("counted twice") || found.what.contains("WRONG SUM"), "{found}");
    holds(&Scope { wire_format: WireFormat::Fanin, ..p4app }, 100);
}
