//! One direction of a link, with the queue of the port that sends into it.
//!
//! A ring holds, oldest first, the packets that are on the link and then those that wait for it. A packet gets its time of
//! arrival when its transmission starts, and is not touched again until it arrives: one event for each hop, and
//! none for the queue. Because what waits has no times yet, the port can still be paused.
//!
//! A large network's links do not fit into a cache, so what every packet touches is one cache line: what links have in
//! common is a [`Class`] of its own, and what happens seldom is counted in the next line.

use crate::packet::{ECT, MARKED, Packet};

const PICOSECONDS_PER_SECOND: u64 = 1_000_000_000_000;
/// Binary places of the time that a byte takes, so that every rate is exact to a millionth.
const FRACTION_BITS: u32 = 20;
const RING_LENGTH_MIN: usize = 4;

/// What a link and its queue are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second, everything that takes time on the link included.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay_ps: u64,
    /// What the queue holds at most; the packet in transmission does not count.
    pub queue_bytes_max: u64,
    /// A packet that finds at least this much in the queue is marked (instantaneous length, as in DCTCP §3.1).
    pub mark_bytes: u64,
}

/// The same for computing with.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    time_per_byte: u64,
    delay_ps: u64,
    queue_bytes_max: u64,
    mark_bytes: u64,
}

impl Class {
    /// Of links like this.
    pub fn new(config: &LinkConfig) -> Class {
        let scaled = u128::from(8 * PICOSECONDS_PER_SECOND) << FRACTION_BITS;
        Class {
            time_per_byte: (scaled / u128::from(config.rate_bps.max(1))) as u64,
            delay_ps: config.delay_ps,
            queue_bytes_max: config.queue_bytes_max,
            mark_bytes: config.mark_bytes,
        }
    }

    /// The same with another limit of the queue.
    pub fn with_queue_bytes_max(self, queue_bytes_max: u64) -> Class {
        Class { queue_bytes_max, ..self }
    }

    /// How long a port takes to send so many bytes.
    #[inline]
    pub fn transmission_ps(&self, bytes: u16) -> u64 {
        (u64::from(bytes) * self.time_per_byte) >> FRACTION_BITS
    }
}

/// What became of the packets: `sent + dropped + waiting == offered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets whose transmission has started.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets that the full queue turned away.
    pub dropped: u64,
    /// The longest that the queue has been.
    pub queued_bytes_max: u64,
}

/// One direction of a link. Its methods want the class that it was made for.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Link {
    ring: Box<[Packet]>,
    /// Oldest packet on the link.
    head: u32,
    /// First packet that waits.
    waiting: u32,
    /// Where the next one goes.
    tail: u32,
    is_paused: bool,
    /// When the transmission of the last started packet ends.
    free_at_ps: u64,
    queued_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    marked: u64,
    dropped: u64,
    queued_bytes_max: u64,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            ring: vec![Packet::default(); RING_LENGTH_MIN].into_boxed_slice(),
            head: 0,
            waiting: 0,
            tail: 0,
            is_paused: false,
            free_at_ps: 0,
            queued_bytes: 0,
            sent: 0,
            sent_bytes: 0,
            marked: 0,
            dropped: 0,
            queued_bytes_max: 0,
        }
    }
}

impl Link {
    /// What has happened to its packets.
    pub fn counters(&self) -> LinkCounters {
        let Link { sent, sent_bytes, marked, dropped, queued_bytes_max, .. } = *self;
        LinkCounters { sent, sent_bytes, marked, dropped, queued_bytes_max }
    }

    /// Takes a packet at `now_ps`. True if it is on the link at once or waits for it, false if it was dropped.
    #[inline]
    pub fn offer(&mut self, class: &Class, now_ps: u64, packet: Packet) -> bool {
        self.start_until(class, now_ps);
        if self.waiting != self.tail || self.free_at_ps > now_ps || self.is_paused {
            return self.enqueue(class, packet);
        }
        self.free_at_ps = now_ps;
        self.push(packet);
        self.start_first(class);
        true
    }

    /// Sends a packet before all that wait, and whether paused or not: what links tell each other about themselves.
    pub fn offer_first(&mut self, class: &Class, now_ps: u64, packet: Packet) {
        self.start_until(class, now_ps);
        self.push(packet);
        for position in (self.waiting + 1..self.tail).rev() {
            let (from, to) = (self.slot(position - 1), self.slot(position));
            self.ring[to] = self.ring[from];
        }
        let slot = self.slot(self.waiting);
        self.ring[slot] = packet;
        self.free_at_ps = self.free_at_ps.max(now_ps);
        self.start_first(class);
    }

