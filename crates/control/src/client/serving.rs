//! The stream of a parameter server of its own: offers and answers out, orders in.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{CALL_TIMEOUT, Client};
use crate::ControlError;
use crate::proto::{ServerAnswer, ServerJob, ServerLane, ServerOrder, ServerReport, server_order};

/// Answers that wait for a slow connection.
const REPORTS_MAX: usize = 64;

/// What a parameter server has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOffer {
    /// UDP, one per thread. An address of all zeros: the one at which the controller sees this server.
    pub addresses: Vec<SocketAddr>,
    /// Host name and process id, for people.
    pub label: String,
}

/// What the controller wants of a parameter server.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Serve a job's lanes, then say so by [`Serving::answer`].
    Serve(ServerJob),
    /// A job has ended.
    Remove {
        /// The job.
        job_id: u32,
    },
    /// The stream broke: the switch has died, or the network to it. The last order.
    ControllerLost {
        /// In words.
        why: String,
    },
}

/// Keeps the offer; dropping it withdraws it.
pub struct Serving {
    reports: mpsc::Sender<ServerReport>,
    /// Silence after which the controller gives the server up.
    pub lease: Duration,
}

impl Serving {
    /// Answers an order to serve: an empty `error` means that packets are accepted.
    pub fn answer(&self, job_id: u32, error: String) {
        self.report(ServerReport { answer: Some(ServerAnswer { job_id, error }), ..ServerReport::default() });
    }

    /// Says what the lanes wait for, and that the server lives.
    pub fn report_lanes(&self, lanes: Vec<ServerLane>) {
        self.report(ServerReport { lanes, ..ServerReport::default() });
    }

    fn report(&self, report: ServerReport) {
        // A full queue means that the connection is stuck: its keep-alive ends it.
        let _ = self.reports.try_send(report);
    }
}

impl Client {
    /// Offers a parameter server for ATP jobs. `on_order` is called on the runtime, in order, and must not block.
    ///
    /// # Errors
    /// [`crate::ErrorCode::Forbidden`] without an operator's token where tokens are used, or the connection's.
    pub async fn serve<F>(&self, offer: &ServerOffer, on_order: F) -> Result<Serving, ControlError>
    where
        F: FnMut(Order) + Send + 'static,
    {
        let (reports, outgoing) = mpsc::channel(REPORTS_MAX);
        let addresses = offer.addresses.iter().map(SocketAddr::to_string).collect();
        // The controller learns from the first report who serves, so it must be there before the call.
        let first = ServerReport { addresses, label: offer.label.clone(), ..ServerReport::default() };
        let _ = reports.try_send(first);
        let mut stub = self.stub.clone();
        let answer = timeout(CALL_TIMEOUT, stub.serve(ReceiverStream::new(outgoing))).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("the switch did not open the stream")));
        let mut orders = answer.map_err(|status| ControlError::from_status(&status))?.into_inner();
        let lease = accepted(&mut orders).await?;
        tokio::spawn(receive_orders(orders, on_order));
        Ok(Serving { reports, lease })
    }
}

async fn accepted(orders: &mut Streaming<ServerOrder>) -> Result<Duration, ControlError> {
    let first = timeout(CALL_TIMEOUT, orders.message()).await;
    let first = first.unwrap_or_else(|_| Err(Status::deadline_exceeded("the switch did not accept the server")));
    match first.map_err(|status| ControlError::from_status(&status))?.and_then(|order| order.kind) {
        Some(server_order::Kind::Accepted(accepted)) => Ok(Duration::from_millis(accepted.lease_ms)),
        _ => Err(super::not_understood("answer to a parameter server")),
    }
}

async fn receive_orders<F: FnMut(Order)>(mut orders: Streaming<ServerOrder>, mut on_order: F) {
    loop {
        match orders.message().await {
            Ok(Some(ServerOrder { kind: Some(server_order::Kind::Serve(job)) })) => on_order(Order::Serve(job)),
            Ok(Some(ServerOrder { kind: Some(server_order::Kind::RemoveJobId(job_id)) })) => {
                on_order(Order::Remove { job_id });
            }
            Ok(Some(_)) => {}
            Ok(None) => return on_order(Order::ControllerLost { why: "the switch has ended the stream".into() }),
            Err(status) => {
                return on_order(Order::ControllerLost { why: ControlError::from_status(&status).to_string() });
            }
        }
    }
}
