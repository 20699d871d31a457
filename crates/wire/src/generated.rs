// Generated from spec/fields.toml by `cargo xtask generate`. Do not edit.

//! Fields, codes and limits of the wire formats.

/// First two bytes of every fanin datagram.
pub const MAGIC: u16 = 0xFA91;

/// Version of the datagram layout.
pub const VERSION: u8 = 1;

/// Most workers in one job.
pub const WORKER_COUNT_MAX: u16 = 256;

/// Most jobs on one switch at a time (8 bits of job_id).
pub const JOB_COUNT_MAX: u16 = 256;

/// Most slots in one job's pool (15 bits of slot).
pub const SLOT_COUNT_MAX: u32 = 32768;

/// Elements per packet that fit the usual 1500-byte MTU (SwitchML §5).
pub const ELEMENT_COUNT_DEFAULT: u16 = 256;

/// Most elements in one packet: 4 bytes each, they and the header fit the largest UDP payload.
pub const ELEMENT_COUNT_MAX: u16 = 16352;

/// Most elements in a packet that the XDP program sums: a multiple of 32 that an MTU of 1500 carries.
pub const XDP_ELEMENT_COUNT_MAX: u16 = 352;

/// Largest UDP payload over IPv4.
pub const DATAGRAM_BYTES_MAX: u32 = 65507;

/// 239.192.0.0/14, the multicast addresses for use within an organisation (RFC 2365). A lane's group is this plus MULTICAST_GROUP_MASK & (job_token + lane), at the lane's data port.
pub const MULTICAST_GROUP_BASE: u32 = 0xEFC00000;

/// Bits of a group's address that tell lanes apart.
pub const MULTICAST_GROUP_MASK: u32 = 0x3FFFF;

/// Stands for every rank: `worker_rank` of a multicast Aggregate, `destination` when every rank gets the payload.
pub const RANK_ALL: u16 = 0xFFFF;

/// `block_exponent_next` of a chunk that needs no exponent (integers, raw words): below every other value, so a max merge ignores it.
pub const BLOCK_EXPONENT_NOT_NEEDED: i16 = -32768;

/// Smallest block exponent; blocks of zeros and of smaller values use it, so that the scale stays a finite binary32.
pub const BLOCK_EXPONENT_MIN: i16 = -95;

/// Largest exponent of a block of finite binary32 values.
pub const BLOCK_EXPONENT_MAX: i16 = 128;

/// The block holds an infinity or a NaN: every worker's result becomes NaN and is reported.
pub const BLOCK_EXPONENT_NON_FINITE: i16 = 0x7FFE;

/// The sender does not know its next block yet: the slot's next use is an announce, an empty contribution that carries only the exponent.
pub const BLOCK_EXPONENT_UNKNOWN: i16 = 0x7FFF;

/// Largest shift of an Int8 Aggregate: 256 workers that all send -128, which needs one more than 256 times 127.
pub const INT8_SHIFT_MAX: u8 = 9;

/// First UDP port of the data plane; thread t listens on this + t. Both formats share it, so it is p4app-switchML's.
pub const DATA_PORT_BASE_DEFAULT: u16 = 48864;

/// TCP port of the controller (gRPC), the same as p4app-switchML's.
pub const CONTROL_PORT_DEFAULT: u16 = 50099;

/// First UDP port of a parameter server of its own; thread t listens on this + t.
pub const SERVER_PORT_BASE_DEFAULT: u16 = 48880;

/// TCP port of /metrics and the dashboard.
pub const HTTP_PORT_DEFAULT: u16 = 50080;

/// First two bytes of every ATP datagram.
pub const ATP_MAGIC: u16 = 0xFA92;

/// Most levels of switches between a worker and the server.
pub const ATP_LEVEL_COUNT_MAX: u8 = 4;

/// Most children of one switch: the bits of a word (ATP §3.4).
pub const ATP_FAN_IN_MAX: u8 = 32;

/// Fixed32 counts units of one over this where `scale` is 0 (ATP §3.8).
pub const ATP_SCALE: u32 = 100000000;

/// `scale_next` of a worker that has no float to scale there.
pub const ATP_SCALE_CODE_NONE: u8 = 1;

/// `scale` and `scale_next` of the smallest exponent in use; each further one is one more, up to 225 (ATP App. B.3).
pub const ATP_SCALE_CODE_MIN: u8 = 2;

/// Packets that a worker may have out at the start (ATP §3.7).
pub const ATP_WINDOW_INITIAL: u32 = 200;

/// First two bytes of every PANAMA datagram.
pub const PANAMA_MAGIC: u16 = 0xFA93;

/// Most ports of one switch: the bits of its ports bitmap (PANAMA §5).
pub const PANAMA_PORT_COUNT_MAX: u8 = 64;

/// Most aggregation trees of one job.
pub const PANAMA_TREE_COUNT_MAX: u8 = 64;

