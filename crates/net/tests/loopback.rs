//! What goes in comes out, whatever the lengths and whether offload is on.

mod common;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::time::Duration;

use common::{datagram, datagrams, port, port_with, receive_payloads, receive_up_to, send_all};
use fanin_net::{NetError, Options, PortEvent, ReceiveBatch, SendBatch, UdpPort, Waker};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

fn assert_round_trip(sender: &mut UdpPort, receiver: &mut UdpPort, lengths: &[usize]) {
    let sent = datagrams(lengths);
    send_all(sender, &sent, receiver.local_addr());
    let received = receive_payloads(receiver, sent.len());
    assert_eq!(received.len(), sent.len(), "lengths {lengths:?}");
    assert!(received == sent, "bytes or order differ for lengths {lengths:?}");
}

/// Cases where the cutting of super-packets could go wrong.
fn lengths_of_interest() -> Vec<Vec<usize>> {
    vec![
        vec![1],
        vec![1; 300],
        vec![1064; 200],
        vec![8232; 40],
        vec![977; 67],
        vec![1064, 1064, 1064, 40],
        vec![40, 1064, 1064, 40, 40, 1064],
        vec![1064, 1063, 1062, 1063, 1064],
        vec![65_000, 65_507, 65_507, 1],
        vec![32_500, 32_500, 32_500, 7],
        (1..150).collect(),
    ]
}

#[test]
fn every_member_of_a_group_gets_each_datagram_of_the_sender_it_joined_for() {
    let (mut sender, mut stranger) = (port(), port());
    let group = SocketAddrV4::new([239, 192, 7, 7].into(), sender.local_addr().port());
    let join = || UdpPort::join_group(group, Ipv4Addr::LOCALHOST, sender.local_addr(), &Options::default());
    let (Ok(first), Ok(second)) = (join(), join()) else {
        return println!("SKIPPED: loopback carries no multicast here");
    };
    let mut batch = SendBatch::new();
    (0..40).for_each(|index| batch.push(&datagram(index, 1064)).unwrap());
    stranger.send(&batch, group.into()).unwrap();
    sender.send(&batch, group.into()).unwrap();
    for mut member in [first, second] {
        let received = receive_payloads(&mut member, 41);
        assert_eq!(received, (0..40).map(|index| datagram(index, 1064)).collect::<Vec<_>>());
    }
}

#[test]
fn offload_round_trip_of_all_kinds_of_lengths() {
    let (mut sender, mut receiver) = (port(), port());
    for lengths in lengths_of_interest() {
        assert_round_trip(&mut sender, &mut receiver, &lengths);
    }
    assert!(receiver.receives_super_packets(), "this kernel has no UDP_GRO; the offload tests mean nothing here");
    assert!(sender.counters().super_packets_sent > 0 && receiver.counters().super_packets_received > 0);
    assert_eq!(sender.counters().datagrams_sent, receiver.counters().datagrams_received);
    assert_eq!(sender.counters().bytes_sent, receiver.counters().bytes_received);
    assert_eq!(receiver.receive_overflows().unwrap(), 0);
}

#[test]
fn every_mix_of_offload_delivers_the_same() {
    for (gso, gro) in [(false, false), (false, true), (true, false)] {
        let mut sender = port_with(&Options { gso, ..Options::default() });
        let mut receiver = port_with(&Options { gro, ..Options::default() });
        for lengths in lengths_of_interest() {
            assert_round_trip(&mut sender, &mut receiver, &lengths);
        }
        assert_eq!(sender.counters().super_packets_sent > 0, gso);
        // Plain datagrams may or may not be merged on the way; without gro they must not be.
        assert!(gro || receiver.counters().super_packets_received == 0);
    }
}

#[test]
fn random_mixes_of_lengths_round_trip() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(2026);
    let (mut sender, mut receiver) = (port(), port());
    for _ in 0..60 {
        let mut lengths = Vec::new();
        for _ in 0..random.next_u32() % 12 + 1 {
            let (length, repeats) = (random.next_u32() as usize % 3000 + 1, random.next_u32() as usize % 20 + 1);
            lengths.extend(std::iter::repeat_n(length, repeats));
        }
        assert_round_trip(&mut sender, &mut receiver, &lengths);
    }
}

