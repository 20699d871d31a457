//! How much a switch has, in slots, bytes and job numbers.

use std::collections::VecDeque;

use fanin_wire::Accumulator;

use crate::Algorithm;
use crate::topology::Topology;

use super::JobShape;

/// Slot indices have 15 bits on the wire (the 16th is the parity), and a job's lanes share them.
const SLOT_COUNT_MAX: u32 = 1 << 15;
/// Job numbers have 8 bits.
pub(super) const JOB_NUMBER_COUNT: u32 = 256;
/// Generations have 24 bits and wrap.
const GENERATION_MASK: u32 = 0x00ff_ffff;

/// What a switch allows. All times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slot memory of all jobs together, in bytes.
    pub slot_memory_bytes: u64,
    /// At most 256.
    pub job_count_max: u32,
    /// At most 256.
    pub world_size_max: u16,
    /// Lanes of one job.
    pub lane_count_max: u16,
    /// Elements of one packet.
    pub element_count_max: u16,
    /// Offered to workers that let the switch choose; a power of two.
    pub slots_per_lane_default: u32,
    /// Silence after which a worker is taken for lost.
    pub lease_ms: u64,
    /// How long a broken job is kept so that its workers can ask what it waited for.
    pub broken_kept_ms: u64,
    /// Longest time that a `Join` may wait for the other ranks.
    pub wait_ms_max: u64,
    /// Whether every job's datagrams carry a checksum, also where all its ranks can do without.
    pub has_checksum: bool,
    /// Slots of each data-plane thread that ATP jobs share.
    pub atp_slot_count: u16,
    /// The switches of which this one is the root.
    pub topology: Topology,
}

impl Default for Limits {
    /// 256 MiB of slots, 256 jobs. 128 slots per lane cover 10 Gbit/s × 100 µs with 1 KiB packets (SwitchML App. C);
    /// a worker that knows its path better asks for its own number.
    fn default() -> Self {
        Self {
            slot_memory_bytes: 256 << 20,
            job_count_max: JOB_NUMBER_COUNT,
            world_size_max: 256,
            lane_count_max: 64,
            element_count_max: 2048,
            slots_per_lane_default: 128,
            lease_ms: 10_000,
            broken_kept_ms: 30_000,
            wait_ms_max: 30 * 60 * 1000,
            has_checksum: true,
            atp_slot_count: 4096,
            topology: Topology::default(),
        }
    }
}

impl Limits {
    /// Most slots of one lane that the 15-bit slot index leaves to a job with `lane_count` lanes; a power of two.
    pub fn slots_per_lane_bound(&self, lane_count: u32) -> u32 {
        let most = SLOT_COUNT_MAX / lane_count.max(1);
        1 << most.max(1).ilog2()
    }
}

/// Bytes of slot memory of a job: lanes × slots × 2 parities × elements × bytes of an element. Where slots are shared, there are no
/// parities, and the words are nobody's; what an accumulator of floats has beside them is there for the slots of a window.
pub fn slot_memory_bytes(shape: &JobShape, slots_per_lane: u32, element_count_max: u16) -> u64 {
    let element_count = u64::from(shape.lane_count) * u64::from(slots_per_lane) * u64::from(element_count_max);
    let element_bytes = element_state_bytes(shape.accumulator);
    match shape.algorithm {
        Algorithm::Switchml => element_count * 2 * element_bytes,
        Algorithm::Atp => element_count * (element_bytes - element_state_bytes(Accumulator::BlockFixed)),
    }
}

/// Every element has a word, for sums of integers and what is scaled; accumulators of floats have more beside it.
fn element_state_bytes(accumulator: Accumulator) -> u64 {
    match accumulator {
        Accumulator::BlockFixed | Accumulator::StaticFixed => 4,
        Accumulator::Fpisa | Accumulator::FpisaA => 4 + 1,
        Accumulator::Ieee | Accumulator::LogTable => 4 + 4,
        // Nine words of 64 bits and marks, and two words and marks for float16.
        Accumulator::Exact => 4 + 80 + 24,
    }
}

/// Hands out job ids whose number is free and whose generation is new.
pub(super) struct JobNumbers {
    /// Freed numbers go to the back: a number rests as long as possible, because the p4app-switchML format carries
    /// nothing but the number, so a late packet is only told apart by time.
    free: VecDeque<u8>,
    generation: u32,
}

impl JobNumbers {
    pub(super) fn new(job_count_max: u32, generation_start: u32) -> Self {
        Self {
            free: (0..job_count_max).map(|number| number as u8).collect(),
            generation: generation_start & GENERATION_MASK,
        }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let number = self.free.pop_front()?;
        self.generation = (self.generation + 1) & GENERATION_MASK;
        Some(self.generation << 8 | u32::from(number))
    }

    pub(super) fn give_back(&mut self, job_id: u32) {
        self.free.push_back(job_id as u8);
    }
}