/// Packets that a worker may have out in a tree at the start (PANAMA Fig. 5).
pub const PANAMA_CWND_INITIAL: u32 = 2;

/// Slow start threshold of a tree at the start, in packets (PANAMA Fig. 5).
pub const PANAMA_SSTHRESH_INITIAL: u32 = 64;

/// First UDP destination port of the p4app-switchML format.
pub const P4APP_PORT_BASE: u16 = 0xBEE0;

/// UDP ports of the p4app-switchML format (mask 0xFFF0).
pub const P4APP_PORT_COUNT: u16 = 16;

/// `job_type` of an all-reduce packet.
pub const P4APP_JOB_TYPE_ALL_REDUCE: u8 = 1;

/// Most workers of a p4app-switchML job: its bitmap is one 32-bit word.
pub const P4APP_WORKER_COUNT_MAX: u16 = 32;

/// Slots of the p4app-switchML switch program, each with two sets.
pub const P4APP_SLOT_COUNT_MAX: u16 = 8192;

/// What a fanin datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// From a worker: its elements of one chunk.
    Contribution = 1,
    /// From a switch: the sum of one chunk over all workers.
    Aggregate = 2,
    /// From a switch: the contribution was not used; `detail` says why.
    Refusal = 3,
    /// From a worker: asks whether a datagram of this length reaches the switch.
    Probe = 4,
    /// From a switch: a Probe sent back at its full length.
    ProbeReply = 5,
    /// From a worker: asks what became of its contribution; a header without elements.
    Query = 6,
    /// From a switch: answers a Query; the contribution has not arrived, send it again.
    Missing = 7,
}

impl Kind {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 7] =
        [Self::Contribution, Self::Aggregate, Self::Refusal, Self::Probe, Self::ProbeReply, Self::Query, Self::Missing];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contribution => "contribution",
            Self::Aggregate => "aggregate",
            Self::Refusal => "refusal",
            Self::Probe => "probe",
            Self::ProbeReply => "probe_reply",
            Self::Query => "query",
            Self::Missing => "missing",
        }
    }
}

impl TryFrom<u8> for Kind {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            1 => Ok(Self::Contribution),
            2 => Ok(Self::Aggregate),
            3 => Ok(Self::Refusal),
            4 => Ok(Self::Probe),
            5 => Ok(Self::ProbeReply),
            6 => Ok(Self::Query),
            7 => Ok(Self::Missing),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// How elements are coded in the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ElementFormat {
    /// 32-bit two's complement, big-endian: block fixed point, integers, raw words.
    Int32 = 0,
    /// IEEE binary16, big-endian, block-scaled; the switch sums in fixed point (SwitchML §4.6).
    Float16 = 1,
    /// bfloat16, big-endian, block-scaled to whole numbers, which the switch sums as 32-bit integers.
    Bfloat16 = 2,
    /// 8-bit two's complement, -127 to 127, block-scaled; the switch sums exactly and divides the block by a power of two that it tells in `echo`.
    Int8 = 3,
    /// IEEE binary32 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
    RawFloat32 = 4,
    /// IEEE binary16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
    RawFloat16 = 5,
    /// bfloat16 as it lies in memory: little-endian, not scaled. The job's accumulator adds it.
    RawBfloat16 = 6,
    /// Fixed point, big-endian: a float times ATP_SCALE, rounded; sums saturate (ATP §3.8).
    Fixed32 = 7,
}

impl ElementFormat {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 8] = [
        Self::Int32,
        Self::Float16,
        Self::Bfloat16,
        Self::Int8,
        Self::RawFloat32,
        Self::RawFloat16,
        Self::RawBfloat16,
        Self::Fixed32,
    ];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int32 => "int32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Int8 => "int8",
            Self::RawFloat32 => "raw_float32",
            Self::RawFloat16 => "raw_float16",
            Self::RawBfloat16 => "raw_bfloat16",
            Self::Fixed32 => "fixed32",
        }
    }
}

impl TryFrom<u8> for ElementFormat {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Int32),
            1 => Ok(Self::Float16),
            2 => Ok(Self::Bfloat16),
            3 => Ok(Self::Int8),
            4 => Ok(Self::RawFloat32),
            5 => Ok(Self::RawFloat16),
            6 => Ok(Self::RawBfloat16),
            7 => Ok(Self::Fixed32),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for ElementFormat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// How a job's switch adds sums of floats (spec/NUMERICS.md). The controller tells it in JoinRequest and JoinResponse; no datagram carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Accumulator {
    /// Integers, scaled by the exponent that the workers agree on for a block: Int32, Float16, Bfloat16 and Int8 elements.
    BlockFixed = 0,
    /// Counts of 10^-8 whose sums saturate: Fixed32 elements (ATP §3.8).
    StaticFixed = 1,
    /// Floats in integer registers, guard bits as many as the workers leave: raw elements (FPISA §3).
    Fpisa = 2,
    /// Floats in integer registers that are not shifted: raw elements (FPISA §4.3).
    FpisaA = 3,
    /// Floats by table look-ups: raw elements (Libra §3.5).
    LogTable = 4,
    /// Native float addition in order of arrival: raw elements (PANAMA §4).
    Ieee = 5,
    /// The exact sum, rounded once, whatever the order: raw elements.
    Exact = 6,
}

