//! A scenario: one TOML file that says everything, and the plan that it comes to.

mod jobs;
mod section;
mod topology;
mod traffic;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::engine::{self, Accelerators, Memory, Pause, Plan};
use crate::fabric::{Fabric, Links};
use crate::job::atp;
use crate::link::LinkConfig;
use crate::packet::PAUSE_BYTES;
use crate::transport::{Congestion, Transport};
pub use jobs::JobInfo;
pub use section::{JobSection, Models, Range, Scheme, TreeChoice};
pub use topology::{LinkSection, Names, Topology};
pub use traffic::Traffic;

const PS_PER_US: f64 = 1e6;
const IP_TCP_HEADER_BYTES: u16 = 40;
/// Preamble, Ethernet header, checksum and the gap between frames.
const ETHERNET_BYTES: u16 = 38;
const ETHERNET_FRAME_BYTES_MIN: u16 = 84;
/// What waits is counted in 32 bits of bytes.
const QUEUE_KIB_MAX: u64 = (1 << 22) - 1;

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
    /// What PANAMA jobs have in common.
    #[serde(default)]
    pub panama: PanamaSection,
    /// What ATP jobs have in common.
    #[serde(default)]
    pub atp: atp::Section,
    /// Training jobs.
    #[serde(default, rename = "job")]
    pub jobs: Vec<JobSection>,
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
    /// Chance of a packet to be damaged on a link, and thrown away where it arrives.
    pub corruption: f64,
}

impl Default for LinksSection {
    fn default() -> Self {
        // 85 packets, as PANAMA §7 has it.
        LinksSection {
            gbps: 10.0,
            core_gbps: None,
            delay_us: 1.0,
            queue_kib: 1024,
            mark_bytes: 85 * 1500,
            corruption: 0.0,
        }
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
    /// For a network, with packets of up to so many bytes.
    fn build(&self, fabric: &Fabric, packet_bytes: u64) -> anyhow::Result<Memory> {
        ensure!(self.share > 0.0 && self.share <= 1024.0, "share = {}: above 0, at most 1024", self.share);
        check_kib("buffer_kib", self.buffer_kib)?;
        let bytes = self.buffer_kib * 1024;
        ensure!(bytes >= packet_bytes, "buffer_kib = {}: room for a packet at least", self.buffer_kib);
        if !self.pause {
            ensure!(self.pause_above_kib.is_none(), "pause_above_kib: only with pause = true");
            return Ok(Memory { bytes, share: self.share, pause: None });
        }
        let pause = pause("a switch", bytes, self.pause_above_kib, fabric, packet_bytes)?;
        Ok(Memory { bytes, share: self.share, pause: Some(pause) })
    }
}

/// When ports are paused by who has so much memory for all of them.
fn pause(who: &str, bytes: u64, above_kib: Option<u64>, fabric: &Fabric, packet_bytes: u64) -> anyhow::Result<Pause> {
    let port_count = fabric.ports()[fabric.host_count as usize..].iter().map(Vec::len).max().unwrap_or(1) as u64;
    // What still comes after a pause was decided: a frame under way on each side, the pause frame, and all that is on the link
    // there and back.
    let links = fabric.cables.iter().flat_map(|cable| cable.links);
    let on_link = links.map(|link| link.round_trip_bytes()).max().unwrap_or(0);
    let headroom = on_link + 2 * packet_bytes + u64::from(PAUSE_BYTES);
    let above_max = (bytes / port_count).saturating_sub(headroom);
    let above_min = 2 * packet_bytes;
    ensure!(
        above_max >= above_min,
        "buffer_kib = {}: {who} of {port_count} ports would pause each at {above_max} bytes, and two packets have \
         {above_min}: give it more memory",
        bytes / 1024
    );
    let above_bytes = above_kib.map_or(above_max, |kib| kib.saturating_mul(1024));
    if let Some(kib) = above_kib.filter(|_| !(above_min..=above_max).contains(&above_bytes)) {
        let (low, high) = (above_min.div_ceil(1024), above_max / 1024);
        anyhow::bail!(
            "pause_above_kib = {kib}: from {low} to {high} for {who} of {port_count} ports with buffer_kib = {}",
            bytes / 1024
        );
    }
    Ok(Pause { above_bytes, below_bytes: above_bytes / 2 })
}

const ACCELERATOR_BUFFER_KIB: u64 = 1024;

/// `[panama]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PanamaSection {
    /// What an accelerator takes in, all ports together; without, it is never busy.
    pub accelerator_gbps: Option<f64>,
    /// What waits for an accelerator at most, all ports together; without, 1024.
    pub buffer_kib: Option<u64>,
    /// Stop the sender at a port of which so much waits; without, what leaves room for what is under way.
    pub pause_above_kib: Option<u64>,
}

