//! Steady traffic allocates nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use common::port_with;
use fanin_net::{Loss, Options, ReceiveBatch, SendBatch, Waker};

thread_local! {
    // Per thread: the test runner's own threads allocate whenever they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
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
fn sending_waiting_and_receiving_allocate_nothing_once_warm() {
    for (gso, probability) in [(true, 0.0), (false, 0.0), (true, 0.1)] {
        let options = Options { gso, loss: Some(Loss { probability, seed: 1 }), ..Options::default() };
        let (mut sender, mut receiver) = (port_with(&options), port_with(&options));
        let (mut batch, mut received, waker) = (SendBatch::new(), ReceiveBatch::new(), Waker::new().unwrap());
        let mut arrived = 0;
        let mut exchange = || {
            for index in 0..150 {
                batch.next_slot(1064 - index % 3).unwrap().fill(index as u8);
            }
            sender.send(&batch, receiver.local_addr()).unwrap();
            batch.clear();
            receiver.wait(&waker, Some(Duration::from_millis(100)), Duration::ZERO).unwrap();
            while receiver.receive(&mut received).unwrap() > 0 {
                arrived += received.iter_mut().filter(|(datagram, _)| datagram.len() > 1000).count();
            }
        };
        exchange();
        let before = ALLOCATIONS.with(Cell::get);
        (0..20).for_each(|_| exchange());
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "gso {gso}, loss {probability}");
        assert!(arrived > 21 * 150 / 2, "only {arrived} datagrams arrived");
    }
}
