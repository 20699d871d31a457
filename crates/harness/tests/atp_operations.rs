//! ATP clusters in which a generator chooses every step. The fuzz target `atp_operations` runs the same interpreter.
#![cfg(not(any(feature = "canary", feature = "canary-second")))]

use fanin_harness::atp::operations::{Script, run};

#[test]
fn no_checker_fails_on_1500_scripts() {
    for seed in 0..1_500 {
        if let Err(what) = run(&Script::from_seed(seed)) {
            panic!("script {seed}: {what}");
        }
    }
}
