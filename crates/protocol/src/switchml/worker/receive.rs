//! Taking an answer from the switch.

use fanin_numeric::BlockExponent;
use fanin_wire::generated::{INT8_SHIFT_MAX, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, fanin, p4app};

use super::emit::{P4APP_NON_FINITE, P4APP_UNKNOWN};
use super::slot::Phase;
use super::{BlockId, Submission, Tensors, Worker};
use crate::DropReason;
use crate::switchml::WireFormat;
use crate::time::Time;

/// Something the caller of a worker acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All blocks that this lane carries of a collective have their sums.
    Completed {
        /// The submission's `id`.
        collective: u64,
    },
    /// A block held an infinity or a NaN at some worker; its sum is NaN.
    NonFinite(BlockId),
    /// Elements of a block left the accumulator's format: the block is sent again as block fixed point.
    Overflowed {
        /// The block.
        id: BlockId,
        /// How many of its elements did.
        element_count: u32,
    },
    /// The switch does not accept this worker's packets.
    Refused {
        /// Why.
        reason: DropReason,
        /// The chunk that was refused.
        chunk_index: u32,
        /// Its slot.
        slot_index: u16,
        /// The collective it belongs to, if it is still in progress.
        collective: Option<u64>,
    },
}

/// An Aggregate that answers an outstanding chunk.
struct Answer<'a> {
    slot_local: u32,
    exponent_next: BlockExponent,
    payload: &'a [u8],
    /// Of an Int8 sum: each byte counts `2^shift` steps.
    shift: u8,
    /// Elements that left the accumulator's format.
    overflow: u32,
    /// Sent to this worker alone, in answer to a resend.
    replied: bool,
}

impl Worker {
    /// Handles one datagram from the switch. Whatever is not an answer to an
    /// outstanding chunk is counted and ignored.
    pub fn handle_packet(&mut self, now: Time, datagram: &[u8], tensors: &mut impl Tensors) {
        let accepted = match self.config.wire_format {
            WireFormat::Fanin => self.accept_fanin(now, datagram),
            WireFormat::P4app => self.accept_p4app(datagram),
        };
        match accepted {
            Ok(Some(answer)) => self.handle_answer(now, &answer, tensors),
            Ok(None) => {}
            Err(reason) => self.counters.drops[reason as usize] += 1,
        }
    }

