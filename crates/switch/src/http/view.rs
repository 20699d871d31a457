//! `/api/status` as JSON: what `Status` says over gRPC, with names for enumerations. Fields are only ever added.

use std::collections::BTreeMap;

use fanin_control::proto::{
    AccumulatorCounters, Collective, DataPath, DataplaneCounters, JobState, JobStatus, StatusResponse, TensorCounters,
    WorkerState, WorkerStatus,
};
use fanin_control::{Algorithm, WireFormat};
use fanin_wire::Accumulator;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct SwitchView {
    version: String,
    uptime_ms: u64,
    draining: bool,
    data_ports: Vec<u32>,
    data_path: &'static str,
    data_path_reason: String,
    xdp_interfaces: Vec<String>,
    xdp_traffic: Option<TrafficView>,
    slot_memory_bytes_total: u64,
    slot_memory_bytes_free: u64,
    job_count: u32,
    job_count_max: u32,
    traffic: TrafficView,
    jobs: Vec<JobView>,
}

#[derive(Default, Serialize)]
pub(super) struct TrafficView {
    received_datagrams: u64,
    received_bytes: u64,
    sent_datagrams: u64,
    sent_bytes: u64,
    contributions: u64,
    aggregates: u64,
    resends_answered: u64,
    collisions: u64,
    resends_passed: u64,
    slots_abandoned: u64,
    ecn_marks: u64,
    sums_up: u64,
    sums_again: u64,
    queries_up: u64,
    drops: Vec<DropView>,
}

#[derive(Serialize)]
struct DropView {
    reason: String,
    count: u64,
}

#[derive(Serialize)]
struct JobView {
    job_id: u32,
    job_name: String,
    run_id: String,
    tenant: String,
    state: &'static str,
    broken_reason: String,
    world_size: u32,
    lane_count: u32,
    slots_per_lane: u32,
    element_count_max: u32,
    wire_format: &'static str,
    algorithm: &'static str,
    lost_ranks: Vec<u32>,
    replacements: Vec<u32>,
    data_path: &'static str,
    data_path_reason: String,
    checksum: bool,
    slot_memory_bytes: u64,
    slots_in_use: u32,
    slot_count: u32,
    age_ms: u64,
    missing_ranks: Vec<u32>,
    accumulator: &'static str,
    /// Additions and read-outs of elements by what it met; nothing where it adds words.
    accumulator_counts: BTreeMap<&'static str, u64>,
    /// The same by tensor, the worst first.
    tensors: Vec<TensorView>,
    traffic: TrafficView,
    workers: Vec<WorkerView>,
}

