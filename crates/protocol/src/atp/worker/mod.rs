//! The endpoint of one lane: streams chunks towards the server and recovers what the network loses (ATP §3.6, §3.7).
//!
//! A worker owns no tensor and no socket; see [`crate::switchml::Worker`], whose shape it has.

mod config;
mod emit;
mod lateness;
mod receive;
mod window;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_numeric::BlockExponent;
use fanin_wire::atp::ElementFormat;

use crate::DropReason;
use crate::atp::{Missing, Way, scale};
use crate::resend_timer::ResendTimer;
use crate::stream::{BlockId, Stream, Submission};
use crate::time::{Span, Time};

pub use config::{CongestionControl, WorkerConfig};
pub use receive::Event;

use lateness::Lateness;
use window::Window;

/// The memory that a worker's collectives read and write. Blocks are numbered as in [`crate::switchml::Tensors`].
pub trait Tensors {
    /// The exponent of a block of floats, asked for a window before the block is sent. Who does not tell stays at 10^8.
    fn block_exponent(&mut self, id: BlockId) -> BlockExponent {
        let _ = id;
        BlockExponent::UNKNOWN
    }
    /// Writes the block's elements to `payload`: words, or floats of the collective as fixed point or as they are. Fixed point is in
    /// units of 10^-8, or with another `exponent` than [`BlockExponent::NOT_NEEDED`] scaled for that as block fixed point is.
    fn write_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &mut [u8]);
    /// Takes the block's sum, with the `exponent` that [`Tensors::write_block`] got. `payload` is empty when the sum goes to another
    /// rank, and when all contributions were empty.
    fn read_block(&mut self, id: BlockId, format: ElementFormat, exponent: BlockExponent, payload: &[u8]);
    /// Called before [`Tensors::read_block`] of a block whose sum some workers are not in.
    fn declare_missing(&mut self, id: BlockId, missing: &Missing) {
        let _ = (id, missing);
    }
}

/// What changes for a worker when its job goes on without others that were lost, or with others in their place (ATP App. A.3).
#[derive(Clone, Copy, Debug)]
pub struct SetUp {
    /// Of all packets from now on, so that none of the old tree is taken for one of the new.
    pub job_token: u32,
    /// This worker's way in the new tree.
    pub way: Way,
    /// Levels of switches.
    pub level_count: u8,
    /// Workers lost so far, and not replaced.
    pub lost_count: u16,
    /// Somebody has come who knows nothing of earlier chunks; all others have the sums of all that they have submitted.
    pub has_newcomer: bool,
}

/// Packets of one lane by outcome.
#[derive(Clone, Debug)]
pub struct WorkerCounters {
    /// Fragments sent for the first time.
    pub fragments: u64,
    /// Fragments sent again, and why: overtaken by later chunks.
    pub resends_overtaken: u64,
    /// Sent again because the timer ran out.
    pub resends_timeout: u64,
    /// Sent again as floats.
    pub resends_float: u64,
    /// Blocks that were sent so, because elements of their sums had left the accumulator's format.
    pub blocks_overflowed: u64,
    /// These elements.
    pub elements_overflowed: u64,
    /// Parameters that were awaited.
    pub parameters: u64,
    /// Parameters whose sums some workers are not in.
    pub parameters_in_part: u64,
    /// Sent again because the job was set up again, or because others are late and what waits for them in switches must get
    /// to the server.
    pub resends_around: u64,
    /// Times that the window was halved.
    pub cuts: u64,
    /// Chunks whose slot collided, by what Parameters told.
    pub remapped: u64,
    /// Sums that came at another scale than 10^8.
    pub scaled: u64,
    /// Refusals of chunks that are still awaited.
    pub refusals: u64,
    /// Packets that were ignored, by [`DropReason`] in declaration order.
    pub drops: [u64; DropReason::ALL.len()],
}

