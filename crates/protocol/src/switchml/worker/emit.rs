//! Writing the next packet.

use fanin_numeric::BlockExponent;
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, fanin, p4app};

use super::slot::Phase;
use super::{BlockId, Submission, Tensors, Worker};
use crate::switchml::WireFormat;
use crate::time::Time;

/// Exponents of the p4app layout are signed bytes; the two largest stand for
/// the sentinels.
pub(super) const P4APP_UNKNOWN: i8 = 127;
pub(super) const P4APP_NON_FINITE: i8 = 126;

/// What one packet says, before it is put into a layout.
struct Content {
    slot_local: u32,
    id: BlockId,
    submission: Submission,
    shard: u16,
    element_count: u16,
    exponent: BlockExponent,
    exponent_next: BlockExponent,
}

impl Worker {
    /// Writes the next packet to `output`, which must hold the job's largest
    /// datagram, and returns its length; nothing when there is none to send.
    pub fn poll_transmit(&mut self, now: Time, tensors: &mut impl Tensors, output: &mut [u8]) -> Option<usize> {
        let Some(slot_local) = self.next_ready() else {
            return self.poll_query(now, output);
        };
        let content = self.compose(slot_local, tensors);
        let bytes = match self.config.wire_format {
            WireFormat::Fanin => self.emit_fanin(&content, tensors, output),
            WireFormat::P4app => self.emit_p4app(&content, tensors, output),
        };
        self.count_sent(slot_local);
        self.mark_out(now, slot_local);
        Some(bytes)
    }

    fn poll_query(&mut self, now: Time, output: &mut [u8]) -> Option<usize> {
        let slot_local = self.next_asking()?;
        self.counters.queries += 1;
        let bytes = self.emit_query(slot_local, output);
        self.mark_out(now, slot_local);
        Some(bytes)
    }

    /// Whether to ask before sending a contribution again.
    ///
    /// Algorithm 4 resends the whole packet. But when one worker's packet is
    /// lost, all workers miss the answer, and the switch has all but one of
    /// what they would resend; a header finds out at a tenth of the cost.
    /// p4app-switchML has no such packet.
    pub(super) fn asks_first(&self, slot_local: u32) -> bool {
        let slot = &self.slots[slot_local as usize];
        slot.attempt_count > 0 && !slot.missing && self.config.wire_format == WireFormat::Fanin
    }

    /// Length of the datagram that `poll_transmit` would write next; lets a
    /// driver group equal lengths.
    pub fn datagram_bytes_max(&self) -> usize {
        let elements = usize::from(self.config.element_count_max);
        HEADER_BYTES.max(p4app::HEADER_BYTES) + elements * ElementFormat::Int32.bytes()
    }

    /// A slot may have been answered while its resend was queued.
    fn next_ready(&mut self) -> Option<u32> {
        loop {
            let slot_local = self.ready.pop_front()?;
            let slot = &self.slots[slot_local as usize];
            if !slot.is_idle() && !self.outstanding.contains(slot_local) {
                return Some(slot_local);
            }
        }
    }

    fn next_asking(&mut self) -> Option<u32> {
        loop {
            let slot_local = self.asking.pop_front()?;
            if self.asks_first(slot_local) && !self.outstanding.contains(slot_local) {
                return Some(slot_local);
            }
        }
    }

    fn mark_out(&mut self, now: Time, slot_local: u32) {
        self.slots[slot_local as usize].mark_sent(now);
        self.outstanding.push(slot_local);
    }

    fn count_sent(&mut self, slot_local: u32) {
        let slot = &self.slots[slot_local as usize];
        if slot.attempt_count == 0 {
            self.counters.contributions += 1;
            self.counters.announces += u64::from(slot.phase == Phase::Announcing);
        } else {
            self.counters.resends += 1;
        }
    }

    fn compose(&mut self, slot_local: u32, tensors: &mut impl Tensors) -> Content {
        let slot = &self.slots[slot_local as usize];
        let (&submission, id) = self.stream.find(slot.block).expect("an assigned block is in the stream");
        let scaled = slot.is_scaled(&submission);
        let announce = scaled && slot.exponent == BlockExponent::UNKNOWN;
        let block = slot.block;
        let exponent = if scaled { slot.exponent } else { BlockExponent::NOT_NEEDED };
        self.slots[slot_local as usize].phase = if announce { Phase::Announcing } else { Phase::Summing };
        let exponent_next = if announce {
            tensors.block_exponent(id)
        } else {
            self.exponent_of(block + u64::from(self.config.slots_per_lane), tensors)
        };
        let shard = submission.shape.shard(id.block);
        let (_, block_elements) = submission.shape.elements_of(id.block);
        let contributes = submission.contributors.sole(shard).is_none_or(|rank| rank == self.config.rank);
        let empty = announce || !contributes || (scaled && exponent == BlockExponent::NON_FINITE);
        let element_count = if empty { 0 } else { block_elements };
        Content { slot_local, id, submission, shard, element_count, exponent, exponent_next }
    }

