//! The Int8 element format: exact at the switch, with a shift of the sum's own, whatever the order.

mod common;

use common::{Random, pow2};
use fanin_numeric::accumulate::byte;
use fanin_numeric::byte_wire::*;
use fanin_numeric::{BlockExponent, float16};
use proptest::prelude::*;

/// Half to even, in integers only: the oracle for the switch's way out.
fn round_shift(sum: i64, shift: u8) -> i64 {
    let unit = 1i64 << shift;
    let (below, rest) = (sum.div_euclid(unit), sum.rem_euclid(unit));
    let up = 2 * rest > unit || (2 * rest == unit && below % 2 != 0);
    below + i64::from(up)
}

/// What a slot holds after these contributions, its shift and its answer.
fn aggregate(contributions: &[Vec<u8>]) -> (Vec<i32>, u8, Vec<u8>) {
    let mut slot = vec![i32::MAX; contributions[0].len()];
    for (rank, bytes) in contributions.iter().enumerate() {
        if rank == 0 { byte::overwrite(bytes, &mut slot) } else { byte::add(bytes, &mut slot) }
    }
    let shift = byte::shift(&slot);
    let mut payload = vec![0; slot.len()];
    byte::emit(&slot, shift, &mut payload);
    (slot, shift, payload)
}

fn quantized(blocks: &[Vec<f32>]) -> (f32, Vec<Vec<u8>>) {
    let exponent = blocks.iter().map(|block| exponent_f32(block)).max().unwrap();
    let f = scale(exponent);
    let contributions = blocks.iter().map(|block| {
        let mut payload = vec![0; block.len()];
        quantize_f32(block, f, &mut payload);
        payload
    });
    (f, contributions.collect())
}

