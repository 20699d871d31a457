//! Cutting a collective into blocks and spreading them over the lanes.

use fanin_control::Algorithm;
use fanin_control::registry::Assignment;
use fanin_protocol::switchml::{Participants, Shape, Submission};
use fanin_protocol::tensor_counts;
use fanin_wire::{Accumulator, ElementFormat, Operator};

use crate::request::{CollectiveKind, DataType, ReduceOp, Request};

/// What the session's job fixes for all its collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunker {
    pub world_size: u16,
    pub lane_count: u16,
    pub element_count_max: u16,
    /// Encoding of float sums that are scaled, of which a packet carries `element_count_max`.
    pub float_format: ElementFormat,
    /// Whether they are, or how else they travel.
    pub accumulator: Accumulator,
    /// Whether the switch counts what float sums meet, tensor by tensor.
    pub counted: bool,
}

impl Chunker {
    /// Of a session with `world_size` contributors to each sum.
    pub fn new(world_size: u16, float_format: ElementFormat, assignment: &Assignment) -> Chunker {
        let (shape, is_atp) = (&assignment.shape, assignment.shape.algorithm == Algorithm::Atp);
        let accumulator = match shape.accumulator {
            // ATP has element formats of its own for what is scaled.
            Accumulator::StaticFixed if is_atp => Accumulator::BlockFixed,
            accumulator => accumulator,
        };
        Chunker {
            world_size,
            lane_count: shape.lane_count,
            element_count_max: assignment.element_count_max,
            float_format,
            accumulator,
            counted: shape.accumulator.is_counted(is_atp),
        }
    }

    /// One submission per lane that gets blocks, with the lane's number.
    ///
    /// Lanes take consecutive ranges, so that each streams through memory; a
    /// collective smaller than the lanes starts at a lane that moves on with
    /// `sequence`, so that small ones do not all load lane 0.
    pub fn split(&self, request: &Request, sequence: u64) -> Vec<(u16, Submission)> {
        let whole = self.whole(request, sequence);
        let block_count = whole.shape.block_count();
        let lane_count = u64::from(self.lane_count).min(block_count);
        (0..lane_count)
            .map(|part| {
                let first = block_count * part / lane_count;
                let end = block_count * (part + 1) / lane_count;
                let lane = self.lane_first(sequence + part);
                let submission = Submission { block_first: first as u32, block_count: (end - first) as u32, ..whole };
                (lane, submission)
            })
            .collect()
    }

    /// The lane that gets a collective's first blocks.
    pub fn lane_first(&self, sequence: u64) -> u16 {
        (sequence % u64::from(self.lane_count)) as u16
    }

    /// Whether the switch counts what a collective's sums meet.
    pub fn is_counted(&self, request: &Request) -> bool {
        self.counted && is_float_sum(request)
    }

    fn whole(&self, request: &Request, sequence: u64) -> Submission {
        let element_format =
            if is_float_sum(request) { self.format_of(request.data_type) } else { ElementFormat::Int32 };
        let (contributors, receivers) = participants(request.kind);
        Submission {
            id: sequence,
            collective_tag: self.tag(request, sequence, element_format),
            shape: self.shape(request),
            block_first: 0,
            block_count: 0,
            contributors,
            receivers,
            operator: operator(request),
            element_format,
            scaled: is_float_sum(request) && element_format.is_block_scaled(),
        }
    }

    /// Where the switch counts what a tensor's sums meet, it is told which tensor they are of; 16 bits are left to the rest. All others'
    /// tags keep their bits.
    fn tag(&self, request: &Request, sequence: u64, element_format: ElementFormat) -> u32 {
        let tag = request.tag(sequence, element_format as u8);
        match self.is_counted(request) {
            true => tensor_counts::tag(request.tensor_key(), (tag ^ tag >> 16) as u16),
            false => tag,
        }
    }

    /// How floats of a type that are summed travel.
    fn format_of(&self, data_type: DataType) -> ElementFormat {
        match (self.accumulator, data_type) {
            (Accumulator::BlockFixed, _) => self.float_format,
            (Accumulator::StaticFixed, _) => ElementFormat::Fixed32,
            (_, DataType::Float16) => ElementFormat::RawFloat16,
            (_, DataType::Bfloat16) => ElementFormat::RawBfloat16,
            (_, _) => ElementFormat::RawFloat32,
        }
    }

    fn shape(&self, request: &Request) -> Shape {
        let shard_count = if request.is_split() { self.world_size } else { 1 };
        let shard_elements = match request.kind {
            CollectiveKind::Barrier => 0,
            _ => wire_elements(request, request.element_count / usize::from(shard_count)),
        };
        Shape { shard_count, shard_elements, block_elements: self.block_elements(request) }
    }

    /// Slots have room for `element_count_max` elements of any format; a
    /// datagram only for that many float elements, or as many bytes of words.
    fn block_elements(&self, request: &Request) -> u16 {
        let word_bytes = ElementFormat::Int32.bytes();
        match is_float_sum(request) {
            true => self.element_count_max,
            // A multiple of 4, so that no 64-bit integer is cut.
            false => (usize::from(self.element_count_max) * self.float_format.bytes() / word_bytes) as u16,
        }
    }
}

/// Floats that are summed travel as scaled integers, or as the job's accumulator has them.
pub(crate) fn is_float_sum(request: &Request) -> bool {
    let float = matches!(request.data_type, DataType::Float32 | DataType::Float16 | DataType::Bfloat16);
    request.kind.combines() && float && matches!(request.operator, ReduceOp::Sum | ReduceOp::Average)
}

/// 32-bit words, or halves, that `element_count` elements take on the wire.
fn wire_elements(request: &Request, element_count: usize) -> u64 {
    let words = if !request.kind.combines() || is_bitwise(request.operator) {
        fanin_numeric::integer::words_for_bytes(element_count * request.data_type.bytes())
    } else if request.data_type == DataType::Int64 {
        element_count * 4
    } else {
        element_count
    };
    words as u64
}

pub(crate) fn is_bitwise(operator: ReduceOp) -> bool {
    matches!(operator, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
}

fn participants(kind: CollectiveKind) -> (Participants, Participants) {
    use Participants::{Everyone, Rank, ShardOwner};
    match kind {
        CollectiveKind::AllReduce | CollectiveKind::Barrier => (Everyone, Everyone),
        CollectiveKind::Reduce { root } => (Everyone, Rank(root)),
        CollectiveKind::ReduceScatter => (Everyone, ShardOwner),
        CollectiveKind::AllGather => (ShardOwner, Everyone),
        CollectiveKind::Broadcast { root } => (Rank(root), Everyone),
    }
}

/// Min and And are Max and Or of complements, which the memory side takes.
fn operator(request: &Request) -> Operator {
    if !request.kind.combines() {
        // One worker's words plus zeros: every target can add.
        return Operator::Add;
    }
    match request.operator {
        ReduceOp::Sum | ReduceOp::Average => Operator::Add,
        ReduceOp::Max | ReduceOp::Min => Operator::Max,
        ReduceOp::BitAnd | ReduceOp::BitOr => Operator::Or,
        ReduceOp::BitXor => Operator::Xor,
    }
}

#[cfg(test)]
mod tests;
