//! Thousands of simulated PANAMA clusters, each from its own seed.
#![cfg(not(any(feature = "canary", feature = "canary-second")))]

use fanin_harness::panama::Summary;

#[test]
fn no_checker_fails_on_2000_seeds() {
    let total = fanin_harness::panama::run(0..2_000).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{total:?}");
    assert!(total.completed > 50_000, "the scenarios hardly do anything: {total:?}");
    let Summary { finished, resends, repeats, cuts, lost, full, paused, in_part, left_out, deaths, busy, .. } = total;
    let rare = [finished, resends, repeats, cuts, lost, full, paused, in_part, left_out, deaths, busy];
    assert!(rare.iter().all(|&count| count > 100), "something hardly ever happens: {total:?}");
    assert!(total.trees > 4_000, "the controller hardly ever finds several trees: {total:?}");
}
