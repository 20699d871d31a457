//! One thread that gives jobs to the data plane, to other switches and to parameter servers, and takes them away, in the
//! registry's order.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};

use fanin_control::registry::{Assignment, AtpAssignment, ServerId, ServerOwner};

use super::Core;
use super::relay::Relays;
use crate::dataplane_api::{AtpInstall, Dataplane, JobInstall};

pub(super) enum Order {
    Install(Assignment),
    SetUpAgain(Assignment),
    Remove(u32),
    /// Answered when everything before it is done.
    Confirm(Sender<()>),
}

struct Installer {
    core: Weak<Core>,
    dataplane: Arc<dyn Dataplane>,
    relays: Relays,
    /// ATP jobs, which others than the data plane take part in.
    atp_jobs: HashMap<u32, AtpAssignment>,
}

/// Ends with the controller, whose end of the queue closes.
pub(super) fn start(
    core: Weak<Core>,
    dataplane: Arc<dyn Dataplane>,
    relays: Relays,
    orders: Receiver<Order>,
) -> std::io::Result<()> {
    let mut installer = Installer { core, dataplane, relays, atp_jobs: HashMap::new() };
    let run = move || orders.into_iter().for_each(|order| installer.carry_out(order));
    std::thread::Builder::new().name("fanin-installer".into()).spawn(run).map(drop)
}

impl Installer {
    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Install(assignment) => self.install(&assignment),
            Order::SetUpAgain(assignment) => self.set_up_again(&assignment),
            Order::Remove(job_id) => {
                self.remove(job_id);
                tracing::info!(job_id, "job removed");
            }
            Order::Confirm(done) => drop(done.send(())),
        }
    }

    fn install(&mut self, assignment: &Assignment) {
        let job_id = assignment.job_id;
        let outcome = self.install_everywhere(assignment);
        match &outcome {
            Ok(()) => tracing::info!(job_id, world_size = assignment.shape.world_size, "job installed"),
            Err(error) => tracing::error!(job_id, error, "job not installed"),
        }
        if let Some(core) = self.core.upgrade() {
            core.with(|state, now_ms| state.registry.install_done(now_ms, job_id, outcome));
        }
    }

    /// The job goes on without a rank: switches begin anew with the new tree, servers keep what they have.
    fn set_up_again(&mut self, assignment: &Assignment) {
        let (job_id, token) = (assignment.job_id, assignment.job_token);
        self.dataplane.remove(job_id);
        if let Some(atp) = self.atp_jobs.remove(&job_id) {
            self.relays.remove(job_id, &atp);
        }
        let outcome = self.install_everywhere(assignment);
        match &outcome {
            Ok(()) => tracing::warn!(job_id, "job set up again without a lost rank"),
            Err(error) => tracing::error!(job_id, error, "job not set up again"),
        }
        if let Some(core) = self.core.upgrade() {
            core.with(|state, now_ms| state.registry.set_up_again_done(now_ms, job_id, token, outcome));
        }
    }

    fn install_everywhere(&mut self, assignment: &Assignment) -> Result<(), String> {
        self.dataplane.install(job_install(assignment)).map_err(|error| error.to_string())?;
        let Some(atp) = &assignment.atp else { return Ok(()) };
        self.atp_jobs.insert(assignment.job_id, atp.clone());
        let others = self.relays.install(assignment, atp).and_then(|()| self.install_at_servers(assignment, atp));
        if others.is_err() {
            self.remove(assignment.job_id);
        }
        others
    }

    fn install_at_servers(&self, assignment: &Assignment, atp: &AtpAssignment) -> Result<(), String> {
        let core = self.core.upgrade().ok_or("the switch stops")?;
        standing(atp).into_iter().try_for_each(|server| core.order_to_serve(server, assignment, atp))
    }

    fn remove(&mut self, job_id: u32) {
        self.dataplane.remove(job_id);
        let Some(atp) = self.atp_jobs.remove(&job_id) else { return };
        self.relays.remove(job_id, &atp);
        if let Some(core) = self.core.upgrade() {
            standing(&atp).into_iter().for_each(|server| core.order_to_remove(server, job_id));
        }
    }
}

/// The servers of their own that serve a job, each once.
fn standing(atp: &AtpAssignment) -> Vec<ServerId> {
    let mut servers: Vec<ServerId> = atp
        .servers
        .iter()
        .filter_map(|lane| match lane.owner {
            ServerOwner::Standing(server) => Some(server),
            ServerOwner::Rank(_) => None,
        })
        .collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}

fn job_install(assignment: &Assignment) -> JobInstall {
    let root = |atp: &AtpAssignment| {
        let part = atp.parts.first()?;
        let up = atp.servers.iter().map(|lane| lane.address).collect();
        Some(AtpInstall { level: part.level, children: part.children.clone(), up })
    };
    JobInstall {
        job_id: assignment.job_id,
        job_token: assignment.job_token,
        world_size: assignment.contributor_count(),
        lane_count: assignment.shape.lane_count,
        slots_per_lane: assignment.slots_per_lane,
        element_count_max: assignment.element_count_max,
        wire_format: assignment.shape.wire_format,
        has_checksum: assignment.has_checksum,
        atp: assignment.atp.as_ref().and_then(root),
    }
}
