//! `/metrics` in the OpenMetrics text format. Names carry their unit; counters end in `_total`.
//!
//! | name | unit | labels | meaning |
//! | --- | --- | --- | --- |
//! | `fanin_switch_uptime_seconds` | s | | since start |
//! | `fanin_switch_draining` | 0/1 | | new jobs are refused |
//! | `fanin_switch_jobs` | jobs | `state` | waiting, running, broken |
//! | `fanin_switch_slot_memory_bytes` | bytes | `kind` | total, free |
//! | `fanin_switch_received_datagrams_total`, `…_sent_datagrams_total` | datagrams | | UDP, all jobs and strangers |
//! | `fanin_switch_received_bytes_total`, `…_sent_bytes_total` | bytes | | UDP payload |
//! | `fanin_switch_contributions_total` | packets | | added to a slot |
//! | `fanin_switch_aggregates_total` | slots | | completed |
//! | `fanin_switch_resends_answered_total` | packets | | completed slots sent again to one worker |
//! | `fanin_switch_collisions_total`, `…_resends_passed_total` | packets | | ATP: passed on to the server |
//! | `fanin_switch_slots_abandoned_total` | slots | | ATP: taken back by their age |
//! | `fanin_switch_ecn_marks_total` | packets | | ATP: met a long queue behind the switch |
//! | `fanin_switch_sums_up_total`, `…_sums_again_total`, `…_queries_up_total` | packets | | SwitchML below a root: sent up |
//! | `fanin_switch_drops_total` | packets | `reason` | dropped, by reason |
//! | `fanin_switch_data_path_info` | 1 | `data_path`, `interfaces`, `reason` | who receives datagrams, and why not XDP |
//! | `fanin_switch_xdp_*` | as above | | the XDP program's share |
//! | `fanin_job_*` | as above | `job`, `tenant`, `job_id` | the same for one job |
//! | `fanin_job_slots`, `fanin_job_slots_in_use` | slots | `job`, … | allotted; waiting for contributions |
//! | `fanin_job_slot_memory_bytes` | bytes | `job`, … | allotted |
//! | `fanin_job_data_path_info` | 1 | `job`, …, `data_path`, `reason` | who receives the job's datagrams |
//! | `fanin_job_checksum` | 0/1 | `job`, … | whether they carry a checksum |
//! | `fanin_job_accumulator_info` | 1 | `job`, …, `accumulator` | how sums of floats are added |
//! | `fanin_job_accumulator_elements_total` | elements | `job`, …, `cause` | what an accumulator of floats met: overflow, saturation, overwrite, left_shift, flushed_to_zero, lost_bits |
//! | `fanin_job_tensor_elements` | elements | `job`, …, `tensor`, `cause` | the same by tensor: the worst 32, and all others together |
//! | `fanin_job_workers` | workers | `job`, …, `state` | joining, joined, attached, left, lost |
//!
//! The numbers are read when asked for: the data plane keeps plain counters and knows nothing of this format.

use std::collections::BTreeMap;
use std::fmt::Error;

use fanin_control::Algorithm;
use fanin_control::proto::{DataplaneCounters, JobState, JobStatus, StatusResponse, WorkerState};
use fanin_wire::Accumulator;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::view::{
    OTHER_TENSORS, accumulator_causes, accumulator_label, causes_met, data_path, tensor_name, worker_state,
};

