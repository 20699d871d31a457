//! How a switch is set up: one plain struct, which a TOML file fills.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanin_control::registry::Limits;
use fanin_control::topology::{Topology, TopologyError};
use fanin_protocol::atp::SwitchConfig;
use fanin_wire::generated::DATA_PORT_BASE_DEFAULT;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::dataplane::{ATP_SLOT_COUNT_DEFAULT, DataplaneConfig, ECN_THRESHOLD_DEFAULT, XdpConfig};
use crate::dataplane_api::DataPath;

pub use fanin_wire::generated::{CONTROL_PORT_DEFAULT as CONTROL_PORT, HTTP_PORT_DEFAULT as HTTP_PORT};

/// Settings of one daemon.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// gRPC.
    pub control_address: SocketAddr,
    /// Dashboard, `/metrics`, `/api/status`, `/healthz`; `None` (in a file: `""`): no HTTP. It has no login, so by
    /// default only this host can reach it.
    #[serde(deserialize_with = "address_or_empty")]
    pub http_address: Option<SocketAddr>,
    /// Told to workers as the address of the data ports; `None`: the one the data plane is bound to, or, where that is
    /// "any", the one at which the worker reached the controller.
    pub data_address_advertised: Option<IpAddr>,
    /// Tokens and quotas, see [`fanin_control::tenants::TenantTable::parse`]; `None`: anybody may join.
    pub tenants_file: Option<PathBuf>,
    /// PEM certificate chain; with `tls_key_file` it turns TLS on.
    pub tls_certificate_file: Option<PathBuf>,
    /// PEM private key.
    pub tls_key_file: Option<PathBuf>,
    /// TOML file of all switches, see [`fanin_control::topology`]; `None`: this switch is the only one.
    pub topology_file: Option<PathBuf>,
    /// This switch's name in it.
    pub name: Option<String>,
    /// Token with which the root of a topology speaks to the other switches, where these use tokens: an operator's.
    pub relay_token_file: Option<PathBuf>,
    /// How long running jobs may take to finish after SIGTERM.
    pub drain_limit_ms: u64,
    /// What the switch allows.
    pub limits: LimitsConfig,
    /// Sockets and threads of the data plane.
    pub data: DataConfig,
}

/// [`Limits`] as they appear in a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Slot memory of all jobs together, in bytes.
    pub slot_memory_bytes: u64,
    /// At most 256.
    pub job_count_max: u32,
    /// At most 256.
    pub world_size_max: u16,
    /// Lanes of one job.
    pub lane_count_max: u16,
    /// Elements of one packet.
    pub element_count_max: u16,
    /// For workers that let the switch choose; a power of two.
    pub slots_per_lane_default: u32,
    /// Silence after which a worker is taken for lost.
    pub lease_ms: u64,
    /// How long a broken job can be asked about.
    pub broken_kept_ms: u64,
    /// Longest wait for the other ranks.
    pub wait_ms_max: u64,
}

