//! The accumulators' vector versions write the same bits as their scalar references, count the same, and touch nothing else.
//!
//! The level in use belongs to the process, so the tests take turns.

mod common;
mod oracle;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Random, levels};
use fanin_numeric::Telemetry;
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::limit_kernel_level;
use fanin_numeric::register_pair::{FloatFormat, NO_NUMBER, Registers, Rounding};
use oracle::{FORMATS, ROUNDINGS};

const UNTOUCHED: u8 = 0xa5;

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Payloads of one test: how far apart exponents are, and whether infinities, NaN and overflowing sums are among them.
#[derive(Clone, Copy, Debug)]
struct Data {
    spread: u64,
    has_rare: bool,
}

/// A payload of `count` elements after `at` bytes that belong to somebody else.
fn payload(random: &mut Random, format: FloatFormat, at: usize, count: usize, data: Data) -> Vec<u8> {
    let field_max = u64::from(format.field_max());
    let base = random.bits() % field_max;
    let values = random.vec(count, |bits| {
        let field = (base + (bits >> 40) % data.spread).min(field_max - 1);
        let field = if data.has_rare && bits % 67 == 0 { field_max } else { field } as u32;
        let fraction = (bits >> 8) as u32 & ((1 << format.fraction_bits()) - 1);
        let fraction = if bits % 13 == 0 { 0 } else { fraction };
        let field = if bits % 17 == 0 { 0 } else { field };
        (bits as u32 & 1) << (8 * format.bytes() - 1) | field << format.fraction_bits() | fraction
    });
    [vec![UNTOUCHED; at], oracle::payload(format, &values)].concat()
}

/// Registers as additions leave them, with some at the ends of the mantissa.
fn registers(random: &mut Random, format: FloatFormat, count: usize, data: Data) -> (Vec<u8>, Vec<i32>) {
    let field_max = u64::from(format.field_max());
    let base = random.bits() % field_max;
    let exponents = random.vec(count, |bits| match bits % 97 {
        0 if data.has_rare => NO_NUMBER,
        1 => 0,
        _ => (base + (bits >> 40) % data.spread).min(field_max - 1) as u8,
    });
    let mut mantissas = random.vec(count, |bits| match bits % 23 {
        0 if data.has_rare => i32::MIN,
        1 if data.has_rare => i32::MAX,
        2 => 0,
        _ => (bits as i32) >> (1 + (bits >> 60)),
    });
    for (mantissa, exponent) in mantissas.iter_mut().zip(&exponents) {
        if *exponent == NO_NUMBER {
            *mantissa &= 15;
        }
    }
    (exponents, mantissas)
}

enum Accumulator {
    Full(Fpisa),
    Approximate(FpisaA),
}

impl Accumulator {
    fn format(&self) -> FloatFormat {
        match self {
            Accumulator::Full(fpisa) => fpisa.format(),
            Accumulator::Approximate(fpisa) => fpisa.format(),
        }
    }

    fn overwrite(&self, payload: &[u8], slot: &mut Registers<'_>) {
        match self {
            Accumulator::Full(fpisa) => fpisa.overwrite(payload, slot),
            Accumulator::Approximate(fpisa) => fpisa.overwrite(payload, slot),
        }
    }

    fn add(&self, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
        match self {
            Accumulator::Full(fpisa) => fpisa.add(payload, slot, telemetry),
            Accumulator::Approximate(fpisa) => fpisa.add(payload, slot, telemetry),
        }
    }

    fn emit(&self, slot: &Registers<'_>, payload: &mut [u8], telemetry: Option<&mut Telemetry>) {
        match self {
            Accumulator::Full(fpisa) => fpisa.emit(slot, payload, telemetry),
            Accumulator::Approximate(fpisa) => fpisa.emit(slot, payload, telemetry),
        }
    }
}

