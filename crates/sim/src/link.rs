//! One direction of a link, with the queue of the port that sends into it.
//!
//! A ring holds, oldest first, the packets that are on the link and those that wait for it. First come is first served, so a packet's
//! time of arrival is known when it is offered, and it is not touched again until it arrives: one event for each hop, and none for
//! the queue. A pause takes the times back of those that have not started; the end of the pause gives them new ones.
//!
//! How many bytes wait follows from when the port will be free, but for the packet in transmission. That is enough to know of most packets
//! that they are neither marked nor dropped ([`Link::offer`]); for the others a cursor goes through the ring and counts exactly.
//!
//! A large network's links do not fit into a cache, so what every packet touches is one cache line: what links have in
//! common is a [`Class`] of its own, and what happens seldom is counted in the next line.

use crate::packet::{ECT, MARKED, Packet};

const PICOSECONDS_PER_SECOND: u64 = 1_000_000_000_000;
/// Binary places of the time that a byte takes, so that every rate is exact to a millionth.
const FRACTION_BITS: u32 = 20;
const RING_LENGTH_MIN: usize = 4;
/// Of a packet that a pause holds.
const NEVER_PS: u64 = u64::MAX;

/// What a link and its queue are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second, everything that takes time on the link included.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay_ps: u64,
    /// What the queue holds at most; the packet in transmission does not count.
    pub queue_bytes_max: u64,
    /// A packet that finds at least this much in the queue is marked (instantaneous length, as in DCTCP §3.1).
    pub mark_bytes: u64,
    /// The chance of a packet to arrive damaged, and to be thrown away then; below 1.
    pub corruption: f64,
}

impl LinkConfig {
    /// What fits on the link, there and back.
    pub fn round_trip_bytes(&self) -> u64 {
        let bits = 2 * u128::from(self.delay_ps) * u128::from(self.rate_bps);
        bits.div_ceil(8 * u128::from(PICOSECONDS_PER_SECOND)).try_into().unwrap_or(u64::MAX)
    }
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
            // Bytes that wait are counted in 32 bits.
            queue_bytes_max: config.queue_bytes_max.min(u32::MAX.into()),
            mark_bytes: config.mark_bytes,
        }
    }

    /// What a queue holds at most.
    pub fn queue_bytes_max(&self) -> u64 {
        self.queue_bytes_max
    }

    /// The same with another limit of the queue.
    pub fn with_queue_bytes_max(self, queue_bytes_max: u64) -> Class {
        Class { queue_bytes_max: queue_bytes_max.min(u32::MAX.into()), ..self }
    }

    /// When the transmission of a packet has begun.
    #[inline]
    fn start_ps(&self, packet: &Packet) -> u64 {
        packet.at_ps - self.delay_ps - self.transmission_ps(packet.bytes)
    }

    /// A backlog up to which no packet is marked or dropped, or is the most that has waited.
    fn calm_ps(&self, queued_bytes_max: u64) -> u32 {
        let bytes = queued_bytes_max.min(self.mark_bytes).min(self.queue_bytes_max);
        u32::try_from((u128::from(bytes) * u128::from(self.time_per_byte)) >> FRACTION_BITS).unwrap_or(u32::MAX)
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
    /// Oldest packet.
    head: u32,
    /// First packet that is not known to have started; those that have are counted off when somebody needs to know.
    waiting: u32,
    /// Where the next one goes.
    tail: u32,
    /// Bytes from `waiting` on.
    queued_bytes: u32,
    /// When the transmission of the last packet ends; while paused, of the last started one.
    free_at_ps: u64,
    /// Of all packets that were not turned away.
    accepted_bytes: u64,
    /// Of the last 2³².
    accepted: u32,
    calm_ps: u32,
    /// For whoever has the link: the word and the bit that tell its far end that packets are on the way.
    pub(crate) far_word: u32,
    pub(crate) far_bit: u8,
    /// For whoever has the link: its class.
    pub(crate) class: u8,
    is_paused: bool,
    // Here the second line begins.
    marked: u64,
    dropped: u64,
    queued_bytes_max: u64,
    accepted_wraps: u64,
}

const _: () = assert!(std::mem::offset_of!(Link, marked) == 64);

impl Default for Link {
    fn default() -> Self {
        Link {
            ring: vec![Packet::default(); RING_LENGTH_MIN].into_boxed_slice(),
            head: 0,
            waiting: 0,
            tail: 0,
            queued_bytes: 0,
            free_at_ps: 0,
            accepted_bytes: 0,
            accepted: 0,
            calm_ps: 0,
            far_word: 0,
            far_bit: 0,
            class: 0,
            is_paused: false,
            marked: 0,
            dropped: 0,
            queued_bytes_max: 0,
            accepted_wraps: 0,
        }
    }
}

impl Link {
    /// What has happened to its packets, as of the last call of [`Link::start_until`].
    pub fn counters(&self) -> LinkCounters {
        let Link { marked, dropped, queued_bytes_max, .. } = *self;
        LinkCounters {
            sent: self.accepted_count() - self.waiting_count(),
            sent_bytes: self.accepted_bytes - self.queued_bytes(),
            marked,
            dropped,
            queued_bytes_max,
        }
    }