/// The data plane's part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Address to bind.
    pub address: IpAddr,
    /// UDP port of the first thread; 0 takes any free ports.
    pub port_base: u16,
    /// Threads, each with its own port.
    pub thread_count: u16,
    /// Who receives datagrams: `sockets`, or `xdp` for what the XDP program can serve.
    pub path: DataPath,
    /// Interfaces for the XDP program, of a bridge its ports; empty: those with the address.
    pub interfaces: Vec<String>,
    /// Serve by sockets alone where XDP is not to be had; false: do not start then.
    pub fallback: bool,
    /// Whether datagrams carry a checksum also where all ranks can do without.
    pub checksum: bool,
    /// Slots of each thread that ATP jobs share, beside the slot memory of `limits`; 0: no ATP jobs. The same at all switches
    /// of a topology.
    pub atp_slot_count: u16,
    /// A longer queue behind a thread's port is congestion, which ATP's workers are told, in the kernel's reckoning of bytes.
    pub ecn_threshold_bytes: u32,
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// As given.
        path: String,
        /// From the system.
        source: std::io::Error,
    },
    /// Not TOML, or not the expected keys.
    #[error("the configuration is not valid: {0}")]
    Syntax(#[from] toml::de::Error),
    /// The topology cannot be used.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A value is out of bounds.
    #[error("the configuration is not valid: {what}")]
    Value {
        /// Key, value and bounds, in words.
        what: String,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            control_address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), CONTROL_PORT),
            http_address: Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), HTTP_PORT)),
            data_address_advertised: None,
            tenants_file: None,
            tls_certificate_file: None,
            tls_key_file: None,
            topology_file: None,
            name: None,
            relay_token_file: None,
            drain_limit_ms: 30_000,
            limits: LimitsConfig::default(),
            data: DataConfig::default(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self::from(&Limits::default())
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::UNSPECIFIED.into(),
            port_base: DATA_PORT_BASE_DEFAULT,
            thread_count: 1,
            path: DataPath::Sockets,
            interfaces: Vec::new(),
            fallback: true,
            checksum: true,
            atp_slot_count: ATP_SLOT_COUNT_DEFAULT,
            ecn_threshold_bytes: ECN_THRESHOLD_DEFAULT,
        }
    }
}

impl Config {
    /// A switch on free ports of one address of this host: what a worker without a switch address starts, and tests.
    pub fn local(address: IpAddr) -> Self {
        let any_port = SocketAddr::new(address, 0);
        Self {
            control_address: any_port,
            http_address: Some(any_port),
            data: DataConfig { address, port_base: 0, ..DataConfig::default() },
            ..Self::default()
        }
    }

    /// Reads a TOML file; what it leaves out keeps its default.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.display().to_string(), source })?;
        Self::parse(&text)
    }

    /// Reads TOML text, see [`Config::read`].
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what a type cannot.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming key, value and bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        check(limits.job_count_max >= 1 && limits.job_count_max <= 256, || {
            format!("limits.job_count_max is {}; use 1 to 256", limits.job_count_max)
        })?;
        check(limits.world_size_max >= 1 && limits.world_size_max <= 256, || {
            format!("limits.world_size_max is {}; use 1 to 256", limits.world_size_max)
        })?;
        check(limits.slots_per_lane_default.is_power_of_two(), || {
            format!("limits.slots_per_lane_default is {}; use a power of two", limits.slots_per_lane_default)
        })?;
        check(self.data.interfaces.is_empty() || self.data.path == DataPath::Xdp, || {
            "data.interfaces are for data.path = \"xdp\": give both or neither".into()
        })?;
        check(limits.lease_ms >= 100, || format!("limits.lease_ms is {}; use 100 or more", limits.lease_ms))?;
        check(self.topology_file.is_some() == self.name.is_some(), || {
            "topology_file and name go together: name says which of the file's switches this is".into()
        })?;
        check(self.tls_certificate_file.is_some() == self.tls_key_file.is_some(), || {
            "tls_certificate_file and tls_key_file go together: give both or none".into()
        })
    }

    /// With the addresses of this switch's entry in the topology, if there is one.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn placed(mut self) -> Result<Self, ConfigError> {
        let (Some(file), Some(name)) = (&self.topology_file, &self.name) else { return Ok(self) };
        let topology = Topology::read(file)?;
        let Some(place) = topology.find(name) else {
            let names: Vec<&str> = topology.switches().iter().map(|switch| switch.name.as_str()).collect();
            let what = format!("no switch of the topology is named `{name}`; it has: {}", names.join(", "));
            return Err(ConfigError::Value { what });
        };
        let entry = &topology.switches()[place];
        self.control_address = entry.control;
        self.data.address = entry.data[0].ip();
        self.data.port_base = entry.data[0].port();
        self.data.thread_count = entry.data.len() as u16;
        Ok(self)
    }

    /// How long running jobs may take to finish after SIGTERM.
    pub fn drain_limit(&self) -> Duration {
        Duration::from_millis(self.drain_limit_ms)
    }

    /// What [`crate::dataplane::UdpDataplane::start`] needs.
    pub fn dataplane(&self) -> DataplaneConfig {
        DataplaneConfig {
            address: self.data.address,
            port_base: self.data.port_base,
            thread_count: self.data.thread_count,
            atp: SwitchConfig {
                slot_count: self.data.atp_slot_count,
                ecn_threshold_bytes: self.data.ecn_threshold_bytes,
                ..DataplaneConfig::default().atp
            },
            ..DataplaneConfig::default()
        }
    }

    /// What [`crate::dataplane::XdpDataplane::start`] needs beside that.
    pub fn xdp(&self) -> XdpConfig {
        XdpConfig { interfaces: self.data.interfaces.clone(), slot_memory_bytes: self.limits.slot_memory_bytes }
    }

    /// What the registry is told.
    pub(crate) fn registry_limits(&self, element_count_max: u16) -> Limits {
        Limits {
            element_count_max: self.limits.element_count_max.min(element_count_max),
            has_checksum: self.data.checksum,
            atp_slot_count: self.data.atp_slot_count,
            ..Limits::from(&self.limits)
        }
    }
}

