//! From a checked ask to a complete job.

use std::collections::BTreeMap;

use fanin_wire::Accumulator;

use super::atp::{self, AtpAssignment, LaneServer, ServerOwner};
use super::job::{Job, JobPhase, Member, MemberState};
use super::tensors::TensorNames;
use super::waiting::Group;
use super::{Assignment, Effect, JoinAsk, RackAssignment, Registry, RunKey, Ticket, refusals, slot_memory_bytes};
use crate::proto::{Capacity, LossReason, RemovalReason, SlotUse};
use crate::tenants::Tenant;
use crate::{Algorithm, ControlError, WireFormat};

/// Fewer slots than this make every packet wait for the one before; better to refuse the job.
const SLOTS_PER_LANE_MIN: u32 = 8;

impl Registry {
    /// Enters one rank. The answer comes as [`Effect::Admit`] or [`Effect::Refuse`] for the returned ticket.
    ///
    /// # Errors
    /// Whatever can be said at once: draining, stale run, duplicate rank, disagreement with the ranks that wait, no
    /// room. A disagreement also refuses the ranks that wait, since they would wait in vain.
    pub fn join(&mut self, now_ms: u64, tenant: &Tenant, ask: JoinAsk) -> Result<Ticket, ControlError> {
        let key = RunKey { tenant: tenant.name.clone(), job_name: ask.job_name.clone(), run_id: ask.run_id.clone() };
        if ask.is_replacement {
            return self.join_in_place(now_ms, &key, &ask);
        }
        self.check_run(&key, &ask)?;
        if !self.groups.contains_key(&key) {
            let slots_per_lane = self.reserve(&key, tenant, &ask)?;
            let group = Group::new(&ask, slots_per_lane, now_ms);
            self.groups.insert(key.clone(), group);
        }
        let ticket = self.enter(now_ms, &key, &ask)?;
        self.complete_if_all_are_here(now_ms, &key);
        Ok(ticket)
    }

    /// Takes a rank out whose `Join` call ended without an answer: the process died or gave up.
    pub fn cancel(&mut self, now_ms: u64, ticket: Ticket) {
        self.groups.retain(|_, group| {
            group.waiters.retain(|_, waiter| waiter.ticket != ticket);
            !group.waiters.is_empty()
        });
        for job in self.jobs.values_mut() {
            job.replacements.retain(|_, waiter| waiter.ticket != ticket);
        }
        if let Some((job_id, rank)) = self.find_unattached(ticket) {
            let detail = "gave up while joining".to_string();
            self.lose(now_ms, job_id, rank, LossReason::StreamClosed, detail);
        }
    }

    /// What is free and who uses the rest.
    pub fn capacity(&self) -> Capacity {
        let used = self.slot_memory_bytes_used(|_| true);
        Capacity {
            slot_memory_bytes_total: self.limits.slot_memory_bytes,
            slot_memory_bytes_free: self.limits.slot_memory_bytes.saturating_sub(used),
            slot_memory_bytes_wanted: 0,
            job_count_max: self.limits.job_count_max,
            job_count: self.reservations().count() as u32,
            users: self.reservations().map(slot_use).collect(),
        }
    }

    /// Everything that holds slot memory: running and broken jobs, and groups that wait.
    fn reservations(&self) -> impl Iterator<Item = (&RunKey, u64)> {
        let jobs = self.jobs.values().map(|job| (&job.key, job.assignment.slot_memory_bytes()));
        let groups = self.groups.iter().map(|(key, group)| (key, group.slot_memory_bytes()));
        jobs.chain(groups)
    }

    fn slot_memory_bytes_used(&self, counts: impl Fn(&RunKey) -> bool) -> u64 {
        self.reservations().filter(|(key, _)| counts(key)).map(|(_, bytes)| bytes).sum()
    }

    fn check_run(&self, key: &RunKey, ask: &JoinAsk) -> Result<(), ControlError> {
        if self.draining {
            return Err(refusals::draining());
        }
        if let Some(job) = self.jobs.values().find(|job| job.key == *key) {
            return Err(refusals::run_is_complete(job, ask.rank));
        }
        if self.retired.contains(key) {
            return Err(refusals::stale_run(key));
        }
        Ok(())
    }

    /// Finds room, at the cost of broken jobs if need be, and returns the slots per lane that fit.
    fn reserve(&mut self, key: &RunKey, tenant: &Tenant, ask: &JoinAsk) -> Result<u32, ControlError> {
        self.evict_broken(|broken| broken.same_job(key));
        if let Ok(slots_per_lane) = self.find_room(tenant, ask) {
            return Ok(slots_per_lane);
        }
        self.evict_broken(|_| true);
        self.find_room(tenant, ask)
    }

