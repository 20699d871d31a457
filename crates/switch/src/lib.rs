//! The software switch: data-plane threads, embedded controller, `/metrics` and the dashboard.
//!
//! [`Daemon::start`] takes a [`Config`] and a [`dataplane_api::Dataplane`] (in production
//! [`dataplane::UdpDataplane`]) and serves gRPC and HTTP until its [`Handle`] is stopped.
#![forbid(unsafe_code)]

pub mod config;
mod controller;
mod daemon;
pub mod dataplane;
pub mod dataplane_api;
mod http;

pub use config::Config;
pub use daemon::{Daemon, DrainOutcome, Handle, StartError, start_dataplane};
