use std::net::{Ipv4Addr, SocketAddr};

use crate::loss::Gate;
use crate::{Counters, sys};

/// A super-packet of the largest size fits one buffer.
const BUFFER_BYTES: usize = 64 << 10;
const BUFFER_COUNT: usize = 4;

/// One message as the kernel delivered it into one buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) bytes: usize,
    /// Length of every datagram in it but maybe the last; `None` for a single datagram.
    pub(crate) segment_bytes: Option<usize>,
    pub(crate) truncated: bool,
    pub(crate) source: SocketAddr,
}

impl Message {
    pub(crate) const EMPTY: Self = Self {
        bytes: 0,
        segment_bytes: None,
        truncated: false,
        source: SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    };
}

/// A datagram that survived, by its place in the batch's memory.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u32,
    bytes: u16,
    message_index: u16,
}

/// Buffers for one [`UdpPort::receive`](crate::UdpPort::receive) and the datagrams found in them.
///
/// Memory is fixed at construction; every receive overwrites what the last one left. Super-packets are split
/// already: what a caller sees are datagrams.
#[derive(Debug)]
pub struct ReceiveBatch {
    memory: Box<[u8]>,
    buffer_bytes: usize,
    messages: Box<[Message]>,
    segments: Vec<Segment>,
}

impl ReceiveBatch {
    /// Four buffers of 64 KiB, right for a port with `gro`.
    pub fn new() -> Self {
        Self::with_buffers(BUFFER_COUNT, BUFFER_BYTES)
    }

    /// `buffer_count` buffers (1 to 64, one kernel message each) of `buffer_bytes` bytes (1 to 64 KiB); values outside
    /// are brought into range. Only a port without `gro` may use buffers below 64 KiB: a message that does
    /// not fit its buffer is dropped and counted in `dropped_truncated`.
    pub fn with_buffers(buffer_count: usize, buffer_bytes: usize) -> Self {
        let buffer_count = buffer_count.clamp(1, sys::MESSAGES_MAX);
        let buffer_bytes = buffer_bytes.clamp(1, BUFFER_BYTES);
        Self {
            memory: vec![0; buffer_count * buffer_bytes].into(),
            buffer_bytes,
            messages: vec![Message::EMPTY; buffer_count].into(),
            segments: Vec::with_capacity(buffer_count * crate::options::SEGMENTS_MAX),
        }
    }

    /// Number of datagrams held.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether no datagram is held.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The datagram at `index` in order of arrival and where it came from.
    pub fn get_mut(&mut self, index: usize) -> Option<(&mut [u8], SocketAddr)> {
        let segment = *self.segments.get(index)?;
        let start = segment.start as usize;
        let source = self.messages[segment.message_index as usize].source;
        Some((&mut self.memory[start..start + segment.bytes as usize], source))
    }

    /// The datagrams in order of arrival, each with its source and open to edits in place.
    pub fn iter_mut(&mut self) -> IterMut<'_> {
        IterMut { rest: &mut self.memory, consumed: 0, segments: self.segments.iter(), messages: &self.messages }
    }

    /// Forgets all datagrams and keeps the memory.
    pub fn clear(&mut self) {
        self.segments.clear();
    }

    pub(crate) fn buffers(&mut self) -> (&mut [u8], usize, &mut [Message]) {
        (&mut self.memory, self.buffer_bytes, &mut self.messages)
    }

    /// Lists the datagrams of the first `message_count` messages, less those `gate` loses.
    pub(crate) fn split(&mut self, message_count: usize, gate: &mut Gate, counters: &mut Counters) {
        for message_index in 0..message_count {
            let message = self.messages[message_index];
            if message.truncated {
                counters.dropped_truncated += 1;
                continue;
            }
            self.split_message(message_index, message, gate, counters);
        }
    }

    fn split_message(&mut self, message_index: usize, message: Message, gate: &mut Gate, counters: &mut Counters) {
        let base = message_index * self.buffer_bytes;
        let segment_bytes = message.segment_bytes.unwrap_or(message.bytes).max(1);
        counters.super_packets_received += u64::from(message.bytes > segment_bytes);
        let mut offset = 0;
        // An empty datagram is one too: it is delivered, for the layer above to judge and count.
        loop {
            let bytes = segment_bytes.min(message.bytes - offset);
            if gate.passing(1) == 0 {
                gate.lose();
                counters.dropped_injected_receive += 1;
            } else {
                gate.pass(1);
                counters.datagrams_received += 1;
                counters.bytes_received += bytes as u64;
                // In range: memory is at most 64 x 64 KiB, a message at most 64 KiB - 1.
                let start = (base + offset) as u32;
                self.segments.push(Segment { start, bytes: bytes as u16, message_index: message_index as u16 });
            }
            offset += bytes;
            if offset >= message.bytes {
                return;
            }
        }
    }
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Iterator over the datagrams of a [`ReceiveBatch`].
#[derive(Debug)]
pub struct IterMut<'a> {
    rest: &'a mut [u8],
    /// Bytes of the batch's memory in front of `rest`.
    consumed: usize,
    segments: std::slice::Iter<'a, Segment>,
    messages: &'a [Message],
}

impl<'a> Iterator for IterMut<'a> {
    type Item = (&'a mut [u8], SocketAddr);

    fn next(&mut self) -> Option<Self::Item> {
        let segment = self.segments.next()?;
        let (start, bytes) = (segment.start as usize, segment.bytes as usize);
        // Segments lie in rising order and never overlap, so each can be split off the front of the rest.
        let (_, from_here) = std::mem::take(&mut self.rest).split_at_mut(start - self.consumed);
        let (datagram, rest) = from_here.split_at_mut(bytes);
        self.rest = rest;
        self.consumed = start + bytes;
        Some((datagram, self.messages[segment.message_index as usize].source))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.segments.size_hint()
    }
}

impl ExactSizeIterator for IterMut<'_> {}
