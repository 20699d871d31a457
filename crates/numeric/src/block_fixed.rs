//! Block fixed point: SwitchML §4.6 and Appendix E on 32-bit big-endian words.
//!
//! All `n` workers agree on the exponent `m` of a block (`|x| < 2^m` for every value of every worker). Each then sends
//! `q = round_half_even(x * f)` with `f = 2^(31 - L - m)`, the switch adds the integers, and each worker reads
//! `sum / f`. `L` is the room that the sum needs: `ceil(log2 n)` bits, and one more from 256 workers on, where `q` has
//! fewer than 24 bits and may round up to `2^(31-L)` itself.
//!
//! What this gives, for finite inputs and an exponent that covers them:
//!
//! * No sum of the `n` words leaves i32 (Assumption 2 of Appendix E holds by construction).
//! * `|sum / f - exact sum| <= n / (2 f)`, half of Theorem 1's `n / f` because rounding is to nearest, before the
//!   result is rounded once to f32 (relative 2^-24), and once more for a divisor and for a 16-bit output.
//! * The result does not depend on the order of the additions.
//!
//! When the agreed exponent is [`BlockExponent::NON_FINITE`] (or another one above [`BlockExponent::MAX`]), [`scale`]
//! is NaN; quantising with it sends zeros and dequantising with it makes the whole block NaN, with no case to write.

use crate::certificate::{Certificate, Contributions, floor_log2, pow2};
use crate::exponent::{ceil_log2, fold_divisor};
use crate::{BlockExponent, check_length, simd as kernel};

/// The exponent of a block of f32 values: `floor(log2 h) + 1` for the largest magnitude `h`, at least
/// [`BlockExponent::MIN`]; [`BlockExponent::NON_FINITE`] as soon as one value is infinite or NaN.
pub fn exponent_f32(values: &[f32]) -> BlockExponent {
    BlockExponent::of_magnitude_bits(kernel::magnitude_bits_f32(values))
}

/// The exponent of a block of f16 values (their bits), as [`exponent_f32`] of the widened values.
pub fn exponent_f16(values: &[u16]) -> BlockExponent {
    let largest = crate::float16::f16_to_f32(kernel::magnitude_bits_16(values));
    BlockExponent::of_magnitude_bits(largest.to_bits())
}

/// The exponent of a block of bf16 values (their bits), as [`exponent_f32`] of the widened values.
pub fn exponent_bf16(values: &[u16]) -> BlockExponent {
    BlockExponent::of_magnitude_bits(u32::from(kernel::magnitude_bits_16(values)) << 16)
}

/// The power of two `f` for a block with the agreed `exponent` among `worker_count` workers; NaN when the exponent is
/// above [`BlockExponent::MAX`]. Both `f` and `1/f` are normal f32 numbers, so scaling by them is exact.
pub fn scale(exponent: BlockExponent, worker_count: u16) -> f32 {
    exponent.to_scale(31 - headroom_bits(worker_count)).unwrap_or(f32::NAN)
}

/// What the sum of these contributions promises, in a block whose largest magnitude is `magnitude_max`: half a step for each
/// value (Appendix E, Theorem 1, with rounding to nearest), and the rounding to f32.
pub fn certify(contributions: &Contributions) -> Certificate {
    let worker_count = contributions.worker_count.min(256) as u16;
    let exponent = BlockExponent::of_magnitude_bits((contributions.magnitude_max as f32).to_bits());
    let steps = f64::from(contributions.worker_count) / (2.0 * f64::from(scale(exponent, worker_count)));
    let read_out = pow2(floor_log2(contributions.magnitude_sum + steps) - 24);
    Certificate { order_independent: true, absolute_error: steps + read_out, source: "SwitchML, Appendix E" }
}

/// Bits that the sum of `worker_count` rounded words needs above one word.
fn headroom_bits(worker_count: u16) -> i32 {
    // f32 has 24 significant bits: up to 7 bits of headroom x * f is an integer below 2^(31-L), nothing rounds up.
    // With fewer bits left, n words of exactly 2^(31-L) would reach 2^31 when n is 2^L.
    let bits = ceil_log2(worker_count);
    if bits >= 8 && worker_count.is_power_of_two() { bits + 1 } else { bits }
}

/// Fills a block with NaN: what a block becomes whose agreed exponent is [`BlockExponent::NON_FINITE`].
pub fn fill_nan_f32(out: &mut [f32]) {
    out.fill(f32::NAN);
}

/// Fills a block of f16 bits with NaN, see [`fill_nan_f32`].
pub fn fill_nan_f16(out: &mut [u16]) {
    out.fill(0x7e00);
}

/// Fills a block of bf16 bits with NaN, see [`fill_nan_f32`].
pub fn fill_nan_bf16(out: &mut [u16]) {
    out.fill(0x7fc0);
}

macro_rules! block_fixed_format {
    ($name:literal, $bits:ty, $fill_nan:ident, $quantize:ident, $dequantize:ident) => {
        #[doc = concat!("Writes `round_half_even(x * f)` of each ", $name, " as a big-endian i32.")]
        ///
        /// `f` is [`scale`]'s. A non-finite `f` writes zeros; a value that breaks the agreed exponent writes `i32::MIN`.
        ///
        /// # Panics
        /// When `payload` is not four bytes per value.
        #[inline]
        pub fn $quantize(values: &[$bits], f: f32, payload: &mut [u8]) {
            check_length(payload, 4, values.len());
            if f.is_finite() { kernel::$quantize(values, f, payload) } else { payload.fill(0) }
        }

        #[doc = concat!("Reads the summed words back as ", $name, ": `sum / f / divisor`.")]
        ///
        /// The sum rounds to f32 once, `1 / f` scales exactly, a `divisor` other than 1 (AVG) and a 16-bit output
        /// round once more each, all half to even. A non-finite `f` makes the whole block NaN.
        ///
        /// # Panics
        /// When `payload` is not four bytes per value of `out`.
        #[inline]
        pub fn $dequantize(payload: &[u8], f: f32, divisor: f32, out: &mut [$bits]) {
            check_length(payload, 4, out.len());
            if !f.is_finite() {
                return $fill_nan(out);
            }
            let (inverse, divisor) = fold_divisor(1.0 / f, divisor);
            kernel::$dequantize(payload, inverse, divisor, out)
        }
    };
}

block_fixed_format!("f32", f32, fill_nan_f32, quantize_f32, dequantize_f32);
block_fixed_format!("f16 (its bits)", u16, fill_nan_f16, quantize_f16, dequantize_f16);
block_fixed_format!("bf16 (its bits)", u16, fill_nan_bf16, quantize_bf16, dequantize_bf16);
