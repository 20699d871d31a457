//! What the parent answers: kept, and passed on to all children.

use fanin_numeric::{BlockExponent, accumulate};
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{Kind, fanin};

use super::super::{admit, decide};
use super::{CHILD_BITS, LeafJob, LeafVerdict};
use crate::{DropReason, Verdict};

impl LeafJob {
    pub(super) fn take_from_above(
        &mut self,
        header: &fanin::Header,
        payload: &[u8],
        output: &mut [u8],
    ) -> Result<LeafVerdict, DropReason> {
        if header.kind == Kind::ProbeReply {
            return self.return_probe(header, payload, output);
        }
        self.check_awaited(header)?;
        match header.kind {
            Kind::Aggregate => {
                self.check_aggregate(header)?;
                self.keep(header, payload);
                Ok(LeafVerdict::Below(self.multicast(header, payload, output)))
            }
            Kind::Missing => Ok(self.contribute_again(header, output)),
            // What the parent does not accept is what the children sent.
            Kind::Refusal => Ok(LeafVerdict::Below(self.multicast(header, &[], output))),
            _ => Err(DropReason::BadKind),
        }
    }

    /// The root has answered a child's question about the way.
    fn return_probe(
        &self,
        header: &fanin::Header,
        payload: &[u8],
        output: &mut [u8],
    ) -> Result<LeafVerdict, DropReason> {
        admit::probe(&self.job, &fanin::Header { worker_rank: 0, ..*header })?;
        let child = (header.chunk_index & ((1 << CHILD_BITS) - 1)) as u16;
        if header.worker_rank != self.config.number || child >= self.job.config.worker_count {
            return Err(DropReason::BadRank);
        }
        let chunk_index = header.chunk_index >> CHILD_BITS;
        let below = fanin::Header { worker_rank: child, chunk_index, ..*header };
        let datagram = &mut output[..below.datagram_bytes()];
        datagram[HEADER_BYTES..].copy_from_slice(payload);
        decide::seal(&below, self.config.job.has_checksum, datagram);
        let job_number = (self.config.job.job_id & 0xff) as u8;
        Ok(LeafVerdict::ToChild { job_number, lane: self.job.lane(header.slot_index), child, bytes: datagram.len() })
    }

    /// Only a chunk that has gone up and has no answer can be answered.
    fn check_awaited(&mut self, header: &fanin::Header) -> Result<(), DropReason> {
        if header.job_token != self.config.job.job_token {
            return Err(DropReason::StaleToken);
        }
        if !admit::slot_matches_chunk(&self.job, header) {
            return Err(DropReason::BadSlot);
        }
        if header.worker_rank != RANK_ALL && header.worker_rank != self.config.number {
            return Err(DropReason::BadRank);
        }
        let copy = self.copy(header.slot_index, header.slot_parity);
        let has_gone_up = copy.chunk_index == header.chunk_index && copy.is_complete();
        if copy.collective_tag != header.collective_tag && has_gone_up {
            return Err(DropReason::CollectiveMismatch);
        }
        if !has_gone_up || *self.is_answered(header.slot_index, header.slot_parity) {
            return Err(DropReason::StaleChunk);
        }
        Ok(())
    }

    fn check_aggregate(&self, header: &fanin::Header) -> Result<(), DropReason> {
        let copy = self.copy(header.slot_index, header.slot_parity);
        if copy.operator != header.operator || copy.element_format != header.element_format {
            return Err(DropReason::CollectiveMismatch);
        }
        // Contributions here may all have been empty, and the sum may be for somebody elsewhere.
        let either_empty = copy.element_count == 0 || header.element_count == 0;
        let fits = either_empty || copy.element_count == header.element_count;
        if !fits || header.element_count > self.config.job.element_count_max {
            return Err(DropReason::ElementCountMismatch);
        }
        Ok(())
    }

    /// The answer takes the place of the children's sum.
    fn keep(&mut self, header: &fanin::Header, payload: &[u8]) {
        *self.is_answered(header.slot_index, header.slot_parity) = true;
        let copy = &mut self.job.slots[usize::from(header.slot_index)][usize::from(header.slot_parity)];
        copy.element_count = header.element_count;
        copy.block_exponent_next = BlockExponent(header.block_exponent_next);
        let range = self.job.values_of(header.slot_index, header.slot_parity, header.element_count);
        accumulate::overwrite(payload, &mut self.job.values[range]);
    }

    fn multicast(&self, header: &fanin::Header, payload: &[u8], output: &mut [u8]) -> Verdict {
        let destination = self.copy(header.slot_index, header.slot_parity).destination;
        let below = fanin::Header {
            worker_rank: RANK_ALL,
            destination,
            element_count: (payload.len() / header.element_format.bytes()) as u16,
            ..*header
        };
        let datagram = &mut output[..below.datagram_bytes()];
        datagram[HEADER_BYTES..].copy_from_slice(payload);
        decide::seal(&below, self.config.job.has_checksum, datagram);
        Verdict::Multicast {
            job_number: (self.config.job.job_id & 0xff) as u8,
            lane: self.job.lane(header.slot_index),
            bytes: datagram.len(),
            destination: self.config.child_towards(destination).filter(|_| !payload.is_empty()),
        }
    }

    /// The parent lacks this leaf's sum, which the slot still holds.
    fn contribute_again(&self, missing: &fanin::Header, output: &mut [u8]) -> LeafVerdict {
        let (slot_index, slot_parity) = (missing.slot_index, missing.slot_parity);
        let sum = self.header_above(Kind::Contribution, slot_index, slot_parity, missing.detail.saturating_add(1));
        let datagram = &mut output[..sum.datagram_bytes()];
        let range = self.job.values_of(slot_index, slot_parity, sum.element_count);
        accumulate::emit(&self.job.values[range], &mut datagram[HEADER_BYTES..]);
        decide::seal(&sum, self.config.job.has_checksum, datagram);
        LeafVerdict::Up { bytes: datagram.len() }
    }
}
