//! Writing the next Contribution.

use fanin_wire::generated::{PANAMA_HEADER_BYTES, RANK_ALL};
use fanin_wire::panama::{ElementFormat, Flags, Header, Kind};
use fanin_wire::{ElementFormat as FaninFormat, Operator};

use super::{Place, Tensors, Worker};
use crate::DropReason;
use crate::stream::{BlockId, Submission};
use crate::time::Time;

/// A packet without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its header.
    pub header: Header,
    /// The block whose elements it carries; nothing for a FIN, and for a worker that contributes nothing to the block.
    pub block: Option<BlockId>,
}

/// A packet in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The aggregation tree whose address it goes to.
    pub tree: u8,
    /// Its length.
    pub bytes: usize,
}

/// Whether switches that add floats can carry it.
pub(super) fn check(submission: &Submission) -> Result<(), DropReason> {
    if submission.operator != Operator::Add {
        return Err(DropReason::BadOperator);
    }
    format(submission).map(|_| ())
}

/// How a collective's elements are coded: floats of 32 bits are what the fanin datagram scales to integers.
pub(super) fn format(submission: &Submission) -> Result<ElementFormat, DropReason> {
    match (submission.element_format, submission.scaled) {
        (FaninFormat::Int32, true) => Ok(ElementFormat::Float32),
        (FaninFormat::Float16, _) => Ok(ElementFormat::Float16),
        (FaninFormat::Bfloat16, _) => Ok(ElementFormat::Bfloat16),
        // Integers, and formats that only SwitchML's slots have.
        (_, _) => Err(DropReason::BadElementFormat),
    }
}

impl Worker {
    /// Writes the next packet to `output`, which must hold the job's largest datagram; nothing when there is none to send.
    pub fn poll_transmit(&mut self, now: Time, tensors: &mut impl Tensors, output: &mut [u8]) -> Option<Transmit> {
        let Outgoing { header, block } = self.poll_header(now)?;
        let datagram = &mut output[..header.datagram_bytes()];
        if let Some(id) = block {
            tensors.write_block(id, header.element_format, &mut datagram[PANAMA_HEADER_BYTES..]);
        }
        header.seal(datagram);
        Some(Transmit { tree: header.tree, bytes: datagram.len() })
    }

    /// The next packet's header, for a driver that carries no payloads; otherwise as [`Worker::poll_transmit`].
    pub fn poll_header(&mut self, now: Time) -> Option<Outgoing> {
        let (tree, vid) = self.next_resend().or_else(|| self.next_new()).or_else(|| self.next_fin())?;
        let outgoing = self.describe(tree, vid);
        let place = self.trees[usize::from(tree)].place_mut(vid);
        if place.attempt_count == 0 {
            place.sent_first = now;
        }
        place.sent_last = now;
        place.attempt_count = place.attempt_count.saturating_add(1);
        Some(outgoing)
    }

    /// A Result may have come while the resend was queued.
    fn next_resend(&mut self) -> Option<(u8, u64)> {
        loop {
            let (number, vid) = self.resending.pop_front()?;
            let tree = &mut self.trees[usize::from(number)];
            if vid >= tree.awaited {
                tree.place_mut(vid).is_queued = false;
                if !tree.place(vid).has_result {
                    return Some((number, vid));
                }
            }
        }
    }

    /// The next chunk of the stream, whose tree is the next in turn (PANAMA §4.1): no other tree gets ahead of a full one.
    fn next_new(&mut self) -> Option<(u8, u64)> {
        while self.next < self.stream.end() {
            let number = (self.next % u64::from(self.config.tree_count)) as u8;
            let tree = &mut self.trees[usize::from(number)];
            let vid = tree.next;
            // The others went on without this worker; their sum is in place already.
            if tree.place(vid).has_result && vid >= tree.awaited {
                self.next += 1;
                tree.next += 1;
                tree.move_on();
                continue;
            }
            if !tree.may_send() {
                return None;
            }
            let came_early = tree.place(vid).came_early;
            *tree.place_mut(vid) = Place { came_early, ..Place::default() };
            self.next += 1;
            tree.next += 1;
            self.counters.contributions += 1;
            self.counters.resends_early += u64::from(came_early);
            return Some((number, vid));
        }
        None
    }

    /// A FIN goes out when nothing of its tree is awaited any more: whoever sees all FINs may forget all Results.
    fn next_fin(&mut self) -> Option<(u8, u64)> {
        if !self.is_finishing || self.next < self.stream.end() {
            return None;
        }
        let mut trees = (0..).zip(&mut self.trees);
        let (number, tree) = trees.find(|(_, tree)| tree.fin.is_none() && tree.awaited == tree.next)?;
        let vid = tree.next;
        *tree.place_mut(vid) = Place::default();
        tree.fin = Some(vid);
        tree.next += 1;
        Some((number, vid))
    }

    fn describe(&self, number: u8, vid: u64) -> Outgoing {
        let tree = &self.trees[usize::from(number)];
        let place = tree.place(vid);
        let fin = tree.fin == Some(vid);
        let header = Header {
            kind: Kind::Contribution,
            job_id: self.config.job_id,
            job_token: self.config.job_token,
            vid: vid as u32,
            awaited_vid: tree.awaited as u32,
            collective_tag: 0,
            tree: number,
            flags: Flags { fin, ecn: false, resend: place.attempt_count > 0 || place.came_early },
            cwnd_cap: u16::MAX,
            worker_count: 1,
            worker_rank: self.config.rank,
            element_count: 0,
            element_format: ElementFormat::Float32,
            detail: place.attempt_count.min(255) as u8,
        };
        if fin {
            return Outgoing { header, block: None };
        }
        let (submission, id) = self.block(number, vid).expect("what was sent is in the stream");
        let contributes = submission.contributors.sole(submission.shape.shard(id.block));
        let contributes = contributes.is_none_or(|rank| rank == self.config.rank);
        let element_count = if contributes { submission.shape.elements_of(id.block).1 } else { 0 };
        let header = Header {
            collective_tag: submission.collective_tag,
            element_count,
            element_format: format(submission).expect("submit has checked it"),
            ..header
        };
        Outgoing { header, block: (element_count > 0).then_some(id) }
    }

    /// The collective and block that a VID of a tree carries.
    pub(super) fn block(&self, tree: u8, vid: u64) -> Option<(&Submission, BlockId)> {
        self.stream.find(self.position(tree, vid))
    }

    pub(super) fn position(&self, tree: u8, vid: u64) -> u64 {
        vid * u64::from(self.config.tree_count) + u64::from(tree)
    }

    /// Whether a Result may be for this worker.
    pub(super) fn is_mine(&self, header: &Header) -> bool {
        header.worker_rank == RANK_ALL || header.worker_rank == self.config.rank
    }
}