fn ceil_log2(n: usize) -> u8 {
    (0..).find(|bits| 1 << bits >= n).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// The slot holds the exact sum, the shift is the smallest one that fits, and the answer is rounded once.
    #[test]
    fn the_sum_is_exact_and_the_shift_the_smallest(blocks in common::blocks(12)) {
        let (_, contributions) = quantized(&blocks);
        let (slot, shift, emitted) = aggregate(&contributions);
        let sum = |k: usize| contributions.iter().map(|bytes| i64::from(bytes[k] as i8)).sum::<i64>();
        let fits = |shift| (0..slot.len()).all(|k| round_shift(sum(k), shift).abs() <= 127);
        prop_assert!(fits(shift) && shift <= ceil_log2(blocks.len()));
        prop_assert!(shift == 0 || !fits(shift - 1));
        for k in 0..slot.len() {
            prop_assert_eq!(i64::from(slot[k]), sum(k));
            prop_assert_eq!(i64::from(emitted[k] as i8), round_shift(sum(k), shift));
        }
    }

    /// The documented bound, relative to the largest magnitude, with the clamp counted where it acts.
    #[test]
    fn the_error_stays_within_the_bound(blocks in common::blocks(12)) {
        let (f, contributions) = quantized(&blocks);
        let (_, shift, emitted) = aggregate(&contributions);
        let mut decoded = vec![0.0f32; emitted.len()];
        dequantize_f32(&emitted, f, shift, 1.0, &mut decoded);
        let f = f64::from(f);
        let largest = blocks.iter().flatten().fold(0.0f64, |largest, x| largest.max(f64::from(*x).abs()));
        // Below the smallest exponent the step is the smallest one's.
        prop_assert!(1.0 / f <= (largest / 64.0).max(pow2(-95 - 7)));
        for (k, decoded) in decoded.iter().enumerate() {
            let worker = |x: f32| if (f64::from(x) * f).abs() > 127.5 { 1.0 } else { 0.5 };
            let bound = blocks.iter().map(|block| worker(block[k])).sum::<f64>() + pow2(i32::from(shift) - 1);
            let scaled = f64::from(emitted[k] as i8) * pow2(shift.into());
            let exact: f64 = blocks.iter().map(|block| f64::from(block[k]) * f).sum();
            prop_assert!((scaled - exact).abs() <= bound * (1.0 + pow2(-30)), "{scaled} {exact} {bound}");
            prop_assert_eq!(*decoded, (scaled / f) as f32);
        }
    }

    /// Any order of arrival gives every worker the same bytes and the same shift.
    #[test]
    fn the_order_does_not_matter(blocks in common::blocks(12), seed in any::<u64>()) {
        let (_, mut contributions) = quantized(&blocks);
        let expected = aggregate(&contributions);
        let mut random = Random(seed);
        contributions.sort_by_cached_key(|_| random.bits());
        prop_assert_eq!(aggregate(&contributions), expected);
    }

    /// The same from 16-bit tensors: their values as f32, narrowed once at the end.
    #[test]
    fn sixteen_bit_tensors_agree_with_f32(bits in proptest::collection::vec(any::<u16>(), 0..50), shift in 0u8..9,
                                          divisor in prop_oneof![Just(1.0f32), Just(3.0), Just(8.0)]) {
        type Format = (fn(u16) -> f32, fn(f32) -> u16, fn(&[u16]) -> BlockExponent, fn(&[u16], f32, &mut [u8]),
            fn(&[u8], f32, u8, f32, &mut [u16]));
        let formats: [Format; 2] = [
            (float16::f16_to_f32, float16::f32_to_f16, exponent_f16, quantize_f16, dequantize_f16),
            (float16::bf16_to_f32, float16::f32_to_bf16, exponent_bf16, quantize_bf16, dequantize_bf16),
        ];
        for (widen, narrow, exponent, quantize, dequantize) in formats {
            let bits: Vec<u16> = bits.iter().copied().filter(|x| widen(*x).is_finite()).collect();
            let wide: Vec<f32> = bits.iter().map(|x| widen(*x)).collect();
            let f = scale(exponent(&bits));
            let (mut payload, mut expected) = (vec![0; bits.len()], vec![0; bits.len()]);
            quantize(&bits, f, &mut payload);
            quantize_f32(&wide, f, &mut expected);
            prop_assert_eq!(&payload, &expected);
            let (mut out, mut wide_out) = (vec![0; bits.len()], vec![0.0; bits.len()]);
            dequantize(&payload, f, shift, divisor, &mut out);
            dequantize_f32(&payload, f, shift, divisor, &mut wide_out);
            prop_assert_eq!(out, wide_out.into_iter().map(narrow).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_shift_changes_where_rounding_would_reach_128() {
    let cases = [(0, 0), (127, 0), (128, 1), (254, 1), (255, 2), (509, 2), (510, 3), (127 * 256, 8), (128 * 256, 9)];
    for (largest, shift) in cases {
        assert_eq!(byte::shift(&[0, -largest, 1]), shift, "{largest}");
        assert_eq!(byte::shift(&[largest]), shift, "{largest}");
    }
    assert_eq!(byte::shift(&[]), 0);
    assert_eq!(byte::shift(&[i32::MAX]), 25);
}

#[test]
fn values_next_to_the_bound_are_clamped_and_ties_go_to_even() {
    let mut payload = [0; 6];
    quantize_f32(&[127.9, -127.9, 127.5, 0.5, 1.5, -2.5], 1.0, &mut payload);
    assert_eq!(payload.map(|byte| byte as i8), [127, -127, 127, 0, 2, -2]);
}

/// Zeros cost nothing, whatever the number of workers; and one worker gets its own rounded values back.
#[test]
fn zeros_stay_zeros_and_one_worker_has_no_shift() {
    let (_, shift, emitted) = aggregate(&vec![vec![0; 5]; 256]);
    assert_eq!((shift, emitted), (0, vec![0; 5]));
    let (_, contributions) = quantized(&[vec![1.0, -0.75, 1e-9]]);
    assert_eq!(aggregate(&contributions), (vec![64, -48, 0], 0, contributions[0].clone()));
}

/// Next to f32's largest number `2^shift / f` is more than f32 holds; cancelled sums come out all the same.
#[test]
fn the_largest_blocks_survive_the_round_trip() {
    let h = pow2(127) as f32;
    let f = scale(exponent_f32(&[h]));
    let mut out = [0.0; 3];
    dequantize_f32(&[1, 0xff, 127], f, 8, 1.0, &mut out);
    assert_eq!(out, [f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY]);
    dequantize_f32(&[64, 0xc0, 0], f, 0, 1.0, &mut out);
    assert_eq!(out, [h, -h, 0.0]);
}

#[test]
fn a_non_finite_exponent_makes_the_block_nan() {
    let f = scale(BlockExponent::NON_FINITE);
    let mut payload = [1; 3];
    quantize_f32(&[1.0, f32::INFINITY, f32::NAN], f, &mut payload);
    assert_eq!(payload, [0; 3]);
    let mut out = [0.0f32; 3];
    dequantize_f32(&payload, f, 3, 2.0, &mut out);
    assert!(out.iter().all(|x| x.is_nan()));
}
