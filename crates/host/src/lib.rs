//! The worker's side of fanin: collectives on plain memory, summed in a
//! switch.
//!
//! A [`Session`] is one process group's place on a switch. It has one or more
//! *lanes*, threads with a socket and slots each; a collective is cut into
//! blocks, the blocks are spread over the lanes, and a [`Ticket`] tells when
//! all sums have come back. Several threads may submit; every rank must
//! submit the same collectives in the same order.
//!
//! ```no_run
//! use fanin_host::{ReduceOp, Session, SessionConfig};
//!
//! let session = Session::connect(SessionConfig {
//!     controller: "10.0.0.1:50099".into(),
//!     job_name: "example".into(),
//!     run_id: "2026-11-20-a".into(),
//!     rank: 0,
//!     world_size: 4,
//!     ..SessionConfig::default()
//! })?;
//! let mut gradients = vec![0.5f32; 1 << 20];
//! session.all_reduce(&mut gradients, ReduceOp::Average)?;
//! # Ok::<(), fanin_host::Error>(())
//! ```
//!
//! [`Session::submit`] is the asynchronous form on raw memory, for bindings.
#![deny(unsafe_code)]

mod boundary;
mod buffer;
mod chunker;
mod config;
mod crew;
mod element;
mod endpoint;
mod error;
mod explain;
mod lane;
mod local;
mod memory;
mod opening;
mod path;
mod place;
mod request;
mod session;
mod stats;
mod tensors;
mod ticket;
mod watcher;

pub use buffer::Buffer;
pub use config::{Algorithm, ElementFormat, OnPeerLoss, SessionConfig, Transport, WireFormat, slots_for_link};
pub use element::Element;
pub use error::{Error, ErrorKind};
pub use fanin_control::registry::StragglerPolicy;
pub use fanin_net::Blackhole;
pub use fanin_protocol::atp::Scale;
pub use fanin_shm::Leave;
pub use fanin_wire::Accumulator;
pub use request::{CollectiveKind, DataType, ReduceOp, Request};
pub use session::Session;
pub use stats::{CollectiveStats, Stats};
pub use tensors::AccumulatorCounts;
pub use ticket::{MissingRanks, Outcome, Ticket};
