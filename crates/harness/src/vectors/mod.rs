//! Conformance vectors: what a switch answers to which packets.
//!
//! The files in `spec/vectors` say nothing about transports or programming
//! languages, so that every switch program — this one in Rust, its P4, XDP
//! and hardware twins — and every daemon around one can be asked the same
//! questions. [`replay`] plays a file to a [`Target`].

pub mod atp;
mod check;
mod format;
mod packet;
pub mod panama;
mod program;
pub mod suite;

use std::fmt;
use std::path::Path;

use fanin_protocol::DropReason;
use fanin_protocol::switchml::JobConfig;

pub use format::{Expect, JobSpec, Send, Step, Vector, VerdictName};
pub use program::ProgramTarget;

/// From where a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Position among the jobs that the vector has installed.
    pub job: usize,
    /// The sender's lane, which has a socket of its own.
    pub lane: u16,
    /// The sender's rank.
    pub rank: u16,
    /// False: an address that the switch has not been told of.
    pub is_registered: bool,
}

/// What a target did with one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Counted into its slot; others are awaited.
    Absorbed,
    /// Went no further.
    Dropped(DropReason),
    /// Answered with a Refusal.
    Refused(DropReason),
    /// Answered with the Aggregate of a complete chunk.
    Replied,
    /// Completed its chunk.
    Multicast,
    /// A Query, answered with Missing.
    Missing,
    /// A Probe, sent back.
    ProbeReplied,
}

impl Outcome {
    fn verdict(self) -> VerdictName {
        match self {
            Outcome::Absorbed => VerdictName::Absorb,
            Outcome::Dropped(_) => VerdictName::Drop,
            Outcome::Refused(_) => VerdictName::Refuse,
            Outcome::Replied => VerdictName::Reply,
            Outcome::Multicast => VerdictName::Multicast,
            Outcome::Missing => VerdictName::Missing,
            Outcome::ProbeReplied => VerdictName::ProbeReply,
        }
    }

    fn reason(self) -> Option<DropReason> {
        match self {
            Outcome::Dropped(reason) | Outcome::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

/// All that one packet caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The target's own account of it.
    pub outcome: Outcome,
    /// Receiving rank and datagram of everything that left the target.
    pub answers: Vec<(u16, Vec<u8>)>,
}

/// A switch that vectors are played to. Errors are the target's own, in
/// words: a socket that fails, a job that cannot be installed.
pub trait Target {
    /// Takes a job into service and makes its workers known.
    ///
    /// # Errors
    /// The target cannot serve the job.
    fn install(&mut self, config: &JobConfig) -> Result<(), String>;

    /// Ends a job.
    ///
    /// # Errors
    /// There is no such job.
    fn remove(&mut self, job_id: u32) -> Result<(), String>;

    /// Hands over one packet and collects all that comes of it.
    ///
    /// # Errors
    /// The target did not take the packet, or answered somewhere else.
    fn exchange(&mut self, source: Source, packet: &[u8]) -> Result<Exchange, String>;
}

/// The first difference between a vector and a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The vector's file.
    pub file: String,
    /// Position of the step, from 1, its name, and sender and chunk where
    /// the step is repeated.
    pub step: String,
    /// What differs.
    pub field: String,
    /// As the vector has it.
    pub expected: String,
    /// As the target has it.
    pub got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { file, step, field, expected, got } = self;
        write!(f, "{file}, step {step}: {field}: expected {expected}, got {got}")
    }
}

impl std::error::Error for Mismatch {}

/// Plays a vector to a target that has none of its jobs yet. Returns the
/// number of packets sent.
///
/// # Errors
/// The first difference.
pub fn replay(file: &str, vector: &Vector, target: &mut dyn Target) -> Result<usize, Mismatch> {
    check::replay(file, vector, target)
}

/// All vectors of a folder, by file name.
///
/// # Errors
/// A file cannot be read, or is not a vector; the text names the file.
pub fn load_folder(folder: &Path) -> Result<Vec<(String, Vector)>, String> {
    load_texts(folder, Vector::parse)
}

/// What `parse` makes of the files of a folder, by file name.
fn load_texts<V>(folder: &Path, parse: fn(&str) -> Result<V, String>) -> Result<Vec<(String, V)>, String> {
    let listing = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = listing.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let load = |path: &std::path::PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
        let vector = parse(&text).map_err(|error| format!("{file}: {error}"))?;
        Ok((file, vector))
    };
    paths.iter().map(load).collect()
}
