//! The collectives that simulated workers run, and what each worker puts in.
//!
//! Inputs are functions of a seed, so neither workers nor the oracle keep
//! tensors: each asks for the element it needs.

use fanin_numeric::float16;
use fanin_protocol::switchml::{BlockId, Participants, Shape, Submission};
use fanin_wire::{ElementFormat, Operator};

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everyone contributes and receives.
    AllReduce,
    /// Everyone contributes, `root` receives.
    Reduce {
        /// The receiver.
        root: u16,
    },
    /// Everyone contributes, rank `s` receives shard `s`.
    ReduceScatter,
    /// Rank `s` contributes shard `s`, everyone receives.
    AllGather,
    /// `root` contributes, everyone receives.
    Broadcast {
        /// The contributor.
        root: u16,
    },
    /// No elements.
    Barrier,
}

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// 32-bit words, combined as they are.
    Words,
    /// Numbers that are summed.
    Floats {
        /// Chance of an infinity or a NaN per element.
        non_finite_ppm: u32,
    },
}

/// One collective of a job; equal at all its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Position in the job's sequence of collectives.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// What its elements are.
    pub data: Data,
    /// How elements are combined.
    pub operator: Operator,
    /// How elements are encoded.
    pub element_format: ElementFormat,
    /// Elements of one shard.
    pub shard_elements: u64,
    /// Source of the inputs.
    pub seed: u64,
}

impl Collective {
    /// Each lane's share, in consecutive ranges; lanes without blocks have
    /// none.
    pub fn submissions(&self, worker_count: u16, lane_count: u16, element_count_max: u16) -> Vec<(u16, Submission)> {
        let shape = self.shape(worker_count, element_count_max);
        let blocks = shape.block_count();
        let lanes = u64::from(lane_count);
        let share = |lane: u64| (blocks * lane / lanes) as u32;
        (0..lanes)
            .map(|lane| (lane as u16, share(lane), share(lane + 1)))
            .filter(|(_, first, end)| first < end)
            .map(|(lane, first, end)| (lane, self.submission(shape, first, end - first)))
            .collect()
    }

    fn shape(&self, worker_count: u16, element_count_max: u16) -> Shape {
        let shard_count = if self.is_sharded() { worker_count } else { 1 };
        Shape { shard_count, shard_elements: self.shard_elements, block_elements: element_count_max }
    }

    fn submission(&self, shape: Shape, block_first: u32, block_count: u32) -> Submission {
        let (contributors, receivers) = self.participants();
        Submission {
            id: self.id,
            collective_tag: self.tag(),
            shape,
            block_first,
            block_count,
            contributors,
            receivers,
            operator: self.operator,
            element_format: self.element_format,
            scaled: self.is_float() && self.element_format.is_block_scaled(),
        }
    }

    fn tag(&self) -> u32 {
        mix(self.seed ^ self.id) as u32
    }

    fn participants(&self) -> (Participants, Participants) {
        use Participants::{Everyone, Rank, ShardOwner};
        match self.kind {
            Kind::AllReduce | Kind::Barrier => (Everyone, Everyone),
            Kind::Reduce { root } => (Everyone, Rank(root)),
            Kind::ReduceScatter => (Everyone, ShardOwner),
            Kind::AllGather => (ShardOwner, Everyone),
            Kind::Broadcast { root } => (Rank(root), Everyone),
        }
    }

    /// Whether there is one shard per worker.
    pub fn is_sharded(&self) -> bool {
        matches!(self.kind, Kind::ReduceScatter | Kind::AllGather)
    }

    /// Whether it is a sum of floats.
    pub fn is_float(&self) -> bool {
        matches!(self.data, Data::Floats { .. })
    }

    /// Whether `rank` puts elements into this shard.
    pub fn contributes(&self, rank: u16, shard: u16) -> bool {
        match self.kind {
            Kind::AllGather => rank == shard,
            Kind::Broadcast { root } => rank == root,
            _ => true,
        }
    }

    /// Whether `rank` gets this shard's result.
    pub fn receives(&self, rank: u16, shard: u16) -> bool {
        match self.kind {
            Kind::ReduceScatter => rank == shard,
            Kind::Reduce { root } => rank == root,
            _ => true,
        }
    }

    /// Shard of a block, its first element and its number of elements.
    pub fn place(&self, id: BlockId, element_count_max: u16) -> (u16, u64, u64) {
        let k = u64::from(element_count_max);
        let per_shard = self.shard_elements.div_ceil(k).max(1);
        let (shard, block) = (u64::from(id.block) / per_shard, u64::from(id.block) % per_shard);
        let first = block * k;
        (shard as u16, first, (self.shard_elements - first).min(k))
    }

    /// A worker's element, as a word.
    pub fn word(&self, rank: u16, shard: u16, element: u64) -> i32 {
        self.bits(rank, shard, element) as i32
    }

    /// A worker's element, as a number, of the 16-bit type if those travel as they are. Magnitudes change from block to
    /// block and from worker to worker, so that exponents must be agreed on.
    pub fn number(&self, rank: u16, shard: u16, element: u64) -> f32 {
        let Data::Floats { non_finite_ppm } = self.data else { return 0.0 };
        let bits = self.bits(rank, shard, element);
        if bits >> 44 < u64::from(non_finite_ppm) * (1 << 20) / 1_000_000 {
            return [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][(bits % 3) as usize];
        }
        let magnitude = self.bits(rank, shard, (element / 11) | 1 << 60);
        let exponent = match magnitude % 8 {
            0 => return 0.0,
            3 if self.has_large() => self.exponent_largest() - (magnitude >> 8) % 2,
            1 => (magnitude >> 8) % 250,
            2 => 0,
            _ => 110 + (magnitude >> 8) % 30,
        };
        let sign_and_fraction = bits as u32 & 0x807f_ffff;
        let number = f32::from_bits(sign_and_fraction | (exponent as u32) << 23);
        match self.element_format {
            ElementFormat::RawFloat16 => float16::f16_to_f32(float16::f32_to_f16(number)),
            ElementFormat::RawBfloat16 => float16::bf16_to_f32(float16::f32_to_bf16(number)),
            _ => number,
        }
    }

    /// Whether some workers have numbers of which few are more than the elements' format holds.
    fn has_large(&self) -> bool {
        !self.element_format.is_block_scaled() && mix(self.seed).is_multiple_of(3)
    }

    fn exponent_largest(&self) -> u64 {
        if self.element_format == ElementFormat::RawFloat16 { 127 + 15 } else { 254 }
    }

    fn bits(&self, rank: u16, shard: u16, element: u64) -> u64 {
        mix(mix(self.seed ^ u64::from(rank) << 48 ^ u64::from(shard) << 32) ^ element)
    }
}

/// Finaliser of splitmix64.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
