//! What children send: the stages of every slot program, and then up.

use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, ProbePath, fanin};

use super::super::admit::{Contribution, Use};
use super::super::{Admitted, accumulate, admit, count, decide, dedup};
use super::{CHILD_BITS, LeafJob, LeafVerdict};
use crate::time::Time;
use crate::{DropReason, Verdict};

impl LeafJob {
    pub(super) fn take_from_below(
        &mut self,
        now: Time,
        header: &fanin::Header,
        payload: &[u8],
        output: &mut [u8],
        admitted: &mut Option<Admitted>,
    ) -> LeafVerdict {
        let outcome = self.admit(header);
        let (child, contribution) = match outcome {
            Ok(outcome) => outcome,
            Err(reason) => {
                let has_checksum = self.config.job.has_checksum;
                return LeafVerdict::Below(decide::refuse(reason, *header, has_checksum, output));
            }
        };
        *admitted = Some(self.job.sender(header.slot_index, child));
        self.job.last_seen[usize::from(child)] = Some(now);
        match contribution {
            None => self.pass_probe(child, header, payload, output),
            Some(asked) if header.kind == Kind::Query => self.answer_query(&asked, header, output),
            Some(contribution) => self.aggregate(&contribution, header, payload, output),
        }
    }

    /// The child, and what it contributes or asks about; nothing for a Probe.
    fn admit(&self, header: &fanin::Header) -> Result<(u16, Option<Contribution>), DropReason> {
        if header.job_token != self.config.job.job_token {
            return Err(DropReason::StaleToken);
        }
        let child = header.worker_rank;
        if header.kind == Kind::Probe {
            return admit::probe(&self.job, header).map(|()| (child, None));
        }
        // A narrow sum of a few children has been rounded, or does not fit into its elements any more.
        if header.element_format != ElementFormat::Int32 {
            return Err(DropReason::BadElementFormat);
        }
        let contribution = admit::fanin(&self.job, header)?;
        let copy = usize::from(contribution.slot_parity);
        if contribution.slot_use == Use::Next && !self.is_answered[usize::from(contribution.slot_index)][copy] {
            return Err(DropReason::ChunkTooFarAhead);
        }
        Ok((child, Some(contribution)))
    }

    /// A question about the way goes up to the root, with the child's number, by which the answer finds back. Whether
    /// multicast gets to the child is a question to its own switch.
    fn pass_probe(&self, child: u16, header: &fanin::Header, payload: &[u8], output: &mut [u8]) -> LeafVerdict {
        let has_checksum = self.config.job.has_checksum;
        if header.echo != ProbePath::Unicast as u32 {
            return LeafVerdict::Below(decide::answer_probe(has_checksum, *header, payload, output));
        }
        if header.chunk_index >> (u32::BITS - CHILD_BITS) != 0 {
            return drop_packet(DropReason::BadSlot);
        }
        let chunk_index = header.chunk_index << CHILD_BITS | u32::from(child);
        let above = fanin::Header { worker_rank: self.config.number, chunk_index, ..*header };
        let datagram = &mut output[..above.datagram_bytes()];
        datagram[HEADER_BYTES..].copy_from_slice(payload);
        decide::seal(&above, has_checksum, datagram);
        LeafVerdict::Up { bytes: datagram.len() }
    }

    fn aggregate(
        &mut self,
        contribution: &Contribution,
        header: &fanin::Header,
        payload: &[u8],
        output: &mut [u8],
    ) -> LeafVerdict {
        match dedup::stage(self.job.pair_mut(contribution), contribution) {
            dedup::Novelty::New => {}
            dedup::Novelty::ResendComplete => return self.answer_or_ask(contribution, header, output),
            dedup::Novelty::Duplicate => return drop_packet(DropReason::DuplicateContribution),
        }
        *self.is_answered(contribution.slot_index, contribution.slot_parity) = false;
        let position = count::stage(self.job.copy_mut(contribution), self.config.job.worker_count);
        if !position.is_last() {
            accumulate::stage(&mut self.job, contribution, position, payload, None);
            return drop_packet(DropReason::AwaitingOthers);
        }
        accumulate::stage(&mut self.job, contribution, position, payload, Some(&mut output[HEADER_BYTES..]));
        let (slot_index, slot_parity) = (contribution.slot_index, contribution.slot_parity);
        let sum = self.header_above(Kind::Contribution, slot_index, slot_parity, contribution.detail);
        let datagram = &mut output[..sum.datagram_bytes()];
        decide::seal(&sum, self.config.job.has_checksum, datagram);
        LeafVerdict::Up { bytes: datagram.len() }
    }

    fn answer_query(&mut self, asked: &Contribution, header: &fanin::Header, output: &mut [u8]) -> LeafVerdict {
        match dedup::look(self.job.copy(asked), asked) {
            dedup::Novelty::New => LeafVerdict::Below(decide::missing(self.config.job.has_checksum, *header, output)),
            dedup::Novelty::ResendComplete => self.answer_or_ask(asked, header, output),
            dedup::Novelty::Duplicate => drop_packet(DropReason::DuplicateContribution),
        }
    }

    /// All children are in. Either the parent has answered, and the child missed it, or the sum or its answer may have been
    /// lost above: then the leaf asks what became of it, and contributes again if it did not arrive.
    fn answer_or_ask(&mut self, asked: &Contribution, header: &fanin::Header, output: &mut [u8]) -> LeafVerdict {
        let (slot_index, slot_parity) = (asked.slot_index, asked.slot_parity);
        // The canary: a leaf that takes its children's sum for everybody's.
        if *self.is_answered(slot_index, slot_parity) || cfg!(feature = "canary-second") {
            return LeafVerdict::Below(self.reply(asked, header, output));
        }
        let query = self.header_above(Kind::Query, slot_index, slot_parity, asked.detail);
        decide::seal(&query, self.config.job.has_checksum, &mut output[..HEADER_BYTES]);
        LeafVerdict::Up { bytes: HEADER_BYTES }
    }

    fn reply(&self, asked: &Contribution, header: &fanin::Header, output: &mut [u8]) -> Verdict {
        let copy = self.job.copy(asked);
        let is_reader = copy.destination == RANK_ALL || self.config.child_towards(copy.destination) == Some(asked.rank);
        let aggregate = fanin::Header {
            kind: Kind::Aggregate,
            block_exponent_next: copy.block_exponent_next.0,
            element_count: if is_reader { copy.element_count } else { 0 },
            element_format: copy.element_format,
            operator: copy.operator,
            destination: copy.destination,
            ..*header
        };
        let datagram = &mut output[..aggregate.datagram_bytes()];
        let values = &self.job.values[self.job.values_range(asked, aggregate.element_count)];
        accumulate::emit_words(copy.element_format, values, &mut datagram[HEADER_BYTES..]);
        decide::seal(&aggregate, self.config.job.has_checksum, datagram);
        Verdict::Reply { bytes: datagram.len() }
    }
}

fn drop_packet(reason: DropReason) -> LeafVerdict {
    LeafVerdict::Below(Verdict::Drop(reason))
}
