//! The end of a collective, for those who wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fanin_net::Patience;
use fanin_protocol::atp::Missing;

use crate::memory::Memory;
use crate::request::Request;
use crate::{Error, ErrorKind};

/// How a collective ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks whose sum was not a number because some rank's input was not.
    pub non_finite_blocks: u64,
    /// Elements whose sum left the accumulator's format. Their blocks were sent again in block fixed point: every element of
    /// such a block has that accumulator's error (relative to the block's largest value), and an infinity where the result
    /// does not fit the tensor's type.
    pub overflowed_elements: u64,
    /// Blocks in all.
    pub chunks: u64,
    /// From submission to completion.
    pub elapsed: Duration,
    /// Who is not in the sums. Nobody, unless the job goes on without ranks that are lost or late.
    pub missing: MissingRanks,
}

/// Ranks whose contributions are missing in the sums of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingRanks {
    /// In the block with the most contributions.
    pub least: u16,
    /// In the block with the fewest.
    pub most: u16,
    /// Blocks that any rank is missing in.
    pub blocks: u64,
    /// A bit for each rank that is missing in some block; `None` where the job has more than 32 ranks.
    pub ranks: Option<u32>,
}

impl MissingRanks {
    /// The ranks that are missing in some block; `None` where the job has more than 32 ranks.
    pub fn named(&self) -> Option<Vec<u16>> {
        self.ranks.map(|bits| (0..32).filter(|rank| bits >> rank & 1 == 1).collect())
    }
}

/// The same while it is being counted, by all lanes.
struct MissingCount {
    least: AtomicU16,
    most: AtomicU16,
    blocks: AtomicU64,
    ranks: AtomicU32,
    is_somebody_unnamed: AtomicBool,
}

impl MissingCount {
    fn new() -> MissingCount {
        MissingCount {
            least: AtomicU16::new(u16::MAX),
            most: AtomicU16::new(0),
            blocks: AtomicU64::new(0),
            ranks: AtomicU32::new(0),
            is_somebody_unnamed: AtomicBool::new(false),
        }
    }

    fn add(&self, missing: &Missing) {
        self.least.fetch_min(missing.count, Ordering::Relaxed);
        self.most.fetch_max(missing.count, Ordering::Relaxed);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        match missing.ranks {
            Some(ranks) => drop(self.ranks.fetch_or(ranks, Ordering::Relaxed)),
            None => self.is_somebody_unnamed.store(true, Ordering::Relaxed),
        }
    }

    fn of(&self, block_count: u64) -> MissingRanks {
        let blocks = self.blocks.load(Ordering::Relaxed);
        let is_unnamed = self.is_somebody_unnamed.load(Ordering::Relaxed);
        MissingRanks {
            least: if blocks < block_count { 0 } else { self.least.load(Ordering::Relaxed) },
            most: self.most.load(Ordering::Relaxed),
            blocks,
            ranks: (!is_unnamed).then(|| self.ranks.load(Ordering::Relaxed)),
        }
    }
}

type Callback = Box<dyn FnOnce(&Result<Outcome, Error>) + Send>;

#[derive(Default)]
struct State {
    result: Option<Result<Outcome, Error>>,
    callbacks: Vec<Callback>,
}

/// A collective in progress, shared by its lanes, its tickets and the watcher.
pub(crate) struct Collective {
    pub sequence: u64,
    pub kind: crate::CollectiveKind,
    pub description: String,
    pub tag: u32,
    pub bytes: u64,
    /// What lanes read and write; none where shared memory carries the collective.
    memory: Option<Memory>,
    /// What is counted: blocks on the lanes, windows in shared memory.
    pub block_count: u64,
    pub submitted: Instant,
    /// How long those who wait for it poll.
    spin: Duration,
    /// Lanes that may still touch the memory.
    lanes_active: AtomicU16,
    non_finite_blocks: AtomicU64,
    overflowed_elements: AtomicU64,
    blocks_done: Arc<AtomicU64>,
    missing: MissingCount,
    failure: Mutex<Option<Error>>,
    state: Mutex<State>,
    ended: Condvar,
}

impl Collective {
    /// `part_count` threads each call [`Collective::release`] once.
    pub fn new(
        sequence: u64,
        request: &Request,
        tag: u32,
        memory: Option<Memory>,
        block_count: u64,
        part_count: u16,
        spin: Duration,
    ) -> Collective {
        Collective {
            sequence,
            kind: request.kind,
            description: request.describe(),
            tag,
            bytes: request.element_count as u64 * request.data_type.bytes() as u64,
            memory,
            block_count,
            submitted: Instant::now(),
            spin,
            lanes_active: AtomicU16::new(part_count),
            non_finite_blocks: AtomicU64::new(0),
            overflowed_elements: AtomicU64::new(0),
            blocks_done: Arc::default(),
            missing: MissingCount::new(),
            failure: Mutex::new(None),
            state: Mutex::new(State::default()),
            ended: Condvar::new(),
        }
    }

