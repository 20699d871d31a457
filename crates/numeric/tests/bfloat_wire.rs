//! The Bfloat16 element format: exact at the switch, rounded once on each side, whatever the order.

mod common;

use common::{Random, pow2, wire_format};
use fanin_numeric::accumulate::bfloat;
use fanin_numeric::bfloat_wire::{self, *};
use fanin_numeric::{BlockExponent, float16};
use proptest::prelude::*;

fn payload_of(bfloats: &[u16]) -> Vec<u8> {
    bfloats.iter().flat_map(|x| x.to_be_bytes()).collect()
}

fn bfloats_of(payload: &[u8]) -> Vec<u16> {
    payload.chunks_exact(2).map(|x| u16::from_be_bytes([x[0], x[1]])).collect()
}

/// The bf16 nearest to a whole number, half to even, in integers only: the oracle for the switch's way out.
fn round_whole(units: i32) -> f64 {
    let magnitude = i64::from(units).abs();
    // Keep 8 bits.
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(8);
    let (kept, rest, tie) = (magnitude >> drop, magnitude & ((1 << drop) - 1), (1i64 << drop) / 2);
    let up = drop > 0 && (rest > tie || (rest == tie && kept & 1 == 1));
    ((kept + i64::from(up)) << drop) as f64 * f64::from(units.signum())
}

/// The words that a slot holds and emits after these contributions.
fn aggregate(contributions: &[Vec<u16>]) -> (Vec<i32>, Vec<u16>) {
    let mut slot = vec![i32::MAX; contributions[0].len()];
    for (rank, bfloats) in contributions.iter().enumerate() {
        let payload = payload_of(bfloats);
        if rank == 0 { bfloat::overwrite(&payload, &mut slot) } else { bfloat::add(&payload, &mut slot) }
    }
    let mut payload = vec![0; 2 * slot.len()];
    bfloat::emit(&slot, &mut payload);
    (slot, bfloats_of(&payload))
}

/// Each worker's scaled block, and f.
fn quantized(blocks: &[Vec<f32>]) -> (f32, Vec<Vec<u16>>) {
    let exponent = blocks.iter().map(|block| exponent_f32(block)).max().unwrap();
    let f = scale(exponent, blocks.len() as u16);
    let contributions = blocks.iter().map(|block| {
        let mut payload = vec![0; 2 * block.len()];
        quantize_f32(block, f, &mut payload);
        bfloats_of(&payload)
    });
    (f, contributions.collect())
}

#[test]
fn the_switch_rounds_once_to_even() {
    let mut random = Random(5);
    let check = |units: i32| {
        let mut payload = [0; 2];
        bfloat::emit(&[units], &mut payload);
        assert_eq!(f64::from(float16::bf16_to_f32(u16::from_be_bytes(payload))), round_whole(units), "{units}");
    };
    // Ties, and their neighbours by one unit and by just what f32 would round away.
    for shift in 0..31 {
        for step in 0..(1i64 << 9) {
            for near in [-65i64, -64, -1, 0, 1, 64, 65] {
                if let Ok(units) = i32::try_from((step << shift) / 2 + near) {
                    check(units);
                    check(-units);
                }
            }
        }
    }
    (0..1_000_000).for_each(|_| {
        let bits = random.bits();
        check(bits as i32 >> (bits >> 59));
    });
    [i32::MIN, i32::MIN + 1, i32::MAX].into_iter().for_each(check);
}

