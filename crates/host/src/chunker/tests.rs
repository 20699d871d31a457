use fanin_control::WireFormat;
use fanin_control::registry::{Absences, JobShape};

use super::*;

fn chunker(algorithm: Algorithm, accumulator: Accumulator) -> Chunker {
    let shape = JobShape {
        world_size: 4,
        lane_count: 1,
        wire_format: WireFormat::FaninV1,
        algorithm,
        accumulator,
        absences: Absences::default(),
    };
    let assignment = Assignment {
        atp: None,
        racks: None,
        resumed: None,
        has_checksum: true,
        job_id: 1,
        job_token: 2,
        shape,
        slots_per_lane: 8,
        element_count_max: 32,
        host_of_rank: Vec::new(),
    };
    Chunker::new(4, ElementFormat::Int32, &assignment)
}

fn request(data_type: DataType) -> Request {
    Request {
        kind: CollectiveKind::AllReduce,
        data_type,
        operator: ReduceOp::Sum,
        input: std::ptr::null(),
        output: std::ptr::null_mut(),
        element_count: 100,
        label: "weights".into(),
    }
}

#[test]
fn tags_have_the_tensors_key_where_the_switch_counts() {
    use Accumulator::{BlockFixed, Exact, Fpisa, StaticFixed};
    use Algorithm::{Atp, Switchml};
    let counted = [(Switchml, StaticFixed), (Switchml, Fpisa), (Atp, Fpisa), (Switchml, Exact), (Atp, Exact)];
    let others = [(Switchml, BlockFixed), (Atp, StaticFixed)];
    let floats = request(DataType::Float32);
    for (algorithm, accumulator) in counted {
        let chunker = chunker(algorithm, accumulator);
        assert!(chunker.is_counted(&floats), "{algorithm:?}, {accumulator:?}");
        let [first, next] = [3, 4].map(|sequence| chunker.whole(&floats, sequence).collective_tag);
        assert_eq!([first, next].map(tensor_counts::key), [floats.tensor_key(); 2]);
        assert_ne!(first, next);
    }
    for (algorithm, accumulator) in others {
        let chunker = chunker(algorithm, accumulator);
        assert!(!chunker.is_counted(&floats), "{algorithm:?}, {accumulator:?}: no name is kept");
        let whole = chunker.whole(&floats, 3);
        assert_eq!(whole.collective_tag, floats.tag(3, whole.element_format as u8), "{algorithm:?}, {accumulator:?}");
    }
}

#[test]
fn what_is_no_sum_of_floats_keeps_its_tag() {
    let words = request(DataType::Int32);
    for accumulator in [Accumulator::StaticFixed, Accumulator::Fpisa] {
        let chunker = chunker(Algorithm::Switchml, accumulator);
        assert!(!chunker.is_counted(&words));
        assert_eq!(chunker.whole(&words, 3).collective_tag, words.tag(3, ElementFormat::Int32 as u8));
    }
}
