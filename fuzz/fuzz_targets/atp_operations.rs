//! Scripts of operations on an ATP cluster: no panic, no broken rule, no standstill.
#![no_main]

use fanin_harness::atp::operations::{self, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| {
    if let Err(what) = operations::run(&script) {
        panic!("{what}");
    }
});
