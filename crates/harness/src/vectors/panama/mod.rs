//! Conformance vectors of PANAMA: what an accelerator makes of which packets, and what a worker sends after which Results.
//!
//! The files in `spec/vectors/panama/switch` are played to a [`SwitchTarget`], those in `spec/vectors/panama/worker` to a [`WorkerTarget`]. They share
//! the words and the rules of the others.

mod check;
mod format;
mod program;
mod worker;

use std::path::Path;

use fanin_protocol::DropReason;
use fanin_protocol::panama::TreeConfig;

use super::{Mismatch, load_texts};

pub use format::{Expect, Send, Step, SwitchSpec, TreeSpec, Vector, VerdictName};
pub use program::ProgramTarget;
pub use worker::{Answer, Move, ProgramWorker, WorkerSpec, WorkerTarget, WorkerVector, replay_worker};

/// One packet that left, or why none did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The target's own account of it.
    pub verdict: VerdictName,
    /// With drop and refuse.
    pub reason: Option<DropReason>,
    /// A bit for each port that the datagram leaves by.
    pub ports: u64,
    /// What leaves.
    pub datagram: Vec<u8>,
}

/// Accelerators that vectors are played to. Errors are the target's own, in words.
pub trait SwitchTarget {
    /// Sets the accelerator up, before anything else.
    ///
    /// # Errors
    /// The target cannot have such an accelerator.
    fn set_up(&mut self, switch: &SwitchSpec) -> Result<(), String>;

    /// Takes a tree into service.
    ///
    /// # Errors
    /// The target cannot serve the tree.
    fn install(&mut self, tree: &TreeConfig) -> Result<(), String>;

    /// Ends a job.
    ///
    /// # Errors
    /// There is no such job.
    fn remove(&mut self, job_id: u32) -> Result<(), String>;

    /// Hands over a packet that comes in by `port`, with the mark of its IP header, and collects all that comes of it, in order: one outcome at least.
    ///
    /// # Errors
    /// The target did not take the packet.
    fn exchange(&mut self, port: u8, is_marked: bool, packet: &[u8]) -> Result<Vec<Outcome>, String>;

    /// Ports that are to be paused now, a bit for each; nothing if the target does not tell.
    fn paused_ports(&self) -> Option<u64>;
}

/// Plays a vector to a target that has nothing yet. Returns the number of packets sent.
///
/// # Errors
/// The first difference.
pub fn replay(file: &str, vector: &Vector, target: &mut dyn SwitchTarget) -> Result<usize, Mismatch> {
    check::replay(file, vector, target)
}

/// All vectors for accelerators in a folder, by file name.
///
/// # Errors
/// A file cannot be read, or is not a vector; the text names the file.
pub fn load_switch_folder(folder: &Path) -> Result<Vec<(String, Vector)>, String> {
    load_texts(folder, Vector::parse)
}

/// All vectors for workers in a folder, by file name.
///
/// # Errors
/// A file cannot be read, or is not a vector; the text names the file.
pub fn load_worker_folder(folder: &Path) -> Result<Vec<(String, WorkerVector)>, String> {
    load_texts(folder, WorkerVector::parse)
}
