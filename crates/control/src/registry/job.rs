//! A complete job and its members.

use std::collections::BTreeMap;

use super::tensors::TensorNames;
use super::waiting::{Waiter, worker_status};
use super::{Assignment, AtpAssignment, Boundary, RunKey, Ticket};
use crate::proto::{self, JobState, JobStatus, Report, SetUpAgain, WorkerState, WorkerStatus};

/// Names one `Attach` stream, so that the end of an old stream does not end its successor.
pub type StreamId = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobPhase {
    /// Waits for the data plane.
    Installing,
    Running,
    Broken {
        reason: String,
        remove_at_ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    Joined,
    Attached(StreamId),
    Left,
    Lost,
}

pub(super) struct Member {
    pub(super) ticket: Ticket,
    /// Whether the rank had another process before.
    pub(super) is_replacement: bool,
    pub(super) label: String,
    pub(super) state: MemberState,
    pub(super) lease_until_ms: u64,
    last_report: Option<(u64, Report)>,
    /// Where it waits for the others and for replacements.
    pub(super) boundary: Option<proto::Boundary>,
}

impl Member {
    pub(super) fn new(ticket: Ticket, label: String) -> Self {
        Self {
            ticket,
            is_replacement: false,
            label,
            state: MemberState::Joined,
            lease_until_ms: u64::MAX,
            last_report: None,
            boundary: None,
        }
    }

    pub(super) fn replacement(ticket: Ticket, label: String) -> Self {
        Self { is_replacement: true, ..Self::new(ticket, label) }
    }

    /// Whether a call comes from this process, and not from one that had the rank before. Workers of older releases do not say.
    pub(super) fn is_called(&self, membership: u64) -> bool {
        membership == self.ticket.0 || membership == 0 && !self.is_replacement
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.state, MemberState::Joined | MemberState::Attached(_))
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self.state, MemberState::Attached(_))
    }

    pub(super) fn record(&mut self, now_ms: u64, report: Report) {
        self.last_report = Some((now_ms, report));
    }

    fn status(&self, rank: usize, now_ms: u64) -> WorkerStatus {
        WorkerStatus {
            rank: rank as u32,
            state: self.proto_state().into(),
            label: self.label.clone(),
            report_age_ms: self.last_report.as_ref().map(|(at_ms, _)| now_ms.saturating_sub(*at_ms)),
            last_report: self.last_report.as_ref().map(|(_, report)| without_secret(report)),
            ..WorkerStatus::default()
        }
    }

    fn proto_state(&self) -> WorkerState {
        match self.state {
            MemberState::Joined => WorkerState::Joined,
            MemberState::Attached(_) => WorkerState::Attached,
            MemberState::Left => WorkerState::Left,
            MemberState::Lost => WorkerState::Lost,
        }
    }
}

/// Status is shown to people who need not know the job's token.
fn without_secret(report: &Report) -> Report {
    Report { job_token: 0, ..report.clone() }
}

/// A job on its way to another tree. Replaces one that is not there yet.
pub(super) struct SettingUp {
    /// That packets will have.
    pub(super) token: u32,
    /// The rank lost last, and how.
    pub(super) lost: Option<(u16, String)>,
    /// Where replacements begin, if there are any.
    pub(super) joined: Option<Boundary>,
}

pub(super) struct Job {
    pub(super) key: RunKey,
    pub(super) assignment: Assignment,
    pub(super) phase: JobPhase,
    /// What the job is being set up again for.
    pub(super) setting_up: Option<SettingUp>,
    /// What the job was set up as last, for ranks whose stream opens late.
    pub(super) set_up: Option<SetUpAgain>,
    /// By rank: who waits to take a lost rank's place.
    pub(super) replacements: BTreeMap<u16, Waiter>,
    /// Until when ranks that have all come to a boundary wait for replacements.
    pub(super) boundary_until_ms: Option<u64>,
    /// Boundaries before this collective are behind all ranks.
    pub(super) boundary_next: u64,
    /// Indexed by rank.
    pub(super) members: Vec<Member>,
    pub(super) since_ms: u64,
    pub(super) tensor_names: TensorNames,
}

impl Job {
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.phase, JobPhase::Broken { .. })
    }

    pub(super) fn is_deserted(&self) -> bool {
        !self.members.iter().any(Member::is_present)
    }

    pub(super) fn attached_ranks(&self) -> Vec<u16> {
        let members = self.members.iter().enumerate();
        members.filter(|(_, member)| member.is_attached()).map(|(rank, _)| rank as u16).collect()
    }

    /// Ranks whose lease is over, with what they did last.
    pub(super) fn expired_ranks(&self, now_ms: u64) -> Vec<(u16, MemberState)> {
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, member)| member.is_present() && member.lease_until_ms <= now_ms)
            .map(|(rank, member)| (rank as u16, member.state))
            .collect()
    }

    /// Whether ranks at a boundary can go on from it now. While the job is set up again, the end of that decides.
    pub(super) fn may_leave_boundary(&self) -> bool {
        self.phase == JobPhase::Running && self.setting_up.is_none()
    }

    pub(super) fn next_expiry_ms(&self) -> Option<u64> {
        let present = self.members.iter().filter(|member| member.is_present());
        // A time that nothing is done at would stay in the past, and the clock would not sleep.
        let boundary = self.boundary_until_ms.filter(|_| self.may_leave_boundary());
        let waiting = self.replacements.values().map(|waiter| waiter.deadline_ms).chain(boundary);
        let lease = present.map(|member| member.lease_until_ms).chain(waiting).min();
        match self.phase {
            JobPhase::Installing => None,
            JobPhase::Running => lease,
            JobPhase::Broken { remove_at_ms, .. } => Some(lease.map_or(remove_at_ms, |at_ms| at_ms.min(remove_at_ms))),
        }
    }

    pub(super) fn status(&self, now_ms: u64) -> JobStatus {
        let shape = self.assignment.shape;
        let members = self.members.iter().enumerate();
        JobStatus {
            job_id: self.assignment.job_id,
            job_name: self.key.job_name.clone(),
            run_id: self.key.run_id.clone(),
            tenant: self.key.tenant.clone(),
            state: self.proto_state().into(),
            world_size: shape.world_size.into(),
            lane_count: shape.lane_count.into(),
            slots_per_lane: self.assignment.slots_per_lane,
            element_count_max: self.assignment.element_count_max.into(),
            wire_format: shape.wire_format.into(),
            slot_memory_bytes: self.assignment.slot_memory_bytes(),
            slot_count: u32::from(shape.lane_count) * self.assignment.slots_per_lane,
            algorithm: shape.algorithm.into(),
            accumulator: shape.accumulator.code().into(),
            atp: self.assignment.atp.as_ref().map(AtpAssignment::to_proto),
            age_ms: now_ms.saturating_sub(self.since_ms),
            workers: members.map(|(rank, member)| member.status(rank, now_ms)).collect(),
            broken_reason: self.broken_reason(),
            host_of_rank: self.assignment.host_of_rank.iter().map(|host| (*host).into()).collect(),
            checksum: Some(self.assignment.has_checksum),
            replacements: self.replacements.iter().map(worker_status).collect(),
            ..JobStatus::default()
        }
    }

    pub(super) fn broken_reason(&self) -> String {
        match &self.phase {
            JobPhase::Broken { reason, .. } => reason.clone(),
            _ => String::new(),
        }
    }

    fn proto_state(&self) -> JobState {
        match self.phase {
            JobPhase::Installing => JobState::Waiting,
            JobPhase::Running => JobState::Running,
            JobPhase::Broken { .. } => JobState::Broken,
        }
    }
}
