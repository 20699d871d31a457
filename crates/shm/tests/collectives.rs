//! Collectives among threads: every kind, operation, type and odd length, in place and apart, registered and not.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Random, WINDOW_BYTES, expected, small_windows, sum_floats, tensor, with_ranks};
use fanin_numeric::sum::{Element, Operation, Reduction};
use fanin_shm::{Call, Group, Region};

const ELEMENTS: [Element; 6] =
    [Element::Float32, Element::Float16, Element::Bfloat16, Element::Int32, Element::Int64, Element::Byte];
const OPERATIONS: [Operation; 6] =
    [Operation::Sum, Operation::Max, Operation::Min, Operation::And, Operation::Or, Operation::Xor];

#[test]
fn sums_of_many_sizes_in_a_row_are_right_on_every_rank() {
    for size in 1..=8 {
        with_ranks(size, small_windows, |mut group, rank| {
            for (sequence, count) in
                [1, 1000, 3, 5000, 0, 70_001, 1024, 1025, 2, 2, 2, 2, 2, 2, 2, 300_000].iter().enumerate()
            {
                let mut values: Vec<f32> = (0..*count).map(|k| (k % 1000 + rank) as f32).collect();
                sum_floats(&mut group, sequence as u64, &mut values).expect("no rank fails");
                let ranks = usize::from(size);
                let wrong = (0..*count).find(|k| values[*k] != (k % 1000 * ranks + ranks * (ranks - 1) / 2) as f32);
                assert_eq!(wrong, None, "rank {rank} of {size}, {count} elements");
            }
        });
    }
}

/// Kinds of collectives, as who contributes and receives what.
#[derive(Clone, Copy, Debug)]
enum Kind {
    AllReduce,
    Reduce(usize),
    ReduceScatter,
    AllGather,
    Broadcast(usize),
    Barrier,
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    kind: Kind,
    operation: Operation,
    element: Element,
    divisor: f32,
    size: usize,
    /// Elements of the vector, or of each shard.
    count: usize,
    in_place: bool,
    /// Who uses registered memory: all, none, or every second rank.
    registered: Registered,
    /// Bytes by which the tensors miss an aligned address.
    shift: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Registered {
    All,
    Nobody,
    Some,
}

impl Case {
    fn random(seed: u64, size: usize) -> Case {
        let mut random = Random(seed);
        let root = random.below(size);
        let kind = random.pick(&[
            Kind::AllReduce,
            Kind::AllReduce,
            Kind::Reduce(root),
            Kind::ReduceScatter,
            Kind::AllGather,
            Kind::Broadcast(root),
            Kind::Barrier,
        ]);
        let moves = matches!(kind, Kind::AllGather | Kind::Broadcast(_) | Kind::Barrier);
        let (operation, element) = loop {
            let choice = (random.pick(&OPERATIONS), random.pick(&ELEMENTS));
            if Reduction::new(choice.0, choice.1).is_some() {
                break if moves { (Operation::Or, Element::Byte) } else { choice };
            }
        };
        let averages = operation == Operation::Sum && element.is_float();
        let shards = if matches!(kind, Kind::ReduceScatter | Kind::AllGather) { size } else { 1 };
        let length_max = random.pick(&[10, 300, 5000, 60_000]) / shards;
        Case {
            seed,
            kind,
            operation,
            element,
            divisor: if averages { random.pick(&[1.0, size as f32, 4.0]) } else { 1.0 },
            size,
            count: if matches!(kind, Kind::Barrier) { 0 } else { random.below(length_max) },
            in_place: random.bits().is_multiple_of(2),
            registered: random.pick(&[Registered::All, Registered::Nobody, Registered::Some]),
            shift: random.pick(&[0, 0, 64, element.bytes(), 1]),
        }
    }

    fn bytes(&self) -> usize {
        let shards = if matches!(self.kind, Kind::ReduceScatter | Kind::AllGather) { self.size } else { 1 };
        shards * self.count * self.element.bytes()
    }

    fn shard(&self, rank: usize) -> std::ops::Range<usize> {
        let bytes = self.count * self.element.bytes();
        rank * bytes..(rank + 1) * bytes
    }

