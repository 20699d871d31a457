//! SwitchML Appendix E for the numbers as they are: against exact sums in 128-bit integers, n from 1 to 256.

mod common;

use common::{Random, largest_below_pow2, pow2, wire_format};
use fanin_numeric::block_fixed::{self, *};
use fanin_numeric::{BlockExponent, accumulate, float16};
use proptest::prelude::*;

const WORKERS_MAX: u16 = 256;

/// What the switch multicasts for these blocks: f, the words as sums in i64, and the payload.
fn aggregate(blocks: &[Vec<f32>]) -> (f32, Vec<i64>, Vec<u8>) {
    let exponent = blocks.iter().map(|block| exponent_f32(block)).max().unwrap();
    let f = scale(exponent, blocks.len() as u16);
    let count = blocks[0].len();
    let mut payload = vec![0; 4 * count];
    let mut slot = vec![0; count];
    let mut sums = vec![0i64; count];
    for (rank, block) in blocks.iter().enumerate() {
        quantize_f32(block, f, &mut payload);
        for (sum, word) in sums.iter_mut().zip(payload.chunks_exact(4)) {
            *sum += i64::from(i32::from_be_bytes(word.try_into().unwrap()));
        }
        match rank {
            0 => accumulate::overwrite(&payload, &mut slot),
            _ => accumulate::add(&payload, &mut slot),
        }
    }
    accumulate::emit(&slot, &mut payload);
    (f, sums, payload)
}

/// Values of one block: all sizes up to a common exponent, with the extremes over-represented.
fn value(exponent: i32) -> impl Strategy<Value = f32> {
    let h = largest_below_pow2(exponent);
    prop_oneof![
        2 => prop_oneof![Just(h), Just(-h)],
        1 => prop_oneof![Just(0.0f32), Just(-0.0), Just(h / 2.0), Just(f32::from_bits(1)), Just(-f32::MIN_POSITIVE)],
        4 => (-1.0f64..1.0).prop_map(move |x| (x * pow2(exponent) * (1.0 - pow2(-24))) as f32),
        2 => (0.0f64..1.0, 0i32..160, any::<bool>()).prop_map(move |(x, down, negative)| {
            let x = ((1.0 + x) * pow2(exponent - 2 - down)) as f32;
            if negative { -x } else { x }
        }),
    ]
}