/// Label names and values of one sample.
type Labels = Vec<(&'static str, String)>;
/// One counter of [`DataplaneCounters`].
struct CounterFamily {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: fn(&DataplaneCounters) -> u64,
}

const COUNTERS: [CounterFamily; 14] = [
    CounterFamily {
        name: "received_datagrams",
        help: "UDP datagrams received",
        unit: None,
        read: |counters| counters.received_datagrams,
    },
    CounterFamily {
        name: "received",
        help: "UDP payload received",
        unit: Some(Unit::Bytes),
        read: |counters| counters.received_bytes,
    },
    CounterFamily {
        name: "sent_datagrams",
        help: "UDP datagrams sent, each copy of a multicast counted",
        unit: None,
        read: |counters| counters.sent_datagrams,
    },
    CounterFamily {
        name: "sent",
        help: "UDP payload sent",
        unit: Some(Unit::Bytes),
        read: |counters| counters.sent_bytes,
    },
    CounterFamily {
        name: "contributions",
        help: "Contributions added to a slot",
        unit: None,
        read: |counters| counters.contributions,
    },
    CounterFamily { name: "aggregates", help: "Slots completed", unit: None, read: |counters| counters.aggregates },
    CounterFamily {
        name: "resends_answered",
        help: "Completed slots sent again to one worker",
        unit: None,
        read: |counters| counters.resends_answered,
    },
    CounterFamily {
        name: "collisions",
        help: "ATP: packets passed on because another chunk had their slot",
        unit: None,
        read: |counters| counters.collisions,
    },
    CounterFamily {
        name: "resends_passed",
        help: "ATP: packets passed on because they were sent again",
        unit: None,
        read: |counters| counters.resends_passed,
    },
    CounterFamily {
        name: "slots_abandoned",
        help: "ATP: slots taken from a chunk that nobody had touched for long",
        unit: None,
        read: |counters| counters.slots_abandoned,
    },
    CounterFamily {
        name: "ecn_marks",
        help: "ATP: packets that met a long queue behind this switch and were marked for it",
        unit: None,
        read: |counters| counters.ecn_marks,
    },
    CounterFamily {
        name: "sums_up",
        help: "SwitchML below a root: sums of this switch's children that went up",
        unit: None,
        read: |counters| counters.sums_up,
    },
    CounterFamily {
        name: "sums_again",
        help: "SwitchML below a root: sums that went up again because the parent lacked them",
        unit: None,
        read: |counters| counters.sums_again,
    },
    CounterFamily {
        name: "queries_up",
        help: "SwitchML below a root: questions of children that were passed up",
        unit: None,
        read: |counters| counters.queries_up,
    },
];

/// Jobs that wait for ranks have no number yet and only count in `fanin_switch_jobs`: without it, two runs of one name
/// would be the same series twice, which a scraper refuses.
///
/// # Errors
/// Only when the formatter fails, which a `String` does not.
pub(super) fn encode(status: StatusResponse) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(status)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot(StatusResponse);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        encode_switch(&mut encoder, &self.0)?;
        for family in &COUNTERS {
            encode_counter(&mut encoder, family, "fanin_switch", &switch_samples(&self.0))?;
            encode_counter(&mut encoder, family, "fanin_switch_xdp", &xdp_samples(&self.0))?;
            encode_counter(&mut encoder, family, "fanin_job", &job_samples(&self.0))?;
        }
        encode_drops(&mut encoder, "fanin_switch", &switch_samples(&self.0))?;
        encode_drops(&mut encoder, "fanin_switch_xdp", &xdp_samples(&self.0))?;
        encode_drops(&mut encoder, "fanin_job", &job_samples(&self.0))?;
        encode_accumulators(&mut encoder, &self.0.jobs)?;
        encode_jobs(&mut encoder, &self.0.jobs)
    }
}

/// Counters with the labels that say whose they are.
type Samples<'a> = Vec<(Labels, &'a DataplaneCounters)>;

fn switch_samples(status: &StatusResponse) -> Samples<'_> {
    status.counters.iter().map(|counters| (Labels::new(), counters)).collect()
}

fn xdp_samples(status: &StatusResponse) -> Samples<'_> {
    status.xdp_counters.iter().map(|counters| (Labels::new(), counters)).collect()
}

fn numbered(jobs: &[JobStatus]) -> impl Iterator<Item = &JobStatus> {
    jobs.iter().filter(|job| job.job_id != 0)
}

fn job_samples(status: &StatusResponse) -> Samples<'_> {
    let jobs = numbered(&status.jobs);
    jobs.filter_map(|job| job.counters.as_ref().map(|counters| (job_labels(job), counters))).collect()
}

fn job_labels(job: &JobStatus) -> Labels {
    vec![("job", job.job_name.clone()), ("tenant", job.tenant.clone()), ("job_id", format!("{:#010x}", job.job_id))]
}