    /// What lanes read and write.
    pub fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only collectives with memory are given to lanes")
    }

    pub fn count_non_finite(&self) {
        self.add_non_finite(1);
    }

    pub fn add_non_finite(&self, block_count: u64) {
        self.non_finite_blocks.fetch_add(block_count, Ordering::Relaxed);
    }

    /// Elements of a block that is sent again.
    pub fn count_overflowed(&self, element_count: u32) {
        self.overflowed_elements.fetch_add(element_count.into(), Ordering::Relaxed);
    }

    pub fn count_block(&self) {
        self.blocks_done.fetch_add(1, Ordering::Relaxed);
    }

    /// A block's sum came without somebody's contribution.
    pub fn count_missing(&self, missing: &Missing) {
        self.missing.add(missing);
    }

    pub fn blocks_done(&self) -> u64 {
        self.blocks_done.load(Ordering::Relaxed)
    }

    /// What [`Collective::blocks_done`] reads, for who counts elsewhere.
    pub fn counter(&self) -> Arc<AtomicU64> {
        self.blocks_done.clone()
    }

    /// "3 of 40 blocks".
    pub fn progress(&self) -> String {
        let unit = if self.memory.is_some() { "blocks" } else { "windows" };
        format!("{} of {} {unit}", self.blocks_done(), self.block_count)
    }

    pub fn is_done(&self) -> bool {
        lock(&self.state).result.is_some()
    }

    /// The collective goes on to its end, and has no result then.
    pub fn fail_at_the_end(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
    }

    /// A lane will not touch the memory any more. The last one ends the
    /// collective; returns whether it did.
    pub fn release(&self, failure: Option<&Error>) -> bool {
        if let Some(error) = failure {
            lock(&self.failure).get_or_insert_with(|| error.clone());
        }
        // AcqRel: the last lane's end of the collective sees all lanes' writes.
        if self.lanes_active.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        let result = match lock(&self.failure).take() {
            Some(error) => Err(error),
            None => Ok(Outcome {
                non_finite_blocks: self.non_finite_blocks.load(Ordering::Relaxed),
                overflowed_elements: self.overflowed_elements.load(Ordering::Relaxed),
                chunks: self.block_count,
                elapsed: self.submitted.elapsed(),
                missing: self.missing.of(self.block_count),
            }),
        };
        self.end(result);
        true
    }

    /// The result, once there is one.
    pub fn result(&self) -> Option<Result<Outcome, Error>> {
        lock(&self.state).result.clone()
    }

    fn end(&self, result: Result<Outcome, Error>) {
        let mut state = lock(&self.state);
        state.result = Some(result.clone());
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.ended.notify_all();
        // The thread that carries packets must not unwind for a caller's mistake: others' memory is in its hands.
        for callback in callbacks {
            if catch_unwind(AssertUnwindSafe(|| callback(&result))).is_err() {
                tracing::error!(sequence = self.sequence, "a callback of a collective panicked");
            }
        }
    }
}

/// Tells when a collective has ended. Clones wait for the same collective;
/// dropping one changes nothing.
#[derive(Clone)]
pub struct Ticket(pub(crate) Arc<Collective>);

impl Ticket {
    /// Whether the collective has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits for the end; for ever with `None`, which still ends at the
    /// session's `collective_timeout`.
    ///
    /// # Errors
    /// Why the collective failed; [`ErrorKind::TimedOut`] if `timeout` passes
    /// first, in which case it goes on.
    #[allow(clippy::disallowed_methods, reason = "the watcher ends every collective at the session's timeout")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Outcome, Error> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        // A small collective is over before this thread could fall asleep.
        let mut patience = Patience::default();
        while !self.is_done() && !patience.is_over(self.0.spin) {}
        let mut state = lock(&self.0.state);
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.0.ended.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(Duration::ZERO) => return Err(self.still_running()),
                Some(left) => self.0.ended.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0,
            };
        }
    }

    /// Calls `callback` when the collective ends, or now if it has. It runs on
    /// the thread that carries the lane's packets, which may be another caller's
    /// in `Session::run`, and must not block.
    pub fn on_complete(&self, callback: Callback) {
        let mut state = lock(&self.0.state);
        match state.result.clone() {
            None => state.callbacks.push(callback),
            Some(result) => {
                drop(state);
                callback(&result);
            }
        }
    }

    fn still_running(&self) -> Error {
        let collective = &self.0;
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "collective #{} ({}) has not completed yet: {}",
                collective.sequence,
                collective.description,
                collective.progress()
            ),
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a callback must not take the other waiters down.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
