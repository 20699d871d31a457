//! `fanin status` and `fanin drain`.

use std::time::Duration;

use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use fanin_control::Algorithm;
use fanin_control::proto::{DataPath, DataplaneCounters, JobState, JobStatus, RelayPart, StatusResponse, WorkerState};

use crate::connection::Connection;

/// Flags of `fanin status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    #[command(flatten)]
    connection: Connection,
}

/// Flags of `fanin drain`.
#[derive(Args, Debug)]
pub struct DrainArguments {
    #[command(flatten)]
    connection: Connection,
    /// Stop after this long even if jobs still run.
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    deadline_ms: u64,
}

/// Prints what the switch knows.
pub fn run(arguments: &StatusArguments) -> anyhow::Result<i32> {
    let status = arguments.connection.connect()?.status()?;
    println!("{}", summary(&status));
    path(&status).iter().for_each(|line| println!("{line}"));
    if !status.jobs.is_empty() {
        println!("{}", jobs(&status.jobs));
    }
    Ok(0)
}

/// Asks the switch to drain.
pub fn drain(arguments: &DrainArguments) -> anyhow::Result<i32> {
    let client = arguments.connection.connect()?;
    let running = client.drain(Duration::from_millis(arguments.deadline_ms))?;
    println!("the switch drains: {running} jobs still run, new ones are refused");
    Ok(0)
}

fn summary(status: &StatusResponse) -> String {
    let capacity = status.capacity.clone().unwrap_or_default();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "fanin switch {}, up {} s{}: {} of {} jobs, {:.1} of {:.1} MiB of slot memory free",
        status.switch_version,
        status.uptime_ms / 1000,
        if status.draining { ", draining" } else { "" },
        capacity.job_count,
        capacity.job_count_max,
        mib(capacity.slot_memory_bytes_free),
        mib(capacity.slot_memory_bytes_total),
    )
}

/// Who receives datagrams, where that is not simply the sockets.
fn path(status: &StatusResponse) -> Option<String> {
    if status.data_path() == DataPath::Xdp {
        let counters = status.xdp_counters.clone().unwrap_or_default();
        return Some(format!(
            "XDP in front of {}: {} contributions summed in the kernel",
            status.xdp_interfaces.join(", "),
            counters.contributions
        ));
    }
    let reason = &status.data_path_reason;
    (!reason.is_empty()).then(|| format!("no XDP, serving by sockets: {reason}"))
}

/// Where a job is served.
fn job_path(job: &JobStatus) -> String {
    let name = if job.data_path() == DataPath::Xdp { "xdp" } else { "sockets" };
    let reason = &job.data_path_reason;
    if reason.is_empty() { name.into() } else { format!("{name}: {reason}") }
}

fn jobs(jobs: &[JobStatus]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "job",
        "state",
        "data path",
        "workers",
        "slots in use",
        "received",
        "sent",
        "resends",
        "past slots",
        "ECN marks",
        "drops",
    ]);
    for job in jobs {
        let counters = job.counters.clone().unwrap_or_default();
        let attached = job.workers.iter().filter(|worker| worker.state() == WorkerState::Attached).count();
        table.add_row([
            job.job_name.clone(),
            state(job),
            job_path(job),
            match &job.part {
                Some(part) => format!("{} of {}", part.child_count - part.switch_count, job.world_size),
                None => format!("{attached} of {}", job.world_size),
            },
            format!("{} of {}", job.slots_in_use, job.slot_count),
            format!("{:.1} MB", counters.received_bytes as f64 / 1e6),
            format!("{:.1} MB", counters.sent_bytes as f64 / 1e6),
            (counters.resends_answered + counters.resends_passed).to_string(),
            past_slots(job, &counters),
            if job.algorithm() == Algorithm::Atp { counters.ecn_marks.to_string() } else { String::new() },
            counters.drops.iter().map(|drop| format!("{} {}", drop.reason, drop.count)).collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}

/// What a switch below a root does for a job.
fn passes_on(job: &JobStatus, part: &RelayPart) -> String {
    let counters = job.counters.clone().unwrap_or_default();
    let workers = part.child_count - part.switch_count;
    let mut text = format!("sums for {}: {workers} workers and {} switches below", part.up, part.switch_count);
    if job.algorithm() == Algorithm::Switchml {
        let (sums, again, queries) = (counters.sums_up, counters.sums_again, counters.queries_up);
        text += &format!(", {sums} sums sent up, {again} again, {queries} questions");
    }
    text
}

/// ATP: the share of its Fragments that went to the server without a slot, and how many of these collided.
fn past_slots(job: &JobStatus, counters: &DataplaneCounters) -> String {
    let past = counters.collisions + counters.resends_passed;
    let all = counters.contributions + past;
    if job.algorithm() != Algorithm::Atp || all == 0 {
        return String::new();
    }
    format!("{:.1} %, {} collisions", 100.0 * past as f64 / all as f64, counters.collisions)
}

/// Ranks that a job goes on without, and who waits to take their places.
fn lost(job: &JobStatus) -> String {
    let lost: Vec<u32> =
        job.workers.iter().filter(|worker| worker.state() == WorkerState::Lost).map(|worker| worker.rank).collect();
    let waiting: Vec<u32> = job.replacements.iter().map(|worker| worker.rank).collect();
    let text = if lost.is_empty() { String::new() } else { format!(" without ranks {lost:?}") };
    if waiting.is_empty() { text } else { format!("{text}; replacements of {waiting:?} wait for admit()") }
}

/// A job's state in words, with what it waits for.
pub(crate) fn state(job: &JobStatus) -> String {
    match job.state() {
        JobState::Waiting => format!("waits for ranks {:?}", job.missing_ranks),
        JobState::Running => match &job.part {
            Some(part) => passes_on(job, part),
            None if !job.switches.is_empty() => format!("running over {}{}", job.switches.join(", "), lost(job)),
            None => format!("running{}", lost(job)),
        },
        JobState::Broken => format!("broken: {}", job.broken_reason),
        JobState::Unspecified => "unknown".into(),
    }
}
