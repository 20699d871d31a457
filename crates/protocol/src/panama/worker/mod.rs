//! The endpoint of one worker: spreads chunks over its trees and sends them as fast as each lets it (PANAMA §4).
//!
//! A worker owns no tensor and no socket; see [`crate::switchml::Worker`], whose shape it has.

mod config;
mod emit;
mod receive;
mod window;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_wire::generated::PANAMA_TREE_COUNT_MAX;
use fanin_wire::panama::ElementFormat;

use crate::DropReason;
use crate::resend_timer::ResendTimer;
use crate::stream::{BlockId, Stream, Submission};
use crate::time::{Span, Time};

pub use config::{CongestionControl, WorkerConfig};
pub use emit::{Outgoing, Transmit};
pub use receive::{Event, Taken};

use window::Window;

/// The memory that a worker's collectives read and write. Blocks are numbered as in [`crate::switchml::Tensors`].
pub trait Tensors {
    /// Writes the block's elements to `payload`, big-endian.
    fn write_block(&mut self, id: BlockId, format: ElementFormat, payload: &mut [u8]);
    /// Takes the block's sum over `worker_count` workers. `payload` is empty when all contributions were.
    fn read_block(&mut self, id: BlockId, format: ElementFormat, worker_count: u16, payload: &[u8]);
}

/// Packets of one worker by outcome.
#[derive(Clone, Debug)]
pub struct WorkerCounters {
    /// Contributions sent for the first time.
    pub contributions: u64,
    /// Sent again because a later Result of the tree came first.
    pub resends_overtaken: u64,
    /// Sent again because a timer ran out.
    pub resends_timeout: u64,
    /// Asked for again because the others' Result had come before there was anything to take it.
    pub resends_early: u64,
    /// Results that were awaited.
    pub results: u64,
    /// Of these, with congestion experienced.
    pub marked: u64,
    /// Blocks whose Result came before they were sent: summed without this worker.
    pub left_out: u64,
    /// Times that a window was cut.
    pub cuts: u64,
    /// Refusals.
    pub refusals: u64,
    /// Packets that were ignored, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// One VID of a tree's window.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    sent_first: Time,
    sent_last: Time,
    attempt_count: u32,
    has_result: bool,
    /// In the queue of what is sent again.
    is_queued: bool,
    /// Its Result came before it was submitted, and was not kept.
    came_early: bool,
}

/// One aggregation tree, as this worker sees it.
#[derive(Clone, Debug)]
struct Tree {
    window: Window,
    /// By VID modulo the largest window.
    places: Vec<Place>,
    /// First VID without its Result.
    awaited: u64,
    /// First VID that was not sent.
    next: u64,
    /// VID of the FIN, once it was sent.
    fin: Option<u64>,
    timer: ResendTimer,
    /// The gap before a later Result was reacted to.
    gap: Option<u64>,
}

/// One worker.
#[derive(Clone)]
pub struct Worker {
    config: WorkerConfig,
    stream: Stream,
    trees: Vec<Tree>,
    /// First stream position that was not sent: it goes to tree `next % tree_count`.
    next: u64,
    /// Trees and VIDs.
    resending: VecDeque<(u8, u64)>,
    is_finishing: bool,
    events: VecDeque<Event>,
    counters: WorkerCounters,
}

impl Worker {
    /// A worker with an empty stream.
    ///
    /// # Panics
    /// If `window_max` is not a power of two, or the number of trees is 0 or above `PANAMA_TREE_COUNT_MAX`.
    pub fn new(config: WorkerConfig) -> Worker {
        assert!(config.window_max.is_power_of_two(), "window_max must be a power of two");
        assert!((1..=PANAMA_TREE_COUNT_MAX).contains(&config.tree_count), "a job has 1 to 64 trees");
        let tree = Tree {
            window: Window::new(config.congestion_control),
            places: vec![Place::default(); config.window_max as usize],
            awaited: 0,
            next: 0,
            fin: None,
            timer: ResendTimer::new(
                config.resend_timeout_initial,
                config.resend_timeout_min,
                config.resend_timeout_max,
            ),
            gap: None,
        };
        Worker {
            stream: Stream::default(),
            trees: vec![tree; usize::from(config.tree_count)],
            next: 0,
            resending: VecDeque::new(),
            is_finishing: false,
            events: VecDeque::new(),
            counters: WorkerCounters {
                contributions: 0,
                resends_overtaken: 0,
                resends_timeout: 0,
                resends_early: 0,
                results: 0,
                marked: 0,
                left_out: 0,
                cuts: 0,
                refusals: 0,
                drops: [0; DropReason::ALL.len()],
            },
            config,
        }
    }

