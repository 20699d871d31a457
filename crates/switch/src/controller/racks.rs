//! Whom a SwitchML job over several switches waits for: each switch knows its own children only, so the root asks all of them.

use std::collections::HashMap;

use fanin_control::proto::{RelayInspection, RelayLane};
use fanin_control::registry::RackAssignment;
use fanin_control::topology::{Topology, TreePart};

use super::Core;
use crate::dataplane_api::{IncompleteSlot, JobInspection, LaneInspection, WorkerSeen};

/// What all switches of a job say.
struct Views<'a> {
    racks: &'a RackAssignment,
    topology: &'a Topology,
    /// By place; `None` for a switch that does not answer.
    relays: HashMap<usize, Option<RelayInspection>>,
}

/// What is waited for on one lane.
#[derive(Default)]
struct Waiting {
    missing: Vec<u16>,
    remarks: Vec<String>,
}

impl Core {
    /// What the root's data plane says, in contributors' numbers.
    pub(super) fn as_contributors(&self, job_id: u32, mut inspection: JobInspection) -> JobInspection {
        let Some(racks) = self.read(|state, _| state.registry.racks_of(job_id).cloned()) else { return inspection };
        let Some(root) = racks.parts.first() else { return inspection };
        let contributor = |child: u16| root.children.get(usize::from(child)).copied().flatten();
        let workers = inspection.workers.into_iter();
        let seen = |seen: WorkerSeen| contributor(seen.rank).map(|rank| WorkerSeen { rank, ..seen });
        inspection.workers = workers.filter_map(seen).collect();
        inspection
    }

    /// What each lane of a job over several switches waits for, with remarks about switches; `None` for other jobs. May
    /// block for a second.
    pub(super) fn gather(&self, job_id: u32) -> Option<Vec<(LaneInspection, Vec<String>)>> {
        let racks = self.read(|state, _| state.registry.racks_of(job_id).cloned())?;
        let topology = self.read(|state, _| state.registry.limits().topology.clone());
        let root = self.dataplane.inspect(job_id)?;
        let places: Vec<usize> = racks.parts.iter().skip(1).map(|part| part.switch).collect();
        let relays = std::thread::scope(|scope| {
            let ask = |place| (place, scope.spawn(move || self.relays.inspect(place, job_id)));
            let asked: Vec<_> = places.into_iter().map(ask).collect();
            asked.into_iter().map(|(place, thread)| (place, thread.join().ok().flatten())).collect()
        });
        let views = Views { racks: &racks, topology: &topology, relays };
        Some(root.lanes.iter().map(|lane| views.lane(lane)).collect())
    }
}

impl Views<'_> {
    fn lane(&self, found: &LaneInspection) -> (LaneInspection, Vec<String>) {
        let mut waiting = Waiting::default();
        let chunk = self.oldest(found);
        if let Some(slot) = &chunk {
            self.trace(&self.racks.parts[0], found, slot.chunk_index, &mut waiting);
        }
        self.remark_on_answers(found.lane, chunk.as_ref(), &mut waiting);
        waiting.missing.sort_unstable();
        let oldest_incomplete = chunk.map(|slot| IncompleteSlot { missing_ranks: waiting.missing, ..slot });
        (LaneInspection { oldest_incomplete, ..found.clone() }, waiting.remarks)
    }

    /// The chunk that a lane waits for: the root's oldest, or else the oldest in a rack.
    fn oldest(&self, root: &LaneInspection) -> Option<IncompleteSlot> {
        let in_racks = self.relays.keys().filter_map(|place| self.relay_lane(*place, root.lane)?.oldest_incomplete);
        let in_racks = in_racks.map(|slot| IncompleteSlot {
            slot_index: slot.slot_index,
            slot_parity: slot.slot_parity as u8,
            chunk_index: slot.chunk_index,
            collective_tag: slot.collective_tag,
            missing_ranks: Vec::new(),
        });
        root.oldest_incomplete.clone().or_else(|| in_racks.min_by_key(|slot| slot.chunk_index))
    }

    fn relay_lane(&self, place: usize, lane: u16) -> Option<RelayLane> {
        let relay = self.relays.get(&place)?.as_ref()?;
        relay.lanes.iter().find(|found| found.lane == u32::from(lane)).cloned()
    }

    /// Follows a chunk down from a switch that lacks some of it to the workers that have not sent theirs.
    fn trace(&self, part: &TreePart, root: &LaneInspection, chunk: u32, waiting: &mut Waiting) {
        let (lane, is_root) = (root.lane, part.switch == self.racks.parts[0].switch);
        let own = if is_root { None } else { self.relay_lane(part.switch, lane) };
        let name = &self.topology.switches()[part.switch].name;
        if !is_root && own.is_none() {
            waiting.remarks.push(format!("switch `{name}` does not answer"));
        }
        if own.as_ref().is_some_and(|own| own.unanswered_count > 0 && own.unanswered_chunk == chunk) {
            let remark = format!("switch `{name}` has sent the sum of its children up, and the next switch lacks it");
            return waiting.remarks.push(remark);
        }
        let missing: Option<Vec<u32>> = match own.and_then(|own| own.oldest_incomplete) {
            Some(slot) if slot.chunk_index == chunk => Some(slot.missing_ranks),
            _ if is_root => {
                let slot = root.oldest_incomplete.as_ref().filter(|slot| slot.chunk_index == chunk);
                slot.map(|slot| slot.missing_ranks.iter().map(|child| (*child).into()).collect())
            }
            _ => None,
        };
        let below = self.topology.switches_below(&self.racks.parts, part);
        for (child, below) in (0u32..).zip(below) {
            if missing.as_ref().is_some_and(|missing| !missing.contains(&child)) {
                continue;
            }
            match (part.children[child as usize], below) {
                (Some(contributor), _) => waiting.missing.push(contributor),
                (None, Some(below)) => self.trace(below, root, chunk, waiting),
                (None, None) => {}
            }
        }
    }

    /// Chunks that are nobody's fault: complete in a rack, and the answer has not come down.
    fn remark_on_answers(&self, lane: u16, waited_for: Option<&IncompleteSlot>, waiting: &mut Waiting) {
        if waited_for.is_some() {
            return;
        }
        for part in &self.racks.parts[1..] {
            let Some(found) = self.relay_lane(part.switch, lane).filter(|found| found.unanswered_count > 0) else {
                continue;
            };
            let name = &self.topology.switches()[part.switch].name;
            let (count, chunk) = (found.unanswered_count, found.unanswered_chunk);
            waiting.remarks.push(format!(
                "switch `{name}` has no answer from above for {count} chunks, first chunk {chunk} (lane {lane})"
            ));
        }
    }
}
