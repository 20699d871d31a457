//! The registry behind a lock, and whoever waits for what comes out of it.
//!
//! Every entry follows the same pattern: lock, tell the registry, carry out its effects, unlock. Answers and notices are
//! queue pushes and happen under the lock; the data plane may block, so its effects go to the installer thread, in
//! order.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fanin_control::ControlError;
use fanin_control::proto;
use fanin_control::registry::{Assignment, Effect, Limits, Registry, ServerId, Ticket};
use fanin_control::tenants::TenantTable;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::Status;

use super::installer::{self, Order};
use super::relay::RelayedJobs;
use super::relays::Relays;
use super::servers::Standing;
use crate::dataplane_api::Dataplane;

/// The answer to one `Join`.
pub(super) type JoinAnswer = Result<Assignment, ControlError>;

/// The controller's end of one `Attach` stream; dropping it ends the stream after what is queued.
pub(super) struct Outgoing {
    pub(super) stream_id: u64,
    pub(super) notices: mpsc::UnboundedSender<Result<proto::Notice, Status>>,
    /// Held so that dropping this also ends the task that reads the reports.
    pub(super) _reader_stop: oneshot::Sender<()>,
}

pub(super) struct State {
    pub(super) registry: Registry,
    pub(super) joins: HashMap<Ticket, oneshot::Sender<JoinAnswer>>,
    pub(super) streams: HashMap<(u32, u16), Outgoing>,
    /// Parameter servers of their own.
    pub(super) servers: HashMap<ServerId, Standing>,
    orders: std::sync::mpsc::Sender<Order>,
}

/// Shared by the gRPC service, the HTTP server and the daemon.
pub(crate) struct Core {
    state: Mutex<State>,
    pub(super) tenants: TenantTable,
    pub(super) dataplane: Arc<dyn Dataplane>,
    pub(super) data_address: String,
    pub(super) drain_limit: Duration,
    /// Woken after every change: the clock task sleeps until the next expiry, which may have moved.
    changed: Notify,
    /// Set once, when a drain is asked for: how long it may take.
    drain: watch::Sender<Option<Duration>>,
    stream_next: AtomicU64,
    started: Instant,
    /// For a switch below the root of a topology: where jobs are admitted.
    pub(super) root: Option<SocketAddr>,
    /// For the root of a topology: the other switches.
    pub(super) relays: Arc<Relays>,
    /// Jobs of the root's that this switch takes part in.
    pub(super) relayed: RelayedJobs,
}

/// What the controller needs beside the data plane.
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) tenants: TenantTable,
    pub(crate) data_address: String,
    pub(crate) drain_limit: Duration,
    pub(crate) root: Option<SocketAddr>,
    pub(crate) relay_token: Option<String>,
}

impl Core {
    pub(crate) fn new(settings: Settings, dataplane: Arc<dyn Dataplane>) -> std::io::Result<Arc<Self>> {
        let (orders, order_queue) = std::sync::mpsc::channel();
        let relays = Relays::new(settings.limits.topology.clone(), settings.relay_token, settings.limits.lease_ms);
        let registry = Registry::new(settings.limits, entropy);
        let core = Arc::new(Self {
            state: Mutex::new(State {
                registry,
                joins: HashMap::new(),
                streams: HashMap::new(),
                servers: HashMap::new(),
                orders,
            }),
            tenants: settings.tenants,
            dataplane,
            data_address: settings.data_address,
            drain_limit: settings.drain_limit,
            changed: Notify::new(),
            drain: watch::Sender::new(None),
            stream_next: AtomicU64::new(0),
            started: Instant::now(),
            root: settings.root,
            relays: relays.clone(),
            relayed: RelayedJobs::default(),
        });
        if core.root.is_none() {
            relays.watch(&Arc::downgrade(&core))?;
        }
        installer::start(Arc::downgrade(&core), core.dataplane.clone(), relays, order_queue)?;
        Ok(core)
    }

