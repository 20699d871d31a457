//! ATP: slots taken as fragments arrive, best effort, with a parameter server that makes whole what switches could not
//! (ATP §3). The contract is `spec/ATP.md`.
//!
//! [`Switch`] is the program of each switch on the way, [`Worker`] and [`Server`] are the endpoints of one lane.

mod index;
mod missing;
mod probe;
mod scale;
mod server;
mod switch;
mod tree;
mod worker;

pub use index::{Indexing, rehash};
pub use missing::Missing;
pub use probe::{answers_probe, write_probe};
pub use scale::Scale;
pub use server::{OVERFLOW_OFTEN, Server, ServerConfig, ServerCounters, Stragglers, Transmit, refuse_stray};
pub use switch::{
    Admitted, Context, InstallError, JobConfig, Switch, SwitchConfig, SwitchCounters, Verdict, without_payload,
};
pub use tree::{Tree, TreeError, Way};
pub use worker::{CongestionControl, Event, SetUp, Tensors, Worker, WorkerConfig, WorkerCounters};
