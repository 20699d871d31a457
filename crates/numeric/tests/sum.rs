//! The n-way combinations against values worked out one element at a time, at every kernel level.
//!
//! One test function per file at a time changes the level, because it belongs to the process: all of it is in one.

mod common;

use common::{Random, levels};
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::limit_kernel_level;
use fanin_numeric::sum::{Element, Operation, Reduction, Stores};

const ELEMENTS: [Element; 6] =
    [Element::Float32, Element::Float16, Element::Bfloat16, Element::Int32, Element::Int64, Element::Byte];
const OPERATIONS: [Operation; 6] =
    [Operation::Sum, Operation::Max, Operation::Min, Operation::And, Operation::Or, Operation::Xor];
const MARGIN: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// The order of floats that maximum and minimum use: -0 below +0, NaN beyond every number in either direction.
fn pick(a: f32, b: f32, wants_larger: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return f32::NAN;
    }
    if (a.total_cmp(&b) == std::cmp::Ordering::Greater) == wants_larger { a } else { b }
}

fn combine_floats(values: &[f32], operation: Operation, divisor: f32) -> f32 {
    let (first, others) = (values[0], &values[1..]);
    let result = match operation {
        Operation::Sum => others.iter().fold(first, |sum, value| sum + value) / divisor,
        Operation::Max => others.iter().fold(first, |max, value| pick(max, *value, true)),
        Operation::Min => others.iter().fold(first, |min, value| pick(min, *value, false)),
        _ => unreachable!("floats have no bits to combine"),
    };
    if result.is_nan() { f32::NAN } else { result }
}

macro_rules! combine_integers {
    ($type:ty, $values:expr, $operation:expr) => {{
        let values = $values.map(|bytes| <$type>::from_ne_bytes(bytes.try_into().expect("one element")));
        let combine = |a: $type, b: $type| match $operation {
            Operation::Sum => a.wrapping_add(b),
            Operation::Max => a.max(b),
            Operation::Min => a.min(b),
            Operation::And => a & b,
            Operation::Or => a | b,
            Operation::Xor => a ^ b,
        };
        values.reduce(combine).expect("at least one rank").to_ne_bytes().to_vec()
    }};
}

/// One element of all ranks, each as its bytes.
fn expected_element<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    operation: Operation,
    element: Element,
    divisor: f32,
) -> Vec<u8> {
    let half = |bytes: &[u8]| u16::from_ne_bytes([bytes[0], bytes[1]]);
    let floats = |values: Vec<f32>| combine_floats(&values, operation, divisor);
    match element {
        Element::Float32 => {
            let values = values.map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("one element")));
            floats(values.collect()).to_ne_bytes().to_vec()
        }
        Element::Float16 => {
            f32_to_f16(floats(values.map(|bytes| f16_to_f32(half(bytes))).collect())).to_ne_bytes().to_vec()
        }
        Element::Bfloat16 => {
            f32_to_bf16(floats(values.map(|bytes| bf16_to_f32(half(bytes))).collect())).to_ne_bytes().to_vec()
        }
        Element::Int32 => combine_integers!(i32, values, operation),
        Element::Int64 => combine_integers!(i64, values, operation),
        Element::Byte => combine_integers!(u8, values, operation),
    }
}

struct Case {
    operation: Operation,
    element: Element,
    divisor: f32,
    rank_count: usize,
    output_count: usize,
    element_count: usize,
    /// Byte offset of each tensor in its buffer, by rank modulo its length.
    offsets: [usize; 2],
    in_place: bool,
    stores: Stores,
}

impl Case {
    fn offset(&self, rank: usize) -> usize {
        self.offsets[rank % 2]
    }

    fn expected(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let width = self.element.bytes();
        let element = |k: usize| {
            let values =
                inputs.iter().enumerate().map(|(rank, input)| &input[self.offset(rank) + k * width..][..width]);
            expected_element(values, self.operation, self.element, self.divisor)
        };
        (0..self.element_count).flat_map(element).collect()
    }

    /// Every output buffer after the call, margins included.
    fn run(&self, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let bytes = self.element_count * self.element.bytes();
        let mut inputs = inputs.to_vec();
        let mut apart = vec![vec![UNTOUCHED; bytes + 2 * MARGIN]; self.output_count];
        let mut output_pointers: Vec<*mut u8> =
            apart.iter_mut().enumerate().map(|(k, output)| output[self.offset(k)..].as_mut_ptr()).collect();
        let mut input_pointers: Vec<*const u8> = Vec::new();
        for (rank, input) in inputs.iter_mut().enumerate() {
            let pointer = input[self.offset(rank)..].as_mut_ptr();
            input_pointers.push(pointer);
            if self.in_place && rank < self.output_count {
                output_pointers[rank] = pointer;
            }
        }
        // SAFETY: every buffer has `bytes` bytes behind its offset; an output is an input's whole or apart from all.
        unsafe { reduction.apply(&input_pointers, &output_pointers, bytes, self.stores) }
        if !self.in_place {
            return apart;
        }
        inputs.into_iter().chain(apart.into_iter().skip(self.rank_count)).take(self.output_count).collect()
    }

