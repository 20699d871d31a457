//! Taking a Result (PANAMA §4.2, Fig. 5).

use fanin_wire::panama::{Header, Kind};

use super::{Place, Tensors, Tree, Worker};
use crate::DropReason;
use crate::panama::unwrap_vid;
use crate::stream::BlockId;
use crate::time::Time;

/// Something the caller of a worker acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All blocks of a collective have their sums.
    Completed {
        /// The submission's `id`.
        collective: u64,
    },
    /// A switch does not accept a packet of this worker, or of somebody else's that its job cannot do without.
    Refused {
        /// Why.
        reason: DropReason,
        /// The tree.
        tree: u8,
        /// The packet.
        vid: u32,
        /// Who sent it; `RANK_ALL` for a sum.
        worker_rank: u16,
    },
    /// Every tree's FIN was answered: switches have forgotten the job's packets.
    Finished,
}

/// What a packet was to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The sum of a block over `worker_count` workers.
    Block {
        /// Which.
        id: BlockId,
        /// Whose contributions are in it.
        worker_count: u16,
    },
    /// Nothing to read.
    Nothing,
}

impl Worker {
    /// Handles one datagram from this worker's switch. What is not awaited is counted and ignored. `is_marked`: its IP header
    /// says that congestion was experienced.
    pub fn handle_packet(&mut self, now: Time, datagram: &[u8], is_marked: bool, tensors: &mut impl Tensors) {
        let (mut header, payload) = match Header::parse(datagram) {
            Ok(parsed) => parsed,
            Err(error) => return self.counters.drops[DropReason::from(error) as usize] += 1,
        };
        header.flags.ecn |= is_marked;
        if let Ok(Taken::Block { id, worker_count }) = self.handle_header(now, &header) {
            tensors.read_block(id, header.element_format, worker_count, payload);
        }
    }

    /// Handles one packet of which only the header is there; otherwise as [`Worker::handle_packet`].
    ///
    /// # Errors
    /// Why the packet was ignored; it is counted.
    pub fn handle_header(&mut self, now: Time, header: &Header) -> Result<Taken, DropReason> {
        self.handle(now, header).inspect_err(|&reason| self.counters.drops[reason as usize] += 1)
    }

    fn handle(&mut self, now: Time, header: &Header) -> Result<Taken, DropReason> {
        if header.job_id != self.config.job_id {
            return Err(DropReason::UnknownJob);
        }
        if header.job_token != self.config.job_token {
            return Err(DropReason::StaleToken);
        }
        if header.tree >= self.config.tree_count {
            return Err(DropReason::BadSlot);
        }
        match header.kind {
            Kind::Contribution => Err(DropReason::BadKind),
            Kind::Refusal => self.take_refusal(header),
            Kind::Result if !self.is_mine(header) => Err(DropReason::BadRank),
            Kind::Result if header.flags.fin => self.take_fin(now, header),
            Kind::Result => self.take_result(now, header),
        }
    }

    fn take_result(&mut self, now: Time, header: &Header) -> Result<Taken, DropReason> {
        let vid = self.awaiting(header)?;
        let tree = &mut self.trees[usize::from(header.tree)];
        if self.stream.end() <= vid * u64::from(self.config.tree_count) + u64::from(header.tree) {
            // There is no tensor yet: ask for it when there is.
            *tree.place_mut(vid) = Place { came_early: true, ..Place::default() };
            return Err(DropReason::ChunkTooFarAhead);
        }
        let id = self.check_shape(vid, header)?;
        let tree = &mut self.trees[usize::from(header.tree)];
        self.counters.results += 1;
        self.counters.marked += u64::from(header.flags.ecn);
        self.counters.left_out += u64::from(vid >= tree.next);
        self.counters.cuts += u64::from(tree.take(now, vid, header));
        if let Some(collective) = self.stream.finish_block(self.position(header.tree, vid)) {
            self.events.push_back(Event::Completed { collective });
        }
        self.take_order(header.tree, vid);
        Ok(Taken::Block { id, worker_count: header.worker_count })
    }

