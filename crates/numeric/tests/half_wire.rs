//! The Float16 element format: exact at the switch, rounded once on each side, whatever the order.

mod common;

use common::{Random, pow2, wire_format};
use fanin_numeric::accumulate::half;
use fanin_numeric::half_wire::{self, *};
use fanin_numeric::{BlockExponent, float16};
use proptest::prelude::*;

/// Payload of big-endian f16.
fn payload_of(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|x| x.to_be_bytes()).collect()
}

fn halves_of(payload: &[u8]) -> Vec<u16> {
    payload.chunks_exact(2).map(|x| u16::from_be_bytes([x[0], x[1]])).collect()
}

/// The f16 nearest to `units * 2^-24`, half to even, in integers only: the oracle for the switch's way out.
fn round_units(units: i32) -> u16 {
    let sign = if units < 0 { 0x8000 } else { 0 };
    let magnitude = u64::from(units.unsigned_abs());
    // Below 2^11 every count is an f16; above, keep 11 bits.
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(11);
    let (kept, rest, tie) = (magnitude >> drop, magnitude & ((1 << drop) - 1), (1u64 << drop) / 2);
    let up = drop > 0 && (rest > tie || (rest == tie && kept & 1 == 1));
    let kept = kept + u64::from(up);
    // The fraction's hidden bit adds one to the exponent field, and a carry to 2^11 adds one more.
    sign | (kept + (u64::from(drop) << 10)) as u16
}

/// The words that a slot holds and emits after these contributions.
fn aggregate(contributions: &[Vec<u16>]) -> (Vec<i32>, Vec<u16>) {
    let mut slot = vec![0; contributions[0].len()];
    let (last, others) = contributions.split_last().unwrap();
    for (rank, halves) in others.iter().enumerate() {
        match rank {
            0 => half::overwrite(&payload_of(halves), &mut slot),
            _ => half::add(&payload_of(halves), &mut slot),
        }
    }
    let payload = payload_of(last);
    let mut out = vec![0; payload.len()];
    match others.len() {
        0 => half::overwrite_and_emit(&payload, &mut slot, &mut out),
        _ => half::add_and_emit(&payload, &mut slot, &mut out),
    }
    let mut again = vec![0; payload.len()];
    half::emit(&slot, &mut again);
    assert_eq!(again, out, "a resend differs from the first answer");
    (slot, halves_of(&out))
}

#[test]
fn every_f16_below_128_is_read_exactly() {
    for bits in 0..=u16::MAX {
        let (slot, emitted) = aggregate(&[vec![bits]]);
        let value = float16::f16_to_f32(bits);
        if value.abs() < 128.0 {
            assert_eq!(f64::from(slot[0]), f64::from(value) * pow2(24), "{bits:#06x}");
            // Exactly what came in, but that integers have no -0.
            assert_eq!(emitted[0], if bits == 0x8000 { 0 } else { bits });
        } else if value != -128.0 {
            assert_eq!(slot[0], i32::MIN, "{bits:#06x}");
        }
    }
}

#[test]
fn the_switch_rounds_once_to_even() {
    let mut random = Random(3);
    let check = |units: i32| {
        let mut payload = [0; 2];
        half::emit(&[units], &mut payload);
        assert_eq!(u16::from_be_bytes(payload), round_units(units), "{units}");
    };
    // Ties, and their neighbours by one unit and by just what f32 would round away.
    for shift in 0..31 {
        for step in 0..(1i64 << 12) {
            for near in [-65i64, -64, -1, 0, 1, 64, 65] {
                let units = (step << shift) / 2 + near;
                if let Ok(units) = i32::try_from(units) {
                    check(units);
                    check(-units);
                }
            }
        }
    }
    for _ in 0..2_000_000 {
        let bits = random.bits();
        check(bits as i32 >> (bits >> 59));
    }
    [i32::MIN, i32::MIN + 1, i32::MAX, 1 << 24, -(1 << 24), (1 << 24) + 1].into_iter().for_each(check);
}

