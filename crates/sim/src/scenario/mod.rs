//! A scenario: one TOML file that says everything, and the plan that it comes to.

mod jobs;
mod section;
mod traffic;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::engine::{Memory, Pause, Plan};
use crate::fabric::{self, Fabric, Links};
use crate::job::atp;
use crate::link::LinkConfig;
use crate::packet::PAUSE_BYTES;
use crate::transport::{Congestion, Transport};
pub use jobs::JobInfo;
pub use section::{JobSection, Models, Range, Scheme, TreeChoice};
pub use traffic::Traffic;

const PS_PER_US: f64 = 1e6;
const IP_TCP_HEADER_BYTES: u16 = 40;
/// Preamble, Ethernet header, checksum and the gap between frames.
const ETHERNET_BYTES: u16 = 38;
const ETHERNET_FRAME_BYTES_MIN: u16 = 84;

/// Everything about a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A line that says what it shows.
    #[serde(default)]
    pub title: String,
    /// Decides everything that is drawn by lot.
    #[serde(default = "one")]
    pub seed: u64,
    /// Simulated time, milliseconds.
    pub duration_ms: f64,
    /// How often throughput is noted, in equal parts of the time.
    #[serde(default = "samples")]
    pub samples: u32,
    /// Hosts and switches.
    pub topology: Topology,
    /// Rates, delays and queues.
    #[serde(default)]
    pub links: LinksSection,
    /// What the queues of a switch share.
    pub switches: Option<SwitchesSection>,
    /// What flows do about congestion.
    #[serde(default)]
    pub transport: TransportSection,
    /// What hosts send.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// What ATP jobs have in common.
    #[serde(default)]
    pub atp: atp::Section,
    /// Training jobs.
    #[serde(default, rename = "job")]
    pub jobs: Vec<JobSection>,
}

/// `[topology]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "shape", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Three tiers of switches with k ports: k³/4 hosts.
    FatTree {
        /// Ports of a switch.
        k: u32,
    },
    /// Two tiers.
    LeafSpine {
        /// Switches with hosts.
        leaves: u32,
        /// Switches between them.
        spines: u32,
        /// Hosts at each leaf.
        hosts_per_leaf: u32,
    },
    /// One switch.
    Star {
        /// Hosts.
        hosts: u32,
    },
    /// Two switches and one link between them.
    Dumbbell {
        /// Hosts on one side.
        left: u32,
        /// Hosts on the other.
        right: u32,
    },
}

/// `[links]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinksSection {
    /// Rate of the links of hosts.
    pub gbps: f64,
    /// Rate of the links between switches, if another.
    pub core_gbps: Option<f64>,
    /// Propagation delay of each link.
    pub delay_us: f64,
    /// What a switch port's queue holds.
    pub queue_kib: u64,
    /// From this length on, a switch port's queue marks.
    pub mark_bytes: u64,
}

impl Default for LinksSection {
    fn default() -> Self {
        // 85 packets, as PANAMA §7 has it.
        LinksSection { gbps: 10.0, core_gbps: None, delay_us: 1.0, queue_kib: 1024, mark_bytes: 85 * 1500 }
    }
}

/// `[switches]`: queues share memory; `queue_kib` does not matter then.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchesSection {
    /// Memory of each switch, for all its queues.
    pub buffer_kib: u64,
    /// A queue may have so many times what is free.
    #[serde(default = "share")]
    pub share: f64,
    /// Stop senders before memory is used up, so that nothing is lost.
    #[serde(default)]
    pub pause: bool,
    /// Stop the sender at a port of which so much waits; without, what leaves room for what is under way.
    pub pause_above_kib: Option<u64>,
}

fn share() -> f64 {
    1.0
}

