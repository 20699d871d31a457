//! What the switch's jobs wait for, and for whom.

use std::time::Duration;

use fanin_control::client::ControlClient;
use fanin_control::proto::{
    Collective, InspectResponse, JobState, JobStatus, LaneInspection, WorkerState, WorkerStatus,
};
use serde::Serialize;

use super::findings::Findings;
use crate::status;

/// A chunk that waits at both ends of this is not merely in flight.
const PROGRESS_WAIT: Duration = Duration::from_millis(300);
/// A collective that lasts longer without progress is stuck rather than young.
const STUCK_MS: u64 = 1_000;
/// Workers report several times a lease; longer silence is named.
const REPORT_MS_MAX: u64 = 5_000;

/// One job.
#[derive(Debug, Serialize)]
pub struct JobReport {
    name: String,
    run_id: String,
    state: String,
    world_size: u32,
    missing_ranks: Vec<u32>,
    slots_in_use: u32,
    slot_count: u32,
    /// The oldest incomplete slot of each lane that has one.
    waits: Vec<Wait>,
    workers: Vec<Worker>,
}

/// A slot without all contributions.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Wait {
    lane: u32,
    slot_index: u32,
    slot_parity: u32,
    chunk_index: u32,
    missing_ranks: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Worker {
    rank: u32,
    state: String,
    label: String,
    data_address: String,
    report_age_ms: Option<u64>,
    packet_age_ms: Option<u64>,
    collectives_done: u64,
    /// What it last said it does.
    running: Option<Running>,
}

#[derive(Debug, Serialize)]
struct Running {
    sequence: u64,
    description: String,
    /// Since it began, as of now.
    elapsed_ms: u64,
    chunk_count_done: u64,
    chunk_count: u64,
}

/// Looks at one job, twice if something waits.
pub fn check(client: &ControlClient, job: &JobStatus, findings: &mut Findings) {
    if let Some(part) = &job.part {
        // Whom the job waits for, only the root knows.
        let what = format!("{:?} of the root at {}: {}", job.job_name, part.root, status::state(job));
        return findings.good("job", what);
    }
    let inspect = || if job.job_id == 0 { None } else { client.inspect(job.job_id).ok() };
    let mut inspection = inspect();
    let mut before = waits(inspection.as_ref());
    if !before.is_empty() {
        std::thread::sleep(PROGRESS_WAIT);
        inspection = inspect();
        let after = waits(inspection.as_ref());
        before.retain(|wait| after.contains(wait));
    }
    let latest = inspection.as_ref().and_then(|answer| answer.job.as_ref()).unwrap_or(job);
    let report = JobReport::new(latest, waits(inspection.as_ref()));
    report.judge(latest.state(), &before, findings);
    for remark in inspection.iter().flat_map(|answer| &answer.lanes).flat_map(|lane| &lane.remarks) {
        let hint = "look at that switch's log, and at the link between it and the next one";
        findings.note("job", format!("{:?}: {remark}", job.job_name), hint);
    }
    findings.jobs.push(report);
}

fn waits(inspection: Option<&InspectResponse>) -> Vec<Wait> {
    inspection.map(|answer| answer.lanes.iter().filter_map(wait).collect()).unwrap_or_default()
}

fn wait(lane: &LaneInspection) -> Option<Wait> {
    let slot = lane.oldest_incomplete.as_ref()?;
    Some(Wait {
        lane: lane.lane,
        slot_index: slot.slot_index,
        slot_parity: slot.slot_parity,
        chunk_index: slot.chunk_index,
        missing_ranks: slot.missing_ranks.clone(),
    })
}

impl JobReport {
    fn new(job: &JobStatus, waits: Vec<Wait>) -> JobReport {
        JobReport {
            name: job.job_name.clone(),
            run_id: job.run_id.clone(),
            state: status::state(job),
            world_size: job.world_size,
            missing_ranks: job.missing_ranks.clone(),
            slots_in_use: job.slots_in_use,
            slot_count: job.slot_count,
            waits,
            workers: job.workers.iter().map(Worker::new).collect(),
        }
    }

    fn judge(&self, state: JobState, unmoved: &[Wait], findings: &mut Findings) {
        let name = format!("{:?} ({} ranks)", self.name, self.world_size);
        let what = format!("{name} {}", self.state);
        match state {
            JobState::Waiting => {
                let hint = "start those ranks, with the same job name, run id and world size";
                findings.bad("job", what, hint);
            }
            JobState::Broken => findings.bad("job", what, "look at that rank's own output, then restart the job"),
            _ => self.judge_running(&name, unmoved, findings),
        }
    }