    fn find_room(&self, tenant: &Tenant, ask: &JoinAsk) -> Result<u32, ControlError> {
        let wanted = self.slot_choices(ask);
        let least_bytes = ask.slot_memory_bytes(*wanted.last().unwrap_or(&SLOTS_PER_LANE_MIN));
        let capacity = Capacity { slot_memory_bytes_wanted: least_bytes, ..self.capacity() };
        if capacity.job_count >= capacity.job_count_max || least_bytes > capacity.slot_memory_bytes_free {
            return Err(refusals::switch_full(capacity));
        }
        let quota_free = self.quota_free(tenant).filter(|free| least_bytes <= *free);
        let Some(quota_free) = quota_free else {
            return Err(refusals::quota_exceeded(tenant, self.quota_capacity(tenant, capacity)));
        };
        let free = quota_free.min(capacity.slot_memory_bytes_free);
        let fitting = wanted.into_iter().find(|slots| ask.slot_memory_bytes(*slots) <= free);
        fitting.ok_or_else(|| refusals::switch_full(capacity))
    }

    /// Slots per lane that would do, best first: one choice for a rank that asked, else the default and its halves.
    fn slot_choices(&self, ask: &JoinAsk) -> Vec<u32> {
        if let Some(wanted) = ask.slots_per_lane_wanted {
            return vec![wanted];
        }
        let bound = self.limits.slots_per_lane_bound(ask.shape.lane_count.into());
        let best = self.limits.slots_per_lane_default.clamp(1, bound);
        let least = SLOTS_PER_LANE_MIN.min(best);
        (0..).map(|halvings| best >> halvings).take_while(|slots| *slots >= least).collect()
    }

    /// Bytes that the tenant may still take; `None` when it has all the jobs it may have.
    fn quota_free(&self, tenant: &Tenant) -> Option<u64> {
        let own = |key: &RunKey| key.tenant == tenant.name;
        let job_count = self.reservations().filter(|(key, _)| own(key)).count() as u32;
        let used = self.slot_memory_bytes_used(own);
        (job_count < tenant.job_count_max).then(|| tenant.slot_memory_bytes_max.saturating_sub(used))
    }

    /// The tenant's share in the words of a whole switch's capacity.
    fn quota_capacity(&self, tenant: &Tenant, switch: Capacity) -> Capacity {
        let users: Vec<_> = switch.users.into_iter().filter(|user| user.tenant == tenant.name).collect();
        let used: u64 = users.iter().map(|user| user.slot_memory_bytes).sum();
        Capacity {
            slot_memory_bytes_total: tenant.slot_memory_bytes_max,
            slot_memory_bytes_free: tenant.slot_memory_bytes_max.saturating_sub(used),
            slot_memory_bytes_wanted: switch.slot_memory_bytes_wanted,
            job_count_max: tenant.job_count_max,
            job_count: users.len() as u32,
            users,
        }
    }

    fn evict_broken(&mut self, wanted: impl Fn(&RunKey) -> bool) {
        let broken = self.jobs.iter().filter(|(_, job)| job.is_broken() && wanted(&job.key));
        let broken: Vec<u32> = broken.map(|(job_id, _)| *job_id).collect();
        for job_id in broken {
            self.remove_job(job_id, RemovalReason::Broken);
        }
    }

    fn enter(&mut self, now_ms: u64, key: &RunKey, ask: &JoinAsk) -> Result<Ticket, ControlError> {
        let ticket = Ticket(self.ticket_next);
        let Some(group) = self.groups.get_mut(key) else {
            return Err(refusals::internal("the group is gone"));
        };
        if let Some(error) = refusals::disagreement(group, ask) {
            self.refuse_group(key, &error);
            return Err(error);
        }
        if let Some(waiter) = group.waiters.get(&ask.rank) {
            group.claimed_twice.push(ask.rank);
            return Err(refusals::duplicate_rank(ask.rank, &key.run_id, &waiter.label));
        }
        let offered = ask.slots_per_lane_wanted.unwrap_or(group.slots_per_lane);
        group.add(ask, ticket, offered, now_ms);
        self.ticket_next += 1;
        Ok(ticket)
    }

    pub(super) fn refuse_group(&mut self, key: &RunKey, error: &ControlError) {
        let Some(group) = self.groups.remove(key) else { return };
        for ticket in group.tickets() {
            self.effect(Effect::Refuse { ticket, error: error.clone() });
        }
    }

    fn complete_if_all_are_here(&mut self, now_ms: u64, key: &RunKey) {
        if !self.groups.get(key).is_some_and(Group::is_complete) {
            return;
        }
        let planned = self.groups.get(key).map(|group| self.plan_atp(group)).transpose();
        let atp = match planned {
            Ok(atp) => atp.flatten(),
            Err(error) => return self.refuse_group(key, &error),
        };
        let Some(job_id) = self.numbers.take() else {
            let error = refusals::internal("no job number is free");
            return self.refuse_group(key, &error);
        };
        let Some(group) = self.groups.remove(key) else { return };
        let racks = self.plan_racks(&group);
        let host_of_rank = group.host_of_rank();
        let on_one_host = is_on_one_host(&host_of_rank);
        let assignment = Assignment {
            job_id,
            job_token: self.new_token(),
            shape: group.shape,
            // A job that sums on one host sends nothing: its slots are worth more to others.
            slots_per_lane: if on_one_host { 1 } else { group.slots_per_lane },
            element_count_max: if on_one_host { 1 } else { group.element_count_max },
            has_checksum: self.limits.has_checksum || !group.checksum_optional,
            host_of_rank,
            atp,
            racks,
            resumed: None,
        };
        self.effect(Effect::Install(assignment.clone()));
        self.jobs.insert(job_id, new_job(key.clone(), group, assignment, now_ms));
    }