impl PanamaSection {
    fn build(&self, fabric: &Fabric, packet_bytes: u64, pauses: bool) -> anyhow::Result<Option<Accelerators>> {
        let Some(gbps) = self.accelerator_gbps else {
            for (key, value) in [("buffer_kib", self.buffer_kib), ("pause_above_kib", self.pause_above_kib)] {
                ensure!(value.is_none(), "{key}: only with accelerator_gbps");
            }
            return Ok(None);
        };
        within("accelerator_gbps", gbps, 0.001, 1e6)?;
        ensure!(
            !pauses,
            "accelerator_gbps: not beside [switches] pause = true, whose pauses would be mixed up with these"
        );
        let buffer_kib = self.buffer_kib.unwrap_or(ACCELERATOR_BUFFER_KIB);
        check_kib("buffer_kib", buffer_kib)?;
        let bytes = buffer_kib * 1024;
        let pause = pause("an accelerator", bytes, self.pause_above_kib, fabric, packet_bytes)?;
        Ok(Some(Accelerators { rate_bps: bits(gbps), memory: Memory { bytes, share: 1.0, pause: Some(pause) } }))
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
        let fabric = self.topology.build(&self.links)?;
        let transport = self.transport.build().context("[transport]")?;
        let duration_ps = (self.duration_ms * 1000.0 * PS_PER_US) as u64;
        let sources = traffic::sources(&self.traffic, self.seed, &fabric.access_bps(), duration_ps)?;
        let (ranks, programs, jobs) = Default::default();
        let packet_bytes = u64::from(self.transport.mtu_bytes + ETHERNET_BYTES);
        let memory = self.switches.as_ref().map(|section| section.build(&fabric, packet_bytes));
        let memory = memory.transpose().context("[switches]")?;
        if memory.is_none() {
            check_queues(&fabric, packet_bytes)?;
        }
        let pauses = self.switches.as_ref().is_some_and(|section| section.pause);
        let accelerators = self.panama.build(&fabric, packet_bytes, pauses).context("[panama]")?;
        let sample_ps = if self.samples == 0 { u64::MAX } else { (duration_ps / u64::from(self.samples)).max(1) };
        let mut plan = Plan {
            fabric,
            transport,
            sources,
            ranks,
            programs,
            memory,
            accelerators,
            jobs,
            seed: self.seed,
            duration_ps,
            sample_ps,
        };
        let installer = jobs::Installer::new(&self.jobs, self.transport.mtu_bytes, transport, self.atp);
        installer.install(self.seed, &mut plan)?;
        engine::connect_accelerators(&mut plan);
        // Jobs may have changed some links, and accelerators are some.
        plan.fabric.kinds().context("[topology]")?;
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
        self.links.check("links.")?;
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

fn within(name: &str, value: f64, low: f64, high: f64) -> anyhow::Result<()> {
    ensure!(value >= low && value <= high, "{name} = {value}: from {low} to {high}");
    Ok(())
}

fn check_kib(name: &str, kib: u64) -> anyhow::Result<()> {
    ensure!((1..=QUEUE_KIB_MAX).contains(&kib), "{name} = {kib}: from 1 to {QUEUE_KIB_MAX}");
    Ok(())
}

/// What is longer than a queue could never wait there.
fn check_queues(fabric: &Fabric, packet_bytes: u64) -> anyhow::Result<()> {
    let too_short = |link: &&crate::fabric::Cable| link.links.iter().any(|link| link.queue_bytes_max < packet_bytes);
    match fabric.cables.iter().find(too_short) {
        None => Ok(()),
        Some(cable) => anyhow::bail!(
            "queue_kib between {} and {}: room for a packet of {packet_bytes} bytes at least",
            fabric.name(cable.ends[0]),
            fabric.name(cable.ends[1])
        ),
    }
}

fn bits(gbps: f64) -> u64 {
    (gbps * 1e9) as u64
}

impl LinksSection {
    /// Finds what is out of bounds; names are those of the keys after `prefix`.
    fn check(&self, prefix: &str) -> anyhow::Result<()> {
        within(&format!("{prefix}gbps"), self.gbps, 0.001, 10_000.0)?;
        within(&format!("{prefix}core_gbps"), self.core_gbps.unwrap_or(self.gbps), 0.001, 10_000.0)?;
        within(&format!("{prefix}delay_us"), self.delay_us, 0.01, 1e6)?;
        check_kib(&format!("{prefix}queue_kib"), self.queue_kib)?;
        within(&format!("{prefix}corruption"), self.corruption, 0.0, 0.5)
    }

    fn build(&self) -> anyhow::Result<Links> {
        let delay_ps = (self.delay_us * PS_PER_US) as u64;
        check_kib("queue_kib", self.queue_kib)?;
        let port = |gbps| LinkConfig {
            rate_bps: bits(gbps),
            delay_ps,
            queue_bytes_max: self.queue_kib * 1024,
            mark_bytes: self.mark_bytes,
            corruption: self.corruption,
        };
        // A host's own queue holds what its windows allow, and marks nothing.
        let host = LinkConfig { queue_bytes_max: u64::MAX, mark_bytes: u64::MAX, ..port(self.gbps) };
        Ok(Links { host, access: port(self.gbps), core: port(self.core_gbps.unwrap_or(self.gbps)) })
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
