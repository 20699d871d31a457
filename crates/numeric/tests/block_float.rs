//! Block floating point in FPISA's registers, against sums of big integers.

mod common;
mod oracle;

use common::Random;
use fanin_numeric::Telemetry;
use fanin_numeric::block_float::BlockFloat;
use fanin_numeric::register_pair::{NO_NUMBER, Registers, Rounding};

const COUNT: usize = 9;

fn sum(blocks: &[(u8, [i8; COUNT])], guard_bits: u32, counts: &mut Telemetry) -> (u8, [i8; COUNT]) {
    let accumulator = BlockFloat::new(guard_bits, Rounding::NearestEven).unwrap();
    let (mut exponents, mut mantissas, mut out) = ([0; COUNT], [0; COUNT], [0; COUNT]);
    let mut slot = Registers { exponents: &mut exponents, mantissas: &mut mantissas };
    accumulator.overwrite(blocks[0].0, &blocks[0].1, &mut slot);
    for (exponent, values) in &blocks[1..] {
        accumulator.add(*exponent, values, &mut slot, Some(counts));
    }
    (accumulator.emit(&slot, &mut out), out)
}

/// Blocks within the guard bits of each other add without loss, so that only the emitted block rounds.
#[test]
fn near_exponents_add_exactly_and_round_once() {
    let mut random = Random(3);
    for _ in 0..2000 {
        let base = 1 + random.bits() as u8 % 240;
        let blocks: Vec<(u8, [i8; COUNT])> = (0..1 + random.bits() % 8)
            .map(|_| (base + random.bits() as u8 % 5, std::array::from_fn(|_| random.bits() as i8)))
            .collect();
        let mut counts = Telemetry::default();
        let (exponent, found) = sum(&blocks, 4, &mut counts);
        assert_eq!(counts, Telemetry::default());
        let exact: [i64; COUNT] =
            std::array::from_fn(|at| blocks.iter().map(|(e, values)| i64::from(values[at]) << (e - base)).sum());
        let round = |x: i64, exponent: u8| -> i64 {
            let places = u64::from(exponent.saturating_sub(base));
            let scaled = x << base.saturating_sub(exponent);
            oracle::round(&scaled.into(), places, Rounding::NearestEven).try_into().unwrap()
        };
        let fits = |exponent: u8| exact.iter().all(|x| round(*x, exponent).abs() <= 127);
        assert!(fits(exponent) && (exponent == 1 || !fits(exponent - 1)), "{exponent} for {exact:?} from {base}");
        assert_eq!(found.map(i64::from), exact.map(|x| round(x, exponent)));
    }
}

#[test]
fn far_exponents_lose_bits_and_say_so() {
    let mut counts = Telemetry::default();
    let (exponent, found) = sum(&[(200, [100; COUNT]), (100, [1; COUNT]), (200, [0; COUNT])], 0, &mut counts);
    assert_eq!((exponent, found), (200, [100; COUNT]));
    assert_eq!((counts.lost_bits, counts.flushed_to_zero), (COUNT as u64, COUNT as u64));
}

#[test]
fn a_block_without_numbers_stays_one() {
    let mut counts = Telemetry::default();
    let (exponent, found) = sum(&[(100, [5; COUNT]), (NO_NUMBER, [1; COUNT]), (100, [5; COUNT])], 0, &mut counts);
    assert_eq!((exponent, found), (NO_NUMBER, [0; COUNT]));
    // A zero leaves the exponent alone, in a block as well.
    assert_eq!(sum(&[(200, [0; COUNT]), (3, [64; COUNT])], 0, &mut counts), (3, [64; COUNT]));
    // Beyond the largest exponent.
    assert_eq!(sum(&[(254, [127; COUNT]); 2], 0, &mut counts), (NO_NUMBER, [0; COUNT]));
    assert_eq!(sum(&[(200, [0; COUNT])], 0, &mut counts), (1, [0; COUNT]));
}
