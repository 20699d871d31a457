//! The waits under a model checker: loom runs every interleaving (up to a number of preemptions) and every value that the
//! memory model lets a load return. Stages and results are cells that report any two accesses that are not ordered.
//!
//! Each canary breaks one thing, and the checker must find it.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{CLOSED, Gate, LEADER, Patience, Progress, STEP, Seat, Steps, Windows, Word, Work, reached};

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Canary {
    Nothing,
    /// Counts are published without publishing what was written before.
    Relaxed,
    /// Nobody wakes a sleeper.
    Silent,
    /// The ring has a slot less than the waits believe.
    ShortRing,
}

/// A futex as the kernel has it: comparing and falling asleep are one step.
struct ModelWord {
    value: AtomicU32,
    bed: Mutex<()>,
    bell: Condvar,
    canary: Canary,
}

impl ModelWord {
    fn new(canary: Canary) -> ModelWord {
        ModelWord { value: AtomicU32::new(0), bed: Mutex::new(()), bell: Condvar::new(), canary }
    }

    fn changing(&self) -> Ordering {
        if self.canary == Canary::Relaxed { Ordering::Relaxed } else { Ordering::AcqRel }
    }
}

impl Word for ModelWord {
    fn load(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    fn fetch_add(&self, value: u32) -> u32 {
        self.value.fetch_add(value, self.changing())
    }

    fn fetch_or(&self, value: u32) -> u32 {
        self.value.fetch_or(value, self.changing())
    }

    #[allow(clippy::disallowed_methods, reason = "a wait for ever is what the checker looks for")]
    fn sleep_while(&self, seen: u32) {
        let bed = self.bed.lock().expect("no thread panicked");
        // The kernel sees the latest value, which a read-modify-write does as well.
        if self.value.fetch_add(0, Ordering::Relaxed) == seen {
            drop(self.bell.wait(bed).expect("no thread panicked"));
        }
    }

    fn wake_all(&self) {
        if self.canary != Canary::Silent {
            drop(self.bed.lock().expect("no thread panicked"));
            self.bell.notify_all();
        }
    }
}

/// Sleeps at once, and never doubts that the others live.
struct Sleeper;

impl Patience for Sleeper {
    type Error = &'static str;

    fn begin(&mut self, _rank: usize) {}

    fn look_again(&mut self) -> bool {
        false
    }

    fn is_gone(&mut self) -> bool {
        false
    }

    fn give_up(&mut self) -> Self::Error {
        "closed"
    }
}

const RANKS: usize = 2;
const SENT_UP: u32 = 100;

/// The group's memory.
struct Memory {
    seats: Vec<Seat<ModelWord>>,
    combined: Vec<Gate<ModelWord>>,
    stages: Vec<[UnsafeCell<u32>; RANKS]>,
    results: Vec<[UnsafeCell<u32>; RANKS]>,
}

impl Memory {
    fn new(depth: usize, canary: Canary) -> Arc<Memory> {
        let mut word = || ModelWord::new(canary);
        let slot_count = if canary == Canary::ShortRing { depth - 1 } else { depth };
        let cells = || (0..slot_count).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]).collect();
        Arc::new(Memory {
            seats: (0..RANKS).map(|_| Seat::new(&mut word)).collect(),
            combined: (0..depth).map(|_| Gate::new(&mut word)).collect(),
            stages: cells(),
            results: cells(),
        })
    }

    fn progress(&self, rank: usize) -> Progress<'_, ModelWord> {
        Progress { seats: &self.seats, combined: &self.combined, rank }
    }
}

/// What a rank contributes to a window.
fn input(rank: usize, window: u32) -> u32 {
    10 * window + rank as u32 + 1
}

fn sum(window: u32) -> u32 {
    (0..RANKS).map(|rank| input(rank, window)).sum()
}

struct Rank<'a> {
    memory: &'a Memory,
    rank: usize,
    steps: Steps,
    delivered: u32,
}

impl Rank<'_> {
    fn read(&self, cells: &[[UnsafeCell<u32>; RANKS]], window: u32, rank: usize) -> u32 {
        // SAFETY: the checker reports a write that is not ordered with this.
        cells[window as usize % cells.len()][rank].with(|cell| unsafe { *cell })
    }

    fn write(&self, cells: &[[UnsafeCell<u32>; RANKS]], window: u32, rank: usize, value: u32) {
        // SAFETY: the checker reports an access that is not ordered with this.
        cells[window as usize % cells.len()][rank].with_mut(|cell| unsafe { *cell = value });
    }

    fn staged_sum(&self, window: u32) -> u32 {
        (0..RANKS).map(|rank| self.read(&self.memory.stages, window, rank)).sum()
    }
}

impl Work for Rank<'_> {
    fn stage(&mut self, window: u32) {
        self.write(&self.memory.stages, window, self.rank, input(self.rank, window));
    }

    fn reduce(&mut self, window: u32) {
        self.write(&self.memory.results, window, self.rank, self.staged_sum(window));
    }

    fn send_up(&mut self, window: u32) {
        for rank in 0..RANKS {
            let local = self.read(&self.memory.results, window, rank);
            self.write(&self.memory.results, window, rank, local + SENT_UP);
        }
        self.memory.progress(LEADER).combined(window).publish_up_to(window + 1);
    }

    fn deliver(&mut self, window: u32) {
        let wanted = sum(window) + if self.steps.goes_up { SENT_UP } else { 0 };
        if self.steps.reduces {
            (0..RANKS).for_each(|rank| assert_eq!(self.read(&self.memory.results, window, rank), wanted));
        } else {
            assert_eq!(self.staged_sum(window), wanted);
        }
        self.delivered += 1;
    }
}

