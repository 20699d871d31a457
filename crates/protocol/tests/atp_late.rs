//! Workers that are late for a chunk are not waited for in the rest of its collective, and in no other one.

use fanin_protocol::atp::{Server, ServerConfig, Stragglers, Tree};
use fanin_protocol::time::{Span, Time};
use fanin_wire::atp::{ElementFormat, Flags, Header, Kind};
use fanin_wire::generated::{ATP_HEADER_BYTES, ATP_SCALE_CODE_NONE};
use fanin_wire::{Accumulator, Operator};

const WINDOW_MAX: u32 = 8;
/// Of the two collectives that have one tag, and of what lies between.
const TAG: u32 = 0x1234_5678;
const OTHER_TAG: u32 = 0x1234_0000;

struct Lane {
    server: Server,
    now: Time,
}

impl Lane {
    fn new() -> Lane {
        let stragglers = Stragglers {
            after: Span::from_ms(1),
            share_min_percent: 50,
            rest_of_collective: true,
            chunks_kept: 2 * WINDOW_MAX,
        };
        let config = ServerConfig {
            job_id: 1,
            job_token: 2,
            lane: 0,
            tree: Tree::one_switch(2).unwrap(),
            slot_count: 8,
            window_max: WINDOW_MAX,
            element_count_max: 1,
            stragglers: Some(stragglers),
            accumulator: Accumulator::StaticFixed,
            overflow_often: 0,
        };
        Lane { server: Server::new(config), now: Time::ZERO }
    }

    /// What a switch passes on of one worker. Returns how many chunks are complete then.
    fn send(&mut self, rank: u16, chunk_index: u32, collective_tag: u32) -> u64 {
        let header = Header {
            kind: Kind::Fragment,
            job_id: 1,
            job_token: 2,
            chunk_index,
            collective_tag,
            contributed: [1 << rank, 0, 0, 0],
            fan_in: [2, 0, 0, 0],
            level: 1,
            flags: Flags::default(),
            lane: 0,
            slot_index: 0,
            slot_index_next: 0,
            worker_rank: rank,
            element_count: 1,
            element_format: ElementFormat::Fixed32,
            operator: Operator::Add,
            detail: 0,
            destination: u16::MAX,
            scale: 0,
            scale_next: ATP_SCALE_CODE_NONE,
            echo: 0,
        };
        let mut datagram = [0; ATP_HEADER_BYTES + 4];
        header.seal(&mut datagram);
        let dropped = self.server.counters().drops;
        self.server.handle_packet(self.now, &datagram);
        assert_eq!(self.server.counters().drops, dropped, "chunk {chunk_index} of rank {rank} was dropped");
        self.server.counters().chunks
    }

    /// Time for what is late passes.
    fn wait(&mut self) -> u64 {
        self.now += Span::from_ms(2);
        self.server.handle_timeout(self.now);
        self.server.counters().chunks
    }
}

#[test]
fn a_later_collective_of_the_same_tag_is_waited_for() {
    let mut lane = Lane::new();
    assert_eq!(lane.send(0, 0, TAG), 0);
    assert_eq!(lane.wait(), 1, "chunk 0 is complete without rank 1");
    assert_eq!(lane.send(0, 1, TAG), 2, "nobody waits for rank 1 in the rest of the collective");
    assert_eq!(lane.send(0, 2, OTHER_TAG), 2, "but in the next");
    assert_eq!(lane.send(1, 2, OTHER_TAG), 3);
    assert_eq!(lane.send(0, 3, TAG), 3, "and in one after that which has the first one's tag");
    assert_eq!(lane.send(1, 3, TAG), 4);
}

/// The next collective is known before somebody is late for the first, whose other chunks come in any order.
#[test]
fn chunks_on_either_side_end_a_collective() {
    let mut lane = Lane::new();
    for rank in 0..2 {
        lane.send(rank, 0, OTHER_TAG);
        lane.send(rank, 4, OTHER_TAG);
    }
    lane.send(0, 2, TAG);
    assert_eq!(lane.wait(), 3);
    assert_eq!(lane.send(0, 5, TAG), 3, "beyond the collective");
    assert_eq!(lane.send(0, 3, TAG), 4, "behind the chunk that rank 1 was late for");
    assert_eq!(lane.send(0, 1, TAG), 5, "before it");
}

/// A lane's stream has as many collectives as one likes.
#[test]
fn whoever_was_late_long_ago_is_waited_for() {
    let mut lane = Lane::new();
    lane.send(0, 0, TAG);
    lane.wait();
    lane.send(1, 0, TAG);
    for chunk_index in 1..1_000 {
        let tag = if chunk_index % 100 == 0 { TAG } else { OTHER_TAG + chunk_index };
        assert_eq!(lane.send(0, chunk_index, tag), u64::from(chunk_index), "chunk {chunk_index} waits for rank 1");
        assert_eq!(lane.send(1, chunk_index, tag), u64::from(chunk_index) + 1);
    }
}
