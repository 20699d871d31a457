//! The stream that keeps a worker's place: reports out, notices in.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{Admission, CALL_TIMEOUT, Client};
use crate::ControlError;
use crate::proto::{self, Collective, LossReason, RemovalReason, Report, ServerLane, WorkerCounters, notice};
use crate::registry::AtpAssignment;

/// Reports per lease: three may be lost or late before the worker counts as lost.
const REPORTS_PER_LEASE: u32 = 4;

/// What the worker does now. Asked for a few times per lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostReport {
    /// `None`: no collective is running.
    pub collective: Option<Collective>,
    /// Since the worker joined.
    pub counters: WorkerCounters,
    /// Where this worker runs the job's parameter server: what it waits for.
    pub server_lanes: Vec<ServerLane>,
    /// Where this worker waits for the others and for replacements.
    pub boundary: Option<proto::Boundary>,
    /// Where this worker tells for all: what the tensors are called whose sums of floats the switch counts.
    pub tensor_names: Vec<proto::TensorName>,
}

/// News about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rank is gone: no collective of this job can complete any more.
    PeerLost {
        /// Which.
        rank: u16,
        /// How the switch noticed.
        reason: LossReason,
        /// In words.
        detail: String,
    },
    /// A rank is gone, and the job goes on without it.
    SetUpAgain {
        /// Which; `None` where this only repeats what the job has come to.
        lost_rank: Option<u16>,
        /// How the switch noticed, in words.
        detail: String,
        /// Of packets from now on. Calls and reports keep the job's own.
        packet_token: u32,
        /// The ways and servers of those that are left; `None` for what makes no sense.
        atp: Option<Box<AtpAssignment>>,
    },
    /// All ranks have come to a boundary, and wait there for replacements.
    BoundaryReached {
        /// The boundary's.
        sequence: u64,
        /// From now on: as long as the most patient rank would.
        wait: Duration,
    },
    /// All ranks have come to a boundary, and go on from there.
    Admitted {
        /// The boundary's.
        sequence: u64,
        /// Replacements that go on with them.
        ranks: Vec<u16>,
        /// Of packets from now on, and the ways and servers of all; only where there are `ranks`.
        packet_token: u32,
        /// `None` without `ranks`, and for what makes no sense.
        atp: Option<Box<AtpAssignment>>,
        /// Why it is not a boundary; empty if it is.
        error: String,
    },
    /// A rank has left in good order.
    PeerLeft {
        /// Which.
        rank: u16,
    },
    /// The switch stops within this time: finish, and start the next job elsewhere.
    Draining {
        /// Until then.
        deadline: Duration,
    },
    /// The switch has freed the job's slots.
    JobRemoved {
        /// Why.
        reason: RemovalReason,
    },
    /// The job's parameter server is gone: no collective can complete any more.
    ServerLost {
        /// In words.
        detail: String,
    },
    /// A switch between the job's workers and the controller's is gone: no collective can complete any more.
    RelayLost {
        /// In words, with its name.
        detail: String,
    },
    /// The stream broke: the switch has died, or the network to it. The last notice.
    ControllerLost {
        /// In words.
        why: String,
    },
}

/// Keeps the place; dropping it ends the stream, which without [`Client::leave`] counts as a loss.
pub struct Attachment {
    report_now: Arc<Notify>,
    _stop: oneshot::Sender<()>,
}

impl Attachment {
    /// Sends a report at once, for example before asking the switch what a late collective waits for.
    pub fn report_now(&self) {
        self.report_now.notify_one();
    }
}

struct Reporter<F> {
    admission: Admission,
    read: F,
    sequence: u64,
}

impl<F: FnMut() -> HostReport> Reporter<F> {
    fn next(&mut self) -> Report {
        let HostReport { collective, counters, server_lanes, boundary, tensor_names } = (self.read)();
        let sequence = self.sequence;
        self.sequence += 1;
        Report {
            job_id: self.admission.assignment.job_id,
            job_token: self.admission.assignment.job_token,
            rank: self.admission.rank.into(),
            sequence,
            collective,
            counters: Some(counters),
            server_lanes,
            boundary,
            membership: self.admission.membership,
            tensor_names,
        }
    }
}