/// One rank's collective, as the group runs it: the first window is staged before the plan is known.
fn collective(memory: &Memory, rank: usize, count: u32, steps: Steps) {
    let progress = memory.progress(rank);
    let mut work = Rank { memory, rank, steps, delivered: 0 };
    progress.wait_slot(0, &mut Sleeper).expect("nobody closes");
    work.stage(0);
    progress.publish_staged();
    let windows = Windows { first: 0, count, staged: 1 };
    progress.pipeline(windows, steps, &mut work, &mut Sleeper).expect("nobody closes");
    assert_eq!(work.delivered, count);
}

/// `preemptions` bounds how often a thread is interrupted where it could go on, and so the checker's time.
fn check(preemptions: usize, ranks: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(ranks);
}

fn check_pipeline(depth: usize, count: u32, steps: Steps, canary: Canary) {
    let preemptions = if steps.reduces { 1 } else { 2 };
    check(preemptions, move || {
        let memory = Memory::new(depth, canary);
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || collective(&memory, 1, count, steps)
        });
        collective(&memory, 0, count, steps);
        other.join().expect("the other rank ends");
    });
}

const ALONE: Steps = Steps { reduces: false, goes_up: false };
const TOGETHER: Steps = Steps { reduces: true, goes_up: false };
const UP: Steps = Steps { reduces: true, goes_up: true };

#[test]
fn counts_may_wrap() {
    let last = u32::MAX / STEP;
    assert!(reached(last.wrapping_mul(STEP), last));
    assert!(!reached(last.wrapping_mul(STEP), last.wrapping_add(1)));
    assert!(reached(0, last.wrapping_add(1)));
    assert!(reached(STEP | CLOSED, last));
    assert!(!reached(CLOSED, 1));
}

#[test]
fn everyone_reading_all_stages_is_ordered() {
    check_pipeline(2, 3, ALONE, Canary::Nothing);
}

#[test]
fn parts_reduced_by_different_ranks_are_ordered() {
    check_pipeline(3, 4, TOGETHER, Canary::Nothing);
}

#[test]
fn windows_sent_up_are_ordered() {
    check_pipeline(3, 4, UP, Canary::Nothing);
}

#[test]
fn a_wait_in_place_of_the_first_window_is_ordered() {
    // The direct path: everyone reads and writes everyone's cells between being staged and being done.
    check(2, || {
        let memory = Memory::new(2, Canary::Nothing);
        let direct = |memory: &Memory, rank: usize| {
            let (progress, mut work) = (memory.progress(rank), Rank { memory, rank, steps: ALONE, delivered: 0 });
            for window in 0..2 {
                work.stage(window);
                progress.publish_staged();
                progress.wait_staged(window, &mut Sleeper).expect("nobody closes");
                // Each rank writes its part of both outputs, here the cell of its rank in the result.
                work.reduce(window);
                progress.publish_reduced_and_done();
                progress.wait_done(window, &mut Sleeper).expect("nobody closes");
                (0..RANKS).for_each(|part| assert_eq!(work.read(&memory.results, window, part), sum(window)));
            }
        };
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || direct(&memory, 1)
        });
        direct(&memory, 0);
        other.join().expect("the other rank ends");
    });
}

#[test]
fn closing_ends_every_wait() {
    check(2, || {
        let memory = Memory::new(2, Canary::Nothing);
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || memory.progress(1).wait_staged(0, &mut Sleeper)
        });
        memory.seats.iter().for_each(Seat::close);
        assert_eq!(other.join().expect("the wait ends"), Err("closed"));
    });
}

#[test]
fn what_was_published_before_closing_can_be_waited_for() {
    check(2, || {
        let memory = Memory::new(2, Canary::Nothing);
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                let mut work = Rank { memory: &memory, rank: 1, steps: ALONE, delivered: 0 };
                work.stage(0);
                memory.progress(1).publish_staged();
                memory.seats[1].close();
            }
        });
        memory.progress(0).publish_staged();
        assert_eq!(memory.progress(0).wait_staged(0, &mut Sleeper), Ok(()));
        let reader = Rank { memory: &memory, rank: 0, steps: ALONE, delivered: 0 };
        assert_eq!(reader.read(&memory.stages, 0, 1), input(1, 0));
        other.join().expect("the other rank ends");
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn canary_relaxed_counts_are_found() {
    check_pipeline(3, 2, TOGETHER, Canary::Relaxed);
}

#[test]
#[should_panic]
fn canary_a_slot_used_too_early_is_found() {
    check_pipeline(3, 3, ALONE, Canary::ShortRing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn canary_a_lost_wake_up_is_found() {
    check_pipeline(2, 1, ALONE, Canary::Silent);
}
