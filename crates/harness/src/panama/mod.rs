//! PANAMA clusters from seeds: several jobs with trees from the controller on one fabric, under virtual time.
//!
//! Contributions are digits of base 4, a place for each rank, so that a sum shows who is in it and how often. The checkers
//! look at every sum that a worker takes, at windows and buffers after every step, and at the end: whoever can finish has, and no
//! switch holds anything any more.

mod cluster;
pub mod exhaustive;
mod memory;
mod plan;

use std::ops::Range;

use fanin_protocol::time::Time;

pub use cluster::{Cluster, Summary};
pub use plan::{JobPlan, Scenario};

/// A rule that did not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The scenario's seed.
    pub seed: u64,
    /// When.
    pub at: Time,
    /// Which rule, and how.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { seed, at, what } = self;
        let at = at.as_ns();
        let replay = "cargo run -p fanin-harness --bin swarm -- --panama --seed";
        write!(f, "seed {seed} at {at} ns: {what}\nreplay: {replay} {seed}")
    }
}

/// Runs the scenario of a seed to its end.
///
/// # Errors
/// The first violation of a checker.
pub fn run_seed(seed: u64, print: bool) -> Result<Summary, Violation> {
    Cluster::new(Scenario::from_seed(seed), print).run()
}

/// Runs all seeds of a range, on all processors; the sum of what they came to.
///
/// # Errors
/// The violation of the smallest seed among those that failed before the threads stopped.
pub fn run(seeds: Range<u64>) -> Result<Summary, Violation> {
    let panicked = |seed| Violation { seed, at: Time::ZERO, what: "panicked; see above".into() };
    crate::seeds::run(seeds, |seed| run_seed(seed, false), panicked)
}
