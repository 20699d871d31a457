//! What the registry and the data plane know, put together.

use std::time::{Duration, Instant};

use fanin_control::PROTOCOL_VERSION;
use fanin_control::proto::{
    self, DropCount, IncompleteSlot, InspectResponse, JobStatus, LaneInspection, ServerLane, StatusResponse,
    WorkerStatus,
};

use super::{Core, tensors};
use crate::dataplane_api::{self, DataPath, DataplaneCounters, JobInspection, Telemetry, TrafficCounters};

/// One stuck data-plane thread makes every inspection slow; a status must come all the same, with less in it.
const INSPECT_BUDGET: Duration = Duration::from_millis(500);

impl Core {
    /// May block for [`INSPECT_BUDGET`] and one inspection.
    pub(crate) fn status(&self) -> StatusResponse {
        let (mut jobs, mut capacity, draining) = self.read(|state, now_ms| {
            (state.registry.statuses(now_ms), state.registry.capacity(), state.registry.is_draining())
        });
        jobs.extend(self.relayed.statuses(self.root));
        self.relayed.add_to(&mut capacity);
        let deadline = Instant::now() + INSPECT_BUDGET;
        for job in jobs.iter_mut().filter(|job| job.job_id != 0) {
            self.add_path(job);
            self.add_switches(job);
            if Instant::now() < deadline {
                self.add_inspection(job);
            }
        }
        let counters = self.dataplane.counters();
        jobs.iter_mut().for_each(|job| self.add_counters(job, &counters));
        let path = self.dataplane.path();
        StatusResponse {
            protocol_version: PROTOCOL_VERSION,
            switch_version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.now_ms(),
            draining,
            capacity: Some(capacity),
            jobs,
            counters: Some(traffic(&counters.total)),
            data_address: self.data_address.clone(),
            data_ports: self.dataplane.ports().iter().map(|address| address.port().into()).collect(),
            data_path: data_path(path.path).into(),
            data_path_reason: path.fallback_reason,
            xdp_interfaces: path.interfaces,
            xdp_counters: path.kernel.as_ref().map(traffic),
            atp_slot_count: self.read(|state, _| state.registry.limits().atp_slot_count.into()),
            servers: self.read(|state, _| state.server_statuses()),
        }
    }

    /// `None` for a job that is not there. May block for one inspection.
    pub(super) fn inspect(&self, job_id: u32) -> Option<InspectResponse> {
        let mut job = self.read(|state, now_ms| state.registry.status(job_id, now_ms))?;
        self.add_path(&mut job);
        self.add_switches(&mut job);
        let lanes = self.add_inspection(&mut job).unwrap_or_default().lanes;
        self.add_counters(&mut job, &self.dataplane.counters_now());
        let alone =
            |found: Vec<dataplane_api::LaneInspection>| found.into_iter().map(|lane| (lane, Vec::new())).collect();
        let lanes: Vec<_> = self.gather(job_id).unwrap_or_else(|| alone(lanes));
        let mut lanes: Vec<_> = lanes.into_iter().map(|(found, remarks)| lane(found, remarks, &job)).collect();
        for waiting in self.server_lanes(&job) {
            if let Some(lane) = lanes.iter_mut().find(|lane| lane.lane == waiting.lane) {
                lane.oldest_incomplete = Some(server_chunk(&waiting, &job));
            }
        }
        Some(InspectResponse { job: Some(job), lanes })
    }

    /// What the parameter servers of an ATP job wait for.
    fn server_lanes(&self, job: &JobStatus) -> Vec<ServerLane> {
        let by_ranks = job.workers.iter().filter_map(|worker| worker.last_report.as_ref());
        let of_ranks = by_ranks.flat_map(|report| report.server_lanes.iter().cloned());
        let standing = self.read(|state, _| state.standing_lanes(job.job_id));
        of_ranks.chain(standing).collect()
    }

    fn add_counters(&self, job: &mut JobStatus, counters: &DataplaneCounters) {
        let Some((_, counters)) = counters.jobs.iter().find(|(id, _)| *id == job.job_id) else { return };
        job.counters = Some(traffic(counters));
        job.tensors = tensors::entries(counters);
        self.read(|state, _| {
            for tensor in &mut job.tensors {
                let name = tensor.key.and_then(|key| state.registry.tensor_name(job.job_id, key));
                tensor.name = name.unwrap_or_default().into();
            }
        });
    }