impl Client {
    /// Opens the stream. `read` is called on the runtime for each report and must not block; `on_notice` gets the news,
    /// in order.
    ///
    /// # Errors
    /// [`crate::ErrorCode::UnknownJob`], [`crate::ErrorCode::JobBroken`], or the connection's.
    pub async fn attach<F, N>(&self, admission: &Admission, read: F, on_notice: N) -> Result<Attachment, ControlError>
    where
        F: FnMut() -> HostReport + Send + 'static,
        N: FnMut(Notice) + Send + 'static,
    {
        let mut reporter = Reporter { admission: admission.clone(), read, sequence: 0 };
        let (reports, outgoing) = mpsc::channel(4);
        // The switch learns from the first report who attaches, so it must be there before the call.
        let _ = reports.try_send(reporter.next());
        let mut stub = self.stub.clone();
        let answer = timeout(CALL_TIMEOUT, stub.attach(ReceiverStream::new(outgoing))).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("the switch did not open the stream")));
        let notices = answer.map_err(|status| ControlError::from_status(&status))?.into_inner();
        let (stop, stopped) = oneshot::channel();
        let report_now = Arc::new(Notify::new());
        let interval = admission.lease / REPORTS_PER_LEASE;
        tokio::spawn(send_reports(reporter, reports, interval, report_now.clone(), stopped));
        tokio::spawn(receive_notices(notices, on_notice));
        Ok(Attachment { report_now, _stop: stop })
    }
}

async fn send_reports<F: FnMut() -> HostReport>(
    mut reporter: Reporter<F>,
    reports: mpsc::Sender<Report>,
    interval: Duration,
    report_now: Arc<Notify>,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            () = report_now.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
        // A full queue means that the connection is stuck: the keep-alive ends it, and waiting here would not help.
        if let Err(mpsc::error::TrySendError::Closed(_)) = reports.try_send(reporter.next()) {
            return;
        }
    }
}

async fn receive_notices<N: FnMut(Notice)>(mut notices: Streaming<proto::Notice>, mut on_notice: N) {
    loop {
        match notices.message().await {
            Ok(Some(notice)) => notice.kind.and_then(plain_notice).into_iter().for_each(&mut on_notice),
            Ok(None) => return,
            Err(status) => return on_notice(controller_lost(&status)),
        }
    }
}

fn plain_notice(kind: notice::Kind) -> Option<Notice> {
    match kind {
        notice::Kind::Attached(_) => None,
        notice::Kind::PeerLost(lost) => {
            Some(Notice::PeerLost { rank: lost.rank as u16, reason: lost.reason(), detail: lost.detail })
        }
        notice::Kind::SetUpAgain(set_up) => Some(Notice::SetUpAgain {
            lost_rank: set_up.lost_rank.map(|rank| rank as u16),
            detail: set_up.detail,
            packet_token: set_up.packet_token,
            atp: set_up.atp.as_ref().and_then(AtpAssignment::from_proto).map(Box::new),
        }),
        notice::Kind::BoundaryReached(reached) => {
            Some(Notice::BoundaryReached { sequence: reached.sequence, wait: Duration::from_millis(reached.wait_ms) })
        }
        notice::Kind::Admitted(admitted) => Some(Notice::Admitted {
            sequence: admitted.sequence,
            ranks: admitted.ranks.iter().map(|&rank| rank as u16).collect(),
            packet_token: admitted.packet_token,
            atp: admitted.atp.as_ref().and_then(AtpAssignment::from_proto).map(Box::new),
            error: admitted.error,
        }),
        notice::Kind::PeerLeft(left) => Some(Notice::PeerLeft { rank: left.rank as u16 }),
        notice::Kind::Draining(draining) => {
            Some(Notice::Draining { deadline: Duration::from_millis(draining.deadline_ms) })
        }
        notice::Kind::RelayLost(lost) => Some(Notice::RelayLost { detail: lost.detail }),
        notice::Kind::ServerLost(lost) => Some(Notice::ServerLost { detail: lost.detail }),
        notice::Kind::JobRemoved(removed) => Some(Notice::JobRemoved { reason: removed.reason() }),
    }
}

fn controller_lost(status: &Status) -> Notice {
    Notice::ControllerLost { why: ControlError::from_status(status).to_string() }
}