/// `n` blocks of `1..12` values; in one case of eight all workers send the same extreme, the worst for the sum.
fn blocks() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let worker_count = prop_oneof![1..=WORKERS_MAX, Just(WORKERS_MAX), Just(128), Just(2), Just(3)];
    let exponent = prop_oneof![-126i32..=128, Just(128), Just(-95), Just(0)];
    (worker_count, exponent, 1usize..12).prop_flat_map(|(worker_count, exponent, count)| {
        let mixed = proptest::collection::vec(proptest::collection::vec(value(exponent), count), worker_count as usize);
        let worst = vec![vec![largest_below_pow2(exponent); count]; worker_count as usize];
        prop_oneof![7 => mixed, 1 => Just(worst)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Assumption 2 holds by construction: no sum leaves i32, so the switch's wrapping sum is the sum.
    #[test]
    fn no_sum_overflows(blocks in blocks()) {
        let (_, sums, payload) = aggregate(&blocks);
        for (sum, word) in sums.iter().zip(payload.chunks_exact(4)) {
            prop_assert_eq!(i32::try_from(*sum), Ok(i32::from_be_bytes(word.try_into().unwrap())));
        }
    }

    /// Theorem 1, at half its bound: `|sum / f - exact| <= n / (2 f)`. The oracle counts in 2^-80 / f: the words need
    /// 31 + 80 bits and the sum of 256 eight more, so i128 holds it; cutting an input off there errs by one each.
    #[test]
    fn the_error_stays_within_half_of_theorem_1(blocks in blocks()) {
        let (f, sums, payload) = aggregate(&blocks);
        let n = blocks.len();
        let mut decoded = vec![0.0; sums.len()];
        dequantize_f32(&payload, f, 1.0, &mut decoded);
        for (k, sum) in sums.iter().enumerate() {
            let scaled = |x: f32| (f64::from(x) * f64::from(f) * pow2(80)) as i128;
            let exact: i128 = blocks.iter().map(|block| scaled(block[k])).sum();
            let error = (i128::from(*sum) << 80) - exact;
            prop_assert!(error.unsigned_abs() <= ((n as u128) << 79) + n as u128, "error {error}");
            // What is left is the one rounding to f32.
            let ideal = *sum as f64 / f64::from(f);
            prop_assert_eq!(decoded[k], ideal as f32);
        }
    }

    /// AVG divides the f32 sum once, also where a power of two is folded into the scale.
    #[test]
    fn the_average_is_the_sum_divided(blocks in blocks()) {
        let (f, sums, payload) = aggregate(&blocks);
        let divisor = blocks.len() as f32;
        let (mut decoded, mut average) = (vec![0.0f32; sums.len()], vec![0.0; sums.len()]);
        dequantize_f32(&payload, f, 1.0, &mut decoded);
        dequantize_f32(&payload, f, divisor, &mut average);
        for (sum, average) in decoded.iter().zip(average) {
            prop_assert!(sum.is_infinite() || average == sum / divisor, "{sum} {average}");
        }
    }

    /// The exponent is the smallest that covers the block, down to the smallest in use.
    #[test]
    fn the_exponent_is_tight(block in proptest::collection::vec(any::<f32>().prop_filter("finite", |x| x.is_finite()), 0..40)) {
        let m = i32::from(exponent_f32(&block).0);
        let h = block.iter().fold(0.0f64, |h, x| h.max(f64::from(*x).abs()));
        prop_assert!(h < pow2(m));
        prop_assert!(m == i32::from(BlockExponent::MIN.0) || pow2(m - 1) <= h);
    }

    /// f16 and bf16 tensors are the f32 tensors of the same values, rounded once more at the end.
    #[test]
    fn sixteen_bit_tensors_agree_with_f32(bits in proptest::collection::vec(any::<u16>(), 0..70), n in 1..=WORKERS_MAX,
                                          divisor in prop_oneof![Just(1.0f32), Just(3.0), Just(8.0)]) {
        wire_format!(block_fixed, 4).assert_sixteen_bits_agree_with_f32(&bits, n, divisor);
    }
}

/// Every n and every sign of the worst block: all workers send the largest f32 below a power of two.
#[test]
fn the_worst_block_fits_for_every_worker_count() {
    for worker_count in 1..=WORKERS_MAX {
        for exponent in [-95, -94, -1, 0, 1, 64, 127, 128] {
            let h = largest_below_pow2(exponent);
            let f = scale(exponent_f32(&[h]), worker_count);
            let mut payload = [0; 8];
            quantize_f32(&[h, -h], f, &mut payload);
            let mut slot = [0; 2];
            let mut sums = [0i64; 2];
            for _ in 0..worker_count {
                accumulate::add(&payload, &mut slot);
                for (sum, word) in sums.iter_mut().zip(payload.chunks_exact(4)) {
                    *sum += i64::from(i32::from_be_bytes(word.try_into().unwrap()));
                }
            }
            assert_eq!(slot.map(i64::from), sums, "n {worker_count}, m {exponent}");
            // Not only safe but tight: less than two bits of the word stay unused for a power of two.
            assert!(sums[0] > 1 << 28, "n {worker_count}, m {exponent}");
        }
    }
}

/// Why 256 workers get a bit more room: with `ceil(log2 n)` alone the worst block reaches 2^31.
#[test]
fn without_the_extra_bit_256_workers_would_overflow() {
    let h = largest_below_pow2(0);
    let mut payload = [0; 4];
    quantize_f32(&[h], pow2(31 - 8) as f32, &mut payload);
    assert_eq!(256 * i64::from(i32::from_be_bytes(payload)), 1 << 31);
    assert_eq!(scale(BlockExponent(0), 256), pow2(31 - 9) as f32);
    assert_eq!(scale(BlockExponent(0), 255), pow2(31 - 8) as f32);
}

#[test]
fn scales_are_normal_powers_of_two_over_the_whole_range() {
    for exponent in BlockExponent::MIN.0..=BlockExponent::MAX.0 {
        for worker_count in 1..=WORKERS_MAX {
            let f = scale(BlockExponent(exponent), worker_count);
            assert!(f.is_normal() && (1.0 / f).is_normal() && f.to_bits() & 0x007f_ffff == 0);
        }
    }
}

#[test]
fn exponents_of_corner_values() {
    let cases = [
        (0.0, -95),
        (-0.0, -95),
        (f32::from_bits(1), -95),
        (f32::MIN_POSITIVE, -95),
        (largest_below_pow2(-95), -95),
        (pow2(-95) as f32, -94),
        (largest_below_pow2(-94), -94),
        (1.0, 1),
        (largest_below_pow2(0), 0),
        (-2.0, 2),
        (1.9999, 1),
        (f32::MAX, 128),
        (-f32::MAX, 128),
    ];
    for (value, exponent) in cases {
        assert_eq!(exponent_f32(&[0.0, value, 0.0]), BlockExponent(exponent), "{value}");
    }
    assert_eq!(exponent_f32(&[]), BlockExponent::MIN);
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
        for at in [0, 1, 15, 16, 17, 40] {
            let mut block = [f32::MAX; 41];
            block[at] = value;
            assert_eq!(exponent_f32(&block), BlockExponent::NON_FINITE, "{value} at {at}");
        }
    }
    assert_eq!(exponent_f16(&[0x7bff]), BlockExponent(16));
    assert_eq!(exponent_f16(&[0x8001]), BlockExponent(-23));
    assert_eq!(exponent_f16(&[0xfc00, 0]), BlockExponent::NON_FINITE);
    assert_eq!(exponent_bf16(&[0x7f7f]), BlockExponent(128));
    assert_eq!(exponent_bf16(&[0x0001]), BlockExponent::MIN);
    assert_eq!(exponent_bf16(&[0xff81]), BlockExponent::NON_FINITE);
}

#[test]
fn sentinels_merge_above_and_below_all_numbers() {
    let [none, tiny, large] = [BlockExponent::NOT_NEEDED, BlockExponent::MIN, BlockExponent::MAX];
    assert_eq!(none.merge(tiny), tiny);
    assert_eq!(large.merge(tiny), large);
    assert_eq!(large.merge(BlockExponent::NON_FINITE), BlockExponent::NON_FINITE);
    assert_eq!(BlockExponent::UNKNOWN.merge(BlockExponent::NON_FINITE), BlockExponent::UNKNOWN);
    assert!(none.is_finite() && large.is_finite());
    assert!(!BlockExponent(129).is_finite() && !BlockExponent::UNKNOWN.is_finite());
    assert_eq!(scale(none, 4), scale(tiny, 4));
}

/// A block that some worker cannot represent: zeros go out, NaN comes back, whatever the payload.
#[test]
fn a_non_finite_exponent_makes_the_block_nan() {
    for exponent in [BlockExponent::NON_FINITE, BlockExponent::UNKNOWN, BlockExponent(129)] {
        let f = scale(exponent, 3);
        let mut payload = [1; 12];
        quantize_f32(&[1.0, f32::INFINITY, f32::NAN], f, &mut payload);
        assert_eq!(payload, [0; 12]);
        let mut out = [0.0f32; 3];
        dequantize_f32(&payload, f, 1.0, &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
        let mut halves = [0; 3];
        dequantize_f16(&payload, f, 3.0, &mut halves);
        assert!(halves.iter().all(|x| float16::f16_to_f32(*x).is_nan()));
        dequantize_bf16(&payload, f, 3.0, &mut halves);
        assert!(halves.iter().all(|x| float16::bf16_to_f32(*x).is_nan()));
    }
}

#[test]
fn rounding_is_half_to_even() {
    let values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388607.5, -8388606.5, 3.0];
    let expected = [0, 2, 2, 0, -2, -2, 0, 8388608, -8388606, 3];
    let mut payload = [0; 40];
    quantize_f32(&values, 1.0, &mut payload);
    let words = payload.chunks_exact(4).map(|word| i32::from_be_bytes(word.try_into().unwrap()));
    assert!(words.eq(expected));
}

/// A value that breaks its exponent is a bug elsewhere; here it has one defined outcome.
#[test]
fn values_beyond_the_word_become_the_indefinite_integer() {
    let mut payload = [0; 16];
    quantize_f32(&[2147483648.0, -2147483904.0, f32::NAN, f32::INFINITY], 1.0, &mut payload);
    assert!(payload.chunks_exact(4).all(|word| word == i32::MIN.to_be_bytes()));
    quantize_f32(&[-2147483648.0, 2147483520.0, 0.0, 0.0], 1.0, &mut payload);
    assert_eq!(payload[..8], [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0x80]);
}

/// Every f16 and every finite-range f32 pattern narrows like an independent rounding in f64.
#[test]
fn sixteen_bit_conversions_round_once_to_even() {
    for half in 0..=u16::MAX {
        let wide = float16::f16_to_f32(half);
        if !wide.is_nan() {
            assert_eq!(float16::f32_to_f16(wide), half);
            assert_eq!(f64::from(wide), f16_by_definition(half), "{half:#06x}");
        }
        let wide = float16::bf16_to_f32(half);
        assert!(wide.is_nan() || float16::f32_to_bf16(wide) == half);
    }
    let mut random = Random(7);
    for _ in 0..1_000_000 {
        let bits = random.bits();
        // Around f16's range, every second one a tie or next to it.
        let half = (bits >> 32) as u16 % 0x7bff;
        let tie = float16::f16_to_f32(half).midpoint(float16::f16_to_f32(half + 1));
        let value = f32::from_bits(tie.to_bits().wrapping_add((bits % 3) as u32).wrapping_sub(1));
        let expected = match value.partial_cmp(&tie).unwrap() {
            core::cmp::Ordering::Less => half,
            core::cmp::Ordering::Greater => half + 1,
            core::cmp::Ordering::Equal => half + (half & 1),
        };
        assert_eq!(float16::f32_to_f16(value), expected, "{value:e}");
        let bf16 = (bits >> 48) as u16 & 0x7f7f;
        let rest = bits as u16;
        let value = f32::from_bits(u32::from(bf16) << 16 | u32::from(rest));
        let up = rest > 0x8000 || (rest == 0x8000 && bf16 & 1 == 1);
        assert_eq!(float16::f32_to_bf16(value), bf16 + u16::from(up));
    }
    assert_eq!(float16::f32_to_f16(65519.996), 0x7bff);
    assert_eq!(float16::f32_to_f16(65520.0), 0x7c00);
    assert_eq!(float16::f32_to_f16(f32::MAX), 0x7c00);
    assert_eq!(float16::f32_to_bf16(f32::MAX), 0x7f80);
}

/// IEEE 754 binary16, straight from its definition.
fn f16_by_definition(half: u16) -> f64 {
    let sign = if half >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction * pow2(-24),
        31 => sign * f64::INFINITY,
        _ => sign * (1024.0 + fraction) * pow2(exponent - 25),
    }
}

#[test]
#[should_panic(expected = "pass matching slices")]
fn a_short_payload_is_refused() {
    quantize_f32(&[1.0; 4], 1.0, &mut [0; 15]);
}
