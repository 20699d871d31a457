//! The SwitchML program in the kernel, seen from user space: [`KernelSwitch`] loads the XDP program of the folder `xdp`,
//! gives jobs their slots in its maps, and reads counters and slots back.
//!
//! The program decides about every packet of the jobs that were installed here. It passes all others up to the sockets
//! behind it, and those Aggregates that it completes but cannot send itself: see [`Carrier`].

mod allotment;
mod checksum;
mod error;
mod kernel;
mod snapshot;
mod state;
mod sys;
mod traffic;

pub use error::{InstallError, XdpError};
pub use kernel::{Action, Carrier, Completed, KernelSwitch, SLOT_BYTES, Settings};
pub use state::Counters;
pub use traffic::{Empty, EmptyProgram, Stream, Traffic};

/// Whether this build contains the program: it does where clang was there when it was made.
pub const HAS_PROGRAM: bool = cfg!(has_program);