    fn judge_running(&self, name: &str, unmoved: &[Wait], findings: &mut Findings) {
        let elapsed_ms = self.workers.iter().filter_map(|worker| Some(worker.running.as_ref()?.elapsed_ms)).max();
        // Chunks wait before the first report does: then the packets' age tells.
        let elapsed_ms = elapsed_ms.unwrap_or(0).max(self.silence_ms());
        let Some(wait) = unmoved.first() else {
            let slots = format!("{} of {} slots in use", self.slots_in_use, self.slot_count);
            return findings.good("job", format!("{name} is running, {slots}"));
        };
        let missing: Vec<_> = wait.missing_ranks.iter().map(|rank| self.why_missing(*rank)).collect();
        let what = format!(
            "{name} waits at lane {}, chunk {} (slot {}, parity {}) for ranks {:?}: {}",
            wait.lane,
            wait.chunk_index,
            wait.slot_index,
            wait.slot_parity,
            wait.missing_ranks,
            missing.join("; ")
        );
        if elapsed_ms < STUCK_MS {
            findings.note("job", what, "");
        } else {
            let hint = "look at these ranks' own output and stacks; every wait ends at the job's collective timeout";
            findings.bad("job", format!("{what}; the others have waited for {elapsed_ms} ms"), hint);
        }
    }

    /// Since anybody's last packet: a job that moves has none of it.
    fn silence_ms(&self) -> u64 {
        self.workers.iter().filter_map(|worker| worker.packet_age_ms).min().unwrap_or(0)
    }

    fn why_missing(&self, rank: u32) -> String {
        let Some(worker) = self.workers.iter().find(|worker| worker.rank == rank) else {
            return format!("rank {rank} is unknown to the switch");
        };
        let newest = self.workers.iter().filter_map(|worker| Some(worker.running.as_ref()?.sequence)).max();
        match &worker.running {
            _ if worker.state == "left" => format!("rank {rank} has left the job"),
            _ if worker.state != "attached" => format!("rank {rank} is {}", worker.state),
            _ if worker.report_age_ms.is_none_or(|age| age > REPORT_MS_MAX) => {
                format!("rank {rank} reports nothing: its host or its process stands still")
            }
            None => format!("rank {rank} is in no collective: it computes, waits for something else, or hangs"),
            Some(running) if Some(running.sequence) < newest => {
                format!("rank {rank} is still in #{} ({})", running.sequence, running.description)
            }
            Some(_) => {
                let age = worker.packet_age_ms.map_or("never".into(), |age| format!("{age} ms ago"));
                format!("rank {rank} takes part, but its packets do not arrive (the last one came {age})")
            }
        }
    }

    /// The job and its ranks, one a line.
    pub fn print(&self) {
        println!("\njob {:?} (run {}): {}", self.name, self.run_id, self.state);
        for wait in &self.waits {
            println!(
                "  lane {} waits at chunk {} (slot {}, parity {}) for ranks {:?}",
                wait.lane, wait.chunk_index, wait.slot_index, wait.slot_parity, wait.missing_ranks
            );
        }
        for worker in &self.workers {
            worker.print();
        }
    }
}

impl Worker {
    fn new(worker: &WorkerStatus) -> Worker {
        let report = worker.last_report.as_ref();
        let age_ms = worker.report_age_ms.unwrap_or(0);
        Worker {
            rank: worker.rank,
            state: state(worker.state()).into(),
            label: worker.label.clone(),
            data_address: worker.data_address.clone(),
            report_age_ms: worker.report_age_ms,
            packet_age_ms: worker.packet_age_ms,
            collectives_done: report.and_then(|report| report.counters).map_or(0, |counters| counters.collectives_done),
            running: report.and_then(|report| report.collective.as_ref()).map(|running| Running::new(running, age_ms)),
        }
    }

    fn print(&self) {
        let age = |age_ms: Option<u64>| age_ms.map_or("never".into(), |age| format!("{:.1} s ago", age as f64 / 1e3));
        let does = match &self.running {
            None => format!("in no collective, {} done", self.collectives_done),
            Some(running) => format!(
                "in #{} ({}) for {} ms, {} of {} parts done",
                running.sequence,
                running.description,
                running.elapsed_ms,
                running.chunk_count_done,
                running.chunk_count
            ),
        };
        println!(
            "  rank {:<3} {:<8} {} {}: report {}, packet {}; {does}",
            self.rank,
            self.state,
            self.label,
            self.data_address,
            age(self.report_age_ms),
            age(self.packet_age_ms)
        );
    }
}

impl Running {
    fn new(collective: &Collective, age_ms: u64) -> Running {
        Running {
            sequence: collective.sequence,
            description: collective.description.clone(),
            elapsed_ms: collective.elapsed_ms + age_ms,
            chunk_count_done: collective.chunk_count_done,
            chunk_count: collective.chunk_count,
        }
    }
}

fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Joining => "joining",
        WorkerState::Joined => "joined",
        WorkerState::Attached => "attached",
        WorkerState::Left => "left",
        WorkerState::Lost => "lost",
        WorkerState::Unspecified => "unknown",
    }
}
