//! Workers that are late, and what the others need not wait for (ATP App. A.4 leaves stragglers to the training; `spec/ATP.md`).

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::Range;

use super::Server;
use crate::switchml::Contributed;
use crate::time::{Span, Time};

/// Collectives of which it is remembered who is late: a lane's window hardly ever holds more. Of more, the oldest are forgotten, and waited for.
const COLLECTIVES_MAX: usize = 16;

/// What a server does about workers that are late for a sum of floats. Whatever else a chunk carries waits for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stragglers {
    /// A chunk whose first contribution is that old is completed with those that are there.
    pub after: Span,
    /// But never with fewer than this share of the workers that are left, percent.
    pub share_min_percent: u8,
    /// Whoever is late for a chunk is not waited for in the rest of its collective.
    pub rest_of_collective: bool,
    /// Sums that are kept for those who are late, a power of two, at least two windows. Nobody gets further ahead of the last
    /// worker.
    pub chunks_kept: u32,
}

/// Who is late for what.
#[derive(Clone, Debug)]
pub(super) struct Late {
    /// When chunks are due to be completed in part, in order of time.
    due: VecDeque<(Time, u32)>,
    /// Who was late for a chunk of a collective.
    by_collective: VecDeque<LateFor>,
    /// By rank: one more than the latest chunk that it has sent.
    heard: Vec<u32>,
}

/// Who is late for a collective, and where it lies in the stream: a later one may have the same tag.
#[derive(Clone, Debug, Hash)]
struct LateFor {
    tag: u32,
    /// A chunk of it.
    chunk_index: u32,
    /// The nearest chunks known on either side that are of other collectives, counted from that one.
    others: Range<i32>,
    late: Contributed,
}

impl LateFor {
    fn offset(&self, chunk_index: u32) -> i32 {
        chunk_index.wrapping_sub(self.chunk_index) as i32
    }

    fn has(&self, tag: u32, chunk_index: u32) -> bool {
        let offset = self.offset(chunk_index);
        self.tag == tag && self.others.start < offset && offset < self.others.end
    }

    /// There is a chunk of this tag.
    fn see(&mut self, tag: u32, chunk_index: u32) {
        match self.offset(chunk_index) {
            _ if self.tag == tag => {}
            offset if offset < 0 => self.others.start = self.others.start.max(offset),
            offset => self.others.end = self.others.end.min(offset),
        }
    }
}

impl Late {
    pub fn new(worker_count: u16) -> Late {
        Late { due: VecDeque::new(), by_collective: VecDeque::new(), heard: vec![0; usize::from(worker_count)] }
    }

    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.heard.hash(hasher);
        self.by_collective.hash(hasher);
        self.due.iter().for_each(|(_, chunk_index)| chunk_index.hash(hasher));
    }

    /// Whoever takes a lost worker's place begins where the others have come to.
    pub fn welcome(&mut self, lost_before: &Contributed, lost: &Contributed) {
        let ranks = 0..self.heard.len() as u16;
        let others =
            ranks.clone().filter(|&rank| !lost_before.contains(rank)).map(|rank| self.heard[usize::from(rank)]);
        let Some(furthest) = others.reduce(|a, b| if (a.wrapping_sub(b) as i32) > 0 { a } else { b }) else { return };
        for rank in ranks.filter(|&rank| lost_before.contains(rank) && !lost.contains(rank)) {
            self.heard[usize::from(rank)] = furthest;
        }
    }

    fn of_collective(&self, tag: u32, chunk_index: u32) -> Contributed {
        let found = self.by_collective.iter().find(|known| known.has(tag, chunk_index));
        found.map(|known| known.late).unwrap_or_default()
    }

    /// `chunks` are all that the server has, by index and tag.
    fn add_to_collective(
        &mut self,
        (tag, chunk_index): (u32, u32),
        late: &Contributed,
        chunks: impl Iterator<Item = (u32, u32)>,
    ) {
        if let Some(known) = self.by_collective.iter_mut().find(|known| known.has(tag, chunk_index)) {
            return known.late.insert_all(late);
        }
        if self.by_collective.len() == COLLECTIVES_MAX {
            self.by_collective.pop_front();
        }
        let mut new = LateFor { tag, chunk_index, others: i32::MIN..i32::MAX, late: *late };
        chunks.for_each(|(index, tag)| new.see(tag, index));
        self.by_collective.push_back(new);
    }

    /// A chunk begins. Collectives whose places all have a new use by now are over.
    fn see(&mut self, tag: u32, chunk_index: u32, chunks_kept: usize) {
        for known in &mut self.by_collective {
            known.see(tag, chunk_index);
        }
        let kept = i64::try_from(chunks_kept).unwrap_or(i64::MAX);
        self.by_collective
            .retain(|known| i64::from(known.offset(chunk_index)) < i64::from(known.others.end).saturating_add(kept));
    }
}

