//! The files of `spec/vectors/atp`; `spec/vectors/README.md` explains them.

use std::fmt;

use fanin_protocol::DropReason;
use fanin_protocol::atp::Tree;
use fanin_wire::Operator;
use fanin_wire::atp::{ElementFormat, Flags, Kind};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::Node;
use crate::vectors::format::{SetByte, add, everyone, named, operator, reason, tag};

/// One file: a scenario from empty switches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// The behaviour, in one sentence.
    pub title: String,
    /// Where it is asked for.
    pub source: String,
    /// How every switch is set up.
    #[serde(default)]
    pub switch: SwitchSpec,
    /// The first job, installed before the first step.
    #[serde(default)]
    pub job: JobSpec,
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

/// How every switch is set up.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchSpec {
    /// Slots that jobs share.
    pub slot_count: u16,
    /// Largest payload, in elements.
    pub element_count_max: u16,
    /// Slots that nobody touched for longer are taken back.
    pub slot_age_ns_max: u64,
    /// A longer queue marks packets.
    pub ecn_threshold_bytes: u32,
}

impl Default for SwitchSpec {
    fn default() -> Self {
        SwitchSpec { slot_count: 8, element_count_max: 32, slot_age_ns_max: 1_000_000, ecn_threshold_bytes: 1_000 }
    }
}

/// A job to install.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSpec {
    /// Workers at the one switch; not with `racks`.
    pub worker_count: u16,
    /// Workers of each rack's switch.
    pub racks: Vec<u8>,
    /// With `racks`: workers at the server's own switch.
    pub beside: u8,
    /// Lanes of each worker.
    pub lane_count: u16,
    /// Chunks that a worker may have out.
    pub window_max: u32,
    /// Number in the low eight bits, generation above.
    pub job_id: u32,
    /// Carried by every packet.
    pub job_token: u32,
}

impl Default for JobSpec {
    fn default() -> Self {
        JobSpec {
            worker_count: 2,
            racks: Vec::new(),
            beside: 0,
            lane_count: 1,
            window_max: 4,
            job_id: 0x0105,
            job_token: 0x5eed_0001,
        }
    }
}

impl JobSpec {
    /// The switches between workers and server.
    ///
    /// # Errors
    /// There is no such tree.
    pub fn tree(&self) -> Result<Tree, String> {
        let tree = match self.racks.as_slice() {
            [] => Tree::one_switch(self.worker_count),
            racks => Tree::racks(racks, self.beside),
        };
        tree.map_err(|error| format!("{error:?}"))
    }

    /// Children of a switch.
    pub fn children(&self, node: Node) -> u8 {
        match node {
            Node::Rack(rack) => self.racks.get(usize::from(rack)).copied().unwrap_or(0),
            Node::Root if self.racks.is_empty() => self.worker_count.min(255) as u8,
            Node::Root => self.racks.len() as u8 + self.beside,
            Node::Server => 0,
        }
    }
}

/// One step: a job removed, one installed, or packets sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name in messages.
    pub name: Option<String>,
    /// A further job.
    pub install: Option<JobSpec>,
    /// Id of a job that ends.
    pub remove: Option<u32>,
    /// A packet, or the same from several ranks or for several chunks.
    pub send: Option<Send>,
    /// What comes of each of them.
    pub expect: Option<Expect>,
}

impl Step {
    fn check(&self) -> Result<(), String> {
        let actions = [self.install.is_some(), self.remove.is_some(), self.send.is_some()];
        if actions.iter().filter(|&&present| present).count() != 1 {
            return Err("give one of `install`, `remove` and `send`".into());
        }
        if self.send.is_some() != self.expect.is_some() {
            return Err("`send` and `expect` go together".into());
        }
        if self.send.as_ref().is_some_and(Send::contradicts_relay) {
            return Err("`relay` sends a packet as it is: give neither ranks nor elements".into());
        }
        let Some(expect) = &self.expect else { return Ok(()) };
        let has_reason = expect.reason.is_some();
        match expect.verdict {
            VerdictName::Drop | VerdictName::Refuse if !has_reason => {
                Err("the verdicts drop and refuse need a `reason`".into())
            }
            VerdictName::Absorb | VerdictName::Up | VerdictName::Down if has_reason => {
                Err("`reason` goes with the verdicts drop, refuse, reply and multicast".into())
            }
            _ => Ok(()),
        }
    }
}

