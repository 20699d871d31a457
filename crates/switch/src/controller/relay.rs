//! A switch below the root of a topology: its part in the root's jobs.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fanin_control::proto::{
    Capacity, IncompleteSlot, JobState, JobStatus, RelayChild, RelayInspection, RelayInstall, RelayLane, RelayPart,
    RelayReceiver, SlotUse,
};
use fanin_control::registry::{Absences, JobShape, Limits, slot_memory_bytes};
use fanin_control::{Algorithm, ControlError, ErrorCode, WireFormat};
use fanin_wire::Accumulator;
use fanin_wire::atp::LEVEL_COUNT_MAX;
use fanin_wire::generated::{ATP_FAN_IN_MAX, ATP_HEADER_BYTES, HEADER_BYTES};

use super::Core;
use crate::dataplane_api::{AtpInstall, JobInstall, LaneInspection, LeafInstall, RackInstall};

/// How often parts are looked at whose root has not renewed them.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What people see in the place of a name that only the root knows.
const JOB_NAME: &str = "(the root's)";

/// A job of the root's in which this switch takes part.
struct Relayed {
    install: RelayInstall,
    renewed_last: Instant,
}

impl Relayed {
    fn is_over(&self) -> bool {
        let lease = Duration::from_millis(self.install.lease_ms);
        !lease.is_zero() && self.renewed_last.elapsed() >= lease
    }
}

/// Jobs of a root's in which this switch takes part, by job number.
#[derive(Default)]
pub(super) struct RelayedJobs(Mutex<BTreeMap<u8, Relayed>>);

impl RelayedJobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, Relayed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// With what they use beside what the switch's own jobs do.
    pub(super) fn add_to(&self, capacity: &mut Capacity) {
        for job in self.lock().values() {
            let bytes = memory(&job.install);
            capacity.job_count += 1;
            capacity.slot_memory_bytes_free = capacity.slot_memory_bytes_free.saturating_sub(bytes);
            let job_name = JOB_NAME.into();
            capacity.users.push(SlotUse { job_name, slot_memory_bytes: bytes, ..SlotUse::default() });
        }
    }

    /// As the root would show them.
    pub(super) fn statuses(&self, root: Option<SocketAddr>) -> Vec<JobStatus> {
        let status = |job: &RelayInstall| JobStatus {
            job_id: job.job_id,
            job_name: JOB_NAME.into(),
            state: JobState::Running.into(),
            world_size: job.contributor_count,
            lane_count: job.lane_count,
            element_count_max: job.element_count_max,
            wire_format: WireFormat::FaninV1.into(),
            algorithm: job.algorithm,
            slots_per_lane: job.slots_per_lane,
            slot_count: job.lane_count * job.slots_per_lane,
            slot_memory_bytes: memory(job),
            checksum: Some(job.checksum || job.algorithm() == Algorithm::Atp),
            part: Some(RelayPart {
                root: root.map(|root| root.to_string()).unwrap_or_default(),
                up: job.up.first().cloned().unwrap_or_default(),
                child_count: job.children.len() as u32,
                switch_count: job.children.iter().filter(|child| child.contributor.is_none()).count() as u32,
            }),
            ..JobStatus::default()
        };
        self.lock().values().map(|job| status(&job.install)).collect()
    }
}

impl Core {
    /// Takes part in a job of the root's. The root is the authority on job numbers: a job of an earlier life of it makes
    /// room.
    pub(super) fn install_relayed(&self, job: &RelayInstall) -> Result<(), ControlError> {
        if self.root.is_none() {
            return Err(refused(
                "this switch is not below the root of a topology: start it with --topology and --name",
            ));
        }
        let limits = self.read(|state, _| state.registry.limits().clone());
        let install = checked(job, &limits)?;
        let is_draining = self.is_draining();
        let mut jobs = self.relayed.lock();
        // A job that goes on without a rank is not a new one.
        let takes_part = jobs.get(&(job.job_id as u8)).is_some_and(|old| old.install.job_id == job.job_id);
        if is_draining && !takes_part {
            return Err(refused("this switch is draining"));
        }
        if let Some(old) = jobs.remove(&(job.job_id as u8)) {
            self.dataplane.remove(old.install.job_id);
        }
        let used: u64 = jobs.values().map(|job| memory(&job.install)).sum();
        check_room(job, used, &limits)?;
        self.dataplane.install(install).map_err(|error| refused(&error.to_string()))?;
        jobs.insert(job.job_id as u8, Relayed { install: job.clone(), renewed_last: Instant::now() });
        tracing::info!(job_id = job.job_id, level = job.level, "takes part in a job of the root's");
        Ok(())
    }

