//! Every packet of a whole network, on every link and in every queue, in simulated time.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`fabric`] | hosts, switches, cables; shapes by name; shortest paths |
//! | [`link`] | one direction of a link with the queue before it: rate, delay, ECN, pause |
//! | [`host`] | flows of a host, sent and received: DCTCP, NewReno |
//! | [`workload`] | what hosts send, from seeded streams |
//! | [`engine`] | windows of time, threads |
//! | [`scenario`] | all of it from one TOML file |
//! | [`report`] | flow completion times and what the links went through |
//!
//! Times are integer picoseconds (`_ps`), lengths bytes, rates bits per second. A scenario and its seed decide every bit of what comes out,
//! on every machine and with any number of threads.
#![forbid(unsafe_code)]

pub mod datagrams;
pub mod engine;
pub mod fabric;
pub mod host;
pub mod job;
pub mod link;
pub mod packet;
pub mod report;
pub mod scenario;
pub mod transport;
pub mod workload;
