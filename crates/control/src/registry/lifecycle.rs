//! A complete job until its end: install, streams, leases, loss, leave, drain.

use std::net::SocketAddr;

use super::job::{Job, JobPhase, Member, MemberState, StreamId};
use super::{Effect, Registry, RunKey, ServerId, ServerOwner, Ticket, refusals};
use crate::ControlError;
use crate::proto::{
    Draining, JobRemoved, LeaveRequest, LossReason, PeerLeft, PeerLost, RemovalReason, Report, ServerLost, notice,
};

impl Registry {
    /// The data plane has taken the job of an [`Effect::Install`], or says why not. Admits or refuses its ranks.
    pub fn install_done(&mut self, now_ms: u64, job_id: u32, outcome: Result<(), String>) {
        match outcome {
            Ok(()) if self.has_lost_server(job_id) => {
                self.refuse_installing(job_id, &refusals::no_server());
                self.effect(Effect::Remove { job_id });
            }
            Ok(()) => self.admit_all(now_ms, job_id),
            Err(why) => self.refuse_installing(job_id, &refusals::install_failed(&why)),
        }
    }

    /// Whether a parameter server has gone while its job was installed.
    fn has_lost_server(&self, job_id: u32) -> bool {
        let atp = self.jobs.get(&job_id).and_then(|job| job.assignment.atp.as_ref());
        atp.is_some_and(|atp| {
            atp.servers
                .iter()
                .any(|lane| matches!(lane.owner, ServerOwner::Standing(id) if !self.servers.contains_key(&id)))
        })
    }

    fn admit_all(&mut self, now_ms: u64, job_id: u32) {
        let lease_until_ms = now_ms.saturating_add(self.limits.lease_ms);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        job.phase = JobPhase::Running;
        let assignment = job.assignment.clone();
        let mut tickets = Vec::with_capacity(job.members.len());
        for member in &mut job.members {
            member.lease_until_ms = lease_until_ms;
            tickets.push(member.ticket);
        }
        for ticket in tickets {
            self.effect(Effect::Admit { ticket, assignment: assignment.clone() });
        }
    }

    /// The run is not retired: its ranks may try again.
    fn refuse_installing(&mut self, job_id: u32, error: &ControlError) {
        let Some(job) = self.jobs.remove(&job_id) else { return };
        self.numbers.give_back(job_id);
        let tickets: Vec<Ticket> = job.members.iter().map(|member| member.ticket).collect();
        for ticket in tickets {
            self.effect(Effect::Refuse { ticket, error: error.clone() });
        }
    }

    /// Opens a rank's stream and returns its lease in milliseconds. A newer stream replaces an older one: a worker
    /// that reconnects need not wait until the switch has noticed the end of the old connection.
    ///
    /// # Errors
    /// Unknown job, wrong token, or the rank has left, was lost, or has another process now.
    pub fn attach(&mut self, now_ms: u64, report: &Report, stream: StreamId) -> Result<u64, ControlError> {
        let lease_ms = self.limits.lease_ms;
        let member = self.member((report.job_id, report.job_token), report.rank, report.membership)?;
        check_present(member, report.rank)?;
        member.state = MemberState::Attached(stream);
        member.lease_until_ms = now_ms.saturating_add(lease_ms);
        if let Some(set_up) = self.jobs.get(&report.job_id).and_then(|job| job.set_up.clone()) {
            let (job_id, rank) = (report.job_id, report.rank as u16);
            self.effect(Effect::Notify { job_id, rank, notice: notice::Kind::SetUpAgain(set_up) });
        }
        Ok(lease_ms)
    }

