//! ATP's numbers: words count 10^-8, and the two outermost ones mean "left 32 bits" (ATP §3.8).

use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::static_fixed::SCALE;

macro_rules! worker_kernels {
    ($bits:ty, $to_f32:expr, $from_f32:expr, $quantize:ident, $dequantize:ident) => {
        pub(crate) fn $quantize(values: &[$bits], payload: &mut [u8]) {
            for (x, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
                word.copy_from_slice(&to_units($to_f32(*x)).to_be_bytes());
            }
        }

        /// `inverse` is one over the scale and the divisor.
        pub(crate) fn $dequantize(payload: &[u8], inverse: f64, out: &mut [$bits]) {
            for (word, out) in payload.chunks_exact(4).zip(out) {
                let sum = i32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                *out = $from_f32((f64::from(sum) * inverse) as f32);
            }
        }
    };
}

worker_kernels!(f32, core::convert::identity, core::convert::identity, quantize_units_f32, dequantize_units_f32);
worker_kernels!(u16, f16_to_f32, f32_to_f16, quantize_units_f16, dequantize_units_f16);
worker_kernels!(u16, bf16_to_f32, f32_to_bf16, quantize_units_bf16, dequantize_units_bf16);

/// The product is exact in f64: 24 significant bits times 19.
fn to_units(value: f32) -> i32 {
    // Adding this leaves no fraction bits in f64, so the addition itself rounds half to even.
    const INTEGERS_ONLY: f64 = 6_755_399_441_055_744.0;
    let scaled = f64::from(value) * SCALE;
    if scaled.is_nan() {
        return i32::MIN;
    }
    let bounded = scaled.clamp(f64::from(i32::MIN), f64::from(i32::MAX));
    ((bounded + INTEGERS_ONLY) - INTEGERS_ONLY) as i32
}

pub(crate) fn add_units(payload: &[u8], slot: &mut [i32]) {
    for (word, sum) in payload.chunks_exact(4).zip(slot) {
        *sum = add_sticky(*sum, i32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
}

/// Both are whole counts; either may be an extreme, which stays.
fn add_sticky(sum: i32, units: i32) -> i32 {
    if is_extreme(sum) {
        sum
    } else if is_extreme(units) {
        units
    } else {
        sum.saturating_add(units)
    }
}

pub(crate) fn has_extreme(slot: &[i32]) -> bool {
    slot.iter().any(|sum| is_extreme(*sum))
}

fn is_extreme(units: i32) -> bool {
    units == i32::MIN || units == i32::MAX
}
