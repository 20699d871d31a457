//! Everything that checks fanin's protocols as wholes.
//!
//! * [`cluster`] runs whole clusters — workers, links, one switch program,
//!   virtual time — from a seed and checks every step (`--bin swarm`).
//! * [`atp`] does the same for ATP, with trees of switches and servers (`--bin swarm -- --atp`).
//! * [`panama`] likewise, with trees from its controller (`--bin swarm -- --panama`).
//! * [`exhaustive`] tries every interleaving of clusters that are small enough.
//! * [`racks`] has SwitchML's jobs on trees of switches, by scripts and by exhaustion.
//! * [`operations`] lets a fuzzer choose each step of a cluster.
#![forbid(unsafe_code)]

pub mod atp;
mod bounds;
pub mod cluster;
pub mod collective;
pub mod exhaustive;
pub mod job;
pub mod memory;
pub mod operations;
pub mod oracle;
pub mod panama;
pub mod racks;
mod raw_floats;
pub mod scenario;
mod seeds;
pub mod swarm;
pub mod vectors;

pub use cluster::{Cluster, Summary, Violation};
pub use scenario::Scenario;

/// Runs the scenario of a seed to its end.
///
/// # Errors
/// The first violation of a checker.
pub fn run_seed(seed: u64, print: bool) -> Result<Summary, Violation> {
    Cluster::new(Scenario::from_seed(seed), print).run()
}