    /// Takes part no longer.
    pub(super) fn remove_relayed(&self, job_id: u32) {
        let mut jobs = self.relayed.lock();
        if jobs.get(&(job_id as u8)).is_some_and(|job| job.install.job_id == job_id) {
            jobs.remove(&(job_id as u8));
            self.dataplane.remove(job_id);
            tracing::info!(job_id, "the root's job has ended");
        }
    }

    /// The root lives. Returns those of its jobs in which this switch does not take part.
    pub(super) fn renew_relayed(&self, job_ids: &[u32]) -> Vec<u32> {
        let mut jobs = self.relayed.lock();
        let mut is_unknown = |job_id: &u32| {
            let found = jobs.get_mut(&(*job_id as u8)).filter(|job| job.install.job_id == *job_id);
            found.map(|job| job.renewed_last = Instant::now()).is_none()
        };
        job_ids.iter().copied().filter(|job_id| is_unknown(job_id)).collect()
    }

    /// Ends parts in jobs whose root has not been heard for a lease. Ends only with the runtime.
    pub(crate) async fn end_relayed_with_their_root(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.relayed.lock().retain(|_, job| {
                let is_over = job.is_over();
                if is_over {
                    self.dataplane.remove(job.install.job_id);
                    tracing::warn!(
                        job_id = job.install.job_id,
                        "the root of the job is gone: its slots are free again"
                    );
                }
                !is_over
            });
        }
    }

    /// What this switch waits for in a job of the root's.
    pub(super) fn inspect_relayed(&self, job_id: u32) -> Result<RelayInspection, ControlError> {
        let found = self.dataplane.inspect(job_id).ok_or_else(|| {
            let message = format!("this switch takes no part in job {job_id:#010x}");
            ControlError::new(ErrorCode::UnknownJob, message, "It has ended here, or the switch was restarted")
        })?;
        Ok(RelayInspection { lanes: found.lanes.into_iter().map(lane).collect() })
    }
}

fn lane(found: LaneInspection) -> RelayLane {
    let slot = found.oldest_incomplete.map(|slot| IncompleteSlot {
        slot_index: slot.slot_index,
        slot_parity: slot.slot_parity.into(),
        chunk_index: slot.chunk_index,
        collective_tag: slot.collective_tag,
        missing_ranks: slot.missing_ranks.into_iter().map(u32::from).collect(),
    });
    RelayLane {
        lane: found.lane.into(),
        slots_in_use: found.slots_in_use,
        oldest_incomplete: slot,
        unanswered_count: found.unanswered_count,
        unanswered_chunk: found.unanswered_chunk.unwrap_or(0),
    }
}

/// How an ATP job's sums of floats are added.
fn accumulator(job: &RelayInstall) -> Result<Accumulator, ControlError> {
    let suitable = Accumulator::from_code(job.accumulator).filter(|accumulator| accumulator.suits_atp());
    suitable.ok_or_else(|| refused(&format!("accumulator {} is none that this switch has for ATP", job.accumulator)))
}

/// Slots of a SwitchML job; ATP's jobs share theirs, but for what an accumulator of floats has beside them.
fn memory(job: &RelayInstall) -> u64 {
    let shape = JobShape {
        world_size: 1,
        lane_count: job.lane_count as u16,
        wire_format: WireFormat::FaninV1,
        algorithm: job.algorithm(),
        accumulator: accumulator(job).unwrap_or(Accumulator::BlockFixed),
        absences: Absences::default(),
    };
    slot_memory_bytes(&shape, job.slots_per_lane, job.element_count_max as u16)
}

fn check_room(job: &RelayInstall, used: u64, limits: &Limits) -> Result<(), ControlError> {
    let (wanted, free) = (memory(job), limits.slot_memory_bytes.saturating_sub(used));
    if wanted <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Err(ControlError::new(
        ErrorCode::SwitchFull,
        format!(
            "this switch is full: the job needs {:.1} MiB of slot memory, {:.1} of {:.1} MiB are free",
            mib(wanted),
            mib(free),
            mib(limits.slot_memory_bytes)
        ),
        "Wait for a job to end, ask for fewer slots (FANIN_SLOTS), or start this switch with more --slot-memory",
    ))
}

