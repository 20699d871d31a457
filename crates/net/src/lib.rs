//! The UDP driver shared by worker lanes and the switch's data-plane threads.
//!
//! This crate moves datagrams and nothing else: it never looks inside one and takes no protocol
//! decision. What it adds over a plain socket is the one lever that matters for sockets on Linux,
//! segmentation offload: many equal-sized datagrams cross the kernel as one *super-packet*
//! (`UDP_SEGMENT` out, `UDP_GRO` in), and each is still a datagram of its own on the wire.
//!
//! One [`UdpPort`] belongs to one thread. The usual loop of that thread:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use fanin_net::{Options, ReceiveBatch, SendBatch, SlotError, UdpPort, Waker};
//! # fn main() -> Result<(), fanin_net::NetError> {
//! # let peer = "127.0.0.1:4000".parse().expect("a literal address");
//! let mut port = UdpPort::bind("127.0.0.1:0".parse().expect("a literal address"), &Options::default())?;
//! let waker = Waker::new()?;                    // clones of it wake this thread from any other
//! let mut received = ReceiveBatch::new();
//! let mut batch = SendBatch::new();
//! loop {
//!     while port.receive(&mut received)? > 0 {
//!         for (datagram, _source) in received.iter_mut() {
//!             datagram[0] ^= 1;                 // datagrams may be edited in place
//!             if batch.push(datagram) == Err(SlotError::Full) {
//!                 port.send(&batch, peer)?;     // hand over what there is, begin again
//!                 batch.clear();
//!                 let _ = batch.push(datagram); // an empty datagram is not worth an answer
//!             }
//!         }
//!     }
//!     port.send(&batch, peer)?;                 // the same batch may go to several peers
//!     batch.clear();
//!     while let Some(event) = port.poll_event() {
//!         eprintln!("{event}");
//!     }
//!     port.wait(&waker, Some(Duration::from_micros(500)), Duration::from_micros(20))?;
//! }
//! # }
//! ```
//!
//! Losses can be injected per datagram and per direction from a seed ([`Loss`], [`Blackhole`]), because
//! a drop anywhere in the kernel would take a whole super-packet at once.

#![deny(unsafe_code)]

mod batch;
mod counters;
mod device;
mod error;
mod loss;
mod options;
mod plan;
mod port;
mod receive;
mod send;
#[allow(unsafe_code)]
mod sys;
mod trouble;
mod wait;

pub use batch::{SendBatch, SlotError};
pub use counters::Counters;
pub use device::{Interface, interfaces, set_receive_offload};
pub use error::{NetError, PortEvent};
pub use loss::{Blackhole, Loss};
pub use options::Options;
pub use port::{BufferSizes, Sent, UdpPort, max_payload};
pub use receive::{IterMut, ReceiveBatch};
pub use wait::{Patience, Ready, Waker, wait_any};

/// Longest UDP payload of any datagram, bytes: an IPv4 packet of 65,535 bytes less 20 + 8 of headers.
/// IPv6 would allow 20 more; one limit for both keeps slot sizes the same on either family.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
