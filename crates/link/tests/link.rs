//! Each fault does what its name says, at its rate, and the same seed repeats it.

use fanin_link::{Delivery, Link, LinkConfig};
use fanin_protocol::time::{Span, Time};

const FOREVER: Time = Time::from_ns(u64::MAX);
const PACKET: [u8; 64] = [0x5a; 64];

fn send_many(config: LinkConfig, seed: u64, count: u64) -> (Link, Vec<Delivery>) {
    let mut link = Link::new(config, seed);
    let mut deliveries = Vec::new();
    for n in 0..count {
        link.send(Time::from_ns(n * 1_000), &PACKET, |delivery| deliveries.push(delivery));
    }
    (link, deliveries)
}

fn flipped(packet: &[u8]) -> u32 {
    packet.iter().map(|byte| (byte ^ 0x5a).count_ones()).sum()
}

#[test]
fn a_perfect_link_delivers_every_packet_at_once_and_unchanged() {
    let (_, deliveries) = send_many(LinkConfig::default(), 1, 100);
    assert_eq!(deliveries.len(), 100);
    assert!(deliveries.iter().enumerate().all(|(n, d)| d.at == Time::from_ns(n as u64 * 1_000) && d.packet == PACKET));
}

#[test]
fn losses_and_duplicates_come_at_their_rates_and_every_packet_is_accounted_for() {
    let config = LinkConfig { loss_ppm: 100_000, duplicate_ppm: 50_000, faults_until: FOREVER, ..Default::default() };
    let (link, deliveries) = send_many(config, 2, 20_000);
    let counters = link.counters();
    assert!((1_800..2_200).contains(&counters.lost), "{counters:?}");
    assert!((750..1_050).contains(&counters.duplicated), "{counters:?}");
    assert_eq!(counters.sent + counters.duplicated, counters.lost + counters.blackholed + counters.delivered);
    assert_eq!(counters.delivered, deliveries.len() as u64);
}

#[test]
fn damage_flips_one_to_three_bits_and_says_so() {
    let config = LinkConfig { damage_ppm: 500_000, faults_until: FOREVER, ..Default::default() };
    let (link, deliveries) = send_many(config, 3, 5_000);
    let mut seen = [0; 4];
    for delivery in &deliveries {
        let bits = flipped(&delivery.packet);
        assert_eq!(delivery.damaged, bits > 0);
        seen[bits as usize] += 1;
    }
    assert!(seen[1..].iter().all(|&count| count > 500), "{seen:?}");
    assert_eq!(link.counters().damaged, seen[1..].iter().sum::<u64>());
}

#[test]
fn a_packet_held_back_arrives_after_packets_that_were_sent_much_later() {
    let config = LinkConfig {
        delay: Span::from_us(5),
        held_ppm: 10_000,
        held_delay_max: Span::from_ms(5),
        faults_until: FOREVER,
        ..Default::default()
    };
    let (link, deliveries) = send_many(config, 4, 10_000);
    let latest = deliveries.iter().enumerate().map(|(n, d)| d.at.as_ns() - n as u64 * 1_000).max().unwrap();
    assert!(link.counters().held > 50 && latest > 4_000_000, "{latest}");
}

#[test]
fn a_link_in_order_never_lets_a_packet_pass_another() {
    let config = LinkConfig { jitter_max: Span::from_us(50), in_order: true, ..Default::default() };
    let (_, deliveries) = send_many(config.clone(), 5, 2_000);
    assert!(deliveries.is_sorted_by_key(|delivery| delivery.at));
    let (_, deliveries) = send_many(LinkConfig { in_order: false, ..config }, 5, 2_000);
    assert!(!deliveries.is_sorted_by_key(|delivery| delivery.at), "jitter reorders otherwise");
}

#[test]
fn a_dead_interval_swallows_exactly_its_packets() {
    let dead = vec![(Time::from_ns(3_000), Time::from_ns(7_000))];
    let (link, deliveries) = send_many(LinkConfig { dead, ..Default::default() }, 6, 10);
    let at: Vec<u64> = deliveries.iter().map(|delivery| delivery.at.as_ns() / 1_000).collect();
    assert_eq!(at, [0, 1, 2, 7, 8, 9]);
    assert_eq!(link.counters().blackholed, 4);
}

#[test]
fn faults_end_when_they_are_said_to() {
    let config = LinkConfig { loss_ppm: 1_000_000, faults_until: Time::from_ns(5_000), ..Default::default() };
    assert_eq!(send_many(config, 7, 10).1.len(), 5);
}

#[test]
fn the_rate_spaces_packets_out() {
    let mut link = Link::new(LinkConfig { ns_per_byte: 8, ..Default::default() }, 8);
    let mut at = Vec::new();
    for _ in 0..3 {
        link.send(Time::ZERO, &PACKET, |delivery| at.push(delivery.at.as_ns()));
    }
    assert_eq!(at, [512, 1024, 1536]);
}

#[test]
fn the_same_seed_repeats_every_fault() {
    let config = LinkConfig {
        jitter_max: Span::from_us(9),
        loss_ppm: 200_000,
        duplicate_ppm: 200_000,
        damage_ppm: 200_000,
        held_ppm: 100_000,
        held_delay_max: Span::from_ms(1),
        faults_until: FOREVER,
        ..Default::default()
    };
    let (_, first) = send_many(config.clone(), 9, 500);
    let (_, again) = send_many(config.clone(), 9, 500);
    let (_, other) = send_many(config, 10, 500);
    assert_eq!(first, again);
    assert_ne!(first, other);
}
