//! The Int8 element format: scaled 8-bit integers on the wire, a quarter of the bytes of
//! [`block_fixed`](crate::block_fixed).
//!
//! Each worker sends `q = round_half_even(x * f)` with `f = 2^(7 - m)`, clamped to -127..=127. The switch adds these as
//! i32, exactly, and answers with `r = round_half_even(sum / 2^k)`, where `k` is the smallest shift for which the whole
//! block fits in -127..=127 ([`accumulate::byte::shift`](crate::accumulate::byte::shift)). `k` travels with the answer,
//! and the worker reads `r * 2^k / f`. Where SwitchML (§4.6) agrees on one exponent for the way out and back, the sum
//! here has its own: gradients of different workers cancel, and most sums need less room than the worst case.
//!
//! What this gives, for finite inputs and an exponent that covers them, with a step `s = 1 / f`, which is at most 1/64
//! of the block's largest magnitude (of 2^-96 for smaller blocks, whose exponent is [`BlockExponent::MIN`]):
//!
//! * The sum of the `q` is exact, does not depend on the order, and `k <= ceil(log2 n)`.
//! * A worker's error is at most `s / 2`, but less than `s` where `|x * f|` is above 127.5 and is clamped.
//! * The switch's error is at most `2^k * s / 2`.
//! * So `|result - exact sum| <= (n + 2^k) / 2 * s` without clamped values; the result is exact in f32 before a divisor
//!   and a 16-bit output round once each.

use crate::exponent::{fold_divisor, power_of_two};
use crate::{BlockExponent, check_length, simd as kernel};

pub use crate::block_fixed::{exponent_bf16, exponent_f16, exponent_f32};
pub use crate::block_fixed::{fill_nan_bf16, fill_nan_f16, fill_nan_f32};

/// Log2 of a value's bound after scaling.
const VALUE_MAX_LOG2: i32 = 7;

/// The power of two `f` for a block with the agreed `exponent`; NaN when the exponent is above [`BlockExponent::MAX`].
/// Both `f` and `1/f` are normal f32 numbers. The number of workers does not matter: the switch's shift makes room.
pub fn scale(exponent: BlockExponent) -> f32 {
    exponent.to_scale(VALUE_MAX_LOG2).unwrap_or(f32::NAN)
}

macro_rules! byte_wire_format {
    ($name:literal, $bits:ty, $fill_nan:ident,
     $quantize:ident = $to_byte:ident, $dequantize:ident = $from_byte:ident) => {
        #[doc = concat!("Writes `round_half_even(x * f)` of each ", $name, ", clamped to -127..=127, as one byte.")]
        ///
        /// `f` is [`scale`]'s. A non-finite `f` writes zeros; a NaN that breaks the agreed exponent writes -127.
        ///
        /// # Panics
        /// When `payload` is not one byte per value.
        #[inline]
        pub fn $quantize(values: &[$bits], f: f32, payload: &mut [u8]) {
            check_length(payload, 1, values.len());
            if f.is_finite() { kernel::$to_byte(values, f, payload) } else { payload.fill(0) }
        }

        #[doc = concat!("Reads the answer's bytes back as ", $name, ": `r * 2^shift / f / divisor`.")]
        ///
        /// `shift`, below 64, is the answer's. Scaling is exact in f32 (or infinite where f32 ends); a `divisor` other
        /// than 1 (AVG) and a 16-bit output round once each, half to even. A non-finite `f` makes the block NaN.
        ///
        /// # Panics
        /// When `payload` is not one byte per value of `out`, or `shift` is 64 or more.
        #[inline]
        pub fn $dequantize(payload: &[u8], f: f32, shift: u8, divisor: f32, out: &mut [$bits]) {
            check_length(payload, 1, out.len());
            assert!(shift < 64, "shift {shift}: check what comes from the network first");
            if !f.is_finite() {
                return $fill_nan(out);
            }
            let (inverse, divisor) = fold_divisor(1.0 / f, divisor);
            // Two factors: next to f32's largest number their product is more than f32 holds, though the sum is not.
            kernel::$from_byte(payload, [power_of_two(shift.into()), inverse], divisor, out)
        }
    };
}

byte_wire_format!("f32", f32, fill_nan_f32, quantize_f32 = quantize_byte_f32, dequantize_f32 = dequantize_byte_f32);
byte_wire_format!(
    "f16 (its bits)",
    u16,
    fill_nan_f16,
    quantize_f16 = quantize_byte_f16,
    dequantize_f16 = dequantize_byte_f16
);
byte_wire_format!(
    "bf16 (its bits)",
    u16,
    fill_nan_bf16,
    quantize_bf16 = quantize_byte_bf16,
    dequantize_bf16 = dequantize_byte_bf16
);
