//! Collectives among the ranks of one host through shared memory, without a switch.
//!
//! This crate carries bytes and sums them. It knows nothing of sessions, controllers and packets; where a job has several
//! hosts, an [`Uplink`] takes each window's local result to the others and brings the outcome back.
//!
//! Data takes one of two ways, chosen per collective and equally by all ranks:
//!
//! * **staged**, for any memory: a pipeline of windows through a ring in shared memory. Each rank copies its input into its
//!   stage; each rank reduces its part of the window from all stages, or all of it for itself if the vector is short; each
//!   rank copies the result to its output.
//! * **direct**, if the inputs and outputs of all ranks are registered ([`Group::allocate`]), the vector has 128 KiB or more
//!   and there is no uplink: each rank reads its part of all inputs and writes it to all outputs, where they are, in one
//!   pass.
//!
//! Sums are made in rank order and rounded once, so all ranks receive the same bytes, whichever way was taken.
//!
//! Nothing has a name in a file system: a killed job leaves nothing behind.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fanin_numeric::sum::{Element, Operation};
//! use fanin_shm::{Call, Config, Group};
//!
//! # fn main() -> Result<(), fanin_shm::Error> {
//! let mut group = Group::form(&Config::new(format!("job-{}", std::process::id()), 0, 1))?;
//! let mut tensor = [1.0f32, 2.0, 3.0];
//! let bytes = size_of_val(&tensor);
//! let call = Call {
//!     sequence: 0,
//!     tag: 0,
//!     description: "all_reduce of 3 float32".to_owned(),
//!     operation: Operation::Sum,
//!     element: Element::Float32,
//!     divisor: 1.0,
//!     bytes,
//!     contributes: 0..bytes,
//!     receives: 0..bytes,
//!     input: tensor.as_ptr().cast(),
//!     output: tensor.as_mut_ptr().cast(),
//!     windows_done: Arc::default(),
//! };
//! // SAFETY: the tensor lives on this stack frame and nobody else touches it.
//! unsafe { group.run(&call, None)? };
//! assert_eq!(tensor, [1.0, 2.0, 3.0]); // the sum of one rank
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod call;
mod config;
#[allow(unsafe_code)]
mod engine;
mod error;
mod form;
#[allow(unsafe_code)]
mod group;
mod plan;
mod progress;
mod region;
#[allow(unsafe_code)]
mod shared;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
mod uplink;
mod wait;

pub use call::Call;
pub use config::{Config, LOCAL_SIZE_MAX};
pub use error::Error;
pub use group::{Aborter, Group};
pub use region::Region;
pub use uplink::{Uplink, WindowDone};
pub use wait::Leave;
