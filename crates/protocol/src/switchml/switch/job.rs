//! One job's share of the switch: its parameters, slots and counters.

use alloc::vec;
use alloc::vec::Vec;

use fanin_numeric::Telemetry;
use fanin_numeric::register_pair::FloatFormat;
use fanin_wire::Accumulator;
use fanin_wire::generated::{ELEMENT_COUNT_MAX, RANK_ALL};

use super::admit::Contribution;
use super::slot::{SlotCopy, SlotPair};
use crate::DropReason;
use crate::float_pool::{FloatPool, Terms};
use crate::switchml::WORKERS_PER_JOB_MAX;
use crate::tensor_counts::TensorTable;
use crate::time::Time;

/// Slots that one job can have over all lanes: slot indices have 15 bits.
const SLOT_COUNT_MAX: u64 = 1 << 15;

/// Which datagram layout a job speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WireFormat {
    /// fanin v1.
    #[default]
    Fanin,
    /// The public p4app-switchML UDP layout.
    P4app,
}

/// What the controller agreed with the workers of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// Workers that contribute to each chunk, 1 to 256.
    pub worker_count: u16,
    /// Independent streams per worker.
    pub lane_count: u16,
    /// Slots of one lane, a power of two.
    pub slots_per_lane: u32,
    /// Largest payload, in elements.
    pub element_count_max: u16,
    /// Layout of the job's datagrams.
    pub wire_format: WireFormat,
    /// Whether fanin datagrams carry a checksum; p4app's have no place for one.
    pub has_checksum: bool,
    /// How sums of floats are added.
    pub accumulator: Accumulator,
}

/// Why a job was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// Another job has the same number.
    JobNumberInUse,
    /// `worker_count` is not within 1 to 256.
    WorkerCount,
    /// `slots_per_lane` is not a power of two, or the job's slots exceed 32,768.
    SlotCount,
    /// `element_count_max` is 0 or above 16,352, or not a size that p4app carries.
    ElementCount,
    /// p4app's layout, and switches below others, have the elements of `block-fixed` only.
    Accumulator,
}

impl JobConfig {
    /// Whether a switch can serve such a job.
    ///
    /// # Errors
    /// The first parameter that is out of bounds.
    pub fn check(&self) -> Result<(), InstallError> {
        if self.worker_count == 0 || self.worker_count > WORKERS_PER_JOB_MAX {
            return Err(InstallError::WorkerCount);
        }
        let slot_count = u64::from(self.slots_per_lane) * u64::from(self.lane_count);
        if !self.slots_per_lane.is_power_of_two() || slot_count == 0 || slot_count > SLOT_COUNT_MAX {
            return Err(InstallError::SlotCount);
        }
        let carried = match self.wire_format {
            WireFormat::Fanin => (1..=ELEMENT_COUNT_MAX).contains(&self.element_count_max),
            WireFormat::P4app => matches!(self.element_count_max, 32 | 64 | 128 | 256),
        };
        if self.wire_format == WireFormat::P4app && self.accumulator != Accumulator::BlockFixed {
            return Err(InstallError::Accumulator);
        }
        if carried { Ok(()) } else { Err(InstallError::ElementCount) }
    }
}

impl JobConfig {
    /// What an accumulator of floats has to know of a sum.
    pub(super) fn terms(&self, format: FloatFormat) -> Terms {
        Terms { format, worker_count: self.worker_count }
    }
}