/// TOML has no null, so an empty text switches the server off.
fn address_or_empty<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(value)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| D::Error::custom(format!("`{text}` is not an address like 127.0.0.1:50080")))
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::Value { what: what() }) }
}

impl From<&Limits> for LimitsConfig {
    fn from(limits: &Limits) -> Self {
        Self {
            slot_memory_bytes: limits.slot_memory_bytes,
            job_count_max: limits.job_count_max,
            world_size_max: limits.world_size_max,
            lane_count_max: limits.lane_count_max,
            element_count_max: limits.element_count_max,
            slots_per_lane_default: limits.slots_per_lane_default,
            lease_ms: limits.lease_ms,
            broken_kept_ms: limits.broken_kept_ms,
            wait_ms_max: limits.wait_ms_max,
        }
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        Self {
            slot_memory_bytes: config.slot_memory_bytes,
            job_count_max: config.job_count_max,
            world_size_max: config.world_size_max,
            lane_count_max: config.lane_count_max,
            element_count_max: config.element_count_max,
            slots_per_lane_default: config.slots_per_lane_default,
            lease_ms: config.lease_ms,
            broken_kept_ms: config.broken_kept_ms,
            wait_ms_max: config.wait_ms_max,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let config =
            Config::parse("drain_limit_ms = 5\n[limits]\njob_count_max = 3\n[data]\nthread_count = 4").unwrap();
        assert_eq!((config.drain_limit_ms, config.limits.job_count_max, config.data.thread_count), (5, 3, 4));
        assert_eq!(config.limits.lease_ms, Limits::default().lease_ms);
        let xdp = Config::parse("[data]\npath = 'xdp'\ninterfaces = ['eth1']\nchecksum = false").unwrap();
        assert_eq!((xdp.data.path, xdp.data.interfaces.len(), xdp.data.fallback), (DataPath::Xdp, 1, true));
        assert!(!xdp.registry_limits(352).has_checksum);
        assert_eq!(xdp.registry_limits(352).element_count_max, 352);
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse("http_address = ''").unwrap().http_address, None);
        let moved = Config::parse("http_address = '0.0.0.0:8080'").unwrap();
        assert_eq!(moved.http_address, Some("0.0.0.0:8080".parse().unwrap()));
    }

    #[test]
    fn values_out_of_bounds_and_typos_are_named() {
        for (text, part) in [
            ("[limits]\njob_count_max = 300", "job_count_max is 300; use 1 to 256"),
            ("[limits]\nslots_per_lane_default = 100", "use a power of two"),
            ("tls_key_file = 'k'", "give both or none"),
            ("http_address = '8080'", "is not an address like"),
            ("[data]\ninterfaces = ['eth1']", "give both or neither"),
            ("[data]\npath = 'ebpf'", "expected `sockets` or `xdp`"),
            ("drian_limit_ms = 5", "drian_limit_ms"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "`{part}` in `{error}`");
        }
    }
}
