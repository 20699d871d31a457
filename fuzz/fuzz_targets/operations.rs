//! Scripts of operations on a cluster: no panic, no broken rule, no
//! standstill.
#![no_main]

use fanin_harness::operations::{self, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| {
    if let Err(what) = operations::run(&script) {
        panic!("{what}");
    }
});
