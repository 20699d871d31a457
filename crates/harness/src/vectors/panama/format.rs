//! The files of `spec/vectors/panama/switch`; `spec/vectors/README.md` explains them.

use std::fmt;

use fanin_protocol::DropReason;
use fanin_protocol::panama::TreeConfig;
use fanin_wire::panama::{ElementFormat, Flags, Kind};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::vectors::format::{SetByte, named, reason, tag};

/// One file: a scenario from an empty accelerator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// The behaviour, in one sentence.
    pub title: String,
    /// Where it is asked for.
    pub source: String,
    /// How the accelerator is set up.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// The first tree, installed before the first step.
    #[serde(default)]
    pub tree: TreeSpec,
    /// What happens, in order.
    #[serde(rename = "step")]
    pub steps: Vec<Step>,
}

impl Vector {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The text is not a vector; the message has the line.
    pub fn parse(text: &str) -> Result<Vector, String> {
        let vector: Vector = toml::from_str(text).map_err(|error| error.to_string())?;
        for (index, step) in vector.steps.iter().enumerate() {
            step.check().map_err(|why| format!("step {}: {why}", index + 1))?;
        }
        if vector.steps.is_empty() { Err("no steps".into()) } else { Ok(vector) }
    }
}

/// How the accelerator is set up.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSpec {
    /// Packets that all buffers together hold.
    pub memory_packets: u32,
    /// With so many in use, ports that run ahead are paused.
    pub pause_packets: u32,
    /// Largest payload, in elements.
    pub element_count_max: u16,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        SwitchSpec { memory_packets: 1 << 20, pause_packets: u32::MAX, element_count_max: 32 }
    }
}

/// A tree to install.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TreeSpec {
    /// Ports towards workers.
    pub ports: Vec<u8>,
    /// The port towards the root; none at the root.
    pub parent: Option<u8>,
    /// Which of the job's trees.
    pub tree: u8,
    /// Most packets that a worker may have out, a power of two.
    pub window_max: u32,
    /// Ports whose Contributions make a sum; all of them unless given.
    pub quorum: Option<u8>,
    /// Number in the low eight bits, generation above.
    pub job_id: u32,
    /// Carried by every packet.
    pub job_token: u32,
}

impl Default for TreeSpec {
    fn default() -> Self {
        TreeSpec {
            ports: vec![0, 1],
            parent: None,
            tree: 0,
            window_max: 4,
            quorum: None,
            job_id: 0x0105,
            job_token: 0x5eed_0001,
        }
    }
}

impl TreeSpec {
    /// What an accelerator is told.
    pub fn config(&self) -> TreeConfig {
        TreeConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            tree: self.tree,
            ports: bits(&self.ports),
            parent: self.parent,
            window_max: self.window_max,
            quorum: self.quorum.unwrap_or(self.ports.len() as u8),
        }
    }
}

/// A bit for each port.
pub(super) fn bits(ports: &[u8]) -> u64 {
    ports.iter().fold(0, |bits, &port| bits | 1u64.checked_shl(port.into()).unwrap_or(0))
}

/// One step: a job removed, a tree installed, or packets sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name in messages.
    pub name: Option<String>,
    /// A further tree.
    pub install: Option<TreeSpec>,
    /// Id of a job that ends.
    pub remove: Option<u32>,
    /// A packet, or the same with several VIDs.
    pub send: Option<Send>,
    /// What comes of each of them first.
    pub expect: Option<Expect>,
    /// What leaves after it because of the same packet, in order.
    #[serde(default)]
    pub then: Vec<Expect>,
    /// Ports that are to be paused after the step, where the target tells.
    pub paused: Option<Vec<u8>>,
}

impl Step {
    fn check(&self) -> Result<(), String> {
        let actions = [self.install.is_some(), self.remove.is_some(), self.send.is_some()];
        if actions.iter().filter(|&&present| present).count() != 1 {
            return Err("give one of `install`, `remove` and `send`".into());
        }
        if self.send.is_some() != self.expect.is_some() || self.send.is_none() && !self.then.is_empty() {
            return Err("`send` and `expect` go together, and `then` with them".into());
        }
        for expect in self.expect.iter().chain(&self.then) {
            let needs_reason = matches!(expect.verdict, VerdictName::Drop | VerdictName::Refuse);
            if needs_reason != expect.reason.is_some() {
                return Err("`reason` goes with the verdicts drop and refuse, and with no other".into());
            }
        }
        Ok(())
    }
}

