//! The controller: the registry, driven by gRPC calls, time and the data plane.

mod core;
mod installer;
mod join;
mod racks;
mod relay;
mod relays;
mod servers;
mod service;
mod status;
mod stream;
mod tensors;

pub(crate) use core::{Core, Settings};
pub(crate) use service::Service;