    /// Tree and servers of an ATP job whose ranks are all here. A job of one host needs neither.
    fn plan_atp(&self, group: &Group) -> Result<Option<AtpAssignment>, ControlError> {
        let host_of_rank = group.host_of_rank();
        if group.shape.algorithm != Algorithm::Atp || is_on_one_host(&host_of_rank) {
            return Ok(None);
        }
        let servers = self.lane_servers(group)?;
        atp::assign(&self.limits, group.shape.accumulator, beside(group), servers).map(Some)
    }

    /// The switches of a SwitchML job whose ranks are all here, if it needs more than this one.
    fn plan_racks(&self, group: &Group) -> Option<RackAssignment> {
        // p4app's layout has no room for what switches tell each other, and a sum of floats would be rounded by each of them:
        // these workers talk to the root.
        let may_climb = group.shape.algorithm == Algorithm::Switchml
            && group.shape.wire_format == WireFormat::FaninV1
            && group.shape.accumulator == Accumulator::BlockFixed;
        let is_needed = may_climb && !is_on_one_host(&group.host_of_rank());
        is_needed.then(|| RackAssignment::new(&self.limits, beside(group)))?
    }

    /// By lane: servers of their own if there are any, else the ranks that would run one, in turn.
    fn lane_servers(&self, group: &Group) -> Result<Vec<LaneServer>, ControlError> {
        let standing: Vec<_> = self.servers.iter().map(|(id, server)| (ServerOwner::Standing(*id), server)).collect();
        let by_rank = group.waiters.iter().map(|(rank, waiter)| (*rank, &waiter.server_addresses));
        let own = by_rank.filter(|(_, addresses)| !addresses.is_empty());
        let own: Vec<_> = own.map(|(rank, addresses)| (ServerOwner::Rank(rank), addresses)).collect();
        let chosen = if standing.is_empty() { own } else { standing };
        if chosen.is_empty() {
            return Err(refusals::no_server());
        }
        // Jobs of one lane must not all go to the first.
        let first = self.jobs.len();
        let server = |lane: u16| {
            // Consecutive lanes go to different servers, and on each to its ports in turn.
            let (place, count) = (first + usize::from(lane), chosen.len());
            let (owner, addresses) = &chosen[place % count];
            LaneServer { owner: *owner, address: addresses[place / count % addresses.len()] }
        };
        Ok((0..group.shape.lane_count).map(server).collect())
    }

    /// Zero is left out because it is what a datagram without a token holds.
    pub(super) fn new_token(&mut self) -> u32 {
        loop {
            let token = (self.entropy)();
            let taken = self.jobs.values().any(|job| job.assignment.job_token == token);
            if token != 0 && !taken {
                return token;
            }
        }
    }

    fn find_unattached(&self, ticket: Ticket) -> Option<(u32, u16)> {
        self.jobs.iter().filter(|(_, job)| job.phase != JobPhase::Installing).find_map(|(job_id, job)| {
            let waits = |member: &Member| member.ticket == ticket && member.state == MemberState::Joined;
            job.members.iter().position(waits).map(|rank| (*job_id, rank as u16))
        })
    }
}

impl JoinAsk {
    fn slot_memory_bytes(&self, slots_per_lane: u32) -> u64 {
        slot_memory_bytes(&self.shape, slots_per_lane, self.element_count_max)
    }
}

/// By contributor: the place of its switch. A host contributes at its first rank's.
fn beside(group: &Group) -> Vec<usize> {
    let host_of_rank = group.host_of_rank();
    let is_first = |rank: usize| host_of_rank.is_empty() || !host_of_rank[..rank].contains(&host_of_rank[rank]);
    let contributors = group.waiters.values().enumerate().filter(|(rank, _)| is_first(*rank));
    contributors.map(|(_, waiter)| waiter.beside).collect()
}

fn is_on_one_host(host_of_rank: &[u16]) -> bool {
    !host_of_rank.is_empty() && host_of_rank.iter().all(|host| *host == 0)
}

fn new_job(key: RunKey, group: Group, assignment: Assignment, now_ms: u64) -> Job {
    let waiters = group.waiters.into_values();
    Job {
        key,
        assignment,
        phase: JobPhase::Installing,
        setting_up: None,
        set_up: None,
        replacements: BTreeMap::new(),
        boundary_until_ms: None,
        boundary_next: 0,
        members: waiters.map(|waiter| Member::new(waiter.ticket, waiter.label)).collect(),
        since_ms: now_ms,
        tensor_names: TensorNames::default(),
    }
}

fn slot_use((key, bytes): (&RunKey, u64)) -> SlotUse {
    SlotUse { job_name: key.job_name.clone(), tenant: key.tenant.clone(), slot_memory_bytes: bytes }
}
