//! Datagrams per second and round-trip time of [`fanin_net::UdpPort`] on loopback, one sender and one receiver thread.
//!
//! `cargo bench -p fanin-net`. Cases are interleaved over the rounds because a shared machine drifts by more than
//! the differences; compare the columns of one run, not two runs. The sender keeps at most a window of unreceived
//! datagrams in flight, as a slot protocol does, so that nothing is lost and the slower side sets the rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fanin_net::{Options, ReceiveBatch, SendBatch, UdpPort, Waker};

const ROUND_COUNT: usize = 5;
const ROUND_DURATION: Duration = Duration::from_millis(400);
/// Unreceived bytes in flight: about what a lane's slots hold.
const WINDOW_BYTES: u64 = 512 << 10;
/// fanin's header in front of the payload.
const HEADER_BYTES: usize = 40;
const PING_COUNT: usize = 4000;

#[derive(Clone, Copy)]
struct Case {
    payload_bytes: usize,
    offload: bool,
    spin: Duration,
}

/// One measured round.
struct Rate {
    datagrams_per_s: f64,
    lost_count: u64,
}

fn main() {
    let (spinning, blocking) = (Duration::from_micros(100), Duration::ZERO);
    let cases: Vec<Case> = [1024, 8192]
        .into_iter()
        .flat_map(|payload_bytes| [true, false].map(|offload| (payload_bytes, offload)))
        .flat_map(|(payload_bytes, offload)| [spinning, blocking].map(|spin| Case { payload_bytes, offload, spin }))
        .collect();
    let mut rates: Vec<Vec<Rate>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUND_COUNT {
        for (case, rates) in cases.iter().zip(&mut rates) {
            rates.push(measure_rate(*case));
        }
    }
    println!("loopback, one flow, median of {ROUND_COUNT} interleaved rounds of {ROUND_DURATION:?} (lowest - highest)");
    println!("payload  GSO/GRO  receiver    datagrams/s                              payload Gbit/s  lost");
    for (case, rates) in cases.iter().zip(&mut rates) {
        print_rates(*case, rates);
    }
    print_round_trips("spinning 100 us", spinning);
    print_round_trips("sleeping", blocking);
}

fn print_rates(case: Case, rates: &mut [Rate]) {
    rates.sort_by(|a, b| a.datagrams_per_s.total_cmp(&b.datagrams_per_s));
    let median = rates[rates.len() / 2].datagrams_per_s;
    println!(
        "{:>5} B  {:>7}  {:>8}  {:>13.0} ({:>9.0} - {:>9.0})  {:>14.2}  {}",
        case.payload_bytes,
        if case.offload { "on" } else { "off" },
        if case.spin.is_zero() { "sleeps" } else { "spins" },
        median,
        rates[0].datagrams_per_s,
        rates[rates.len() - 1].datagrams_per_s,
        median * case.payload_bytes as f64 * 8.0 / 1e9,
        rates.iter().map(|rate| rate.lost_count).sum::<u64>(),
    );
}

fn open(offload: bool) -> UdpPort {
    let options = Options { gso: offload, gro: offload, ..Options::default() };
    UdpPort::bind("127.0.0.1:0".parse().expect("a literal address"), &options).expect("a loopback port")
}

fn measure_rate(case: Case) -> Rate {
    let (mut sender, mut receiver) = (open(case.offload), open(case.offload));
    sender.connect(receiver.local_addr()).expect("connect on loopback");
    let (received_count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| receive_until(&mut receiver, case.spin, &received_count, &stop));
        send_until(&mut sender, case, begin + ROUND_DURATION, &received_count);
        stop.store(true, Ordering::Relaxed);
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let received = received_count.load(Ordering::Relaxed);
    Rate { datagrams_per_s: received as f64 / elapsed, lost_count: sender.counters().datagrams_sent - received }
}

