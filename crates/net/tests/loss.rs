//! Injected loss follows the seed and nothing else.

mod common;

use common::{datagrams, port, port_with, receive_payloads, send_all};
use fanin_net::{Blackhole, Loss, Options};

const COUNT: usize = 4000;

/// Indices of the datagrams that arrive when `sender_loss` and `receiver_loss` are injected.
fn survivors(sender: Options, receiver: Options) -> Vec<usize> {
    let (mut sender, mut receiver) = (port_with(&sender), port_with(&receiver));
    let sent = datagrams(&[600; COUNT]);
    let mut received = Vec::new();
    for part in sent.chunks(400) {
        send_all(&mut sender, part, receiver.local_addr());
        received.extend(receive_payloads(&mut receiver, part.len()));
    }
    let (out, back) = (sender.counters(), receiver.counters());
    assert_eq!(out.datagrams_sent + out.dropped_injected_send, COUNT as u64);
    assert_eq!(back.datagrams_received + back.dropped_injected_receive, out.datagrams_sent);
    let mut next = 0;
    received
        .iter()
        .map(|datagram| {
            let index = next + sent[next..].iter().position(|other| other == datagram).expect("in order, unchanged");
            next = index + 1;
            index
        })
        .collect()
}

fn lossy(probability: f64, seed: u64) -> Options {
    Options { loss: Some(Loss { probability, seed }), ..Options::default() }
}

fn assert_near(lost: usize, probability: f64) {
    let expected = probability * COUNT as f64;
    let sigma = (expected * (1.0 - probability)).sqrt();
    assert!((lost as f64 - expected).abs() < 4.5 * sigma, "lost {lost} of {COUNT} at probability {probability}");
}

#[test]
fn send_loss_has_the_rate_asked_for_and_repeats_with_its_seed() {
    for probability in [0.01, 0.2] {
        let first = survivors(lossy(probability, 5), Options::default());
        assert_near(COUNT - first.len(), probability);
        assert_eq!(first, survivors(lossy(probability, 5), Options::default()));
        assert_ne!(first, survivors(lossy(probability, 6), Options::default()));
    }
}

#[test]
fn receive_loss_has_the_rate_asked_for_and_repeats_with_its_seed() {
    let first = survivors(Options::default(), lossy(0.05, 5));
    assert_near(COUNT - first.len(), 0.05);
    assert_eq!(first, survivors(Options::default(), lossy(0.05, 5)));
    assert_ne!(first, survivors(lossy(0.05, 5), Options::default()), "the directions draw from different streams");
}

#[test]
fn offload_does_not_change_who_is_lost() {
    let with = survivors(lossy(0.1, 8), Options::default());
    let without = survivors(Options { gso: false, ..lossy(0.1, 8) }, Options { gro: false, ..Options::default() });
    assert_eq!(with, without);
}

#[test]
fn a_blackhole_swallows_one_direction_only() {
    let (mut a, mut b) = (port(), port());
    a.set_blackhole(Blackhole::Send);
    send_all(&mut a, &datagrams(&[100; 50]), b.local_addr());
    send_all(&mut b, &datagrams(&[100; 50]), a.local_addr());
    assert_eq!(receive_payloads(&mut b, 50).len(), 0);
    assert_eq!(receive_payloads(&mut a, 50).len(), 50);
    assert_eq!(a.counters().dropped_injected_send, 50);
    a.set_blackhole(Blackhole::Receive);
    send_all(&mut a, &datagrams(&[100; 50]), b.local_addr());
    send_all(&mut b, &datagrams(&[100; 50]), a.local_addr());
    assert_eq!(receive_payloads(&mut b, 50).len(), 50);
    assert_eq!(receive_payloads(&mut a, 50).len(), 0);
    assert_eq!(a.counters().dropped_injected_receive, 50);
    a.set_blackhole(Blackhole::None);
    send_all(&mut b, &datagrams(&[100; 50]), a.local_addr());
    assert_eq!(receive_payloads(&mut a, 50).len(), 50);
}

#[test]
fn loss_can_begin_and_end_while_the_port_runs() {
    let (mut a, mut b) = (port(), port());
    let mut arrivals = |a: &mut fanin_net::UdpPort| {
        send_all(a, &datagrams(&[100; 200]), b.local_addr());
        receive_payloads(&mut b, 200).len()
    };
    assert_eq!(arrivals(&mut a), 200);
    a.set_loss(Some(Loss { probability: 0.5, seed: 1 })).unwrap();
    let half = arrivals(&mut a);
    assert!((50..150).contains(&half));
    a.set_loss(None).unwrap();
    assert_eq!(arrivals(&mut a), 200);
    assert!(a.set_loss(Some(Loss { probability: 2.0, seed: 1 })).is_err());
}
