//! Conformance vectors of ATP: what its switches and its server answer to which packets.
//!
//! The files in `spec/vectors/atp` share the words and the rules of the others; a step also says which node the packet
//! comes to. [`replay`] plays a file to an [`AtpTarget`].

mod check;
mod format;
mod header;
mod program;

use std::path::Path;

use fanin_protocol::DropReason;
use fanin_protocol::atp::Tree;

use super::{Mismatch, load_texts};

pub use format::{Expect, JobSpec, Send, Step, SwitchSpec, Vector, VerdictName};
pub use header::level_of;
pub use program::{AtpProgramTarget, verdict_of_server};

/// Where a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// The switch of the rack with this number.
    Rack(u8),
    /// The switch beside the server; the only one where there are no racks.
    Root,
    /// The parameter server of the packet's job and lane.
    Server,
}

/// Where a datagram goes to from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receiver {
    /// From a switch towards the server.
    Up,
    /// From the server to its switch.
    Switch,
    /// Back to whom the packet came from.
    Sender,
    /// From a switch to one of its children.
    Child(u8),
}

/// What a node knows of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Where it arrives.
    pub node: Node,
    /// Position among the jobs that the vector has installed.
    pub job: usize,
    /// The sender's lane.
    pub lane: u16,
    /// When, in nanoseconds from any zero.
    pub now_ns: u64,
    /// Bytes that wait where the packet will leave.
    pub queue_bytes: u32,
}

/// What a node did with one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The target's own account of it.
    pub verdict: VerdictName,
    /// Why the packet was not counted, where it was not.
    pub reason: Option<DropReason>,
    /// All that left the node.
    pub answers: Vec<(Receiver, Vec<u8>)>,
}

/// Switches and servers that vectors are played to. Errors are the target's own, in words.
pub trait AtpTarget {
    /// Sets up the switches, before anything else.
    ///
    /// # Errors
    /// The target cannot have such switches.
    fn set_up(&mut self, switches: &SwitchSpec) -> Result<(), String>;

    /// Takes a job into service at the switches of `tree`, and starts its servers.
    ///
    /// # Errors
    /// The target cannot serve the job.
    fn install(&mut self, job: &JobSpec, tree: &Tree) -> Result<(), String>;

    /// Ends a job.
    ///
    /// # Errors
    /// There is no such job.
    fn remove(&mut self, job_id: u32) -> Result<(), String>;

    /// Hands over one packet and collects all that comes of it.
    ///
    /// # Errors
    /// The target did not take the packet.
    fn exchange(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String>;
}

/// Plays a vector to a target that has nothing yet. Returns the number of packets sent.
///
/// # Errors
/// The first difference.
pub fn replay(file: &str, vector: &Vector, target: &mut dyn AtpTarget) -> Result<usize, Mismatch> {
    check::replay(file, vector, target)
}

/// All vectors of a folder, by file name.
///
/// # Errors
/// A file cannot be read, or is not a vector; the text names the file.
pub fn load_folder(folder: &Path) -> Result<Vec<(String, Vector)>, String> {
    load_texts(folder, Vector::parse)
}