impl Server {
    /// Completes what is due without those who are late.
    pub fn handle_timeout(&mut self, now: Time) {
        let Some(stragglers) = self.config.stragglers else { return };
        let count = self.late.due.partition_point(|(due, _)| *due <= now);
        let due: Vec<u32> = self.late.due.drain(..count).map(|(_, chunk_index)| chunk_index).collect();
        for chunk_index in due {
            let place = self.place(chunk_index);
            let chunk = &self.chunks[place];
            if chunk.chunk_index != chunk_index || chunk.is_complete() {
                continue;
            }
            if !self.suffices(place, &stragglers) {
                self.watch(now, chunk_index);
                continue;
            }
            if stragglers.rest_of_collective {
                let (tag, mut late) = (chunk.collective_tag, Contributed::default());
                chunk.contributed.missing(self.config.tree.worker_count()).for_each(|rank| late.insert(rank));
                let known = self.chunks.iter().map(|chunk| (chunk.chunk_index, chunk.collective_tag));
                self.late.add_to_collective((tag, chunk_index), &late, known);
            }
            self.finish(now, place);
        }
    }

    /// When `handle_timeout` may have something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.late.due.front().map(|(due, _)| *due)
    }

    /// A chunk has begun.
    pub(super) fn begin_watch(&mut self, now: Time, chunk_index: u32) {
        let tag = self.chunks[self.place(chunk_index)].collective_tag;
        self.late.see(tag, chunk_index, self.chunks.len());
        self.watch(now, chunk_index);
    }

    /// Looks at a chunk again when those who are late for it have had their time.
    pub(super) fn watch(&mut self, now: Time, chunk_index: u32) {
        let is_sum = self.chunks[self.place(chunk_index)].is_sum_of_floats();
        if let Some(stragglers) = self.config.stragglers.filter(|_| is_sum) {
            self.late.due.push_back((now + stragglers.after, chunk_index));
        }
    }

    /// Who sends a chunk has all sums up to a window before it.
    pub(super) fn hear(&mut self, chunk_index: u32, workers: &Contributed) {
        if self.config.stragglers.is_none() {
            return;
        }
        let next = chunk_index.wrapping_add(1);
        for (rank, heard) in (0u16..).zip(&mut self.late.heard) {
            if workers.contains(rank) && (next.wrapping_sub(*heard) as i32) > 0 {
                *heard = next;
            }
        }
    }

    /// Whether no worker that is left can still ask for a chunk. Where all are waited for, the window's rule says so.
    pub(super) fn all_have(&self, chunk_index: u32) -> bool {
        let tree = &self.config.tree;
        let sent_next = chunk_index.wrapping_add(self.config.window_max);
        self.config.stragglers.is_none()
            || (tree.lost().missing(tree.worker_count()))
                .all(|rank| (self.late.heard[usize::from(rank)].wrapping_sub(sent_next) as i32) > 0)
    }

    /// Whether a chunk has all that it waits for.
    pub(super) fn is_whole(&self, place: usize) -> bool {
        let (chunk, tree) = (&self.chunks[place], &self.config.tree);
        if chunk.contributed_count == tree.left_count() {
            return true;
        }
        let Some(stragglers) = self.config.stragglers.filter(|stragglers| stragglers.rest_of_collective) else {
            return false;
        };
        let mut known = self.late.of_collective(chunk.collective_tag, chunk.chunk_index);
        known.insert_all(&chunk.contributed);
        known.insert_all(tree.lost());
        known.count() == tree.worker_count() && self.suffices(place, &stragglers)
    }

    /// Whether a chunk may be completed with those that are in it.
    fn suffices(&self, place: usize, stragglers: &Stragglers) -> bool {
        let chunk = &self.chunks[place];
        let share = u32::from(self.config.tree.left_count()) * u32::from(stragglers.share_min_percent);
        let least = share.div_ceil(100).max(1);
        chunk.is_sum_of_floats() && u32::from(chunk.contributed_count) >= least
    }
}
