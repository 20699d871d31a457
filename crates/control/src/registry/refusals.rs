//! The texts of refusals: each says what happened, with names and values, and what to do next.

use super::job::{Job, Member};
use super::waiting::Group;
use super::{JoinAsk, RunKey, algorithm_name, format_name};
use crate::proto::Capacity;
use crate::tenants::Tenant;
use crate::{ControlError, ErrorCode};

pub(super) fn no_server() -> ControlError {
    ControlError::new(
        ErrorCode::NoServer,
        "no parameter server for this ATP job: none stands beside the switch, and no rank runs one",
        "Start `fanin server --switch <this switch>`, or leave FANIN_SERVER at `auto` on rank 0",
    )
}

pub(super) fn draining() -> ControlError {
    ControlError::new(
        ErrorCode::Draining,
        "the switch is draining and takes no new job",
        "Use another switch, or start again when this one is back",
    )
}

pub(super) fn stale_run(key: &RunKey) -> ControlError {
    ControlError::new(
        ErrorCode::StaleRun,
        format!("run `{}` of job `{}` has ended on this switch", key.run_id, key.job_name),
        "This worker belongs to an older run: end it. A restarted job needs a new run_id on all ranks",
    )
}

pub(super) fn run_is_complete(job: &Job, rank: u16) -> ControlError {
    let RunKey { job_name, run_id, .. } = &job.key;
    if job.is_broken() {
        let message = format!("run `{run_id}` of job `{job_name}` is broken: {}", job.broken_reason());
        return ControlError::new(ErrorCode::StaleRun, message, "Restart all ranks with a new run_id");
    }
    let label = job.members.get(usize::from(rank)).map_or("unknown", |member| &member.label);
    duplicate_rank(rank, run_id, label)
}

pub(super) fn duplicate_rank(rank: u16, run_id: &str, label: &str) -> ControlError {
    ControlError::new(
        ErrorCode::DuplicateRank,
        format!("rank {rank} of run `{run_id}` is already taken by {}", label_or_unknown(label)),
        "Give every process its own rank; if this is a restart, give all ranks a new run_id",
    )
}

fn label_or_unknown(label: &str) -> &str {
    if label.is_empty() { "another process" } else { label }
}

/// Compares an ask with the group it wants to enter; names both ranks and both values.
pub(super) fn disagreement(group: &Group, ask: &JoinAsk) -> Option<ControlError> {
    let (first_rank, _) = group.waiters.first_key_value()?;
    let (ours, theirs) = (group.shape, ask.shape);
    let difference = if ours.world_size != theirs.world_size {
        Some(("world_size", ours.world_size.to_string(), theirs.world_size.to_string()))
    } else if ours.lane_count != theirs.lane_count {
        Some(("lane_count", ours.lane_count.to_string(), theirs.lane_count.to_string()))
    } else if ours.absences != theirs.absences {
        let [our_text, their_text] = [ours, theirs].map(|shape| format!("{:?}", shape.absences));
        Some(("on_peer_loss or stragglers", our_text, their_text))
    } else if ours.algorithm != theirs.algorithm {
        let [our_name, their_name] = [ours, theirs].map(|shape| algorithm_name(shape.algorithm).to_string());
        Some(("algorithm", our_name, their_name))
    } else if ours.accumulator != theirs.accumulator {
        let [our_name, their_name] = [ours, theirs].map(|shape| shape.accumulator.label().to_string());
        Some(("accumulator", our_name, their_name))
    } else if ours.wire_format != theirs.wire_format {
        let names = [ours, theirs].map(|shape| format_name(shape.wire_format).to_string());
        let [our_name, their_name] = names;
        Some(("wire_format", our_name, their_name))
    } else {
        None
    };
    let (field, our_value, their_value) = difference?;
    Some(ControlError::new(
        ErrorCode::RanksDisagree,
        format!(
            "the ranks of job `{}` disagree on {field}: rank {first_rank} says {our_value}, rank {} says {their_value}",
            ask.job_name, ask.rank
        ),
        "Start all ranks with the same settings",
    ))
}

pub(super) fn missing_ranks(key: &RunKey, group: &Group, now_ms: u64, elsewhere: &[(u16, String)]) -> ControlError {
    let missing = group.missing_ranks();
    let message = format!(
        "job `{}` waited {:.1} s for {} of {} ranks: {} did not join",
        key.job_name,
        group.age_ms(now_ms) as f64 / 1000.0,
        missing.len(),
        group.shape.world_size,
        rank_list(&missing),
    );
    ControlError::new(ErrorCode::MissingRanks, message, missing_hint(key, group, elsewhere)).with_missing_ranks(missing)
}

fn missing_hint(key: &RunKey, group: &Group, elsewhere: &[(u16, String)]) -> String {
    if let Some(rank) = group.claimed_twice.first() {
        return format!("Two processes claimed rank {rank}: give every process its own rank");
    }
    if let Some((rank, run_id)) = elsewhere.first() {
        return format!(
            "Rank {rank} joined run `{run_id}` and these ranks joined run `{}`: give all ranks the same run_id",
            key.run_id
        );
    }
    "Check that these processes run and that they can reach the switch".into()
}

pub(super) fn nobody_to_replace(key: &RunKey) -> ControlError {
    ControlError::new(
        ErrorCode::InvalidRequest,
        format!(
            "run `{}` of job `{}` does not run on this switch: there is nobody to replace",
            key.run_id, key.job_name
        ),
        "Use the job, run_id, switch and token of the ranks that are left; a first start goes without `replace`",
    )
}

