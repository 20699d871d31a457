//! What a leaf does beside summing: spec/PROTOCOL.md, section 8.

use fanin_protocol::switchml::{
    Context, InstallError, JobConfig, Leaf, LeafConfig, LeafVerdict, Side, Switch, WireFormat,
};
use fanin_protocol::time::Time;
use fanin_protocol::{DropReason, Verdict};
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, ProbePath, fanin};

const JOB: JobConfig = JobConfig {
    job_id: 0x0105,
    job_token: 9,
    worker_count: 2,
    lane_count: 1,
    slots_per_lane: 2,
    element_count_max: 4,
    wire_format: WireFormat::Fanin,
    has_checksum: true,
    accumulator: fanin_wire::Accumulator::BlockFixed,
};

/// The second of two racks of two: ranks 2 and 3, child 1 of the root.
struct Rack {
    leaf: Leaf,
    output: [u8; 128],
}

impl Rack {
    fn new() -> Rack {
        let mut leaf = Leaf::new();
        leaf.install(LeafConfig::of_rack(JOB, &[2, 2], 1)).expect("a valid job");
        Rack { leaf, output: [0; 128] }
    }

    fn take(&mut self, from: Side, header: fanin::Header, elements: &[i32]) -> LeafVerdict {
        let header = fanin::Header { element_count: elements.len() as u16, ..header };
        let mut packet = vec![0; HEADER_BYTES];
        packet.extend(elements.iter().flat_map(|element| element.to_be_bytes()));
        packet.resize(header.datagram_bytes(), 0);
        header.seal(&mut packet);
        self.leaf.process(Time::ZERO, from, &packet, &mut self.output)
    }

    /// What left with the last packet.
    fn left(&self, bytes: usize) -> (fanin::Header, Vec<i32>) {
        let (header, payload) = fanin::Header::parse(&self.output[..bytes]).expect("what leaves is a datagram");
        let word = |word: &[u8]| i32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        (header, payload.chunks_exact(4).map(word).collect())
    }

    /// Both children contribute to chunk 0, whose sum goes up.
    fn complete(&mut self, header: fanin::Header) -> (fanin::Header, Vec<i32>) {
        let first = self.take(Side::Below, fanin::Header { worker_rank: 0, ..header }, &[1, 2]);
        assert_eq!(first, LeafVerdict::Below(Verdict::Drop(DropReason::AwaitingOthers)));
        let exponent = fanin::Header { worker_rank: 1, block_exponent_next: 7, ..header };
        let LeafVerdict::Up { bytes } = self.take(Side::Below, exponent, &[10, 20]) else {
            panic!("a complete sum goes up")
        };
        self.left(bytes)
    }
}

fn contribution() -> fanin::Header {
    fanin::Header {
        kind: Kind::Contribution,
        job_id: JOB.job_id,
        job_token: JOB.job_token,
        worker_rank: 0,
        slot_index: 0,
        slot_parity: 0,
        chunk_index: 0,
        collective_tag: 77,
        block_exponent_next: 3,
        element_count: 0,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    }
}

#[test]
fn the_sum_goes_up_and_its_answer_comes_down_and_is_kept() {
    let mut rack = Rack::new();
    let (above, sum) = rack.complete(contribution());
    assert_eq!((above.kind, above.worker_rank, above.block_exponent_next), (Kind::Contribution, 1, 7));
    assert_eq!(sum, [11, 22]);
    let aggregate = fanin::Header { kind: Kind::Aggregate, worker_rank: RANK_ALL, block_exponent_next: 9, ..above };
    let LeafVerdict::Below(Verdict::Multicast { bytes, destination: None, lane: 0, .. }) =
        rack.take(Side::Above, aggregate, &[100, 200])
    else {
        panic!("an Aggregate goes to all children")
    };
    assert_eq!(rack.left(bytes), (fanin::Header { element_count: 2, ..aggregate }, vec![100, 200]));
    // Who missed it gets it again; the parent is not asked.
    let LeafVerdict::Below(Verdict::Reply { bytes }) =
        rack.take(Side::Below, fanin::Header { kind: Kind::Query, worker_rank: 1, ..contribution() }, &[])
    else {
        panic!("a kept Aggregate answers a Query")
    };
    let (reply, sum) = rack.left(bytes);
    assert_eq!((reply.kind, reply.worker_rank, reply.block_exponent_next), (Kind::Aggregate, 1, 9));
    assert_eq!(sum, [100, 200]);
    // A second one, and whatever else the parent says of this chunk, comes too late.
    for kind in [Kind::Aggregate, Kind::Missing, Kind::Refusal] {
        let late = rack.take(Side::Above, fanin::Header { kind, ..aggregate }, &[]);
        assert_eq!(late, LeafVerdict::Below(Verdict::Drop(DropReason::StaleChunk)), "{kind}");
    }
}