impl SwitchesSection {
    /// For a network of these links, with packets of up to so many bytes.
    fn build(&self, links: &LinksSection, fabric: &Fabric, packet_bytes: u64) -> anyhow::Result<Memory> {
        ensure!(self.share > 0.0 && self.share <= 1024.0, "share = {}: above 0, at most 1024", self.share);
        let bytes = self.buffer_kib * 1024;
        ensure!(bytes >= packet_bytes, "buffer_kib = {}: room for a packet at least", self.buffer_kib);
        if !self.pause {
            ensure!(self.pause_above_kib.is_none(), "pause_above_kib: only with pause = true");
            return Ok(Memory { bytes, share: self.share, pause: None });
        }
        let port_count = fabric.ports()[fabric.host_count as usize..].iter().map(Vec::len).max().unwrap_or(1) as u64;
        let gbps = links.gbps.max(links.core_gbps.unwrap_or(links.gbps));
        // What still comes after a pause was decided: a frame under way on each side, the pause frame, and all that is on the link
        // there and back.
        let on_link = (2.0 * links.delay_us * gbps * 1000.0 / 8.0).ceil() as u64;
        let headroom = on_link + 2 * packet_bytes + u64::from(PAUSE_BYTES);
        let per_port = bytes / port_count;
        let above_max = per_port.saturating_sub(headroom);
        let above_bytes = self.pause_above_kib.map_or(above_max, |kib| kib * 1024);
        ensure!(
            above_bytes >= 2 * packet_bytes && above_bytes <= above_max,
            "a switch of {port_count} ports and {} KiB pauses a port at {} KiB at most, and needs room for two packets: give it \
             more memory",
            self.buffer_kib,
            above_max / 1024
        );
        let pause = Pause { above_bytes, below_bytes: above_bytes / 2 };
        Ok(Memory { bytes, share: self.share, pause: Some(pause) })
    }
}

/// `[transport]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportSection {
    /// `dctcp` or `newreno`.
    pub congestion: CongestionName,
    /// DCTCP's g.
    pub gain: f64,
    /// Largest IP packet.
    pub mtu_bytes: u16,
    /// Count preamble, Ethernet header, checksum and gap (38 bytes a packet), and fill short frames up.
    pub ethernet: bool,
    /// Segments that a new flow may send at once.
    pub initial_window: u32,
    /// Timeout before the first measurement.
    pub timeout_initial_us: f64,
    /// Least timeout.
    pub timeout_min_us: f64,
}

/// Congestion controls by name.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum CongestionName {
    /// Marks, and losses.
    Dctcp,
    /// Losses.
    Newreno,
}

impl Default for TransportSection {
    fn default() -> Self {
        TransportSection {
            congestion: CongestionName::Dctcp,
            gain: 1.0 / 16.0,
            mtu_bytes: 1500,
            ethernet: true,
            initial_window: 10,
            timeout_initial_us: 10_000.0,
            timeout_min_us: 1_000.0,
        }
    }
}

fn samples() -> u32 {
    100
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is missing, unknown or out of bounds, with its place.
    pub fn parse(text: &str) -> anyhow::Result<Scenario> {
        let scenario: Scenario = toml::from_str(text).context("this is no scenario")?;
        scenario.check()?;
        Ok(scenario)
    }

    /// What the engine runs.
    ///
    /// # Errors
    /// For shapes and traffic that cannot be.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        let links = self.links.build().context("[links]")?;
        let fabric = self.topology.build(links).context("[topology]")?;
        let transport = self.transport.build().context("[transport]")?;
        let duration_ps = (self.duration_ms * 1000.0 * PS_PER_US) as u64;
        let access_bps = bits(self.links.gbps);
        let sources = traffic::sources(&self.traffic, self.seed, fabric.host_count, access_bps, duration_ps)?;
        let (ranks, programs, jobs) = Default::default();
        let packet_bytes = u64::from(self.transport.mtu_bytes + ETHERNET_BYTES);
        let memory = self.switches.as_ref().map(|section| section.build(&self.links, &fabric, packet_bytes));
        let memory = memory.transpose().context("[switches]")?;
        let sample_ps = if self.samples == 0 { u64::MAX } else { (duration_ps / u64::from(self.samples)).max(1) };
        let mut plan = Plan { fabric, transport, sources, ranks, programs, memory, jobs, duration_ps, sample_ps };
        let delay_ps = (self.links.delay_us * PS_PER_US) as u64;
        let installer =
            jobs::Installer::new(&self.jobs, self.transport.mtu_bytes, transport, access_bps, delay_ps, self.atp);
        installer.install(self.seed, &mut plan)?;
        Ok(plan)
    }

    /// Finds what is out of bounds; [`Scenario::parse`] has done so.
    ///
    /// # Errors
    /// The first such key, and what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        let positive = |name: &str, value: f64| {
            ensure!(value.is_finite() && value > 0.0, "{name} = {value}: it must be a number above 0");
            Ok(())
        };
        positive("duration_ms", self.duration_ms)?;
        ensure!(self.duration_ms <= 3.6e6, "duration_ms = {}: an hour at most", self.duration_ms);
        ensure!(self.samples <= 10_000, "samples = {}: at most 10,000", self.samples);
        let within = |name: &str, value: f64, low: f64, high: f64| {
            ensure!(value >= low && value <= high, "{name} = {value}: from {low} to {high}");
            Ok(())
        };
        within("links.gbps", self.links.gbps, 0.001, 10_000.0)?;
        within("links.core_gbps", self.links.core_gbps.unwrap_or(self.links.gbps), 0.001, 10_000.0)?;
        within("links.delay_us", self.links.delay_us, 0.01, 1e6)?;
        within("transport.timeout_initial_us", self.transport.timeout_initial_us, 1.0, 1e8)?;
        within("transport.timeout_min_us", self.transport.timeout_min_us, 1.0, 1e8)?;
        self.atp.check().context("[atp]")?;
        ensure!(
            !self.traffic.is_empty() || !self.jobs.is_empty(),
            "nothing is sent: add a [[traffic]] or a [[job]] section"
        );
        Ok(())
    }
}

