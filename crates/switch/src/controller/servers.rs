//! Parameter servers of their own: their streams, orders to them and answers from them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fanin_control::proto::{
    ServerAccepted, ServerJob, ServerLane, ServerOrder, ServerReport, ServerStatus, server_order,
};
use fanin_control::registry::{Assignment, AtpAssignment, ServerId};
use fanin_control::{ControlError, ErrorCode};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::Core;
use super::core::State;

/// A client that opens a stream and says nothing holds resources for no one.
const FIRST_REPORT_WAIT: Duration = Duration::from_secs(10);
/// How long a server may take to serve a job.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

pub(super) type OrderStream = UnboundedReceiverStream<Result<ServerOrder, Status>>;
/// What a server says to an order; empty: it serves.
type Answer = std::sync::mpsc::Sender<String>;

/// One server's end of things at the controller.
pub(super) struct Standing {
    label: String,
    addresses: Vec<SocketAddr>,
    orders: mpsc::UnboundedSender<Result<ServerOrder, Status>>,
    /// Who waits for the answer to an order, by job.
    waiting: HashMap<u32, Answer>,
    /// Jobs that it serves.
    job_ids: Vec<u32>,
    lanes: Vec<ServerLane>,
}

pub(super) async fn serve(
    core: &Arc<Core>,
    mut reports: Streaming<ServerReport>,
    seen_at: IpAddr,
) -> Result<OrderStream, Status> {
    let first = timeout(FIRST_REPORT_WAIT, reports.message()).await.map_err(|_| no_offer())??;
    let ServerReport { addresses, label, .. } = first.ok_or_else(no_offer)?;
    let address = |text: &String| {
        let address: SocketAddr = text.parse().ok()?;
        let ip = if address.ip().is_unspecified() { seen_at } else { address.ip() };
        (address.port() != 0).then_some(SocketAddr::new(ip, address.port()))
    };
    let addresses: Option<Vec<SocketAddr>> = addresses.iter().map(address).collect();
    let addresses = addresses.filter(|addresses| !addresses.is_empty()).ok_or_else(no_offer)?;
    let server = core.stream_id();
    let (orders, outgoing) = mpsc::unbounded_channel();
    let lease_ms = core.with(|state, _| {
        state.registry.server_attached(server, addresses.clone());
        let lease_ms = state.registry.limits().lease_ms;
        let accepted = server_order::Kind::Accepted(ServerAccepted { lease_ms });
        let _ = orders.send(Ok(ServerOrder { kind: Some(accepted) }));
        let (waiting, job_ids, lanes) = (HashMap::new(), Vec::new(), Vec::new());
        tracing::info!(server, label, ?addresses, "parameter server");
        state.servers.insert(server, Standing { label, addresses, orders, waiting, job_ids, lanes });
        lease_ms
    });
    tokio::spawn(read_reports(core.clone(), reports, server, Duration::from_millis(lease_ms)));
    Ok(UnboundedReceiverStream::new(outgoing))
}

async fn read_reports(core: Arc<Core>, mut reports: Streaming<ServerReport>, server: ServerId, lease: Duration) {
    let why = loop {
        match timeout(lease, reports.message()).await {
            Ok(Ok(Some(report))) => core.with(|state, _| state.take_report(server, report)),
            Ok(Ok(None)) => break "it has stopped".to_string(),
            Ok(Err(status)) => break status.message().to_string(),
            Err(_) => break format!("it sent no report for {} ms", lease.as_millis()),
        }
    };
    core.with(|state, now_ms| {
        let Some(gone) = state.servers.remove(&server) else { return };
        tracing::warn!(server, label = gone.label, why, "parameter server gone");
        state.registry.server_detached(now_ms, server, &format!("{}: {why}", gone.label));
    });
}

impl State {
    fn take_report(&mut self, server: ServerId, report: ServerReport) {
        let Some(standing) = self.servers.get_mut(&server) else { return };
        match report.answer {
            Some(answer) => {
                if let Some(waiting) = standing.waiting.remove(&answer.job_id) {
                    let _ = waiting.send(answer.error);
                }
            }
            None => standing.lanes = report.lanes,
        }
    }

    /// What servers of their own wait for in a job.
    pub(super) fn standing_lanes(&self, job_id: u32) -> Vec<ServerLane> {
        let lanes = self.servers.values().flat_map(|standing| &standing.lanes);
        lanes.filter(|lane| lane.job_id == job_id).cloned().collect()
    }

    pub(super) fn server_statuses(&self) -> Vec<ServerStatus> {
        let mut servers: Vec<_> = self.servers.iter().collect();
        servers.sort_unstable_by_key(|(server, _)| **server);
        let status = |(_, standing): (&ServerId, &Standing)| ServerStatus {
            label: standing.label.clone(),
            addresses: standing.addresses.iter().map(SocketAddr::to_string).collect(),
            job_ids: standing.job_ids.clone(),
        };
        servers.into_iter().map(status).collect()
    }
}

impl Core {
    /// Has a server serve its lanes of a job. Blocks until it does, for [`ANSWER_WAIT`] at most.
    pub(super) fn order_to_serve(
        &self,
        server: ServerId,
        assignment: &Assignment,
        atp: &AtpAssignment,
    ) -> Result<(), String> {
        let job_id = assignment.job_id;
        let job = ServerJob {
            job_id,
            job_token: assignment.job_token,
            element_count_max: assignment.element_count_max.into(),
            window_max: assignment.slots_per_lane,
            atp: Some(atp.to_proto()),
            lanes: atp.lanes_of_standing(server).into_iter().map(u32::from).collect(),
            stragglers: assignment.shape.absences.stragglers.map(|policy| policy.to_proto()),
            accumulator: assignment.shape.accumulator.code().into(),
        };
        let (answer, answered) = std::sync::mpsc::channel();
        let label = self.with(|state, _| {
            let standing = state.servers.get_mut(&server)?;
            standing.waiting.insert(job_id, answer);
            if !standing.job_ids.contains(&job_id) {
                standing.job_ids.push(job_id);
            }
            let _ = standing.orders.send(Ok(ServerOrder { kind: Some(server_order::Kind::Serve(job)) }));
            Some(standing.label.clone())
        });
        let label = label.ok_or("its parameter server has just gone")?;
        match answered.recv_timeout(ANSWER_WAIT) {
            Ok(error) if error.is_empty() => Ok(()),
            Ok(error) => Err(format!("the parameter server {label} does not take the job: {error}")),
            Err(_) => Err(format!("the parameter server {label} does not answer")),
        }
    }

    /// Has a server forget a job.
    pub(super) fn order_to_remove(&self, server: ServerId, job_id: u32) {
        self.with(|state, _| {
            let Some(standing) = state.servers.get_mut(&server) else { return };
            standing.waiting.remove(&job_id);
            standing.job_ids.retain(|served| *served != job_id);
            let _ = standing.orders.send(Ok(ServerOrder { kind: Some(server_order::Kind::RemoveJobId(job_id)) }));
        });
    }
}

fn no_offer() -> Status {
    ControlError::new(
        ErrorCode::InvalidRequest,
        "the stream of a parameter server began without its UDP addresses",
        "Send a ServerReport with addresses like 10.0.0.9:48900 first",
    )
    .into()
}
