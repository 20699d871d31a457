//! The settings of one of fanin's jobs.

use anyhow::Context;
use clap::ValueEnum;
use fanin_host::ElementFormat;
use fanin_numeric::KernelLevel;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a session says whose ranks are all on one host.
pub const SHARED_MEMORY: &str = "shared memory";
/// Between ranks of one host whose tensors lie in memory from `Session::allocate`.
pub const REGISTERED_MEMORY: &str = "registered memory";

/// Vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// None.
    Scalar,
    /// AVX2.
    Avx2,
    /// AVX-512.
    Avx512,
}

impl From<Kernels> for KernelLevel {
    fn from(kernels: Kernels) -> KernelLevel {
        match kernels {
            Kernels::Scalar => KernelLevel::Scalar,
            Kernels::Avx2 => KernelLevel::Avx2,
            Kernels::Avx512 => KernelLevel::Avx512,
        }
    }
}

/// How float sums travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 32-bit block fixed point.
    #[default]
    Int32,
    /// Block-scaled binary16.
    Float16,
    /// Block-scaled bfloat16.
    Bfloat16,
    /// Block-scaled 8-bit integers.
    Int8,
}

impl Format {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Int32 => "int32",
            Format::Float16 => "float16",
            Format::Bfloat16 => "bfloat16",
            Format::Int8 => "int8",
        }
    }

    /// Bytes of one float on the wire.
    pub fn bytes(self) -> u64 {
        match self {
            Format::Int32 => 4,
            Format::Float16 | Format::Bfloat16 => 2,
            Format::Int8 => 1,
        }
    }
}

impl From<Format> for ElementFormat {
    fn from(format: Format) -> ElementFormat {
        match format {
            Format::Int32 => ElementFormat::Int32,
            Format::Float16 => ElementFormat::Float16,
            Format::Bfloat16 => ElementFormat::Bfloat16,
            Format::Int8 => ElementFormat::Int8,
        }
    }
}

/// How bytes get from rank to rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// What a training job gets: shared memory among the ranks of a host, the switch between hosts.
    Auto,
    /// Every rank talks to the switch.
    #[default]
    Udp,
    /// As auto, and an error where ranks share no memory.
    Shm,
    /// As shm, with the tensors in registered memory, which are summed where they lie.
    Registered,
}

impl Transport {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Udp => "udp",
            Transport::Shm => "shm",
            Transport::Registered => "registered",
        }
    }
}

impl From<Transport> for fanin_host::Transport {
    fn from(transport: Transport) -> fanin_host::Transport {
        match transport {
            Transport::Auto | Transport::Shm | Transport::Registered => fanin_host::Transport::Auto,
            Transport::Udp => fanin_host::Transport::Udp,
        }
    }
}

/// Whose slots a job uses, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Slots of its own, reserved from start to end.
    #[default]
    Switchml,
    /// Slots shared with other jobs, and a parameter server beside rank 0.
    Atp,
}

impl Algorithm {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Switchml => "switchml",
            Algorithm::Atp => "atp",
        }
    }
}

impl From<Algorithm> for fanin_host::Algorithm {
    fn from(algorithm: Algorithm) -> fanin_host::Algorithm {
        match algorithm {
            Algorithm::Switchml => fanin_host::Algorithm::SwitchMl,
            Algorithm::Atp => fanin_host::Algorithm::Atp,
        }
    }
}

/// What one job is like; `None` leaves it to fanin.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Job {
    pub algorithm: Algorithm,
    /// How the switch adds floats, by its label; `None` leaves it to fanin.
    pub accumulator: Option<&'static str>,
    pub lanes: Option<u16>,
    /// Of each lane.
    pub slots: Option<u32>,
    /// Of each packet.
    pub elements: Option<u16>,
    pub element_format: Format,
    pub transport: Transport,
    /// Sums to every rank by itself, also where multicast would do.
    pub unicast: bool,
    /// Chance of losing a datagram, at every rank and each way.
    pub loss: f64,
    pub loss_seed: u64,
}

/// A job that all ranks are in.
#[derive(Clone, Debug, Serialize)]
pub struct Joined {
    #[serde(skip)]
    pub number: u32,
    /// Elements of a full packet.
    pub element_count_max: u64,
    /// Lanes of each rank.
    pub lane_count: u64,
    /// Slots of each lane.
    pub slots_per_lane: u64,
    /// "udp", "shared memory", or both.
    pub transport: String,
}

impl Joined {
    /// From rank 0's reply.
    ///
    /// # Errors
    /// A transport that was asked for and cannot be had.
    pub fn new(number: u32, job: &Job, reply: &Value) -> anyhow::Result<Joined> {
        let field = |key: &str| {
            let value = reply.get(key).and_then(Value::as_u64);
            value.with_context(|| format!("a rank's reply has no number {key:?}"))
        };
        let transport = reply.get("transport").and_then(Value::as_str).context("a rank did not say its transport")?;
        let wanted = match job.transport {
            Transport::Auto | Transport::Udp => transport,
            Transport::Shm => SHARED_MEMORY,
            Transport::Registered => REGISTERED_MEMORY,
        };
        anyhow::ensure!(
            transport == wanted,
            "--transport {}: the ranks use {transport} because they are not on one host; take udp or auto, or leave out --net",
            job.transport.name()
        );
        Ok(Joined {
            number,
            element_count_max: field("element_count_max")?,
            lane_count: field("lane_count")?,
            slots_per_lane: field("slots_per_lane")?,
            transport: transport.to_owned(),
        })
    }
}