fn bits(gbps: f64) -> u64 {
    (gbps * 1e9) as u64
}

impl LinksSection {
    fn build(&self) -> anyhow::Result<Links> {
        let delay_ps = (self.delay_us * PS_PER_US) as u64;
        ensure!(self.queue_kib > 0, "queue_kib = 0: a queue must hold at least a packet");
        let port = |gbps| LinkConfig {
            rate_bps: bits(gbps),
            delay_ps,
            queue_bytes_max: self.queue_kib * 1024,
            mark_bytes: self.mark_bytes,
        };
        // A host's own queue holds what its windows allow, and marks nothing.
        let host = LinkConfig { queue_bytes_max: u64::MAX, mark_bytes: u64::MAX, ..port(self.gbps) };
        Ok(Links { host, access: port(self.gbps), core: port(self.core_gbps.unwrap_or(self.gbps)) })
    }
}

impl Topology {
    fn build(&self, links: Links) -> anyhow::Result<Fabric> {
        match *self {
            Topology::FatTree { k } => fabric::fat_tree(k, links),
            Topology::LeafSpine { leaves, spines, hosts_per_leaf } => {
                fabric::leaf_spine(leaves, spines, hosts_per_leaf, links)
            }
            Topology::Star { hosts } => fabric::star(hosts, links),
            Topology::Dumbbell { left, right } => fabric::dumbbell(left, right, links),
        }
    }
}

impl TransportSection {
    fn build(&self) -> anyhow::Result<Transport> {
        ensure!((100..=9216).contains(&self.mtu_bytes), "mtu_bytes = {}: from 100 to 9216", self.mtu_bytes);
        ensure!(self.gain > 0.0 && self.gain <= 1.0, "gain = {}: above 0, at most 1", self.gain);
        ensure!(
            (1..=10_000).contains(&self.initial_window),
            "initial_window = {}: from 1 to 10,000",
            self.initial_window
        );
        let congestion = match self.congestion {
            CongestionName::Dctcp => Congestion::Dctcp { gain: self.gain },
            CongestionName::Newreno => Congestion::NewReno,
        };
        Ok(Transport {
            congestion,
            segment_bytes: self.mtu_bytes - IP_TCP_HEADER_BYTES,
            header_bytes: IP_TCP_HEADER_BYTES + if self.ethernet { ETHERNET_BYTES } else { 0 },
            frame_bytes_min: if self.ethernet { ETHERNET_FRAME_BYTES_MIN } else { 0 },
            initial_window: self.initial_window,
            timeout_initial_ps: (self.timeout_initial_us * PS_PER_US) as u64,
            timeout_min_ps: (self.timeout_min_us * PS_PER_US) as u64,
        })
    }
}
