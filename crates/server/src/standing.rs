//! A server that takes jobs from a switch's controller, until it is told to stop or the controller is gone.

use std::time::Duration;

use crossbeam_channel::{Receiver, tick};
use fanin_control::ControlError;
use fanin_control::client::{ClientConfig, ControlClient, Order, ServerOffer, Serving};
use fanin_control::proto;
use fanin_net::NetError;

use crate::{NotServed, ParameterServer, ServedJob, ServerConfig};

/// Reports per lease: three may be lost or late before the controller gives the server up.
const REPORTS_PER_LEASE: u32 = 4;
/// For a look at the lanes.
const WAITING_LIMIT: Duration = Duration::from_millis(100);

/// A server did not start, or has lost its switch.
#[derive(Debug, thiserror::Error)]
pub enum StandingError {
    /// A port cannot be opened.
    #[error("cannot start the parameter server: {0}")]
    Ports(#[from] NetError),
    /// The controller cannot be reached or does not want the server.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The stream to the controller broke.
    #[error("the connection to the switch was lost ({why}): start the server again once the switch runs")]
    SwitchLost {
        /// In words.
        why: String,
    },
}

/// A parameter server of its own.
pub struct Standing {
    server: ParameterServer,
    serving: Serving,
    orders: Receiver<Order>,
    /// Keeps the connection.
    _client: ControlClient,
}

impl Standing {
    /// Opens the ports and offers the server to a switch. Jobs may come when this returns.
    ///
    /// # Errors
    /// [`StandingError`].
    pub fn start(config: &ServerConfig, switch: &ClientConfig, label: String) -> Result<Standing, StandingError> {
        let server = ParameterServer::start(config)?;
        let client = ControlClient::connect(switch)?;
        let (serving, orders) = client.serve(&ServerOffer { addresses: server.addresses(), label })?;
        Ok(Standing { server, serving, orders, _client: client })
    }

    /// The server.
    pub fn server(&self) -> &ParameterServer {
        &self.server
    }

    /// Serves until `stop` says something or is closed.
    ///
    /// # Errors
    /// [`StandingError::SwitchLost`].
    pub fn run(&self, stop: &Receiver<()>) -> Result<(), StandingError> {
        let reports = tick(self.serving.lease / REPORTS_PER_LEASE);
        loop {
            crossbeam_channel::select! {
                recv(stop) -> _ => return Ok(()),
                recv(reports) -> _ => {
                    let waiting = self.server.waiting(WAITING_LIMIT);
                    self.serving.report_lanes(waiting.into_iter().map(proto::ServerLane::from).collect());
                }
                recv(self.orders) -> order => match order {
                    Ok(Order::Serve(job)) => {
                        let outcome = self.serve(&job);
                        self.serving.answer(job.job_id, outcome.err().map(|error| error.to_string()).unwrap_or_default());
                    }
                    Ok(Order::Remove { job_id }) => self.server.remove(job_id),
                    Ok(Order::ControllerLost { why }) => return Err(StandingError::SwitchLost { why }),
                    Err(_) => return Err(StandingError::SwitchLost { why: "the stream has ended".into() }),
                },
            }
        }
    }

    fn serve(&self, order: &proto::ServerJob) -> Result<(), NotServed> {
        self.server.serve(&ServedJob::of_order(order)?)
    }
}
