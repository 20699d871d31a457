//! ATP's numbers: rounded once on the way out and once on the way back, sticky where 32 bits end.

mod common;

use common::{Random, pow2};
use fanin_numeric::certificate::Contributions;
use fanin_numeric::static_fixed::{self, *};
use fanin_numeric::{float_wire, float16};
use proptest::prelude::*;

const EXTREMES: [i32; 2] = [i32::MIN, i32::MAX];

fn word_of(value: f32) -> i32 {
    let mut word = [0; 4];
    quantize_f32(&[value], &mut word);
    i32::from_be_bytes(word)
}

fn value_of(word: i32, divisor: f32) -> f32 {
    let mut value = [0.0];
    dequantize_f32(&word.to_be_bytes(), divisor, &mut value);
    value[0]
}

/// `value * 10^8` to the nearest whole number, half to even, in integers only; infinities and NaN excluded.
fn count_exactly(value: f32) -> i32 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32;
    let fraction = i128::from(bits & 0x7f_ffff);
    let (significand, power) = if exponent == 0 { (fraction, -149) } else { (fraction | 1 << 23, exponent - 150) };
    let scaled = significand * 100_000_000;
    let magnitude = match power {
        // Nothing below 2^-100 comes near half a unit.
        ..-100 => 0,
        -100..0 => {
            let (whole, rest, half) = (scaled >> -power, scaled & ((1 << -power) - 1), 1i128 << (-power - 1));
            whole + i128::from(rest > half || (rest == half && whole & 1 == 1))
        }
        0..32 => scaled << power,
        32.. => i128::from(i64::MAX),
    };
    let signed = if value.is_sign_negative() { -magnitude } else { magnitude };
    signed.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// A number from 2^-60 to 2^60 as a count of 2^-60 or a little less than that, exactly.
fn fixed_point(value: f32) -> i128 {
    (f64::from(value) * pow2(60)) as i128
}

/// That no other f32 is nearer to `word / 10^8 / divisor` than `value`, in integers only. A tie cannot be: it would have
/// 25 significant bits after a division by 5^8.
fn assert_nearest(word: i32, divisor: i32, value: f32) {
    let [below, at, above] = [value.next_down(), value, value.next_up()].map(fixed_point);
    let quotient = i128::from(word) << 61;
    let unit = 100_000_000 * i128::from(divisor);
    assert!(
        (below + at) * unit < quotient && quotient < (at + above) * unit || word == 0 && value == 0.0,
        "{word} / {divisor} is not nearest to {value:e}"
    );
}

#[test]
fn values_are_rounded_once_and_extremes_say_so() {
    let cases = [
        (0.0, 0),
        (1.0, 100_000_000),
        (-0.5, -50_000_000),
        (5e-9, 0),
        (3e-8, 3),
        (21.474_836, 2_147_483_635),
        (21.474_838, i32::MAX),
        (f32::INFINITY, i32::MAX),
        (f32::NEG_INFINITY, i32::MIN),
        (-1e30, i32::MIN),
        (f32::NAN, i32::MIN),
        (f32::MIN_POSITIVE, 0),
    ];
    for (value, expected) in cases {
        assert_eq!(word_of(value), expected, "{value}");
    }
    // A quarter of 2^-8 and its odd multiples are halves of a unit: 10^8 is 5^8 * 2^8.
    for odd in (1..2001).step_by(2) {
        let value = odd as f32 / 512.0;
        assert_eq!(word_of(value), count_exactly(value), "{value}");
        assert_eq!(word_of(value) % 2, 0, "ties go to even: {value}");
    }
}

#[test]
fn every_value_goes_out_as_the_nearest_count() {
    let mut random = Random(11);
    for _ in 0..200_000 {
        let bits = random.bits();
        // Any float, and floats of the sizes that 32 bits hold.
        let any = f32::from_bits(bits as u32);
        let sized = f32::from_bits((bits as u32 & 0x807f_ffff) | (((bits >> 32) % 36 + 98) as u32) << 23);
        for value in [any, sized].into_iter().filter(|value| value.is_finite()) {
            assert_eq!(word_of(value), count_exactly(value), "{value:e}");
        }
    }
}

#[test]
fn every_sum_comes_back_as_the_nearest_float() {
    let mut random = Random(12);
    for divisor in 1..=256 {
        for _ in 0..400 {
            let bits = random.bits();
            let word = bits as i32 >> (bits >> 59);
            assert_nearest(word, divisor, value_of(word, divisor as f32));
        }
        for word in [i32::MIN + 1, -1, 1, 3, i32::MAX - 1] {
            assert_nearest(word, divisor, value_of(word, divisor as f32));
        }
    }
}

#[test]
#[should_panic(expected = "is not nearest")]
fn the_check_of_nearest_finds_the_next_float() {
    assert_nearest(12_345_678, 3, value_of(12_345_678, 3.0).next_up());
}

#[test]
fn what_has_left_32_bits_never_comes_back() {
    for extreme in EXTREMES {
        for other in [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX] {
            let (mut left, mut right) = ([extreme], [other]);
            add(&other.to_be_bytes(), &mut left);
            add(&extreme.to_be_bytes(), &mut right);
            assert!(is_saturated(&left) && is_saturated(&right), "{extreme} and {other}");
        }
    }
    let mut slot = [i32::MAX - 1];
    add(&1i32.to_be_bytes(), &mut slot);
    add(&(-5i32).to_be_bytes(), &mut slot);
    assert_eq!(slot, [i32::MAX]);
    assert!(!is_saturated(&[i32::MIN + 1, 0, i32::MAX - 1]) && !is_saturated(&[]));
}

