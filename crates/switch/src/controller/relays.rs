//! The root of a topology tells the other switches what to do, and notices when one of them is gone.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fanin_control::client::{ClientConfig, ControlClient};
use fanin_control::proto::{RelayChild, RelayInspection, RelayInstall, RelayReceiver};
use fanin_control::registry::{Assignment, RackAssignment};
use fanin_control::topology::{Topology, TopologySwitch, TreePart};
use fanin_control::{ControlError, ErrorCode};

use super::Core;

/// A switch that does not answer by then is not there; the workers' joins wait for this.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Signs of life in one lease.
const BEATS_PER_LEASE: u32 = 5;
/// The longest time between two of them: workers beside a switch that has died notice within their next packets, and the
/// others should be told why those leave.
const BEAT_MAX: Duration = Duration::from_millis(500);
/// How long a look may take whether a switch is there at all.
const LOOK_WAIT: Duration = Duration::from_millis(200);

/// The other switches, as the root sees them.
pub(super) struct Relays {
    topology: Topology,
    token: Option<String>,
    lease: Duration,
    /// By place. Locked only to look: a switch that hangs must not hold up anybody but those who wait for it.
    clients: Vec<Mutex<Option<Arc<ControlClient>>>>,
}

impl Relays {
    pub(super) fn new(topology: Topology, token: Option<String>, lease_ms: u64) -> Arc<Relays> {
        let clients = topology.switches().iter().map(|_| Mutex::default()).collect();
        Arc::new(Relays { topology, token, lease: Duration::from_millis(lease_ms), clients })
    }

    /// Watches over all other switches. Ends with the controller.
    pub(super) fn watch(self: &Arc<Self>, core: &Weak<Core>) -> std::io::Result<()> {
        (1..self.clients.len()).try_for_each(|place| {
            let (relays, core) = (self.clone(), core.clone());
            let run = move || relays.renew_until_stopped(place, &core);
            std::thread::Builder::new().name(format!("fanin-relay-{place}")).spawn(run).map(drop)
        })
    }

    /// Has all other switches of a job's tree take part.
    pub(super) fn install(&self, assignment: &Assignment) -> Result<(), String> {
        let others = assignment.parts().iter().skip(1);
        let installs = others.map(|part| (part.switch, self.relay_install(assignment, part)));
        self.tell_all(installs.collect(), |client, install| client.install_relay(install.clone()))
    }

    /// Has switches at these places take part no longer. Who cannot be reached has nothing left to do, or ends its part with the lease.
    pub(super) fn remove(&self, job_id: u32, places: impl Iterator<Item = usize>) {
        let told = places.map(|place| (place, job_id)).collect();
        if let Err(why) = self.tell_all(told, |client, job_id| client.remove_relay(*job_id)) {
            tracing::warn!(job_id, why, "a switch was not told that a job has ended");
        }
    }

    /// What another switch waits for in a job; `None` if it does not say.
    pub(super) fn inspect(&self, place: usize, job_id: u32) -> Option<RelayInspection> {
        let answer = self.tell(place, |client| client.inspect_relay(job_id));
        answer.map_err(|why| tracing::warn!(job_id, why, "a switch does not say what it waits for")).ok()
    }

    /// Tells several switches at the same time; the first error in their order.
    fn tell_all<T: Sync>(
        &self,
        told: Vec<(usize, T)>,
        call: impl Fn(&ControlClient, &T) -> Result<(), ControlError> + Sync,
    ) -> Result<(), String> {
        let tell = |(place, what): &(usize, T)| self.tell(*place, |client| call(client, what));
        let tell = &tell;
        std::thread::scope(|scope| {
            let threads: Vec<_> = told.iter().map(|one| scope.spawn(move || tell(one))).collect();
            let outcomes = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())));
            outcomes.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn tell<T>(&self, place: usize, call: impl Fn(&ControlClient) -> Result<T, ControlError>) -> Result<T, String> {
        let switch = &self.topology.switches()[place];
        let in_words = |error: ControlError| format!("{}: {error}", name(switch));
        let kept = self.kept(place).clone();
        if let Some(client) = kept {
            match call(&client) {
                // It may have been restarted since.
                Err(error) if error.code == ErrorCode::Unreachable => {}
                other => return other.map_err(in_words),
            }
        }
        *self.kept(place) = None;
        let mut config = ClientConfig::new(switch.control.to_string());
        config.token = self.token.clone();
        config.connect_timeout = CONNECT_WAIT;
        let client = Arc::new(ControlClient::connect(&config).map_err(in_words)?);
        *self.kept(place) = Some(client.clone());
        call(&client).map_err(in_words)
    }

