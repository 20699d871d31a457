//! `cargo test -p fanin-harness --features canary-second --test canary_second`: with the second deliberate bugs, each checker
//! must fail. ATP's server adds what overlaps its sum; SwitchML's leaf takes its children's sum for everybody's; PANAMA's
//! switch takes a duplicate for what another port has to send.
// Compiled without the bug as well, so that the lints see what has changed beside it; only with it are these tests.
#![cfg_attr(not(feature = "canary-second"), allow(dead_code, unused_imports, reason = "tests with the bug only"))]

use fanin_harness::atp::operations::{self, Script};
use fanin_harness::{atp, panama, racks};

#[cfg_attr(feature = "canary-second", test)]
fn the_swarm_finds_atps_server() {
    let violation = atp::run(0..500).expect_err("500 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(violation.what.contains("element"), "a wrong sum was expected: {violation}");
    assert!(atp::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_exhaustive_search_finds_atps_server() {
    let scope =
        atp::exhaustive::Scope { losses: 1, duplicates: 1, early_timeouts: 1, ..atp::exhaustive::Scope::least() };
    let found = atp::exhaustive::explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.what.contains("WRONG SUM"), "{found}");
    assert!(found.path.len() < 16, "a shortest way was expected: {found}");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_operations_find_atps_server() {
    let found = (0..3_000).find_map(|seed| operations::run(&Script::from_seed(seed)).err());
    let what = found.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    assert!(what.contains("element"), "{what}");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_scripts_find_the_leaf() {
    let scripts = (0..3_000).map(fanin_harness::operations::Script::from_seed);
    let what = scripts.filter_map(|script| racks::run(&script).err()).next();
    let what = what.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    let signs = ["WRONG SUM", "exponent", "refuses"];
    assert!(signs.iter().any(|sign| what.contains(sign)), "{what}");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_exhaustive_search_finds_the_leaf() {
    let scope = racks::exhaustive::Scope {
        groups: vec![vec![1], vec![1]],
        slots: 1,
        blocks: 1,
        scaled: false,
        losses: 0,
        duplicates: 1,
        early_timeouts: 0,
    };
    let found = racks::exhaustive::explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.what.contains("WRONG SUM"), "{found}");
    assert!(found.path.len() < 8, "a shortest way was expected: {found}");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_swarm_finds_panamas_switch() {
    let violation = panama::run(0..500).expect_err("500 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(panama::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[cfg_attr(feature = "canary-second", test)]
fn the_exhaustive_search_finds_panamas_switch() {
    let scope = panama::exhaustive::Scope {
        racks: vec![2],
        trees: 1,
        blocks: 1,
        window: 1,
        memory_packets: 100,
        share_percent: 100,
        losses: 0,
        duplicates: 1,
        early_timeouts: 0,
    };
    let found = panama::exhaustive::explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.what.contains("WRONG SUM"), "{found}");
    assert!(found.path.len() < 12, "a shortest way was expected: {found}");
}
