//! Settings of a session.

use std::path::PathBuf;
use std::time::Duration;

use fanin_control::registry::StragglerPolicy;
use fanin_net::Blackhole;
use fanin_protocol::atp::Scale;
use fanin_protocol::{atp, switchml};
use fanin_wire::Accumulator;
use fanin_wire::generated::{ATP_HEADER_BYTES, HEADER_BYTES};

use crate::{Error, ErrorKind};

/// Window of one lane when nothing is known about the link. Eight super-packets
/// keep a slow link busy; more would leave the processor's cache.
const WINDOW_BYTES_DEFAULT: u64 = 512 << 10;
/// How long a thread polls before it sleeps: a few times what waking it on
/// another core takes. It gives its core to others between two looks.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(200);
/// All workers' windows on one host: what is under way at a time should stay
/// in the cache of the core that sums it.
const WINDOWS_SAME_HOST: u64 = 1 << 20;
/// Two super-packets, so that one can be summed while the next is written.
const WINDOW_MIN: u64 = 128 << 10;
/// Round trip that a pool is sized for when none is given: mostly the time
/// that hosts take (SwitchML App. C).
const ROUND_TRIP_DEFAULT: Duration = Duration::from_millis(1);

/// How float sums are encoded on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElementFormat {
    /// 32-bit block fixed point (SwitchML §4.6).
    #[default]
    Int32,
    /// Block-scaled binary16: half the bytes, 11 significant bits per worker.
    Float16,
    /// Block-scaled bfloat16: half the bytes, 8 significant bits per worker,
    /// exact for tensors of bfloat16.
    Bfloat16,
    /// Block-scaled 8-bit integers: a quarter of the bytes, steps of at most
    /// 1/64 of a block's largest value.
    Int8,
}

impl ElementFormat {
    /// The same in datagrams.
    pub(crate) fn on_wire(self) -> fanin_wire::ElementFormat {
        match self {
            ElementFormat::Int32 => fanin_wire::ElementFormat::Int32,
            ElementFormat::Float16 => fanin_wire::ElementFormat::Float16,
            ElementFormat::Bfloat16 => fanin_wire::ElementFormat::Bfloat16,
            ElementFormat::Int8 => fanin_wire::ElementFormat::Int8,
        }
    }
}

/// Layout of the datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFormat {
    /// fanin v1.
    #[default]
    Fanin,
    /// The public p4app-switchML UDP layout: sums of float32 and int32 only.
    P4app,
}

/// How bytes get to the other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory among the ranks of a host, whose first rank contributes to the switch for all of them.
    #[default]
    Auto,
    /// Every rank talks to the switch.
    Udp,
}

/// Whose slots a job uses, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Slots of its own, reserved from start to end (SwitchML).
    #[default]
    SwitchMl,
    /// Slots shared with other jobs, taken as packets arrive, and a parameter server behind them (ATP).
    Atp,
}

/// What becomes of a job when a rank is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPeerLoss {
    /// Every collective fails from then on.
    #[default]
    Fail,
    /// The job is set up again on the ranks that are left (ATP App. A.3). Sums say who is missing: see [`crate::Outcome`].
    Continue,
}

