//! Reaching a controller, with an error that tells a wrong address from a wrong port, a wrong certificate and a
//! missing token.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use super::{Client, plain, timed};
use crate::proto::StatusRequest;
use crate::proto::controller_client::ControllerClient;
use crate::{ControlError, ErrorCode, PROTOCOL_VERSION};

/// A host that vanishes without closing its connections is noticed after interval + timeout.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whom to trust when the switch uses TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsTrust {
    /// PEM of the authority that signed the switch's certificate.
    pub ca_pem: String,
    /// Name in the certificate; `None`: the host of the address.
    pub server_name: Option<String>,
}

/// Where the controller is and how to talk to it.
#[derive(Clone)]
pub struct ClientConfig {
    /// `host:port`.
    pub address: String,
    /// Sent as `authorization: Bearer`.
    pub token: Option<String>,
    /// `None`: no TLS.
    pub tls: Option<TlsTrust>,
    /// Bounds the whole of [`Client::connect`].
    pub connect_timeout: Duration,
}

impl ClientConfig {
    /// Without token and TLS; five seconds to connect.
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), token: None, tls: None, connect_timeout: Duration::from_secs(5) }
    }
}

/// Adds the token to every call.
#[derive(Clone)]
pub struct BearerToken(Option<MetadataValue<Ascii>>);

impl Interceptor for BearerToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

pub(super) async fn connect(config: &ClientConfig) -> Result<Client, ControlError> {
    let deadline = Instant::now() + config.connect_timeout;
    let controller = reach(config, deadline).await?;
    let endpoint = endpoint(config, controller)?;
    let channel = timeout_at(deadline, endpoint.connect()).await;
    let channel = channel.map_err(|_| silent(config))?.map_err(|error| handshake_failed(config, &error))?;
    let client = Client { stub: ControllerClient::with_interceptor(channel, bearer_token(config)?), controller };
    timeout_at(deadline, check_service(&client, config)).await.map_err(|_| silent(config))??;
    Ok(client)
}

/// A bare TCP connection first: its errors are precise, those of the layers above are not.
async fn reach(config: &ClientConfig, deadline: Instant) -> Result<SocketAddr, ControlError> {
    let lookup = timeout_at(deadline, lookup_host(config.address.as_str())).await;
    let found = lookup.map_err(|_| unresolved(config, "the name server does not answer"))?;
    let candidates: Vec<SocketAddr> = found.map_err(|error| unresolved(config, &error.to_string()))?.collect();
    let mut failure = unresolved(config, "the name has no address");
    for candidate in candidates {
        match timeout_at(deadline, TcpStream::connect(candidate)).await {
            Ok(Ok(_)) => return Ok(candidate),
            Ok(Err(error)) => failure = refused(config, candidate, &error),
            Err(_) => failure = silent(config),
        }
    }
    Err(failure)
}

fn endpoint(config: &ClientConfig, controller: SocketAddr) -> Result<Endpoint, ControlError> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{controller}")).map_err(|error| bad_setting(&error))?;
    let endpoint = endpoint
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    match &config.tls {
        None => Ok(endpoint),
        Some(trust) => endpoint.tls_config(tls_config(trust, &config.address)).map_err(|error| bad_setting(&error)),
    }
}

fn tls_config(trust: &TlsTrust, address: &str) -> ClientTlsConfig {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&trust.ca_pem))
        .domain_name(trust.server_name.as_deref().unwrap_or(host))
}

fn bearer_token(config: &ClientConfig) -> Result<BearerToken, ControlError> {
    let Some(token) = &config.token else {
        return Ok(BearerToken(None));
    };
    let value = format!("Bearer {token}").parse::<MetadataValue<Ascii>>();
    value.map(|value| BearerToken(Some(value))).map_err(|_| {
        ControlError::new(
            ErrorCode::Unauthenticated,
            "the token has characters that cannot be sent",
            "Check the token for line ends and non-ASCII characters",
        )
    })
}

/// One call proves that the other side is a controller, speaks our version and takes the token.
async fn check_service(client: &Client, config: &ClientConfig) -> Result<(), ControlError> {
    let request = timed(StatusRequest {}, config.connect_timeout);
    let answer = client.stub.clone().status(request).await;
    let status = match answer {
        Err(status) if timed_out(&status) => return Err(silent(config)),
        Err(status) if status.details().is_empty() => return Err(not_a_controller(config, &status)),
        answer => plain(answer)?,
    };
    if status.protocol_version == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::VersionMismatch,
        format!(
            "the switch {} ({}) speaks control protocol {}, this worker speaks {PROTOCOL_VERSION}",
            config.address, status.switch_version, status.protocol_version
        ),
        "Install the same release of fanin on workers and switch",
    ))
}

/// Our own time-out, not an answer: those carry details.
fn timed_out(status: &Status) -> bool {
    status.details().is_empty() && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded)
}

fn unresolved(config: &ClientConfig, why: &str) -> ControlError {
    ControlError::new(
        ErrorCode::Unreachable,
        format!("the switch address `{}` cannot be used: {why}", config.address),
        "Give it as host:port, and check the spelling of the host",
    )
}

fn refused(config: &ClientConfig, candidate: SocketAddr, error: &std::io::Error) -> ControlError {
    let (message, hint) = if error.kind() == std::io::ErrorKind::ConnectionRefused {
        (
            format!("nobody listens at {} ({candidate})", config.address),
            "Start `fanin switch` there, or correct the address: it is the control port, not a data port",
        )
    } else {
        (
            format!("the switch at {} ({candidate}) cannot be reached: {error}", config.address),
            "Check the address and the route to it",
        )
    };
    ControlError::new(ErrorCode::Unreachable, message, hint)
}

fn silent(config: &ClientConfig) -> ControlError {
    ControlError::new(
        ErrorCode::Unreachable,
        format!("no answer from {} within {:?}", config.address, config.connect_timeout),
        "Check the address, and that no firewall drops the packets; if the switch uses TLS, give its CA certificate",
    )
}

fn not_a_controller(config: &ClientConfig, status: &Status) -> ControlError {
    let tls_hint = match config.tls {
        None => "; if the switch uses TLS, give its CA certificate",
        Some(_) => "",
    };
    ControlError::new(
        ErrorCode::NotAController,
        format!("something answers at {}, but not as a fanin controller ({})", config.address, status.message()),
        format!("Check the port: the control port is not the port of the dashboard{tls_hint}"),
    )
}

fn handshake_failed(config: &ClientConfig, error: &tonic::transport::Error) -> ControlError {
    let why = root_cause(error);
    if config.tls.is_none() {
        return not_a_controller(config, &Status::unavailable(why));
    }
    ControlError::new(
        ErrorCode::Tls,
        format!("no secure connection to {}: {why}", config.address),
        "Check that the switch uses TLS, that the CA certificate is the one that signed the switch's, and that its \
         name is in it",
    )
}

fn bad_setting(error: &tonic::transport::Error) -> ControlError {
    ControlError::new(
        ErrorCode::Tls,
        format!("the connection settings cannot be used: {}", root_cause(error)),
        "Check that the CA certificate is PEM",
    )
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