#[test]
fn what_the_parent_lacks_is_asked_for_and_sent_again() {
    let mut rack = Rack::new();
    let (above, sum) = rack.complete(contribution());
    let query = fanin::Header { kind: Kind::Query, worker_rank: 0, detail: 4, ..contribution() };
    let LeafVerdict::Up { bytes } = rack.take(Side::Below, query, &[]) else { panic!("a question goes up") };
    let (asked, _) = rack.left(bytes);
    assert_eq!((asked.kind, asked.worker_rank, asked.element_count), (Kind::Query, 1, 0));
    let LeafVerdict::Up { bytes } = rack.take(Side::Above, fanin::Header { kind: Kind::Missing, ..asked }, &[]) else {
        panic!("what is missing goes up again")
    };
    let (again, elements) = rack.left(bytes);
    assert_eq!((fanin::Header { detail: above.detail, ..again }, elements), (above, sum));
}

#[test]
fn a_sum_for_one_rank_goes_towards_it() {
    let mut rack = Rack::new();
    // Rank 3 is the second child here.
    let (above, _) = rack.complete(fanin::Header { destination: 3, ..contribution() });
    assert_eq!(above.destination, 3);
    let aggregate = fanin::Header { kind: Kind::Aggregate, worker_rank: RANK_ALL, ..above };
    let verdict = rack.take(Side::Above, aggregate, &[5, 6]);
    let LeafVerdict::Below(Verdict::Multicast { bytes, destination, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((destination, rack.left(bytes).0.destination), (Some(1), 3));
    let nobody = rack.take(Side::Below, fanin::Header { destination: 4, ..contribution() }, &[1]);
    assert!(matches!(nobody, LeafVerdict::Below(Verdict::Refuse { reason: DropReason::BadRank, .. })), "{nobody:?}");
}

#[test]
fn a_refusal_from_above_goes_to_all_children() {
    let mut rack = Rack::new();
    let (above, _) = rack.complete(contribution());
    let code = DropReason::CollectiveMismatch.code();
    let verdict = rack.take(Side::Above, fanin::Header { kind: Kind::Refusal, detail: code, ..above }, &[]);
    let LeafVerdict::Below(Verdict::Multicast { bytes, destination: None, .. }) = verdict else {
        panic!("{verdict:?}")
    };
    let (refusal, _) = rack.left(bytes);
    assert_eq!((refusal.kind, refusal.detail, refusal.worker_rank), (Kind::Refusal, code, RANK_ALL));
}

#[test]
fn what_cannot_be_summed_twice_is_dropped() {
    let mut rack = Rack::new();
    for element_format in [ElementFormat::Float16, ElementFormat::Bfloat16, ElementFormat::Int8] {
        let verdict = rack.take(Side::Below, fanin::Header { element_format, ..contribution() }, &[]);
        assert_eq!(verdict, LeafVerdict::Below(Verdict::Drop(DropReason::BadElementFormat)), "{element_format}");
    }
}

#[test]
fn each_side_sends_its_own_kinds() {
    let mut rack = Rack::new();
    let (above, _) = rack.complete(contribution());
    let drops = |verdict, reason| assert_eq!(verdict, LeafVerdict::Below(Verdict::Drop(reason)));
    drops(rack.take(Side::Above, above, &[1, 2]), DropReason::BadKind);
    let aggregate = fanin::Header { kind: Kind::Aggregate, ..above };
    drops(rack.take(Side::Below, fanin::Header { worker_rank: 0, ..aggregate }, &[1, 2]), DropReason::NotAContribution);
    drops(rack.take(Side::Above, fanin::Header { job_token: 1, ..aggregate }, &[1, 2]), DropReason::StaleToken);
    drops(rack.take(Side::Above, fanin::Header { worker_rank: 0, ..aggregate }, &[1, 2]), DropReason::BadRank);
    drops(rack.take(Side::Above, aggregate, &[1, 2, 3]), DropReason::ElementCountMismatch);
    drops(
        rack.take(Side::Above, fanin::Header { collective_tag: 1, ..aggregate }, &[1, 2]),
        DropReason::CollectiveMismatch,
    );
    let stranger = rack.take(Side::Below, fanin::Header { worker_rank: 2, ..contribution() }, &[1]);
    assert!(
        matches!(stranger, LeafVerdict::Below(Verdict::Refuse { reason: DropReason::BadRank, .. })),
        "{stranger:?}"
    );
}

#[test]
fn a_root_sends_a_sum_for_one_rank_to_the_child_that_it_is_behind() {
    let mut root = Switch::new();
    root.install_root(JOB, vec![0, 0, 1, 1]).expect("a valid job");
    let mut other = Switch::new();
    assert_eq!(other.install_root(JOB, vec![0, 2]), Err(InstallError::WorkerCount), "there is no third child");
    let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
    let mut output = [0; 128];
    let mut take = |header: fanin::Header| {
        let mut packet = vec![0; HEADER_BYTES + if header.kind == Kind::Query { 0 } else { 8 }];
        let element_count = if header.kind == Kind::Query { 0 } else { 2 };
        fanin::Header { element_count, ..header }.seal(&mut packet);
        let verdict = root.process(&context, &packet, &mut output);
        (verdict, fanin::Header::parse(&output[..HEADER_BYTES + 8]).map(|(header, _)| header.destination))
    };
    let towards = fanin::Header { destination: 2, ..contribution() };
    assert_eq!(take(towards).0, Verdict::Drop(DropReason::AwaitingOthers));
    let (verdict, destination) = take(fanin::Header { worker_rank: 1, ..towards });
    assert!(matches!(verdict, Verdict::Multicast { destination: Some(1), .. }), "{verdict:?}");
    assert_eq!(destination.ok(), Some(2), "the rank, for those below");
    for (child, elements) in [(0, 0), (1, 2)] {
        let query = fanin::Header { kind: Kind::Query, worker_rank: child, ..towards };
        assert_eq!(take(query).0, Verdict::Reply { bytes: HEADER_BYTES + 4 * elements }, "child {child}");
    }
    let nobody = take(fanin::Header { destination: 4, ..contribution() }).0;
    assert!(matches!(nobody, Verdict::Refuse { reason: DropReason::BadRank, .. }), "{nobody:?}");
}

fn probe(child: u16, echo: ProbePath) -> fanin::Header {
    fanin::Header { kind: Kind::Probe, worker_rank: child, collective_tag: 0, echo: echo as u32, ..contribution() }
}

#[test]
fn a_probe_goes_to_the_root_and_back_through_every_leaf() {
    // A leaf below this one would have put its own child's number there.
    for passed_before in [0, 6] {
        let mut rack = Rack::new();
        let asked = fanin::Header { chunk_index: passed_before, ..probe(1, ProbePath::Unicast) };
        let LeafVerdict::Up { bytes } = rack.take(Side::Below, asked, &[0; 4]) else { panic!("it goes up") };
        assert_eq!(bytes, HEADER_BYTES + 16, "as long as it was, so that it tests the way");
        let (above, _) = rack.left(bytes);
        assert_eq!((above.kind, above.worker_rank), (Kind::Probe, 1), "this leaf is child 1 of the root");
        // What a root makes of it.
        let mut root = Switch::new();
        root.install_root(JOB, vec![0, 0, 1, 1]).expect("a valid job");
        let context = Context { now: Time::ZERO, wire_format: WireFormat::Fanin, source_rank: None };
        let (packet, mut output) = (rack.output[..bytes].to_vec(), [0; 128]);
        assert_eq!(root.process(&context, &packet, &mut output), Verdict::ProbeReply { bytes });
        let (answer, _) = fanin::Header::parse(&output[..bytes]).expect("a datagram");
        let verdict = rack.take(Side::Above, answer, &[0; 4]);
        assert!(matches!(verdict, LeafVerdict::ToChild { child: 1, lane: 0, .. }), "{verdict:?}");
        let (returned, _) = rack.left(bytes);
        let expected = fanin::Header { kind: Kind::ProbeReply, element_count: 4, ..asked };
        assert_eq!(returned, expected, "what the child knows its Probe by");
        assert_eq!((rack.leaf.counters().probes, rack.leaf.counters().probes_returned), (1, 1));
    }
}

#[test]
fn whether_multicast_gets_to_a_child_its_own_switch_says() {
    let mut rack = Rack::new();
    for path in [ProbePath::MulticastTest, ProbePath::MulticastUse] {
        let verdict = rack.take(Side::Below, probe(0, path), &[0]);
        assert!(matches!(verdict, LeafVerdict::Below(Verdict::ProbeReply { .. })), "{verdict:?}");
    }
}

#[test]
fn answers_to_probes_that_nobody_here_has_sent_go_no_further() {
    let mut rack = Rack::new();
    let drops = |verdict, reason| assert_eq!(verdict, LeafVerdict::Below(Verdict::Drop(reason)));
    let answer = fanin::Header { kind: Kind::ProbeReply, ..probe(1, ProbePath::Unicast) };
    drops(rack.take(Side::Above, fanin::Header { chunk_index: 2, ..answer }, &[]), DropReason::BadRank);
    drops(rack.take(Side::Above, fanin::Header { worker_rank: 0, ..answer }, &[]), DropReason::BadRank);
    drops(rack.take(Side::Above, fanin::Header { job_token: 1, ..answer }, &[]), DropReason::StaleToken);
    drops(rack.take(Side::Above, fanin::Header { slot_index: 9, ..answer }, &[]), DropReason::BadSlot);
    let too_deep = fanin::Header { chunk_index: 1 << 24, ..probe(1, ProbePath::Unicast) };
    drops(rack.take(Side::Below, too_deep, &[]), DropReason::BadSlot);
}