fn accumulators() -> Vec<Accumulator> {
    let mut all = Vec::new();
    for format in FORMATS {
        for (guard_bits, alignment, read_out) in [0, 2, 7].into_iter().zip(ROUNDINGS).zip(ROUNDINGS).map(flatten) {
            all.push(Accumulator::Full(Fpisa::new(format, guard_bits, alignment, read_out).unwrap()));
        }
        for rounding in ROUNDINGS {
            all.push(Accumulator::Full(Fpisa::new(format, 1, rounding, Rounding::TowardZero).unwrap()));
            all.push(Accumulator::Approximate(FpisaA::for_workers(format, 8, rounding, rounding).unwrap()));
        }
        all.push(Accumulator::Approximate(FpisaA::paper(format)));
    }
    all
}

fn flatten<A, B, C>(((a, b), c): ((A, B), C)) -> (A, B, C) {
    (a, b, c)
}

/// What a sequence of verbs leaves behind: registers with their surroundings, the datagram, the counts.
type Outcome = (Vec<u8>, Vec<i32>, Vec<u8>, Telemetry);

fn run(
    accumulator: &Accumulator,
    inputs: &(Vec<u8>, Vec<i32>),
    payloads: &[Vec<u8>],
    at: usize,
    counted: bool,
) -> Outcome {
    let format = accumulator.format();
    let (mut exponents, mut mantissas) = inputs.clone();
    let mut out = vec![UNTOUCHED; payloads[0].len() + 8];
    let out_end = payloads[0].len();
    let mut counts = Telemetry::default();
    let end = at + (payloads[0].len() - at) / format.bytes();
    let mut slot = Registers { exponents: &mut exponents[at..end], mantissas: &mut mantissas[at..end] };
    accumulator.add(&payloads[0][at..], &mut slot, counted.then_some(&mut counts));
    accumulator.emit(&slot, &mut out[at..out_end], counted.then_some(&mut counts));
    accumulator.overwrite(&payloads[1][at..], &mut slot);
    for payload in &payloads[2..] {
        accumulator.add(&payload[at..], &mut slot, counted.then_some(&mut counts));
    }
    (exponents, mantissas, out, counts)
}

fn compare(random: &mut Random, accumulator: &Accumulator, at: usize, count: usize, data: Data) {
    let format = accumulator.format();
    let payloads: Vec<_> = (0..4).map(|_| payload(random, format, at, count, data)).collect();
    let inputs = registers(random, format, at + count + 3, data);
    for counted in [true, false] {
        let mut expected = None;
        for level in levels() {
            assert_eq!(limit_kernel_level(level), level);
            let found = run(accumulator, &inputs, &payloads, at, counted);
            let expected = expected.get_or_insert_with(|| found.clone());
            assert!(found == *expected, "{format:?} at {level:?}, {count} elements from {at}, {data:?}");
        }
    }
}

fn compare_registers(random: &mut Random, value_count: usize) {
    let block = 4093;
    for accumulator in accumulators() {
        for k in 0..value_count.div_ceil(4 * block) {
            let data = Data { spread: [1, 4, 12, 60][k % 4], has_rare: k % 3 == 0 };
            compare(random, &accumulator, 1, block, data);
        }
    }
}

#[test]
fn register_pairs_of_every_length_and_alignment_agree() {
    let _turn = turn();
    let mut random = Random(21);
    let brief = if cfg!(debug_assertions) { 3 } else { 1 };
    for accumulator in accumulators() {
        for at in [0, 1, 3] {
            for count in (0..=200).step_by(brief).chain([63, 64, 65, 127, 128, 129]) {
                compare(&mut random, &accumulator, at, count, Data { spread: 9, has_rare: count % 2 == 0 });
            }
        }
    }
}

#[test]
fn register_pairs_agree_on_many_values() {
    let _turn = turn();
    if std::env::var_os("FANIN_TEST_BRIEF").is_none() {
        compare_registers(&mut Random(22), 200_000);
    }
}

#[test]
#[ignore = "a soak of a minute or two: ten million values for every setting"]
fn register_pairs_agree_on_ten_million_values() {
    let _turn = turn();
    compare_registers(&mut Random(23), 10_000_000);
}
