//! The sending end of a flow: DCTCP (Alizadeh et al., SIGCOMM 2010, §3.3) or NewReno (RFC 6582).
//!
//! Segments are counted, not bytes. Losses are found by three duplicates or by the timer; after a timeout the sender goes back to the first
//! segment that is missing.

use super::{FlowRecord, Handle, HostCounters, Uplink};
use crate::packet::{ECHO, ECT, Kind, LAST, Packet};
use crate::transport::{Congestion, Transport};
use crate::workload::Flow;

const DUPLICATES_MAX: u32 = 3;
const BACKOFF_MAX: u32 = 6;
/// Nothing is timed.
const UNTIMED: u32 = u32::MAX;

/// One flow.
#[derive(Debug)]
pub struct Sender {
    /// All segments; of a stream, those that the application has given so far.
    segment_count: u32,
    /// Of a stream, segments of each message: the last of a message may be short. Otherwise 0.
    message_segments: u32,
    /// First segment that the receiver lacks.
    acked: u32,
    /// Next to be sent.
    next: u32,
    /// One past the last that was ever sent.
    sent_end: u32,
    /// Segments that may be out.
    window: f64,
    threshold: f64,
    /// DCTCP's estimate of the share of marked segments.
    alpha: f64,
    /// The observation window ends when this is acknowledged.
    round_end: u32,
    round_acked: u32,
    round_marked: u32,
    duplicates: u32,
    /// Recovery lasts until this is acknowledged.
    recovery_end: Option<u32>,
    /// What was out at the last timeout: duplicates from sending it again are no new loss (RFC 6582 §3.2, step 6).
    timeout_end: u32,
    backoff: u32,
    timed_number: u32,
    timed_at_ps: u64,
    round_trip_ps: u64,
    deviation_ps: u64,
    expiry_ps: u64,
    /// In the host's line of flows that may send.
    pub is_in_line: bool,
    /// What all its segments have in common.
    template: Packet,
    last_bytes: u16,
    /// Payload of a whole segment.
    segment_bytes: u64,
    start_ps: u64,
    bytes: u64,
}

impl Sender {
    /// A flow that has sent nothing yet, and stands in line.
    pub fn new(host: u16, handle: Handle, flow: &Flow, now_ps: u64, transport: &Transport) -> Sender {
        let payload = u64::from(transport.segment_bytes);
        let segment_count = flow.bytes.div_ceil(payload).clamp(1, u64::from(u32::MAX - 1)) as u32;
        let last = flow.bytes.saturating_sub(u64::from(segment_count - 1) * payload).min(payload);
        let template = Packet {
            flow: handle.raw(),
            peer: Handle::NONE.raw(),
            source: host,
            destination: flow.destination,
            bytes: transport.data_bytes(payload as u16),
            hash: flow.hash,
            kind: Kind::Data,
            flags: if transport.congestion.uses_marks() { ECT } else { 0 },
            ..Packet::default()
        };
        Sender {
            segment_count,
            message_segments: 0,
            acked: 0,
            next: 0,
            sent_end: 0,
            window: f64::from(transport.initial_window),
            threshold: f64::INFINITY,
            alpha: 1.0,
            round_end: 0,
            round_acked: 0,
            round_marked: 0,
            duplicates: 0,
            recovery_end: None,
            timeout_end: 0,
            backoff: 0,
            timed_number: UNTIMED,
            timed_at_ps: 0,
            round_trip_ps: 0,
            deviation_ps: 0,
            expiry_ps: u64::MAX,
            is_in_line: true,
            template,
            last_bytes: transport.data_bytes(last as u16),
            segment_bytes: payload,
            start_ps: now_ps,
            bytes: flow.bytes,
        }
    }

    /// A connection that stays, for messages as long as the flow, of which there are none yet. Its segments carry a tag.
    pub fn stream(mut self, tag: u16) -> Sender {
        self.message_segments = std::mem::take(&mut self.segment_count);
        self.template.tag = tag;
        self.is_in_line = false;
        self
    }