impl Accumulator {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 7] =
        [Self::BlockFixed, Self::StaticFixed, Self::Fpisa, Self::FpisaA, Self::LogTable, Self::Ieee, Self::Exact];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BlockFixed => "block_fixed",
            Self::StaticFixed => "static_fixed",
            Self::Fpisa => "fpisa",
            Self::FpisaA => "fpisa_a",
            Self::LogTable => "log_table",
            Self::Ieee => "ieee",
            Self::Exact => "exact",
        }
    }
}

impl TryFrom<u8> for Accumulator {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::BlockFixed),
            1 => Ok(Self::StaticFixed),
            2 => Ok(Self::Fpisa),
            3 => Ok(Self::FpisaA),
            4 => Ok(Self::LogTable),
            5 => Ok(Self::Ieee),
            6 => Ok(Self::Exact),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for Accumulator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// How a slot combines contributions. Min and And are Max and Or of complements, taken at the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Operator {
    /// Sum.
    Add = 0,
    /// Largest, as signed 32-bit integers.
    Max = 1,
    /// Bitwise or; also carries all-gather and broadcast, where one worker holds the words and the others zeros.
    Or = 2,
    /// Bitwise exclusive or.
    Xor = 3,
}

impl Operator {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 4] = [Self::Add, Self::Max, Self::Or, Self::Xor];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Max => "max",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }
}

impl TryFrom<u8> for Operator {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Add),
            1 => Ok(Self::Max),
            2 => Ok(Self::Or),
            3 => Ok(Self::Xor),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for Operator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// What a Probe asks for, in its `echo` field. A switch that does not know it answers as to Unicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ProbePath {
    /// An answer to the sender.
    Unicast = 0,
    /// An answer to the lane's multicast group instead, which shows whether the network carries it.
    MulticastTest = 1,
    /// An answer to the sender, who from now on takes Aggregates for all ranks from the lane's multicast group.
    MulticastUse = 2,
}

impl ProbePath {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 3] = [Self::Unicast, Self::MulticastTest, Self::MulticastUse];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::MulticastTest => "multicast_test",
            Self::MulticastUse => "multicast_use",
        }
    }
}

impl TryFrom<u8> for ProbePath {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Unicast),
            1 => Ok(Self::MulticastTest),
            2 => Ok(Self::MulticastUse),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for ProbePath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// What an ATP datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AtpKind {
    /// From a worker towards the server: elements of one chunk, perhaps summed on the way.
    Fragment = 1,
    /// From the server: the sum of one chunk over all workers; frees its slots on the way down.
    Parameter = 2,
    /// From a switch or the server: the Fragment was not used; `detail` says why.
    Refusal = 3,
    /// From a worker to the server: asks whether datagrams of this length get there and back; touches no slot.
    Probe = 4,
    /// From the server to one worker: an answer as long as the Probe.
    ProbeReply = 5,
}

impl AtpKind {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 5] = [Self::Fragment, Self::Parameter, Self::Refusal, Self::Probe, Self::ProbeReply];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fragment => "fragment",
            Self::Parameter => "parameter",
            Self::Refusal => "refusal",
            Self::Probe => "probe",
            Self::ProbeReply => "probe_reply",
        }
    }
}

impl TryFrom<u8> for AtpKind {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            1 => Ok(Self::Fragment),
            2 => Ok(Self::Parameter),
            3 => Ok(Self::Refusal),
            4 => Ok(Self::Probe),
            5 => Ok(Self::ProbeReply),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for AtpKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// How elements of an ATP datagram are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AtpElementFormat {
    /// 32-bit two's complement, big-endian; sums wrap: integers, raw words.
    Int32 = 0,
    /// Fixed point, big-endian: a float32 times ATP_SCALE, or times the power of two that `scale` stands for, rounded; sums saturate, and the two outermost values say so (ATP §3.8).
    Fixed32 = 1,
    /// IEEE binary32, big-endian: only the server adds them, after an overflow.
    Float32 = 2,
    /// IEEE binary32 as it lies in memory: little-endian. The job's accumulator adds it.
    RawFloat32 = 4,
    /// IEEE binary16 as it lies in memory: little-endian. The job's accumulator adds it.
    RawFloat16 = 5,
    /// bfloat16 as it lies in memory: little-endian. The job's accumulator adds it.
    RawBfloat16 = 6,
}