#[test]
fn ipv6_and_ipv4_over_an_ipv6_port() {
    let any = "[::]:0".parse().unwrap();
    let Ok(mut receiver) = UdpPort::bind(any, &Options::default()) else {
        eprintln!("SKIPPED: this host has no IPv6");
        return;
    };
    let number = receiver.local_addr().port();
    let mut v6 = UdpPort::bind("[::1]:0".parse().unwrap(), &Options::default()).unwrap();
    let mut v4 = port();
    let sent = datagrams(&[1000; 70]);
    send_all(&mut v6, &sent, format!("[::1]:{number}").parse().unwrap());
    let received = receive_up_to(&mut receiver, 70);
    assert!(received.iter().all(|(_, source)| *source == v6.local_addr()));
    assert!(received.into_iter().map(|(bytes, _)| bytes).eq(sent.clone()));
    send_all(&mut v4, &sent, format!("127.0.0.1:{number}").parse().unwrap());
    let received = receive_up_to(&mut receiver, 70);
    assert_eq!(received.len(), 70);
    // The reported source is one the port can answer to.
    let source = received[0].1;
    send_all(&mut receiver, &sent, source);
    assert!(receive_payloads(&mut v4, 70) == sent);
}

#[test]
fn one_batch_reaches_many_destinations() {
    let mut sender = port();
    let mut receivers: Vec<_> = (0..32).map(|_| port()).collect();
    let sent = datagrams(&[1064; 100]);
    let mut batch = SendBatch::new();
    for datagram in &sent {
        batch.push(datagram).unwrap();
    }
    for receiver in &receivers {
        let outcome = sender.send(&batch, receiver.local_addr()).unwrap();
        assert_eq!((outcome.datagrams, outcome.not_sent), (100, 0));
    }
    for receiver in &mut receivers {
        assert!(receive_payloads(receiver, 100) == sent);
    }
    assert_eq!(sender.counters().super_packets_sent, 64, "two super-packets of 1 KiB datagrams for each destination");
}

#[test]
fn several_sources_are_told_apart_and_edits_in_place_stay_apart() {
    let mut receiver = port();
    let mut senders: Vec<_> = (0..4).map(|_| port()).collect();
    let mut batch = ReceiveBatch::with_buffers(16, 64 << 10);
    for sender in &mut senders {
        send_all(sender, &datagrams(&[500; 10]), receiver.local_addr());
    }
    let waker = Waker::new().unwrap();
    receiver.wait(&waker, Some(common::PATIENCE), Duration::ZERO).unwrap();
    assert_eq!(receiver.receive(&mut batch).unwrap(), 40);
    for (index, (datagram, source)) in batch.iter_mut().enumerate() {
        assert_eq!(source, senders[index / 10].local_addr());
        datagram.fill(index as u8);
    }
    for index in 0..40 {
        let (datagram, source) = batch.get_mut(index).unwrap();
        assert_eq!(source, senders[index / 10].local_addr());
        assert!(datagram.len() == 500 && datagram.iter().all(|byte| *byte == index as u8));
    }
    assert!(batch.get_mut(40).is_none());
}

#[test]
fn an_empty_datagram_is_delivered_as_one() {
    let mut receiver = port();
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    plain.send_to(&[], receiver.local_addr()).unwrap();
    plain.send_to(&[1, 2], receiver.local_addr()).unwrap();
    assert_eq!(receive_payloads(&mut receiver, 2), [vec![], vec![1, 2]]);
}

#[test]
fn a_datagram_that_does_not_fit_its_buffer_is_counted_not_cut() {
    let mut receiver = port_with(&Options { gro: false, ..Options::default() });
    let plain = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [100, 101, 99] {
        plain.send_to(&datagram(0, bytes), receiver.local_addr()).unwrap();
    }
    let mut batch = ReceiveBatch::with_buffers(8, 100);
    receiver.wait(&Waker::new().unwrap(), Some(common::PATIENCE), Duration::ZERO).unwrap();
    assert_eq!(receiver.receive(&mut batch).unwrap(), 2);
    assert_eq!(batch.iter_mut().map(|(datagram, _)| datagram.len()).collect::<Vec<_>>(), [100, 99]);
    assert_eq!(receiver.counters().dropped_truncated, 1);
}

#[test]
fn a_kernel_that_takes_fewer_segments_is_met_halfway() {
    // No kernel takes 300 segments, so this is the real refusal, not a pretended one.
    let mut sender = port_with(&Options { segments_max: 1000, ..Options::default() });
    let mut receiver = port();
    assert_round_trip(&mut sender, &mut receiver, &[100; 300]);
    assert_eq!(sender.counters().gso_fallbacks, 1);
    let segments_max = sender.segments_max();
    assert!((1..=128).contains(&segments_max));
    assert_eq!(sender.poll_event(), Some(PortEvent::SegmentsReduced { segments_max }));
    assert_eq!(sender.poll_event(), None);
    assert_round_trip(&mut sender, &mut receiver, &[100; 300]);
    assert_eq!(sender.counters().gso_fallbacks, 1, "remembered");
}

