//! The thread that ends what cannot complete: deadlines, lost peers, a lost
//! switch, refusals. It turns each into one error that says who is missing.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use fanin_control::client::{Attachment, ControlClient, HostReport, Notice};
use fanin_control::proto;
use fanin_control::registry::{AtpAssignment, ServerOwner};
use fanin_protocol::DropReason;

use crate::boundary::AtBoundary;
use crate::config::OnPeerLoss;
use crate::explain::Explainer;
use crate::lane::Trouble;
use crate::session::Shared;
use crate::ticket::Collective;
use crate::{Error, ErrorKind};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Time for packets that are under way when a peer goes: its last
/// contribution may already be in the switch.
const GRACE: Duration = Duration::from_millis(500);
/// The same when a peer leaves in good order, having all its own results:
/// this rank may still be asking the switch for the last of its own.
const GRACE_LEFT: Duration = Duration::from_secs(2);
/// Time for the other ranks' reports to reach the switch before it is asked.
const REPORTS_WAIT: Duration = Duration::from_millis(500);
/// A collective that takes longer is reported at once rather than with the
/// next regular report, so that a rank in trouble finds it at the switch.
const REPORT_AFTER: Duration = Duration::from_millis(150);

/// Handle to the thread.
pub(crate) struct Watcher {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

struct Watching {
    shared: Arc<Shared>,
    control: Arc<ControlClient>,
    attachment: Option<Attachment>,
    notices: Receiver<Notice>,
    troubles: Receiver<Trouble>,
    stop: Receiver<()>,
    pending: Option<BadNews>,
    /// The last collective that was reported for being slow.
    reported: Option<u64>,
}

/// A notice that becomes the session's error after its time of grace.
struct BadNews {
    due: Instant,
    kind: ErrorKind,
    what: String,
}

impl Watcher {
    /// Opens the stream that keeps the place, and watches.
    pub fn start(
        shared: Arc<Shared>,
        control: Arc<ControlClient>,
        troubles: Receiver<Trouble>,
    ) -> Result<Watcher, Error> {
        let reporter = Arc::downgrade(&shared);
        let read = move || reporter.upgrade().map_or_else(HostReport::default, |shared| report(&shared));
        let (attachment, notices) = control.attach(&shared.admission, read)?;
        let (stop, stopped) = bounded(1);
        let watching = Watching {
            shared,
            control,
            attachment: Some(attachment),
            notices,
            troubles,
            stop: stopped,
            pending: None,
            reported: None,
        };
        let thread = std::thread::Builder::new()
            .name("fanin-watcher".into())
            .spawn(move || watching.run())
            .map_err(|error| Error::new(ErrorKind::Network, format!("cannot start the watcher's thread: {error}")))?;
        Ok(Watcher { stop, thread })
    }

    /// Leaves the job and ends the thread.
    pub fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Longer than a worker takes to ask again, several times.
const LINGER_MAX: Duration = Duration::from_secs(3);
const LINGER_MAX_MUTUAL: Duration = Duration::from_millis(500);
const LINGER_LOOK: Duration = Duration::from_millis(50);
/// For a look at this rank's parameter server: reports must not be late.
const SERVER_WAIT: Duration = Duration::from_millis(20);

impl Watching {
    fn run(mut self) {
        loop {
            let (notices, troubles, stop) = (self.notices.clone(), self.troubles.clone(), self.stop.clone());
            select! {
                recv(stop) -> _ => break,
                recv(notices) -> notice => match notice {
                    Ok(notice) => self.handle_notice(notice),
                    // The stream is over; its last notice was handled.
                    Err(_) => self.notices = crossbeam_channel::never(),
                },
                recv(troubles) -> trouble => match trouble {
                    Ok(trouble) => self.handle_trouble(trouble),
                    Err(_) => self.troubles = crossbeam_channel::never(),
                },
                default(TICK) => {}
            }
            self.check_pending();
            self.check_oldest();
            self.check_boundary();
        }
        self.leave();
    }

    /// The parameter server in this process answers until the other ranks have gone, or for [`LINGER_MAX`]: the last answers
    /// may have been lost.
    fn linger(&self) {
        let has_failed = self.shared.lock().failure.as_ref().is_some_and(|failure| failure.kind != ErrorKind::Closed);
        if self.shared.server.is_none() || has_failed {
            return;
        }
        let deadline = Instant::now() + self.linger_limit();
        let (own, job_id) = (u32::from(self.shared.config.rank), self.shared.admission.assignment.job_id);
        while Instant::now() < deadline {
            let Ok(proto::InspectResponse { job: Some(job), .. }) = self.control.inspect(job_id) else { return };
            let is_here = |worker: &&proto::WorkerStatus| {
                worker.rank != own
                    && matches!(worker.state(), proto::WorkerState::Joined | proto::WorkerState::Attached)
            };
            if !job.workers.iter().any(|worker| is_here(&worker)) {
                return;
            }
            std::thread::sleep(LINGER_LOOK);
        }
    }

