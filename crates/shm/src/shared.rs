//! The memory that all ranks of a group map: where everything is, and the words in it.
//!
//! | part | size |
//! | --- | --- |
//! | head: first reason to abort, end of the file | 16 bytes |
//! | seats: gates of each rank | 128 bytes per rank |
//! | gates of the ring's slots | 8 bytes per slot |
//! | notes: why a rank aborted or left | 1 KiB per rank |
//! | descriptors | 512 bytes per rank and slot |
//! | stages | a window per rank and slot |
//! | results | a window per slot |
//!
//! Registered regions follow in the same file, mapped by whoever needs them.

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::Duration;

use crate::call::{DESCRIPTOR_WORDS, Descriptor, shorten};
use crate::progress::{Gate, Progress, Seat, Word};
use crate::sys::{self, Mapping};
use crate::{Config, Error};

/// How long a sleeper waits before it looks whether the rank it waits for still lives.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Regions, stages and results start at multiples of this, which is a huge page.
pub(crate) const REGION_ALIGN: u64 = 2 << 20;

impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Acquire)
    }

    fn fetch_add(&self, value: u32) -> u32 {
        AtomicU32::fetch_add(self, value, Ordering::AcqRel)
    }

    fn fetch_or(&self, value: u32) -> u32 {
        AtomicU32::fetch_or(self, value, Ordering::AcqRel)
    }

    fn sleep_while(&self, seen: u32) {
        sys::futex_wait(self, seen, SLEEP_MAX);
    }

    fn wake_all(&self) {
        sys::futex_wake_all(self);
    }
}

/// The first page.
#[repr(C)]
struct Head {
    /// One more than the rank that gave the first reason to abort, 0 while there is none.
    aborter: AtomicU32,
    /// Where the next region may start, bytes.
    file_end: AtomicU64,
}

const TEXT_BYTES: usize = 1008;

/// Why a rank aborted or left. Written once.
#[repr(C)]
struct Note {
    state: AtomicU32,
    kind: AtomicU32,
    /// The rank that is to blame.
    about: AtomicU32,
    text_bytes: AtomicU32,
    text: [u8; TEXT_BYTES],
}

/// How often a reader gives a writer the processor.
const NOTE_LOOKS: usize = 1000;

/// States of a note.
const EMPTY: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const WRITTEN: u32 = 2;
const LEFT: u32 = 3;

/// The parts' places in the file, bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    seats: usize,
    combined: usize,
    notes: usize,
    descriptors: usize,
    stages: usize,
    results: usize,
    bytes: usize,
}

impl Layout {
    fn new(config: &Config) -> Layout {
        let (ranks, depth) = (usize::from(config.local_size), config.depth);
        let mut end = 0;
        let mut part = |bytes: usize, align: usize| {
            let start = usize::next_multiple_of(end, align);
            end = start + bytes;
            start
        };
        part(size_of::<Head>(), 64);
        let seats = part(ranks * size_of::<Seat<AtomicU32>>(), align_of::<Seat<AtomicU32>>());
        let combined = part(depth * size_of::<Gate<AtomicU32>>(), 128);
        let notes = part(ranks * size_of::<Note>(), 128);
        let descriptors = part(ranks * depth * 8 * DESCRIPTOR_WORDS, 128);
        let stages = part(ranks * depth * config.window_bytes, REGION_ALIGN as usize);
        let results = part(depth * config.window_bytes, 4096);
        let bytes = part(0, REGION_ALIGN as usize);
        Layout { seats, combined, notes, descriptors, stages, results, bytes }
    }
}

/// One rank's view of the group's memory.
pub(crate) struct Shared {
    map: Mapping,
    file: OwnedFd,
    layout: Layout,
    rank: usize,
    rank_count: usize,
    depth: usize,
    window_bytes: usize,
    /// The ranks' processes.
    processes: Vec<OwnedFd>,
}

impl Shared {
    /// Makes the memory of a new group; [`Shared::new`] opens it.
    pub(crate) fn create(config: &Config) -> Result<OwnedFd, Error> {
        let file = sys::memory_file().map_err(Error::system("create shared memory"))?;
        let layout = Layout::new(config);
        sys::reserve(file.as_fd(), 0, layout.bytes).map_err(Error::system("reserve shared memory"))?;
        Ok(file)
    }