impl AtpElementFormat {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 6] =
        [Self::Int32, Self::Fixed32, Self::Float32, Self::RawFloat32, Self::RawFloat16, Self::RawBfloat16];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int32 => "int32",
            Self::Fixed32 => "fixed32",
            Self::Float32 => "float32",
            Self::RawFloat32 => "raw_float32",
            Self::RawFloat16 => "raw_float16",
            Self::RawBfloat16 => "raw_bfloat16",
        }
    }
}

impl TryFrom<u8> for AtpElementFormat {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Int32),
            1 => Ok(Self::Fixed32),
            2 => Ok(Self::Float32),
            4 => Ok(Self::RawFloat32),
            5 => Ok(Self::RawFloat16),
            6 => Ok(Self::RawBfloat16),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for AtpElementFormat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// What a PANAMA datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PanamaKind {
    /// Up: a worker's elements, or the sum of everything below a switch.
    Contribution = 1,
    /// Down: the sum over all workers of the tree.
    Result = 2,
    /// Down: a Contribution was not used; `detail` says why.
    Refusal = 3,
}

impl PanamaKind {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 3] = [Self::Contribution, Self::Result, Self::Refusal];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contribution => "contribution",
            Self::Result => "result",
            Self::Refusal => "refusal",
        }
    }
}

impl TryFrom<u8> for PanamaKind {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            1 => Ok(Self::Contribution),
            2 => Ok(Self::Result),
            3 => Ok(Self::Refusal),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for PanamaKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// How elements of a PANAMA datagram are coded; switches add them as floats of 32 bits (PANAMA §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PanamaElementFormat {
    /// IEEE binary32, big-endian.
    Float32 = 0,
    /// IEEE binary16, big-endian; each switch rounds its sum to it.
    Float16 = 1,
    /// bfloat16, big-endian; each switch rounds its sum to it.
    Bfloat16 = 2,
}

impl PanamaElementFormat {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 3] = [Self::Float32, Self::Float16, Self::Bfloat16];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
        }
    }
}

impl TryFrom<u8> for PanamaElementFormat {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Float32),
            1 => Ok(Self::Float16),
            2 => Ok(Self::Bfloat16),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for PanamaElementFormat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
/// Payload size code of a p4app-switchML packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum P4appSize {
    /// 128 bytes, 32 elements.
    Elements32 = 0,
    /// 256 bytes, 64 elements.
    Elements64 = 1,
    /// 512 bytes, 128 elements.
    Elements128 = 2,
    /// 1024 bytes, 256 elements.
    Elements256 = 3,
}

impl P4appSize {
    /// Every value, in the order of its code.
    pub const ALL: [Self; 4] = [Self::Elements32, Self::Elements64, Self::Elements128, Self::Elements256];

    /// Code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Name in logs and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elements32 => "elements32",
            Self::Elements64 => "elements64",
            Self::Elements128 => "elements128",
            Self::Elements256 => "elements256",
        }
    }
}

impl TryFrom<u8> for P4appSize {
    /// The code that no value has.
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        match code {
            0 => Ok(Self::Elements32),
            1 => Ok(Self::Elements64),
            2 => Ok(Self::Elements128),
            3 => Ok(Self::Elements256),
            _ => Err(code),
        }
    }
}