/// A packet. What is not given follows from the job, the chunk and the node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    /// Where it arrives; by default at the rank's own switch, a sum at the server, a Parameter at the root.
    #[serde(default, deserialize_with = "node")]
    pub at: Option<Node>,
    /// Fragment and Refusal: whose way the words say. Parameter: the one receiver.
    pub rank: Option<u16>,
    /// Repeats the step for the ranks up to this one.
    pub rank_last: Option<u16>,
    /// In place of `rank`: a sum of these.
    pub ranks: Option<Vec<u16>>,
    /// The packet is the first that left in the step before; neither ranks nor elements may be given.
    #[serde(default)]
    pub relay: bool,
    /// Position among the jobs installed so far; the latest by default.
    pub job: Option<usize>,
    /// The sender's lane.
    #[serde(default)]
    pub lane: u16,
    /// What the packet is.
    #[serde(default = "fragment", deserialize_with = "kind")]
    pub kind: Kind,
    /// Position in the lane's stream.
    #[serde(default)]
    pub chunk_index: u32,
    /// Repeats the step for the chunks up to this one.
    pub chunk_last: Option<u32>,
    /// The chunk's modulo the slots unless given.
    pub slot_index: Option<u16>,
    /// As `slot_index` unless given.
    pub slot_index_next: Option<u16>,
    /// Equal at all workers.
    #[serde(default = "tag")]
    pub collective_tag: u32,
    /// Signed words; bit patterns where the format is float32.
    #[serde(default)]
    pub elements: Vec<i64>,
    /// Added to the elements once for each further rank of a repeated step.
    #[serde(default)]
    pub elements_step: Vec<i64>,
    /// Zeros follow up to this many elements.
    pub element_count: Option<u16>,
    /// How elements are combined.
    #[serde(default = "add", deserialize_with = "operator")]
    pub operator: Operator,
    /// How elements are coded.
    #[serde(default = "int32", deserialize_with = "element_format")]
    pub element_format: ElementFormat,
    /// Who gets the payload; everyone by default.
    #[serde(default = "everyone")]
    pub destination: u16,
    /// Number of the attempt; of a Refusal the reason's code.
    #[serde(default)]
    pub detail: u8,
    /// Not used yet.
    #[serde(default)]
    pub echo: u16,
    /// Of fixed point; 0: units of 10^-8.
    #[serde(default)]
    pub scale: u8,
    /// What the sender asks for one window further on; 0: it does not know.
    #[serde(default)]
    pub scale_next: u8,
    /// Those that are set.
    #[serde(default, deserialize_with = "flags")]
    pub flags: Flags,
    /// By level, in place of the ways of the ranks.
    pub contributed: Option<[u32; 4]>,
    /// By level, in place of the job's.
    pub fan_in: Option<[u8; 4]>,
    /// In place of the node's.
    pub level: Option<u8>,
    /// In place of the job's.
    pub job_id: Option<u32>,
    /// In place of the job's.
    pub job_token: Option<u32>,
    /// In place of the sender's.
    pub worker_rank: Option<u16>,
    /// When it arrives; one nanosecond after the packet before unless given.
    pub now_ns: Option<u64>,
    /// Bytes that wait where the packet will leave.
    #[serde(default)]
    pub queue_bytes: u32,
    /// Only so many bytes are sent.
    pub truncate: Option<usize>,
    /// This bit of the sealed datagram is turned over; bit 0 is the lowest of byte 0.
    pub flip_bit: Option<usize>,
    /// This byte of the sealed datagram is replaced.
    pub set_byte: Option<SetByte>,
}

