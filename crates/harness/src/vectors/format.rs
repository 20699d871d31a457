//! The files of `spec/vectors`; `spec/vectors/README.md` explains them.

use std::fmt;

use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobConfig, WireFormat};
use fanin_wire::generated::{BLOCK_EXPONENT_NON_FINITE, BLOCK_EXPONENT_NOT_NEEDED, BLOCK_EXPONENT_UNKNOWN};
use fanin_wire::{Accumulator, ElementFormat, Kind, Operator};
use serde::{Deserialize, Deserializer, de::Error as _};

/// One file: a scenario from an empty switch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// The behaviour, in one sentence.
    pub title: String,
    /// Where it is asked for.
    pub source: String,
    /// The first job, installed before the first step.
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

/// A job to install.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSpec {
    /// `fanin` or `p4app`.
    #[serde(deserialize_with = "wire_format")]
    pub format: WireFormat,
    /// Workers, 1 to 256.
    pub worker_count: u16,
    /// Lanes of each worker.
    pub lane_count: u16,
    /// A power of two.
    pub slots_per_lane: u32,
    /// Largest payload, in elements.
    pub element_count_max: u16,
    /// Number in the low eight bits, generation above.
    pub job_id: u32,
    /// Carried by every packet.
    pub job_token: u32,
    /// Whether packets carry a checksum.
    pub checksum: bool,
    /// How sums of floats are added, by its name in fields.toml.
    #[serde(deserialize_with = "accumulator")]
    pub accumulator: Accumulator,
}

impl Default for JobSpec {
    fn default() -> Self {
        JobSpec {
            format: WireFormat::Fanin,
            worker_count: 2,
            lane_count: 1,
            slots_per_lane: 4,
            element_count_max: 32,
            job_id: 0x0105,
            job_token: 0x5eed_0001,
            checksum: true,
            accumulator: Accumulator::BlockFixed,
        }
    }
}

impl JobSpec {
    /// What a switch is told.
    pub fn config(&self) -> JobConfig {
        JobConfig {
            job_id: self.job_id,
            job_token: self.job_token,
            worker_count: self.worker_count,
            lane_count: self.lane_count,
            slots_per_lane: self.slots_per_lane,
            element_count_max: self.element_count_max,
            has_checksum: self.checksum,
            accumulator: self.accumulator,
            wire_format: self.format,
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
        let Some(expect) = &self.expect else { return Ok(()) };
        let needs_reason = matches!(expect.verdict, VerdictName::Drop | VerdictName::Refuse);
        if needs_reason != expect.reason.is_some() {
            return Err("`reason` goes with the verdicts drop and refuse, and with no other".into());
        }
        Ok(())
    }
}

/// A packet. What is not given follows from the job and the chunk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    /// The sender.
    pub rank: u16,
    /// Repeats the step for the ranks up to this one.
    pub rank_last: Option<u16>,
    /// Position among the jobs installed so far; the latest by default.
    pub job: Option<usize>,
    /// The sender's lane.
    #[serde(default)]
    pub lane: u16,
    /// False (p4app): from an address that was not registered.
    #[serde(default = "yes")]
    pub is_registered: bool,
    /// What the packet is.
    #[serde(default = "contribution", deserialize_with = "kind")]
    pub kind: Kind,
    /// Position in the lane's stream.
    #[serde(default)]
    pub chunk_index: u32,
    /// Repeats the step for the chunks up to this one.
    pub chunk_last: Option<u32>,
    /// Follows from lane and chunk unless given.
    pub slot_index: Option<u16>,
    /// Follows from the chunk unless given.
    pub slot_parity: Option<u8>,
    /// Equal at all workers.
    #[serde(default = "tag")]
    pub collective_tag: u32,
    /// A number, `not_needed`, `non_finite` or `unknown`.
    pub exponent_next: Option<Exponent>,
    /// Numbers, or bit patterns where the format is float16 or bfloat16.
    #[serde(default)]
    pub elements: Vec<i64>,
    /// Added to the elements once for each further rank of a repeated step.
    #[serde(default)]
    pub elements_step: Vec<i64>,
    /// Zeros follow up to this many elements; p4app: the job's largest.
    pub element_count: Option<u16>,
    /// How the switch combines.
    #[serde(default = "add", deserialize_with = "operator")]
    pub operator: Operator,
    /// How elements are coded.
    #[serde(default = "int32", deserialize_with = "element_format")]
    pub element_format: ElementFormat,
    /// Who gets the payload; everyone by default.
    #[serde(default = "everyone")]
    pub destination: u16,
    /// Number of the attempt.
    #[serde(default)]
    pub detail: u8,
    /// Comes back as it is; p4app: the packet id.
    #[serde(default)]
    pub echo: u32,
    /// In place of the job's.
    pub job_id: Option<u32>,
    /// In place of the job's.
    pub job_token: Option<u32>,
    /// In place of the sender's.
    pub worker_rank: Option<u16>,
    /// Only so many bytes are sent.
    pub truncate: Option<usize>,
    /// This bit of the sealed datagram is turned over; bit 0 is the lowest
    /// of byte 0.
    pub flip_bit: Option<usize>,
    /// This byte of the sealed datagram is replaced.
    pub set_byte: Option<SetByte>,
}

