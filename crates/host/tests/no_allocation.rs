//! Lanes and data-plane threads allocate nothing while packets flow.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use common::World;
use fanin_host::{ReduceOp, SessionConfig};

/// By threads that handle packets.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

thread_local! {
    /// Whether this thread calls collectives, and so may carry a lane's packets. Constant and without a destructor: looking
    /// at it never allocates.
    static IS_CALLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a caller, a lane or a data-plane thread; the latter by its name. Asks the kernel, because whatever
/// the standard library would have to set up for the answer may itself allocate.
fn handles_packets() -> bool {
    if IS_CALLER.try_with(Cell::get).unwrap_or(false) {
        return true;
    }
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"fanin-lane") || name.starts_with(b"fanin-data")
}

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if handles_packets() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn packets_allocate_nothing_once_warm() {
    const RANKS: u16 = 2;
    const BLOCK: usize = 256;
    let world = World::new(RANKS);
    let adjust = |config| SessionConfig { element_count: Some(BLOCK as u16), ..config };
    let counts = world.run(adjust, |rank, session| {
        let mut values = vec![1f32; 4000 * BLOCK];
        let mut sum = |blocks: usize| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..5 {
                session.all_reduce(&mut values[..blocks * BLOCK], ReduceOp::Average).expect("completes");
            }
            // Every rank's lanes have done their part when all ranks are here.
            session.barrier().expect("completes");
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        IS_CALLER.set(true);
        sum(4000);
        let (few, many) = (sum(1), sum(4000));
        IS_CALLER.set(false);
        let counters = session.stats();
        assert!(counters.datagrams_sent > 10 * 4000, "rank {rank} sent {} datagrams", counters.datagrams_sent);
        (few, many)
    });
    let in_all = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(
        in_all > 0,
        "lanes and data-plane threads set up their batches, so some allocations must have been counted"
    );
    // A collective as a whole may allocate, and so may publishing counters ten times a second. One allocation per packet
    // would make 20,000 more.
    for (few, many) in counts {
        assert!(many <= few + 100, "5 collectives of 1 packet took {few} allocations, 5 of 4000 packets took {many}");
    }
}
