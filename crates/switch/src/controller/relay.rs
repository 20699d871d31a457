//! ATP jobs over several switches: the root of a topology tells the others what to do.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fanin_control::client::{ClientConfig, ControlClient};
use fanin_control::proto::{JobState, JobStatus, RelayChild, RelayInstall};
use fanin_control::registry::{Assignment, AtpAssignment};
use fanin_control::topology::{Topology, TreePart};
use fanin_control::{Algorithm, ControlError, ErrorCode, WireFormat};

use super::Core;
use fanin_wire::atp::LEVEL_COUNT_MAX;
use fanin_wire::generated::ATP_FAN_IN_MAX;

use crate::dataplane_api::{AtpInstall, JobInstall};

/// A switch that does not answer by then is not there; the workers' joins wait for this.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// The other switches, as the root's installer sees them.
pub(super) struct Relays {
    topology: Topology,
    token: Option<String>,
    /// By place.
    clients: HashMap<usize, ControlClient>,
}

impl Relays {
    pub(super) fn new(topology: Topology, token: Option<String>) -> Relays {
        Relays { topology, token, clients: HashMap::new() }
    }

    /// Has all other switches of a job's tree take part.
    pub(super) fn install(&mut self, assignment: &Assignment, atp: &AtpAssignment) -> Result<(), String> {
        for part in atp.parts.iter().skip(1) {
            let install = self.relay_install(assignment, atp, part);
            self.tell(part.switch, |client| client.install_relay(install.clone()))?;
        }
        Ok(())
    }

    /// Has them take part no longer. Who cannot be reached has nothing left to do.
    pub(super) fn remove(&mut self, job_id: u32, atp: &AtpAssignment) {
        for part in atp.parts.iter().skip(1) {
            if let Err(why) = self.tell(part.switch, |client| client.remove_relay(job_id)) {
                tracing::warn!(job_id, why, "a switch was not told that a job has ended");
            }
        }
    }

    fn tell(&mut self, place: usize, call: impl Fn(&ControlClient) -> Result<(), ControlError>) -> Result<(), String> {
        let switch = &self.topology.switches()[place];
        let in_words = |error: ControlError| format!("switch `{}` at {}: {error}", switch.name, switch.control);
        if let Some(client) = self.clients.get(&place) {
            match call(client) {
                // It may have been restarted since.
                Err(error) if error.code == ErrorCode::Unreachable => {}
                other => return other.map_err(in_words),
            }
        }
        self.clients.remove(&place);
        let mut config = ClientConfig::new(switch.control.to_string());
        config.token = self.token.clone();
        config.connect_timeout = CONNECT_WAIT;
        let client = ControlClient::connect(&config).map_err(in_words)?;
        let outcome = call(&client).map_err(in_words);
        self.clients.insert(place, client);
        outcome
    }

    fn relay_install(&self, assignment: &Assignment, atp: &AtpAssignment, part: &TreePart) -> RelayInstall {
        let switches = self.topology.switches();
        let parent = switches[part.switch].parent.unwrap_or(0);
        let up = |lane: u16| {
            let ports = &switches[parent].data;
            ports[usize::from(lane) % ports.len()].to_string()
        };
        RelayInstall {
            job_id: assignment.job_id,
            job_token: assignment.job_token,
            contributor_count: assignment.contributor_count().into(),
            lane_count: assignment.shape.lane_count.into(),
            element_count_max: assignment.element_count_max.into(),
            slot_count: atp.slot_count.into(),
            level: part.level.into(),
            children: part.children.iter().map(|child| RelayChild { contributor: child.map(u32::from) }).collect(),
            up: (0..assignment.shape.lane_count).map(up).collect(),
        }
    }
}

/// Jobs of a root's in which this switch takes part, by job number.
#[derive(Default)]
pub(super) struct RelayedJobs(Mutex<BTreeMap<u8, RelayInstall>>);

