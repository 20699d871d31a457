//! Somebody in place of a rank that was lost (ATP App. A.3).
//!
//! The replacement's `Join` waits until the other ranks have all come to one *boundary*: a place in the order of collectives up
//! to which each has all results. Then nothing of the job is under way, the job is set up again with the replacement in the
//! tree, and everybody goes on from there.

use super::atp::{self, AtpAssignment};
use super::job::{Job, JobPhase, Member, MemberState};
use super::waiting::Waiter;
use super::{Assignment, Effect, JoinAsk, Registry, RunKey, Ticket, refusals};
use crate::ControlError;
use crate::proto::{self, Admitted, BoundaryReached, notice};

/// Longest time that ranks can wait for replacements, milliseconds.
const WAIT_MS_MAX: u64 = 86_400_000;

/// A place in the order of a job's collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Number of the collective that it is in place of: the next one has one more.
    pub sequence: u64,
    /// By lane: chunks before it.
    pub chunks: Vec<u64>,
}

/// Where a replacement begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Of its packets. Calls and reports use the job's own.
    pub packet_token: u32,
    /// The first that it has a part in comes after this.
    pub boundary: Boundary,
}

impl Boundary {
    /// As it is sent; a rank that would wait says how long.
    pub fn to_proto(&self, wait_ms: u64) -> proto::Boundary {
        proto::Boundary { sequence: self.sequence, chunks: self.chunks.clone(), wait_ms }
    }

    /// As it was sent.
    pub fn from_proto(boundary: &proto::Boundary) -> Boundary {
        Boundary { sequence: boundary.sequence, chunks: boundary.chunks.clone() }
    }
}

impl Registry {
    /// Enters a replacement, which waits for its rank to be lost, and for the others to admit it.
    pub(super) fn join_in_place(&mut self, now_ms: u64, key: &RunKey, ask: &JoinAsk) -> Result<Ticket, ControlError> {
        if self.draining {
            return Err(refusals::draining());
        }
        let Some(job) = self.jobs.values_mut().find(|job| job.key == *key) else {
            let is_over = self.retired.contains(key);
            return Err(if is_over { refusals::stale_run(key) } else { refusals::nobody_to_replace(key) });
        };
        check_fits(job, ask)?;
        if let Some(other) = job.replacements.get(&ask.rank) {
            return Err(refusals::duplicate_rank(ask.rank, &key.run_id, &other.label));
        }
        let ticket = Ticket(self.ticket_next);
        self.ticket_next += 1;
        job.replacements.insert(ask.rank, Waiter::new(ask, ticket, now_ms));
        let job_id = job.assignment.job_id;
        self.admit_at_boundary(now_ms, job_id);
        Ok(ticket)
    }

    /// Lets the ranks go on that wait at a boundary, if all have come: with the replacements that are there, as soon as all are,
    /// or when the time is over for which the most patient rank would wait.
    pub(super) fn admit_at_boundary(&mut self, now_ms: u64, job_id: u32) {
        let lost = self.lost_ranks(job_id);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        if !job.may_leave_boundary() {
            return;
        }
        let Some(boundaries) = job.boundaries() else {
            job.boundary_until_ms = None;
            return;
        };
        let (boundary, wait_ms) = match agreed(&boundaries) {
            Ok(agreed) => agreed,
            Err(error) => return self.not_a_boundary(job_id, error),
        };
        let begins = job.boundary_until_ms.is_none();
        let until_ms = *job.boundary_until_ms.get_or_insert(now_ms.saturating_add(wait_ms));
        let here: Vec<u16> = lost.iter().copied().filter(|rank| job.replacements.contains_key(rank)).collect();
        if here.len() < lost.len() && now_ms < until_ms {
            if begins {
                // A rank that would have waited for less must not give up before the others.
                let reached = BoundaryReached { sequence: boundary.sequence, wait_ms };
                self.notify_attached(job_id, &notice::Kind::BoundaryReached(reached));
            }
            return;
        }
        job.leave_boundary(boundary.sequence);
        if here.is_empty() {
            let admitted = Admitted { sequence: boundary.sequence, ..Admitted::default() };
            return self.notify_attached(job_id, &notice::Kind::Admitted(admitted));
        }
        self.take_in(job_id, &here, boundary);
    }