pub(super) fn cannot_go_on(job: &Job) -> ControlError {
    ControlError::new(
        ErrorCode::InvalidRequest,
        format!("job `{}` ends with a lost rank: nobody can take its place", job.key.job_name),
        "Start all ranks with FANIN_ALGORITHM=atp and FANIN_ON_PEER_LOSS=continue",
    )
}

/// A replacement must be what the lost rank was.
pub(super) fn unlike(job: &Job, ask: &JoinAsk, is_same_shape: bool) -> Option<ControlError> {
    let name = &job.key.job_name;
    let message = if !is_same_shape {
        format!("the replacement describes job `{name}` as {:?}, its ranks as {:?}", ask.shape, job.assignment.shape)
    } else if ask.element_count_max < job.assignment.element_count_max {
        format!(
            "packets of job `{name}` have up to {} elements, and those of the replacement have up to {}",
            job.assignment.element_count_max, ask.element_count_max
        )
    } else {
        return None;
    };
    Some(ControlError::new(
        ErrorCode::RanksDisagree,
        message,
        "Start the replacement with the settings of the lost rank",
    ))
}

/// A replacement's wait is over.
pub(super) fn not_admitted(job: &Job, rank: u16) -> ControlError {
    let is_here = job.members.get(usize::from(rank)).is_some_and(Member::is_present);
    if is_here {
        let label = job.members.get(usize::from(rank)).map_or("", |member| &member.label);
        return duplicate_rank(rank, &job.key.run_id, label);
    }
    let message =
        format!("rank {rank} of job `{}` was lost, and the other ranks have not called admit()", job.key.job_name);
    let hint =
        "Have every rank that is left call Session.admit() at the same place of its loop, or wait for longer (timeout)";
    ControlError::new(ErrorCode::MissingRanks, message, hint)
}

/// For replacements: there is nothing to take part in.
pub(super) fn job_ended(job: &Job) -> ControlError {
    let RunKey { job_name, run_id, .. } = &job.key;
    let why = if job.is_broken() { job.broken_reason() } else { "its ranks have left".into() };
    let message = format!("run `{run_id}` of job `{job_name}` has ended: {why}");
    ControlError::new(ErrorCode::StaleRun, message, "Start all ranks again with a new run_id")
}

/// `rank 3` or `ranks 0, 2, 5`; long lists are cut, the full list is in the error's `missing_ranks`.
pub(super) fn rank_list(ranks: &[u16]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown: Vec<String> = ranks.iter().take(SHOWN_MAX).map(u16::to_string).collect();
    let more = ranks.len().saturating_sub(SHOWN_MAX);
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    match more {
        0 => format!("{noun} {}", shown.join(", ")),
        _ => format!("{noun} {} and {more} more", shown.join(", ")),
    }
}

pub(super) fn switch_full(capacity: Capacity) -> ControlError {
    let message = format!("the switch is full: {}", capacity_text(&capacity));
    let hint = "Wait for a job to end, ask for fewer slots_per_lane, or give the switch more slot memory";
    ControlError::new(ErrorCode::SwitchFull, message, hint).with_capacity(capacity)
}

pub(super) fn quota_exceeded(tenant: &Tenant, capacity: Capacity) -> ControlError {
    let message = format!("tenant `{}` has used its quota: {}", tenant.name, capacity_text(&capacity));
    let hint = "End one of these jobs, ask for fewer slots_per_lane, or ask the operator for more";
    ControlError::new(ErrorCode::QuotaExceeded, message, hint).with_capacity(capacity)
}

fn capacity_text(capacity: &Capacity) -> String {
    let users = capacity.users.iter();
    let users: Vec<String> =
        users.map(|user| format!("`{}` {}", user.job_name, bytes_text(user.slot_memory_bytes))).collect();
    let users = if users.is_empty() { "nothing".into() } else { users.join(", ") };
    format!(
        "the job needs {}, {} of {} are free, {} of {} jobs are in use ({users})",
        bytes_text(capacity.slot_memory_bytes_wanted),
        bytes_text(capacity.slot_memory_bytes_free),
        bytes_text(capacity.slot_memory_bytes_total),
        capacity.job_count,
        capacity.job_count_max,
    )
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1048576.0),
    }
}

pub(super) fn unknown_job(job_id: u32) -> ControlError {
    ControlError::new(
        ErrorCode::UnknownJob,
        format!("the switch has no job {job_id:#010x}"),
        "The job has ended or the switch was restarted: start all ranks again",
    )
}

pub(super) fn wrong_token(job_id: u32) -> ControlError {
    ControlError::new(
        ErrorCode::WrongJobToken,
        format!("the token does not belong to job {job_id:#010x}"),
        "Use the job_token of this job's JoinResponse",
    )
}

pub(super) fn not_a_member(rank: u16, what: &str) -> ControlError {
    ControlError::new(ErrorCode::JobBroken, format!("rank {rank} {what}"), "Start all ranks again with a new run_id")
}

/// For a process whose rank has another one now.
pub(super) fn replaced(rank: u16) -> ControlError {
    let message = format!("rank {rank} was declared lost and replaced: this process has no part in the job any more");
    let hint = "End this process. A rank whose host stalls for longer than the switch's lease is taken for lost";
    ControlError::new(ErrorCode::JobBroken, message, hint)
}

pub(super) fn install_failed(why: &str) -> ControlError {
    ControlError::new(
        ErrorCode::InstallFailed,
        format!("the data plane did not take the job: {why}"),
        "Look at the switch's log",
    )
}

pub(super) fn internal(why: &str) -> ControlError {
    ControlError::new(ErrorCode::Internal, why, "This is a bug of the switch: report it with its log")
}