/// Packets of one job by outcome.
#[derive(Clone, Debug)]
pub struct JobCounters {
    /// Contributions counted into a slot.
    pub contributions: u64,
    /// Chunks completed and multicast.
    pub aggregates: u64,
    /// Aggregates sent again to one worker.
    pub replies: u64,
    /// Additions and read-outs of elements by what an accumulator of floats met.
    pub telemetry: Telemetry,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

#[derive(Clone)]
pub(super) struct Job {
    pub config: JobConfig,
    /// Ranks that a sum may be for: the workers, wherever they are.
    pub destination_count: u16,
    /// By rank, the child that it is behind; empty where the children are the ranks.
    pub child_of_rank: Vec<u16>,
    pub counters: JobCounters,
    /// The counters' telemetry by tensor.
    pub tensors: TensorTable,
    /// When each rank's last admitted packet arrived.
    pub last_seen: Vec<Option<Time>>,
    pub slots: Vec<SlotPair>,
    /// Elements of all copies; see [`Job::values_range`].
    pub values: Vec<i32>,
    /// What accumulators of floats have beside `values`.
    pub floats: FloatPool,
    /// Where the first copy's elements begin in `values`.
    values_first: usize,
}

/// Elements of a cache line. Each copy begins on one: additions are faster
/// when no vector lies across two.
const LINE_ELEMENTS: usize = 16;

impl Job {
    pub fn new(config: JobConfig) -> Job {
        let slot_count = config.slots_per_lane as usize * usize::from(config.lane_count);
        let value_count = slot_count * 2 * stride(&config);
        // Zeroed pages are mapped on first use: a lane served by another
        // data-plane thread costs no memory here.
        let values = vec![0; value_count + LINE_ELEMENTS];
        Job {
            config,
            destination_count: config.worker_count,
            child_of_rank: Vec::new(),
            counters: JobCounters {
                contributions: 0,
                aggregates: 0,
                replies: 0,
                telemetry: Telemetry::default(),
                drops: [0; DropReason::ALL.len()],
            },
            tensors: TensorTable::new(config.accumulator, false),
            last_seen: vec![None; usize::from(config.worker_count)],
            slots: (0..slot_count as u32).map(|slot| fresh_pair(slot, config.slots_per_lane)).collect(),
            values_first: values.as_ptr().align_offset(LINE_ELEMENTS * size_of::<i32>()).min(LINE_ELEMENTS),
            floats: FloatPool::new(
                config.accumulator,
                values.len(),
                stride(&config),
                usize::from(config.element_count_max) * 4,
            ),
            values,
        }
    }

    pub fn pair_mut(&mut self, contribution: &Contribution) -> &mut SlotPair {
        &mut self.slots[usize::from(contribution.slot_index)]
    }

    pub fn copy(&self, contribution: &Contribution) -> &SlotCopy {
        &self.slots[usize::from(contribution.slot_index)][usize::from(contribution.slot_parity)]
    }

    pub fn copy_mut(&mut self, contribution: &Contribution) -> &mut SlotCopy {
        &mut self.pair_mut(contribution)[usize::from(contribution.slot_parity)]
    }

    /// Where the elements of a contribution's slot copy lie in `values`.
    pub fn values_range(&self, contribution: &Contribution, element_count: u16) -> core::ops::Range<usize> {
        self.values_of(contribution.slot_index, contribution.slot_parity, element_count)
    }

    /// Where the elements of a slot copy lie in `values`.
    #[inline]
    pub fn values_of(&self, slot_index: u16, slot_parity: u8, element_count: u16) -> core::ops::Range<usize> {
        let copy = usize::from(slot_index) * 2 + usize::from(slot_parity);
        let start = self.values_first + copy * stride(&self.config);
        start..start + usize::from(element_count)
    }

    /// The elements of all copies, one after another, each with its padding.
    pub fn values_by_copy(&self) -> impl Iterator<Item = &[i32]> {
        self.values[self.values_first..].chunks_exact(stride(&self.config))
    }

    /// The child on the way to the one rank that gets a sum's elements; `None` for everybody.
    #[inline]
    pub fn child_towards(&self, destination: u16) -> Option<u16> {
        let child = self.child_of_rank.get(usize::from(destination)).copied();
        (destination != RANK_ALL).then(|| child.unwrap_or(destination))
    }

    /// Bytes in front of a datagram's elements.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        match self.config.wire_format {
            WireFormat::Fanin => fanin_wire::generated::HEADER_BYTES,
            WireFormat::P4app => fanin_wire::p4app::HEADER_BYTES,
        }
    }

    /// Lane to which a slot belongs.
    #[inline]
    pub fn lane(&self, slot_index: u16) -> u16 {
        // Slots are a power of two; a division would take longer than all the checks.
        (u32::from(slot_index) >> self.config.slots_per_lane.trailing_zeros()) as u16
    }
}

/// Elements from one copy's first to the next one's.
#[inline]
fn stride(config: &JobConfig) -> usize {
    usize::from(config.element_count_max).next_multiple_of(LINE_ELEMENTS)
}

/// Both copies as if the uses before the stream's first had completed, so
/// that the first use needs no special case.
fn fresh_pair(slot_index: u32, slots_per_lane: u32) -> SlotPair {
    let first = slot_index & (slots_per_lane - 1);
    let before = |uses: u32| SlotCopy::new(first.wrapping_sub(uses.wrapping_mul(slots_per_lane)));
    [before(2), before(1)]
}
