//! Native float addition in order of arrival, against sums of big integers.

mod common;
mod oracle;

use common::{Random, levels};
use fanin_numeric::certificate::Contributions;
use fanin_numeric::register_pair::{FloatFormat, Rounding};
use fanin_numeric::{ieee, limit_kernel_level};
use num_bigint::BigInt;
use oracle::FORMATS;

/// Bits of 1 in the integers of the oracle: 2^-149 is the least f32.
const PLACES: i32 = 149;

type Verb = fn(&[u8], &mut [f32]);

fn sum(format: FloatFormat, values: &[u32]) -> u32 {
    let (mut slot, mut out) = ([0.0], vec![0; format.bytes()]);
    for (k, bits) in values.iter().enumerate() {
        let payload = oracle::payload(format, &[*bits]);
        let verbs: [Verb; 2] = match format {
            FloatFormat::Float32 => [ieee::overwrite_f32, ieee::add_f32],
            FloatFormat::Float16 => [ieee::overwrite_f16, ieee::add_f16],
            FloatFormat::Bfloat16 => [ieee::overwrite_bf16, ieee::add_bf16],
        };
        verbs[usize::from(k > 0)](&payload, &mut slot);
    }
    match format {
        FloatFormat::Float32 => ieee::emit_f32(&slot, &mut out),
        FloatFormat::Float16 => ieee::emit_f16(&slot, &mut out),
        FloatFormat::Bfloat16 => ieee::emit_bf16(&slot, &mut out),
    }
    oracle::words(format, &out)[0]
}

#[test]
fn every_addition_rounds_once_in_float32_and_the_read_out_once_more() {
    let mut random = Random(31);
    for format in FORMATS {
        let corners = oracle::corners(format);
        for _ in 0..3000 {
            let count = 1 + random.bits() as usize % 12;
            let values = random.vec(count, |bits| corners[bits as usize % corners.len()]);
            let floats: Vec<f64> = values.iter().map(|bits| oracle::value(format, *bits)).collect();
            let mut total = floats[0];
            for x in &floats[1..] {
                let exact: BigInt = oracle::whole(total, PLACES) + oracle::whole(*x, PLACES);
                total = oracle::to_format(&exact, PLACES, FloatFormat::Float32, Rounding::NearestEven);
                if total.is_infinite() {
                    break;
                }
            }
            if total.is_finite() {
                let expected = oracle::to_format(&oracle::whole(total, PLACES), PLACES, format, Rounding::NearestEven);
                assert_eq!(oracle::value(format, sum(format, &values)), expected, "{format:?} {values:x?}");
            }
        }
    }
}

#[test]
fn sums_without_a_number_are_the_canonical_nan() {
    for (format, infinity, nan) in [
        (FloatFormat::Float32, 0x7f80_0000, 0x7fc0_0000),
        (FloatFormat::Float16, 0x7c00, 0x7e00),
        (FloatFormat::Bfloat16, 0x7f80, 0x7fc0),
    ] {
        let sign = 1 << (8 * format.bytes() - 1);
        assert_eq!(sum(format, &[infinity, infinity | sign]), nan);
        assert_eq!(sum(format, &[0, nan | sign | 3]), nan);
        assert_eq!(sum(format, &[infinity | sign, 0]), infinity | sign);
    }
}

#[test]
fn errors_stay_within_the_certificate() {
    let mut random = Random(32);
    for format in FORMATS {
        let mut closest = 0.0f64;
        for _ in 0..2000 {
            let count = 1 + random.bits() as usize % 64;
            let base = format.field_max() / 2 - 6;
            let values = random.vec(count, |bits| {
                let field = base + (bits >> 40) as u32 % 6;
                (bits as u32 & 1) << (8 * format.bytes() - 1)
                    | field << format.fraction_bits()
                    | (bits >> 8) as u32 & ((1 << format.fraction_bits()) - 1)
            });
            let floats: Vec<f64> = values.iter().map(|bits| oracle::value(format, *bits)).collect();
            let contributions = Contributions {
                worker_count: count as u32,
                magnitude_max: 1.0,
                magnitude_sum: floats.iter().map(|x| x.abs()).sum(),
            };
            let bound = ieee::certify(format, &contributions);
            // Few values of few bits: f64 holds the sum exactly.
            let error = (oracle::value(format, sum(format, &values)) - floats.iter().sum::<f64>()).abs();
            assert!(error <= bound.absolute_error && !bound.order_independent, "{error:e} {bound:?}");
            closest = closest.max(error / bound.absolute_error.max(1e-300));
        }
        assert!(closest > 0.2, "{closest} for {format:?}");
    }
    let at_the_end = Contributions::bounded(2, 3e38);
    assert!(ieee::certify(FloatFormat::Float32, &at_the_end).absolute_error.is_infinite());
}

/// Of any bits, in every length up to some vectors: the same slots and read-outs, but for the order of the bytes.
#[test]
fn little_endian_payloads_are_added_as_big_endian_ones() {
    let mut random = Random(33);
    let turned = |payload: &[u8]| payload.chunks(4).flat_map(|word| word.iter().rev().copied()).collect::<Vec<u8>>();
    for level in levels() {
        limit_kernel_level(level);
        for count in 0..70 {
            let [first, second] = [(); 2].map(|()| random.vec(4 * count, |bits| (bits >> 7) as u8));
            let (mut big, mut little) = (vec![0.0; count], vec![0.0; count]);
            let (mut expected, mut found) = (vec![0; 4 * count], vec![0; 4 * count]);
            ieee::overwrite_f32(&first, &mut big);
            ieee::overwrite_f32_le(&turned(&first), &mut little);
            ieee::emit_f32(&big, &mut expected);
            ieee::emit_f32_le(&little, &mut found);
            assert_eq!(found, turned(&expected), "{level:?}, {count} elements");
            ieee::add_f32(&second, &mut big);
            ieee::add_and_emit_f32_le(&turned(&second), &mut little, &mut found);
            ieee::emit_f32(&big, &mut expected);
            assert_eq!(found, turned(&expected), "{level:?}, {count} elements, added");
            ieee::add_f32(&second, &mut big);
            ieee::add_f32_le(&turned(&second), &mut little);
            ieee::emit_f32(&big, &mut expected);
            ieee::emit_f32_le(&little, &mut found);
            assert_eq!(found, turned(&expected), "{level:?}, {count} elements, added twice");
        }
    }
}
