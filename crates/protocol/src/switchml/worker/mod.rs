//! The endpoint of one lane: streams blocks through the switch's slots and
//! recovers what the network loses (SwitchML Algorithms 2 and 4).
//!
//! A worker owns no tensor and no socket. It asks [`Tensors`] for payloads
//! and exponents, is handed packets and the time, and says what to send and
//! when to wake it. After any call drain `poll_transmit` and `poll_event`,
//! then sleep until `poll_timeout`.

mod config;
mod counters;
mod emit;
mod fingerprint;
mod outstanding;
mod receive;
mod recovery;
mod slot;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fanin_numeric::BlockExponent;

use crate::stream::{BlockId, Stream, Submission};
use crate::time::Time;

pub use config::WorkerConfig;
pub use counters::WorkerCounters;
pub use receive::Event;
pub use slot::Outstanding;

use outstanding::OutstandingList;
use recovery::Recovery;
use slot::Slot;

/// The memory that a worker's collectives read and write.
///
/// `block` counts from the start of the collective; element `i` of block `b`
/// of a one-shard collective is wire element `b * shape.block_elements + i`.
pub trait Tensors {
    /// Exponent of the block's largest magnitude (SwitchML §4.6).
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent;
    /// Writes the block's elements to `payload`: scaled for `exponent`, or as they are where it is
    /// [`BlockExponent::NOT_NEEDED`]. A float sum whose submission is not `scaled` is asked for with an exponent when its
    /// accumulator has overflowed: it then goes as Int32.
    fn write_block(&mut self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]);
    /// Takes the block's sum, with the `exponent` that [`Tensors::write_block`] got. Of it each element counts `2^shift` of the
    /// contributions' units (0 for all formats but Int8). `payload` is empty when the sum goes to another
    /// rank, when every contribution was empty, and when `exponent` is
    /// [`BlockExponent::NON_FINITE`]: then the sum is not a number.
    fn read_block(&mut self, id: BlockId, exponent: BlockExponent, shift: u8, payload: &[u8]);
}

/// One lane of one worker.
#[derive(Clone)]
pub struct Worker {
    config: WorkerConfig,
    slots: Vec<Slot>,
    stream: Stream,
    /// Slots whose contribution can go out now, in sending order.
    ready: VecDeque<u32>,
    /// Slots whose Query can go out now. Apart from the others, because
    /// drivers hand runs of equal lengths to the kernel at once.
    asking: VecDeque<u32>,
    /// Slots whose packet is out, least recently sent first.
    outstanding: OutstandingList,
    recovery: Recovery,
    events: VecDeque<Event>,
    counters: WorkerCounters,
}

impl Worker {
    /// A lane with an empty stream.
    ///
    /// # Panics
    /// If `slots_per_lane` is not a power of two.
    pub fn new(config: WorkerConfig) -> Worker {
        assert!(config.slots_per_lane.is_power_of_two(), "slots_per_lane must be a power of two");
        let slot_count = config.slots_per_lane as usize;
        let mut slots = Vec::with_capacity(slot_count);
        slots.resize_with(slot_count, Slot::default);
        Worker {
            slots,
            stream: Stream::default(),
            ready: VecDeque::with_capacity(slot_count),
            asking: VecDeque::with_capacity(slot_count),
            outstanding: OutstandingList::new(slot_count),
            recovery: Recovery::new(&config),
            events: VecDeque::new(),
            counters: WorkerCounters::default(),
            config,
        }
    }

    /// Appends a collective to the stream. All workers must submit the same
    /// collectives in the same order (SwitchML App. B).
    pub fn submit(&mut self, submission: Submission) {
        let first = self.stream.push(submission);
        let window = u64::from(self.config.slots_per_lane);
        for block in first..self.stream.end().min(first + window) {
            let slot = (block & (window - 1)) as u32;
            if self.slots[slot as usize].is_idle() {
                self.assign(slot, block);
            }
        }
    }

    /// Gives a slot its next block and queues the packet.
    fn assign(&mut self, slot_local: u32, block: u64) {
        self.slots[slot_local as usize].assign(block);
        self.ready.push_back(slot_local);
    }

    /// Sends again what has been out too long.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        let burst = self.recovery.on_timeout(now);
        for _ in 0..burst {
            match self.outstanding.oldest() {
                Some(slot) => self.queue_resend(slot),
                None => break,
            }
        }
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let oldest = self.outstanding.oldest()?;
        Some(self.recovery.deadline(self.slots[oldest as usize].sent_last))
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether every submitted block has its result.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.asking.is_empty() && self.outstanding.is_empty()
    }

    /// Packets by outcome.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Smoothed round-trip time, once one was measured.
    pub fn round_trip(&self) -> Option<crate::time::Span> {
        self.recovery.smoothed()
    }

    /// The chunk that has waited longest, for the hang explainer.
    pub fn oldest_outstanding(&self) -> Option<Outstanding> {
        let local = self.outstanding.oldest().or(self.asking.front().copied()).or(self.ready.front().copied())?;
        let slot = &self.slots[local as usize];
        Some(Outstanding {
            slot_index: self.config.slot_index(local),
            slot_parity: slot.parity(),
            chunk_index: self.config.chunk_index(local, slot.round),
            attempt_count: slot.attempt_count,
            sent_first: slot.sent_first,
            outstanding_count: self.outstanding.len() + (self.ready.len() + self.asking.len()) as u32,
        })
    }

    /// Takes an outstanding slot off the list and queues its packet again.
    fn queue_resend(&mut self, slot_local: u32) {
        self.outstanding.remove(slot_local);
        let queue = if self.asks_first(slot_local) { &mut self.asking } else { &mut self.ready };
        queue.push_back(slot_local);
    }
}