    /// Takes a packet at `now_ps`. True if it is on the link at once or waits for it, false if it was dropped.
    #[inline]
    pub fn offer(&mut self, class: &Class, now_ps: u64, packet: &Packet) -> bool {
        let backlog_ps = self.free_at_ps.saturating_sub(now_ps);
        // Each packet's transmission is rounded down by less than a picosecond, so the bytes that wait take at most one for each packet
        // longer than their backlog.
        let waiting_ps =
            backlog_ps + class.transmission_ps(packet.bytes) + u64::from(self.tail.wrapping_sub(self.head)) + 1;
        // No short cuts: whether anything waits is hard to guess, whether much does is not.
        if self.is_paused | ((backlog_ps > 0) & (waiting_ps > u64::from(self.calm_ps))) {
            return self.offer_counted(class, now_ps, packet);
        }
        self.accept(class, now_ps, packet, 0);
        self.queued_bytes = self.queued_bytes.wrapping_add(packet.bytes.into());
        true
    }

    /// The same, and afterwards [`Link::waiting_count`] and [`Link::queued_bytes`] are those of `now_ps`.
    #[inline(never)]
    pub fn offer_counted(&mut self, class: &Class, now_ps: u64, packet: &Packet) -> bool {
        self.start_until(class, now_ps);
        if self.free_at_ps <= now_ps && !self.is_paused {
            self.accept(class, now_ps, packet, 0);
            self.waiting = self.tail;
            return true;
        }
        let queued = self.queued_bytes() + u64::from(packet.bytes);
        if queued > class.queue_bytes_max {
            self.dropped += 1;
            return false;
        }
        let is_marked = self.queued_bytes() >= class.mark_bytes && packet.flags & ECT != 0;
        self.marked += u64::from(is_marked);
        if queued > self.queued_bytes_max {
            self.queued_bytes_max = queued;
            self.calm_ps = class.calm_ps(queued);
        }
        self.accept(class, now_ps, packet, if is_marked { MARKED } else { 0 });
        self.queued_bytes = queued as u32;
        true
    }

    /// Sends a packet before all that wait, and whether paused or not: what links tell each other about themselves.
    pub fn offer_first(&mut self, class: &Class, now_ps: u64, packet: &Packet) {
        self.hold(class, now_ps);
        self.push(packet, NEVER_PS, 0);
        for position in self.positions_waiting().skip(1).rev() {
            let (from, to) = (self.slot(position.wrapping_sub(1)), self.slot(position));
            self.ring[to] = self.ring[from];
        }
        self.free_at_ps = self.free_at_ps.max(now_ps) + class.transmission_ps(packet.bytes);
        let slot = self.slot(self.waiting);
        self.ring[slot] = Packet { at_ps: self.free_at_ps + class.delay_ps, ..*packet };
        self.waiting = self.waiting.wrapping_add(1);
        self.count(packet.bytes);
        if !self.is_paused {
            self.release(class);
        }
    }

    /// Counts off what starts at or before `now_ps`.
    #[inline]
    pub fn start_until(&mut self, class: &Class, now_ps: u64) {
        while self.waiting != self.tail && !self.is_paused {
            let packet = &self.ring[self.slot(self.waiting)];
            if class.start_ps(packet) > now_ps {
                return;
            }
            self.queued_bytes = self.queued_bytes.wrapping_sub(packet.bytes.into());
            self.waiting = self.waiting.wrapping_add(1);
        }
    }

    /// Stops starting packets; the one in transmission ends (IEEE 802.3 annex 31B).
    pub fn pause(&mut self, class: &Class, now_ps: u64) {
        self.hold(class, now_ps);
        self.is_paused = true;
    }

    /// Goes on.
    pub fn resume(&mut self, class: &Class, now_ps: u64) {
        self.free_at_ps = self.free_at_ps.max(now_ps);
        if std::mem::replace(&mut self.is_paused, false) {
            self.release(class);
        }
    }

    /// Does what a pause frame says.
    pub fn obey(&mut self, class: &Class, frame: &Packet) {
        match frame.number {
            0 => self.resume(class, frame.at_ps),
            _ => self.pause(class, frame.at_ps),
        }
    }

    /// If it is paused and something waits: when the last transmission ended.
    pub fn stopped_since(&self) -> Option<u64> {
        (self.is_paused && self.waiting_count() > 0).then_some(self.free_at_ps)
    }

    /// Packets that were accepted, whether they are still here or not; of a receiving half, packets that have landed.
    pub fn accepted_count(&self) -> u64 {
        self.accepted_wraps << 32 | u64::from(self.accepted)
    }

    /// Of these, packets that whoever has the far end has taken.
    pub fn arrived_count(&self) -> u64 {
        self.accepted_count() - u64::from(self.tail.wrapping_sub(self.head))
    }

    /// When it can start another packet at once, if that is before `end_ps`.
    #[inline]
    pub fn free_before(&self, end_ps: u64) -> Option<u64> {
        (self.free_at_ps < end_ps && !self.is_paused).then_some(self.free_at_ps)
    }

