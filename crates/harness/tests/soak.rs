//! Ever new seeds for as long as FANIN_SOAK_SECONDS says:
//! `make soak`, or `cargo test --release -p fanin-harness --test soak -- --ignored --nocapture`.
#![cfg(not(feature = "canary"))]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fanin_harness::operations::{self, Script};
use fanin_harness::swarm;
use fanin_harness::{atp, racks};

const SEEDS_AT_ONCE: u64 = 2_000;
const ATP_SEEDS_AT_ONCE: u64 = 500;
const SCRIPTS_AT_ONCE: u64 = 500;

#[test]
#[ignore = "runs for minutes: make soak"]
fn no_checker_fails_on_ever_new_seeds() {
    let seconds = std::env::var("FANIN_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let end = Instant::now() + Duration::from_secs(seconds);
    // Another stretch of seeds each time; a failure names its seed.
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()) << 20;
    let first = seed;
    while Instant::now() < end {
        swarm::run(seed..seed + SEEDS_AT_ONCE).unwrap_or_else(|violation| panic!("{violation}"));
        atp::run(seed..seed + ATP_SEEDS_AT_ONCE).unwrap_or_else(|violation| panic!("{violation}"));
        for script in seed..seed + SCRIPTS_AT_ONCE {
            operations::run(&Script::from_seed(script)).unwrap_or_else(|what| panic!("script {script}: {what}"));
            racks::run(&Script::from_seed(script)).unwrap_or_else(|what| panic!("racks, script {script}: {what}"));
            let of_atp = atp::operations::Script::from_seed(script);
            atp::operations::run(&of_atp).unwrap_or_else(|what| panic!("ATP script {script}: {what}"));
        }
        seed += SEEDS_AT_ONCE;
    }
    println!("{} clusters from seed {first} on, and a quarter as many scripts", seed - first);
}
