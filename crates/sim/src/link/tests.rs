use std::collections::VecDeque;

use super::*;
use fanin_link::Random;
use proptest::prelude::*;

const BYTES: u16 = 1250;
/// At 10 Gbit/s.
const TRANSMISSION_PS: u64 = 1_000_000;
const DELAY_PS: u64 = 2_000_000;

fn class(queue_bytes_max: u64, mark_bytes: u64) -> Class {
    Class::new(&LinkConfig {
        rate_bps: 10_000_000_000,
        delay_ps: DELAY_PS,
        queue_bytes_max,
        mark_bytes,
        corruption: 0.0,
    })
}

fn packet(number: u32) -> Packet {
    Packet { number, bytes: BYTES, flags: ECT, ..Packet::default() }
}

fn drain(link: &mut Link) -> Vec<Packet> {
    std::iter::from_fn(|| link.take_before(u64::MAX)).collect()
}

#[test]
fn packets_follow_one_another_at_the_links_rate() {
    let (class, mut link) = (class(1 << 30, 1 << 30), Link::default());
    for number in 0..20 {
        assert!(link.offer(&class, 500, &packet(number)));
    }
    link.start_until(&class, 500 + 9 * TRANSMISSION_PS - 1);
    assert_eq!((link.started_count(), link.waiting_count()), (9, 11), "the tenth starts a picosecond later");
    let first: Vec<_> = std::iter::from_fn(|| link.take_started()).collect();
    assert_eq!(first.len(), 9);
    for (place, packet) in first.iter().enumerate() {
        assert_eq!(packet.number as usize, place);
        assert_eq!(packet.at_ps, 500 + (place as u64 + 1) * TRANSMISSION_PS + DELAY_PS);
    }
    link.start_until(&class, u64::MAX - 1);
    assert_eq!(drain(&mut link).len(), 11);
    assert!(link.is_empty());
    assert_eq!(link.queued_bytes(), 0);
}

#[test]
fn the_queue_marks_from_its_threshold_on_and_drops_beyond_its_end() {
    // One packet in transmission; room for four; the third in the queue finds two, and is marked.
    let (class, mut link) = (class(4 * u64::from(BYTES), 2 * u64::from(BYTES)), Link::default());
    let taken: Vec<bool> = (0..7).map(|number| link.offer(&class, 0, &packet(number))).collect();
    assert_eq!(taken, [true, true, true, true, true, false, false]);
    link.start_until(&class, u64::MAX - 1);
    let marked: Vec<bool> = drain(&mut link).iter().map(|packet| packet.flags & MARKED != 0).collect();
    assert_eq!(marked, [false, false, false, true, true]);
    let LinkCounters { sent, marked, dropped, queued_bytes_max, .. } = link.counters();
    assert_eq!((sent, marked, dropped, queued_bytes_max), (5, 2, 2, 4 * u64::from(BYTES)));
}

#[test]
fn packets_whose_sender_does_not_understand_marks_get_none() {
    let (class, mut link) = (class(1 << 20, 0), Link::default());
    for number in 0..5 {
        link.offer(&class, 0, &Packet { flags: 0, ..packet(number) });
    }
    assert_eq!(link.counters().marked, 0);
}

#[test]
fn a_pause_holds_what_has_not_started() {
    let (class, mut link) = (class(1 << 20, 1 << 20), Link::default());
    for number in 0..4 {
        link.offer(&class, 0, &packet(number));
    }
    // The second is in transmission.
    link.pause(&class, TRANSMISSION_PS + 1);
    assert_eq!(drain(&mut link).len(), 2);
    assert_eq!(link.free_before(u64::MAX), None);
    assert!(link.offer(&class, 49 * TRANSMISSION_PS, &packet(4)), "it waits, although nothing is in transmission");
    link.resume(&class, 50 * TRANSMISSION_PS);
    let rest = drain(&mut link);
    assert_eq!(rest[0].at_ps, 51 * TRANSMISSION_PS + DELAY_PS);
    assert_eq!(rest[1].at_ps, 52 * TRANSMISSION_PS + DELAY_PS);
    assert_eq!(rest[2].at_ps, 53 * TRANSMISSION_PS + DELAY_PS);
}