/// A damaged byte.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetByte {
    /// From the datagram's start.
    pub offset: usize,
    /// The new value.
    pub value: u8,
}

/// What a packet must cause. Header fields that are not given are those of
/// the packet sent, as far as the answer's kind does not define them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// What the switch decides.
    pub verdict: VerdictName,
    /// With drop and refuse.
    #[serde(default, deserialize_with = "reason")]
    pub reason: Option<DropReason>,
    /// Of the Aggregate.
    #[serde(default)]
    pub elements: Vec<i64>,
    /// Zeros follow up to this many elements; p4app: the job's largest.
    pub element_count: Option<u16>,
    /// Of the Aggregate; `not_needed` by default, p4app 0.
    pub exponent_next: Option<Exponent>,
    /// Multicast: the one rank whose Aggregate has the elements.
    pub payload_to: Option<u16>,
    /// Receivers, if not those that the verdict implies.
    pub to: Option<Vec<u16>>,
    /// Of the answer: the shift of an int8 sum.
    pub echo: Option<u32>,
    /// Of the answer.
    pub detail: Option<u8>,
    /// Of the answer.
    pub worker_rank: Option<u16>,
}

/// Names of verdicts in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// Counted into its slot; nothing leaves.
    Absorb,
    /// Nothing leaves.
    Drop,
    /// A Refusal to the sender.
    Refuse,
    /// An Aggregate to the sender.
    Reply,
    /// An Aggregate to every worker.
    Multicast,
    /// A Missing to the sender.
    Missing,
    /// The Probe's echo to the sender.
    ProbeReply,
}

impl fmt::Display for VerdictName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictName::Absorb => "absorb",
            VerdictName::Drop => "drop",
            VerdictName::Refuse => "refuse",
            VerdictName::Reply => "reply",
            VerdictName::Multicast => "multicast",
            VerdictName::Missing => "missing",
            VerdictName::ProbeReply => "probe_reply",
        })
    }
}

/// A block exponent or the name of a sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exponent(pub i16);

impl<'de> Deserialize<'de> for Exponent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i16),
            Name(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(Exponent(value)),
            Written::Name(name) => match name.as_str() {
                "not_needed" => Ok(Exponent(BLOCK_EXPONENT_NOT_NEEDED)),
                "non_finite" => Ok(Exponent(BLOCK_EXPONENT_NON_FINITE)),
                "unknown" => Ok(Exponent(BLOCK_EXPONENT_UNKNOWN)),
                _ => Err(D::Error::custom(format!("no exponent is called {name}"))),
            },
        }
    }
}

pub(super) fn named<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    what: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<T, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = all.iter().copied().find(|&value| name_of(value) == name);
    found.ok_or_else(|| D::Error::custom(format!("no {what} is called {name}")))
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    named(deserializer, "kind", &Kind::ALL, Kind::name)
}

pub(super) fn operator<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Operator, D::Error> {
    named(deserializer, "operator", &Operator::ALL, Operator::name)
}

fn element_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ElementFormat, D::Error> {
    named(deserializer, "element format", &ElementFormat::ALL, ElementFormat::name)
}

pub(super) fn reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DropReason>, D::Error> {
    named(deserializer, "drop reason", &DropReason::ALL, DropReason::name).map(Some)
}

pub(super) fn accumulator<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Accumulator, D::Error> {
    named(deserializer, "accumulator", &Accumulator::ALL, Accumulator::name)
}

fn wire_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WireFormat, D::Error> {
    let name_of = |format| if format == WireFormat::Fanin { "fanin" } else { "p4app" };
    named(deserializer, "wire format", &[WireFormat::Fanin, WireFormat::P4app], name_of)
}

fn yes() -> bool {
    true
}

fn contribution() -> Kind {
    Kind::Contribution
}

pub(super) fn add() -> Operator {
    Operator::Add
}

fn int32() -> ElementFormat {
    ElementFormat::Int32
}

pub(super) fn tag() -> u32 {
    0x7a67
}

pub(super) fn everyone() -> u16 {
    fanin_wire::generated::RANK_ALL
}