#[test]
fn without_segmentation_the_port_falls_back_for_good_and_loses_nothing() {
    let mut sender = port();
    let mut receiver = port();
    // A socket without UDP checksums cannot segment: the kernel answers EINVAL, as a device without offload would.
    let socket = socket2::SockRef::from(&sender.as_fd().try_clone_to_owned().unwrap()).try_clone().unwrap();
    set_no_checksum(&socket);
    assert_round_trip(&mut sender, &mut receiver, &[700; 150]);
    let counters = sender.counters();
    assert!(counters.gso_fallbacks >= 1);
    assert_eq!((sender.segments_max(), counters.super_packets_sent), (1, 0));
    assert!(matches!(sender.poll_event(), Some(PortEvent::SegmentationUnavailable { .. })));
    assert_round_trip(&mut sender, &mut receiver, &[700; 150]);
    assert_eq!(sender.counters().gso_fallbacks, counters.gso_fallbacks, "remembered");
}

fn set_no_checksum(socket: &socket2::Socket) {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), 4) };
    assert_eq!(result, 0);
}

#[test]
fn a_refusing_peer_is_an_event_and_the_port_goes_on() {
    let mut sender = port();
    let closed = port().local_addr();
    sender.connect(closed).unwrap();
    let mut batch = SendBatch::new();
    batch.push(&[1; 100]).unwrap();
    for _ in 0..5 {
        sender.send(&batch, closed).unwrap();
    }
    let mut received = ReceiveBatch::new();
    assert_eq!(sender.receive(&mut received).unwrap(), 0);
    assert_eq!(sender.poll_event(), Some(PortEvent::PeerRefused { peer: Some(closed) }));
    assert_eq!(sender.poll_event(), None);
    assert!(sender.counters().peer_refused >= 1);
    // The error was taken off the socket, so a wait sleeps instead of spinning on it.
    let ready = sender.wait(&Waker::new().unwrap(), Some(Duration::from_millis(5)), Duration::ZERO).unwrap();
    assert!(!ready.readable);
    let mut revived = UdpPort::bind(closed, &Options::default()).unwrap();
    sender.send(&batch, closed).unwrap();
    assert_eq!(receive_payloads(&mut revived, 1), [vec![1; 100]]);
}

#[test]
fn a_full_receive_buffer_is_reported() {
    let mut receiver = port_with(&Options { receive_buffer_bytes: 64 << 10, ..Options::default() });
    let mut sender = port();
    send_all(&mut sender, &datagrams(&[1064; 2000]), receiver.local_addr());
    let received = receive_payloads(&mut receiver, 2000);
    assert!(received.len() < 2000 && receiver.receive_overflows().unwrap() > 0);
}

#[test]
fn a_connected_port_hears_only_its_peer() {
    let (mut lane, mut switch, mut stranger) = (port(), port(), port());
    lane.connect(switch.local_addr()).unwrap();
    send_all(&mut stranger, &datagrams(&[10]), lane.local_addr());
    send_all(&mut switch, &datagrams(&[20]), lane.local_addr());
    assert_eq!(receive_payloads(&mut lane, 2), datagrams(&[20]));
    // Sending elsewhere stays possible.
    send_all(&mut lane, &datagrams(&[30]), stranger.local_addr());
    assert_eq!(receive_payloads(&mut stranger, 1), datagrams(&[30]));
}

#[test]
fn errors_name_what_is_wrong() {
    let taken = port();
    let error = UdpPort::bind(taken.local_addr(), &Options::default()).unwrap_err();
    assert!(matches!(error, NetError::Bind { address, .. } if address == taken.local_addr()));
    for options in [
        Options { segments_max: 0, ..Options::default() },
        Options { super_packet_bytes_max: 65_001, ..Options::default() },
        Options { receive_buffer_bytes: usize::MAX, ..Options::default() },
    ] {
        assert!(matches!(UdpPort::bind(common::loopback(), &options), Err(NetError::Option { .. })));
    }
}

#[test]
fn loopback_path_mtu_and_buffers_are_reported() {
    let port = port();
    assert_eq!(port.path_mtu(port.local_addr()).unwrap(), 65_535);
    assert_eq!(port.max_payload(port.local_addr()).unwrap(), fanin_net::DATAGRAM_BYTES_MAX);
    assert!(port.buffer_sizes().unwrap().receive_bytes >= 1 << 20);
}
