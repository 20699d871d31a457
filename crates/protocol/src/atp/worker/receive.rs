//! Taking a Parameter (ATP §3.6, "Worker Receiving Parameters").

use fanin_numeric::BlockExponent;
use fanin_wire::atp::{ElementFormat, Header, Kind};
use fanin_wire::generated::RANK_ALL;

use super::{Place, Tensors, Worker, sum_format};
use crate::DropReason;
use crate::atp::{Missing, scale};
use crate::stream::BlockId;
use crate::time::Time;

/// Parameters in a row that are not the expected one, and mean that it is lost (ATP §3.7).
const OUT_OF_ORDER_MAX: u32 = 3;

/// Something the caller of a worker acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All blocks that this lane carries of a collective have their sums.
    Completed {
        /// The submission's `id`.
        collective: u64,
    },
    /// A block's words were to come from a worker that was lost before it sent them; the collective cannot have its result.
    /// It completes all the same.
    SourceLost {
        /// The submission's `id`.
        collective: u64,
    },
    /// Elements of a block left the accumulator's format: the block is sent again as floats.
    Overflowed {
        /// The block.
        id: BlockId,
        /// How many, as far as switches and server have met them; at least 1.
        element_count: u32,
    },
    /// A switch or the server does not accept this worker's packets.
    Refused {
        /// Why.
        reason: DropReason,
        /// The chunk that was refused.
        chunk_index: u32,
        /// The collective it belongs to.
        collective: u64,
    },
}

impl Worker {
    /// Handles one datagram from this worker's switch. What is not awaited is counted and ignored.
    pub fn handle_packet(&mut self, now: Time, datagram: &[u8], tensors: &mut impl Tensors) {
        let outcome = match Header::parse(datagram) {
            Ok((header, payload)) => self.handle(now, &header, payload, tensors),
            Err(error) => Err(error.into()),
        };
        if let Err(reason) = outcome {
            self.counters.drops[reason as usize] += 1;
        }
    }

    fn handle(
        &mut self,
        now: Time,
        header: &Header,
        payload: &[u8],
        tensors: &mut impl Tensors,
    ) -> Result<(), DropReason> {
        let position = self.awaiting(header)?;
        match header.kind {
            Kind::Fragment | Kind::Probe | Kind::ProbeReply => Err(DropReason::BadKind),
            Kind::Refusal => self.take_refusal(position, header),
            Kind::Parameter if header.flags.is_saturated => self.send_floats(position, header),
            Kind::Parameter => {
                self.check_shape(position, header)?;
                self.take_parameter(now, position, header, payload, tensors);
                Ok(())
            }
        }
    }

    /// The stream position of the chunk that a packet is about, if it is awaited.
    fn awaiting(&self, header: &Header) -> Result<u64, DropReason> {
        if header.job_id != self.config.job_id {
            return Err(DropReason::UnknownJob);
        }
        if header.job_token != self.config.job_token {
            return Err(DropReason::StaleToken);
        }
        if header.lane != self.config.lane {
            return Err(DropReason::BadSlot);
        }
        let is_mine = header.worker_rank == RANK_ALL || header.worker_rank == self.config.rank;
        if !is_mine && header.kind != Kind::Refusal {
            return Err(DropReason::BadRank);
        }
        let ahead = header.chunk_index.wrapping_sub(self.expected as u32);
        let position = self.expected + u64::from(ahead);
        if position >= self.next || self.place(position).is_acknowledged {
            return Err(DropReason::StaleChunk);
        }
        Ok(position)
    }

    /// The payload is about to be read in the collective's own shape.
    fn check_shape(&self, position: u64, header: &Header) -> Result<(), DropReason> {
        let (submission, id) = self.stream.find(position).ok_or(DropReason::StaleChunk)?;
        if submission.collective_tag != header.collective_tag {
            return Err(DropReason::CollectiveMismatch);
        }
        let is_known_format = match (sum_format(submission), header.element_format) {
            (None, format) => format == ElementFormat::Int32,
            (Some(own), format) => format == own || format == ElementFormat::Float32,
        };
        if !is_known_format {
            return Err(DropReason::BadElementFormat);
        }
        if submission.scaled && header.scale != self.place(position).scale {
            return Err(DropReason::ScaleMismatch);
        }
        let shard = submission.shape.shard(id.block);
        let receives = submission.receivers.sole(shard).is_none_or(|rank| rank == self.config.rank);
        let awaited = if receives { submission.shape.elements_of(id.block).1 } else { 0 };
        // Nobody who is left had anything to contribute.
        let is_source_lost = header.element_count == 0 && Missing::read(header).count > 0;
        if header.element_count == awaited || is_source_lost { Ok(()) } else { Err(DropReason::ElementCountMismatch) }
    }

    fn take_parameter(
        &mut self,
        now: Time,
        position: u64,
        header: &Header,
        payload: &[u8],
        tensors: &mut impl Tensors,
    ) {
        self.counters.parameters += 1;
        self.place_mut(position).is_acknowledged = true;
        self.out_count -= 1;
        self.take_time(now, position, header);
        self.read(position, header, payload, tensors);
        if let Some(collective) = self.stream.finish_block(position) {
            self.events.push_back(Event::Completed { collective });
        }
        self.take_lateness(header);
        self.take_remap(position, header);
        self.follow_congestion(position, header.flags.ecn);
        self.take_order(now, position);
    }

    /// What the time to a Parameter says: about the network, about others that are late, or about what the timer did.
    fn take_time(&mut self, now: Time, position: u64, header: &Header) {
        let place = *self.place(position);
        if place.attempt_count == 1 {
            self.timer.sample(now.since(place.sent_first));
            self.lateness.note(now, now.since(place.sent_first));
            self.burst = 1;
        } else if self.timer.is_backed_off() {
            self.judge_timer(now, &place, header.worker_rank != RANK_ALL);
        }
        self.timer.on_progress(now);
    }