    /// Maps the group's memory for the rank that `config` names; `processes` has one per rank.
    pub(crate) fn new(config: &Config, file: OwnedFd, processes: Vec<OwnedFd>) -> Result<Shared, Error> {
        let layout = Layout::new(config);
        let file_bytes = sys::file_bytes(file.as_fd()).map_err(Error::system("look at shared memory"))?;
        if file_bytes < layout.bytes as u64 || processes.len() != usize::from(config.local_size) {
            return Err(Error::Refused(format!(
                "it sent {file_bytes} bytes of memory and {} processes",
                processes.len()
            )));
        }
        let map = Mapping::new(file.as_fd(), 0, layout.bytes).map_err(Error::system("map shared memory"))?;
        let shared = Shared {
            map,
            file,
            layout,
            rank: config.local_rank.into(),
            rank_count: config.local_size.into(),
            depth: config.depth,
            window_bytes: config.window_bytes,
            processes,
        };
        shared.head().file_end.fetch_max(layout.bytes as u64, Ordering::AcqRel);
        Ok(shared)
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.rank_count
    }

    pub(crate) fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where regions may be in the file.
    pub(crate) fn regions_start(&self) -> u64 {
        self.layout.bytes as u64
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.bytes);
        // SAFETY: the layout's places lie within the mapping, which has `layout.bytes` bytes.
        unsafe { self.map.base().add(offset) }
    }

    fn head(&self) -> &Head {
        // SAFETY: the file begins with zeroes, which are a valid head; atomics may be shared with other processes.
        unsafe { &*self.map.base().cast::<Head>() }
    }

    pub(crate) fn progress(&self) -> Progress<'_, AtomicU32> {
        // SAFETY: the layout has these arrays there, aligned; zeroes are valid gates, and gates are atomics.
        let (seats, combined) = unsafe {
            (
                std::slice::from_raw_parts(self.at(self.layout.seats).cast::<Seat<AtomicU32>>(), self.rank_count),
                std::slice::from_raw_parts(self.at(self.layout.combined).cast::<Gate<AtomicU32>>(), self.depth),
            )
        };
        Progress { seats, combined, rank: self.rank }
    }

    /// The stage of `rank` for `window`, `window_bytes` bytes.
    pub(crate) fn stage(&self, rank: usize, window: u32) -> *mut u8 {
        self.at(self.layout.stages + (rank * self.depth + self.slot(window)) * self.window_bytes)
    }

    /// The result of `window`, `window_bytes` bytes.
    pub(crate) fn result(&self, window: u32) -> *mut u8 {
        self.at(self.layout.results + self.slot(window) * self.window_bytes)
    }

    fn slot(&self, window: u32) -> usize {
        window as usize % self.depth
    }

    fn descriptor(&self, rank: usize, window: u32) -> *mut [u64; DESCRIPTOR_WORDS] {
        let index = rank * self.depth + self.slot(window);
        self.at(self.layout.descriptors + index * 8 * DESCRIPTOR_WORDS).cast()
    }

    /// Writes the own descriptor for the collective that begins with `window`, whose slot is free.
    pub(crate) fn write_descriptor(&self, window: u32, descriptor: &Descriptor) {
        // SAFETY: the slot is free, so nobody else reads or writes it until it is published.
        unsafe { self.descriptor(self.rank, window).write(descriptor.to_words()) }
    }

    /// Reads a descriptor that `rank` has published.
    pub(crate) fn read_descriptor(&self, rank: usize, window: u32) -> Result<Descriptor, Error> {
        // SAFETY: published and not written again before this rank is done with the window.
        let words = unsafe { self.descriptor(rank, window).read() };
        let corrupt = |problem: &str| Error::Corrupt { rank: rank as u16, problem: problem.to_owned() };
        Descriptor::from_words(&words).map_err(corrupt)
    }

    /// Takes `bytes` bytes at the end of the file, at a multiple of [`REGION_ALIGN`].
    pub(crate) fn extend_file(&self, bytes: usize) -> Result<u64, Error> {
        let step = (bytes as u64).next_multiple_of(REGION_ALIGN);
        let offset = self.head().file_end.fetch_add(step, Ordering::AcqRel);
        sys::reserve(self.file(), offset, bytes).map_err(Error::system("reserve registered memory"))?;
        Ok(offset)
    }

    /// True if the process of `rank` has ended.
    pub(crate) fn has_died(&self, rank: usize) -> bool {
        // A descriptor that cannot be polled tells nothing, so the wait goes on.
        rank != self.rank && sys::is_readable(self.processes[rank].as_fd(), Duration::ZERO).unwrap_or(false)
    }
}

/// Reasons to stop.
impl Shared {
    fn note(&self, rank: usize) -> &Note {
        // SAFETY: the layout has one note per rank there; zeroes are a valid note. `text` is only read once `state` says
        // that it will not change.
        unsafe { &*self.at(self.layout.notes + rank * size_of::<Note>()).cast::<Note>() }
    }