#[test]
fn sums_in_range_are_exact_and_come_back() {
    let mut slot = [0; 3];
    overwrite(&[0, 0, 0, 5, 255, 255, 255, 255, 0, 0, 0, 0], &mut slot);
    add(&[0, 0, 0, 7, 0, 0, 0, 1, 5, 245, 225, 0], &mut slot);
    assert_eq!(slot, [12, 0, 100_000_000]);
    let (mut payload, mut values) = ([0; 12], [0.0; 3]);
    emit(&slot, &mut payload);
    dequantize_f32(&payload, 2.0, &mut values);
    assert_eq!(values, [6e-8, 0.0, 0.5]);
}

#[test]
fn floats_pass_as_they_are() {
    let values = [1.5f32, -0.0, f32::INFINITY, f32::MIN_POSITIVE / 2.0, 1e30];
    let (mut payload, mut back) = ([0; 20], [0.0; 5]);
    float_wire::write_f32(&values, &mut payload);
    assert_eq!(payload[..4], [0x3f, 0xc0, 0, 0]);
    float_wire::read_f32(&payload, 1.0, &mut back);
    assert_eq!(back.map(f32::to_bits), values.map(f32::to_bits));
    float_wire::read_f32(&payload, 3.0, &mut back);
    assert_eq!(back.map(f32::to_bits), values.map(|value| (value / 3.0).to_bits()));
}

proptest! {
    /// 16-bit tensors are the f32 tensors of their values, narrowed once at the end.
    #[test]
    fn sixteen_bits_agree_with_f32(
        bits in proptest::collection::vec(any::<u16>(), 1..40),
        divisor in prop_oneof![Just(1.0f32), Just(3.0), Just(256.0)],
    ) {
        let check = |widen: fn(u16) -> f32, narrow: fn(f32) -> u16, out: Write<u16>, back: Read<u16>| {
            for (out, back, out_f32, back_f32) in [
                (out.0, back.0, static_fixed::quantize_f32 as fn(&[f32], &mut [u8]), static_fixed::dequantize_f32 as fn(&[u8], f32, &mut [f32])),
                (out.1, back.1, float_wire::write_f32, float_wire::read_f32),
            ] {
                let wide: Vec<f32> = bits.iter().map(|x| widen(*x)).collect();
                let (mut payload, mut expected) = (vec![0; 4 * bits.len()], vec![0; 4 * bits.len()]);
                out(&bits, &mut payload);
                out_f32(&wide, &mut expected);
                assert_eq!(payload, expected);
                let (mut narrow_out, mut wide_out) = (vec![0; bits.len()], vec![0.0; bits.len()]);
                back(&payload, divisor, &mut narrow_out);
                back_f32(&payload, divisor, &mut wide_out);
                assert_eq!(narrow_out, wide_out.into_iter().map(narrow).collect::<Vec<_>>());
            }
        };
        check(float16::f16_to_f32, float16::f32_to_f16,
            (quantize_f16, float_wire::write_f16), (dequantize_f16, float_wire::read_f16));
        check(float16::bf16_to_f32, float16::f32_to_bf16,
            (quantize_bf16, float_wire::write_bf16), (dequantize_bf16, float_wire::read_bf16));
    }

    /// Sums in range do not depend on the order, and lie within half a unit for each worker of the exact one.
    #[test]
    fn the_error_is_bounded(values in proptest::collection::vec(-0.08f32..0.08, 1..=256)) {
        let mut orders = [values.clone(), values.iter().rev().copied().collect()];
        let sums = orders.each_mut().map(|order| {
            let mut slot = [0];
            let mut payload = [0; 4];
            for value in order {
                quantize_f32(&[*value], &mut payload);
                add(&payload, &mut slot);
            }
            slot[0]
        });
        prop_assert_eq!(sums[0], sums[1]);
        let exact: f64 = values.iter().map(|value| f64::from(*value)).sum();
        let bound = (values.len() as f64 / 2.0 + 0.001) * 1e-8;
        prop_assert!((f64::from(sums[0]) * 1e-8 - exact).abs() <= bound);
    }
}

/// Fixed point and floats as they are.
type Write<T> = (fn(&[T], &mut [u8]), fn(&[T], &mut [u8]));
type Read<T> = (fn(&[u8], f32, &mut [T]), fn(&[u8], f32, &mut [T]));

/// Where a sum may saturate, the order decides whether it does.
#[test]
fn the_order_matters_only_where_a_sum_may_saturate() {
    let sum = |values: [f32; 3]| {
        let (mut slot, mut payload) = ([0], [0; 4]);
        for (index, value) in values.into_iter().enumerate() {
            static_fixed::quantize_f32(&[value], &mut payload);
            if index == 0 {
                static_fixed::overwrite(&payload, &mut slot)
            } else {
                static_fixed::add(&payload, &mut slot)
            }
        }
        static_fixed::count_saturated(&slot)
    };
    assert_eq!((sum([20.0, 20.0, -20.0]), sum([20.0, -20.0, 20.0])), (1, 0));
    let promised = |largest| static_fixed::certify(&Contributions::bounded(3, largest));
    assert!(!promised(20.0).order_independent && promised(20.0).absolute_error.is_infinite());
    assert!(promised(7.0).order_independent && promised(7.0).absolute_error < 1e-6);
}
