//! Scripts of operations on SwitchML over several racks: no panic, no broken rule, no standstill.
#![no_main]

use fanin_harness::operations::Script;
use fanin_harness::racks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| {
    if let Err(what) = racks::run(&script) {
        panic!("{what}");
    }
});
