//! Thousands of simulated ATP clusters, each from its own seed.

#[test]
#[cfg(not(feature = "canary"))]
fn no_checker_fails_on_2000_seeds() {
    let total = fanin_harness::atp::run(0..2_000).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{total:?}");
    assert!(total.completed > 10_000, "the scenarios hardly do anything: {total:?}");
    let rare =
        [total.whole, total.saturated, total.collisions, total.remapped, total.abandoned, total.cuts, total.lost];
    assert!(rare.iter().all(|&count| count > 100), "something hardly ever happens: {total:?}");
}
