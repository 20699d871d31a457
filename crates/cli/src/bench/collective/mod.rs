//! Benchmarks of all-reduce: one file per subcommand, and what they share.
//!
//! An [`Experiment`] is a fleet, some jobs of fanin and some tensors; its
//! rounds give every job and every baseline its turn, because a machine's
//! speed drifts by more than most changes gain.

pub mod allreduce;
mod case;
mod experiment;
pub mod flags;
pub mod goodput;
pub mod loss;
pub mod net;
pub mod pool;
pub mod report;
pub mod scale;
pub mod small;
mod wire;