    /// Appends a collective of sums of floats to the stream. All workers must submit the same collectives in the same order.
    /// Blocks go to everybody, whoever the receivers are: switches copy Results to all ports.
    ///
    /// # Errors
    /// `BadOperator` for another operator than a sum, `BadElementFormat` for elements that are not floats.
    pub fn submit(&mut self, submission: Submission) -> Result<(), DropReason> {
        emit::check(&submission)?;
        self.stream.push(submission);
        Ok(())
    }

    /// After what is submitted, this worker sends no more: every tree gets a FIN once its last Result has come (PANAMA §5).
    /// [`Event::Finished`] follows when all workers have done the same.
    pub fn finish(&mut self) {
        self.is_finishing = true;
    }

    /// Sends the oldest chunk again of every tree where it has been out too long.
    pub fn handle_timeout(&mut self, now: Time) {
        for number in 0..self.config.tree_count {
            let tree = &mut self.trees[usize::from(number)];
            if tree.deadline().is_some_and(|due| due <= now) {
                tree.timer.on_timeout(now);
                let vid = tree.awaited;
                self.counters.resends_timeout += 1;
                self.queue_resend(number, vid);
            }
        }
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.trees.iter().filter_map(Tree::deadline).min()
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether every submitted block has its result.
    pub fn is_idle(&self) -> bool {
        self.next == self.stream.end() && self.trees.iter().all(|tree| tree.awaited == tree.next)
    }

    /// Whether every tree has had its FIN answered.
    pub fn is_finished(&self) -> bool {
        self.trees.iter().all(|tree| tree.fin.is_some_and(|fin| tree.awaited > fin))
    }

    /// Packets by outcome.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Packets that may be out in a tree at present; 0 for a tree that the job does not have.
    pub fn window(&self, tree: u8) -> u64 {
        self.trees.get(usize::from(tree)).map_or(0, |tree| tree.window.packets())
    }

    /// Packets that are out in a tree; 0 for a tree that the job does not have.
    pub fn outstanding(&self, tree: u8) -> u64 {
        self.trees.get(usize::from(tree)).map_or(0, |tree| tree.next - tree.awaited)
    }

    /// Smoothed time from a Contribution to its Result in a tree, once one was measured.
    pub fn round_trip(&self, tree: u8) -> Option<Span> {
        self.trees.get(usize::from(tree))?.timer.smoothed()
    }

    /// The packet that has waited longest: tree, VID, how often it was sent, and when first; for the hang explainer.
    pub fn oldest_outstanding(&self) -> Option<(u8, u32, u32, Time)> {
        let waiting = (0..).zip(&self.trees).filter(|(_, tree)| tree.awaited < tree.next);
        let oldest = waiting.min_by_key(|(_, tree)| tree.place(tree.awaited).sent_first)?;
        let place = oldest.1.place(oldest.1.awaited);
        Some((oldest.0, oldest.1.awaited as u32, place.attempt_count, place.sent_first))
    }

    /// Hashes all that decides about later packets but the times, for the exhaustive checker.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.next, &self.resending, self.is_finishing).hash(hasher);
        for tree in &self.trees {
            (tree.awaited, tree.next, tree.fin, tree.gap, tree.window.packets(), tree.timer.is_backed_off())
                .hash(hasher);
            for vid in tree.awaited..tree.awaited + u64::from(self.config.window_max) {
                let place = tree.place(vid);
                (place.attempt_count.min(2), place.has_result, place.came_early).hash(hasher);
            }
        }
        self.stream.hash_state(hasher);
    }

    fn queue_resend(&mut self, tree: u8, vid: u64) {
        let place = self.trees[usize::from(tree)].place_mut(vid);
        if !place.is_queued {
            place.is_queued = true;
            self.resending.push_back((tree, vid));
        }
    }
}

impl Tree {
    fn place(&self, vid: u64) -> &Place {
        &self.places[vid as usize & (self.places.len() - 1)]
    }

    fn place_mut(&mut self, vid: u64) -> &mut Place {
        let mask = self.places.len() - 1;
        &mut self.places[vid as usize & mask]
    }

    fn may_send(&self) -> bool {
        self.next - self.awaited < self.window.packets().min(self.places.len() as u64)
    }

    /// When the oldest packet that is out counts as lost. What waits to be sent again needs no timer.
    fn deadline(&self) -> Option<Time> {
        let place = self.place(self.awaited);
        (self.awaited < self.next && !place.is_queued).then(|| self.timer.deadline(place.sent_last))
    }
}