    fn accept_fanin<'a>(&mut self, now: Time, datagram: &'a [u8]) -> Result<Option<Answer<'a>>, DropReason> {
        let (header, payload) = if self.config.has_checksum {
            fanin::Header::parse(datagram)?
        } else {
            fanin::Header::parse_unsummed(datagram)?
        };
        if header.job_id != self.config.job_id {
            return Err(DropReason::UnknownJob);
        }
        if header.job_token != self.config.job_token {
            return Err(DropReason::StaleToken);
        }
        match header.kind {
            Kind::Contribution | Kind::Query | Kind::Probe | Kind::ProbeReply => return Err(DropReason::BadKind),
            Kind::Missing => return self.accept_missing(now, &header).map(|()| None),
            Kind::Refusal => return self.accept_refusal(&header).map(|()| None),
            Kind::Aggregate => {}
        }
        let slot_local = self.awaiting(header.slot_index, header.chunk_index)?;
        if header.worker_rank != RANK_ALL && header.worker_rank != self.config.number {
            return Err(DropReason::BadRank);
        }
        self.check_collective(slot_local, &header)?;
        self.check_length(slot_local, header.element_count)?;
        Ok(Some(Answer {
            slot_local,
            exponent_next: BlockExponent(header.block_exponent_next),
            payload,
            shift: shift_of(&header)?,
            overflow: if header.element_format.is_block_scaled() { 0 } else { header.echo },
            replied: header.worker_rank != RANK_ALL,
        }))
    }

    fn accept_p4app<'a>(&mut self, datagram: &'a [u8]) -> Result<Option<Answer<'a>>, DropReason> {
        let (header, words) = p4app::Header::parse(datagram)?;
        if header.job_number != self.config.job_id as u8 {
            return Err(DropReason::UnknownJob);
        }
        let slot_local = self.awaiting(header.slot_index, header.packet_id)?;
        if header.element_count != self.config.element_count_max {
            return Err(DropReason::ElementCountMismatch);
        }
        let payload = &words[..usize::from(self.expected_elements(slot_local)) * 4];
        // A reply cannot be told from a multicast here: assume the latter.
        let exponent_next = exponent_from_p4app(header.exponent);
        Ok(Some(Answer { slot_local, exponent_next, payload, shift: 0, overflow: 0, replied: false }))
    }

    /// The slot whose outstanding chunk this is.
    fn awaiting(&self, slot_index: u16, chunk_index: u32) -> Result<u32, DropReason> {
        let slot_local = self.config.slot_local(slot_index).ok_or(DropReason::BadSlot)?;
        let slot = &self.slots[slot_local as usize];
        let current = self.config.chunk_index(slot_local, slot.round);
        if chunk_index != current || slot.attempt_count == 0 {
            return Err(DropReason::StaleChunk);
        }
        Ok(slot_local)
    }

    /// Elements of the sum that this worker is to receive for a slot's chunk.
    fn expected_elements(&self, slot_local: u32) -> u16 {
        let slot = &self.slots[slot_local as usize];
        let Some((submission, id)) = self.stream.find(slot.block) else { return 0 };
        let without_elements = slot.phase == Phase::Announcing
            || (slot.is_scaled(submission) && slot.exponent == BlockExponent::NON_FINITE);
        if without_elements || !self.receives(submission, id) {
            return 0;
        }
        submission.shape.elements_of(id.block).1
    }

    /// Whether a block's sum is for this worker.
    fn receives(&self, submission: &Submission, id: BlockId) -> bool {
        let shard = submission.shape.shard(id.block);
        submission.receivers.sole(shard).is_none_or(|rank| rank == self.config.rank)
    }

    /// The sum of another collective can only come if somebody contributed in
    /// this worker's name: a copied process, say.
    fn check_collective(&self, slot_local: u32, header: &fanin::Header) -> Result<(), DropReason> {
        let slot = &self.slots[slot_local as usize];
        match self.stream.find(slot.block) {
            Some((submission, _)) if submission.collective_tag != header.collective_tag => {
                Err(DropReason::CollectiveMismatch)
            }
            // The payload is about to be read in the collective's own format.
            Some((submission, _)) if slot.element_format(submission) != header.element_format => {
                Err(DropReason::BadElementFormat)
            }
            Some(_) => Ok(()),
            None => Err(DropReason::CollectiveMismatch),
        }
    }

    fn check_length(&self, slot_local: u32, element_count: u16) -> Result<(), DropReason> {
        match element_count == self.expected_elements(slot_local) {
            true => Ok(()),
            false => Err(DropReason::ElementCountMismatch),
        }
    }

    /// The switch lacks this worker's contribution: send all of it again.
    fn accept_missing(&mut self, now: Time, header: &fanin::Header) -> Result<(), DropReason> {
        let slot_local = self.awaiting(header.slot_index, header.chunk_index)?;
        let slot = &mut self.slots[slot_local as usize];
        // Only the answer to the latest Query counts: an earlier one may
        // already have been answered by the resend that is under way.
        let latest = slot.attempt_count.saturating_sub(1).min(255) as u8;
        if header.detail != latest || !self.outstanding.contains(slot_local) {
            return Err(DropReason::StaleChunk);
        }
        slot.missing = true;
        self.counters.missing += 1;
        self.recovery.on_missing(now);
        self.queue_resend(slot_local);
        Ok(())
    }

    fn accept_refusal(&mut self, header: &fanin::Header) -> Result<(), DropReason> {
        // A refusal of a packet that was answered meanwhile is old news: the
        // network had duplicated or delayed it.
        let slot_local = self.awaiting(header.slot_index, header.chunk_index)?;
        let reason = DropReason::from_code(header.detail).ok_or(DropReason::BadKind)?;
        let collective = self.stream.find(self.slots[slot_local as usize].block).map(|(_, id)| id.collective);
        let (chunk_index, slot_index) = (header.chunk_index, header.slot_index);
        self.counters.refusals += 1;
        self.events.push_back(Event::Refused { reason, chunk_index, slot_index, collective });
        Ok(())
    }

    fn handle_answer(&mut self, now: Time, answer: &Answer<'_>, tensors: &mut impl Tensors) {
        self.counters.aggregates += 1;
        self.outstanding.remove(answer.slot_local);
        let slot = &mut self.slots[answer.slot_local as usize];
        let resent = slot.attempt_count > 1;
        self.recovery.on_answer(now, slot.sent_first, slot.sent_last, resent, answer.replied);
        let (phase, block, exponent) = (slot.phase, slot.block, slot.exponent);
        slot.advance(answer.exponent_next);
        match phase {
            Phase::Announcing => {
                slot.assign_again();
                self.ready.push_back(answer.slot_local);
            }
            _ if answer.overflow > 0 => self.send_scaled(answer, block),
            _ => self.finish_block(answer, block, exponent, tensors),
        }
        self.resend_overtaken();
    }

    /// The sum is not used: the block goes again on the slot's next use, in a form that does not overflow. All workers have
    /// been told the same, so all do.
    #[cold]
    fn send_scaled(&mut self, answer: &Answer<'_>, block: u64) {
        let (_, id) = self.stream.find(block).expect("an answered block is in the stream");
        self.counters.blocks_overflowed += 1;
        self.counters.elements_overflowed += u64::from(answer.overflow);
        self.events.push_back(Event::Overflowed { id, element_count: answer.overflow });
        let slot = &mut self.slots[answer.slot_local as usize];
        slot.overflowed = true;
        slot.exponent = BlockExponent::UNKNOWN;
        slot.assign_again();
        self.ready.push_back(answer.slot_local);
    }

    fn finish_block(&mut self, answer: &Answer<'_>, block: u64, exponent: BlockExponent, tensors: &mut impl Tensors) {
        let (submission, id) = self.stream.find(block).expect("an answered block is in the stream");
        let slot = &mut self.slots[answer.slot_local as usize];
        let scaled = slot.is_scaled(submission);
        let exponent = if scaled { exponent } else { BlockExponent::NOT_NEEDED };
        slot.overflowed = false;
        let non_finite = scaled && exponent == BlockExponent::NON_FINITE;
        // What a block turned out to be is nothing to the memory of a worker that has no place for its sum.
        if self.receives(submission, id) {
            tensors.read_block(id, exponent, answer.shift, answer.payload);
        }
        if non_finite {
            self.counters.blocks_non_finite += 1;
            self.events.push_back(Event::NonFinite(id));
        }
        if let Some(collective) = self.stream.finish_block(block) {
            self.events.push_back(Event::Completed { collective });
        }
        let following = block + u64::from(self.config.slots_per_lane);
        self.slots[answer.slot_local as usize].phase = Phase::Idle;
        if following < self.stream.end() {
            self.assign(answer.slot_local, following);
        }
    }

    fn resend_overtaken(&mut self) {
        while let Some(slot_local) = self.outstanding.oldest() {
            let slot = &self.slots[slot_local as usize];
            if !self.recovery.is_overtaken(slot.sent_last, slot.attempt_count) {
                return;
            }
            self.counters.overtaken += 1;
            self.queue_resend(slot_local);
        }
    }
}

fn shift_of(header: &fanin::Header) -> Result<u8, DropReason> {
    match header.element_format {
        ElementFormat::Int8 if header.echo > INT8_SHIFT_MAX.into() => Err(DropReason::BadElementFormat),
        ElementFormat::Int8 => Ok(header.echo as u8),
        _ => Ok(0),
    }
}

fn exponent_from_p4app(exponent: i8) -> BlockExponent {
    match exponent {
        P4APP_UNKNOWN => BlockExponent::UNKNOWN,
        P4APP_NON_FINITE => BlockExponent::NON_FINITE,
        finite => BlockExponent(i16::from(finite)),
    }
}