    /// The same without ECN: its packets are never marked, and only losses slow it down (NewReno).
    pub fn unmarkable(mut self) -> Sender {
        self.template.flags &= !ECT;
        self
    }

    /// Some number that is known once the cache has all of it.
    #[inline]
    pub fn look(&self) -> u64 {
        u64::from(self.acked) ^ self.expiry_ps ^ u64::from(self.template.flags) ^ self.window.to_bits()
    }

    /// All messages that there are to be sent by now.
    pub fn extend(&mut self, message_count: u64) {
        self.segment_count = (message_count * u64::from(self.message_segments)).min(u64::from(u32::MAX)) as u32;
    }

    /// When its timer runs out.
    pub fn expiry_ps(&self) -> u64 {
        self.expiry_ps
    }

    /// True once everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.acked == self.segment_count && self.message_segments == 0
    }

    /// True of a job's connection, which has no end.
    pub fn is_stream(&self) -> bool {
        self.message_segments > 0
    }

    /// Payload that the receiver is known to have.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.payload_before(self.acked)
    }

    /// What is to be told of it at its end.
    pub fn record(&self, now_ps: u64, source: u16) -> FlowRecord {
        let destination = self.template.destination;
        let completion_ps = now_ps - self.start_ps;
        FlowRecord { start_ps: self.start_ps, completion_ps, bytes: self.bytes, source, destination }
    }

    /// True while the window allows another segment.
    #[inline]
    pub fn may_send(&self) -> bool {
        // At least one: a window below a segment would wait for ever.
        self.next < self.segment_count && self.next - self.acked < (self.window as u32).max(1)
    }

    /// Sends the next segment, which the window must allow.
    #[inline]
    pub fn send_next(&mut self, now_ps: u64, transport: &Transport, counters: &mut HostCounters, uplink: &mut Uplink) {
        if self.expiry_ps == u64::MAX {
            self.arm(now_ps, transport);
        }
        self.send(self.next, now_ps, counters, uplink);
        self.next += 1;
        self.sent_end = self.sent_end.max(self.next);
    }

    /// An acknowledgement has arrived.
    #[inline]
    pub fn handle_ack(
        &mut self,
        ack: &Packet,
        transport: &Transport,
        counters: &mut HostCounters,
        uplink: &mut Uplink,
    ) {
        self.template.peer = ack.peer;
        // A receiver that has forgotten the flow has all of it, and no more is acknowledged than was sent.
        let received = ack.number.min(self.sent_end);
        let is_marked = ack.flags & ECHO != 0;
        if received > self.acked {
            self.advance(received, is_marked, ack.at_ps, transport, counters, uplink);
        } else {
            self.repeat(is_marked, ack.at_ps, counters, uplink);
        }
    }

    /// The timer has run out: everything from the first missing segment on is taken for lost.
    pub fn handle_timeout(&mut self, now_ps: u64, transport: &Transport, counters: &mut HostCounters) {
        counters.timeouts += 1;
        self.threshold = (self.window / 2.0).max(2.0);
        self.window = 1.0;
        self.next = self.acked;
        self.duplicates = 0;
        self.recovery_end = None;
        self.timeout_end = self.sent_end;
        self.timed_number = UNTIMED;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.arm(now_ps, transport);
    }

    fn advance(
        &mut self,
        received: u32,
        is_marked: bool,
        now_ps: u64,
        transport: &Transport,
        counters: &mut HostCounters,
        uplink: &mut Uplink,
    ) {
        let newly = received - self.acked;
        let bytes = self.payload_before(received) - self.payload_before(self.acked);
        match self.message_segments {
            0 => counters.acknowledged_bytes += bytes,
            _ => counters.job_bytes += bytes,
        }
        self.acked = received;
        self.next = self.next.max(received);
        self.duplicates = 0;
        self.backoff = 0;
        self.measure(received, now_ps);
        self.count_marks(newly, is_marked);
        match self.recovery_end {
            Some(end) if received < end => {
                // A partial acknowledgement: the next gap, and what has left the network makes room for one more only
                // (RFC 6582 §3.2, step 3).
                self.window = (self.window - f64::from(newly) + 1.0).max(1.0);
                self.send(received, now_ps, counters, uplink);
            }
            Some(_) => {
                self.recovery_end = None;
                self.window = self.threshold;
            }
            None if self.window < self.threshold => self.window += f64::from(newly),
            None => self.window += f64::from(newly) / self.window,
        }
        if received >= self.round_end {
            self.end_round(transport);
        }
        self.expiry_ps = u64::MAX;
        if self.next > self.acked {
            self.arm(now_ps, transport);
        }
    }

    fn repeat(&mut self, is_marked: bool, now_ps: u64, counters: &mut HostCounters, uplink: &mut Uplink) {
        self.count_marks(1, is_marked);
        if self.recovery_end.is_some() {
            self.window += 1.0;
            return;
        }
        self.duplicates += 1;
        if self.duplicates == DUPLICATES_MAX && self.next > self.acked && self.acked >= self.timeout_end {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = self.threshold + f64::from(DUPLICATES_MAX);
            self.recovery_end = Some(self.next);
            self.timed_number = UNTIMED;
            self.send(self.acked, now_ps, counters, uplink);
        }
    }

    /// Payload of the segments before this one; the last may be short.
    fn payload_before(&self, segment: u32) -> u64 {
        match self.message_segments {
            0 if segment == self.segment_count => self.bytes,
            0 => u64::from(segment) * self.segment_bytes,
            each => u64::from(segment / each) * self.bytes + u64::from(segment % each) * self.segment_bytes,
        }
    }

    fn count_marks(&mut self, newly: u32, is_marked: bool) {
        self.round_acked += newly;
        if is_marked {
            self.round_marked += newly;
        }
    }

    /// Once for a window of data (DCTCP Eqs 1 and 2).
    fn end_round(&mut self, transport: &Transport) {
        if let Congestion::Dctcp { gain } = transport.congestion
            && self.template.flags & ECT != 0
        {
            let share = f64::from(self.round_marked) / f64::from(self.round_acked.max(1));
            self.alpha += gain * (share - self.alpha);
            if self.round_marked > 0 && self.recovery_end.is_none() {
                self.window = (self.window * (1.0 - self.alpha / 2.0)).max(1.0);
                self.threshold = self.window;
            }
        }
        self.round_end = self.next;
        self.round_acked = 0;
        self.round_marked = 0;
    }

    /// Round-trip time, of one segment at a time and none that was sent twice (RFC 6298).
    fn measure(&mut self, received: u32, now_ps: u64) {
        if self.timed_number == UNTIMED || received <= self.timed_number {
            return;
        }
        let sample = now_ps - self.timed_at_ps;
        self.timed_number = UNTIMED;
        if self.round_trip_ps == 0 {
            self.round_trip_ps = sample;
            self.deviation_ps = sample / 2;
        } else {
            let error = sample.abs_diff(self.round_trip_ps);
            self.deviation_ps = (3 * self.deviation_ps + error) / 4;
            self.round_trip_ps = (7 * self.round_trip_ps + sample) / 8;
        }
    }

    fn arm(&mut self, now_ps: u64, transport: &Transport) {
        let measured = self.round_trip_ps + 4 * self.deviation_ps;
        let timeout = if self.round_trip_ps == 0 { transport.timeout_initial_ps } else { measured };
        self.expiry_ps = now_ps + (timeout.max(transport.timeout_min_ps) << self.backoff);
    }

    #[inline]
    fn send(&mut self, number: u32, now_ps: u64, counters: &mut HostCounters, uplink: &mut Uplink) {
        counters.resent += u64::from(number < self.sent_end);
        if self.timed_number == UNTIMED && number >= self.sent_end {
            self.timed_number = number;
            self.timed_at_ps = now_ps;
        }
        let mut packet = Packet { number, ..self.template };
        if self.message_segments > 0 {
            if (number + 1).is_multiple_of(self.message_segments) {
                packet.bytes = self.last_bytes;
            }
        } else if number + 1 == self.segment_count {
            packet.flags |= LAST;
            packet.bytes = self.last_bytes;
        }
        uplink.offer(now_ps, &packet);
    }
}