    /// Fails the group for all ranks, with `reason` unless there is an earlier one, and wakes everyone.
    pub(crate) fn abort(&self, reason: &Error) {
        let note = self.note(self.rank);
        let claimed = note.state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if claimed {
            let (kind, about, text) = encode(reason, self.rank as u16);
            let text = shorten(&text, TEXT_BYTES);
            note.kind.store(kind, Ordering::Relaxed);
            note.about.store(about.into(), Ordering::Relaxed);
            note.text_bytes.store(text.len() as u32, Ordering::Relaxed);
            let offset = self.layout.notes + self.rank * size_of::<Note>() + offset_of!(Note, text);
            // SAFETY: the claim makes this thread the only one that touches the text, which has TEXT_BYTES bytes.
            unsafe { self.at(offset).copy_from_nonoverlapping(text.as_ptr(), text.len()) }
            note.state.store(WRITTEN, Ordering::Release);
        }
        let own = self.rank as u32 + 1;
        // Sequentially consistent: who read this rank's memory after it had changed must see this word.
        let _ = self.head().aborter.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.close_all();
    }

    fn close_all(&self) {
        let progress = self.progress();
        progress.seats.iter().for_each(Seat::close);
        progress.combined.iter().for_each(Gate::close);
    }

    /// Tells the others that this rank will publish nothing more.
    pub(crate) fn leave(&self) {
        let state = &self.note(self.rank).state;
        // After an abort the reason stays.
        let _ = state.compare_exchange(EMPTY, LEFT, Ordering::AcqRel, Ordering::Acquire);
        self.progress().seats[self.rank].close();
        if self.rank == crate::progress::LEADER {
            self.progress().combined.iter().for_each(Gate::close);
        }
    }

    /// Why the group has failed, if it has.
    pub(crate) fn failure(&self) -> Option<Error> {
        let rank = (self.head().aborter.load(Ordering::SeqCst) as usize).checked_sub(1)?;
        if rank >= self.rank_count {
            return Some(Error::Aborted { rank: 0, reason: "an unknown rank gave up".to_owned() });
        }
        Some(self.read_note(rank))
    }

    /// An error if the group has failed. Everything this thread read before was read before that word.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        fence(Ordering::SeqCst);
        self.failure().map_or(Ok(()), Err)
    }

    /// True if `rank` dropped its group.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.note(rank).state.load(Ordering::Acquire) == LEFT
    }

    fn read_note(&self, rank: usize) -> Error {
        let note = self.note(rank);
        // Another thread of that rank may be writing it this moment.
        let is_written = || note.state.load(Ordering::Acquire) == WRITTEN;
        if !(0..NOTE_LOOKS).any(|_| {
            is_written() || {
                thread::yield_now();
                false
            }
        }) {
            return Error::Aborted { rank: rank as u16, reason: "it ended before it could say why".to_owned() };
        }
        let text_bytes = (note.text_bytes.load(Ordering::Relaxed) as usize).min(TEXT_BYTES);
        let text = String::from_utf8_lossy(&note.text[..text_bytes]).into_owned();
        decode(note.kind.load(Ordering::Relaxed), rank as u16, note.about.load(Ordering::Relaxed) as u16, text)
    }
}

/// Codes of reasons.
const ABORTED: u32 = 0;
const DIED: u32 = 1;
const PEER_LEFT: u32 = 2;
const MISMATCH: u32 = 3;
const CORRUPT: u32 = 4;

fn encode(reason: &Error, rank: u16) -> (u32, u16, String) {
    match reason {
        Error::PeerDied { rank } => (DIED, *rank, String::new()),
        Error::PeerLeft { rank } => (PEER_LEFT, *rank, String::new()),
        Error::Mismatch(text) => (MISMATCH, rank, text.clone()),
        Error::Corrupt { rank, problem } => (CORRUPT, *rank, problem.clone()),
        Error::Aborted { reason, .. } => (ABORTED, rank, reason.clone()),
        other => (ABORTED, rank, other.to_string()),
    }
}

fn decode(kind: u32, rank: u16, about: u16, text: String) -> Error {
    match kind {
        DIED => Error::PeerDied { rank: about },
        PEER_LEFT => Error::PeerLeft { rank: about },
        MISMATCH => Error::Mismatch(text),
        CORRUPT => Error::Corrupt { rank: about, problem: text },
        _ => Error::Aborted { rank, reason: text },
    }
}
