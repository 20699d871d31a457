//! What all experiments of the paper have in common: links, packets, windows.

use fanin_protocol::atp::{CongestionControl, Indexing, Scale, Tree};
use fanin_protocol::time::{Span, Time};
use serde::{Deserialize, Serialize};

use crate::world::{Contents, JobSpec, LinkSpec, PacketSize, Patience, Protocol, Topology, Workload, World, WorldSpec};

/// The table `[cluster]` of an experiment's file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Rate of every link in Gbit/s.
    pub gbps: f64,
    /// From a packet's departure at one end of a link to its being handled at the other, in nanoseconds.
    pub delay_ns: u64,
    /// The same for the link of a server, which need not wait for an accelerator.
    pub server_delay_ns: u64,
    /// Bytes that may wait at a switch's port.
    pub queue_bytes: u64,
    /// A longer queue towards the server sets the ECN bit.
    pub ecn_threshold_bytes: u32,
    /// A slot untouched for so long is given up, in microseconds.
    pub slot_age_us: u64,
    /// Resend timer in microseconds: before the first measurement, least, most.
    pub resend_timeout_us: [u64; 3],
    /// ATP's packets.
    pub atp_packet: PacketSize,
    /// The static jobs' packets.
    pub static_packet: PacketSize,
    /// Slots of a static job's lane, a power of two. A job's slots are a multiple of it.
    pub static_slots_per_lane: u32,
    /// Most chunks that an ATP worker has out, a power of two.
    pub window_max: u32,
    /// Chunks out at the start.
    pub window_initial: u32,
    /// Chunks in one MTU.
    pub window_step: u32,
}

/// Elements that stand for a payload.
pub const BLOCK_ELEMENTS: u16 = 2;

impl Cluster {
    /// The network with `slot_count` slots at each switch and the servers on the last host.
    pub fn world(&self, topology: Topology, slot_count: u16, seed: u64) -> World {
        let server = topology.hosts.len() - 1;
        let [initial, min, max] = self.resend_timeout_us.map(Span::from_us);
        let link =
            LinkSpec { gbps: self.gbps, delay_ns: self.delay_ns, queue_bytes_max: self.queue_bytes, loss_ppm: 0 };
        let mut world = World::new(WorldSpec {
            topology,
            link,
            slot_count,
            ecn_threshold_bytes: self.ecn_threshold_bytes,
            slot_age_max: Span::from_us(self.slot_age_us),
            block_elements: BLOCK_ELEMENTS,
            patience: Patience { initial, min, max },
            seed,
        });
        world.set_host_links(server, |link| link.delay_ns = self.server_delay_ns);
        world
    }

    /// ATP's congestion control as the file has it.
    pub fn congestion_control(&self) -> CongestionControl {
        CongestionControl::Aimd { window_initial: self.window_initial, step: self.window_step }
    }

    /// An ATP job with congestion control and hashed slots.
    pub fn atp_job(&self, tree: Tree, hosts: Vec<usize>, server: usize, workload: Workload) -> JobSpec {
        let protocol = Protocol::Atp {
            tree,
            server,
            window_max: self.window_max,
            congestion_control: self.congestion_control(),
            indexing: Indexing::Hash,
            own_slots: None,
            scale: Scale::Static,
        };
        self.job(protocol, hosts, self.atp_packet, workload)
    }

    /// An ATP job with `slots` slots to itself and as many chunks out: a static share of a switch beside a server.
    pub fn partitioned_job(
        &self,
        tree: Tree,
        hosts: Vec<usize>,
        server: usize,
        slots: u32,
        workload: Workload,
    ) -> JobSpec {
        let slots = slots.clamp(1, 65_535);
        let protocol = Protocol::Atp {
            tree,
            server,
            window_max: slots.next_power_of_two(),
            congestion_control: CongestionControl::Fixed { window: slots },
            indexing: Indexing::Linear,
            own_slots: Some(slots as u16),
            scale: Scale::Static,
        };
        self.job(protocol, hosts, self.atp_packet, workload)
    }

    /// A SwitchML job with the memory of `slots` ATP slots, to whole lanes; one lane at least. A slot of SwitchML's keeps
    /// two sums (SwitchML §4.4) of its own packets' size, one of ATP's keeps one.
    pub fn static_job(&self, slots: u32, hosts: Vec<usize>, workload: Workload) -> JobSpec {
        let slots_per_lane = self.static_slots_per_lane;
        let bytes = f64::from(slots) * self.atp_packet.payload_bytes as f64;
        let own_slots = (bytes / (2.0 * self.static_packet.payload_bytes as f64)).round() as u32;
        let lane_count = (own_slots / slots_per_lane).max(1) as u16;
        let protocol = Protocol::Static { slots_per_lane, lane_count };
        self.job(protocol, hosts, self.static_packet, workload)
    }

    fn job(&self, protocol: Protocol, hosts: Vec<usize>, size: PacketSize, workload: Workload) -> JobSpec {
        JobSpec { protocol, hosts, size, workload, starts: Time::ZERO, contents: Contents::Words }
    }

    /// Chunks of a model of so many bytes, in ATP's packets.
    pub fn chunks(&self, model_bytes: f64, size: PacketSize) -> u32 {
        (model_bytes / size.payload_bytes as f64).ceil().max(1.0) as u32
    }

    /// Largest payload rate of a link in Gbit/s.
    pub fn goodput_gbps_max(&self, size: PacketSize) -> f64 {
        self.gbps * size.payload_bytes as f64 / size.packet_bytes as f64
    }
}

/// All workers at one switch, with a tree.
///
/// # Errors
/// More workers than a switch has children.
pub fn one_switch(workers: u16) -> anyhow::Result<Tree> {
    Tree::one_switch(workers)
        .map_err(|error| anyhow::anyhow!("{workers} workers do not fit one switch ({error:?}): give 1 to 32"))
}