fn encode_switch(encoder: &mut DescriptorEncoder, status: &StatusResponse) -> Result<(), Error> {
    let uptime = [(Labels::new(), status.uptime_ms as f64 / 1000.0)];
    gauges(encoder, "fanin_switch_uptime", "Time since start", Some(&Unit::Seconds), &uptime)?;
    let draining = [(Labels::new(), f64::from(u8::from(status.draining)))];
    gauges(encoder, "fanin_switch_draining", "Whether new jobs are refused", None, &draining)?;
    let states = [(JobState::Waiting, "waiting"), (JobState::Running, "running"), (JobState::Broken, "broken")];
    let jobs = states.map(|(state, name)| {
        let count = status.jobs.iter().filter(|job| job.state() == state).count();
        (vec![("state", name.to_string())], count as f64)
    });
    gauges(encoder, "fanin_switch_jobs", "Jobs by state", None, &jobs)?;
    let capacity = status.capacity.clone().unwrap_or_default();
    let memory = [("total", capacity.slot_memory_bytes_total), ("free", capacity.slot_memory_bytes_free)];
    let memory = memory.map(|(kind, bytes)| (vec![("kind", kind.to_string())], bytes as f64));
    gauges(encoder, "fanin_switch_slot_memory", "Memory of all slots", Some(&Unit::Bytes), &memory)?;
    let path = vec![
        ("data_path", data_path(status.data_path()).to_string()),
        ("interfaces", status.xdp_interfaces.join(",")),
        ("reason", status.data_path_reason.clone()),
    ];
    gauges(encoder, "fanin_switch_data_path_info", "Who receives datagrams", None, &[(path, 1.0)])
}

fn encode_jobs(encoder: &mut DescriptorEncoder, jobs: &[JobStatus]) -> Result<(), Error> {
    let each =
        |read: fn(&JobStatus) -> f64| -> Vec<_> { numbered(jobs).map(|job| (job_labels(job), read(job))).collect() };
    let slots = each(|job| job.slot_count.into());
    gauges(encoder, "fanin_job_slots", "Slots allotted", None, &slots)?;
    let in_use = each(|job| job.slots_in_use.into());
    gauges(encoder, "fanin_job_slots_in_use", "Slots that wait for contributions", None, &in_use)?;
    let memory = each(|job| job.slot_memory_bytes as f64);
    gauges(encoder, "fanin_job_slot_memory", "Slot memory allotted", Some(&Unit::Bytes), &memory)?;
    let paths: Vec<_> = numbered(jobs).map(|job| (path_labels(job), 1.0)).collect();
    gauges(encoder, "fanin_job_data_path_info", "Who receives the job's datagrams", None, &paths)?;
    let checksum = each(|job| f64::from(u8::from(job.checksum.unwrap_or(true))));
    gauges(encoder, "fanin_job_checksum", "Whether datagrams carry a checksum", None, &checksum)?;
    let workers: Vec<_> = numbered(jobs).flat_map(worker_samples).collect();
    gauges(encoder, "fanin_job_workers", "Workers by state", None, &workers)
}

fn path_labels(job: &JobStatus) -> Labels {
    let path = [("data_path", data_path(job.data_path()).to_string()), ("reason", job.data_path_reason.clone())];
    job_labels(job).into_iter().chain(path).collect()
}

fn worker_samples(job: &JobStatus) -> Vec<(Labels, f64)> {
    let states =
        [WorkerState::Joining, WorkerState::Joined, WorkerState::Attached, WorkerState::Left, WorkerState::Lost];
    let sample = |state: WorkerState| {
        let count = job.workers.iter().filter(|worker| worker.state() == state).count();
        let mut labels = job_labels(job);
        labels.push(("state", worker_state(state).to_string()));
        (labels, count as f64)
    };
    states.into_iter().map(sample).collect()
}

fn encode_counter(
    encoder: &mut DescriptorEncoder,
    family: &CounterFamily,
    prefix: &str,
    samples: &Samples<'_>,
) -> Result<(), Error> {
    let values: Vec<_> = samples.iter().map(|(labels, counters)| (labels.clone(), (family.read)(counters))).collect();
    counters(encoder, &format!("{prefix}_{}", family.name), family.help, family.unit.as_ref(), &values)
}

fn encode_drops(encoder: &mut DescriptorEncoder, prefix: &str, samples: &Samples<'_>) -> Result<(), Error> {
    let values: Vec<_> = samples.iter().flat_map(|(labels, counters)| drop_samples(labels, counters)).collect();
    counters(encoder, &format!("{prefix}_drops"), "Packets dropped, by reason", None, &values)
}

