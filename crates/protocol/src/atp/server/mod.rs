//! The parameter server of one lane of one job (ATP §3.6).
//!
//! It adds up what switches pass on, whole or in part, until every worker is in; answers with the Parameter; and keeps
//! it for those who missed it. Its memory is bounded by the workers' window: `2 * window_max` chunks.

mod chunk;
mod emit;
mod late;
mod scaling;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_wire::Accumulator;
use fanin_wire::atp::{ElementFormat, Header, Kind};
use fanin_wire::generated::{Operator, RANK_ALL};

use crate::DropReason;
use crate::atp::floats::{Sum, raw_format};
use crate::atp::{Tree, rehash, scale};
use crate::float_pool::{FloatPool, Terms};
use crate::switchml::Contributed;
use crate::time::Time;

pub use emit::{Transmit, refuse_stray};
pub use late::Stragglers;

use chunk::{Chunk, Phase};
use emit::Answer;
use late::Late;
use scaling::Scaling;

/// Overflows among the last 64 sums of floats that are often: with 16 workers their floats are as many packets to the server as all
/// other sums.
pub const OVERFLOW_OFTEN: u8 = 4;

/// Parameters of one lane's server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// This lane.
    pub lane: u16,
    /// The switches between workers and server.
    pub tree: Tree,
    /// Slots that jobs share at each switch.
    pub slot_count: u16,
    /// Largest number of chunks that a worker has out, a power of two.
    pub window_max: u32,
    /// Elements of a full block.
    pub element_count_max: u16,
    /// What is done about workers that are late. `None`: they are waited for.
    pub stragglers: Option<Stragglers>,
    /// How sums of floats are added.
    pub accumulator: Accumulator,
    /// Of the last 64 sums of floats, so many must have left 32 bits before workers are told to use the scale that they have asked for
    /// (ATP App. B.3); 0: always. See [`OVERFLOW_OFTEN`].
    pub overflow_often: u8,
}

/// Packets of one lane by outcome.
#[derive(Clone, Debug)]
pub struct ServerCounters {
    /// Fragments added to a sum, and the bytes of their datagrams.
    pub fragments: u64,
    /// Bytes of all datagrams received.
    pub received_bytes: u64,
    /// Fragments that held more than one worker's contribution: summed on the way.
    pub aggregated: u64,
    /// Chunks completed.
    pub chunks: u64,
    /// Chunks that came whole, in one Fragment.
    pub chunks_whole: u64,
    /// Chunks whose Fragments collided with another chunk's slot.
    pub collisions: u64,
    /// Parameters sent again to one worker.
    pub replies: u64,
    /// Chunks summed again as floats.
    pub saturated: u64,
    /// Chunks completed at another scale than 10^8.
    pub scaled: u64,
    /// Chunks completed without workers that are in the job.
    pub completed_in_part: u64,
    /// Packets that went no further, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// The server of one lane.
#[derive(Clone)]
pub struct Server {
    config: ServerConfig,
    /// By chunk index modulo their number.
    chunks: Vec<Chunk>,
    /// What an accumulator of raw floats has beside the chunks' words, at the chunks' places.
    floats: FloatPool,
    answers: VecDeque<Answer>,
    late: Late,
    scaling: Scaling,
    counters: ServerCounters,
}

impl Server {
    /// A lane before its first chunk.
    ///
    /// # Panics
    /// If `window_max` is not a power of two, or `chunks_kept` is not one, or less than two windows.
    pub fn new(config: ServerConfig) -> Server {
        assert!(config.window_max.is_power_of_two(), "window_max must be a power of two");
        let kept = config.stragglers.map_or(2 * config.window_max, |stragglers| stragglers.chunks_kept);
        assert!(kept.is_power_of_two() && kept >= 2 * config.window_max, "chunks_kept must be a power of two");
        let stride = usize::from(config.element_count_max);
        let before = |index: u32| Chunk::before(index.wrapping_sub(kept), config.element_count_max);
        Server {
            chunks: (0..kept).map(before).collect(),
            floats: FloatPool::new(config.accumulator, kept as usize * stride, stride, stride * 4),
            answers: VecDeque::new(),
            late: Late::new(config.tree.worker_count()),
            scaling: Scaling::new(config.overflow_often),
            counters: ServerCounters {
                fragments: 0,
                received_bytes: 0,
                aggregated: 0,
                chunks: 0,
                chunks_whole: 0,
                collisions: 0,
                replies: 0,
                saturated: 0,
                scaled: 0,
                completed_in_part: 0,
                drops: [0; DropReason::ALL.len()],
            },
            config,
        }
    }