    /// The VID of a packet, if its Result is awaited.
    fn awaiting(&self, header: &Header) -> Result<u64, DropReason> {
        let tree = &self.trees[usize::from(header.tree)];
        let vid = unwrap_vid(tree.awaited, header.vid).ok_or(DropReason::StaleChunk)?;
        if vid < tree.awaited {
            return Err(DropReason::StaleChunk);
        }
        if vid - tree.awaited >= u64::from(self.config.window_max) {
            return Err(DropReason::ChunkTooFarAhead);
        }
        if tree.place(vid).has_result { Err(DropReason::StaleChunk) } else { Ok(vid) }
    }

    /// The payload is about to be read in the collective's own shape.
    fn check_shape(&self, vid: u64, header: &Header) -> Result<BlockId, DropReason> {
        let (submission, id) = self.block(header.tree, vid).ok_or(DropReason::StaleChunk)?;
        if submission.collective_tag != header.collective_tag {
            return Err(DropReason::CollectiveMismatch);
        }
        if header.element_count > 0 && super::emit::format(submission)? != header.element_format {
            return Err(DropReason::BadElementFormat);
        }
        // Empty if whoever had something to contribute was not waited for.
        let awaited = submission.shape.elements_of(id.block).1;
        if header.element_count == awaited || header.element_count == 0 {
            Ok(id)
        } else {
            Err(DropReason::ElementCountMismatch)
        }
    }

    /// Trees deliver in order: what a later Result has overtaken was lost on the way down, and is asked for at once. What is
    /// lost on the way up holds back all that follows, and the timer finds it.
    fn take_order(&mut self, number: u8, vid: u64) {
        let tree = &mut self.trees[usize::from(number)];
        let lost = tree.awaited;
        if vid > lost && lost < tree.next && tree.gap != Some(lost) {
            tree.gap = Some(lost);
            self.counters.resends_overtaken += 1;
            self.queue_resend(number, lost);
        }
    }

    fn take_fin(&mut self, now: Time, header: &Header) -> Result<Taken, DropReason> {
        let vid = self.awaiting(header)?;
        let tree = &mut self.trees[usize::from(header.tree)];
        if tree.fin != Some(vid) {
            return Err(DropReason::ChunkTooFarAhead);
        }
        tree.take(now, vid, header);
        if self.is_finished() {
            self.events.push_back(Event::Finished);
        }
        Ok(Taken::Nothing)
    }

    fn take_refusal(&mut self, header: &Header) -> Result<Taken, DropReason> {
        let reason = DropReason::from_code(header.detail).ok_or(DropReason::BadKind)?;
        self.counters.refusals += 1;
        let Header { tree, vid, worker_rank, .. } = *header;
        self.events.push_back(Event::Refused { reason, tree, vid, worker_rank });
        Ok(Taken::Nothing)
    }
}

impl Tree {
    /// Notes an awaited Result; returns whether the window was cut.
    fn take(&mut self, now: Time, vid: u64, header: &Header) -> bool {
        if vid >= self.next {
            // Never sent: whatever was at its place is over.
            *self.place_mut(vid) = Place::default();
        }
        let place = self.place_mut(vid);
        place.has_result = true;
        let sent_once = (place.attempt_count == 1).then_some(place.sent_first);
        sent_once.into_iter().for_each(|sent| self.timer.sample(now.since(sent)));
        self.timer.on_progress(now);
        self.move_on();
        self.window.on_result(header.flags.ecn, header.cwnd_cap)
    }

    /// Moves on behind the first awaited VID.
    pub(super) fn move_on(&mut self) {
        while self.awaited < self.next && self.place(self.awaited).has_result {
            *self.place_mut(self.awaited) = Place::default();
            self.awaited += 1;
        }
    }
}