#[derive(Serialize)]
struct TensorView {
    name: String,
    accumulator_counts: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct WorkerView {
    rank: u32,
    state: &'static str,
    label: String,
    data_address: String,
    report_age_ms: Option<u64>,
    packet_age_ms: Option<u64>,
    resends: u64,
    collectives_done: u64,
    collective: Option<CollectiveView>,
}

#[derive(Serialize)]
struct CollectiveView {
    sequence: u64,
    description: String,
    elapsed_ms: u64,
    chunk_count_done: u64,
    chunk_count: u64,
}

impl From<StatusResponse> for SwitchView {
    fn from(status: StatusResponse) -> Self {
        let data_path = data_path(status.data_path());
        let capacity = status.capacity.unwrap_or_default();
        Self {
            data_path,
            version: status.switch_version,
            uptime_ms: status.uptime_ms,
            draining: status.draining,
            data_ports: status.data_ports,
            data_path_reason: status.data_path_reason,
            xdp_interfaces: status.xdp_interfaces,
            xdp_traffic: status.xdp_counters.map(TrafficView::from),
            slot_memory_bytes_total: capacity.slot_memory_bytes_total,
            slot_memory_bytes_free: capacity.slot_memory_bytes_free,
            job_count: capacity.job_count,
            job_count_max: capacity.job_count_max,
            traffic: status.counters.map(TrafficView::from).unwrap_or_default(),
            jobs: status.jobs.into_iter().map(JobView::from).collect(),
        }
    }
}

impl From<DataplaneCounters> for TrafficView {
    fn from(counters: DataplaneCounters) -> Self {
        let drops = counters.drops.into_iter().filter(|drop| drop.count > 0);
        Self {
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
            drops: drops.map(|drop| DropView { reason: drop.reason, count: drop.count }).collect(),
        }
    }
}

impl From<JobStatus> for JobView {
    fn from(job: JobStatus) -> Self {
        let counts = job.counters.as_ref().and_then(|counters| counters.accumulator).unwrap_or_default();
        Self {
            accumulator: accumulator_label(&job),
            accumulator_counts: causes_met(&counts).collect(),
            tensors: job.tensors.iter().map(TensorView::from).collect(),
            state: job_state(job.state()),
            wire_format: wire_format(job.wire_format()),
            algorithm: if job.algorithm() == Algorithm::Atp { "atp" } else { "switchml" },
            lost_ranks: job.atp.iter().flat_map(|atp| atp.lost.iter().copied()).collect(),
            replacements: job.replacements.iter().map(|worker| worker.rank).collect(),
            data_path: data_path(job.data_path()),
            data_path_reason: job.data_path_reason,
            checksum: job.checksum.unwrap_or(true),
            job_id: job.job_id,
            job_name: job.job_name,
            run_id: job.run_id,
            tenant: job.tenant,
            broken_reason: job.broken_reason,
            world_size: job.world_size,
            lane_count: job.lane_count,
            slots_per_lane: job.slots_per_lane,
            element_count_max: job.element_count_max,
            slot_memory_bytes: job.slot_memory_bytes,
            slots_in_use: job.slots_in_use,
            slot_count: job.slot_count,
            age_ms: job.age_ms,
            missing_ranks: job.missing_ranks,
            traffic: job.counters.map(TrafficView::from).unwrap_or_default(),
            workers: job.workers.into_iter().map(WorkerView::from).collect(),
        }
    }
}

impl From<&TensorCounters> for TensorView {
    fn from(tensor: &TensorCounters) -> Self {
        let met = causes_met(&tensor.counters.unwrap_or_default()).collect();
        Self { name: tensor_name(tensor), accumulator_counts: met }
    }
}

impl From<WorkerStatus> for WorkerView {
    fn from(worker: WorkerStatus) -> Self {
        let state = worker_state(worker.state());
        let report = worker.last_report.unwrap_or_default();
        let counters = report.counters.unwrap_or_default();
        Self {
            state,
            rank: worker.rank,
            label: worker.label,
            data_address: worker.data_address,
            report_age_ms: worker.report_age_ms,
            packet_age_ms: worker.packet_age_ms,
            resends: counters.resends,
            collectives_done: counters.collectives_done,
            collective: report.collective.map(CollectiveView::from),
        }
    }
}

impl From<Collective> for CollectiveView {
    fn from(collective: Collective) -> Self {
        Self {
            sequence: collective.sequence,
            description: collective.description,
            elapsed_ms: collective.elapsed_ms,
            chunk_count_done: collective.chunk_count_done,
            chunk_count: collective.chunk_count,
        }
    }
}

/// How a job's sums of floats are added.
pub(super) fn accumulator_label(job: &JobStatus) -> &'static str {
    Accumulator::from_code(job.accumulator).map_or("unknown", Accumulator::label)
}

/// What all tensors are called together that are not told apart.
pub(super) const OTHER_TENSORS: &str = "other tensors";

/// What people call a tensor.
pub(super) fn tensor_name(tensor: &TensorCounters) -> String {
    match tensor.key {
        None => OTHER_TENSORS.into(),
        Some(key) if tensor.name.is_empty() => format!("tensor {key:#06x}"),
        Some(_) => tensor.name.clone(),
    }
}

/// Those of the counts that are not zero.
pub(super) fn causes_met(counts: &AccumulatorCounters) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    accumulator_causes(counts).into_iter().filter(|(_, count)| *count > 0)
}

/// The counts with their names.
pub(super) fn accumulator_causes(counts: &AccumulatorCounters) -> [(&'static str, u64); 6] {
    [
        ("overflow", counts.overflow),
        ("saturation", counts.saturation),
        ("overwrite", counts.overwrite),
        ("left_shift", counts.left_shift),
        ("flushed_to_zero", counts.flushed_to_zero),
        ("lost_bits", counts.lost_bits),
    ]
}

fn job_state(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "waiting",
        JobState::Running => "running",
        JobState::Broken => "broken",
        JobState::Unspecified => "unknown",
    }
}

pub(super) fn worker_state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Joining => "joining",
        WorkerState::Joined => "joined",
        WorkerState::Attached => "attached",
        WorkerState::Left => "left",
        WorkerState::Lost => "lost",
        WorkerState::Unspecified => "unknown",
    }
}

pub(super) fn data_path(path: DataPath) -> &'static str {
    match path {
        DataPath::Sockets => "sockets",
        DataPath::Xdp => "xdp",
        DataPath::Unspecified => "unknown",
    }
}

fn wire_format(format: WireFormat) -> &'static str {
    match format {
        WireFormat::FaninV1 => "fanin v1",
        WireFormat::P4appSwitchml => "p4app-switchML",
        WireFormat::Unspecified => "unknown",
    }
}
