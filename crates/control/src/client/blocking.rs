//! The client for programs without an async runtime: it owns one thread that runs the connection.

use std::future::Future;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use tokio::runtime::{Builder, Runtime};

use super::{
    Admission, Attachment, Client, ClientConfig, HostReport, JoinParameters, Notice, Order, ServerOffer, Serving,
};
use crate::proto::{InspectResponse, RelayInspection, RelayInstall, StatusResponse};
use crate::{ControlError, ErrorCode};

/// A blocking [`Client`]. Every call ends within the time it documents.
///
/// Must not be called from inside an async runtime's thread; use [`Client`] there.
pub struct ControlClient {
    client: Client,
    /// `None` only while dropping.
    runtime: Option<Runtime>,
}

impl ControlClient {
    /// See [`Client::connect`]; ends within `config.connect_timeout`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(config: &ClientConfig) -> Result<Self, ControlError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("fanin-control").enable_all().build();
        let runtime = runtime.map_err(|error| no_thread(&error))?;
        let client = runtime.block_on(Client::connect(config))?;
        Ok(Self { client, runtime: Some(runtime) })
    }

    /// See [`Client::join`]; ends within `parameters.wait` plus ten seconds.
    ///
    /// # Errors
    /// As [`Client::join`].
    pub fn join(&self, parameters: &JoinParameters) -> Result<Admission, ControlError> {
        self.wait(self.client.join(parameters))
    }

    /// See [`Client::attach`]. The notices come through the channel, which closes with the stream.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub fn attach(
        &self,
        admission: &Admission,
        read: impl FnMut() -> HostReport + Send + 'static,
    ) -> Result<(Attachment, Receiver<Notice>), ControlError> {
        let (sender, notices) = unbounded();
        // A receiver that was dropped does not want the news.
        let forward = move |notice| drop(sender.send(notice));
        let attachment = self.wait(self.client.attach(admission, read, forward))?;
        Ok((attachment, notices))
    }

    /// See [`Client::inspect`]; ends within ten seconds.
    ///
    /// # Errors
    /// As [`Client::inspect`].
    pub fn inspect(&self, job_id: u32) -> Result<InspectResponse, ControlError> {
        self.wait(self.client.inspect(job_id))
    }

    /// See [`Client::status`]; ends within ten seconds.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn status(&self) -> Result<StatusResponse, ControlError> {
        self.wait(self.client.status())
    }

    /// See [`Client::leave`]; ends within ten seconds.
    ///
    /// # Errors
    /// As [`Client::leave`].
    pub fn leave(&self, admission: &Admission) -> Result<(), ControlError> {
        self.wait(self.client.leave(admission))
    }

    /// See [`Client::serve`]. The orders come through the channel, which closes with the stream.
    ///
    /// # Errors
    /// As [`Client::serve`].
    pub fn serve(&self, offer: &ServerOffer) -> Result<(Serving, Receiver<Order>), ControlError> {
        let (sender, orders) = unbounded();
        let serving = self.wait(self.client.serve(offer, move |order| drop(sender.send(order))))?;
        Ok((serving, orders))
    }

    /// See [`Client::install_relay`]; ends within two seconds.
    ///
    /// # Errors
    /// As [`Client::install_relay`].
    pub fn install_relay(&self, install: RelayInstall) -> Result<(), ControlError> {
        self.wait(self.client.install_relay(install))
    }

    /// See [`Client::remove_relay`]; ends within two seconds.
    ///
    /// # Errors
    /// As [`Client::remove_relay`].
    pub fn remove_relay(&self, job_id: u32) -> Result<(), ControlError> {
        self.wait(self.client.remove_relay(job_id))
    }

    /// See [`Client::renew_relays`]; ends within two seconds.
    ///
    /// # Errors
    /// As [`Client::renew_relays`].
    pub fn renew_relays(&self, job_ids: Vec<u32>) -> Result<Vec<u32>, ControlError> {
        self.wait(self.client.renew_relays(job_ids))
    }

    /// See [`Client::inspect_relay`]; ends within a second.
    ///
    /// # Errors
    /// As [`Client::inspect_relay`].
    pub fn inspect_relay(&self, job_id: u32) -> Result<RelayInspection, ControlError> {
        self.wait(self.client.inspect_relay(job_id))
    }

    /// See [`Client::drain`]; ends within ten seconds.
    ///
    /// # Errors
    /// As [`Client::drain`].
    pub fn drain(&self, deadline: Duration) -> Result<u32, ControlError> {
        self.wait(self.client.drain(deadline))
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, ControlError>>) -> Result<T, ControlError> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(call),
            None => Err(ControlError::new(ErrorCode::Internal, "the client is closed", "")),
        }
    }
}

impl Drop for ControlClient {
    /// Does not wait: the connection's tasks may be in the middle of anything.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn no_thread(error: &std::io::Error) -> ControlError {
    ControlError::new(
        ErrorCode::Internal,
        format!("cannot start the control thread: {error}"),
        "Check the limits on threads and open files (ulimit -u, ulimit -n)",
    )
}