    /// Milliseconds since start: the registry's time.
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    pub(super) fn stream_id(&self) -> u64 {
        self.stream_next.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes the state and carries out what follows from it.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state, self.now_ms());
        state.carry_out();
        drop(state);
        self.changed.notify_one();
        result
    }

    /// Reads the state.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State, u64) -> T) -> T {
        read(&self.lock(), self.now_ms())
    }

    /// A panic elsewhere must not take the controller down: the registry keeps its promises after every call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs leases and deadlines; ends only with the runtime.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            let next_ms = self.read(|state, _| state.registry.next_expiry_ms());
            tokio::select! {
                () = self.changed.notified() => continue,
                () = sleep_until(next_ms, self.now_ms()) => {}
            }
            self.with(|state, now_ms| state.registry.expire(now_ms));
        }
    }

    /// Admits no more jobs. Returns the number that still runs.
    pub(crate) fn drain(&self, limit: Duration) -> u32 {
        let job_count = self.with(|state, _| {
            state.registry.drain(limit.as_millis() as u64);
            state.registry.job_count() + self.relayed.count() as u32
        });
        self.drain.send_if_modified(|asked| asked.replace(limit).is_none());
        job_count
    }

    /// Tells when a drain was asked for.
    pub(crate) fn drain_asked(&self) -> watch::Receiver<Option<Duration>> {
        self.drain.subscribe()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.read(|state, _| state.registry.is_draining())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.read(|state, _| state.registry.is_idle()) && self.relayed.count() == 0
    }

    /// Ends all jobs and answers all that wait.
    pub(crate) fn shut_down(&self) {
        self.with(|state, _| {
            state.registry.shut_down();
            // Ends their streams.
            state.servers.clear();
        });
    }

    /// Waits until the data plane has carried out every order so far.
    pub(crate) fn settle(&self, limit: Duration) {
        let (done, wait) = std::sync::mpsc::channel();
        let sent = self.lock().orders.send(Order::Confirm(done));
        // Nothing is sent: all who had something to do let go of their end.
        if sent.is_err() || wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the data plane did not confirm the removal of all jobs in {limit:?}");
        }
    }
}

/// From the operating system: job tokens must not be guessed. Without a source there is no safe token to give out,
/// so the clock is a last resort that is said aloud.
fn entropy() -> u32 {
    getrandom::u32().unwrap_or_else(|error| {
        tracing::error!("no random source ({error}): job tokens come from the clock and can be guessed");
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.subsec_nanos() ^ since.as_secs() as u32)
    })
}

async fn sleep_until(next_ms: Option<u64>, now_ms: u64) {
    match next_ms {
        Some(next_ms) => tokio::time::sleep(Duration::from_millis(next_ms.saturating_sub(now_ms))).await,
        None => std::future::pending().await,
    }
}

impl State {
    fn carry_out(&mut self) {
        while let Some(effect) = self.registry.poll_effect() {
            self.carry_out_one(effect);
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Install(assignment) => self.order(Order::Install(Box::new(assignment))),
            Effect::SetUpAgain(assignment) => self.order(Order::SetUpAgain(Box::new(assignment))),
            Effect::Remove { job_id } => self.order(Order::Remove(job_id)),
            Effect::Admit { ticket, assignment } => self.answer(ticket, Ok(assignment)),
            Effect::Refuse { ticket, error } => self.answer(ticket, Err(error)),
            Effect::Notify { job_id, rank, notice } => self.notify(job_id, rank, notice),
            Effect::CloseStream { job_id, rank } => drop(self.streams.remove(&(job_id, rank))),
        }
    }

    /// Takes a rank's stream out, unless a newer one has replaced it.
    pub(super) fn take_stream(&mut self, job_id: u32, rank: u16, stream_id: u64) -> Option<Outgoing> {
        let current = self.streams.get(&(job_id, rank)).is_some_and(|stream| stream.stream_id == stream_id);
        if current { self.streams.remove(&(job_id, rank)) } else { None }
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_err() {
            tracing::error!("the installer thread has ended: the data plane is out of step with the controller");
        }
    }

    /// A receiver that has gone gave up; its guard tells the registry.
    fn answer(&mut self, ticket: Ticket, answer: JoinAnswer) {
        if let Err(error) = &answer {
            tracing::info!(%error, "join refused");
        }
        if let Some(waiting) = self.joins.remove(&ticket) {
            let _ = waiting.send(answer);
        }
    }

    fn notify(&self, job_id: u32, rank: u16, notice: proto::notice::Kind) {
        if let Some(stream) = self.streams.get(&(job_id, rank)) {
            // A closed stream is about to be reported by its reader.
            let _ = stream.notices.send(Ok(proto::Notice { kind: Some(notice) }));
        }
    }
}