#[test]
fn what_is_offered_first_goes_before_all_that_wait_paused_or_not() {
    let (class, mut link) = (class(1 << 20, 1 << 20), Link::default());
    for number in 0..6 {
        link.offer(&class, 0, &packet(number));
    }
    link.pause(&class, TRANSMISSION_PS / 2);
    link.offer_first(&class, TRANSMISSION_PS / 2, &packet(9));
    assert_eq!((link.started_count(), link.waiting_count(), link.queued_bytes()), (2, 5, 5 * u64::from(BYTES)));
    link.resume(&class, TRANSMISSION_PS);
    link.start_until(&class, u64::MAX - 1);
    let seen: Vec<(u32, u64)> = drain(&mut link).iter().map(|packet| (packet.number, packet.at_ps)).collect();
    let expected =
        [0, 9, 1, 2, 3, 4, 5].iter().zip(1..).map(|(&number, end)| (number, end * TRANSMISSION_PS + DELAY_PS));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

/// Mean waiting time with Poisson arrivals and packets of one length: ρ / (2 (1 - ρ)) transmissions (Pollaczek and
/// Khinchine).
#[test]
fn waiting_times_are_those_of_an_m_d_1_queue() {
    for load in [0.3, 0.6, 0.9] {
        let (class, mut link) = (class(u64::MAX, u64::MAX), Link::default());
        let mut random = Random::new(11);
        let (mut now, mut waited, count) = (0.0, 0.0, 400_000u32);
        let mut starts = Vec::new();
        for number in 0..count {
            let unit = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            now += -libm::log(1.0 - unit) * TRANSMISSION_PS as f64 / load;
            link.offer(&class, now as u64, &packet(number));
            starts.push(now as u64);
            while let Some(packet) = link.take_before(u64::MAX) {
                waited += (packet.at_ps - DELAY_PS - TRANSMISSION_PS - starts[packet.number as usize]) as f64;
            }
        }
        link.start_until(&class, u64::MAX - 1);
        for packet in drain(&mut link) {
            waited += (packet.at_ps - DELAY_PS - TRANSMISSION_PS - starts[packet.number as usize]) as f64;
        }
        let mean = waited / f64::from(count) / TRANSMISSION_PS as f64;
        let theory = load / (2.0 * (1.0 - load));
        assert!((mean / theory - 1.0).abs() < 0.03, "load {load}: {mean} transmissions, not {theory}");
    }
}

proptest! {
    /// Against a queue that is kept packet by packet.
    #[test]
    fn any_arrivals_leave_as_from_a_plain_queue(
        gaps in proptest::collection::vec((0..3 * TRANSMISSION_PS, 64u16..1500), 1..200),
        queue_bytes_max in 1500u64..20_000,
    ) {
        let class = class(queue_bytes_max, 5_000);
        let (mut link, mut now, mut free, mut waiting) = (Link::default(), 0, 0u64, Vec::<(u64, u16)>::new());
        let mut expected = Vec::new();
        for (number, (gap, bytes)) in gaps.into_iter().enumerate() {
            now += gap;
            waiting.retain(|&(start, _)| start > now);
            let queued: u64 = waiting.iter().map(|&(_, bytes)| u64::from(bytes)).sum();
            let start = free.max(now);
            let fits = start == now || queued + u64::from(bytes) <= queue_bytes_max;
            let packet = Packet { number: number as u32, bytes, flags: ECT, ..Packet::default() };
            prop_assert_eq!(link.offer(&class, now, &packet), fits);
            if fits {
                let is_marked = start > now && queued >= 5_000;
                free = start + class.transmission_ps(bytes);
                if start > now {
                    waiting.push((start, bytes));
                }
                expected.push((number as u32, free + DELAY_PS, is_marked));
            }
        }
        link.start_until(&class, u64::MAX - 1);
        let seen: Vec<_> =
            drain(&mut link).iter().map(|packet| (packet.number, packet.at_ps, packet.flags & MARKED != 0)).collect();
        prop_assert_eq!(seen, expected);
    }
}

/// A queue that is kept packet by packet: of what has started, and of what waits.
#[derive(Default)]
struct Plain {
    started: VecDeque<(u32, u64)>,
    waiting: VecDeque<(u32, u16)>,
    free_ps: u64,
    is_paused: bool,
}

impl Plain {
    fn start(&mut self, class: &Class, (number, bytes): (u32, u16), from_ps: u64) {
        self.free_ps = self.free_ps.max(from_ps) + class.transmission_ps(bytes);
        self.started.push_back((number, self.free_ps + DELAY_PS));
    }

    /// Starts what starts at or before `now_ps`.
    fn advance(&mut self, class: &Class, now_ps: u64) {
        while !self.is_paused && self.free_ps <= now_ps {
            let Some(packet) = self.waiting.pop_front() else { return };
            self.start(class, packet, self.free_ps);
        }
    }

    fn offer(&mut self, class: &Class, now_ps: u64, packet: (u32, u16)) -> bool {
        if self.free_ps <= now_ps && !self.is_paused {
            self.start(class, packet, now_ps);
            return true;
        }
        let queued: u64 = self.waiting.iter().map(|&(_, bytes)| u64::from(bytes)).sum();
        let fits = queued + u64::from(packet.1) <= class.queue_bytes_max;
        if fits {
            self.waiting.push_back(packet);
        }
        fits
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u16),
    First(u16),
    Pause,
    Resume,
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (64u16..1500).prop_map(Step::Offer),
        1 => (64u16..100).prop_map(Step::First),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        3 => Just(Step::Take),
    ]
}