    /// Renews the lease and keeps the report for whoever asks what the rank does.
    ///
    /// # Errors
    /// As [`Registry::attach`]; also when `stream` is no longer the rank's stream.
    pub fn report(&mut self, now_ms: u64, mut report: Report, stream: StreamId) -> Result<(), ControlError> {
        let lease_until_ms = now_ms.saturating_add(self.limits.lease_ms);
        let rank = report.rank;
        let member = self.member((report.job_id, report.job_token), rank, report.membership)?;
        check_present(member, rank)?;
        if member.state != MemberState::Attached(stream) {
            return Err(refusals::not_a_member(rank as u16, "has opened a newer stream"));
        }
        member.lease_until_ms = lease_until_ms;
        member.boundary = report.boundary.clone();
        let (job_id, names) = (report.job_id, std::mem::take(&mut report.tensor_names));
        member.record(now_ms, report);
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.tensor_names.learn(names);
        }
        self.admit_at_boundary(now_ms, job_id);
        Ok(())
    }

    /// The stream of a rank has ended. Without an earlier [`Registry::leave`] the rank is lost.
    pub fn stream_closed(&mut self, now_ms: u64, job_id: u32, rank: u16, stream: StreamId) {
        let Some(job) = self.jobs.get(&job_id) else { return };
        let Some(member) = job.members.get(usize::from(rank)) else { return };
        if member.state == MemberState::Attached(stream) {
            let detail = "the connection ended without a leave".to_string();
            self.lose(now_ms, job_id, rank, LossReason::StreamClosed, detail);
        }
    }

    /// An orderly end for one rank; can be repeated.
    ///
    /// # Errors
    /// Unknown job, wrong token, or the rank has another process now.
    pub fn leave(&mut self, request: &LeaveRequest) -> Result<(), ControlError> {
        let LeaveRequest { job_id, job_token, rank, membership } = *request;
        let member = self.member((job_id, job_token), rank, membership)?;
        if !member.is_present() {
            return Ok(());
        }
        member.state = MemberState::Left;
        let left = notice::Kind::PeerLeft(PeerLeft { rank });
        self.notify_attached(job_id, &left);
        self.effect(Effect::CloseStream { job_id, rank: rank as u16 });
        self.remove_if_deserted(job_id, RemovalReason::AllLeft);
        Ok(())
    }

    /// Carries out what is due: joins whose time is over, leases, broken jobs.
    pub fn expire(&mut self, now_ms: u64) {
        self.expire_groups(now_ms);
        for job_id in self.job_ids() {
            self.expire_leases(now_ms, job_id);
            self.expire_replacements(now_ms, job_id);
            self.expire_broken(now_ms, job_id);
        }
    }

    fn expire_groups(&mut self, now_ms: u64) {
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let groups = self.groups.iter().filter(|(_, group)| is_due(group.next_deadline_ms()));
        let due: Vec<RunKey> = groups.map(|(key, _)| key.clone()).collect();
        for key in due {
            let Some(group) = self.groups.get(&key) else { continue };
            let elsewhere = self.found_in_other_runs(&key, &group.missing_ranks());
            let error = refusals::missing_ranks(&key, group, now_ms, &elsewhere);
            self.refuse_group(&key, &error);
        }
    }

    /// Missing ranks that wait in another run of the same job: the usual sign of different run ids.
    fn found_in_other_runs(&self, key: &RunKey, missing: &[u16]) -> Vec<(u16, String)> {
        let others = self.groups.iter().filter(|(other, _)| other.same_job(key) && *other != key);
        others
            .flat_map(|(other, group)| {
                let found = missing.iter().filter(|rank| group.waiters.contains_key(rank));
                found.map(|rank| (*rank, other.run_id.clone()))
            })
            .collect()
    }

    fn expire_leases(&mut self, now_ms: u64, job_id: u32) {
        let Some(job) = self.jobs.get(&job_id) else { return };
        let lease_ms = self.limits.lease_ms;
        for (rank, state) in job.expired_ranks(now_ms) {
            let (reason, detail) = match state {
                MemberState::Joined => {
                    (LossReason::NeverAttached, format!("joined but did not attach within {lease_ms} ms"))
                }
                _ => (LossReason::LeaseExpired, format!("sent no report for {lease_ms} ms")),
            };
            self.lose(now_ms, job_id, rank, reason, detail);
            self.effect(Effect::CloseStream { job_id, rank });
        }
    }

    fn expire_broken(&mut self, now_ms: u64, job_id: u32) {
        let phase = self.jobs.get(&job_id).map(|job| &job.phase);
        if matches!(phase, Some(JobPhase::Broken { remove_at_ms, .. }) if *remove_at_ms <= now_ms) {
            self.remove_job(job_id, RemovalReason::Broken);
        }
    }

    /// Marks a rank lost, breaks its job and tells the others.
    pub(super) fn lose(&mut self, now_ms: u64, job_id: u32, rank: u16, reason: LossReason, detail: String) {
        let remove_at_ms = now_ms.saturating_add(self.limits.broken_kept_ms);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let Some(member) = job.members.get_mut(usize::from(rank)) else { return };
        member.state = MemberState::Lost;
        let Some(detail) = self.go_on_without(job_id, rank, detail) else { return };
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        if !job.is_broken() {
            let reason = format!("rank {rank} ({}) was lost: {detail}", member_label(job, rank));
            job.phase = JobPhase::Broken { reason, remove_at_ms };
        }
        let lost = notice::Kind::PeerLost(PeerLost { rank: rank.into(), reason: reason.into(), detail });
        self.notify_attached(job_id, &lost);
        self.refuse_replacements(job_id);
        self.remove_if_deserted(job_id, RemovalReason::Broken);
    }

    /// A parameter server of its own has come, with its UDP addresses. Jobs from now on may use it.
    pub fn server_attached(&mut self, server: ServerId, addresses: Vec<SocketAddr>) {
        self.servers.insert(server, addresses);
    }

    /// It has gone: its jobs cannot go on.
    pub fn server_detached(&mut self, now_ms: u64, server: ServerId, detail: &str) {
        self.servers.remove(&server);
        let remove_at_ms = now_ms.saturating_add(self.limits.broken_kept_ms);
        // A job that is being installed finds out by itself.
        let uses = |job: &Job| {
            job.phase != JobPhase::Installing && job.assignment.atp.as_ref().is_some_and(|atp| atp.is_served_by(server))
        };
        let jobs: Vec<u32> = self.jobs.iter().filter(|(_, job)| uses(job)).map(|(job_id, _)| *job_id).collect();
        for job_id in jobs {
            if let Some(job) = self.jobs.get_mut(&job_id)
                && !job.is_broken()
            {
                job.phase =
                    JobPhase::Broken { reason: format!("its parameter server was lost: {detail}"), remove_at_ms };
            }
            self.notify_attached(job_id, &notice::Kind::ServerLost(ServerLost { detail: detail.into() }));
            self.refuse_replacements(job_id);
        }
    }

    /// Admits no more jobs, refuses those that wait, and tells the workers of those that run.
    pub fn drain(&mut self, deadline_ms: u64) {
        self.draining = true;
        self.refuse_all_groups();
        for job_id in self.job_ids() {
            self.notify_attached(job_id, &notice::Kind::Draining(Draining { deadline_ms }));
        }
    }

    /// Ends everything now: every waiting call is answered and every stream told.
    pub fn shut_down(&mut self) {
        self.draining = true;
        self.refuse_all_groups();
        for job_id in self.job_ids() {
            let phase = self.jobs.get(&job_id).map(|job| &job.phase);
            if phase == Some(&JobPhase::Installing) {
                // The data plane may have the job by the time this is carried out.
                self.refuse_installing(job_id, &refusals::draining());
                self.effect(Effect::Remove { job_id });
            } else {
                self.remove_job(job_id, RemovalReason::SwitchStopped);
            }
        }
    }

    fn refuse_all_groups(&mut self) {
        let keys: Vec<RunKey> = self.groups.keys().cloned().collect();
        for key in keys {
            self.refuse_group(&key, &refusals::draining());
        }
    }

    fn remove_if_deserted(&mut self, job_id: u32, reason: RemovalReason) {
        if self.jobs.get(&job_id).is_some_and(Job::is_deserted) {
            self.remove_job(job_id, reason);
        }
    }

    pub(super) fn remove_job(&mut self, job_id: u32, reason: RemovalReason) {
        let removed = notice::Kind::JobRemoved(JobRemoved { reason: reason.into() });
        self.notify_attached(job_id, &removed);
        self.refuse_replacements(job_id);
        let Some(job) = self.jobs.remove(&job_id) else { return };
        for rank in job.attached_ranks() {
            self.effect(Effect::CloseStream { job_id, rank });
        }
        self.numbers.give_back(job_id);
        self.effect(Effect::Remove { job_id });
        self.retire(job.key);
    }

    pub(super) fn notify_attached(&mut self, job_id: u32, notice: &notice::Kind) {
        let ranks = self.jobs.get(&job_id).map(Job::attached_ranks).unwrap_or_default();
        for rank in ranks {
            self.effect(Effect::Notify { job_id, rank, notice: notice.clone() });
        }
    }

    /// A replacement keeps the job's token, so that the membership has to tell it from the process that was declared lost:
    /// that one may still live.
    fn member(
        &mut self,
        (job_id, job_token): (u32, u32),
        rank: u32,
        membership: u64,
    ) -> Result<&mut Member, ControlError> {
        let job = self.jobs.get_mut(&job_id).ok_or_else(|| refusals::unknown_job(job_id))?;
        if job.assignment.job_token != job_token {
            return Err(refusals::wrong_token(job_id));
        }
        let number = rank.min(u16::MAX.into()) as u16;
        let member = job.members.get_mut(rank as usize);
        let member = member.ok_or_else(|| refusals::not_a_member(number, "is not in this job"))?;
        if member.is_called(membership) { Ok(member) } else { Err(refusals::replaced(number)) }
    }
}

fn check_present(member: &Member, rank: u32) -> Result<(), ControlError> {
    match member.state {
        MemberState::Joined | MemberState::Attached(_) => Ok(()),
        MemberState::Left => Err(refusals::not_a_member(rank as u16, "has left the job")),
        MemberState::Lost => Err(refusals::not_a_member(rank as u16, "was declared lost")),
    }
}

fn member_label(job: &Job, rank: u16) -> &str {
    let label = job.members.get(usize::from(rank)).map_or("", |member| &member.label);
    if label.is_empty() { "no label" } else { label }
}
