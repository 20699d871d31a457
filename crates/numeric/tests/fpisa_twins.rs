//! FPISA's and FPISA-A's vector kernels leave the same registers, read-outs and counts as the scalar reference, on ten million
//! elements of every kind of number.
//!
//! One test function, because the level in use belongs to the process.

mod common;

use common::{Random, levels};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::register_pair::{FloatFormat, Registers, Rounding};
use fanin_numeric::{Telemetry, limit_kernel_level};

const FORMATS: [FloatFormat; 3] = [FloatFormat::Float32, FloatFormat::Float16, FloatFormat::Bfloat16];
const ROUNDINGS: [Rounding; 3] = [Rounding::Floor, Rounding::TowardZero, Rounding::NearestEven];
const ELEMENTS: usize = 10_000_000;
/// Contributions to a slot; with nine, registers overflow now and then.
const CONTRIBUTIONS: usize = 9;
/// Elements of the longest slot: some blocks of 64 and a rest.
const LONGEST: usize = 64 * 4 + 63;
/// Fills outputs, so that a byte too much shows.
const UNTOUCHED: u8 = 0xa5;

#[derive(Clone, Copy, Debug)]
enum Accumulator {
    Full(Fpisa),
    Approximate(FpisaA),
}

/// A slot after all contributions, what was read out, and the counts.
#[derive(PartialEq, Debug)]
struct Outcome {
    exponents: Vec<u8>,
    mantissas: Vec<i32>,
    payload: Vec<u8>,
    counted: Telemetry,
}

impl Accumulator {
    fn little_endian(self) -> Accumulator {
        match self {
            Self::Full(a) => Self::Full(a.little_endian()),
            Self::Approximate(a) => Self::Approximate(a.little_endian()),
        }
    }

    fn sum(&self, format: FloatFormat, contributions: &[Vec<u8>], is_counted: bool) -> Outcome {
        let count = contributions[0].len() / format.bytes();
        let (mut exponents, mut mantissas) = (vec![0; count], vec![0; count]);
        let mut slot = Registers { exponents: &mut exponents, mantissas: &mut mantissas };
        let mut counted = Telemetry::default();
        // One byte too much on either side shows what is written beyond.
        let mut payload = vec![UNTOUCHED; count * format.bytes() + 2];
        let end = payload.len() - 1;
        for (k, contribution) in contributions.iter().enumerate() {
            let telemetry = is_counted.then_some(&mut counted);
            match (self, k) {
                (Self::Full(a), 0) => a.overwrite(contribution, &mut slot),
                (Self::Approximate(a), 0) => a.overwrite(contribution, &mut slot),
                (Self::Full(a), _) => a.add(contribution, &mut slot, telemetry),
                (Self::Approximate(a), _) => a.add(contribution, &mut slot, telemetry),
            }
        }
        let telemetry = is_counted.then_some(&mut counted);
        match self {
            Self::Full(a) => a.emit(&slot, &mut payload[1..end], telemetry),
            Self::Approximate(a) => a.emit(&slot, &mut payload[1..end], telemetry),
        }
        Outcome { exponents, mantissas, payload, counted }
    }
}

fn accumulators() -> Vec<(FloatFormat, Accumulator)> {
    let mut all = Vec::new();
    for format in FORMATS {
        for alignment in ROUNDINGS {
            for read_out in ROUNDINGS {
                for guard_bits in [0, 2, format.headroom_bits()] {
                    let full = Fpisa::new(format, guard_bits, alignment, read_out).unwrap();
                    all.push((format, Accumulator::Full(full)));
                }
                let safe = FpisaA::for_workers(format, CONTRIBUTIONS as u32, alignment, read_out).unwrap();
                all.push((format, Accumulator::Approximate(safe)));
            }
        }
        all.push((format, Accumulator::Approximate(FpisaA::paper(format))));
    }
    all
}

/// Big-endian numbers. `kind` decides how wide their exponents spread, and so how often a block meets something rare.
fn contribution(random: &mut Random, format: FloatFormat, count: usize, kind: u64) -> Vec<u8> {
    let (fraction_bits, field_max) = (format.fraction_bits(), format.field_max());
    let number = |bits: u64| {
        let (sign, fraction, field) = (bits as u32 & 1, (bits >> 8) as u32, (bits >> 40) as u32);
        let field = match kind {
            // Gradients: a few binary orders, zeros among them.
            0 if bits >> 60 == 0 => return 0,
            0 => field_max / 2 + field % 9,
            // Near the bottom: subnormals, results that are flushed.
            1 => field % 4,
            // Near the top, without infinities.
            2 => field_max - 1 - field % 4,
            // Anything but infinities and NaN.
            3 => field % field_max,
            // Anything; overflow's NaN now and then.
            _ if bits >> 60 == 0 => return field_max << fraction_bits | 1 << (fraction_bits - 1) | 1,
            _ => field % (field_max + 1),
        };
        sign << (8 * format.bytes() - 1) | field << fraction_bits | fraction & ((1 << fraction_bits) - 1)
    };
    let skip = 4 - format.bytes();
    (0..count).flat_map(|_| number(random.bits()).to_be_bytes().into_iter().skip(skip)).collect()
}

/// Turns the bytes of a read-out's elements round, which a byte on either side encloses.
fn turn(format: FloatFormat, payload: &mut [u8]) {
    let end = payload.len() - 1;
    payload[1..end].chunks_mut(format.bytes()).for_each(<[u8]>::reverse);
}

#[test]
fn every_level_leaves_the_same_registers() {
    let levels = levels();
    if levels.len() == 1 {
        println!("SKIPPED: this processor has no vector kernels to compare with the reference");
        return;
    }
    let accumulators = accumulators();
    let mut random = Random(64);
    let mut compared = 0;
    for round in 0.. {
        let (format, accumulator) = accumulators[round % accumulators.len()];
        // Short slots are rests only.
        let count = if round % 50 == 0 { random.bits() as usize % 64 } else { 256 + random.bits() as usize % 64 };
        let count = count.clamp(1, LONGEST);
        let kind = random.bits() % 5;
        let contributions: Vec<_> =
            (0..CONTRIBUTIONS).map(|_| contribution(&mut random, format, count, kind)).collect();
        let mut little = contributions.clone();
        little.iter_mut().for_each(|payload| payload.chunks_mut(format.bytes()).for_each(<[u8]>::reverse));
        for is_counted in [false, true] {
            limit_kernel_level(levels[0]);
            let expected = accumulator.sum(format, &contributions, is_counted);
            for level in &levels[1..] {
                limit_kernel_level(*level);
                let found = accumulator.sum(format, &contributions, is_counted);
                assert_eq!(found, expected, "{level:?}, {accumulator:?}, kind {kind}, {count} elements, round {round}");
            }
            let mut turned = expected;
            turn(format, &mut turned.payload);
            for level in &levels {
                limit_kernel_level(*level);
                let found = accumulator.little_endian().sum(format, &little, is_counted);
                assert_eq!(found, turned, "{level:?}, {accumulator:?}, kind {kind}, {count} little-endian elements");
            }
        }
        compared += count * CONTRIBUTIONS;
        if compared > ELEMENTS {
            break;
        }
    }
}