/// Each worker's scaled block, and f.
fn quantized(blocks: &[Vec<f32>]) -> (f32, Vec<Vec<u16>>) {
    let exponent = blocks.iter().map(|block| exponent_f32(block)).max().unwrap();
    let f = scale(exponent, blocks.len() as u16);
    let contributions = blocks.iter().map(|block| {
        let mut payload = vec![0; 2 * block.len()];
        quantize_f32(block, f, &mut payload);
        halves_of(&payload)
    });
    (f, contributions.collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The slot holds the exact sum of the f16 numbers, at most 2^30 units, and the answer is that sum rounded once.
    #[test]
    fn the_sum_is_exact_and_fits(blocks in common::blocks(30)) {
        let (_, contributions) = quantized(&blocks);
        let (slot, emitted) = aggregate(&contributions);
        for k in 0..slot.len() {
            let exact: f64 = contributions.iter().map(|c| f64::from(float16::f16_to_f32(c[k])) * pow2(24)).sum();
            prop_assert_eq!(f64::from(slot[k]), exact);
            prop_assert!(slot[k].unsigned_abs() <= 1 << 30);
            prop_assert_eq!(emitted[k], round_units(slot[k]));
        }
    }

    /// The documented bound: one f16 rounding per worker, one at the switch, none on the way back to f32.
    #[test]
    fn the_error_stays_within_the_bound(blocks in common::blocks(30)) {
        let (f, contributions) = quantized(&blocks);
        let (_, emitted) = aggregate(&contributions);
        let mut decoded = vec![0.0; emitted.len()];
        dequantize_f32(&payload_of(&emitted), f, 1.0, &mut decoded);
        for (k, decoded) in decoded.iter().enumerate() {
            let scaled = f64::from(float16::f16_to_f32(emitted[k]));
            prop_assert_eq!(*decoded, (scaled / f64::from(f)) as f32);
            let exact: f64 = blocks.iter().map(|block| f64::from(block[k]) * f64::from(f)).sum();
            let magnitudes: f64 = blocks.iter().map(|block| f64::from(block[k]).abs() * f64::from(f)).sum();
            let bound = magnitudes * pow2(-11) + blocks.len() as f64 * pow2(-25) + scaled.abs() * pow2(-11);
            prop_assert!((scaled - exact).abs() <= bound * (1.0 + pow2(-30)), "{scaled} {exact}");
        }
    }

    /// Any order of arrival gives every worker the same bytes.
    #[test]
    fn the_order_does_not_matter(blocks in common::blocks(30), seed in any::<u64>()) {
        let (_, mut contributions) = quantized(&blocks);
        let expected = aggregate(&contributions);
        let mut random = Random(seed);
        contributions.sort_by_cached_key(|_| random.bits());
        prop_assert_eq!(&aggregate(&contributions), &expected);
        contributions.reverse();
        prop_assert_eq!(&aggregate(&contributions), &expected);
    }

    /// The same from 16-bit tensors: their values as f32, narrowed once at the end.
    #[test]
    fn sixteen_bit_tensors_agree_with_f32(bits in proptest::collection::vec(any::<u16>(), 0..50), n in 1u16..=256,
                                          divisor in prop_oneof![Just(1.0f32), Just(3.0), Just(8.0)]) {
        wire_format!(half_wire, 2).assert_sixteen_bits_agree_with_f32(&bits, n, divisor);
    }
}

/// Next to f32's largest number the scale is subnormal and `1 / f` has no f32; the way back works all the same.
#[test]
fn the_largest_blocks_survive_the_round_trip() {
    for worker_count in [1, 2, 3, 255, 256] {
        let h = pow2(127) as f32;
        let f = scale(exponent_f32(&[h]), worker_count);
        let mut payload = [0; 4];
        quantize_f32(&[h, -h / 2.0], f, &mut payload);
        let mut out = [0.0; 2];
        dequantize_f32(&payload, f, 1.0, &mut out);
        assert_eq!(out, [h, -h / 2.0], "{worker_count}");
    }
}

#[test]
fn a_non_finite_exponent_makes_the_block_nan() {
    let f = scale(BlockExponent::NON_FINITE, 3);
    let mut payload = [1; 6];
    quantize_f32(&[1.0, f32::INFINITY, f32::NAN], f, &mut payload);
    assert_eq!(payload, [0; 6]);
    let mut out = [0.0f32; 3];
    dequantize_f32(&payload, f, 2.0, &mut out);
    assert!(out.iter().all(|x| x.is_nan()));
}

#[test]
fn the_maximum_compares_values_and_not_bits() {
    let mut slot = [0; 3];
    half::overwrite(&payload_of(&[0xbc00, 0x0001, 0x3c00]), &mut slot);
    let mut out = [0; 6];
    half::max_and_emit(&payload_of(&[0xc000, 0x8001, 0x3c01]), &mut slot, &mut out);
    assert_eq!(halves_of(&out), [0xbc00, 0x0001, 0x3c01]);
}