    /// Two ranks that serve would each wait for the other to go.
    fn linger_limit(&self) -> Duration {
        let servers = self.shared.admission.assignment.atp.iter().flat_map(|atp| &atp.servers);
        let own = ServerOwner::Rank(self.shared.config.rank);
        if servers.into_iter().any(|lane| lane.owner != own) { LINGER_MAX_MUTUAL } else { LINGER_MAX }
    }

    fn leave(&mut self) {
        self.linger();
        if let Err(error) = self.control.leave(&self.shared.admission) {
            tracing::debug!(%error, "the switch was not told that this rank leaves");
        }
        self.attachment = None;
    }

    fn handle_notice(&mut self, notice: Notice) {
        let (grace, kind, what) = match notice {
            Notice::PeerLost { rank, detail, .. } => {
                let what = format!("rank {rank} was lost ({detail}): no collective can complete any more");
                (GRACE, ErrorKind::PeerLost, what)
            }
            Notice::SetUpAgain { lost_rank, detail, packet_token, atp } => {
                return self.go_on_without(lost_rank, &detail, packet_token, atp.as_deref());
            }
            Notice::BoundaryReached { sequence, wait } => return self.shared.wait_at_reached(sequence, wait),
            Notice::Admitted { sequence, ranks, packet_token, atp, error } => {
                return self.leave_boundary(sequence, ranks, packet_token, atp.as_deref(), error);
            }
            Notice::PeerLeft { rank } => {
                let what = format!("rank {rank} has left the job: no collective can complete any more");
                (GRACE_LEFT, ErrorKind::PeerLost, what)
            }
            Notice::JobRemoved { reason } => {
                let why = match reason {
                    proto::RemovalReason::AllLeft => "all its ranks have left",
                    proto::RemovalReason::Broken => "a rank was lost",
                    proto::RemovalReason::SwitchStopped => "the switch stops",
                    proto::RemovalReason::Unspecified => "it did not say why",
                };
                (GRACE, ErrorKind::SwitchLost, format!("the switch has removed the job: {why}"))
            }
            Notice::ServerLost { detail } => {
                let what = format!(
                    "the job's parameter server was lost ({detail}): no collective can complete any more. Start it again \
                     and rerun the job"
                );
                (GRACE, ErrorKind::PeerLost, what)
            }
            Notice::RelayLost { detail } => {
                let what = format!(
                    "a switch between this job's ranks and the root was lost ({detail}): no collective can complete any \
                     more. Start that switch again and rerun the job"
                );
                (GRACE, ErrorKind::SwitchLost, what)
            }
            Notice::ControllerLost { why } => {
                let what = format!(
                    "the connection to the switch at {} was lost ({why}): it has stopped or restarted. Start the switch \
                     again and rerun the job",
                    self.shared.config.controller
                );
                (GRACE, ErrorKind::SwitchLost, what)
            }
            Notice::Draining { deadline } => {
                tracing::warn!(?deadline, "the switch is draining: finish, and start the next job elsewhere");
                return;
            }
        };
        // Ranks that leave may do so because of a switch, which is the better news.
        let explains = kind == ErrorKind::SwitchLost;
        let due = Instant::now() + grace;
        let old = self.pending.take_if(|old| explains && old.kind == ErrorKind::PeerLost);
        let due = old.map_or(due, |old| old.due.min(due));
        self.pending.get_or_insert(BadNews { due, kind, what });
    }

    fn go_on_without(&mut self, rank: Option<u16>, detail: &str, packet_token: u32, atp: Option<&AtpAssignment>) {
        if let Some(rank) = rank {
            tracing::warn!(rank, detail, "a rank was lost, and the job goes on without it");
        }
        if let Err(error) = self.shared.go_on_in(packet_token, atp, false) {
            self.shared.fail(error);
        }
    }

    fn leave_boundary(
        &mut self,
        sequence: u64,
        ranks: Vec<u16>,
        packet_token: u32,
        atp: Option<&AtpAssignment>,
        error: String,
    ) {
        let outcome = if !error.is_empty() {
            let what = format!("the ranks do not call admit() at the same place: {error}");
            Err(Error::new(ErrorKind::Mismatch, Explainer::new(&self.shared).sentence(&what)))
        } else if ranks.is_empty() {
            Ok(())
        } else {
            tracing::warn!(?ranks, "lost ranks were replaced");
            self.shared.go_on_in(packet_token, atp, true)
        };
        match outcome {
            Ok(()) => self.shared.leave_boundary(sequence, ranks),
            Err(error) => self.shared.fail(error),
        }
    }

    /// Bad news that is due fails what still waits; if nothing does, the next
    /// submission learns of it.
    fn check_pending(&mut self) {
        let due = self.pending.take_if(|news| Instant::now() >= news.due);
        if let Some(news) = due {
            self.shared.fail(Error::new(news.kind, Explainer::new(&self.shared).sentence(&news.what)));
        }
    }

