//! What a session has done so far.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::Algorithm;
use crate::endpoint::{EndpointCounters, Oldest};
use crate::tensors::AccumulatorCounts;
use crate::{Error, Session};

/// One kind of collective.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CollectiveStats {
    /// Completed without error.
    pub completed: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Bytes of the larger side, summed over the completed ones.
    pub bytes: u64,
    /// From submission to completion, summed.
    pub elapsed_ns: u64,
}

/// What a session has done so far, over all lanes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// By kind of collective.
    pub collectives: BTreeMap<&'static str, CollectiveStats>,
    /// Contributions sent for the first time.
    pub contributions: u64,
    /// Of these, empty ones that only carried an exponent.
    pub announces: u64,
    /// Contributions sent again.
    pub resends: u64,
    /// Headers that asked whether a contribution must be sent again.
    pub queries: u64,
    /// Aggregates received.
    pub aggregates: u64,
    /// Blocks whose sum was not a number.
    pub blocks_non_finite: u64,
    /// Blocks whose sum left the accumulator's format, and which were sent again: as block fixed point, or, with ATP, as floats.
    pub blocks_overflowed: u64,
    /// Elements of them that did.
    pub elements_overflowed: u64,
    /// ATP: of the contributions sent again, those as floats, because a sum left 32 bits.
    pub float_resends: u64,
    /// ATP: sums of floats that came at another scale than 10^8.
    pub blocks_scaled: u64,
    /// ATP: chunks whose slot had been another chunk's.
    pub slots_remapped: u64,
    /// ATP: times that a window was halved.
    pub window_cuts: u64,
    /// ATP: sums that some rank is not in.
    pub sums_in_part: u64,
    /// ATP: ranks that the job goes on without.
    pub lost_ranks: Vec<u16>,
    /// "switchml" or "atp".
    pub algorithm: &'static str,
    /// How the switch adds sums of floats.
    pub accumulator: &'static str,
    /// Packets from the switch that were ignored, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Datagrams given to the network.
    pub datagrams_sent: u64,
    /// Their UDP payloads, in bytes.
    pub bytes_sent: u64,
    /// Datagrams taken from the network.
    pub datagrams_received: u64,
    /// Their UDP payloads, in bytes.
    pub bytes_received: u64,
    /// Datagrams lost on purpose, both ways.
    pub losses_injected: u64,
    /// Smoothed round trip of lane 0, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// "udp", "shared memory", or "shared memory and udp".
    pub transport: &'static str,
    /// Lanes.
    pub lane_count: u16,
    /// Slots of one lane.
    pub slots_per_lane: u32,
    /// Elements of a full packet.
    pub element_count_max: u16,
    /// Lanes that get sums for all ranks by IP multicast.
    pub multicast_lane_count: u16,
}

/// What one lane publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneStats {
    pub endpoint: EndpointCounters,
    pub net: fanin_net::Counters,
    pub round_trip_ns: Option<u64>,
    pub by_multicast: bool,
    pub outstanding: Option<Oldest>,
}

impl Session {
    /// What the accumulator of the switch where the job was admitted has met in the job's sums of floats so far, for all ranks: an element
    /// counts once for each addition or read-out that met it. `None` where it counts nothing: with block-fixed, with ATP's fixed point, and where ranks share memory. Begins anew where the
    /// job is set up again without a rank. The switch's threads are
    /// asked for what they have counted until now; one that does not answer within 180 ms is told of as it last said by itself.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Control`] if the switch does not answer, after ten seconds at most, or the job is over there.
    pub fn accumulator_counts(&self) -> Result<Option<AccumulatorCounts>, Error> {
        let config = &self.shared.config;
        if !config.accumulator().is_counted(config.algorithm == Algorithm::Atp) {
            return Ok(None);
        }
        let answer = self.control.inspect(self.shared.admission.assignment.job_id)?;
        let state = self.shared.lock();
        Ok(answer.job.map(|job| AccumulatorCounts::of(job, &state.tensor_names)))
    }
}

impl Stats {
    pub(crate) fn add_lane(&mut self, lane: &LaneStats) {
        self.contributions += lane.endpoint.contributions;
        self.announces += lane.endpoint.announces;
        self.resends += lane.endpoint.resends;
        self.queries += lane.endpoint.queries;
        self.aggregates += lane.endpoint.aggregates;
        self.float_resends += lane.endpoint.float_resends;
        self.blocks_scaled += lane.endpoint.blocks_scaled;
        self.slots_remapped += lane.endpoint.slots_remapped;
        self.sums_in_part += lane.endpoint.sums_in_part;
        self.window_cuts += lane.endpoint.window_cuts;
        self.blocks_non_finite += lane.endpoint.blocks_non_finite;
        self.blocks_overflowed += lane.endpoint.blocks_overflowed;
        self.elements_overflowed += lane.endpoint.elements_overflowed;
        self.datagrams_sent += lane.net.datagrams_sent;
        self.bytes_sent += lane.net.bytes_sent;
        self.datagrams_received += lane.net.datagrams_received;
        self.bytes_received += lane.net.bytes_received;
        self.losses_injected += lane.net.dropped_injected_send + lane.net.dropped_injected_receive;
        self.multicast_lane_count += u16::from(lane.by_multicast);
        self.round_trip_ns = self.round_trip_ns.or(lane.round_trip_ns);
        for (reason, &count) in fanin_protocol::DropReason::ALL.iter().zip(&lane.endpoint.drops) {
            if count > 0 {
                *self.drops.entry(reason.name()).or_default() += count;
            }
        }
    }
}