#[test]
fn small_values_become_whole_and_large_ones_keep_eight_bits() {
    let values = [0.5, 1.5, -0.4, 127.5, 128.5, 129.5, 257.0, -387.0, 16_777_215.0];
    let mut payload = [0; 18];
    quantize_f32(&values, 1.0, &mut payload);
    let found: Vec<f32> = bfloats_of(&payload).into_iter().map(float16::bf16_to_f32).collect();
    assert_eq!(found, [0.0, 2.0, 0.0, 128.0, 128.0, 130.0, 256.0, -388.0, 16_777_216.0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The slot holds the exact sum of whole numbers, at most 2^30, and the answer is that sum rounded once.
    #[test]
    fn the_sum_is_exact_and_fits(blocks in common::blocks(34)) {
        let (_, contributions) = quantized(&blocks);
        let (slot, emitted) = aggregate(&contributions);
        for k in 0..slot.len() {
            let exact: f64 = contributions.iter().map(|c| f64::from(float16::bf16_to_f32(c[k]))).sum();
            prop_assert_eq!(f64::from(slot[k]), exact);
            prop_assert!(slot[k].unsigned_abs() <= 1 << 30);
            prop_assert_eq!(f64::from(float16::bf16_to_f32(emitted[k])), round_whole(slot[k]));
        }
    }

    /// The documented bound: one rounding per worker, one at the switch, none on the way back to f32.
    #[test]
    fn the_error_stays_within_the_bound(blocks in common::blocks(34)) {
        let (f, contributions) = quantized(&blocks);
        let (_, emitted) = aggregate(&contributions);
        let mut decoded = vec![0.0; emitted.len()];
        dequantize_f32(&payload_of(&emitted), f, 1.0, &mut decoded);
        let f = f64::from(f);
        for (k, decoded) in decoded.iter().enumerate() {
            let scaled = f64::from(float16::bf16_to_f32(emitted[k]));
            prop_assert_eq!(*decoded, (scaled / f) as f32);
            let exact: f64 = blocks.iter().map(|block| f64::from(block[k]) * f).sum();
            // In each worker's rounding one of the two errors occurs, never both.
            let worker = |x: f32| (f64::from(x).abs() * f * pow2(-8)).max(0.5);
            let bound = blocks.iter().map(|block| worker(block[k])).sum::<f64>() + scaled.abs() * pow2(-8);
            prop_assert!((scaled - exact).abs() <= bound * (1.0 + pow2(-30)), "{scaled} {exact} {bound}");
        }
    }

    /// Any order of arrival gives every worker the same bytes.
    #[test]
    fn the_order_does_not_matter(blocks in common::blocks(34), seed in any::<u64>()) {
        let (_, mut contributions) = quantized(&blocks);
        let expected = aggregate(&contributions);
        let mut random = Random(seed);
        contributions.sort_by_cached_key(|_| random.bits());
        prop_assert_eq!(aggregate(&contributions), expected);
    }

    /// A tensor of bf16 within the documented range arrives as it is; f16 tensors agree with their values as f32.
    #[test]
    fn sixteen_bit_tensors_agree_with_f32(bits in proptest::collection::vec(any::<u16>(), 0..50), n in 1u16..=256,
                                          divisor in prop_oneof![Just(1.0f32), Just(3.0), Just(8.0)]) {
        wire_format!(bfloat_wire, 2).assert_sixteen_bits_agree_with_f32(&bits, n, divisor);
    }
}

#[test]
fn bf16_tensors_lose_nothing_down_to_the_documented_range() {
    let mut random = Random(9);
    for worker_count in [1u16, 3, 8, 256] {
        let bits = (16 - (worker_count - 1).leading_zeros()) as i32;
        // The largest has exponent 0; the others reach down to 2^(bits - 23), all 8 bits in use.
        let mut values: Vec<u16> = (0..1000)
            .map(|_| {
                let down = random.bits() as i32 & 0xff_ffff;
                let exponent = 126 - down % (23 - bits);
                (random.bits() as u16 & 0x807f) | (exponent as u16) << 7
            })
            .collect();
        values[0] = 0x3f7f;
        let f = scale(exponent_bf16(&values), worker_count);
        let (mut payload, mut out) = (vec![0; 2000], vec![0; 1000]);
        quantize_bf16(&values, f, &mut payload);
        let (_, emitted) = aggregate(&[bfloats_of(&payload)]);
        dequantize_bf16(&payload_of(&emitted), f, 1.0, &mut out);
        assert_eq!(out, values, "{worker_count} workers");
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