    fn contributes(&self, rank: usize) -> std::ops::Range<usize> {
        match self.kind {
            Kind::AllGather => self.shard(rank),
            Kind::Broadcast(root) if root != rank => 0..0,
            _ => 0..self.bytes(),
        }
    }

    fn receives(&self, rank: usize) -> std::ops::Range<usize> {
        match self.kind {
            Kind::ReduceScatter => self.shard(rank),
            Kind::Reduce(root) if root != rank => 0..0,
            _ => 0..self.bytes(),
        }
    }

    fn expected(&self) -> Vec<u8> {
        let inputs: Vec<_> = (0..self.size)
            .map(|rank| (self.contributes(rank), tensor(self.seed, rank, self.contributes(rank).len())))
            .collect();
        expected(self.operation, self.element, self.divisor, self.bytes(), &inputs)
    }

    fn uses_region(&self, rank: usize) -> bool {
        match self.registered {
            Registered::All => true,
            Registered::Nobody => false,
            Registered::Some => rank.is_multiple_of(2),
        }
    }
}

/// Memory of a rank: two vectors' worth, registered or not, filled with a pattern.
struct Memory {
    plain: Vec<u8>,
    region: Option<Region>,
}

const BYTES: usize = 512 << 10;
const UNTOUCHED: u8 = 0xa5;

impl Memory {
    fn new(group: &Group, registered: bool) -> Memory {
        let region = registered.then(|| group.allocate(2 * BYTES).expect("there is memory"));
        Memory { plain: vec![0; if registered { 0 } else { 2 * BYTES }], region }
    }

    fn slice(&mut self) -> &mut [u8] {
        match &self.region {
            // SAFETY: the region is this test's own, and no collective runs.
            Some(region) => unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) },
            None => &mut self.plain,
        }
    }
}

/// Runs `case` as `rank` and compares everything around the output as well.
fn check(case: &Case, sequence: u64, group: &mut Group, rank: usize, memories: &mut [Memory; 2], expected: &[u8]) {
    let memory = memories[usize::from(case.uses_region(rank))].slice();
    let (contributes, receives) = (case.contributes(rank), case.receives(rank));
    memory.fill(UNTOUCHED);
    // Both hold the vector from `shift` on, or the output's vector begins in the second half.
    let input_at = case.shift + contributes.start;
    let output_at = case.shift + receives.start + if case.in_place { 0 } else { BYTES };
    memory[input_at..][..contributes.len()].copy_from_slice(&tensor(case.seed, rank, contributes.len()));
    let mut wanted = memory.to_vec();
    wanted[output_at..][..receives.len()].copy_from_slice(&expected[receives.clone()]);
    let call = Call {
        sequence,
        tag: case.seed as u32,
        description: format!("{case:?}"),
        operation: case.operation,
        element: case.element,
        divisor: case.divisor,
        bytes: case.bytes(),
        contributes,
        receives: receives.clone(),
        input: memory[input_at..].as_ptr(),
        output: memory[output_at..].as_mut_ptr(),
        windows_done: Arc::default(),
    };
    // SAFETY: both ranges lie in this rank's own memory.
    unsafe { group.run(&call, None) }.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let first = memory.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(first, None, "{case:?}: rank {rank}, output at {output_at}: first wrong byte");
    let windows_done = call.windows_done.load(Ordering::Relaxed);
    assert_eq!(windows_done, call.bytes.div_ceil(WINDOW_BYTES).max(1) as u64, "{case:?}");
}

#[test]
fn every_kind_operation_type_and_length_gives_the_expected_bytes() {
    for size in 1..=8 {
        let cases: Vec<_> = (0..150).map(|seed| Case::random(1000 * size as u64 + seed, size)).collect();
        let results: Vec<_> = cases.iter().map(Case::expected).collect();
        with_ranks(size as u16, small_windows, |mut group, rank| {
            let mut memories = [Memory::new(&group, false), Memory::new(&group, true)];
            for (sequence, (case, expected)) in cases.iter().zip(&results).enumerate() {
                check(case, sequence as u64, &mut group, rank, &mut memories, expected);
            }
        });
    }
}
