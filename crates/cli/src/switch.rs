//! `fanin switch`: run the software switch until told to stop.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use fanin_net::Loss;
use fanin_switch::dataplane::{DataplaneConfig, SPIN_DEFAULT};
use fanin_switch::dataplane_api::DataPath;
use fanin_switch::{Config, Daemon, DrainOutcome, Handle, start_dataplane};

use crate::bench::process::end_with_parent;
use crate::bench::units::parse_loss;

/// Who receives datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Datapath {
    /// The daemon's threads.
    Sockets,
    /// The XDP program; the threads what it cannot serve.
    Xdp,
}

/// Whether to do without something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// With it.
    On,
    /// Without it.
    Off,
}

/// Flags of `fanin switch`; what is not given comes from `--config`, or is the default.
#[derive(Args, Debug, Default)]
pub struct Arguments {
    /// TOML file with any of the settings; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the controller and the data plane. Default: all of this host's.
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// TCP port of the controller; 0 takes a free one. Default: 50099.
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// First UDP port of the data plane, one per thread; 0 takes free ones. Default: 48864 (0xBEE0).
    #[arg(long, value_name = "PORT")]
    data_port: Option<u16>,
    /// TCP port of dashboard and /metrics; 0 takes a free one. Default: 50080 on loopback only.
    #[arg(long, value_name = "PORT")]
    http_port: Option<u16>,
    /// Address of dashboard and /metrics. They have no login.
    #[arg(long, value_name = "IP")]
    http_bind: Option<IpAddr>,
    /// Address that workers are told to send data to, where it differs from --bind.
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
    /// Data-plane threads. One moves tens of Gbit/s.
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Who receives datagrams: the daemon's sockets, or the XDP program in the kernel for what it can serve (root, clang at
    /// build time; see docs/guides/xdp-switch.md). Default: sockets.
    #[arg(long, value_enum, value_name = "PATH")]
    datapath: Option<Datapath>,
    /// Interfaces for the XDP program; of a bridge its ports. Default: those with the data plane's address.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    interface: Vec<String>,
    /// Do not start where XDP is not to be had, instead of serving by sockets.
    #[arg(long)]
    no_fallback: bool,
    /// Whether datagrams carry a CRC-32C; off only for ranks of this release or later. Default: on.
    #[arg(long, value_enum, value_name = "SWITCH")]
    checksum: Option<OnOff>,
    /// Slot memory of all jobs that have slots of their own.
    #[arg(long, value_name = "BYTES")]
    slot_memory: Option<u64>,
    /// Slots of each thread that ATP jobs share; 0: no ATP jobs. Default: 4096.
    #[arg(long, value_name = "N")]
    atp_slots: Option<u16>,
    /// Length of the queue behind a thread's port from which on ATP's packets are marked. Default: 1 MiB.
    #[arg(long, value_name = "BYTES")]
    ecn_threshold: Option<u32>,
    /// TOML file of all switches, see docs/guides/racks.md; tells this one's addresses.
    #[arg(long, value_name = "FILE", requires = "name", conflicts_with_all = ["bind", "control_port", "data_port", "threads"])]
    topology: Option<PathBuf>,
    /// This switch's name in the topology.
    #[arg(long, value_name = "NAME", requires = "topology")]
    name: Option<String>,
    /// Silence after which a worker is taken for lost.
    #[arg(long, value_name = "MS")]
    lease_ms: Option<u64>,
    /// TOML file of tokens, tenants and quotas; without it anybody may join.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// PEM certificate chain; turns TLS on.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long running jobs may take to finish after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "MS")]
    drain_ms: Option<u64>,
    /// How long a data-plane thread polls before it sleeps; between two looks it gives its core to others.
    #[arg(long, value_name = "US", default_value_t = SPIN_DEFAULT.as_micros() as u64)]
    spin_us: u64,
    /// Lose each datagram with this chance, both ways (for tests).
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_loss)]
    loss: f64,
    /// Seed of the losses.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    loss_seed: u64,
    /// Print the addresses as one line of JSON.
    #[arg(long)]
    json: bool,
    /// For programs that start a switch for themselves.
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