    /// Handles one datagram from the job's switch; what it brings about is had from [`Server::poll_transmit`].
    pub fn handle_packet(&mut self, now: Time, datagram: &[u8]) {
        self.counters.received_bytes += datagram.len() as u64;
        let outcome = match Header::parse(datagram) {
            Ok((header, payload)) => self.handle(now, &header, payload),
            Err(error) => Err(error.into()),
        };
        if let Err(reason) = outcome {
            self.counters.drops[reason as usize] += 1;
        }
    }

    /// Packets by outcome since the start.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// The job goes on without workers that were lost, or with others in their place (ATP App. A.3): all that is sent from now on carries another token.
    /// What is complete stays as it is; what is not begins anew, so that no sum holds what was sent in the old tree.
    pub fn set_up_again(&mut self, job_token: u32, tree: Tree) {
        self.late.welcome(self.config.tree.lost(), tree.lost());
        (self.config.job_token, self.config.tree) = (job_token, tree);
        self.answers.clear();
        let worker_count = self.config.tree.worker_count();
        self.chunks.iter_mut().filter(|chunk| !chunk.is_complete()).for_each(|chunk| chunk.begin_anew(worker_count));
    }

    /// The same, as a server of the new tree is made.
    pub fn set_up_again_as(&mut self, fresh: Server) {
        self.set_up_again(fresh.config.job_token, fresh.config.tree);
    }

    /// The oldest chunk that some workers have not contributed to, and who they are.
    pub fn oldest_incomplete(&self) -> Option<(u32, Vec<u16>)> {
        let waiting = self.chunks.iter().filter(|chunk| !chunk.is_complete());
        let oldest = waiting.min_by(|a, b| (a.chunk_index.wrapping_sub(b.chunk_index) as i32).cmp(&0))?;
        let tree = &self.config.tree;
        let missing = oldest.contributed.missing(tree.worker_count());
        Some((oldest.chunk_index, missing.filter(|&rank| !tree.lost().contains(rank)).collect()))
    }

