//! A look at a job's slots, for the hang explainer and the dashboard.

use alloc::vec::Vec;

use super::job::Job;
use super::slot::SlotCopy;
use crate::time::Time;

/// Slots that are named per lane; the rest are only counted.
const STUCK_SLOTS_MAX: usize = 4;

/// State of one job's slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSnapshot {
    /// Slot copies that wait for contributions.
    pub slots_in_use: u32,
    /// When each rank's last admitted packet arrived.
    pub last_seen: Vec<Option<Time>>,
    /// Lanes that have slots waiting.
    pub lanes: Vec<LaneSnapshot>,
}

/// Slots of one lane that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// The lane.
    pub lane: u16,
    /// Slot copies of this lane that wait for contributions.
    pub slots_in_use: u32,
    /// The oldest of them, by chunk index.
    pub oldest: Vec<StuckSlot>,
}

/// A slot copy that waits for contributions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckSlot {
    /// Slot within the job's pool.
    pub slot_index: u16,
    /// Which of its two copies.
    pub slot_parity: u8,
    /// Chunk it is adding up.
    pub chunk_index: u32,
    /// Tag of the collective it belongs to.
    pub collective_tag: u32,
    /// Ranks whose contribution has not come.
    pub missing_ranks: Vec<u16>,
}

pub(super) fn take(job: &Job) -> JobSnapshot {
    let lanes: Vec<LaneSnapshot> =
        (0..job.config.lane_count).map(|lane| take_lane(job, lane)).filter(|lane| lane.slots_in_use > 0).collect();
    JobSnapshot {
        slots_in_use: lanes.iter().map(|lane| lane.slots_in_use).sum(),
        last_seen: job.last_seen.clone(),
        lanes,
    }
}

fn take_lane(job: &Job, lane: u16) -> LaneSnapshot {
    let slots = job.config.slots_per_lane as usize;
    let first = usize::from(lane) * slots;
    let mut oldest: Vec<StuckSlot> = (first..first + slots)
        .flat_map(|slot| [0, 1].map(|parity| (slot, parity)))
        .filter(|&(slot, parity)| !job.slots[slot][parity].is_complete())
        .map(|(slot, parity)| stuck(job, slot, parity, &job.slots[slot][parity]))
        .collect();
    let slots_in_use = oldest.len() as u32;
    oldest.sort_by_key(|slot| slot.chunk_index);
    oldest.truncate(STUCK_SLOTS_MAX);
    LaneSnapshot { lane, slots_in_use, oldest }
}

fn stuck(job: &Job, slot: usize, parity: usize, copy: &SlotCopy) -> StuckSlot {
    StuckSlot {
        slot_index: slot as u16,
        slot_parity: parity as u8,
        chunk_index: copy.chunk_index,
        collective_tag: copy.collective_tag,
        missing_ranks: copy.contributed.missing(job.config.worker_count).collect(),
    }
}
