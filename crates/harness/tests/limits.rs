//! What happens at the ends of the number ranges, and in the hole of
//! Algorithm 3 that the p4app layout cannot close.
#![cfg(not(feature = "canary"))]

use fanin_protocol::Verdict;
use fanin_protocol::switchml::{Context, JobConfig, Switch, WireFormat};
use fanin_protocol::time::Time;
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, fanin, p4app};

fn switch(wire_format: WireFormat, slots_per_lane: u32, element_count_max: u16) -> Switch {
    let mut switch = Switch::new();
    let (job_id, job_token, worker_count, lane_count) = (1, 2, 2, 1);
    let job = JobConfig {
        job_id,
        job_token,
        worker_count,
        lane_count,
        slots_per_lane,
        element_count_max,
        wire_format,
        has_checksum: true,
        accumulator: fanin_wire::Accumulator::BlockFixed,
    };
    switch.install(job).unwrap();
    switch
}

/// One element from a worker, for a chunk of slot 0.
fn contribution(rank: u16, chunk_index: u32, slots: u32, element: i32) -> Vec<u8> {
    let header = fanin::Header {
        kind: Kind::Contribution,
        job_id: 1,
        job_token: 2,
        worker_rank: rank,
        slot_index: 0,
        slot_parity: ((chunk_index / slots) & 1) as u8,
        chunk_index,
        collective_tag: 3,
        block_exponent_next: i16::MIN,
        element_count: 1,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    };
    let mut packet = vec![0; header.datagram_bytes()];
    packet[HEADER_BYTES..].copy_from_slice(&element.to_be_bytes());
    header.seal(&mut packet);
    packet
}

fn p4app_packet(use_of_slot: u32, element: i32) -> Vec<u8> {
    let header = p4app::Header {
        job_number: 1,
        packet_id: use_of_slot,
        slot_index: 0,
        slot_parity: (use_of_slot & 1) as u8,
        exponent: 0,
        element_count: 32,
    };
    let mut packet = vec![0; header.datagram_bytes()];
    packet[p4app::HEADER_BYTES..][..4].copy_from_slice(&element.to_be_bytes());
    header.seal(&mut packet);
    packet
}

/// The verdict and the first element of what leaves the switch.
fn give(switch: &mut Switch, wire_format: WireFormat, rank: u16, packet: &[u8]) -> (Verdict, i32) {
    let context = Context { now: Time::ZERO, wire_format, source_rank: Some(rank) };
    let mut output = [0; 256];
    let verdict = switch.process(&context, packet, &mut output);
    let at = if wire_format == WireFormat::Fanin { HEADER_BYTES } else { p4app::HEADER_BYTES };
    (verdict, i32::from_be_bytes(output[at..at + 4].try_into().unwrap()))
}

#[test]
fn the_chunk_index_wraps_without_a_trace() {
    // With the most slots that a job can have, slot 0 sees the wrap after
    // 2^17 uses. Old packets must be told apart on both sides of it.
    const SLOTS: u32 = 1 << 15;
    let mut switch = switch(WireFormat::Fanin, SLOTS, 1);
    let uses = (1u32 << 17) + 5;
    for use_of_slot in 0..uses {
        let chunk = use_of_slot.wrapping_mul(SLOTS);
        let mine = contribution(0, chunk, SLOTS, use_of_slot as i32);
        let (verdict, _) = give(&mut switch, WireFormat::Fanin, 0, &mine);
        assert_eq!(format!("{verdict:?}"), "Drop(AwaitingOthers)", "use {use_of_slot}");
        let (verdict, sum) = give(&mut switch, WireFormat::Fanin, 1, &contribution(1, chunk, SLOTS, 7));
        assert!(matches!(verdict, Verdict::Multicast { .. }), "use {use_of_slot}: {verdict:?}");
        assert_eq!(sum, use_of_slot as i32 + 7);
        if use_of_slot >= 2 {
            let old = contribution(1, chunk.wrapping_sub(2 * SLOTS), SLOTS, 1_000);
            let (verdict, _) = give(&mut switch, WireFormat::Fanin, 1, &old);
            assert_eq!(format!("{verdict:?}"), "Drop(StaleChunk)", "use {use_of_slot}");
        }
    }
}

/// Rank 1's first packet was duplicated, and the copy overtaken by its next
/// packet: Algorithm 3 line 7 has cleared its bit by then. The copy begins
/// the use after the next with old data, and the true packet is taken for the
/// duplicate. In fanin's layout the same copy is answered as a resend.
#[test]
fn p4app_delivers_a_wrong_sum_after_one_late_duplicate_and_fanin_does_not() {
    let mut p4app = switch(WireFormat::P4app, 1, 32);
    let mut fanin = switch(WireFormat::Fanin, 1, 1);
    let history = [(0, 0, 10), (1, 0, 20), (1, 1, 21), (1, 0, 20), (0, 1, 11), (1, 2, 22), (0, 2, 12)];
    let mut sums = [Vec::new(), Vec::new()];
    for (rank, use_of_slot, element) in history {
        let packets = [p4app_packet(use_of_slot, element), contribution(rank, use_of_slot, 1, element)];
        let programs = [(&mut p4app, WireFormat::P4app), (&mut fanin, WireFormat::Fanin)];
        for ((sums, packet), (program, wire_format)) in sums.iter_mut().zip(packets).zip(programs) {
            let (verdict, sum) = give(program, wire_format, rank, &packet);
            if matches!(verdict, Verdict::Multicast { .. }) {
                sums.push(sum);
            }
        }
    }
    assert_eq!(sums[1], [30, 32, 34], "fanin's layout");
    assert_eq!(sums[0], [30, 32, 32], "p4app's layout: 12 + 20, where 12 + 22 is right");
}