fn send_until(port: &mut UdpPort, case: Case, end: Instant, received_count: &AtomicU64) {
    let datagram_bytes = case.payload_bytes + HEADER_BYTES;
    let peer = port.peer_addr().expect("connected above");
    let batch_count = 65_000 / datagram_bytes;
    let window = WINDOW_BYTES / datagram_bytes as u64;
    let mut batch = SendBatch::new();
    let mut sent_count = 0;
    while Instant::now() < end {
        // The batch is built anew each time: that is what a lane does.
        batch.clear();
        for _ in 0..batch_count {
            let slot = batch.next_slot(datagram_bytes).expect("the batch holds 256 KiB");
            slot[..8].copy_from_slice(&u64::to_be_bytes(sent_count));
            sent_count += 1;
        }
        port.send(&batch, peer).expect("send on loopback");
        while sent_count - received_count.load(Ordering::Relaxed) > window && Instant::now() < end {
            thread::yield_now();
        }
    }
}

fn receive_until(port: &mut UdpPort, spin: Duration, received_count: &AtomicU64, stop: &AtomicBool) {
    let (mut batch, waker) = (ReceiveBatch::new(), Waker::new().expect("an eventfd"));
    let mut sum = 0u64;
    loop {
        let count = port.receive(&mut batch).expect("receive on loopback") as u64;
        for (datagram, _) in batch.iter_mut() {
            sum = sum.wrapping_add(u64::from(datagram[7]));
        }
        received_count.fetch_add(count, Ordering::Relaxed);
        if count == 0 {
            if stop.load(Ordering::Relaxed) {
                std::hint::black_box(sum);
                return;
            }
            port.wait(&waker, Some(Duration::from_millis(5)), spin).expect("wait on loopback");
        }
    }
}

fn print_round_trips(label: &str, spin: Duration) {
    let (mut near, mut far) = (open(true), open(true));
    near.connect(far.local_addr()).expect("connect on loopback");
    let stop = AtomicBool::new(false);
    let mut times: Vec<Duration> = thread::scope(|scope| {
        scope.spawn(|| echo_until(&mut far, spin, &stop));
        let times = (0..PING_COUNT).map(|_| round_trip(&mut near, spin)).collect();
        stop.store(true, Ordering::Relaxed);
        times
    });
    times.sort();
    let (median, tail) = (times[PING_COUNT / 2], times[PING_COUNT * 99 / 100]);
    println!("round trip of a 1 KiB payload, both ends {label}: p50 {median:?}, p99 {tail:?}");
}

fn round_trip(port: &mut UdpPort, spin: Duration) -> Duration {
    let (mut batch, mut received, waker) =
        (SendBatch::with_capacity(2048), ReceiveBatch::new(), Waker::new().expect("an eventfd"));
    batch.next_slot(1024 + HEADER_BYTES).expect("the batch holds 2 KiB").fill(1);
    let peer = port.peer_addr().expect("connected above");
    let begin = Instant::now();
    port.send(&batch, peer).expect("send on loopback");
    while port.receive(&mut received).expect("receive on loopback") == 0 {
        let ready = port.wait(&waker, Some(Duration::from_secs(5)), spin).expect("wait on loopback");
        assert!(ready.readable, "the echo did not come back within 5 s");
    }
    begin.elapsed()
}

fn echo_until(port: &mut UdpPort, spin: Duration, stop: &AtomicBool) {
    let (mut batch, mut received) = (SendBatch::with_capacity(2048), ReceiveBatch::new());
    let waker = Waker::new().expect("an eventfd");
    while !stop.load(Ordering::Relaxed) {
        if port.receive(&mut received).expect("receive on loopback") == 0 {
            port.wait(&waker, Some(Duration::from_millis(20)), spin).expect("wait on loopback");
            continue;
        }
        for (datagram, source) in received.iter_mut() {
            batch.clear();
            batch.push(datagram).expect("the echo fits 2 KiB");
            port.send(&batch, source).expect("send on loopback");
        }
    }
}