    /// Exponent of the block that will follow on the same slot. One that is
    /// not submitted yet is unknown, and that outweighs what others know, so
    /// all workers agree on whether the next use is an announce.
    fn exponent_of(&mut self, position: u64, tensors: &mut impl Tensors) -> BlockExponent {
        match self.stream.find(position) {
            None => BlockExponent::UNKNOWN,
            Some((submission, id)) if submission.scaled => tensors.block_exponent(id),
            Some(_) => BlockExponent::NOT_NEEDED,
        }
    }

    fn emit_fanin(&self, content: &Content, tensors: &mut impl Tensors, output: &mut [u8]) -> usize {
        let header = fanin::Header {
            block_exponent_next: content.exponent_next.0,
            element_count: content.element_count,
            ..self.header(Kind::Contribution, content.slot_local, &content.submission, content.shard)
        };
        let datagram = &mut output[..header.datagram_bytes()];
        if content.element_count > 0 {
            tensors.write_block(content.id, content.exponent, &mut datagram[HEADER_BYTES..]);
        }
        self.config.seal(&header, datagram);
        datagram.len()
    }

    fn emit_query(&self, slot_local: u32, output: &mut [u8]) -> usize {
        let block = self.slots[slot_local as usize].block;
        let (submission, id) = self.stream.find(block).expect("an assigned block is in the stream");
        let shard = submission.shape.shard(id.block);
        let header = self.header(Kind::Query, slot_local, submission, shard);
        self.config.seal(&header, &mut output[..HEADER_BYTES]);
        HEADER_BYTES
    }

    /// Header of a slot's current chunk, without elements.
    fn header(&self, kind: Kind, slot_local: u32, submission: &Submission, shard: u16) -> fanin::Header {
        let slot = &self.slots[slot_local as usize];
        fanin::Header {
            kind,
            job_id: self.config.job_id,
            job_token: self.config.job_token,
            worker_rank: self.config.number,
            slot_index: self.config.slot_index(slot_local),
            slot_parity: slot.parity(),
            chunk_index: self.config.chunk_index(slot_local, slot.round),
            collective_tag: submission.collective_tag,
            block_exponent_next: BlockExponent::NOT_NEEDED.0,
            element_count: 0,
            element_format: slot.element_format(submission),
            operator: submission.operator,
            detail: slot.attempt_count.min(255) as u8,
            destination: submission.receivers.sole(shard).unwrap_or(RANK_ALL),
            echo: 0,
        }
    }

    /// p4app has one packet size: empty contributions and tails are filled
    /// up with zeros.
    fn emit_p4app(&self, content: &Content, tensors: &mut impl Tensors, output: &mut [u8]) -> usize {
        let slot = &self.slots[content.slot_local as usize];
        let header = p4app::Header {
            job_number: self.config.job_id as u8,
            packet_id: self.config.chunk_index(content.slot_local, slot.round),
            slot_index: self.config.slot_index(content.slot_local),
            slot_parity: slot.parity(),
            exponent: exponent_to_p4app(content.exponent_next),
            element_count: self.config.element_count_max,
        };
        let datagram = &mut output[..header.datagram_bytes()];
        let words = &mut datagram[p4app::HEADER_BYTES..];
        let (filled, rest) = words.split_at_mut(usize::from(content.element_count) * 4);
        rest.fill(0);
        if content.element_count > 0 {
            tensors.write_block(content.id, content.exponent, filled);
        }
        header.seal(datagram);
        datagram.len()
    }
}

fn exponent_to_p4app(exponent: BlockExponent) -> i8 {
    match exponent {
        BlockExponent::UNKNOWN => P4APP_UNKNOWN,
        BlockExponent::NON_FINITE => P4APP_NON_FINITE,
        BlockExponent(finite) if finite >= i16::from(P4APP_NON_FINITE) => P4APP_NON_FINITE,
        BlockExponent(finite) => finite.max(i16::from(i8::MIN)) as i8,
    }
}
