//! SwitchML over several racks: scripts in which a generator chooses every step, and small trees in every interleaving.
#![cfg(not(any(feature = "canary", feature = "canary-second")))]

use std::time::Instant;

use fanin_harness::operations::Script;
use fanin_harness::racks::exhaustive::{Scope, explore};
use fanin_harness::racks::run;

#[test]
fn no_checker_fails_on_3000_scripts() {
    for seed in 0..3_000 {
        if let Err(what) = run(&Script::from_seed(seed)) {
            panic!("script {seed}: {what}");
        }
    }
}

fn holds(scope: &Scope, states_min: u64) {
    let start = Instant::now();
    let explored = explore(scope).unwrap_or_else(|found| panic!("{found}"));
    println!("{explored:?} in {:.1} s: {scope:?}", start.elapsed().as_secs_f32());
    assert!(explored.states >= states_min, "the explorer no longer explores: {explored:?}");
}

fn two_racks() -> Scope {
    Scope {
        groups: vec![vec![1], vec![1]],
        slots: 1,
        blocks: 3,
        scaled: false,
        losses: 1,
        duplicates: 1,
        early_timeouts: 0,
    }
}

/// Each slot copy is used again while the other rack may be behind.
#[test]
fn two_racks_of_one_worker() {
    holds(&two_racks(), 1_000);
}

#[test]
fn one_rack_of_two_workers() {
    holds(&Scope { groups: vec![vec![2]], ..two_racks() }, 1_000);
}

/// The exponents of all racks are agreed on before anybody scales.
#[test]
fn two_racks_announce() {
    holds(&Scope { scaled: true, blocks: 2, ..two_racks() }, 1_000);
}

/// A group of two racks of one worker, below a root: three levels.
#[test]
fn three_levels() {
    holds(&Scope { groups: vec![vec![1, 1]], blocks: 1, ..two_racks() }, 1_000);
}

/// Below the root a rack, and a worker without one.
#[test]
fn a_worker_beside_the_root() {
    holds(&Scope { groups: vec![vec![1], vec![0]], ..two_racks() }, 1_000);
}