    fn add_path(&self, job: &mut JobStatus) {
        let found = self.dataplane.job_path(job.job_id);
        job.set_data_path(data_path(found.path));
        job.data_path_reason = found.reason;
    }

    /// Names of the switches that a job is over.
    fn add_switches(&self, job: &mut JobStatus) {
        job.switches = self.read(|state, _| {
            let switches = state.registry.limits().topology.switches();
            let parts = state.registry.parts_of(job.job_id).iter();
            parts.filter_map(|part| switches.get(part.switch)).map(|switch| switch.name.clone()).collect()
        });
        if job.switches.len() == 1 {
            job.switches.clear();
        }
    }

    fn add_inspection(&self, job: &mut JobStatus) -> Option<JobInspection> {
        let inspection = self.as_contributors(job.job_id, self.dataplane.inspect(job.job_id)?);
        job.slots_in_use = inspection.slots_in_use;
        for seen in &inspection.workers {
            let rank = rank_of_contributor(job, seen.rank);
            if let Some(worker) = job.workers.get_mut(rank as usize) {
                add_seen(worker, seen);
            }
        }
        Some(inspection)
    }
}

/// The data plane knows contributors; people know ranks. A host contributes under the name of its first rank.
fn rank_of_contributor(job: &JobStatus, contributor: u16) -> u32 {
    let first = job.host_of_rank.iter().position(|host| *host == u32::from(contributor));
    first.map_or(contributor.into(), |rank| rank as u32)
}

fn add_seen(worker: &mut WorkerStatus, seen: &dataplane_api::WorkerSeen) {
    worker.data_address = seen.address.map(|address| address.to_string()).unwrap_or_default();
    worker.packet_age_ms = seen.last_seen_ms;
}

fn data_path(path: DataPath) -> proto::DataPath {
    match path {
        DataPath::Sockets => proto::DataPath::Sockets,
        DataPath::Xdp => proto::DataPath::Xdp,
    }
}

fn traffic(counters: &TrafficCounters) -> proto::DataplaneCounters {
    proto::DataplaneCounters {
        received_datagrams: counters.received_datagrams,
        received_bytes: counters.received_bytes,
        sent_datagrams: counters.sent_datagrams,
        sent_bytes: counters.sent_bytes,
        contributions: counters.contributions,
        aggregates: counters.aggregates,
        resends_answered: counters.resends_answered,
        collisions: counters.collisions,
        resends_passed: counters.resends_passed,
        slots_abandoned: counters.slots_abandoned,
        ecn_marks: counters.ecn_marks,
        sums_up: counters.sums_up,
        sums_again: counters.sums_again,
        queries_up: counters.queries_up,
        accumulator: Some(accumulator_counters(&counters.telemetry)),
        drops: counters.drops.iter().map(|(reason, count)| drop_count(reason, *count)).collect(),
    }
}

pub(super) fn accumulator_counters(telemetry: &Telemetry) -> proto::AccumulatorCounters {
    proto::AccumulatorCounters {
        overflow: telemetry.overflow,
        saturation: telemetry.saturation,
        overwrite: telemetry.overwrite,
        left_shift: telemetry.left_shift,
        flushed_to_zero: telemetry.flushed_to_zero,
        lost_bits: telemetry.lost_bits,
    }
}

fn drop_count(reason: &str, count: u64) -> DropCount {
    DropCount { reason: reason.into(), count }
}

fn lane(lane: dataplane_api::LaneInspection, remarks: Vec<String>, job: &JobStatus) -> LaneInspection {
    LaneInspection {
        lane: lane.lane.into(),
        slots_in_use: lane.slots_in_use,
        oldest_incomplete: lane.oldest_incomplete.map(|slot| incomplete_slot(slot, job)),
        remarks,
    }
}

fn server_chunk(waiting: &ServerLane, job: &JobStatus) -> IncompleteSlot {
    IncompleteSlot {
        chunk_index: waiting.chunk_index,
        missing_ranks: waiting.missing.iter().map(|missing| rank_of_contributor(job, *missing as u16)).collect(),
        ..IncompleteSlot::default()
    }
}

fn incomplete_slot(slot: dataplane_api::IncompleteSlot, job: &JobStatus) -> IncompleteSlot {
    IncompleteSlot {
        slot_index: slot.slot_index,
        slot_parity: slot.slot_parity.into(),
        chunk_index: slot.chunk_index,
        collective_tag: slot.collective_tag,
        missing_ranks: slot.missing_ranks.into_iter().map(|missing| rank_of_contributor(job, missing)).collect(),
    }
}
