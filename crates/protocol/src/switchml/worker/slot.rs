//! A slot as its worker sees it.

use fanin_numeric::BlockExponent;
use fanin_wire::ElementFormat;

use crate::stream::Submission;
use crate::time::Time;

/// What the slot's current chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Nothing to send: the stream has no further block for this slot.
    Idle,
    /// A block is assigned; whether its exponent must be announced first is
    /// decided when the packet is written.
    Assigned,
    /// An announce is out.
    Announcing,
    /// The block's elements are out.
    Summing,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub phase: Phase,
    /// Uses of this slot so far; its low bit is the parity.
    pub round: u32,
    /// Stream block assigned to the slot.
    pub block: u64,
    /// Exponent that the workers agreed on for `block`.
    pub exponent: BlockExponent,
    pub sent_first: Time,
    pub sent_last: Time,
    pub attempt_count: u32,
    /// The switch has said that the contribution did not arrive.
    pub missing: bool,
    /// The block's sum left its accumulator's format: this time it goes as block fixed point.
    pub overflowed: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            phase: Phase::Idle,
            round: 0,
            block: 0,
            exponent: BlockExponent::UNKNOWN,
            sent_first: Time::ZERO,
            sent_last: Time::ZERO,
            attempt_count: 0,
            missing: false,
            overflowed: false,
        }
    }
}

impl Slot {
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub fn parity(&self) -> u8 {
        (self.round & 1) as u8
    }

    pub fn assign(&mut self, block: u64) {
        self.block = block;
        self.phase = Phase::Assigned;
        self.attempt_count = 0;
    }

    /// The block of an announce, or of a sum that is not used, goes on the slot's next use.
    pub fn assign_again(&mut self) {
        self.assign(self.block);
    }

    /// Whether the block is scaled by an agreed exponent, this time.
    pub fn is_scaled(&self, submission: &Submission) -> bool {
        submission.scaled || self.overflowed
    }

    /// How the block's elements are encoded, this time.
    pub fn element_format(&self, submission: &Submission) -> ElementFormat {
        if self.overflowed { ElementFormat::Int32 } else { submission.element_format }
    }

    pub fn mark_sent(&mut self, now: Time) {
        if self.attempt_count == 0 {
            self.sent_first = now;
        }
        self.sent_last = now;
        self.attempt_count = self.attempt_count.saturating_add(1);
        self.missing = false;
    }

    /// The chunk is answered: the next use of the slot begins.
    pub fn advance(&mut self, exponent_next: BlockExponent) {
        self.round = self.round.wrapping_add(1);
        self.exponent = exponent_next;
        self.attempt_count = 0;
    }
}

/// A chunk without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Slot within the job's pool.
    pub slot_index: u16,
    /// Which of its two copies.
    pub slot_parity: u8,
    /// The chunk.
    pub chunk_index: u32,
    /// Times it was sent.
    pub attempt_count: u32,
    /// When it was first sent.
    pub sent_first: Time,
    /// Chunks of this lane without an answer.
    pub outstanding_count: u32,
}
