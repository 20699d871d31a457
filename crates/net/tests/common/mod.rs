//! Shared by the loopback tests.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fanin_net::{Options, ReceiveBatch, SendBatch, SlotError, UdpPort, Waker};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Longest any test waits for traffic that must come.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Silence after which loopback traffic is over: delivery there happens inside the send call.
pub const SILENCE: Duration = Duration::from_millis(50);

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn port_with(options: &Options) -> UdpPort {
    UdpPort::bind(loopback(), options).unwrap()
}

pub fn port() -> UdpPort {
    port_with(&Options::default())
}

/// A datagram whose every byte depends on its index, so that a cut at the wrong place shows.
pub fn datagram(index: usize, bytes: usize) -> Vec<u8> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(index as u64);
    let mut datagram = vec![0; bytes];
    random.fill_bytes(&mut datagram);
    datagram
}

pub fn datagrams(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(index, bytes)| datagram(index, *bytes)).collect()
}

/// Sends all, as many batches as it takes.
pub fn send_all(port: &mut UdpPort, datagrams: &[Vec<u8>], destination: SocketAddr) {
    let mut batch = SendBatch::new();
    for datagram in datagrams {
        if batch.push(datagram) == Err(SlotError::Full) {
            port.send(&batch, destination).unwrap();
            batch.clear();
            batch.push(datagram).unwrap();
        }
    }
    port.send(&batch, destination).unwrap();
}

/// Receives until `count` datagrams came, or until silence.
pub fn receive_up_to(port: &mut UdpPort, count: usize) -> Vec<(Vec<u8>, SocketAddr)> {
    let (waker, mut batch) = (Waker::new().unwrap(), ReceiveBatch::new());
    let mut all = Vec::new();
    let begin = Instant::now();
    while all.len() < count && begin.elapsed() < PATIENCE {
        if !port.wait(&waker, Some(SILENCE), Duration::ZERO).unwrap().readable {
            break;
        }
        port.receive(&mut batch).unwrap();
        all.extend(batch.iter_mut().map(|(datagram, source)| (datagram.to_vec(), source)));
    }
    all
}

pub fn receive_payloads(port: &mut UdpPort, count: usize) -> Vec<Vec<u8>> {
    receive_up_to(port, count).into_iter().map(|(datagram, _)| datagram).collect()
}
