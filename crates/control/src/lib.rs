//! The control plane of fanin: messages, admission of jobs to slots, and the client that workers use.
//!
//! * [`registry::Registry`] decides who gets which slots. It has no clock and no I/O: the switch daemon feeds it
//!   requests with the present time and carries out the [`registry::Effect`]s it asks for.
//! * [`client::Client`] (async) and [`client::ControlClient`] (blocking) are the worker's side.
//! * [`ControlError`] is the one error of both, and travels over gRPC without loss.
#![forbid(unsafe_code)]

/// Messages and stubs generated from `proto/fanin/control/v1/controller.proto`, which documents them.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    tonic::include_proto!("fanin.control.v1");
}

pub mod client;
mod error;
pub mod registry;
pub mod tenants;
pub mod topology;

pub use error::ControlError;
pub use proto::{Algorithm, ErrorCode, WireFormat};

/// Version of the control messages that this build speaks, see `JoinRequest.protocol_version`.
pub const PROTOCOL_VERSION: u32 = 2;