    fn kept(&self, place: usize) -> MutexGuard<'_, Option<Arc<ControlClient>>> {
        self.clients[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a switch again and again which jobs go on, and ends those in which it does not take part any more.
    fn renew_until_stopped(&self, place: usize, core: &Weak<Core>) {
        let beat = (self.lease / BEATS_PER_LEASE).min(BEAT_MAX);
        let mut answered_last = Instant::now();
        loop {
            std::thread::sleep(beat);
            let Some(core) = core.upgrade() else { return };
            let jobs = core.read(|state, _| state.registry.jobs_over(place));
            let switch = &self.topology.switches()[place];
            let renew = || self.tell(place, |client| client.renew_relays(jobs.clone()));
            match if jobs.is_empty() { Ok(Vec::new()) } else { renew() } {
                Ok(unknown) => {
                    answered_last = Instant::now();
                    let why = "it has been restarted, or could not hear the root for a while";
                    lose(&core, place, &unknown, &format!("{} takes no part in the job any more: {why}", name(switch)));
                }
                Err(why) if has_ended(switch) => lose(&core, place, &jobs, &why),
                // Workers' datagrams may still pass; after that long nobody knows.
                Err(why) if answered_last.elapsed() * 2 >= self.lease => {
                    lose(&core, place, &jobs, &format!("{why}, for {:.1} s", answered_last.elapsed().as_secs_f64()));
                }
                Err(why) => tracing::warn!(why, "a switch below this one does not answer"),
            }
        }
    }

    fn relay_install(&self, assignment: &Assignment, part: &TreePart) -> RelayInstall {
        let switches = self.topology.switches();
        let parent = switches[part.switch].parent.unwrap_or(0);
        let up = |lane: u16| {
            let ports: &[SocketAddr] = &switches[parent].data;
            ports[usize::from(lane) % ports.len()].to_string()
        };
        let receivers = |racks: &RackAssignment| racks.receivers(&self.topology, part);
        let number = |racks: &RackAssignment| racks.number_above(&self.topology, part);
        let racks = assignment.racks.as_ref();
        RelayInstall {
            job_id: assignment.job_id,
            job_token: assignment.job_token,
            contributor_count: assignment.contributor_count().into(),
            lane_count: assignment.shape.lane_count.into(),
            element_count_max: assignment.element_count_max.into(),
            slot_count: assignment.atp.as_ref().map_or(0, |atp| atp.slot_count.into()),
            level: part.level.into(),
            children: part.children.iter().map(|child| RelayChild { contributor: child.map(u32::from) }).collect(),
            up: (0..assignment.shape.lane_count).map(up).collect(),
            algorithm: assignment.shape.algorithm.into(),
            slots_per_lane: assignment.slots_per_lane,
            checksum: assignment.has_checksum,
            number: racks.and_then(number).unwrap_or(0).into(),
            receivers: racks.map(receivers).unwrap_or_default().into_iter().map(receiver).collect(),
            lease_ms: self.lease.as_millis() as u64,
            accumulator: assignment.shape.accumulator.code().into(),
        }
    }
}

/// Whether the host of a switch says that nobody listens there: its process has ended, and its slots with it.
fn has_ended(switch: &TopologySwitch) -> bool {
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    TcpStream::connect_timeout(&switch.control, LOOK_WAIT).as_ref().is_err_and(refused)
}

fn receiver(child: Option<u16>) -> RelayReceiver {
    RelayReceiver { child: child.map(u32::from) }
}

/// A job that goes on without a rank may have let go of the switch meanwhile, and is not concerned.
fn lose(core: &Core, place: usize, jobs: &[u32], detail: &str) {
    let over = core.read(|state, _| state.registry.jobs_over(place));
    for &job_id in jobs.iter().filter(|job_id| over.contains(job_id)) {
        // A broken job is kept for a while, and told of once.
        if core.with(|state, now_ms| state.registry.relay_lost(now_ms, job_id, detail)) {
            tracing::error!(job_id, detail, "a switch of the job is lost");
        }
    }
}

/// A switch as people find it.
fn name(switch: &TopologySwitch) -> String {
    format!("switch `{}` at {}", switch.name, switch.control)
}
