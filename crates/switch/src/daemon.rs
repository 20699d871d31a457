//! Start, drain and stop of one switch.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fanin_control::proto::controller_server::ControllerServer;
use fanin_control::registry::Limits;
use fanin_control::tenants::{TenantFileError, TenantTable};
use fanin_control::topology::{Topology, TopologyError};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use crate::config::{Config, ConfigError};
use crate::controller::{Core, Service, Settings};
use crate::dataplane::{DataplaneConfig, UdpDataplane, XdpDataplane};
use crate::dataplane_api::{DataPath, Dataplane, SwitchPath};
use crate::http;

/// A client that has vanished without a word is noticed after interval + timeout, if its lease is not over before.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// For last notices to leave, and for the data plane to give the slots back.
const STOP_LIMIT: Duration = Duration::from_secs(2);
const IDLE_POLL: Duration = Duration::from_millis(20);

/// The daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// See [`ConfigError`].
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// See [`TenantFileError`].
    #[error(transparent)]
    Tenants(#[from] TenantFileError),
    /// A port is taken or may not be used.
    #[error("cannot listen on {address} ({purpose}): {source}; stop what uses it or choose another port")]
    Listen {
        /// From the configuration.
        address: SocketAddr,
        /// Which of our servers.
        purpose: &'static str,
        /// From the system.
        source: std::io::Error,
    },
    /// The data plane's sockets or threads cannot be set up.
    #[error("cannot start the data plane: {0}")]
    Dataplane(#[from] fanin_net::NetError),
    /// The XDP program is not to be had, and nothing else was wanted.
    #[error("cannot serve by XDP: {reason}; without --no-fallback the switch would serve by sockets")]
    Xdp {
        /// What the kernel said, and what to do.
        reason: String,
    },
    /// See [`TopologyError`].
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A certificate, key or token cannot be read.
    #[error("cannot read {path}: {source}")]
    Pem {
        /// From the configuration.
        path: PathBuf,
        /// From the system.
        source: std::io::Error,
    },
    /// Certificate and key are readable but not usable.
    #[error("the TLS certificate or key cannot be used: {0}; both must be PEM and belong together")]
    Tls(#[from] tonic::transport::Error),
    /// Threads or signal handlers cannot be set up.
    #[error("cannot start the switch's threads: {0}; check the limits on threads and open files")]
    Threads(#[from] std::io::Error),
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// All jobs have finished.
    Idle,
    /// The time was over, or a second signal came; jobs still run.
    CutShort,
}

/// Starts switches.
pub struct Daemon;

/// A running switch. Dropping it stops it without a drain. Its methods block, so they must not be called on a thread of
/// an async runtime.
pub struct Handle {
    core: Arc<Core>,
    dataplane: Arc<dyn Dataplane>,
    /// `None` once stopped.
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    servers: Vec<JoinHandle<()>>,
    control_address: SocketAddr,
    http_address: Option<SocketAddr>,
    drain_limit: Duration,
}

impl Daemon {
    /// Starts the data plane of the configuration and serves it, see [`Daemon::start`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_own(config: &Config) -> Result<Handle, StartError> {
        config.check()?;
        let dataplane = start_dataplane(config, &config.dataplane())?;
        let started = Self::start(config, dataplane.clone());
        if started.is_err() {
            dataplane.stop();
        }
        started
    }

    /// Opens the ports and serves. Workers can join when this returns.
    ///
    /// # Errors
    /// [`StartError`]; the data plane is then not stopped.
    pub fn start(config: &Config, dataplane: Arc<dyn Dataplane>) -> Result<Handle, StartError> {
        config.check()?;
        let control = listen(config.control_address, "control")?;
        let web = config.http_address.map(|address| listen(address, "dashboard")).transpose()?;
        let (control_address, http_address) = (control.local_addr()?, local_address(web.as_ref())?);
        let grpc = grpc_server(config)?;
        let core = Core::new(settings(config, dataplane.as_ref())?, dataplane.clone())?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("fanin-switch").enable_all().build()?;
        let stop = watch::Sender::new(false);
        let entered = runtime.enter();
        let mut servers = vec![serve_grpc(grpc, control, core.clone(), stop.subscribe())?];
        if let Some(web) = web {
            servers.push(serve_http(web, core.clone(), stop.subscribe())?);
        }
        tokio::spawn(core.clone().keep_time());
        tokio::spawn(core.clone().end_relayed_with_their_root());
        drop(entered);
        tracing::info!(%control_address, ?http_address, data_ports = ?dataplane.ports(), "switch started");
        let (runtime, drain_limit) = (Some(runtime), config.drain_limit());
        Ok(Handle { core, dataplane, runtime, stop, servers, control_address, http_address, drain_limit })
    }
}

/// The data plane of a configuration, with `sockets` for what the configuration does not say.
///
/// # Errors
/// [`StartError::Dataplane`], and [`StartError::Xdp`] if XDP is wanted and no fallback.
pub fn start_dataplane(config: &Config, sockets: &DataplaneConfig) -> Result<Arc<dyn Dataplane>, StartError> {
    if config.data.path == DataPath::Sockets {
        return Ok(Arc::new(UdpDataplane::start(sockets)?));
    }
    let dataplane = XdpDataplane::start(sockets, &config.xdp())?;
    if let Some(reason) = dataplane.fallback_reason() {
        if !config.data.fallback {
            return Err(StartError::Xdp { reason: reason.into() });
        }
        tracing::warn!(reason, "no XDP: the switch serves by sockets");
    }
    Ok(Arc::new(dataplane))
}

impl Handle {
    /// Where gRPC is served.
    pub fn control_address(&self) -> SocketAddr {
        self.control_address
    }

    /// Where HTTP is served, if it is.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Who receives datagrams.
    pub fn data_path(&self) -> SwitchPath {
        self.dataplane.path()
    }

    /// The data plane's UDP addresses, in thread order.
    pub fn data_ports(&self) -> Vec<SocketAddr> {
        self.dataplane.ports()
    }

    /// Admits no more jobs and waits until the running ones have finished, at most `limit`. The switch still serves;
    /// call [`Handle::stop`] next.
    pub fn drain(&self, limit: Duration) -> DrainOutcome {
        self.core.drain(limit);
        match &self.runtime {
            Some(runtime) => runtime.block_on(wait_idle(&self.core, limit)),
            None => DrainOutcome::Idle,
        }
    }

    /// Serves until SIGTERM, SIGINT or a `Drain` call, then drains (a second signal cuts that short) and stops.
    ///
    /// # Errors
    /// [`StartError::Threads`] when the signals cannot be caught.
    pub fn run_until_stopped(mut self) -> Result<DrainOutcome, StartError> {
        let Some(runtime) = &self.runtime else { return Ok(DrainOutcome::Idle) };
        let outcome = runtime.block_on(serve_until_drained(&self.core, self.drain_limit))?;
        tracing::info!(?outcome, "switch stops");
        self.shut_down();
        Ok(outcome)
    }

    /// Ends all jobs, tells their workers, and closes all ports. Ends within two seconds for each of the three.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.core.shut_down();
        self.core.settle(STOP_LIMIT);
        self.stop.send_replace(true);
        let servers = std::mem::take(&mut self.servers);
        runtime.block_on(async {
            for server in servers {
                let _ = timeout(STOP_LIMIT, server).await;
            }
        });
        runtime.shutdown_background();
        self.dataplane.stop();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn settings(config: &Config, dataplane: &dyn Dataplane) -> Result<Settings, StartError> {
    let tenants = config.tenants_file.as_deref().map(TenantTable::read).transpose()?;
    let topology = config.topology_file.as_deref().map(Topology::read).transpose()?.unwrap_or_default();
    let is_root = config.name.as_deref().is_none_or(|name| topology.find(name) == Some(0));
    let root = (!is_root).then(|| topology.switches()[0].control);
    let relay_token = config.relay_token_file.as_deref().map(read_secret).transpose()?;
    Ok(Settings {
        limits: Limits { topology, ..config.registry_limits(dataplane.element_count_max()) },
        tenants: tenants.unwrap_or_else(TenantTable::open),
        data_address: data_address(config, dataplane),
        drain_limit: config.drain_limit(),
        root,
        relay_token: relay_token.map(|token| token.trim().to_string()),
    })
}

/// Empty: workers use the address at which they reached the controller, which is right for a switch bound to "any".
fn data_address(config: &Config, dataplane: &dyn Dataplane) -> String {
    let bound = dataplane.ports().first().map(SocketAddr::ip).filter(|address| !address.is_unspecified());
    let address = config.data_address_advertised.or(bound);
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn listen(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).map_err(|source| StartError::Listen { address, purpose, source })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn local_address(listener: Option<&TcpListener>) -> std::io::Result<Option<SocketAddr>> {
    listener.map(TcpListener::local_addr).transpose()
}

fn grpc_server(config: &Config) -> Result<Server, StartError> {
    let server = Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT));
    match (&config.tls_certificate_file, &config.tls_key_file) {
        (Some(certificate), Some(key)) => {
            let identity = Identity::from_pem(read_secret(certificate)?, read_secret(key)?);
            Ok(server.tls_config(ServerTlsConfig::new().identity(identity))?)
        }
        _ => Ok(server),
    }
}

fn read_secret(path: &Path) -> Result<String, StartError> {
    std::fs::read_to_string(path).map_err(|source| StartError::Pem { path: path.to_path_buf(), source })
}

fn serve_grpc(
    mut server: Server,
    listener: TcpListener,
    core: Arc<Core>,
    stop: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, StartError> {
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
    let router = server.add_service(ControllerServer::new(Service(core)));
    let serving = router.serve_with_incoming_shutdown(incoming, stopped(stop));
    Ok(tokio::spawn(async move { report_end("control", serving.await) }))
}

fn serve_http(
    listener: TcpListener,
    core: Arc<Core>,
    stop: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, StartError> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let serving = axum::serve(listener, http::router(core)).with_graceful_shutdown(stopped(stop));
    Ok(tokio::spawn(async move { report_end("dashboard", serving.await) }))
}

fn report_end<E: std::fmt::Display>(purpose: &str, outcome: Result<(), E>) {
    if let Err(error) = outcome {
        tracing::error!(%error, purpose, "server ended");
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the handle is gone, which is a stop as well.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

async fn wait_idle(core: &Core, limit: Duration) -> DrainOutcome {
    let deadline = Instant::now() + limit;
    while !core.is_idle() {
        if Instant::now() >= deadline {
            return DrainOutcome::CutShort;
        }
        sleep(IDLE_POLL).await;
    }
    DrainOutcome::Idle
}

async fn serve_until_drained(core: &Core, drain_limit: Duration) -> Result<DrainOutcome, StartError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let limit = tokio::select! {
        _ = terminate.recv() => drain_limit,
        _ = interrupt.recv() => drain_limit,
        asked = drain_asked(core) => asked,
    };
    core.drain(limit);
    tokio::select! {
        outcome = wait_idle(core, limit) => Ok(outcome),
        _ = terminate.recv() => Ok(DrainOutcome::CutShort),
        _ = interrupt.recv() => Ok(DrainOutcome::CutShort),
    }
}

/// Ends when a `Drain` call has come.
fn drain_asked(core: &Core) -> impl Future<Output = Duration> + use<> {
    let mut asked = core.drain_asked();
    async move {
        match asked.wait_for(Option::is_some).await {
            Ok(limit) => limit.unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}