/// A packet. What is not given follows from the tree and the VID.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    /// The port that it comes in by.
    pub port: u8,
    /// What the packet is.
    #[serde(default = "contribution", deserialize_with = "kind")]
    pub kind: Kind,
    /// Its place in the tree's stream.
    #[serde(default)]
    pub vid: u32,
    /// Repeats the step for the VIDs up to this one.
    pub vid_last: Option<u32>,
    /// First VID whose Result the sender may still ask for.
    #[serde(default)]
    pub awaited_vid: u32,
    /// Bit patterns of floats.
    #[serde(default)]
    pub elements: Vec<u32>,
    /// How elements are coded.
    #[serde(default = "float32", deserialize_with = "element_format")]
    pub element_format: ElementFormat,
    /// Equal at all workers.
    #[serde(default = "tag")]
    pub collective_tag: u32,
    /// Those that are set.
    #[serde(default, deserialize_with = "flags")]
    pub flags: Flags,
    /// Its IP header says that congestion was experienced.
    #[serde(default)]
    pub is_marked: bool,
    /// Room on the way so far.
    #[serde(default = "no_cap")]
    pub cwnd_cap: u16,
    /// Workers in the payload.
    #[serde(default = "one")]
    pub worker_count: u16,
    /// The port's number unless given; of a Result 65535.
    pub worker_rank: Option<u16>,
    /// Number of the attempt; of a Refusal the reason's code.
    #[serde(default)]
    pub detail: u8,
    /// In place of the first tree's.
    pub tree: Option<u8>,
    /// In place of the first tree's.
    pub job_id: Option<u32>,
    /// In place of the first tree's.
    pub job_token: Option<u32>,
    /// Only so many bytes are sent.
    pub truncate: Option<usize>,
    /// This bit of the sealed datagram is turned over; bit 0 is the lowest of byte 0.
    pub flip_bit: Option<usize>,
    /// This byte of the sealed datagram is replaced.
    pub set_byte: Option<SetByte>,
}

/// What a packet must cause. Header fields that are not given are those of the packet, as far as what leaves does not define them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// What the accelerator decides.
    pub verdict: VerdictName,
    /// With drop and refuse.
    #[serde(default, deserialize_with = "reason")]
    pub reason: Option<DropReason>,
    /// Down: the ports that it leaves by; all of the tree unless given.
    pub to: Option<Vec<u8>>,
    /// Of what leaves; the packet's own unless given.
    pub elements: Option<Vec<u32>>,
    /// Of what leaves.
    pub vid: Option<u32>,
    /// Of what leaves.
    pub awaited_vid: Option<u32>,
    /// Of what leaves; of a sum, the packet's own without `resend` unless given.
    #[serde(default, deserialize_with = "some_flags")]
    pub flags: Option<Flags>,
    /// Of what leaves.
    pub cwnd_cap: Option<u16>,
    /// Of what leaves; of a sum, the number of the tree's ports unless given.
    pub worker_count: Option<u16>,
}

/// Names of verdicts in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// Kept in a buffer; nothing leaves.
    Absorb,
    /// Nothing leaves.
    Drop,
    /// A Refusal to the port that the packet came in by.
    Refuse,
    /// A sum, towards the root.
    Up,
    /// A Result or a Refusal, to ports of the tree.
    Down,
}

impl fmt::Display for VerdictName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictName::Absorb => "absorb",
            VerdictName::Drop => "drop",
            VerdictName::Refuse => "refuse",
            VerdictName::Up => "up",
            VerdictName::Down => "down",
        })
    }
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    named(deserializer, "kind", &Kind::ALL, Kind::name)
}

fn element_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ElementFormat, D::Error> {
    named(deserializer, "element format", &ElementFormat::ALL, ElementFormat::name)
}

pub(super) fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Flags, D::Error> {
    let mut flags = Flags::default();
    for name in Vec::<String>::deserialize(deserializer)? {
        match name.as_str() {
            "fin" => flags.fin = true,
            "ecn" => flags.ecn = true,
            "resend" => flags.resend = true,
            _ => return Err(D::Error::custom(format!("no flag is called {name}"))),
        }
    }
    Ok(flags)
}

fn some_flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Flags>, D::Error> {
    flags(deserializer).map(Some)
}

fn contribution() -> Kind {
    Kind::Contribution
}

fn float32() -> ElementFormat {
    ElementFormat::Float32
}

fn no_cap() -> u16 {
    u16::MAX
}

fn one() -> u16 {
    1
}