/// One chunk of the window.
#[derive(Clone, Copy, Debug)]
struct Place {
    sent_first: Time,
    sent_last: Time,
    attempt_count: u32,
    /// Where switches sum the chunk; once it is acknowledged, where the next chunk of this place goes. A Parameter may
    /// tell another slot than the chunk's (ATP §3.6), and no worker sends the next chunk before it has this one's
    /// Parameter, so all of them change at the same chunk.
    slot_index: u16,
    /// Of the chunk's fixed point; once it is acknowledged, of the next chunk of this place. All change at the same chunk, as with
    /// slots, and all have it from the same answer.
    scale: u8,
    is_acknowledged: bool,
    /// Its sum left 32 bits: goes out as floats.
    is_float: bool,
    /// In the queue of what is sent again.
    is_queued: bool,
}

/// One lane of one worker.
#[derive(Clone)]
pub struct Worker {
    config: WorkerConfig,
    stream: Stream,
    /// By stream position modulo the largest window.
    places: Vec<Place>,
    /// First position without its Parameter: the paper's expected sequence number.
    expected: u64,
    /// First position that was not sent.
    next: u64,
    /// Positions sent and not acknowledged.
    out_count: u64,
    /// Parameters in a row that were not the expected one.
    out_of_order_count: u32,
    resending: VecDeque<u64>,
    window: Window,
    /// ATP's sign of loss is three Parameters of later chunks (§3.7); the last chunks of a stream have none behind them.
    timer: ResendTimer,
    lateness: Lateness,
    /// Chunks that the timer sends again: twice as many each time that it turns out to be right.
    burst: u32,
    events: VecDeque<Event>,
    counters: WorkerCounters,
    /// Workers that were lost: they are missing in every sum.
    lost_count: u16,
    /// The last sum was completed without somebody who is in the job. Slots would wait for him, so Fragments go past them.
    is_someone_late: bool,
}

impl Place {
    const EMPTY: Place = Place {
        sent_first: Time::ZERO,
        sent_last: Time::ZERO,
        attempt_count: 0,
        slot_index: 0,
        scale: scale::STATIC,
        is_acknowledged: false,
        is_float: false,
        is_queued: false,
    };
}

impl Worker {
    /// A lane with an empty stream.
    ///
    /// # Panics
    /// If `window_max` is not a power of two, or there is no slot.
    pub fn new(config: WorkerConfig) -> Worker {
        Worker::starting_at(config, 0, 0)
    }

    /// A lane whose stream begins at a position where the other workers have come to: in place of one that was lost.
    /// `lost_count` others are still lost.
    ///
    /// # Panics
    /// As [`Worker::new`].
    pub fn starting_at(config: WorkerConfig, position: u64, lost_count: u16) -> Worker {
        assert!(config.window_max.is_power_of_two(), "window_max must be a power of two");
        assert!(config.slot_count > 0, "there must be a slot");
        let WorkerConfig { job_id, lane, slot_count, .. } = config;
        let first = |place| config.indexing.first(job_id, lane, place, slot_count);
        let places = (0..config.window_max).map(|place| Place { slot_index: first(place), ..Place::EMPTY }).collect();
        Worker {
            places,
            stream: Stream::starting_at(position),
            expected: position,
            next: position,
            out_count: 0,
            out_of_order_count: 0,
            resending: VecDeque::new(),
            window: Window::new(config.congestion_control, config.window_max),
            timer: ResendTimer::new(
                config.resend_timeout_initial,
                config.resend_timeout_min,
                config.resend_timeout_max,
            ),
            lateness: Lateness::new(),
            burst: 1,
            events: VecDeque::new(),
            counters: WorkerCounters {
                fragments: 0,
                resends_overtaken: 0,
                resends_timeout: 0,
                resends_float: 0,
                blocks_overflowed: 0,
                elements_overflowed: 0,
                parameters: 0,
                parameters_in_part: 0,
                resends_around: 0,
                cuts: 0,
                remapped: 0,
                scaled: 0,
                refusals: 0,
                drops: [0; DropReason::ALL.len()],
            },
            lost_count,
            is_someone_late: false,
            config,
        }
    }

