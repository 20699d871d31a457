//! A look at a job's slots, for the hang explainer and the dashboard.

use fanin_protocol::switchml::{JobConfig, JobSnapshot, LaneSnapshot, StuckSlot};
use fanin_protocol::time::Time;

use crate::state::{Copy, Slot};

/// Slots that are named per lane; the rest are only counted.
const STUCK_SLOTS_MAX: usize = 4;

pub(crate) fn take(
    config: &JobConfig,
    slot: impl Fn(u32) -> Option<Slot>,
    seen: impl Fn(u16) -> Option<Time>,
) -> JobSnapshot {
    let lanes = (0..config.lane_count).map(|lane| take_lane(config, lane, &slot));
    let lanes: Vec<LaneSnapshot> = lanes.filter(|lane| lane.slots_in_use > 0).collect();
    JobSnapshot {
        slots_in_use: lanes.iter().map(|lane| lane.slots_in_use).sum(),
        last_seen: (0..config.worker_count).map(seen).collect(),
        lanes,
    }
}

fn take_lane(config: &JobConfig, lane: u16, slot: impl Fn(u32) -> Option<Slot>) -> LaneSnapshot {
    let first = u32::from(lane) * config.slots_per_lane;
    let mut oldest = Vec::new();
    for slot_index in first..first + config.slots_per_lane {
        let Some(slot) = slot(slot_index) else { continue };
        let waiting = slot.copies.iter().enumerate().filter(|(_, copy)| copy.contribution_count != 0);
        oldest.extend(waiting.map(|(parity, copy)| stuck(config, slot_index, parity, copy)));
    }
    let slots_in_use = oldest.len() as u32;
    oldest.sort_by_key(|slot| slot.chunk_index);
    oldest.truncate(STUCK_SLOTS_MAX);
    LaneSnapshot { lane, slots_in_use, oldest }
}

fn stuck(config: &JobConfig, slot_index: u32, parity: usize, copy: &Copy) -> StuckSlot {
    StuckSlot {
        slot_index: slot_index as u16,
        slot_parity: parity as u8,
        chunk_index: copy.chunk_index,
        collective_tag: copy.collective_tag,
        missing_ranks: (0..config.worker_count).filter(|&rank| !copy.has_contributed(rank)).collect(),
    }
}