impl core::fmt::Display for P4appSize {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
// fanin datagram, version 1.

/// Bytes of the header: fanin datagram, version 1.
pub const HEADER_BYTES: usize = 40;

/// Where `magic`, u16, lies. 0xFA91. Anything else is not ours and is dropped as BadMagic.
pub const MAGIC_OFFSET: usize = 0;

/// Where `version`, u8, lies. 1. The layout after this byte may differ in another version, so nothing below is read before it is checked.
pub const VERSION_OFFSET: usize = 2;

/// Where `kind`, u8, lies. What the packet is: see Kind.
pub const KIND_OFFSET: usize = 3;

/// Where `job_id`, u32, lies. The job, as given by the controller on Join.
pub const JOB_ID_OFFSET: usize = 4;

/// Bits of `job_id` that hold `job_generation`. Counts the jobs that have had this number, so that a packet of an older job is told apart.
pub const JOB_GENERATION_MASK: u32 = 0xFFFFFF00;

/// How far those bits are shifted up.
pub const JOB_GENERATION_SHIFT: u32 = 8;

/// Bits of `job_id` that hold `job_number`. Number of the job on its switch.
pub const JOB_NUMBER_MASK: u32 = 0xFF;

/// How far those bits are shifted up.
pub const JOB_NUMBER_SHIFT: u32 = 0;

/// Where `job_token`, u32, lies. Random value of this instance of the job; a packet without it cannot touch the job's slots.
pub const JOB_TOKEN_OFFSET: usize = 8;

/// Where `worker_rank`, u16, lies. Contribution: the sender's rank. Aggregate and Refusal: the receiver's rank when sent by unicast, RANK_ALL when multicast.
pub const WORKER_RANK_OFFSET: usize = 12;

/// Where `slot`, u16, lies. The slot of the job's pool that sums this chunk, and which of its two copies.
pub const SLOT_OFFSET: usize = 14;

/// Bits of `slot` that hold `slot_parity`. Which of the slot's two copies (SwitchML's shadow copy, Alg. 3 `ver`).
pub const SLOT_PARITY_MASK: u16 = 0x8000;

/// How far those bits are shifted up.
pub const SLOT_PARITY_SHIFT: u32 = 15;

/// Bits of `slot` that hold `slot_index`. lane_index * slots_per_lane + (chunk_index mod slots_per_lane).
pub const SLOT_INDEX_MASK: u16 = 0x7FFF;

/// How far those bits are shifted up.
pub const SLOT_INDEX_SHIFT: u32 = 0;

/// Where `chunk_index`, u32, lies. Position of the chunk in its lane's stream; starts at 0 and wraps modulo 2^32. Tells apart two uses of one slot, which the parity bit alone does not.
pub const CHUNK_INDEX_OFFSET: usize = 16;

/// Where `collective_tag`, u32, lies. Hash of the collective's sequence number, kind, element type, operator, element count and root. All contributions to a chunk carry the same tag. Sums of floats in jobs whose accumulator the switch counts: the upper 16 bits are the tensor's key, a hash without the sequence number but with the label.
pub const COLLECTIVE_TAG_OFFSET: usize = 20;

/// Where `block_exponent_next`, i16, lies. Contribution: the sender's block exponent for its next chunk on this slot. Aggregate: the largest one over all workers. The values above BLOCK_EXPONENT_MAX are sentinels.
pub const BLOCK_EXPONENT_NEXT_OFFSET: usize = 24;

/// Where `element_count`, u16, lies. Elements in the payload. A Contribution with 0 elements counts as zeros; an Aggregate with 0 elements carries only its header (the payload went to `destination`).
pub const ELEMENT_COUNT_OFFSET: usize = 26;

/// Where `format_and_operator`, u8, lies. How the payload is coded and summed.
pub const FORMAT_AND_OPERATOR_OFFSET: usize = 28;

/// Bits of `format_and_operator` that hold `operator`. See Operator.
pub const OPERATOR_MASK: u8 = 0xF0;

/// How far those bits are shifted up.
pub const OPERATOR_SHIFT: u32 = 4;

/// Bits of `format_and_operator` that hold `element_format`. See ElementFormat.
pub const ELEMENT_FORMAT_MASK: u8 = 0xF;

/// How far those bits are shifted up.
pub const ELEMENT_FORMAT_SHIFT: u32 = 0;

/// Where `detail`, u8, lies. Contribution: number of the attempt, 0 for the first, stays at 255. Aggregate: the attempt it answers. Refusal: code of the DropReason.
pub const DETAIL_OFFSET: usize = 29;

/// Where `destination`, u16, lies. Rank that is sent the summed payload; the others get a header only. RANK_ALL: every rank.
pub const DESTINATION_OFFSET: usize = 30;

/// Where `echo`, u32, lies. Probe: see ProbePath. Aggregate of Int8: the shift by which the sum was divided, 0 to INT8_SHIFT_MAX; each byte counts 2^shift steps. Aggregate of raw and Fixed32 elements: how many of them have left their format; if there are any, no element is used and the block is sent again as Int32. Otherwise sent as 0 by a version 1 worker, and echoed by the switch: room for extensions without a new version.
pub const ECHO_OFFSET: usize = 32;

/// Where `checksum`, u32, lies. CRC-32C (Castagnoli) of the whole UDP payload with this field taken as zero.
pub const CHECKSUM_OFFSET: usize = 36;

// p4app-switchML UDP header.

/// Bytes of the header: p4app-switchML UDP header.
pub const P4APP_HEADER_BYTES: usize = 10;

/// Where `type_and_size`, u8, lies. Packet type and payload size.
pub const P4APP_TYPE_AND_SIZE_OFFSET: usize = 0;

/// Bits of `type_and_size` that hold `job_type`. P4APP_JOB_TYPE_ALL_REDUCE is the only one in use.
pub const P4APP_JOB_TYPE_MASK: u8 = 0xF0;

/// How far those bits are shifted up.
pub const P4APP_JOB_TYPE_SHIFT: u32 = 4;

/// Bits of `type_and_size` that hold `unused`. Zero.
pub const P4APP_UNUSED_MASK: u8 = 0x8;

/// How far those bits are shifted up.
pub const P4APP_UNUSED_SHIFT: u32 = 3;

/// Bits of `type_and_size` that hold `size_code`. See P4appSize.
pub const P4APP_SIZE_CODE_MASK: u8 = 0x7;

/// How far those bits are shifted up.
pub const P4APP_SIZE_CODE_SHIFT: u32 = 0;

/// Where `job_number`, u8, lies. Low 8 bits of the client's job id; the switch echoes it, only the client reads it.
pub const P4APP_JOB_NUMBER_OFFSET: usize = 1;

/// Where `packet_id`, u32, lies. The client's packet number (`tsi` in the P4 source), in the client's byte order: opaque to the switch, which echoes it.
pub const P4APP_PACKET_ID_OFFSET: usize = 2;

/// Where `slot`, u16, lies. `pool_index` in the P4 source.
pub const P4APP_SLOT_OFFSET: usize = 6;

/// Bits of `slot` that hold `slot_parity`. The `set` bit.
pub const P4APP_SLOT_PARITY_MASK: u16 = 0x8000;

/// How far those bits are shifted up.
pub const P4APP_SLOT_PARITY_SHIFT: u32 = 15;

/// Bits of `slot` that hold `slot_index`. Slot of the switch's pool.
pub const P4APP_SLOT_INDEX_MASK: u16 = 0x7FFF;

/// How far those bits are shifted up.
pub const P4APP_SLOT_INDEX_SHIFT: u32 = 0;

/// Where `block_exponent`, i8, lies. Block exponent; the switch returns the largest one of all workers.
pub const P4APP_BLOCK_EXPONENT_OFFSET: usize = 8;

/// Where `block_exponent_second`, i8, lies. Second exponent of the layout. The public client leaves it unused; the switch merges it the same way.
pub const P4APP_BLOCK_EXPONENT_SECOND_OFFSET: usize = 9;

// ATP datagram, version 1.

/// Bytes of the header: ATP datagram, version 1.
pub const ATP_HEADER_BYTES: usize = 64;

/// Where `magic`, u16, lies. 0xFA92. It tells ATP from the fanin datagram on the same port.
pub const ATP_MAGIC_OFFSET: usize = 0;

/// Where `version`, u8, lies. 1. Nothing below is read before it is checked.
pub const ATP_VERSION_OFFSET: usize = 2;

/// Where `kind`, u8, lies. What the packet is: see AtpKind.
pub const ATP_KIND_OFFSET: usize = 3;

/// Where `job_id`, u32, lies. The job, as given by the controller on Join: number in the low 8 bits, generation above.
pub const ATP_JOB_ID_OFFSET: usize = 4;

/// Where `job_token`, u32, lies. Random value of this instance of the job.
pub const ATP_JOB_TOKEN_OFFSET: usize = 8;

/// Where `chunk_index`, u32, lies. Position of the chunk in its lane's stream (the paper's sequence number); starts at 0 and wraps modulo 2^32.
pub const ATP_CHUNK_INDEX_OFFSET: usize = 12;

/// Where `collective_tag`, u32, lies. As in the fanin datagram: all Fragments of a chunk carry the same tag.
pub const ATP_COLLECTIVE_TAG_OFFSET: usize = 16;

/// Where `contributed_0`, u32, lies. Children of the switch beside the workers (level 0) that are in the payload, one bit each (the paper's bitmap0). A worker sends one bit at its own level and at each above, 0 below. In a Parameter for one rank: the way down to it.
pub const ATP_CONTRIBUTED_0_OFFSET: usize = 20;

/// Where `contributed_1`, u32, lies. Children of the switch at level 1 that are in the payload, one bit each (the paper's bitmap1). A worker sends one bit at its own level and at each above, 0 below. In a Parameter for one rank: the way down to it.
pub const ATP_CONTRIBUTED_1_OFFSET: usize = 24;

/// Where `contributed_2`, u32, lies. Children of the switch at level 2, see contributed_0 (ATP App. A.2).
pub const ATP_CONTRIBUTED_2_OFFSET: usize = 28;

/// Where `contributed_3`, u32, lies. Children of the switch at level 3, see contributed_0 (ATP App. A.2).
pub const ATP_CONTRIBUTED_3_OFFSET: usize = 32;

/// Where `fan_in_0`, u8, lies. Children of the switch beside the workers (level 0) on this worker's way: how many there are (the paper's fanInDegree0). 0 below the worker's own level and above the root. In a Parameter, the four degrees are one word with a bit for each rank that `detail` counts, if all ranks are below 32.
pub const ATP_FAN_IN_0_OFFSET: usize = 36;

/// Where `fan_in_1`, u8, lies. Children of the switch at level 1 on this worker's way: how many there are (the paper's fanInDegree1). 0 below the worker's own level and above the root.
pub const ATP_FAN_IN_1_OFFSET: usize = 37;

/// Where `fan_in_2`, u8, lies. Children of the switch at level 2, see fan_in_0.
pub const ATP_FAN_IN_2_OFFSET: usize = 38;

/// Where `fan_in_3`, u8, lies. Children of the switch at level 3, see fan_in_0.
pub const ATP_FAN_IN_3_OFFSET: usize = 39;

/// Where `level`, u8, lies. Level of the switch that handles the packet next (the paper's edgeSwitchIdentifier); each switch adds one. At the server: the number of levels.
pub const ATP_LEVEL_OFFSET: usize = 40;

/// Where `flags`, u8, lies. Directions.
pub const ATP_FLAGS_OFFSET: usize = 41;

/// Bits of `flags` that hold `unused_flags`. Zero.
pub const ATP_UNUSED_FLAGS_MASK: u8 = 0xF0;

/// How far those bits are shifted up.
pub const ATP_UNUSED_FLAGS_SHIFT: u32 = 4;

/// Bits of `flags` that hold `is_saturated`. Parameter: some sum left 32 bits, or the accumulator's format: send the chunk again as Float32. Fragment: sent because of that.
pub const ATP_IS_SATURATED_MASK: u8 = 0x8;

/// How far those bits are shifted up.
pub const ATP_IS_SATURATED_SHIFT: u32 = 3;

/// Bits of `flags` that hold `collision`. A switch found the slot taken by another chunk and passed the packet on.
pub const ATP_COLLISION_MASK: u8 = 0x4;

/// How far those bits are shifted up.
pub const ATP_COLLISION_SHIFT: u32 = 2;

/// Bits of `flags` that hold `ecn`. A queue on the way was longer than its threshold.
pub const ATP_ECN_MASK: u8 = 0x2;

/// How far those bits are shifted up.
pub const ATP_ECN_SHIFT: u32 = 1;

/// Bits of `flags` that hold `resend`. Not to be aggregated on the way; frees the slot of its chunk.
pub const ATP_RESEND_MASK: u8 = 0x1;

/// How far those bits are shifted up.
pub const ATP_RESEND_SHIFT: u32 = 0;

/// Where `lane`, u16, lies. The lane; chunk indices count per lane.
pub const ATP_LANE_OFFSET: usize = 42;

/// Where `slot_index`, u16, lies. The slot in which switches aggregate the chunk (the paper's aggregatorIndex).
pub const ATP_SLOT_INDEX_OFFSET: usize = 44;

/// Where `slot_index_next`, u16, lies. Parameter: the slot of the chunk that is one window further on; the same if nothing collided.
pub const ATP_SLOT_INDEX_NEXT_OFFSET: usize = 46;

/// Where `worker_rank`, u16, lies. Fragment: the sender's rank, RANK_ALL once switches have aggregated it. Parameter: the receiver's, or RANK_ALL.
pub const ATP_WORKER_RANK_OFFSET: usize = 48;

/// Where `element_count`, u16, lies. Elements in the payload. A Fragment with 0 elements counts as zeros.
pub const ATP_ELEMENT_COUNT_OFFSET: usize = 50;

/// Where `format_and_operator`, u8, lies. How the payload is coded and summed.
pub const ATP_FORMAT_AND_OPERATOR_OFFSET: usize = 52;

/// Bits of `format_and_operator` that hold `operator`. See Operator.
pub const ATP_OPERATOR_MASK: u8 = 0xF0;

/// How far those bits are shifted up.
pub const ATP_OPERATOR_SHIFT: u32 = 4;

/// Bits of `format_and_operator` that hold `element_format`. See AtpElementFormat.
pub const ATP_ELEMENT_FORMAT_MASK: u8 = 0xF;

/// How far those bits are shifted up.
pub const ATP_ELEMENT_FORMAT_SHIFT: u32 = 0;

/// Where `detail`, u8, lies. Refusal: code of the DropReason. Fragment: number of the attempt, 0 for the first, stays at 255. Parameter: workers whose contributions are not in the sum.
pub const ATP_DETAIL_OFFSET: usize = 53;

/// Where `destination`, u16, lies. Rank that is sent the payload of the Parameter; the others get a header only. RANK_ALL: every rank.
pub const ATP_DESTINATION_OFFSET: usize = 54;

/// Where `scale`, u8, lies. Of a chunk of floats: 0 where Fixed32 counts units of 1/ATP_SCALE, else the chunk's exponent m, sent as m - BLOCK_EXPONENT_MIN + ATP_SCALE_CODE_MIN: f is that of block fixed point (spec/NUMERICS.md). Equal in all of a chunk's packets.
pub const ATP_SCALE_OFFSET: usize = 56;

/// Where `scale_next`, u8, lies. Fragment: the exponent of the sender's chunk one window further on, coded as `scale`; 0: not known yet; ATP_SCALE_CODE_NONE: nothing to scale; 255: not finite. Switches and server keep the largest, but 0 above all (ATP App. B.3). Parameter: `scale` of that chunk.
pub const ATP_SCALE_NEXT_OFFSET: usize = 57;

/// Where `echo`, u16, lies. Fragment of raw elements, and a Parameter with `is_saturated`: how many elements of the sum have left the accumulator's format, at most 65,535. Otherwise sent as 0, not changed by switches: room for extensions without a new version.
pub const ATP_ECHO_OFFSET: usize = 58;

/// Where `checksum`, u32, lies. CRC-32C (Castagnoli) of the whole UDP payload with this field taken as zero.
pub const ATP_CHECKSUM_OFFSET: usize = 60;

// PANAMA datagram, version 1.

/// Bytes of the header: PANAMA datagram, version 1.
pub const PANAMA_HEADER_BYTES: usize = 40;

/// Where `magic`, u16, lies. 0xFA93. It tells PANAMA from the other datagrams on the same port.
pub const PANAMA_MAGIC_OFFSET: usize = 0;

/// Where `version`, u8, lies. 1. Nothing below is read before it is checked.
pub const PANAMA_VERSION_OFFSET: usize = 2;

/// Where `kind`, u8, lies. What the packet is: see PanamaKind.
pub const PANAMA_KIND_OFFSET: usize = 3;

/// Where `job_id`, u32, lies. The job (the paper's JID): number in the low 8 bits, generation above.
pub const PANAMA_JOB_ID_OFFSET: usize = 4;

/// Where `job_token`, u32, lies. Random value of this instance of the job.
pub const PANAMA_JOB_TOKEN_OFFSET: usize = 8;

/// Where `vid`, u32, lies. Place of the packet in its tree's stream (the paper's VID); starts at 0 and wraps modulo 2^32.
pub const PANAMA_VID_OFFSET: usize = 12;

/// Where `awaited_vid`, u32, lies. Contribution: the first VID whose Result the sender, and everybody below it, may still lack; results before it need not be kept for it.
pub const PANAMA_AWAITED_VID_OFFSET: usize = 16;

/// Where `collective_tag`, u32, lies. As in the fanin datagram: all Contributions with a VID carry the same tag.
pub const PANAMA_COLLECTIVE_TAG_OFFSET: usize = 20;

/// Where `tree`, u8, lies. Which of the job's aggregation trees (the paper's TID).
pub const PANAMA_TREE_OFFSET: usize = 24;

/// Where `flags`, u8, lies. Directions.
pub const PANAMA_FLAGS_OFFSET: usize = 25;

/// Bits of `flags` that hold `unused_flags`. Zero.
pub const PANAMA_UNUSED_FLAGS_MASK: u8 = 0xF8;

/// How far those bits are shifted up.
pub const PANAMA_UNUSED_FLAGS_SHIFT: u32 = 3;

/// Bits of `flags` that hold `resend`. Sent again; a switch that has summed it sends its sum or the Result again.
pub const PANAMA_RESEND_MASK: u8 = 0x4;

/// How far those bits are shifted up.
pub const PANAMA_RESEND_SHIFT: u32 = 2;

/// Bits of `flags` that hold `ecn`. Congestion experienced, on the way up by any of what was summed, or on the way down.
pub const PANAMA_ECN_MASK: u8 = 0x2;

/// How far those bits are shifted up.
pub const PANAMA_ECN_SHIFT: u32 = 1;

/// Bits of `flags` that hold `fin`. The sender's last packet in this tree; it has no elements, and resets the tree at the switches.
pub const PANAMA_FIN_MASK: u8 = 0x1;

/// How far those bits are shifted up.
pub const PANAMA_FIN_SHIFT: u32 = 0;

/// Where `cwnd_cap`, u16, lies. Packets that the fullest switch on the way has room for, for each port of this tree. A worker starts with 65535.
pub const PANAMA_CWND_CAP_OFFSET: usize = 26;

/// Where `worker_count`, u16, lies. Workers whose contributions are in the payload.
pub const PANAMA_WORKER_COUNT_OFFSET: usize = 28;

/// Where `worker_rank`, u16, lies. Contribution: the sender's rank, RANK_ALL for a sum. Result: RANK_ALL.
pub const PANAMA_WORKER_RANK_OFFSET: usize = 30;

/// Where `element_count`, u16, lies. Elements in the payload. A Contribution with 0 elements counts as zeros.
pub const PANAMA_ELEMENT_COUNT_OFFSET: usize = 32;

/// Where `element_format`, u8, lies. How elements are coded: see PanamaElementFormat.
pub const PANAMA_ELEMENT_FORMAT_OFFSET: usize = 34;

/// Where `detail`, u8, lies. Refusal: code of the DropReason. Contribution: number of the attempt, 0 for the first, stays at 255.
pub const PANAMA_DETAIL_OFFSET: usize = 35;

/// Where `checksum`, u32, lies. CRC-32C (Castagnoli) of the whole UDP payload with this field taken as zero.
pub const PANAMA_CHECKSUM_OFFSET: usize = 36;