    fn not_a_boundary(&mut self, job_id: u32, error: String) {
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.leave_boundary(0);
        }
        self.notify_attached(job_id, &notice::Kind::Admitted(Admitted { error, ..Admitted::default() }));
    }

    /// Puts replacements into the lost ranks' places and has the job set up again with them.
    fn take_in(&mut self, job_id: u32, ranks: &[u16], boundary: Boundary) {
        let planned = self.planned_with(job_id, ranks);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let waiters: Vec<(u16, Waiter)> =
            ranks.iter().filter_map(|&rank| Some((rank, job.replacements.remove(&rank)?))).collect();
        match planned {
            Ok(atp) => {
                for (rank, waiter) in waiters {
                    job.members[usize::from(rank)] = Member::replacement(waiter.ticket, waiter.label);
                }
                self.begin_setting_up(job_id, atp, None, Some(boundary));
            }
            Err(error) => {
                for (_, waiter) in waiters {
                    self.effect(Effect::Refuse { ticket: waiter.ticket, error: error.clone() });
                }
                let admitted = Admitted { sequence: boundary.sequence, ..Admitted::default() };
                self.notify_attached(job_id, &notice::Kind::Admitted(admitted));
            }
        }
    }

    /// The tree with replacements, which may stand beside other switches than those whose places they take.
    fn planned_with(&self, job_id: u32, ranks: &[u16]) -> Result<AtpAssignment, ControlError> {
        let gone = || refusals::internal("the job is gone");
        let job = self.jobs.get(&job_id).ok_or_else(gone)?;
        let old = job.assignment.atp.as_ref().ok_or_else(gone)?;
        let mut beside = old.beside.clone();
        for rank in ranks {
            let waiter = job.replacements.get(rank).ok_or_else(gone)?;
            *beside.get_mut(usize::from(*rank)).ok_or_else(gone)? = waiter.beside;
        }
        let whole = atp::assign(&self.limits, job.assignment.shape.accumulator, beside, old.servers.clone())?;
        let still_lost = self.lost_ranks(job_id).into_iter().filter(|rank| !ranks.contains(rank));
        still_lost.into_iter().try_fold(whole, |atp, rank| atp.without(rank, &self.limits.topology)).ok_or_else(gone)
    }

    /// Answers those replacements that are still there: the data plane knows them.
    pub(super) fn admit_replacements(&mut self, now_ms: u64, job_id: u32, resumed: &Resumed) {
        let lease_until_ms = now_ms.saturating_add(self.limits.lease_ms);
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let assignment = Assignment { resumed: Some(resumed.clone()), ..job.assignment.clone() };
        let mut tickets = Vec::new();
        for rank in job.joining_ranks() {
            let member = &mut job.members[usize::from(rank)];
            member.lease_until_ms = lease_until_ms;
            tickets.push(member.ticket);
        }
        for ticket in tickets {
            self.effect(Effect::Admit { ticket, assignment: assignment.clone() });
        }
    }

    /// The job has ended or is broken: for those that wait, and for those that were on their way into it.
    pub(super) fn refuse_replacements(&mut self, job_id: u32) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let error = refusals::job_ended(job);
        job.boundary_until_ms = None;
        let mut tickets: Vec<Ticket> =
            std::mem::take(&mut job.replacements).into_values().map(|it| it.ticket).collect();
        for rank in job.joining_ranks() {
            let member = &mut job.members[usize::from(rank)];
            member.state = MemberState::Lost;
            tickets.push(member.ticket);
        }
        for ticket in tickets {
            self.effect(Effect::Refuse { ticket, error: error.clone() });
        }
    }

    /// Replacements that were not admitted in time, and boundaries where nobody came in time.
    pub(super) fn expire_replacements(&mut self, now_ms: u64, job_id: u32) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        let due: Vec<u16> =
            job.replacements.iter().filter(|(_, waiter)| waiter.deadline_ms <= now_ms).map(|(rank, _)| *rank).collect();
        for rank in due {
            let Some(job) = self.jobs.get_mut(&job_id) else { return };
            let Some(waiter) = job.replacements.remove(&rank) else { continue };
            let error = refusals::not_admitted(job, rank);
            self.effect(Effect::Refuse { ticket: waiter.ticket, error });
        }
        self.admit_at_boundary(now_ms, job_id);
    }
}

impl Job {
    /// Where each present rank waits, if all do.
    fn boundaries(&self) -> Option<Vec<(u16, proto::Boundary)>> {
        let present = (0u16..).zip(&self.members).filter(|(_, member)| member.is_present());
        let waiting = present.map(|(rank, member)| {
            let boundary = member.boundary.clone().filter(|boundary| boundary.sequence >= self.boundary_next);
            boundary.map(|boundary| (rank, boundary))
        });
        waiting.collect::<Option<Vec<_>>>().filter(|waiting| !waiting.is_empty())
    }

    /// Replacements that the data plane is being told of.
    pub(super) fn joining_ranks(&self) -> Vec<u16> {
        let is_joining = |member: &Member| member.state == MemberState::Joined && member.lease_until_ms == u64::MAX;
        let members = (0u16..).zip(&self.members).filter(|(_, member)| is_joining(member));
        members.filter(|_| self.phase != JobPhase::Installing).map(|(rank, _)| rank).collect()
    }

    /// What reports still say about it is old.
    fn leave_boundary(&mut self, sequence: u64) {
        self.boundary_next = self.boundary_next.max(sequence + 1);
        self.boundary_until_ms = None;
        self.members.iter_mut().for_each(|member| member.boundary = None);
    }
}

/// The boundary that all name, and the longest wait.
fn agreed(boundaries: &[(u16, proto::Boundary)]) -> Result<(Boundary, u64), String> {
    let Some((first_rank, first)) = boundaries.first() else { return Err("nobody is here".into()) };
    let place = Boundary::from_proto(first);
    if let Some((rank, other)) = boundaries.iter().find(|(_, other)| Boundary::from_proto(other) != place) {
        return Err(format!(
            "rank {first_rank} calls admit() in place of collective #{}, rank {rank} in place of #{}",
            first.sequence, other.sequence
        ));
    }
    let wait_ms = boundaries.iter().map(|(_, boundary)| boundary.wait_ms).max().unwrap_or(0);
    Ok((place, wait_ms.min(WAIT_MS_MAX)))
}

/// Whether the job can go on with somebody in this rank's place, and in this way.
fn check_fits(job: &Job, ask: &JoinAsk) -> Result<(), ControlError> {
    if job.is_broken() {
        return Err(refusals::run_is_complete(job, ask.rank));
    }
    let (ours, theirs) = (job.assignment.shape, ask.shape);
    let can_go_on = ours.absences.goes_on && job.assignment.atp.is_some() && job.assignment.host_of_rank.is_empty();
    if !can_go_on {
        return Err(refusals::cannot_go_on(job));
    }
    if let Some(error) = refusals::unlike(job, ask, ours == theirs) {
        return Err(error);
    }
    match job.members.get(usize::from(ask.rank)).map(|member| member.state) {
        Some(MemberState::Left) | None => Err(refusals::not_a_member(ask.rank, "has left the job")),
        Some(_) => Ok(()),
    }
}
