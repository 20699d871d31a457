//! One direction of a network link that does what networks do: it loses,
//! repeats, reorders, damages and holds back packets.
//!
//! A [`Link`] is a plain value with its own seeded generator: the same seed
//! and the same packets give the same deliveries. It moves no bytes itself;
//! it says what arrives when, and its caller keeps the time.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod random;

use alloc::vec::Vec;

use fanin_protocol::time::{Span, Time};

pub use config::{LinkConfig, PARTS_PER_MILLION};
pub use random::Random;

/// A packet that will reach the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Time,
    /// Its bytes, perhaps not those that were sent.
    pub packet: Vec<u8>,
    /// Whether the link changed a bit of it.
    pub damaged: bool,
}

/// What became of the packets sent so far:
/// `sent + duplicated == lost + blackholed + delivered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets given to the link.
    pub sent: u64,
    /// Packets dropped by chance.
    pub lost: u64,
    /// Packets dropped because the direction was dead.
    pub blackholed: u64,
    /// Second copies.
    pub duplicated: u64,
    /// Deliveries with changed bits.
    pub damaged: u64,
    /// Deliveries that were held back far beyond the delay.
    pub held: u64,
    /// Packets that reach the other end, copies included.
    pub delivered: u64,
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    random: Random,
    counters: LinkCounters,
    /// When the last bit of the last packet leaves the sender.
    busy_until: Time,
    /// Latest arrival so far, for links that keep order.
    arrival_last: Time,
}

impl Link {
    /// A link in good order until packets are sent.
    pub fn new(config: LinkConfig, seed: u64) -> Link {
        let counters = LinkCounters::default();
        Link { config, random: Random::new(seed), counters, busy_until: Time::ZERO, arrival_last: Time::ZERO }
    }

    /// Takes one packet at `now` and passes what arrives of it to `deliver`:
    /// nothing, the packet, or the packet twice.
    pub fn send(&mut self, now: Time, packet: &[u8], mut deliver: impl FnMut(Delivery)) {
        self.counters.sent += 1;
        let leaves = self.serialise(now, packet.len());
        if self.config.is_dead(now) {
            self.counters.blackholed += 1;
            return;
        }
        let faulty = now < self.config.faults_until;
        if faulty && self.random.chance(self.config.loss_ppm) {
            self.counters.lost += 1;
            return;
        }
        deliver(self.deliver(leaves, packet, faulty));
        if faulty && self.random.chance(self.config.duplicate_ppm) {
            self.counters.duplicated += 1;
            deliver(self.deliver(leaves, packet, faulty));
        }
    }

    /// What became of the packets sent so far.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// The link's parameters.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Packets leave one after another at the link's rate.
    fn serialise(&mut self, now: Time, bytes: usize) -> Time {
        let start = self.busy_until.max(now);
        self.busy_until = start + Span::from_ns(self.config.ns_per_byte * bytes as u64);
        self.busy_until
    }

    fn deliver(&mut self, leaves: Time, packet: &[u8], faulty: bool) -> Delivery {
        self.counters.delivered += 1;
        let mut at = leaves + self.config.delay + self.random.span_up_to(self.config.jitter_max);
        let mut packet = packet.to_vec();
        if faulty && self.random.chance(self.config.held_ppm) {
            self.counters.held += 1;
            at += self.random.span_up_to(self.config.held_delay_max);
        }
        let damaged = faulty && !packet.is_empty() && self.random.chance(self.config.damage_ppm);
        if damaged {
            self.counters.damaged += 1;
            self.flip_bits(&mut packet);
        }
        if self.config.in_order {
            at = at.max(self.arrival_last);
            self.arrival_last = at;
        }
        Delivery { at, packet, damaged }
    }

    /// One to three different bits: few enough for CRC-32C to find always.
    fn flip_bits(&mut self, packet: &mut [u8]) {
        let bit_count = packet.len() as u64 * 8;
        let first = self.random.below(bit_count);
        // Steps shorter than the packet cannot come back to a flipped bit.
        let step = 1 + self.random.below((bit_count / 3).max(1));
        for k in 0..self.random.below(3) + 1 {
            let bit = (first + k * step) % bit_count;
            packet[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}