/// How to join a job on a switch.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// `host:port` of the switch's controller.
    pub controller: String,
    /// Bearer token, where the switch asks for one.
    pub auth_token: Option<String>,
    /// PEM file with the authority of the switch's certificate; turns TLS on.
    pub tls_ca: Option<PathBuf>,
    /// Names the job for people, 1 to 128 bytes.
    pub job_name: String,
    /// The same on all ranks of one run and different for every run.
    pub run_id: String,
    /// This worker, below `world_size`.
    pub rank: u16,
    /// Workers of the job, 1 to 256.
    pub world_size: u16,
    /// Threads with a socket each; `None` chooses by the number of cores.
    pub lane_count: Option<u16>,
    /// Slots of one lane, a power of two; `None` sizes the pool by
    /// `link_rate_bps`, or 512 KiB.
    pub slots_per_lane: Option<u32>,
    /// Rate of this worker's link, bits per second, if known.
    pub link_rate_bps: Option<u64>,
    /// Round trip to size the pool for, host processing included.
    pub round_trip: Option<Duration>,
    /// Elements of a float sum per packet, a multiple of 32; `None` takes what
    /// the path carries in `element_format`, up to 2,016. Everything else
    /// travels as 32-bit words, as many as take the same bytes.
    pub element_count: Option<u16>,
    /// How float sums are encoded.
    pub element_format: ElementFormat,
    /// How the switch adds sums of floats; all ranks say the same. `None`: the cheapest within `tolerance`, or what the
    /// algorithm has, block-fixed (SwitchML) and static-fixed (ATP). With any other than block-fixed every rank talks to the
    /// switch; with most, floats travel as they lie in memory, in their own type.
    pub accumulator: Option<Accumulator>,
    /// The largest error of a sum of float32 that is accepted, as a share of the largest magnitude in its block.
    pub tolerance: Option<f64>,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
    /// How bytes get to the other ranks. One rank with `Udp` makes it so for all.
    pub transport: Transport,
    /// Names this host: ranks with the same name share memory. `None` tells hosts apart by boot, network namespace and
    /// user.
    pub host_key: Option<String>,
    /// How long to wait for the other ranks to join.
    pub join_timeout: Duration,
    /// How long a collective may take.
    pub collective_timeout: Duration,
    /// Chance and seed of losing each datagram, for tests.
    pub loss: Option<(f64, u64)>,
    /// Direction in which to swallow all datagrams once joined, for tests.
    pub blackhole: Blackhole,
    /// How long a lane and a waiting thread poll before they sleep; `None`
    /// is 200 µs.
    pub spin: Option<Duration>,
    /// Take sums by IP multicast where the network carries it.
    pub multicast: bool,
    /// Whose slots the job uses, and how. All ranks say the same.
    pub algorithm: Algorithm,
    /// ATP: whether this rank runs the job's parameter server if no other stands beside the switch; `None`: rank 0 does.
    pub own_server: Option<bool>,
    /// Name of the switch beside this rank; `None`: the switch's topology tells by this rank's address.
    pub switch_name: Option<String>,
    /// ATP: what becomes of the job when a rank is lost. All ranks say the same.
    pub on_peer_loss: OnPeerLoss,
    /// ATP: what is done about ranks that are late; `None`: they are waited for. All ranks say the same.
    pub stragglers: Option<StragglerPolicy>,
    /// ATP: whether floats may be scaled otherwise than by 10^8 where sums often leave 32 bits. With one rank that says no they are
    /// not.
    pub atp_scale: Scale,
    /// ATP: takes the place of the lost worker of this rank in a job that goes on; `join_timeout` is then for the other ranks
    /// to call [`crate::Session::admit`].
    pub is_replacement: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            controller: String::new(),
            auth_token: None,
            tls_ca: None,
            job_name: "fanin".into(),
            run_id: String::new(),
            rank: 0,
            world_size: 1,
            lane_count: None,
            slots_per_lane: None,
            link_rate_bps: None,
            round_trip: None,
            element_count: None,
            element_format: ElementFormat::default(),
            accumulator: None,
            tolerance: None,
            wire_format: WireFormat::default(),
            transport: Transport::default(),
            host_key: None,
            join_timeout: Duration::from_secs(300),
            collective_timeout: Duration::from_secs(300),
            loss: None,
            blackhole: Blackhole::None,
            spin: None,
            multicast: true,
            algorithm: Algorithm::default(),
            own_server: None,
            switch_name: None,
            on_peer_loss: OnPeerLoss::default(),
            stragglers: None,
            atp_scale: Scale::default(),
            is_replacement: false,
        }
    }
}

