//! Writing the next Fragment.

use fanin_numeric::BlockExponent;
use fanin_wire::atp::{ElementFormat, Flags, Header, Kind};
use fanin_wire::generated::{ATP_HEADER_BYTES, RANK_ALL};

use super::{Place, Tensors, Worker};
use crate::atp::{Scale, scale};
use crate::time::Time;

impl Worker {
    /// Writes the next packet to `output`, which must hold the job's largest datagram, and returns its length; nothing
    /// when there is none to send. All packets go to this worker's own switch.
    pub fn poll_transmit(&mut self, now: Time, tensors: &mut impl Tensors, output: &mut [u8]) -> Option<usize> {
        let position = self.next_resend().or_else(|| self.next_new())?;
        let bytes = self.emit(position, tensors, output);
        let place = self.place_mut(position);
        if place.attempt_count == 0 {
            place.sent_first = now;
        }
        place.sent_last = now;
        place.attempt_count = place.attempt_count.saturating_add(1);
        Some(bytes)
    }

    /// A chunk may have been answered while its resend was queued.
    fn next_resend(&mut self) -> Option<u64> {
        loop {
            let position = self.resending.pop_front()?;
            if position >= self.expected {
                let place = self.place_mut(position);
                place.is_queued = false;
                if !place.is_acknowledged {
                    return Some(position);
                }
            }
        }
    }

    fn next_new(&mut self) -> Option<u64> {
        let position = self.next;
        let bound = self.expected + u64::from(self.config.window_max);
        if position >= self.stream.end() || position >= bound || self.out_count >= self.window.chunks() {
            return None;
        }
        let Place { slot_index: kept, scale, .. } = *self.place(position);
        let slot_index = self.config.indexing.slot_index(kept, position as u32, self.config.slot_count);
        *self.place_mut(position) = Place { slot_index, scale, ..Place::EMPTY };
        self.next += 1;
        self.out_count += 1;
        self.counters.fragments += 1;
        Some(position)
    }

    fn emit(&self, position: u64, tensors: &mut impl Tensors, output: &mut [u8]) -> usize {
        let place = self.place(position);
        let (submission, id) = self.stream.find(position).expect("a chunk of the window is in the stream");
        let shard = submission.shape.shard(id.block);
        let contributes = submission.contributors.sole(shard).is_none_or(|rank| rank == self.config.rank);
        let element_count = if contributes { submission.shape.elements_of(id.block).1 } else { 0 };
        let goes_past_slots = place.attempt_count > 0 || self.is_someone_late;
        let header = Header {
            kind: Kind::Fragment,
            job_id: self.config.job_id,
            job_token: self.config.job_token,
            chunk_index: position as u32,
            collective_tag: submission.collective_tag,
            contributed: self.config.way.contributed(self.config.level_count),
            fan_in: self.config.way.fan_in,
            level: self.config.way.level,
            flags: Flags { resend: goes_past_slots, is_saturated: place.is_float, ..Flags::default() },
            lane: self.config.lane,
            slot_index: place.slot_index,
            slot_index_next: place.slot_index,
            worker_rank: self.config.rank,
            element_count,
            element_format: match (submission.scaled, place.is_float) {
                (false, _) => ElementFormat::Int32,
                (true, false) => ElementFormat::Fixed32,
                (true, true) => ElementFormat::Float32,
            },
            operator: submission.operator,
            detail: place.attempt_count.min(255) as u8,
            destination: submission.receivers.sole(shard).unwrap_or(RANK_ALL),
            scale: if submission.scaled { place.scale } else { scale::STATIC },
            scale_next: self.scale_wanted(position + u64::from(self.config.window_max), tensors),
            echo: 0,
        };
        let datagram = &mut output[..header.datagram_bytes()];
        if element_count > 0 {
            tensors.write_block(
                id,
                header.element_format,
                scale::exponent_in(&header),
                &mut datagram[ATP_HEADER_BYTES..],
            );
        }
        header.seal(datagram);
        datagram.len()
    }

    /// What this worker's block at a position asks for, in the header's code.
    fn scale_wanted(&self, position: u64, tensors: &mut impl Tensors) -> u8 {
        if self.config.scale == Scale::Static {
            return scale::STATIC;
        }
        let Some((submission, id)) = self.stream.find(position) else { return scale::STATIC };
        let contributes =
            submission.contributors.sole(submission.shape.shard(id.block)).is_none_or(|rank| rank == self.config.rank);
        let has_floats = submission.scaled && contributes;
        scale::code(if has_floats { tensors.block_exponent(id) } else { BlockExponent::NOT_NEEDED })
    }
}