    fn check(&self, random: &mut Random) {
        let reduction = Reduction::new(self.operation, self.element).expect("the case is meaningful");
        let reduction = reduction.with_divisor(self.divisor);
        let length = self.element_count * self.element.bytes() + 2 * MARGIN;
        let inputs: Vec<_> = (0..self.rank_count).map(|_| random_tensor(random, self.element, length)).collect();
        let expected = self.expected(&inputs);
        for level in levels() {
            limit_kernel_level(level);
            for (k, output) in self.run(reduction, &inputs).iter().enumerate() {
                let around = if self.in_place && k < self.rank_count { &inputs[k] } else { &vec![UNTOUCHED; length] };
                let mut whole = around.clone();
                whole[self.offset(k)..][..expected.len()].copy_from_slice(&expected);
                let first = output.iter().zip(&whole).position(|(found, wanted)| found != wanted);
                assert!(
                    first.is_none(),
                    "{:?} of {} x {} {:?} at {:?}, {level:?}, in place {}, {:?}, output {k}: byte {first:?} differs",
                    self.operation,
                    self.rank_count,
                    self.element_count,
                    self.element,
                    self.offsets,
                    self.in_place,
                    self.stores,
                );
            }
        }
    }
}

/// Random bits: for floats numbers of every size, infinities and NaN; half of the float32 are near each other.
fn random_tensor(random: &mut Random, element: Element, length: usize) -> Vec<u8> {
    let near = |bits: u64| ((bits % 2000) as f32 - 1000.0) / 8.0;
    let bits = random.vec(length / 4 + 1, |bits| match element {
        Element::Float32 if bits % 2 == 0 => near(bits >> 8).to_bits(),
        _ => bits as u32,
    });
    bits.into_iter().flat_map(u32::to_ne_bytes).take(length).collect()
}

fn meaningful() -> Vec<(Operation, Element)> {
    let all = OPERATIONS.into_iter().flat_map(|operation| ELEMENTS.map(|element| (operation, element)));
    all.filter(|(operation, element)| Reduction::new(*operation, *element).is_some()).collect()
}

#[test]
fn every_level_combines_as_one_element_at_a_time_does() {
    let mut random = Random(7);
    assert_eq!(meaningful().len(), 5 + 5 + 5 + 3 + 3 + 3);
    for (operation, element) in meaningful() {
        let averages = operation == Operation::Sum && element.is_float();
        let divisors: &[f32] = if averages { &[1.0, 3.0, 8.0] } else { &[1.0] };
        for element_count in (0..=70).chain([255, 256, 257, 511, 1000]) {
            for (offsets, in_place, stores) in [
                ([0, 0], false, Stores::Cached),
                ([1, 3], false, Stores::Streaming),
                ([4, 4], true, Stores::Streaming),
                ([8, 40], true, Stores::Cached),
            ] {
                let rank_count = 1 + random.bits() as usize % 8;
                let output_count = random.bits() as usize % 5;
                let divisor = divisors[element_count % divisors.len()];
                Case {
                    operation,
                    element,
                    divisor,
                    rank_count,
                    output_count,
                    element_count,
                    offsets,
                    in_place,
                    stores,
                }
                .check(&mut random);
            }
        }
    }
    without_inputs_the_outputs_are_zero();
    copying_changes_no_bit();
}

fn without_inputs_the_outputs_are_zero() {
    let mut output = [UNTOUCHED; 10];
    // SAFETY: 7 bytes are writable from the second on.
    unsafe { Reduction::COPY.apply(&[], &[output[1..].as_mut_ptr()], 7, Stores::Cached) }
    assert_eq!(output, [UNTOUCHED, 0, 0, 0, 0, 0, 0, 0, UNTOUCHED, UNTOUCHED]);
}

fn copying_changes_no_bit() {
    let input: Vec<u8> = (0..=255).cycle().take(1031).collect();
    let mut output = vec![UNTOUCHED; 1031];
    // SAFETY: both have 1031 bytes.
    unsafe { Reduction::COPY.apply(&[input.as_ptr()], &[output.as_mut_ptr()], 1031, Stores::Streaming) }
    assert_eq!(output, input);
}
