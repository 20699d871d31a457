//! Everything in fanin that decides something about a packet, as plain values.
//!
//! No sockets, clocks, threads, globals or randomness: the same code runs in
//! the daemon, in the simulator, under the exhaustive checker and under the
//! fuzzer. Callers pass [`Time`](time::Time) in and carry packets about.
//!
//! * [`switchml::Switch`] is the switch program: one packet in, one
//!   [`Verdict`] out.
//! * [`switchml::Worker`] is the endpoint of one lane: `submit`,
//!   `handle_packet`, `handle_timeout`, `poll_transmit`, `poll_timeout`,
//!   `poll_event`.
//! * [`atp`] has the same two, and the parameter server as a third value.
//! * [`panama`] has the same two, and the controller's choice of aggregation trees.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod atp;
mod float_pool;
pub mod generated;
pub mod panama;
mod resend_timer;
pub mod stream;
pub mod switchml;
pub mod tensor_counts;
pub mod time;
mod verdict;

pub use generated::DropReason;
pub use verdict::Verdict;

impl From<fanin_wire::ParseError> for DropReason {
    fn from(error: fanin_wire::ParseError) -> DropReason {
        use fanin_wire::ParseError;
        match error {
            ParseError::Truncated => DropReason::Truncated,
            ParseError::BadMagic => DropReason::BadMagic,
            ParseError::BadVersion => DropReason::BadVersion,
            ParseError::BadKind => DropReason::BadKind,
            ParseError::BadLength => DropReason::BadLength,
            ParseError::BadElementFormat => DropReason::BadElementFormat,
            ParseError::BadOperator => DropReason::BadOperator,
            ParseError::BadChecksum => DropReason::BadChecksum,
        }
    }
}