    /// Whether a timer that ran out had found a loss, now that its chunk's answer is there.
    fn judge_timer(&mut self, now: Time, place: &Place, is_for_me_alone: bool) {
        let round_trip = self.timer.smoothed().unwrap_or_default();
        let is_soon = now.since(place.sent_last) <= round_trip.saturating_mul(2);
        if is_for_me_alone {
            // The sum was there: its Parameter had been lost.
            self.lateness.forget();
        } else if is_soon {
            // So the resend has completed the sum, or somebody who was late happened to come just now.
            self.lateness.doubt();
        } else {
            self.lateness.note(now, now.since(place.sent_first));
        }
        let was_right = is_for_me_alone || is_soon;
        self.burst = if was_right { (2 * self.burst).min(self.config.window_max) } else { 1 };
    }

    fn read(&mut self, position: u64, header: &Header, payload: &[u8], tensors: &mut impl Tensors) {
        let (submission, id) = self.stream.find(position).expect("an awaited chunk is in the stream");
        let missing = Missing::read(header);
        if missing.count > 0 {
            self.counters.parameters_in_part += 1;
            tensors.declare_missing(id, &missing);
            let shard = submission.shape.shard(id.block);
            let receives = submission.receivers.sole(shard).is_none_or(|rank| rank == self.config.rank);
            if payload.is_empty() && receives && submission.shape.elements_of(id.block).1 > 0 {
                self.events.push_back(Event::SourceLost { collective: id.collective });
            }
        }
        let exponent = scale::exponent_in(header);
        self.counters.scaled += u64::from(exponent != BlockExponent::NOT_NEEDED);
        tensors.read_block(id, header.element_format, exponent, payload);
    }

    /// Slots wait for all children. While somebody is late, what is in them would reach the server by time-outs only.
    fn take_lateness(&mut self, header: &Header) {
        let was_late = self.is_someone_late;
        self.is_someone_late = Missing::read(header).count > self.lost_count;
        if self.is_someone_late && !was_late {
            self.send_all_again();
        }
    }

    /// The slot and the scale for what follows at a chunk's place. The slot is another one if it collided. Whoever had a slot of his
    /// own, because he did not hear of a collision, comes back to the others'.
    fn take_remap(&mut self, position: u64, header: &Header) {
        if header.slot_index_next < self.config.slot_count {
            self.counters.remapped += u64::from(header.slot_index_next != header.slot_index);
            self.place_mut(position).slot_index = header.slot_index_next;
        }
        self.place_mut(position).scale = scale::usable(header.scale_next);
    }

    fn follow_congestion(&mut self, position: u64, ecn: bool) {
        if !ecn {
            self.window.grow();
        } else if self.window.cut(position, self.next) {
            self.counters.cuts += 1;
        }
    }

    /// Moves on behind the expected chunk, or finds it lost.
    fn take_order(&mut self, now: Time, position: u64) {
        if position == self.expected {
            self.out_of_order_count = 0;
            while self.expected < self.next && self.place(self.expected).is_acknowledged {
                self.expected += 1;
            }
            return;
        }
        self.out_of_order_count += 1;
        if self.out_of_order_count >= OUT_OF_ORDER_MAX {
            self.out_of_order_count = 0;
            self.resend_overtaken(now, position);
        }
    }

    /// Sends again what Parameters of three later chunks have overtaken: the expected chunk, and those behind it that
    /// went with it. Not again before an answer can have come.
    fn resend_overtaken(&mut self, now: Time, position: u64) {
        let patience = self.timer.smoothed().unwrap_or_default();
        let mut is_new_loss = false;
        // The expected one in any case: later Parameters may have changed places.
        let overtaken_until = position.saturating_sub(u64::from(OUT_OF_ORDER_MAX) - 1).max(self.expected + 1);
        for lost in self.expected..overtaken_until {
            let place = self.place(lost);
            let was_sent_lately = place.attempt_count > 1 && now.since(place.sent_last) < patience;
            if !place.is_acknowledged && !place.is_queued && !was_sent_lately {
                is_new_loss |= place.attempt_count == 1;
                self.counters.resends_overtaken += 1;
                self.queue_resend(lost);
            }
        }
        if is_new_loss && self.window.cut(self.expected, self.next) {
            self.counters.cuts += 1;
        }
    }

    /// The chunk's sum left 32 bits, or the accumulator's format: its floats are wanted (ATP §3.8).
    fn send_floats(&mut self, position: u64, header: &Header) -> Result<(), DropReason> {
        let found = self.stream.find(position).filter(|(submission, _)| sum_format(submission).is_some());
        let Some((_, id)) = found else { return Err(DropReason::BadElementFormat) };
        if !self.place(position).is_float {
            let element_count = u32::from(header.echo).max(1);
            self.counters.blocks_overflowed += 1;
            self.counters.elements_overflowed += u64::from(element_count);
            self.events.push_back(Event::Overflowed { id, element_count });
        }
        self.place_mut(position).is_float = true;
        self.counters.resends_float += 1;
        self.queue_resend(position);
        Ok(())
    }

    fn take_refusal(&mut self, position: u64, header: &Header) -> Result<(), DropReason> {
        let reason = DropReason::from_code(header.detail).ok_or(DropReason::BadKind)?;
        let (_, id) = self.stream.find(position).ok_or(DropReason::StaleChunk)?;
        self.counters.refusals += 1;
        self.events.push_back(Event::Refused { reason, chunk_index: header.chunk_index, collective: id.collective });
        Ok(())
    }
}