impl Send {
    fn contradicts_relay(&self) -> bool {
        self.relay && (self.rank.is_some() || self.ranks.is_some() || !self.elements.is_empty())
    }
}

/// What a packet must cause. Header fields that are not given are those of the packet, as far as what leaves does not
/// define them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// What the node decides.
    pub verdict: VerdictName,
    /// With drop and refuse; with reply and multicast where the packet was answered, but not counted.
    #[serde(default, deserialize_with = "reason")]
    pub reason: Option<DropReason>,
    /// Of what leaves. Up and down: the packet's own unless given.
    pub elements: Option<Vec<i64>>,
    /// Zeros follow up to this many elements.
    pub element_count: Option<u16>,
    /// Down: the one child whose Parameter has the elements.
    pub payload_to: Option<u8>,
    /// Down: the children that get it; all unless given.
    pub to: Option<Vec<u8>>,
    /// Of what leaves.
    #[serde(default, deserialize_with = "some_flags")]
    pub flags: Option<Flags>,
    /// Of what leaves.
    pub contributed: Option<[u32; 4]>,
    /// Of what leaves.
    pub worker_rank: Option<u16>,
    /// Of what leaves.
    pub slot_index: Option<u16>,
    /// Of what leaves.
    pub slot_index_next: Option<u16>,
    /// Of what leaves.
    #[serde(default, deserialize_with = "some_element_format")]
    pub element_format: Option<ElementFormat>,
    /// Of what leaves.
    pub detail: Option<u8>,
    /// Of what leaves. Reply and multicast: 0 unless given.
    pub scale_next: Option<u8>,
}

/// Names of verdicts in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// Counted; nothing leaves.
    Absorb,
    /// Nothing leaves.
    Drop,
    /// A Refusal to the sender.
    Refuse,
    /// A switch passes a Fragment on towards the server.
    Up,
    /// A switch passes a Parameter or a Refusal on to children.
    Down,
    /// The server's Parameter for one worker, or the answer to its Probe.
    Reply,
    /// The server's Parameter for all workers.
    Multicast,
}

impl fmt::Display for VerdictName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictName::Absorb => "absorb",
            VerdictName::Drop => "drop",
            VerdictName::Refuse => "refuse",
            VerdictName::Up => "up",
            VerdictName::Down => "down",
            VerdictName::Reply => "reply",
            VerdictName::Multicast => "multicast",
        })
    }
}

fn node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Node>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let rack = name.strip_prefix("rack").and_then(|number| number.parse().ok());
    match (name.as_str(), rack) {
        ("root", _) => Ok(Some(Node::Root)),
        ("server", _) => Ok(Some(Node::Server)),
        (_, Some(rack)) => Ok(Some(Node::Rack(rack))),
        _ => Err(D::Error::custom(format!("no node is called {name}: root, server, rack0, rack1, ..."))),
    }
}

fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Flags, D::Error> {
    let mut flags = Flags::default();
    for name in Vec::<String>::deserialize(deserializer)? {
        *match name.as_str() {
            "resend" => &mut flags.resend,
            "ecn" => &mut flags.ecn,
            "collision" => &mut flags.collision,
            "is_saturated" => &mut flags.is_saturated,
            _ => return Err(D::Error::custom(format!("no flag is called {name}"))),
        } = true;
    }
    Ok(flags)
}

fn some_flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Flags>, D::Error> {
    flags(deserializer).map(Some)
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    named(deserializer, "kind", &Kind::ALL, Kind::name)
}

fn element_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ElementFormat, D::Error> {
    named(deserializer, "element format", &ElementFormat::ALL, ElementFormat::name)
}

fn some_element_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ElementFormat>, D::Error> {
    element_format(deserializer).map(Some)
}

fn fragment() -> Kind {
    Kind::Fragment
}

fn int32() -> ElementFormat {
    ElementFormat::Int32
}