    /// The job goes on in a new tree (ATP App. A.3): what is out is sent again, past the switches, where it may have been in
    /// a slot, to the server, which has forgotten all but whole sums. Told twice, it changes nothing.
    pub fn set_up_again(&mut self, now: Time, set_up: SetUp) {
        if set_up.job_token == self.config.job_token {
            return;
        }
        self.config.job_token = set_up.job_token;
        (self.config.way, self.config.level_count) = (set_up.way, set_up.level_count);
        self.lost_count = set_up.lost_count;
        self.timer.on_progress(now);
        if set_up.has_newcomer {
            self.forget_slots();
        }
        self.send_all_again();
    }

    /// Appends a collective to the stream. All workers must submit the same collectives in the same order.
    pub fn submit(&mut self, submission: Submission) {
        self.stream.push(submission);
    }

    /// Sends the oldest chunks again that have been out too long: one at first, since another worker may just be late.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        self.timer.on_timeout(now);
        let mut left = self.burst;
        for position in self.expected..self.next {
            let place = self.place(position);
            if !place.is_acknowledged && !place.is_queued {
                self.counters.resends_timeout += 1;
                self.queue_resend(position);
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
    }

    /// When `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        // What waits to be sent again needs no timer.
        let place = self.place(self.expected);
        (self.expected < self.next && !place.is_queued)
            .then(|| self.timer.deadline_after(place.sent_last, self.lateness.patience()))
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether every submitted block has its result.
    pub fn is_idle(&self) -> bool {
        self.expected == self.stream.end()
    }

    /// Packets by outcome.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Chunks that may be out at present.
    pub fn window(&self) -> u64 {
        self.window.chunks()
    }

    /// Smoothed time from a Fragment to its Parameter, once one was measured.
    pub fn round_trip(&self) -> Option<Span> {
        self.timer.smoothed()
    }

    /// The chunk that has waited longest, how often it was sent, and when first; for the hang explainer.
    pub fn oldest_outstanding(&self) -> Option<(u32, u32, Time)> {
        let place = self.place(self.expected);
        (self.expected < self.next).then_some((self.expected as u32, place.attempt_count, place.sent_first))
    }

    /// Hashes all that decides about later packets but the times, for the exhaustive checker.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        (self.expected, self.next, self.out_of_order_count, &self.resending, self.window.chunks()).hash(hasher);
        for position in self.expected..self.next {
            let place = self.place(position);
            (place.attempt_count.min(2), place.is_acknowledged, place.is_float).hash(hasher);
        }
        self.places.iter().for_each(|place| (place.slot_index, place.scale).hash(hasher));
        self.stream.hash_state(hasher);
        (self.timer.is_backed_off(), self.burst).hash(hasher);
        (self.lost_count, self.is_someone_late).hash(hasher);
    }

    fn place(&self, position: u64) -> &Place {
        &self.places[(position & u64::from(self.config.window_max - 1)) as usize]
    }

    fn place_mut(&mut self, position: u64) -> &mut Place {
        &mut self.places[(position & u64::from(self.config.window_max - 1)) as usize]
    }

    fn send_all_again(&mut self) {
        for position in self.expected..self.next {
            let place = self.place(position);
            if !place.is_acknowledged && !place.is_queued {
                self.counters.resends_around += 1;
                self.queue_resend(position);
            }
        }
    }

    /// A newcomer does not know where collisions have moved chunks to: all begin with the first slots again. Scales need no such
    /// care: nobody has submitted what comes next, so none was told for it.
    fn forget_slots(&mut self) {
        let WorkerConfig { job_id, lane, slot_count, indexing, .. } = self.config;
        for (place, number) in self.places.iter_mut().zip(0..) {
            place.slot_index = indexing.first(job_id, lane, number, slot_count);
        }
        self.is_someone_late = false;
    }

    fn queue_resend(&mut self, position: u64) {
        let place = self.place_mut(position);
        if !place.is_queued {
            place.is_queued = true;
            self.resending.push_back(position);
        }
    }
}

/// How a collective's elements go out where they are floats that are summed.
fn sum_format(submission: &Submission) -> Option<ElementFormat> {
    if submission.scaled { Some(ElementFormat::Fixed32) } else { ElementFormat::raw(submission.element_format) }
}