impl RelayedJobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, RelayInstall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// As the root would show them.
    pub(super) fn statuses(&self) -> Vec<JobStatus> {
        let status = |job: &RelayInstall| JobStatus {
            job_id: job.job_id,
            job_name: "(the root's)".into(),
            state: JobState::Running.into(),
            world_size: job.contributor_count,
            lane_count: job.lane_count,
            element_count_max: job.element_count_max,
            wire_format: WireFormat::FaninV1.into(),
            algorithm: Algorithm::Atp.into(),
            ..JobStatus::default()
        };
        self.lock().values().map(status).collect()
    }
}

impl Core {
    /// Takes part in a job of the root's. The root is the authority on job numbers: a job of an earlier life of it makes
    /// room.
    pub(super) fn install_relayed(&self, job: &RelayInstall) -> Result<(), ControlError> {
        let install = self.relayed_install(job)?;
        if self.root.is_none() {
            return Err(refused(
                "this switch is not below the root of a topology: start it with --topology and --name",
            ));
        }
        if self.is_draining() {
            return Err(refused("this switch is draining"));
        }
        let mut jobs = self.relayed.lock();
        if let Some(old) = jobs.remove(&(job.job_id as u8)) {
            self.dataplane.remove(old.job_id);
        }
        self.dataplane.install(install).map_err(|error| refused(&error.to_string()))?;
        jobs.insert(job.job_id as u8, job.clone());
        tracing::info!(job_id = job.job_id, level = job.level, "takes part in a job of the root's");
        Ok(())
    }

    /// Takes part no longer.
    pub(super) fn remove_relayed(&self, job_id: u32) {
        let mut jobs = self.relayed.lock();
        if jobs.get(&(job_id as u8)).is_some_and(|job| job.job_id == job_id) {
            jobs.remove(&(job_id as u8));
            self.dataplane.remove(job_id);
            tracing::info!(job_id, "the root's job has ended");
        }
    }

    fn relayed_install(&self, job: &RelayInstall) -> Result<JobInstall, ControlError> {
        let slot_count = self.read(|state, _| state.registry.limits().atp_slot_count);
        if job.slot_count > slot_count.into() {
            let why = format!(
                "the job's slot indices go up to {}, and this switch has {slot_count} slots: give all switches of the \
                 topology the same data.atp_slot_count",
                job.slot_count
            );
            return Err(refused(&why));
        }
        let limits = self.read(|state, _| state.registry.limits().clone());
        let bounds = [
            ("children", job.children.len(), usize::from(ATP_FAN_IN_MAX)),
            ("lane_count", job.lane_count as usize, usize::from(limits.lane_count_max)),
            ("contributor_count", job.contributor_count as usize, usize::from(limits.world_size_max)),
            ("level", job.level as usize + 1, LEVEL_COUNT_MAX),
            ("up", job.up.len(), usize::from(limits.lane_count_max)),
        ];
        if let Some((field, value, most)) = bounds.into_iter().find(|(_, value, most)| value > most || *value == 0) {
            return Err(refused(&format!("{field} is {value}; 1 to {most} are possible")));
        }
        let small = |value: u32, field: &str| u16::try_from(value).map_err(|_| refused(&format!("{field} is {value}")));
        let child = |child: &RelayChild| child.contributor.map(|number| small(number, "contributor")).transpose();
        let up: Result<Vec<SocketAddr>, _> = job.up.iter().map(|address| address.parse()).collect();
        Ok(JobInstall {
            job_id: job.job_id,
            job_token: job.job_token,
            world_size: small(job.contributor_count, "contributor_count")?,
            lane_count: small(job.lane_count, "lane_count")?,
            slots_per_lane: 1,
            element_count_max: small(job.element_count_max, "element_count_max")?,
            wire_format: WireFormat::FaninV1,
            has_checksum: true,
            atp: Some(AtpInstall {
                level: u8::try_from(job.level).map_err(|_| refused("level does not fit"))?,
                children: job.children.iter().map(child).collect::<Result<_, _>>()?,
                up: up.map_err(|_| refused("an address of the next hop is not one"))?,
            }),
        })
    }
}

fn refused(why: &str) -> ControlError {
    ControlError::new(ErrorCode::InstallFailed, why, "Start all switches of a topology from the same file and release")
}
