//! Products, logarithms and square roots by tables: every product, and the errors that the page states.

mod common;

use common::Random;
use fanin_numeric::float16::{bf16_to_f32, f32_to_bf16};
use fanin_numeric::table_math::{log2_f32, multiply_bf16, sqrt_f32};

/// Subnormals are zeros to the table.
fn flushed(bits: u16) -> f32 {
    if bits & 0x7f80 == 0 { bf16_to_f32(bits & 0x8000) } else { bf16_to_f32(bits) }
}

/// Whether the product, rounded as if exponents had no end, is below the least normal number.
fn rounds_below_normal(x: u16, y: u16) -> bool {
    let scaled = f64::from(flushed(x)) * f64::from(flushed(y)) * 2f64.powi(64);
    f64::from(bf16_to_f32(f32_to_bf16(scaled as f32))).abs() < 2f64.powi(64 - 126)
}

#[test]
fn products_are_rounded_once() {
    // All significands at exponents around one and at both ends, both signs and what is no number.
    let fields = [0u16, 1, 2, 63, 64, 126, 127, 128, 129, 190, 191, 192, 253, 254, 255];
    let operands: Vec<u16> =
        fields.iter().flat_map(|field| (0..128).map(move |fraction| (field << 7) | fraction)).collect();
    for x in operands.iter().step_by(3).flat_map(|bits| [*bits, bits | 0x8000]) {
        for y in &operands {
            // Two significands of 8 bits: f32 holds a normal product exactly.
            let exact = flushed(x) * flushed(*y);
            let expected = f32_to_bf16(exact);
            let found = multiply_bf16(x, *y);
            if exact.is_nan() {
                assert_eq!(found, 0x7fc0, "{x:#06x} * {y:#06x}");
            } else if exact.abs() < 1e-30 && rounds_below_normal(x, *y) {
                assert_eq!(found, expected & 0x8000, "{x:#06x} * {y:#06x}");
            } else {
                assert_eq!(found, expected, "{x:#06x} * {y:#06x}");
            }
        }
    }
}

#[test]
fn logarithms_and_roots_have_the_stated_errors() {
    let mut random = Random(61);
    let (mut log_error, mut root_error) = (0.0f64, 0.0f64);
    for _ in 0..300_000 {
        let x = f32::from_bits(0x0080_0000 + (random.bits() >> 32) as u32 % 0x7f00_0000);
        let exact = f64::from(x);
        log_error = log_error.max((f64::from(log2_f32(x)) - exact.log2()).abs());
        root_error = root_error.max((f64::from(sqrt_f32(x)) / exact.sqrt() - 1.0).abs());
        if exact.log2().abs() > 0.08 {
            assert!((f64::from(log2_f32(x)) / exact.log2() - 1.0).abs() < 0.01, "{x:e}");
        }
    }
    assert!((2f64.powf(-10.6)..2f64.powf(-10.4)).contains(&log_error), "2^{}", log_error.log2());
    assert!((2f64.powf(-12.1)..2f64.powi(-12)).contains(&root_error), "2^{}", root_error.log2());
}

#[test]
fn what_is_no_normal_number() {
    for function in [log2_f32 as fn(f32) -> f32, sqrt_f32] {
        assert_eq!(function(f32::INFINITY), f32::INFINITY);
        assert!(function(-1.0).is_nan() && function(f32::NEG_INFINITY).is_nan() && function(f32::NAN).is_nan());
    }
    assert_eq!([log2_f32(0.0), log2_f32(-0.0), log2_f32(1e-40)], [f32::NEG_INFINITY; 3]);
    assert_eq!([sqrt_f32(0.0), sqrt_f32(-0.0), sqrt_f32(1e-40)], [0.0; 3]);
}