    /// Starts what may start at or before `now_ps`. Later starts stay open: a pause may come first.
    #[inline]
    pub fn start_until(&mut self, class: &Class, now_ps: u64) {
        while self.waiting != self.tail && self.free_at_ps <= now_ps && !self.is_paused {
            let bytes = self.start_first(class);
            self.queued_bytes -= u64::from(bytes);
        }
    }

    /// Stops starting packets; the one in transmission ends (IEEE 802.3 annex 31B).
    pub fn pause(&mut self, class: &Class, now_ps: u64) {
        self.start_until(class, now_ps);
        self.is_paused = true;
    }

    /// Goes on.
    pub fn resume(&mut self, now_ps: u64) {
        self.is_paused = false;
        self.free_at_ps = self.free_at_ps.max(now_ps);
    }

    /// Does what a pause frame says.
    pub fn obey(&mut self, class: &Class, frame: &Packet) {
        match frame.number {
            0 => self.resume(frame.at_ps),
            _ => self.pause(class, frame.at_ps),
        }
    }

    /// When it can start another packet at once, if that is before `end_ps`.
    #[inline]
    pub fn free_before(&mut self, class: &Class, end_ps: u64) -> Option<u64> {
        // Nothing is before the start: a flow and a rank of one host may both begin at 0.
        self.start_until(class, end_ps.saturating_sub(1));
        (self.waiting == self.tail && self.free_at_ps < end_ps && !self.is_paused).then_some(self.free_at_ps)
    }

    /// True while packets wait.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting != self.tail
    }

    /// True while packets are on the way.
    #[inline]
    pub fn has_started(&self) -> bool {
        self.head != self.waiting
    }

    /// Packets on the way.
    pub fn started_count(&self) -> u64 {
        u64::from(self.waiting.wrapping_sub(self.head))
    }

    /// Packets that wait, as of the last call with a time.
    pub fn waiting_count(&self) -> u64 {
        u64::from(self.tail.wrapping_sub(self.waiting))
    }

    /// Bytes that wait, as of the last call with a time.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Takes the oldest packet on the link if it arrives before `end_ps`.
    #[inline]
    pub fn take_before(&mut self, end_ps: u64) -> Option<Packet> {
        if self.head == self.waiting {
            return None;
        }
        let packet = self.ring[self.slot(self.head)];
        if packet.at_ps >= end_ps {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        if self.head == self.tail {
            // Empty: the first places are those that are in the cache.
            (self.head, self.waiting, self.tail) = (0, 0, 0);
        }
        Some(packet)
    }

    /// Puts a packet that has started elsewhere on the link: the receiving half of a link between two threads.
    pub fn land(&mut self, packet: Packet) {
        debug_assert_eq!(self.waiting, self.tail, "nothing waits at the receiving half");
        self.push(packet);
        self.waiting = self.tail;
    }

    #[inline]
    fn enqueue(&mut self, class: &Class, mut packet: Packet) -> bool {
        let queued = self.queued_bytes + u64::from(packet.bytes);
        if queued > class.queue_bytes_max {
            self.dropped += 1;
            return false;
        }
        if self.queued_bytes >= class.mark_bytes && packet.flags & ECT != 0 {
            packet.flags |= MARKED;
            self.marked += 1;
        }
        self.queued_bytes = queued;
        if queued > self.queued_bytes_max {
            self.queued_bytes_max = queued;
        }
        self.push(packet);
        true
    }

    #[inline]
    fn slot(&self, position: u32) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    /// Gives the first packet that waits its time; returns its length.
    #[inline]
    fn start_first(&mut self, class: &Class) -> u16 {
        let slot = self.slot(self.waiting);
        let packet = &mut self.ring[slot];
        self.free_at_ps += class.transmission_ps(packet.bytes);
        packet.at_ps = self.free_at_ps + class.delay_ps;
        self.waiting = self.waiting.wrapping_add(1);
        self.sent += 1;
        self.sent_bytes += u64::from(packet.bytes);
        packet.bytes
    }

    #[inline]
    fn push(&mut self, packet: Packet) {
        if self.tail.wrapping_sub(self.head) as usize == self.ring.len() {
            self.grow();
        }
        let slot = self.slot(self.tail);
        self.ring[slot] = packet;
        self.tail = self.tail.wrapping_add(1);
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let length = self.ring.len();
        let mut ring = vec![Packet::default(); 2 * length].into_boxed_slice();
        for step in 0..length as u32 {
            let position = self.head.wrapping_add(step);
            ring[position as usize & (2 * length - 1)] = self.ring[self.slot(position)];
        }
        self.ring = ring;
    }
}

#[cfg(test)]
mod tests;
