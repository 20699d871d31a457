//! Clusters in which a generator chooses every step. The fuzz target
//! `operations` runs the same interpreter.
#![cfg(not(feature = "canary"))]

use fanin_harness::operations::{Script, run};

#[test]
fn no_checker_fails_on_3000_scripts() {
    for seed in 0..3_000 {
        if let Err(what) = run(&Script::from_seed(seed)) {
            panic!("script {seed}: {what}");
        }
    }
}