proptest! {
    /// With pauses and what goes before them, and wherever positions in the ring wrap.
    #[test]
    fn any_steps_leave_as_from_a_plain_queue(
        steps in proptest::collection::vec((0..2 * TRANSMISSION_PS, step()), 1..200),
        queue_bytes_max in 1500u64..20_000,
        before_wrap in 0u32..20,
    ) {
        let class = class(queue_bytes_max, u64::MAX);
        let first = u32::MAX - before_wrap;
        let mut link = Link { head: first, waiting: first, tail: first, ..Link::default() };
        let (mut plain, mut now) = (Plain::default(), 0);
        for (number, (gap, step)) in steps.into_iter().enumerate() {
            let number = number as u32;
            now += gap;
            plain.advance(&class, now);
            match step {
                Step::Offer(bytes) => {
                    let taken = link.offer(&class, now, &Packet { number, bytes, ..Packet::default() });
                    prop_assert_eq!(taken, plain.offer(&class, now, (number, bytes)));
                }
                Step::First(bytes) => {
                    link.offer_first(&class, now, &Packet { number, bytes, ..Packet::default() });
                    plain.start(&class, (number, bytes), now);
                }
                Step::Pause => {
                    link.pause(&class, now);
                    plain.is_paused = true;
                }
                Step::Resume => {
                    link.resume(&class, now);
                    (plain.is_paused, plain.free_ps) = (false, plain.free_ps.max(now));
                    plain.advance(&class, now);
                }
                Step::Take => {
                    let expected = plain.started.front().copied().filter(|&(_, at_ps)| at_ps <= now);
                    plain.started.drain(..usize::from(expected.is_some()));
                    prop_assert_eq!(link.take_before(now + 1).map(|packet| (packet.number, packet.at_ps)), expected);
                }
            }
            link.start_until(&class, now);
            let queued: u64 = plain.waiting.iter().map(|&(_, bytes)| u64::from(bytes)).sum();
            prop_assert_eq!((link.waiting_count(), link.queued_bytes()), (plain.waiting.len() as u64, queued));
        }
        link.resume(&class, now);
        (plain.is_paused, plain.free_ps) = (false, plain.free_ps.max(now));
        plain.advance(&class, u64::MAX);
        let seen: Vec<_> = drain(&mut link).iter().map(|packet| (packet.number, packet.at_ps)).collect();
        prop_assert_eq!(seen, Vec::from(plain.started));
    }
}