    /// True if no packet is on the way or waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Packets on the way, as of the last call of [`Link::start_until`].
    pub fn started_count(&self) -> u64 {
        u64::from(self.waiting.wrapping_sub(self.head))
    }

    /// Packets that wait, as of the last call of [`Link::start_until`].
    pub fn waiting_count(&self) -> u64 {
        u64::from(self.tail.wrapping_sub(self.waiting))
    }

    /// Bytes that wait, as of the last call of [`Link::start_until`].
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes.into()
    }

    /// When the oldest packet arrives; of no meaning if there is none.
    #[inline]
    pub fn first_ps(&self) -> u64 {
        self.ring[self.slot(self.head)].at_ps
    }

    /// The oldest packet, if it arrives before `end_ps`.
    #[inline]
    pub fn first_before(&self, end_ps: u64) -> Option<&Packet> {
        let packet = &self.ring[self.slot(self.head)];
        ((self.head != self.tail) & (packet.at_ps < end_ps)).then_some(packet)
    }

    /// Takes away the oldest packet, of so many bytes.
    #[inline]
    pub fn remove_first(&mut self, bytes: u16) {
        // Counted off if it has not been, without a branch that is hard to guess.
        let is_uncounted = u32::from(self.head == self.waiting);
        self.waiting = self.waiting.wrapping_add(is_uncounted);
        self.queued_bytes = self.queued_bytes.wrapping_sub(is_uncounted * u32::from(bytes));
        self.head = self.head.wrapping_add(1);
        // If empty, from the first place on: that one is in the cache.
        let kept = u32::from(self.head != self.tail).wrapping_neg();
        self.head &= kept;
        self.waiting &= kept;
        self.tail &= kept;
    }

    /// Takes the oldest packet if it arrives before `end_ps`.
    #[inline]
    pub fn take_before(&mut self, end_ps: u64) -> Option<Packet> {
        let packet = *self.first_before(end_ps)?;
        self.remove_first(packet.bytes);
        Some(packet)
    }

    /// Takes the oldest packet if it is known to have started: for whoever has the far end.
    pub fn take_started(&mut self) -> Option<Packet> {
        if self.head == self.waiting { None } else { self.take_before(u64::MAX) }
    }

    /// Puts a packet that has started elsewhere on the link: the receiving half of a link between two threads.
    pub fn land(&mut self, packet: &Packet) {
        debug_assert_eq!(self.waiting, self.tail, "nothing waits at the receiving half");
        self.push(packet, packet.at_ps, 0);
        self.count(packet.bytes);
        self.waiting = self.tail;
    }

    /// Puts a packet behind the others, with its time if there is one.
    #[inline]
    fn accept(&mut self, class: &Class, now_ps: u64, packet: &Packet, marks: u8) {
        let mut at_ps = NEVER_PS;
        if !self.is_paused {
            self.free_at_ps = self.free_at_ps.max(now_ps) + class.transmission_ps(packet.bytes);
            at_ps = self.free_at_ps + class.delay_ps;
        }
        self.push(packet, at_ps, marks);
        self.count(packet.bytes);
    }

    #[inline]
    fn count(&mut self, bytes: u16) {
        self.accepted_bytes += u64::from(bytes);
        self.accepted = self.accepted.wrapping_add(1);
        if self.accepted == 0 {
            self.accepted_wraps += 1;
        }
    }

    /// Takes the times back of packets that start after `now_ps`.
    fn hold(&mut self, class: &Class, now_ps: u64) {
        self.start_until(class, now_ps);
        if self.waiting == self.tail || self.is_paused {
            return;
        }
        self.free_at_ps = class.start_ps(&self.ring[self.slot(self.waiting)]);
        for position in self.positions_waiting() {
            let slot = self.slot(position);
            self.ring[slot].at_ps = NEVER_PS;
        }
    }

    /// Gives them times again.
    fn release(&mut self, class: &Class) {
        for position in self.positions_waiting() {
            let slot = self.slot(position);
            self.free_at_ps += class.transmission_ps(self.ring[slot].bytes);
            self.ring[slot].at_ps = self.free_at_ps + class.delay_ps;
        }
    }

    fn positions_waiting(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + use<> {
        let first = self.waiting;
        (0..self.tail.wrapping_sub(first)).map(move |step| first.wrapping_add(step))
    }

    #[inline]
    fn slot(&self, position: u32) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    #[inline]
    fn push(&mut self, packet: &Packet, at_ps: u64, marks: u8) {
        if self.tail.wrapping_sub(self.head) as usize == self.ring.len() {
            self.grow();
        }
        let slot = self.slot(self.tail);
        let kept = &mut self.ring[slot];
        // Only here: a copy whose parts are written before the whole is read again makes a processor wait.
        *kept = *packet;
        kept.at_ps = at_ps;
        kept.flags |= marks;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Some number that is known once the cache has the place where the next packet goes.
    #[inline]
    pub fn look_at_end(&self) -> u64 {
        self.ring[self.slot(self.tail)].at_ps
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