    fn handle_trouble(&mut self, trouble: Trouble) {
        if self.shared.lock().failure.is_some() {
            return;
        }
        let error = match trouble {
            Trouble::AtBoundary => return self.attachment.iter().for_each(Attachment::report_now),
            Trouble::Network(error) => {
                let name = &self.shared.admission.switch_name;
                let at = if name.is_empty() { String::new() } else { format!("at the switch `{name}`: ") };
                Error::new(error.kind, Explainer::new(&self.shared).sentence(&format!("{at}{}", error.message)))
            }
            // The job has been set up again, and the news is still on its way.
            Trouble::Refused { reason: DropReason::StaleToken | DropReason::UnknownJob, .. } if self.goes_on() => {
                return;
            }
            Trouble::Refused { lane, reason, chunk_index, slot_index, collective } => {
                self.explain_refusal(lane, reason, chunk_index, slot_index, collective)
            }
        };
        self.shared.fail(error);
    }

    fn goes_on(&self) -> bool {
        self.shared.config.on_peer_loss == OnPeerLoss::Continue
    }

    fn explain_refusal(
        &mut self,
        lane: u16,
        reason: DropReason,
        chunk_index: u32,
        slot_index: Option<u16>,
        collective: Option<u64>,
    ) -> Error {
        let mismatch = matches!(reason, DropReason::CollectiveMismatch | DropReason::ElementCountMismatch);
        let explainer = Explainer::new(&self.shared);
        let place = explainer.place(lane, chunk_index, slot_index, collective);
        if mismatch {
            let others = self.ask_others();
            let why = explainer.mismatch(&place, others.as_ref());
            return Error::new(ErrorKind::Mismatch, why);
        }
        let why = format!("the switch refuses {place}: {}. {}", reason.describe(), reason.hint());
        Error::new(ErrorKind::Refused, explainer.sentence(&why))
    }

    /// What the switch knows about the job now, with fresh reports.
    fn ask_others(&self) -> Option<proto::InspectResponse> {
        if let Some(attachment) = &self.attachment {
            attachment.report_now();
        }
        std::thread::sleep(REPORTS_WAIT);
        self.control.inspect(self.shared.admission.assignment.job_id).ok()
    }

    fn check_oldest(&mut self) {
        let oldest = self.shared.lock().running.front().cloned();
        let Some(collective) = oldest else { return };
        let elapsed = collective.submitted.elapsed();
        if elapsed >= REPORT_AFTER && self.reported != Some(collective.sequence) {
            self.reported = Some(collective.sequence);
            self.attachment.iter().for_each(Attachment::report_now);
        }
        if elapsed >= self.shared.config.collective_timeout {
            self.time_out(&collective);
        }
    }

    fn check_boundary(&mut self) {
        let timeout = self.shared.config.collective_timeout;
        let is_over = |at: &AtBoundary| at.since.elapsed() >= timeout.saturating_add(at.patience);
        if !self.shared.lock().boundary.as_ref().is_some_and(is_over) {
            return;
        }
        let answer = self.ask_others();
        if self.shared.lock().boundary.as_ref().is_some_and(is_over) {
            let why = Explainer::new(&self.shared).boundary(answer.as_ref());
            self.shared.fail(Error::new(ErrorKind::TimedOut, why));
        }
    }

    fn time_out(&mut self, collective: &Collective) {
        let answer = self.ask_others();
        if collective.is_done() {
            return;
        }
        let why = Explainer::new(&self.shared).timeout(collective, answer.as_ref());
        self.shared.fail(Error::new(ErrorKind::TimedOut, why));
    }
}

/// What this rank does now, for the switch's dashboard and for other ranks'
/// explanations.
fn report(shared: &Shared) -> HostReport {
    let stats = shared.stats();
    let collective = shared.lock().running.front().map(|collective| describe(collective));
    let tensor_names = tensor_names(shared);
    HostReport {
        collective,
        counters: proto::WorkerCounters {
            contributions_sent: stats.contributions,
            aggregates_received: stats.aggregates,
            resends: stats.resends,
            sent_bytes: stats.bytes_sent,
            received_bytes: stats.bytes_received,
            drops: stats.drops.values().sum(),
            collectives_done: stats.collectives.values().map(|kind| kind.completed).sum(),
        },
        server_lanes: shared.server.iter().flat_map(|server| server.waiting(SERVER_WAIT)).map(Into::into).collect(),
        boundary: shared.lock().boundary.as_ref().and_then(AtBoundary::to_proto),
        tensor_names,
    }
}

/// One rank tells for all: the lowest that is left.
fn tensor_names(shared: &Shared) -> Vec<proto::TensorName> {
    let (own, state) = (shared.config.rank, shared.lock());
    let is_first = (0..own).all(|lower| state.lost_ranks.contains(&lower));
    if is_first { state.tensor_names.to_proto() } else { Vec::new() }
}

fn describe(collective: &Collective) -> proto::Collective {
    proto::Collective {
        sequence: collective.sequence,
        collective_tag: collective.tag,
        description: collective.description.clone(),
        elapsed_ms: collective.submitted.elapsed().as_millis() as u64,
        chunk_count_done: collective.blocks_done(),
        chunk_count: collective.block_count,
    }
}