/// Runs until SIGTERM, SIGINT or `fanin drain`, then drains.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    if arguments.end_with_parent {
        end_with_parent();
    }
    let config = configuration(arguments)?;
    let dataplane = start_dataplane(
        &config,
        &DataplaneConfig {
            spin: Duration::from_micros(arguments.spin_us),
            loss: (arguments.loss > 0.0).then_some(Loss { probability: arguments.loss, seed: arguments.loss_seed }),
            ..config.dataplane()
        },
    )?;
    let handle = Daemon::start(&config, dataplane)?;
    announce(&handle, arguments.json)?;
    match handle.run_until_stopped()? {
        DrainOutcome::Idle => Ok(0),
        DrainOutcome::CutShort => {
            eprintln!("fanin switch: stopped while jobs were running");
            Ok(1)
        }
    }
}

fn configuration(arguments: &Arguments) -> anyhow::Result<Config> {
    let mut config = match &arguments.config {
        None => Config::default(),
        Some(file) => Config::read(file)?,
    };
    if let Some(address) = arguments.bind {
        config.control_address.set_ip(address);
        config.data.address = address;
    }
    if let Some(port) = arguments.control_port {
        config.control_address.set_port(port);
    }
    set(&mut config.data.port_base, arguments.data_port);
    set(&mut config.data.thread_count, arguments.threads);
    set(&mut config.data.path, arguments.datapath.map(DataPath::from));
    if !arguments.interface.is_empty() {
        config.data.interfaces = arguments.interface.clone();
    }
    config.data.fallback &= !arguments.no_fallback;
    set(&mut config.data.checksum, arguments.checksum.map(|checksum| checksum == OnOff::On));
    set(&mut config.limits.slot_memory_bytes, arguments.slot_memory);
    set(&mut config.data.atp_slot_count, arguments.atp_slots);
    set(&mut config.data.ecn_threshold_bytes, arguments.ecn_threshold);
    config.topology_file = arguments.topology.clone().or(config.topology_file);
    config.name = arguments.name.clone().or(config.name);
    set(&mut config.limits.lease_ms, arguments.lease_ms);
    set(&mut config.drain_limit_ms, arguments.drain_ms);
    config.http_address = config.http_address.map(|address| {
        let ip = arguments.http_bind.unwrap_or(address.ip());
        SocketAddr::new(ip, arguments.http_port.unwrap_or(address.port()))
    });
    config.data_address_advertised = arguments.advertise.or(config.data_address_advertised);
    config.tenants_file = arguments.tokens.clone().or(config.tenants_file);
    config.tls_certificate_file = arguments.tls_cert.clone().or(config.tls_certificate_file);
    config.tls_key_file = arguments.tls_key.clone().or(config.tls_key_file);
    config.check().context("the switch's settings")?;
    let config = config.placed()?;
    ensure!(
        arguments.loss == 0.0 || config.data.path == DataPath::Sockets,
        "--loss loses datagrams of the sockets only: leave it out with --datapath xdp, or lose them at the workers"
    );
    Ok(config)
}

fn set<T: Copy>(place: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *place = value;
    }
}

fn announce(handle: &Handle, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let control = handle.control_address();
    let data = handle.data_ports();
    let http = handle.http_address();
    let path = handle.data_path();
    let name = path_name(path.path);
    if json {
        let line = serde_json::json!({
            "control": control, "data": data, "http": http, "data_path": name, "data_path_reason": path.fallback_reason,
            "interfaces": path.interfaces,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "fanin switch: controller on {control}, data on {}", list(&data))?;
        if path.path == DataPath::Xdp {
            writeln!(out, "XDP in front of {}; what it cannot serve goes to the sockets", path.interfaces.join(", "))?;
        } else if !path.fallback_reason.is_empty() {
            writeln!(out, "no XDP, serving by sockets: {}", path.fallback_reason)?;
        }
        if let Some(http) = http {
            writeln!(out, "dashboard: http://{http}/   metrics: http://{http}/metrics")?;
        }
        writeln!(out, "workers: FANIN_SWITCH=<this host>:{}   stop: Ctrl-C", control.port())?;
    }
    out.flush()?;
    Ok(())
}

fn path_name(path: DataPath) -> &'static str {
    match path {
        DataPath::Sockets => "sockets",
        DataPath::Xdp => "xdp",
    }
}

impl From<Datapath> for DataPath {
    fn from(path: Datapath) -> DataPath {
        match path {
            Datapath::Sockets => DataPath::Sockets,
            Datapath::Xdp => DataPath::Xdp,
        }
    }
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}
