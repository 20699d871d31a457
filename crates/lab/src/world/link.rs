//! One direction of a link with a rate, a delay and a queue that ends.

use std::collections::VecDeque;

use fanin_link::Random;
use fanin_protocol::time::Time;

use fanin_sim::datagrams::DatagramId;

/// How good a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Rate in Gbit/s.
    pub gbps: f64,
    /// From the last bit's departure to its arrival, in nanoseconds.
    pub delay_ns: u64,
    /// Bytes that may wait for the rate; what comes then is dropped. `u64::MAX` for a host, which sends when it may.
    pub queue_bytes_max: u64,
    /// Chance that a packet is lost, in parts per million.
    pub loss_ppm: u32,
}

/// A packet under way.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// When it arrives, in nanoseconds.
    pub arrives_ns: u64,
    /// Its bytes.
    pub packet: DatagramId,
    /// Whose it is.
    pub job: u16,
    /// The job's lane.
    pub lane: u16,
}

/// What became of a link's packets: `sent` is all that were given to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets given to the link.
    pub sent: u64,
    /// Bytes that left it.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Most bytes that ever waited.
    pub queue_bytes_peak: u64,
}

/// One direction of a link. Packets arrive in the order in which they were sent.
#[derive(Clone, Debug)]
pub struct RatedLink {
    spec: LinkSpec,
    /// Picoseconds, because a byte at 100 Gbit/s takes 80 of them.
    ps_per_byte: u64,
    /// When the last bit of what was sent has left.
    busy_until_ps: u64,
    random: Random,
    in_flight: VecDeque<Flight>,
    counters: LinkCounters,
}

impl RatedLink {
    /// An idle link.
    pub fn new(spec: LinkSpec, seed: u64) -> RatedLink {
        RatedLink {
            spec,
            ps_per_byte: (8000.0 / spec.gbps).round() as u64,
            busy_until_ps: 0,
            random: Random::new(seed),
            in_flight: VecDeque::new(),
            counters: LinkCounters::default(),
        }
    }

    /// Bytes that wait at `now`.
    pub fn queue_bytes(&self, now: Time) -> u64 {
        self.busy_until_ps.saturating_sub(now.as_ns() * 1000) / self.ps_per_byte
    }

    /// Takes a packet of `wire_bytes`; when it arrives is filled in. `false` where it never does.
    pub fn send(&mut self, now: Time, wire_bytes: u64, mut flight: Flight) -> bool {
        self.counters.sent += 1;
        let queued = self.queue_bytes(now);
        if queued.saturating_add(wire_bytes) > self.spec.queue_bytes_max {
            self.counters.dropped += 1;
            return false;
        }
        self.counters.queue_bytes_peak = self.counters.queue_bytes_peak.max(queued + wire_bytes);
        self.counters.bytes += wire_bytes;
        self.busy_until_ps = self.busy_until_ps.max(now.as_ns() * 1000) + wire_bytes * self.ps_per_byte;
        if self.random.chance(self.spec.loss_ppm) {
            self.counters.lost += 1;
            return false;
        }
        flight.arrives_ns = self.busy_until_ps.div_ceil(1000) + self.spec.delay_ns;
        self.in_flight.push_back(flight);
        true
    }

    /// The packet that arrives next.
    pub fn first(&self) -> Option<&Flight> {
        self.in_flight.front()
    }

    /// Takes the packet that arrives next.
    pub fn arrive(&mut self) -> Option<Flight> {
        self.in_flight.pop_front()
    }

    /// Packets so far.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Changes the rate or the loss for what is sent from now on.
    pub fn set(&mut self, spec: LinkSpec) {
        self.spec = spec;
        self.ps_per_byte = (8000.0 / spec.gbps).round() as u64;
    }

    /// Its parameters.
    pub fn spec(&self) -> LinkSpec {
        self.spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight() -> Flight {
        Flight { arrives_ns: 0, packet: DatagramId::default(), job: 0, lane: 0 }
    }

    #[test]
    fn packets_leave_at_the_rate_and_a_full_queue_drops() {
        let spec = LinkSpec { gbps: 100.0, delay_ns: 500, queue_bytes_max: 3000, loss_ppm: 0 };
        let mut link = RatedLink::new(spec, 1);
        let sent = (0..4).filter(|_| link.send(Time::ZERO, 1000, flight())).count();
        assert_eq!((sent, link.counters().dropped), (3, 1));
        let arrivals: Vec<u64> = std::iter::from_fn(|| link.arrive()).map(|flight| flight.arrives_ns).collect();
        assert_eq!(arrivals, [580, 660, 740], "80 ns for 1000 bytes at 100 Gbit/s");
        assert_eq!(link.queue_bytes(Time::from_ns(120)), 1500);
        assert_eq!(link.queue_bytes(Time::from_ns(1000)), 0);
        assert!(link.send(Time::from_ns(1000), 1000, flight()));
        assert_eq!(link.first().map(|flight| flight.arrives_ns), Some(1580), "an idle link sends at once");
    }

    #[test]
    fn losses_come_at_their_rate() {
        let spec = LinkSpec { gbps: 100.0, delay_ns: 0, queue_bytes_max: u64::MAX, loss_ppm: 10_000 };
        let mut link = RatedLink::new(spec, 7);
        let arriving = (0..100_000).filter(|_| link.send(Time::ZERO, 100, flight())).count() as u64;
        let lost = link.counters().lost;
        assert!((800..1200).contains(&lost), "{lost} of 100,000 at 1 %");
        assert_eq!(arriving + lost, 100_000);
    }
}
