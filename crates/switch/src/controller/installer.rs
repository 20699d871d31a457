//! One thread that gives jobs to the data plane and takes them away, in the registry's order.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};

use fanin_control::registry::Assignment;

use super::Core;
use crate::dataplane_api::{Dataplane, JobInstall};

pub(super) enum Order {
    Install(Assignment),
    Remove(u32),
    /// Answered when everything before it is done.
    Confirm(Sender<()>),
}

/// Ends with the controller, whose end of the queue closes.
pub(super) fn start(core: Weak<Core>, dataplane: Arc<dyn Dataplane>, orders: Receiver<Order>) -> std::io::Result<()> {
    let run = move || orders.into_iter().for_each(|order| carry_out(&core, dataplane.as_ref(), order));
    std::thread::Builder::new().name("fanin-installer".into()).spawn(run).map(drop)
}

fn carry_out(core: &Weak<Core>, dataplane: &dyn Dataplane, order: Order) {
    match order {
        Order::Install(assignment) => install(core, dataplane, &assignment),
        Order::Remove(job_id) => {
            dataplane.remove(job_id);
            tracing::info!(job_id, "job removed");
        }
        Order::Confirm(done) => drop(done.send(())),
    }
}

fn install(core: &Weak<Core>, dataplane: &dyn Dataplane, assignment: &Assignment) {
    let job_id = assignment.job_id;
    let outcome = dataplane.install(job_install(assignment)).map_err(|error| error.to_string());
    match &outcome {
        Ok(()) => tracing::info!(job_id, world_size = assignment.shape.world_size, "job installed"),
        Err(error) => tracing::error!(job_id, error, "job not installed"),
    }
    if let Some(core) = core.upgrade() {
        core.with(|state, now_ms| state.registry.install_done(now_ms, job_id, outcome));
    }
}

fn job_install(assignment: &Assignment) -> JobInstall {
    JobInstall {
        job_id: assignment.job_id,
        job_token: assignment.job_token,
        world_size: assignment.contributor_count(),
        lane_count: assignment.shape.lane_count,
        slots_per_lane: assignment.slots_per_lane,
        element_count_max: assignment.element_count_max,
        wire_format: assignment.shape.wire_format,
        has_checksum: assignment.has_checksum,
    }
}
