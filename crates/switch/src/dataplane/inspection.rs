//! What a job waits for, in the controller's words.

use std::net::SocketAddr;

use fanin_protocol::switchml::{JobSnapshot, LaneSnapshot};
use fanin_protocol::time::Time;

use crate::dataplane_api::{IncompleteSlot, JobInspection, JobInstall, LaneInspection, WorkerSeen};

/// Describes a job as its slots look at `now`; `address` tells where a rank was last heard.
pub(super) fn describe(
    job: &JobInstall,
    snapshot: &JobSnapshot,
    now: Time,
    address: impl Fn(u16) -> Option<SocketAddr>,
) -> JobInspection {
    let workers = (0..job.world_size).map(|rank| WorkerSeen {
        rank,
        address: address(rank),
        last_seen_ms: snapshot.last_seen[usize::from(rank)].map(|at| now.since(at).as_ns() / 1_000_000),
    });
    let found = |lane: u16| snapshot.lanes.iter().find(|candidate| candidate.lane == lane);
    JobInspection {
        slots_in_use: snapshot.slots_in_use,
        lanes: (0..job.lane_count).map(|lane| describe_lane(lane, found(lane))).collect(),
        workers: workers.collect(),
    }
}

fn describe_lane(lane: u16, found: Option<&LaneSnapshot>) -> LaneInspection {
    let Some(found) = found else { return LaneInspection { lane, ..LaneInspection::default() } };
    LaneInspection {
        lane,
        slots_in_use: found.slots_in_use,
        oldest_incomplete: found.oldest.first().map(|slot| IncompleteSlot {
            slot_index: u32::from(slot.slot_index),
            slot_parity: slot.slot_parity,
            chunk_index: slot.chunk_index,
            collective_tag: slot.collective_tag,
            missing_ranks: slot.missing_ranks.clone(),
        }),
        ..LaneInspection::default()
    }
}
