//! `cargo test -p fanin-harness --features canary-server --test canary_server`: with the deliberate bug in ATP's server, which
//! adds what overlaps its sum, each checker must fail.
#![cfg(feature = "canary-server")]

use fanin_harness::atp;
use fanin_harness::atp::operations::{self, Script};
use fanin_protocol::atp::Tree;

#[test]
fn the_swarm_finds_it() {
    let violation = atp::run(0..500).expect_err("500 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(violation.what.contains("element"), "a wrong sum was expected: {violation}");
    assert!(atp::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[test]
fn the_exhaustive_search_finds_it() {
    let scope = atp::exhaustive::Scope {
        tree: Tree::one_switch(2).expect("a tree"),
        jobs: 1,
        slots: 1,
        chunks: 1,
        window_max: 1,
        losses: 1,
        duplicates: 1,
        early_timeouts: 1,
        restarts: 0,
    };
    let found = atp::exhaustive::explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.what.contains("WRONG SUM"), "{found}");
    assert!(found.path.len() < 16, "a shortest way was expected: {found}");
}

#[test]
fn the_operations_find_it() {
    let found = (0..3_000).find_map(|seed| operations::run(&Script::from_seed(seed)).err());
    let what = found.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    assert!(what.contains("element"), "{what}");
}
