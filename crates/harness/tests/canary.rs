//! `cargo test -p fanin-harness --features canary --test canary`: with the
//! deliberate bug in the switch program, which forgets some workers' bit,
//! each checker must fail. A checker that passes here checks nothing.
// Compiled without the bug as well, so that the lints see what has changed beside it; only with it are these tests.
#![cfg_attr(not(feature = "canary"), allow(dead_code, unused_imports, reason = "tests with the bug only"))]

use fanin_harness::exhaustive::{Scope, explore};
use fanin_harness::operations::{self, Script};
use fanin_harness::swarm;
use fanin_harness::vectors::atp::AtpProgramTarget;
use fanin_harness::vectors::{ProgramTarget, suite};
use fanin_harness::{atp, panama, racks};
use fanin_protocol::switchml::WireFormat;

fn is_double_count(what: &str) -> bool {
    ["WRONG SUM", "counted as use", "counted twice", "had an effect"].iter().any(|sign| what.contains(sign))
}

#[cfg_attr(feature = "canary", test)]
fn the_swarm_finds_the_canary() {
    let violation = swarm::run(0..2_000).expect_err("2000 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(is_double_count(&violation.what), "{violation}");
    assert!(violation.to_string().contains(&format!("--seed {} --trace", violation.seed)));
    assert!(fanin_harness::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[cfg_attr(feature = "canary", test)]
fn the_exhaustive_search_finds_the_canary() {
    let scope = Scope {
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
    let found = explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(is_double_count(&found.what), "{found}");
    assert!(found.path.len() < 12, "a shortest way was expected: {found}");
}

#[cfg_attr(feature = "canary", test)]
fn the_operations_find_the_canary() {
    let found = (0..3_000).find_map(|seed| operations::run(&Script::from_seed(seed)).err());
    let what = found.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    assert!(is_double_count(&what), "{what}");
}

#[cfg_attr(feature = "canary", test)]
fn the_swarm_of_atp_finds_its_canary() {
    let violation = atp::run(0..500).expect_err("500 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(violation.what.contains("element"), "a wrong sum was expected: {violation}");
    assert!(atp::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[cfg_attr(feature = "canary", test)]
fn the_racks_find_the_canary() {
    let what = (0..3_000).find_map(|seed| racks::run(&Script::from_seed(seed)).err());
    let what = what.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    // A slot that one rank has filled twice goes on without the others, who then wait for it.
    let signs = ["WRONG SUM", "exponent", "refuses", "no progress"];
    assert!(signs.iter().any(|sign| what.contains(sign)), "{what}");
}

#[cfg_attr(feature = "canary", test)]
fn the_operations_of_atp_find_its_canary() {
    let found = (0..3_000).find_map(|seed| atp::operations::run(&atp::operations::Script::from_seed(seed)).err());
    let what = found.expect("3000 scripts passed in spite of the canary");
    println!("{what}");
    assert!(what.contains("element"), "{what}");
}

#[cfg_attr(feature = "canary", test)]
fn the_vectors_find_the_canaries() {
    suite::replay_all(|_| true, ProgramTarget::default).assert_all_passed();
    suite::replay_all_atp(&[], AtpProgramTarget::default).assert_all_passed();
}

/// PANAMA's: a switch forgets a Result for all as soon as one child has it.
#[cfg_attr(feature = "canary", test)]
fn the_swarm_of_panama_finds_its_canary() {
    let violation = panama::run(0..500).expect_err("500 seeds passed in spite of the canary");
    println!("{violation}");
    assert!(panama::run_seed(violation.seed, false).is_err(), "the seed does not replay");
}

#[cfg_attr(feature = "canary", test)]
fn the_exhaustive_search_of_panama_finds_its_canary() {
    let found = panama::exhaustive::explore(&panama_scope()).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.path.len() < 24, "a shortest way was expected: {found}");
}

fn panama_scope() -> panama::exhaustive::Scope {
    panama::exhaustive::Scope {
        racks: vec![2],
        trees: 1,
        blocks: 2,
        window: 1,
        memory_packets: 100,
        share_percent: 100,
        losses: 1,
        duplicates: 0,
        early_timeouts: 0,
    }
}

#[cfg_attr(feature = "canary", test)]
fn the_exhaustive_search_of_atp_finds_its_canary() {
    let scope = atp::exhaustive::Scope { duplicates: 1, ..atp::exhaustive::Scope::least() };
    let found = atp::exhaustive::explore(&scope).expect_err("no interleaving fails in spite of the canary");
    println!("{found}");
    assert!(found.what.contains("WRONG SUM"), "{found}");
    assert!(found.path.len() < 12, "a shortest way was expected: {found}");
}
