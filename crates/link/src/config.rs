//! How bad a link is.

use alloc::vec::Vec;

use fanin_protocol::time::{Span, Time};

/// Chances are given in parts per million.
pub const PARTS_PER_MILLION: u32 = 1_000_000;

/// Parameters of one direction of a link. The default is a perfect link
/// without any delay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Propagation delay of every packet.
    pub delay: Span,
    /// Each packet takes up to this much longer.
    pub jitter_max: Span,
    /// Serialisation time: 8 is 1 Gbit/s, 0 an endless rate.
    pub ns_per_byte: u64,
    /// Chance that a packet is lost.
    pub loss_ppm: u32,
    /// Chance that a packet arrives twice.
    pub duplicate_ppm: u32,
    /// Chance that a delivery has one to three bits flipped.
    pub damage_ppm: u32,
    /// Chance that a delivery is held back.
    pub held_ppm: u32,
    /// A packet held back takes up to this much longer: make it many round
    /// trips, so that its slot has been used again when it arrives.
    pub held_delay_max: Span,
    /// Packets arrive in the order they were sent, as on a single hop.
    pub in_order: bool,
    /// From here on only delay and jitter remain; dead intervals still count.
    pub faults_until: Time,
    /// Intervals `[from, until)` in which nothing gets through.
    pub dead: Vec<(Time, Time)>,
}

impl LinkConfig {
    /// Whether nothing gets through at `now`.
    pub fn is_dead(&self, now: Time) -> bool {
        self.dead.iter().any(|&(from, until)| from <= now && now < until)
    }
}
