//! Ranks of one run that wait for each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{JobShape, JoinAsk, RunKey, Ticket, hosts, slot_memory_bytes};
use crate::proto::{JobState, JobStatus, WorkerState, WorkerStatus};

/// One waiting `Join`.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) deadline_ms: u64,
    pub(super) label: String,
    pub(super) host_key: Option<String>,
    pub(super) server_addresses: Vec<SocketAddr>,
    pub(super) beside: usize,
}

impl Waiter {
    pub(super) fn new(ask: &JoinAsk, ticket: Ticket, now_ms: u64) -> Waiter {
        Waiter {
            ticket,
            deadline_ms: now_ms.saturating_add(ask.wait_ms),
            label: ask.worker_label.clone(),
            host_key: ask.host_key.clone(),
            server_addresses: ask.server_addresses.clone(),
            beside: ask.beside,
        }
    }
}

/// The ranks of one run so far, and what they agreed on so far. The slot memory is reserved.
pub(super) struct Group {
    pub(super) shape: JobShape,
    pub(super) slots_per_lane: u32,
    pub(super) element_count_max: u16,
    /// All ranks so far can do without checksums.
    pub(super) checksum_optional: bool,
    pub(super) waiters: BTreeMap<u16, Waiter>,
    /// Ranks that two processes claimed: the usual reason why another rank is missing.
    pub(super) claimed_twice: Vec<u16>,
    since_ms: u64,
}

impl Group {
    pub(super) fn new(ask: &JoinAsk, slots_per_lane: u32, now_ms: u64) -> Self {
        Self {
            shape: ask.shape,
            slots_per_lane,
            element_count_max: ask.element_count_max,
            checksum_optional: true,
            waiters: BTreeMap::new(),
            claimed_twice: Vec::new(),
            since_ms: now_ms,
        }
    }

    /// Adds a rank that agrees with the others. What the group reserves can only shrink, so this cannot fail.
    pub(super) fn add(&mut self, ask: &JoinAsk, ticket: Ticket, slots_offered: u32, now_ms: u64) {
        self.slots_per_lane = self.slots_per_lane.min(slots_offered);
        self.element_count_max = self.element_count_max.min(ask.element_count_max);
        self.checksum_optional &= ask.checksum_optional;
        self.waiters.insert(ask.rank, Waiter::new(ask, ticket, now_ms));
    }

    pub(super) fn slot_memory_bytes(&self) -> u64 {
        slot_memory_bytes(&self.shape, self.slots_per_lane, self.element_count_max)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.waiters.len() == usize::from(self.shape.world_size)
    }

    /// By rank, once all are here.
    pub(super) fn host_of_rank(&self) -> Vec<u16> {
        hosts::number(self.waiters.values().map(|waiter| waiter.host_key.as_deref()))
    }

    pub(super) fn missing_ranks(&self) -> Vec<u16> {
        let all = 0..self.shape.world_size;
        all.filter(|rank| !self.waiters.contains_key(rank)).collect()
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.waiters.values().map(|waiter| waiter.deadline_ms).min()
    }

    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.waiters.values().map(|waiter| waiter.ticket).collect()
    }

    pub(super) fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.since_ms)
    }

    pub(super) fn status(&self, key: &RunKey, now_ms: u64) -> JobStatus {
        JobStatus {
            job_name: key.job_name.clone(),
            run_id: key.run_id.clone(),
            tenant: key.tenant.clone(),
            state: JobState::Waiting.into(),
            world_size: self.shape.world_size.into(),
            lane_count: self.shape.lane_count.into(),
            slots_per_lane: self.slots_per_lane,
            element_count_max: self.element_count_max.into(),
            wire_format: self.shape.wire_format.into(),
            slot_memory_bytes: self.slot_memory_bytes(),
            slot_count: u32::from(self.shape.lane_count) * self.slots_per_lane,
            algorithm: self.shape.algorithm.into(),
            accumulator: self.shape.accumulator.code().into(),
            age_ms: self.age_ms(now_ms),
            workers: self.waiters.iter().map(worker_status).collect(),
            missing_ranks: self.missing_ranks().into_iter().map(u32::from).collect(),
            ..JobStatus::default()
        }
    }
}

pub(super) fn worker_status((rank, waiter): (&u16, &Waiter)) -> WorkerStatus {
    WorkerStatus {
        rank: (*rank).into(),
        state: WorkerState::Joining.into(),
        label: waiter.label.clone(),
        ..WorkerStatus::default()
    }
}