/// The job as the data plane knows it.
fn checked(job: &RelayInstall, limits: &Limits) -> Result<JobInstall, ControlError> {
    let is_atp = job.algorithm() == Algorithm::Atp;
    if is_atp && job.slot_count > limits.atp_slot_count.into() {
        let why = format!(
            "the job's slot indices go up to {}, and this switch has {} slots: give all switches of the topology the \
             same data.atp_slot_count",
            job.slot_count, limits.atp_slot_count
        );
        return Err(refused(&why));
    }
    let children_max = if is_atp { ATP_FAN_IN_MAX.into() } else { usize::from(limits.world_size_max) };
    let bounds = [
        ("children", job.children.len(), children_max),
        ("lane_count", job.lane_count as usize, usize::from(limits.lane_count_max)),
        ("contributor_count", job.contributor_count as usize, usize::from(limits.world_size_max)),
        ("element_count_max", job.element_count_max as usize, usize::from(limits.element_count_max)),
        ("level", job.level as usize + 1, LEVEL_COUNT_MAX),
        ("up", job.up.len(), usize::from(limits.lane_count_max)),
    ];
    if let Some((field, value, most)) = bounds.into_iter().find(|(_, value, most)| value > most || *value == 0) {
        return Err(refused(&format!("{field} is {value}; 1 to {most} are possible")));
    }
    let up: Result<Vec<SocketAddr>, _> = job.up.iter().map(|address| address.parse()).collect();
    let up = up.map_err(|_| refused("an address of the next hop is not one"))?;
    let header_bytes = if is_atp { ATP_HEADER_BYTES } else { HEADER_BYTES };
    check_way_up(&up, header_bytes + 4 * job.element_count_max as usize)?;
    let install = JobInstall {
        job_id: job.job_id,
        job_token: job.job_token,
        world_size: small(job.contributor_count, "contributor_count")?,
        lane_count: small(job.lane_count, "lane_count")?,
        slots_per_lane: 1,
        element_count_max: small(job.element_count_max, "element_count_max")?,
        wire_format: WireFormat::FaninV1,
        has_checksum: true,
        accumulator: Accumulator::BlockFixed,
        atp: None,
        racks: None,
    };
    if is_atp {
        let child = |child: &RelayChild| child.contributor.map(|number| small(number, "contributor")).transpose();
        let children = job.children.iter().map(child).collect::<Result<_, _>>()?;
        let level = u8::try_from(job.level).map_err(|_| refused("level does not fit"))?;
        let accumulator = accumulator(job)?;
        return Ok(JobInstall { atp: Some(AtpInstall { level, children, up }), accumulator, ..install });
    }
    let receiver = |receiver: &RelayReceiver| receiver.child.map(|child| small(child, "child")).transpose();
    let receivers = job.receivers.iter().map(receiver).collect::<Result<_, _>>()?;
    let leaf = LeafInstall { number: small(job.number, "number")?, receivers, up };
    Ok(JobInstall {
        world_size: job.children.len() as u16,
        slots_per_lane: job.slots_per_lane,
        has_checksum: job.checksum,
        racks: Some(RackInstall::Leaf(leaf)),
        ..install
    })
}

/// A worker's Probes show what reaches its own switch; sums must also leave it for the next one.
fn check_way_up(up: &[SocketAddr], bytes: usize) -> Result<(), ControlError> {
    for &next in up {
        let unspecified = if next.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let most = fanin_net::max_payload(unspecified, next).map_err(|error| refused(&error.to_string()))?;
        if bytes > most {
            let why = format!(
                "the job's datagrams have up to {bytes} bytes, and from here to the next switch at {next} {most} pass: raise \
                 the MTU of that way, or start the ranks with fewer elements a packet (FANIN_ELEMENTS)"
            );
            return Err(refused(&why));
        }
    }
    Ok(())
}

fn small(value: u32, field: &str) -> Result<u16, ControlError> {
    u16::try_from(value).map_err(|_| refused(&format!("{field} is {value}")))
}

fn refused(why: &str) -> ControlError {
    ControlError::new(ErrorCode::InstallFailed, why, "Start all switches of a topology from the same file and release")
}