impl SessionConfig {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let problem = if self.controller.is_empty() {
            "no switch address: set `controller` to the host:port that `fanin switch` printed"
        } else if self.run_id.is_empty() {
            "no run id: all ranks must share one that no earlier run has used"
        } else if self.rank >= self.world_size {
            "rank must be below world size"
        } else if self.slots_per_lane.is_some_and(|slots| !slots.is_power_of_two()) {
            "slots per lane must be a power of two"
        } else if self.element_count.is_some_and(|count| count == 0 || count % 32 != 0 || count > 2048) {
            "elements per packet must be a multiple of 32, up to 2048"
        } else if self.wire_format == WireFormat::P4app && self.element_format != ElementFormat::Int32 {
            "the p4app-switchML layout has 32-bit elements only: use the element format int32"
        } else if self.algorithm == Algorithm::Atp && self.element_format != ElementFormat::Int32 {
            "the algorithm atp has 32-bit elements only: use the element format int32"
        } else if self.algorithm != Algorithm::Atp && self.on_peer_loss == OnPeerLoss::Continue {
            "a job of the algorithm switchml cannot go on without a rank that was lost: use the algorithm atp, or leave \
             on_peer_loss at `fail`"
        } else if self.algorithm != Algorithm::Atp && self.stragglers.is_some() {
            "a job of the algorithm switchml cannot go on without ranks that are late: use the algorithm atp, or leave \
             stragglers at `wait`"
        } else if self.algorithm != Algorithm::Atp && self.atp_scale != Scale::Static {
            "a job of the algorithm switchml agrees on scales anyway: use the algorithm atp, or leave atp_scale at `static`"
        } else if self.is_replacement && self.on_peer_loss != OnPeerLoss::Continue {
            "only a job that goes on without lost ranks has places to take: use the algorithm atp and on_peer_loss `continue`, as its other ranks do"
        } else if self.algorithm == Algorithm::Atp && self.wire_format != WireFormat::Fanin {
            "the algorithm atp has a layout of its own: leave the wire format at fanin"
        } else {
            return self.check_accumulator();
        };
        Err(Error::new(ErrorKind::Invalid, problem))
    }

    /// What an accumulator promises too little for, and what helps: another one, or more tolerance.
    fn too_far(&self, accumulator: Accumulator, promised: f64, tolerance: f64) -> String {
        let (label, ranks) = (accumulator.label(), self.world_size);
        let promise = match round_up(promised) {
            promised if promised.is_finite() => {
                format!("promises an error of at most {promised:.1e} of a block's largest value for {ranks} ranks")
            }
            _ => "promises no largest error".into(),
        };
        let least = self.promised(Accumulator::Exact);
        let advice = if least <= tolerance {
            "leave the accumulator out to have one chosen".into()
        } else {
            let least = round_up(least);
            format!(
                "no accumulator keeps that; ask for a tolerance of {least:.1e} or more and leave the accumulator out"
            )
        };
        format!("the accumulator {label} {promise}, and {tolerance:e} is asked for: {advice}")
    }

    fn check_accumulator(&self) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::new(ErrorKind::Invalid, problem));
        let is_atp = self.algorithm == Algorithm::Atp;
        if is_atp && self.accumulator == Some(Accumulator::BlockFixed) {
            return invalid(
                "the accumulator block-fixed needs an exponent that all ranks have agreed on a round trip before the block is \
                 sent, which slots that are taken as packets arrive cannot promise: leave the accumulator out with the \
                 algorithm atp, or use fpisa, ieee or another one"
                    .into(),
            );
        }
        if self.tolerance.is_some() && self.element_format != ElementFormat::Int32 {
            return invalid(
                "a tolerance is for sums of 32-bit elements, and narrower ones are rounded before that: leave the element \
                 format at int32, or the tolerance out"
                    .into(),
            );
        }
        let Some(accumulator) = self.chosen_accumulator() else {
            let tolerance = self.tolerance.unwrap_or(0.0);
            let least = round_up(self.promised(Accumulator::Exact));
            return invalid(format!(
                "no accumulator keeps sums of {} ranks within {tolerance:e} of a block's largest value: the exact sum, \
                 rounded to float32, is up to {least:.1e} off. Ask for a tolerance of {least:.1e} or more",
                self.world_size
            ));
        };
        if let Some(tolerance) = self.tolerance {
            let promised = self.promised(accumulator);
            // So that a tolerance that is no number is refused.
            let keeps = promised <= tolerance;
            if !keeps {
                return invalid(self.too_far(accumulator, promised, tolerance));
            }
        }
        if self.atp_scale != Scale::Static && accumulator != Accumulator::StaticFixed {
            return invalid(format!(
                "the accumulator {} adds floats as they are, which have no scale: leave atp_scale at `static`, or the \
                 accumulator at static-fixed",
                accumulator.label()
            ));
        }
        if accumulator == Accumulator::BlockFixed {
            return Ok(());
        }
        let label = accumulator.label();
        if self.element_format != ElementFormat::Int32 {
            return invalid(format!(
                "with the accumulator {label} floats are not scaled for a narrower format: leave the element format at \
                 int32, or use the accumulator block-fixed"
            ));
        }
        if self.wire_format != WireFormat::Fanin {
            return invalid(format!(
                "the p4app-switchML layout has no elements of the accumulator {label}: use the wire format fanin"
            ));
        }
        Ok(())
    }

    /// How the switch adds sums of floats; `None` where nothing is within the tolerance.
    fn chosen_accumulator(&self) -> Option<Accumulator> {
        match (self.algorithm, self.accumulator, self.tolerance) {
            (_, Some(accumulator), _) => Some(accumulator),
            (Algorithm::SwitchMl, None, Some(tolerance)) => switchml::cheapest(tolerance, self.world_size),
            (Algorithm::Atp, None, Some(tolerance)) => atp::cheapest(tolerance, self.world_size),
            (_, None, None) => Some(self.accumulator_unasked()),
        }
    }

    /// What the algorithm's paper has.
    fn accumulator_unasked(&self) -> Accumulator {
        match self.algorithm {
            Algorithm::SwitchMl => Accumulator::BlockFixed,
            Algorithm::Atp => Accumulator::StaticFixed,
        }
    }

    /// The error of a sum of float32, as a share of the largest magnitude in its block.
    fn promised(&self, accumulator: Accumulator) -> f64 {
        match self.algorithm {
            Algorithm::SwitchMl => switchml::relative_error(accumulator, self.world_size),
            Algorithm::Atp => atp::relative_error(accumulator, self.world_size),
        }
    }

    /// How the switch adds sums of floats, in settings that have been checked.
    pub(crate) fn accumulator(&self) -> Accumulator {
        self.chosen_accumulator().unwrap_or(Accumulator::BlockFixed)
    }

    /// Whether this rank may share memory with others: not where datagrams themselves are what is asked for.
    pub(crate) fn may_share_memory(&self) -> bool {
        // One rank less in a host's memory is one that all others there wait for.
        let goes_on = self.on_peer_loss == OnPeerLoss::Continue || self.stragglers.is_some();
        // A host that sums first adds in the order and with the roundings of its own.
        let adds_at_switch = self.accumulator() != self.accumulator_unasked() || self.tolerance.is_some();
        !goes_on
            && !adds_at_switch
            && self.transport == Transport::Auto
            && self.wire_format == WireFormat::Fanin
            && self.loss.is_none()
            && self.blackhole == Blackhole::None
    }

    /// Whether this rank offers to run the job's parameter server.
    pub(crate) fn offers_server(&self) -> bool {
        self.algorithm == Algorithm::Atp && !self.is_replacement && self.own_server.unwrap_or(self.rank == 0)
    }

    /// Bytes of the header of this job's datagrams.
    pub(crate) fn header_bytes(&self) -> usize {
        match self.algorithm {
            Algorithm::SwitchMl => HEADER_BYTES,
            Algorithm::Atp => ATP_HEADER_BYTES,
        }
    }

    pub(crate) fn lane_count(&self) -> u16 {
        // One core moves tens of Gbit/s; further lanes pay on big hosts only.
        self.lane_count.unwrap_or_else(|| (core_count() / 16).clamp(1, 4) as u16)
    }

    /// `same_host`: the switch and the other workers share this host's caches.
    pub(crate) fn slots_per_lane(&self, packet_bytes: usize, same_host: bool) -> u32 {
        let lanes = u64::from(self.lane_count());
        let shared = WINDOWS_SAME_HOST / (u64::from(self.world_size) * lanes);
        let window = if same_host { shared.clamp(WINDOW_MIN, WINDOW_BYTES_DEFAULT) } else { WINDOW_BYTES_DEFAULT };
        self.slots_per_lane.unwrap_or_else(|| match self.link_rate_bps {
            Some(rate) => slots_for_link(rate / lanes, self.round_trip.unwrap_or(ROUND_TRIP_DEFAULT), packet_bytes),
            None => (window / packet_bytes as u64).next_power_of_two().clamp(4, 4096) as u32,
        })
    }

    pub(crate) fn spin(&self) -> Duration {
        self.spin.unwrap_or(SPIN_DEFAULT)
    }
}

/// To the two digits that messages show, and not below: whoever asks for that much is given it.
fn round_up(share: f64) -> f64 {
    if !share.is_normal() {
        return share;
    }
    let unit = 10f64.powf(share.log10().floor() - 1.0);
    (share / unit).ceil() * unit
}

fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Slots that keep a link busy: the bandwidth-delay product in packets,
/// rounded up to a power of two (SwitchML App. C). `round_trip` includes the
/// hosts' processing; `packet_bytes` is a datagram with its headers.
pub fn slots_for_link(link_rate_bps: u64, round_trip: Duration, packet_bytes: usize) -> u32 {
    let in_flight_bytes = u128::from(link_rate_bps) * round_trip.as_nanos() / 8_000_000_000;
    let packets = in_flight_bytes.div_ceil(packet_bytes.max(1) as u128).clamp(1, 1 << 14);
    (packets as u32).next_power_of_two()
}
