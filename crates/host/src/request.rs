//! What a collective is asked to do, and its checks.

use crate::{Error, ErrorKind};

/// Type of the elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16.
    Bfloat16,
    /// Signed 32-bit integer; sums wrap.
    Int32,
    /// Signed 64-bit integer; sums wrap.
    Int64,
    /// Uninterpreted bytes, for collectives that only move data.
    Bytes,
}

impl DataType {
    /// Bytes of one element in memory.
    pub const fn bytes(self) -> usize {
        match self {
            DataType::Float32 | DataType::Int32 => 4,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int64 => 8,
            DataType::Bytes => 1,
        }
    }

    /// Name as PyTorch writes it.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Float32 => "float32",
            DataType::Float16 => "float16",
            DataType::Bfloat16 => "bfloat16",
            DataType::Int32 => "int32",
            DataType::Int64 => "int64",
            DataType::Bytes => "bytes",
        }
    }

    fn is_float(self) -> bool {
        matches!(self, DataType::Float32 | DataType::Float16 | DataType::Bfloat16)
    }
}

/// How elements of the ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Sum divided by the world size; floats only.
    Average,
    /// Maximum; not for int64.
    Max,
    /// Minimum; not for int64.
    Min,
    /// Bitwise and; integers and bytes.
    BitAnd,
    /// Bitwise or; integers and bytes.
    BitOr,
    /// Bitwise exclusive or; integers and bytes.
    BitXor,
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Every rank gets the combination of all inputs.
    AllReduce,
    /// `root` gets the combination of all inputs.
    Reduce {
        /// The receiver.
        root: u16,
    },
    /// Rank r gets part r of the combination of all inputs.
    ReduceScatter,
    /// Every rank gets the inputs of all ranks, in rank order.
    AllGather,
    /// Every rank gets `root`'s input.
    Broadcast {
        /// The sender.
        root: u16,
    },
    /// Nobody leaves before everybody has come.
    Barrier,
}

impl CollectiveKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::Reduce { .. } => "reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::Broadcast { .. } => "broadcast",
            CollectiveKind::Barrier => "barrier",
        }
    }

    pub(crate) fn root(self) -> Option<u16> {
        match self {
            CollectiveKind::Reduce { root } | CollectiveKind::Broadcast { root } => Some(root),
            _ => None,
        }
    }

    /// Whether inputs are combined rather than only moved.
    pub(crate) fn combines(self) -> bool {
        matches!(self, CollectiveKind::AllReduce | CollectiveKind::Reduce { .. } | CollectiveKind::ReduceScatter)
    }
}

/// One collective on memory.
///
/// `element_count` counts the larger side: the input of a reduce-scatter, the
/// output of an all-gather, both of which hold `world_size` equal parts.
/// Input and output may be the same memory; for reduce-scatter and all-gather
/// the smaller may lie in its rank's place of the larger. They must not
/// overlap otherwise.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which collective.
    pub kind: CollectiveKind,
    /// Type of the elements.
    pub data_type: DataType,
    /// How to combine; ignored where nothing is combined.
    pub operator: ReduceOp,
    /// This rank's elements, aligned to their type.
    pub input: *const u8,
    /// Where the result goes, aligned to its type.
    pub output: *mut u8,
    /// Elements of the larger side.
    pub element_count: usize,
    /// Shown in messages beside the collective, for example a bucket's name; the same at all ranks. With an accumulator of floats,
    /// the switch counts causes apart for tensors that differ in nothing else.
    pub label: String,
}

impl Request {
    /// For people: "all_reduce float32 x 1048576 sum".
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} {} x {}", self.kind.name(), self.data_type.name(), self.element_count);
        if self.kind.combines() {
            text += &format!(" {:?}", self.operator).to_lowercase();
        }
        if let Some(root) = self.kind.root() {
            text += &format!(" root {root}");
        }
        if !self.label.is_empty() {
            text += &format!(" ({})", self.label);
        }
        text
    }

    pub(crate) fn check(&self, world_size: u16) -> Result<(), Error> {
        let problem = if self.kind.root().is_some_and(|root| root >= world_size) {
            "the root is not a rank of this group"
        } else if self.kind.combines() && !combinable(self.data_type, self.operator) {
            "the switch has no such operator for this data type"
        } else if self.is_split() && !self.element_count.is_multiple_of(usize::from(world_size)) {
            "the element count must be a multiple of the world size"
        } else if self.element_count > 0
            && self.kind != CollectiveKind::Barrier
            && (misaligned(self.input, self.data_type) || misaligned(self.output, self.data_type))
        {
            "memory must be aligned to the data type"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, format!("{}: {problem}", self.describe())))
    }

    pub(crate) fn is_split(&self) -> bool {
        matches!(self.kind, CollectiveKind::ReduceScatter | CollectiveKind::AllGather)
    }

    /// Equal at all ranks that submit the same collective at the same place
    /// in their order, and very likely different otherwise (FNV-1a).
    pub(crate) fn tag(&self, sequence: u64, element_format: u8) -> u32 {
        let operator = if self.kind.combines() { self.operator as u64 + 1 } else { 0 };
        let root = self.kind.root().map_or(0, |root| u64::from(root) + 1);
        let fields =
            [sequence, self.data_type as u64, operator, root, self.element_count as u64, u64::from(element_format)];
        fnv_1a(self.kind.name().bytes().chain(fields.iter().flat_map(|field| field.to_le_bytes())))
    }

    /// The same for all collectives that [`Request::describe`] has one text for, and very likely different otherwise.
    pub(crate) fn tensor_key(&self) -> u16 {
        let hash = fnv_1a(self.describe().bytes());
        (hash ^ hash >> 16) as u16
    }
}

fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn combinable(data_type: DataType, operator: ReduceOp) -> bool {
    match operator {
        ReduceOp::Sum => data_type != DataType::Bytes,
        ReduceOp::Average => data_type.is_float(),
        ReduceOp::Max | ReduceOp::Min => data_type.is_float() || data_type == DataType::Int32,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => !data_type.is_float(),
    }
}

fn misaligned(pointer: *const u8, data_type: DataType) -> bool {
    !(pointer as usize).is_multiple_of(data_type.bytes())
}
