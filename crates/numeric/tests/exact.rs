//! Exact sums against big integers: the nearest number, in every order and over every tree.

mod common;
mod oracle;

use common::Random;
use fanin_numeric::certificate::Contributions;
use fanin_numeric::exact::{self, Float32Sum};
use fanin_numeric::register_pair::{FloatFormat, Rounding};
use num_bigint::BigInt;
use oracle::FORMATS;

fn sum(format: FloatFormat, values: &[u32]) -> u32 {
    macro_rules! run {
        ($overwrite:ident, $add:ident, $emit:ident) => {{
            let (mut slot, mut out) = ([Default::default()], vec![0; format.bytes()]);
            exact::$overwrite(&oracle::payload(format, &values[..1]), &mut slot);
            for bits in &values[1..] {
                exact::$add(&oracle::payload(format, &[*bits]), &mut slot);
            }
            exact::$emit(&slot, &mut out);
            oracle::words(format, &out)[0]
        }};
    }
    match format {
        FloatFormat::Float32 => run!(overwrite_f32, add_f32, emit_f32),
        FloatFormat::Float16 => run!(overwrite_f16, add_f16, emit_f16),
        FloatFormat::Bfloat16 => run!(overwrite_bf16, add_bf16, emit_bf16),
    }
}

/// The exact sum in units of the format's least number, rounded once.
fn expected(format: FloatFormat, values: &[u32]) -> f64 {
    let places = format.bias() - 1 + format.fraction_bits() as i32;
    let total: BigInt = values.iter().map(|bits| oracle::whole(oracle::value(format, *bits), places)).sum();
    oracle::to_format(&total, places, format, Rounding::NearestEven)
}

#[test]
fn pairs_and_triples_of_corners_give_the_nearest_number() {
    for format in FORMATS {
        let corners = oracle::corners(format);
        for a in &corners {
            for b in &corners {
                for values in [vec![*a], vec![*a, *b], vec![*a, *b, *a], vec![*a, *b, corners[9]]] {
                    assert_eq!(oracle::value(format, sum(format, &values)), expected(format, &values), "{values:x?}");
                }
            }
        }
    }
}

#[test]
fn sequences_give_the_nearest_number_in_any_order() {
    let mut random = Random(41);
    for format in FORMATS {
        for _ in 0..600 {
            let spread = random.bits() % u64::from(format.field_max()) + 1;
            let count = random.bits() % 300 + 1;
            let mut values = random.vec(count as usize, |bits| {
                let field = (bits >> 40) % spread % u64::from(format.field_max());
                let fraction = (bits >> 8) as u32 & ((1 << format.fraction_bits()) - 1);
                (bits as u32 & 1) << (8 * format.bytes() - 1) | (field as u32) << format.fraction_bits() | fraction
            });
            // Cancels but for the last few.
            if count.is_multiple_of(3) {
                let sign = 1 << (8 * format.bytes() - 1);
                values = [values.clone(), values[2..].iter().map(|bits| bits ^ sign).collect()].concat();
            }
            let found = sum(format, &values);
            assert_eq!(oracle::value(format, found), expected(format, &values), "{format:?} {values:x?}");
            for _ in 0..3 {
                for k in (1..values.len()).rev() {
                    values.swap(k, random.bits() as usize % (k + 1));
                }
                assert_eq!(sum(format, &values), found, "{format:?} {values:x?}");
            }
        }
    }
}

#[test]
fn a_tree_of_switches_gives_the_same_bits() {
    let mut random = Random(42);
    let values = random.vec(64, |bits| (bits as u32 & 0x80ff_ffff) | (((bits >> 40) as u32 % 120) << 24));
    let whole = sum(FloatFormat::Float32, &values);
    for leaf in [1, 3, 8, 64] {
        let mut root = [Float32Sum::default()];
        for values in values.chunks(leaf) {
            let mut slot = [Float32Sum::default()];
            for bits in values {
                exact::add_f32(&bits.to_be_bytes(), &mut slot);
            }
            root[0].merge(&slot[0]);
        }
        let mut out = [0; 4];
        exact::emit_f32(&root, &mut out);
        assert_eq!(u32::from_be_bytes(out), whole);
    }
}

#[test]
fn the_ends_of_the_format_and_what_is_no_number() {
    for format in FORMATS {
        let infinity = format.field_max() << format.fraction_bits();
        let (sign, quiet) = (1 << (8 * format.bytes() - 1), infinity | 1 << (format.fraction_bits() - 1));
        let largest = infinity - 1;
        // Beyond the largest and back, which no float addition survives.
        assert_eq!(sum(format, &[largest, largest, largest | sign]), largest);
        assert_eq!(sum(format, &[largest, largest]), infinity);
        assert_eq!(sum(format, &[largest | sign; 70_000]), infinity | sign);
        assert_eq!(sum(format, &[largest, 1, largest | sign]), 1);
        assert_eq!(sum(format, &[sign]), 0);
        assert_eq!(sum(format, &[1 | sign, 1]), 0);
        assert_eq!(sum(format, &[infinity, largest]), infinity);
        assert_eq!(sum(format, &[infinity, infinity | sign]), quiet);
        assert_eq!(sum(format, &[1, infinity | 1]), quiet);
    }
}

#[test]
fn the_certificate_is_half_a_unit_in_the_last_place() {
    for format in FORMATS {
        let one = (format.bias() as u32) << format.fraction_bits();
        // 1 + 2^-p lies halfway between two numbers: the error is the bound.
        let half = (format.bias() as u32 - format.precision()) << format.fraction_bits();
        let exact_sum = 1.0 + oracle::value(format, half);
        let contributions = Contributions { worker_count: 2, magnitude_max: 1.0, magnitude_sum: exact_sum };
        let certificate = exact::certify(format, &contributions);
        assert!(certificate.order_independent);
        assert_eq!(exact_sum - oracle::value(format, sum(format, &[one, half])), certificate.absolute_error);
    }
    assert!(exact::certify(FloatFormat::Float16, &Contributions::bounded(2, 4e4)).absolute_error.is_infinite());
}