    /// Hashes all that decides about later packets, for the exhaustive checker.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for chunk in &self.chunks {
            (chunk.chunk_index, chunk.contributed, chunk.is_complete(), chunk.ecn).hash(hasher);
            (chunk.element_count, chunk.slot_index, chunk.slot_index_next).hash(hasher);
            (chunk.scale, chunk.scale_next).hash(hasher);
            chunk.hash_sum(hasher);
            if let Some(format) = raw_format(chunk.element_format).filter(|_| chunk.is_being_added()) {
                self.floats.hash_state(format, self.range(chunk.chunk_index, chunk.element_count), hasher);
            }
        }
        self.answers.hash(hasher);
        self.late.hash_state(hasher);
        self.scaling.hash_state(hasher);
    }

    fn handle(&mut self, now: Time, header: &Header, payload: &[u8]) -> Result<(), DropReason> {
        let outcome = self.admit(header).and_then(|()| self.take(now, header, payload));
        if let Err(reason) = outcome
            && reason.is_refused()
            && header.kind == Kind::Fragment
        {
            self.answers.push_back(Answer::Refusal(reason, *header));
        }
        outcome
    }

    fn admit(&self, header: &Header) -> Result<(), DropReason> {
        let config = &self.config;
        if !matches!(header.kind, Kind::Fragment | Kind::Probe) {
            return Err(DropReason::NotAContribution);
        }
        if header.job_id != config.job_id {
            return Err(DropReason::UnknownJob);
        }
        if header.job_token != config.job_token {
            return Err(DropReason::StaleToken);
        }
        if header.lane != config.lane || header.slot_index >= config.slot_count {
            return Err(DropReason::BadSlot);
        }
        let has_receiver = header.destination == RANK_ALL || header.destination < config.tree.worker_count();
        if header.level != config.tree.level_count() || !has_receiver {
            return Err(DropReason::BadRank);
        }
        if header.element_count > config.element_count_max {
            return Err(DropReason::ElementCountMismatch);
        }
        if !config.accumulator.takes_atp(header.element_format) {
            return Err(DropReason::BadElementFormat);
        }
        if header.element_format != ElementFormat::Int32 && header.operator != Operator::Add {
            return Err(DropReason::BadOperator);
        }
        Ok(())
    }

    fn take(&mut self, now: Time, header: &Header, payload: &[u8]) -> Result<(), DropReason> {
        let workers = self.config.tree.workers_in(&header.contributed);
        let worker_count = workers.count();
        if worker_count == 0 {
            return Err(DropReason::BadRank);
        }
        if header.kind == Kind::Probe {
            self.answers.push_back(Answer::ProbeReply(*header));
            return Ok(());
        }
        self.hear(header.chunk_index, &workers);
        let place = self.place(header.chunk_index);
        let ahead = header.chunk_index.wrapping_sub(self.chunks[place].chunk_index) as i32;
        if ahead < 0 {
            return Err(DropReason::StaleChunk);
        }
        if ahead > 0 {
            // Floats are sent when they are asked for: of a chunk that is known.
            if header.element_format == ElementFormat::Float32 {
                return Err(DropReason::BadElementFormat);
            }
            self.begin(now, place, ahead as u32, header)?;
        }
        self.same_collective(place, header)?;
        if self.chunks[place].is_complete() {
            return self.answer_again(place, header, &workers);
        }
        if matches!(self.chunks[place].phase, Phase::CollectingFloats(_)) {
            return self.take_floats(now, place, header, payload, &workers);
        }
        if header.element_format == ElementFormat::Float32 {
            return Err(DropReason::BadElementFormat);
        }
        // A part of an exact sum was rounded: no switch sends it.
        let is_part = worker_count > 1 && worker_count != self.config.tree.left_count();
        if is_part && self.config.accumulator == Accumulator::Exact && header.element_format.is_raw() {
            return Err(DropReason::BadElementFormat);
        }
        self.count_in(place, header, &workers)?;
        self.add(place, header, payload);
        self.counters.aggregated += u64::from(worker_count > 1);
        self.counters.chunks_whole += u64::from(worker_count == self.config.tree.left_count());
        if self.is_whole(place) {
            self.finish(now, place);
        }
        Ok(())
    }

    /// The next use of a place begins when its last one has served: who sends it has all sums up to a window before it,
    /// so that everybody has contributed there, and nobody awaits this place's old chunk any more.
    fn begin(&mut self, now: Time, place: usize, ahead: u32, header: &Header) -> Result<(), DropReason> {
        let chunk = &self.chunks[place];
        if ahead as usize != self.chunks.len() || !chunk.is_complete() {
            return Err(DropReason::ChunkTooFarAhead);
        }
        if !self.all_have(chunk.chunk_index) {
            return Err(DropReason::AwaitingOthers);
        }
        self.chunks[place].begin(header);
        self.begin_watch(now, header.chunk_index);
        Ok(())
    }

    fn same_collective(&self, place: usize, header: &Header) -> Result<(), DropReason> {
        let chunk = &self.chunks[place];
        if chunk.collective_tag != header.collective_tag
            || chunk.operator != header.operator
            || chunk.destination != header.destination
            || !may_meet(chunk.element_format, header.element_format)
        {
            return Err(DropReason::CollectiveMismatch);
        }
        if chunk.scale != header.scale {
            return Err(DropReason::ScaleMismatch);
        }
        let either_empty = chunk.element_count == 0 || header.element_count == 0;
        if either_empty || chunk.element_count == header.element_count {
            Ok(())
        } else {
            Err(DropReason::ElementCountMismatch)
        }
    }

    /// Marks the packet's workers, if none of them is in already.
    fn count_in(&mut self, place: usize, header: &Header, workers: &Contributed) -> Result<(), DropReason> {
        let chunk = &mut self.chunks[place];
        if chunk.contributed.contains_all(workers) {
            return Err(DropReason::DuplicateContribution);
        }
        // The canary: a server that takes whatever brings somebody new.
        if chunk.contributed.overlaps(workers) && !cfg!(feature = "canary-second") {
            return Err(DropReason::PartialOverlap);
        }
        chunk.contributed.insert_all(workers);
        chunk.contributed_count = chunk.contributed.count();
        chunk.ecn |= header.flags.ecn;
        chunk.scale_next = scale::merge(chunk.scale_next, header.scale_next);
        self.counters.fragments += 1;
        if header.flags.collision && chunk.slot_index_next == chunk.slot_index {
            let ServerConfig { job_id, lane, slot_count, .. } = self.config;
            chunk.slot_index_next = rehash(job_id, lane, header.chunk_index, chunk.slot_index, slot_count);
            self.counters.collisions += 1;
        }
        Ok(())
    }

    /// A worker's floats for a chunk that saturated. Who has not heard yet is told again.
    fn take_floats(
        &mut self,
        now: Time,
        place: usize,
        header: &Header,
        payload: &[u8],
        workers: &Contributed,
    ) -> Result<(), DropReason> {
        let is_own = header.worker_rank < self.config.tree.worker_count() && workers.contains(header.worker_rank);
        if header.element_format != ElementFormat::Float32 {
            let receiver = if is_own { header.worker_rank } else { RANK_ALL };
            self.answers.push_back(Answer::Parameter { chunk_index: header.chunk_index, receiver });
            return Err(DropReason::DuplicateContribution);
        }
        if !is_own || workers.count() != 1 {
            return Err(DropReason::BadRank);
        }
        self.count_in(place, header, workers)?;
        let chunk = &mut self.chunks[place];
        chunk.keep_floats(header.worker_rank, payload);
        if self.is_whole(place) {
            self.finish(now, place);
        }
        Ok(())
    }

    /// Adds a payload to a chunk's sum.
    fn add(&mut self, place: usize, header: &Header, payload: &[u8]) {
        let range = self.range(header.chunk_index, header.element_count);
        let chunk = &mut self.chunks[place];
        let Some(format) = raw_format(header.element_format).filter(|_| header.element_count > 0) else {
            return chunk.add(header, payload);
        };
        let (mut words, pool) = (core::mem::take(&mut chunk.values), &mut self.floats);
        let terms = Terms { format, worker_count: self.config.tree.worker_count() };
        let sum = Sum { pool, terms, words: &mut words[..range.len()], range };
        chunk.add_floats(header, payload, sum);
        chunk.values = words;
    }

    /// Rounds a whole sum of raw elements, after which its state is not needed any more.
    fn round(&mut self, place: usize) {
        let chunk = &mut self.chunks[place];
        let Some(format) = raw_format(chunk.element_format).filter(|_| chunk.element_count > 0) else { return };
        let start = place * usize::from(self.config.element_count_max);
        let (mut words, pool) = (core::mem::take(&mut chunk.values), &mut self.floats);
        let terms = Terms { format, worker_count: self.config.tree.worker_count() };
        let range = start..start + usize::from(chunk.element_count);
        let sum = Sum { pool, terms, words: &mut words[..range.len()], range };
        chunk.round(sum);
        chunk.values = words;
        self.floats.release(start);
    }

    fn finish(&mut self, now: Time, place: usize) {
        let (worker_count, left_count) = (self.config.tree.worker_count(), self.config.tree.left_count());
        let is_collecting = matches!(self.chunks[place].phase, Phase::Collecting);
        if is_collecting {
            self.round(place);
        }
        let chunk = &mut self.chunks[place];
        let chunk_index = chunk.chunk_index;
        if is_collecting {
            chunk.count_saturated();
        }
        let is_fixed = is_collecting && chunk.element_format == ElementFormat::Fixed32;
        if is_fixed {
            self.scaling.note(chunk.is_too_large(worker_count));
        }
        if is_collecting && chunk.overflow > 0 {
            chunk.ask_for_floats(worker_count);
            self.counters.saturated += 1;
            self.watch(now, chunk_index);
        } else {
            chunk.complete();
            chunk.scale_next = self.scaling.tell(chunk.scale_next);
            self.counters.scaled += u64::from(is_fixed && chunk.scale != scale::STATIC);
            self.counters.chunks += 1;
            self.counters.completed_in_part += u64::from(chunk.contributed_count < left_count);
        }
        self.answers.push_back(Answer::Parameter { chunk_index, receiver: RANK_ALL });
    }

    /// A worker that sends a complete chunk again has missed its Parameter; one that is not in the sum was late for it.
    fn answer_again(&mut self, place: usize, header: &Header, workers: &Contributed) -> Result<(), DropReason> {
        let is_late = !self.chunks[place].contributed.contains_all(workers);
        if !is_late && (!header.flags.resend || header.flags.collision) {
            return Err(DropReason::DuplicateContribution);
        }
        self.counters.replies += 1;
        let is_own = header.worker_rank < self.config.tree.worker_count() && workers.contains(header.worker_rank);
        let receiver = if is_own { header.worker_rank } else { RANK_ALL };
        self.answers.push_back(Answer::Parameter { chunk_index: self.chunks[place].chunk_index, receiver });
        Ok(())
    }

    fn place(&self, chunk_index: u32) -> usize {
        chunk_index as usize & (self.chunks.len() - 1)
    }

    /// Where a chunk's elements lie in the accumulator's memory.
    fn range(&self, chunk_index: u32, element_count: u16) -> core::ops::Range<usize> {
        let start = self.place(chunk_index) * usize::from(self.config.element_count_max);
        start..start + usize::from(element_count)
    }
}

/// Whether elements of these formats can be of one chunk: sums of floats may have been asked for again.
fn may_meet(one: ElementFormat, other: ElementFormat) -> bool {
    let are_floats = one != ElementFormat::Int32 && other != ElementFormat::Int32;
    one == other || are_floats && (one == ElementFormat::Float32 || other == ElementFormat::Float32)
}