/// Only of jobs that a switch adds floats for: the others' counts are zero whatever happens.
fn encode_accumulators(encoder: &mut DescriptorEncoder, jobs: &[JobStatus]) -> Result<(), Error> {
    let labelled = |job: &JobStatus, name, value: &str| {
        let mut labels = job_labels(job);
        labels.push((name, value.to_string()));
        labels
    };
    let is_counted = |job: &&JobStatus| {
        let accumulator = Accumulator::from_code(job.accumulator);
        accumulator.is_some_and(|accumulator| accumulator.is_counted(job.algorithm() == Algorithm::Atp))
    };
    let infos: Vec<_> = numbered(jobs).map(|job| (labelled(job, "accumulator", accumulator_label(job)), 1.0)).collect();
    gauges(encoder, "fanin_job_accumulator_info", "How the job's sums of floats are added", None, &infos)?;
    let values: Vec<_> = numbered(jobs)
        .filter(is_counted)
        .filter_map(|job| Some((job, job.counters.as_ref()?.accumulator?)))
        .flat_map(|(job, counts)| {
            accumulator_causes(&counts).map(|(cause, count)| (labelled(job, "cause", cause), count))
        })
        .collect();
    let help = "Additions and read-outs of elements by what the job's accumulator of floats met";
    counters(encoder, "fanin_job_accumulator_elements", help, None, &values)?;
    let tensors: Vec<_> = numbered(jobs).flat_map(tensor_samples).collect();
    let help = "The same by tensor, since the switch has kept it apart";
    gauges(encoder, "fanin_job_tensor_elements", help, None, &tensors)
}

/// Names may meet, of two keys whose names were cut: a series must not be there twice. What no rank has named goes to the others, so that a job has
/// no more series than names are kept of it, and none that is called by a number until its name comes.
fn tensor_samples(job: &JobStatus) -> Vec<(Labels, f64)> {
    let mut sums: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for tensor in &job.tensors {
        let name = if tensor.name.is_empty() { OTHER_TENSORS.into() } else { tensor_name(tensor) };
        for (cause, count) in causes_met(&tensor.counters.unwrap_or_default()) {
            *sums.entry((name.clone(), cause)).or_default() += count;
        }
    }
    let labels = |(tensor, cause): (String, &'static str)| {
        job_labels(job).into_iter().chain([("tensor", tensor), ("cause", cause.to_string())]).collect()
    };
    sums.into_iter().map(|(names, count)| (labels(names), count as f64)).collect()
}

fn drop_samples(labels: &Labels, counters: &DataplaneCounters) -> Vec<(Labels, u64)> {
    let sample = |reason: &str, count: u64| {
        let mut labels = labels.clone();
        labels.push(("reason", reason.to_string()));
        (labels, count)
    };
    counters.drops.iter().map(|drop| sample(&drop.reason, drop.count)).collect()
}

fn counters(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    values: &[(Labels, u64)],
) -> Result<(), Error> {
    let samples: Vec<_> = values.iter().map(|(labels, value)| (labels, ConstCounter::new(*value))).collect();
    family(encoder, name, help, unit, &samples)
}

fn gauges(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    values: &[(Labels, f64)],
) -> Result<(), Error> {
    let samples: Vec<_> = values.iter().map(|(labels, value)| (labels, ConstGauge::new(*value))).collect();
    family(encoder, name, help, unit, &samples)
}

/// A family without samples is left out: its type could not be told, and it says nothing.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    samples: &[(&Labels, M)],
) -> Result<(), Error> {
    let Some((first_labels, first)) = samples.first() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, unit, first.metric_type())?;
    if first_labels.is_empty() {
        return first.encode(metric);
    }
    for (labels, value) in samples {
        encode_sample(&mut metric, labels, value)?;
    }
    Ok(())
}

fn encode_sample<M: EncodeMetric>(metric: &mut MetricEncoder<'_>, labels: &Labels, value: &M) -> Result<(), Error> {
    value.encode(metric.encode_family(labels)?)
}

#[cfg(test)]
mod tests;
