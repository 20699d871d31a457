//! A small world around the registry: asks with defaults, and effects collected by kind.
#![allow(dead_code, missing_docs)]

use std::net::{IpAddr, Ipv4Addr};

use fanin_control::proto::{JoinRequest, LeaveRequest, Report, notice};
use fanin_control::registry::{Assignment, Effect, JoinAsk, Limits, Registry, Ticket};
use fanin_control::tenants::Tenant;
use fanin_control::{ControlError, PROTOCOL_VERSION, WireFormat};

pub fn limits() -> Limits {
    Limits { slot_memory_bytes: 1 << 20, lease_ms: 1000, broken_kept_ms: 5000, ..Limits::default() }
}

/// Tokens 1, 2, 3, …: predictable, which is what a test needs and a daemon must not have.
pub fn counting_entropy() -> impl FnMut() -> u32 + Send {
    let mut next = 0;
    move || {
        next += 1;
        next
    }
}

pub fn registry() -> Registry {
    Registry::new(limits(), counting_entropy())
}

pub fn tenant(name: &str) -> Tenant {
    Tenant { name: name.into(), slot_memory_bytes_max: u64::MAX, job_count_max: u32::MAX, operator: false }
}

pub fn request(job_name: &str, rank: u32, world_size: u32) -> JoinRequest {
    JoinRequest {
        protocol_version: PROTOCOL_VERSION,
        job_name: job_name.into(),
        run_id: "run-1".into(),
        rank,
        world_size,
        lane_count: 2,
        slots_per_lane_wanted: 16,
        element_count_max: 256,
        wire_format: WireFormat::FaninV1.into(),
        wait_ms: 3000,
        worker_label: format!("host{rank}/1"),
        host_key: String::new(),
        checksum_optional: true,
        ..JoinRequest::default()
    }
}

/// Where all workers are.
pub const WORKER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub fn join(registry: &mut Registry, now_ms: u64, request: JoinRequest) -> Result<Ticket, ControlError> {
    let ask = JoinAsk::check(request, registry.limits(), WORKER)?;
    registry.join(now_ms, &tenant("team"), ask)
}

/// What came out of the registry, with installs confirmed on the way as a healthy data plane would.
#[derive(Default, Debug)]
pub struct Outcome {
    pub installed: Vec<Assignment>,
    pub removed: Vec<u32>,
    pub admitted: Vec<(Ticket, Assignment)>,
    pub refused: Vec<(Ticket, ControlError)>,
    pub notices: Vec<(u16, notice::Kind)>,
    pub closed: Vec<u16>,
}

pub fn settle(registry: &mut Registry, now_ms: u64) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some(effect) = registry.poll_effect() {
        match effect {
            Effect::Install(assignment) => {
                registry.install_done(now_ms, assignment.job_id, Ok(()));
                outcome.installed.push(assignment);
            }
            Effect::SetUpAgain(assignment) => {
                registry.set_up_again_done(now_ms, assignment.job_id, assignment.job_token, Ok(()));
                outcome.installed.push(assignment);
            }
            Effect::Remove { job_id } => outcome.removed.push(job_id),
            Effect::Admit { ticket, assignment } => outcome.admitted.push((ticket, assignment)),
            Effect::Refuse { ticket, error } => outcome.refused.push((ticket, error)),
            Effect::Notify { rank, notice, .. } => outcome.notices.push((rank, notice)),
            Effect::CloseStream { rank, .. } => outcome.closed.push(rank),
        }
    }
    outcome
}

/// Joins all ranks of a job and returns what they were given.
pub fn run_job(registry: &mut Registry, now_ms: u64, job_name: &str, world_size: u32) -> Assignment {
    for rank in 0..world_size {
        join(registry, now_ms, request(job_name, rank, world_size)).expect("there is room");
    }
    settle(registry, now_ms).installed.pop().expect("the job is complete")
}

pub fn report(assignment: &Assignment, rank: u32) -> Report {
    Report { job_id: assignment.job_id, job_token: assignment.job_token, rank, ..Report::default() }
}

pub fn leave(assignment: &Assignment, rank: u32) -> LeaveRequest {
    LeaveRequest { job_id: assignment.job_id, job_token: assignment.job_token, rank, membership: 0 }
}

pub fn attach_all(registry: &mut Registry, now_ms: u64, assignment: &Assignment) {
    for rank in 0..assignment.shape.world_size {
        registry.attach(now_ms, &report(assignment, rank.into()), u64::from(rank)).expect("the job runs");
    }
}
