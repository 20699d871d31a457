//! Two hosts in one process: each a group of its own, and a thread between their leaders in place of a network.

mod common;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use common::{all_reduce, fresh_key, small_windows};
use fanin_numeric::sum::Element;
use fanin_shm::{Call, Config, Error, Group, Uplink, WindowDone};

/// A window that a host has handed over.
struct Parcel {
    host: usize,
    index: u64,
    window: *mut [u8],
    done: WindowDone,
}

// SAFETY: the window belongs to whoever has `done`.
unsafe impl Send for Parcel {}

/// A leader's side of the network.
struct Wire {
    host: usize,
    network: Sender<Parcel>,
    in_flight: &'static AtomicUsize,
}

impl Uplink for Wire {
    unsafe fn start(&mut self, index: u64, window: *mut [u8], done: WindowDone) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.network.send(Parcel { host: self.host, index, window, done }).expect("the network runs");
    }
}

/// Adds the hosts' windows as float32. Keeps a pair back now and then, so that pairs end out of order.
fn network(parcels: Receiver<Parcel>, in_flight: &AtomicUsize, most: &AtomicUsize) {
    let mut waiting = [VecDeque::new(), VecDeque::new()];
    let mut held: Option<[Parcel; 2]> = None;
    loop {
        match parcels.recv_timeout(Duration::from_millis(1)) {
            Ok(parcel) => waiting[parcel.host].push_back(parcel),
            Err(RecvTimeoutError::Timeout) => held.take().into_iter().for_each(|pair| finish(pair, in_flight)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        most.fetch_max(in_flight.load(Ordering::Relaxed), Ordering::Relaxed);
        while waiting.iter().all(|queue: &VecDeque<Parcel>| !queue.is_empty()) {
            let pair = [0, 1].map(|host| waiting[host].pop_front().expect("not empty"));
            assert_eq!(pair[0].index, pair[1].index);
            if held.is_none() {
                held = Some(pair);
                continue;
            }
            finish(pair, in_flight);
            held.take().into_iter().for_each(|pair| finish(pair, in_flight));
        }
    }
}

fn finish(pair: [Parcel; 2], in_flight: &AtomicUsize) {
    // SAFETY: the windows are this thread's until `done` is used up; they hold whole floats at aligned addresses.
    let [first, second] = [&pair[0], &pair[1]]
        .map(|parcel| unsafe { std::slice::from_raw_parts_mut(parcel.window.cast::<f32>(), parcel.window.len() / 4) });
    for (a, b) in first.iter_mut().zip(second) {
        *a += *b;
        *b = *a;
    }
    for parcel in pair {
        in_flight.fetch_sub(1, Ordering::Relaxed);
        parcel.done.complete();
    }
}

fn with_uplink(key: &str, rank: u16, size: u16) -> Config {
    Config { has_uplink: true, ..small_windows(key, rank, size) }
}

/// All ranks of two hosts with 2 and 3 ranks; `rank` gets its group, the leader's wire and its rank in the whole job.
fn two_hosts(rank: impl Fn(Group, Option<Wire>, usize) + Sync) {
    static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
    let most = AtomicUsize::new(0);
    let (sender, receiver) = channel();
    let rank = &rank;
    thread::scope(|scope| {
        scope.spawn(|| network(receiver, &IN_FLIGHT, &most));
        for (host, size, first) in [(0, 2u16, 0), (1, 3, 2)] {
            let key = fresh_key();
            for local in 0..size {
                let (key, network) = (key.clone(), sender.clone());
                scope.spawn(move || {
                    let group = Group::form(&with_uplink(&key, local, size)).expect("the group forms");
                    let wire = (local == 0).then_some(Wire { host, network, in_flight: &IN_FLIGHT });
                    rank(group, wire, first + usize::from(local));
                });
            }
        }
        drop(sender);
    });
    let most = most.into_inner();
    assert!(most > 2, "both hosts had at most {most} windows in flight: they went one by one");
    assert!(most <= 2 * 4, "{most} windows of two rings with 4 each");
}

#[test]
fn ranks_of_two_hosts_average_over_all_of_them() {
    two_hosts(|mut group, mut wire, rank| {
        for (sequence, count) in [1, 1024, 1025, 40_000, 0, 3, 100_003].into_iter().enumerate() {
            let mut values: Vec<f32> = (0..count).map(|k| (k % 300 * 5 + 10 * rank) as f32).collect();
            let memory = values.as_mut_ptr().cast();
            let call = Call { divisor: 5.0, ..all_reduce(sequence as u64, Element::Float32, memory, 4 * count) };
            // SAFETY: the vector has as many bytes.
            let outcome = unsafe { group.run(&call, wire.as_mut().map(|wire| wire as &mut dyn Uplink)) };
            outcome.expect("no rank fails");
            let wrong = (0..count).find(|k| values[*k] != (k % 300 * 5 + 20) as f32);
            assert_eq!(wrong, None, "rank {rank}, {count} floats: {:?}", wrong.map(|k| values[k]));
        }
    });
}

/// What may go wrong on the way.
#[derive(Clone, Copy)]
enum Trouble {
    Fail,
    Drop,
}

impl Uplink for Trouble {
    unsafe fn start(&mut self, _index: u64, _window: *mut [u8], done: WindowDone) {
        match self {
            Trouble::Fail => done.fail("host 7 does not answer"),
            Trouble::Drop => drop(done),
        }
    }
}

#[test]
fn trouble_on_the_way_reaches_every_rank() {
    for (trouble, words) in [(Trouble::Fail, "host 7 does not answer"), (Trouble::Drop, "was closed in the middle")] {
        let errors = common::with_ranks(3, with_uplink, |mut group, rank| {
            let mut values = vec![0u8; 100_000];
            let call = all_reduce(0, Element::Float32, values.as_mut_ptr(), 100_000);
            let mut trouble = trouble;
            let uplink = (rank == 0).then_some(&mut trouble as &mut dyn Uplink);
            // SAFETY: the vector has as many bytes.
            unsafe { group.run(&call, uplink) }.expect_err("no window comes back")
        });
        for error in errors {
            assert!(matches!(&error, Error::Aborted { rank: 0, reason } if reason.contains(words)), "{error}");
        }
    }
}

#[test]
fn an_uplink_is_passed_by_the_leader_and_only_then() {
    common::with_ranks(2, with_uplink, |mut group, rank| {
        let call = all_reduce(0, Element::Float32, std::ptr::null_mut(), 0);
        let mut trouble = Trouble::Fail;
        let uplink = (rank == 1).then_some(&mut trouble as &mut dyn Uplink);
        // SAFETY: no memory is involved.
        let error = unsafe { group.run(&call, uplink) }.expect_err("the wrong rank");
        assert!(matches!(error, Error::Call(_)), "{error}");
    });
}
