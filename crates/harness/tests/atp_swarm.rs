//! Thousands of simulated ATP clusters, each from its own seed.

#[cfg(not(feature = "canary"))]
use fanin_harness::atp::Summary;

#[test]
#[cfg(not(feature = "canary"))]
fn no_checker_fails_on_2000_seeds() {
    let total = fanin_harness::atp::run(0..2_000).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{total:?}");
    assert!(total.completed > 10_000, "the scenarios hardly do anything: {total:?}");
    let Summary { whole, saturated, scaled, collisions, remapped, abandoned, cuts, lost, .. } = total;
    let rare = [whole, saturated, scaled, collisions, remapped, abandoned, cuts, lost];
    let without = [total.set_up_again, total.replaced, total.in_part, total.declared, total.sources_lost];
    assert!(rare.iter().chain(&without).all(|&count| count > 100), "something hardly ever happens: {total:?}");
}
