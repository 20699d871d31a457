//! Threads that give jobs to the data plane, to other switches and to parameter servers, and take them away.
//!
//! Orders about one job number are carried out in the registry's order. Jobs that others than the data plane take part in have
//! a thread for their number, so that a switch or a server that does not answer holds up its own jobs only.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fanin_control::registry::{Assignment, AtpAssignment, RackAssignment, ServerId, ServerOwner};

use super::Core;
use super::relays::Relays;
use crate::dataplane_api::{AtpInstall, Dataplane, JobInstall, RackInstall};

pub(super) enum Order {
    Install(Box<Assignment>),
    SetUpAgain(Box<Assignment>),
    Remove(u32),
    /// Dropped when everything before it is done.
    Confirm(Sender<()>),
}

/// What carries orders out.
struct Hands {
    core: Weak<Core>,
    dataplane: Arc<dyn Dataplane>,
    relays: Arc<Relays>,
    /// Jobs which others than the data plane take part in.
    shared: Mutex<HashMap<u32, Assignment>>,
}

/// Hands orders to the thread of their job number, or carries them out where there is none.
struct Dispatcher {
    hands: Arc<Hands>,
    queues: HashMap<u8, Sender<Order>>,
}

/// Ends with the controller, whose end of the queue closes.
pub(super) fn start(
    core: Weak<Core>,
    dataplane: Arc<dyn Dataplane>,
    relays: Arc<Relays>,
    orders: Receiver<Order>,
) -> std::io::Result<()> {
    let hands = Arc::new(Hands { core, dataplane, relays, shared: Mutex::default() });
    let mut dispatcher = Dispatcher { hands, queues: HashMap::new() };
    let run = move || orders.into_iter().for_each(|order| dispatcher.dispatch(order));
    std::thread::Builder::new().name("fanin-installer".into()).spawn(run).map(drop)
}

impl Dispatcher {
    fn dispatch(&mut self, order: Order) {
        let job_number = match &order {
            Order::Install(assignment) => {
                if is_shared(assignment) {
                    self.open_queue(assignment.job_id as u8);
                }
                assignment.job_id as u8
            }
            Order::SetUpAgain(assignment) => assignment.job_id as u8,
            Order::Remove(job_id) => *job_id as u8,
            Order::Confirm(done) => {
                let confirm = |queue: &Sender<Order>| drop(queue.send(Order::Confirm(done.clone())));
                return self.queues.values().for_each(confirm);
            }
        };
        let Some(queue) = self.queues.get(&job_number) else { return self.hands.carry_out(order) };
        if let Err(refused) = queue.send(order) {
            // Its thread has ended, which only a panic does.
            self.queues.remove(&job_number);
            self.hands.carry_out(refused.0);
        }
    }

    /// The thread stays when its job has ended: the next job of the number must not come before the end of this one.
    fn open_queue(&mut self, job_number: u8) {
        if self.queues.contains_key(&job_number) {
            return;
        }
        let (queue, orders) = channel::<Order>();
        let hands = self.hands.clone();
        let run = move || orders.into_iter().for_each(|order| hands.carry_out(order));
        match std::thread::Builder::new().name(format!("fanin-install-{job_number}")).spawn(run) {
            Ok(_) => drop(self.queues.insert(job_number, queue)),
            Err(error) => tracing::error!(%error, "no thread for a job over several switches: others wait for it"),
        }
    }
}

impl Hands {
    fn carry_out(&self, order: Order) {
        match order {
            Order::Install(assignment) => self.install(&assignment),
            Order::SetUpAgain(assignment) => self.set_up_again(&assignment),
            Order::Remove(job_id) => {
                self.remove(job_id);
                tracing::info!(job_id, "job removed");
            }
            Order::Confirm(done) => drop(done),
        }
    }

    fn install(&self, assignment: &Assignment) {
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

    /// The job goes on without a rank, or with another one in its place: switches begin anew with the new tree, servers keep what they have. A switch that stays
    /// takes its new part in place of the old one, so that it is never without one when the root renews it.
    fn set_up_again(&self, assignment: &Assignment) {
        let (job_id, token) = (assignment.job_id, assignment.job_token);
        self.dataplane.remove(job_id);
        let replace = |known: &mut Assignment| std::mem::replace(known, assignment.clone());
        let old = self.shared.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&job_id).map(replace);
        let is_left = |place: &usize| !others(assignment).any(|other| other == *place);
        self.relays.remove(job_id, old.iter().flat_map(others).filter(is_left));
        let outcome = self.install_everywhere(assignment);
        match &outcome {
            Ok(()) => tracing::warn!(job_id, "job set up again in another tree"),
            Err(error) => tracing::error!(job_id, error, "job not set up again"),
        }
        if let Some(core) = self.core.upgrade() {
            core.with(|state, now_ms| state.registry.set_up_again_done(now_ms, job_id, token, outcome));
        }
    }

    fn install_everywhere(&self, assignment: &Assignment) -> Result<(), String> {
        self.dataplane.install(job_install(assignment)).map_err(|error| error.to_string())?;
        if !is_shared(assignment) {
            return Ok(());
        }
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(assignment.job_id, assignment.clone());
        let others = self.relays.install(assignment).and_then(|()| self.install_at_servers(assignment));
        if others.is_err() {
            self.remove(assignment.job_id);
        }
        others
    }

    fn install_at_servers(&self, assignment: &Assignment) -> Result<(), String> {
        let Some(atp) = &assignment.atp else { return Ok(()) };
        let core = self.core.upgrade().ok_or("the switch stops")?;
        standing(atp).into_iter().try_for_each(|server| core.order_to_serve(server, assignment, atp))
    }

    fn remove(&self, job_id: u32) {
        self.dataplane.remove(job_id);
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner).remove(&job_id);
        let Some(assignment) = shared else { return };
        self.relays.remove(job_id, others(&assignment));
        if let (Some(core), Some(atp)) = (self.core.upgrade(), &assignment.atp) {
            standing(atp).into_iter().for_each(|server| core.order_to_remove(server, job_id));
        }
    }
}

/// Whether others than the data plane take part.
fn is_shared(assignment: &Assignment) -> bool {
    assignment.parts().len() > 1 || assignment.atp.as_ref().is_some_and(|atp| !standing(atp).is_empty())
}

/// Places of the switches other than this one.
fn others(assignment: &Assignment) -> impl Iterator<Item = usize> {
    assignment.parts().iter().skip(1).map(|part| part.switch)
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
    let child_count = |racks: &RackAssignment| racks.root_child_count();
    JobInstall {
        job_id: assignment.job_id,
        job_token: assignment.job_token,
        world_size: assignment.racks.as_ref().map_or(assignment.contributor_count(), child_count),
        lane_count: assignment.shape.lane_count,
        slots_per_lane: assignment.slots_per_lane,
        element_count_max: assignment.element_count_max,
        wire_format: assignment.shape.wire_format,
        has_checksum: assignment.has_checksum,
        accumulator: assignment.shape.accumulator,
        atp: assignment.atp.as_ref().and_then(root),
        racks: assignment.racks.as_ref().map(|racks| RackInstall::Root(racks.root_children.clone())),
    }
}
