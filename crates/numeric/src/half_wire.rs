//! The Float16 element format: scaled binary16 on the wire, half the bytes of [`block_fixed`](crate::block_fixed)
//! (SwitchML §4.6's restricted 16-bit floats, measured in §6.3).
//!
//! Each worker scales its block by `f = 2^(6 - ceil(log2 n) - m)` and rounds to f16 once, so that `|x * f| <= 2^6 / n`
//! and the sum of `n` stays within `|sum| <= 2^6`. The switch reads each f16 exactly as an integer count of 2^-24
//! (f16 subnormals are multiples of it), adds these as i32 — the sum is at most 2^30 of 2^31 — and rounds once to f16,
//! half to even, on the way out. 2^6 is the most that i32 leaves room for; the higher the block sits in f16, the farther
//! down a small value keeps all its 11 bits. SwitchML's own version had to give up half the range of f16.
//!
//! What this gives, for finite inputs and an exponent that covers them:
//!
//! * No sum leaves i32, and the sum does not depend on the order of the additions.
//! * `|sum / f - exact sum| <= sum of |x| * 2^-11 + n * 2^-25 / f + |sum / f| * 2^-11` plus the rounding of the output:
//!   one f16 rounding per worker (relative 2^-11, or half a 2^-24 in the scaled subnormals) and one at the switch.

use crate::exponent::{ceil_log2, fold_divisor};
use crate::{BlockExponent, check_length, simd as kernel};

pub use crate::block_fixed::{exponent_bf16, exponent_f16, exponent_f32};
pub use crate::block_fixed::{fill_nan_bf16, fill_nan_f16, fill_nan_f32};

/// Log2 of the largest sum of a block after scaling.
const SUM_MAX_LOG2: i32 = 6;

/// The power of two `f` for a block with the agreed `exponent` among `worker_count` workers; NaN when the exponent is
/// above [`BlockExponent::MAX`]. Next to f32's largest number `f` is subnormal, still exact.
pub fn scale(exponent: BlockExponent, worker_count: u16) -> f32 {
    exponent.to_scale(SUM_MAX_LOG2 - ceil_log2(worker_count)).unwrap_or(f32::NAN)
}

/// `1 / f` as two factors, since for a subnormal `f` it is more than f32 holds. The order matters: the first step
/// takes f16 numbers (2^-24 to 2^16) to where neither it nor the second can underflow, so both are exact.
fn inverse_factors(f: f32) -> [f32; 2] {
    const FIRST: f32 = 65_536.0;
    [FIRST, (1.0 / FIRST) / f]
}

macro_rules! half_wire_format {
    ($name:literal, $bits:ty, $fill_nan:ident,
     $quantize:ident = $to_half:ident, $dequantize:ident = $from_half:ident) => {
        #[doc = concat!("Writes each ", $name, " times `f`, rounded once half to even, as a big-endian f16.")]
        ///
        /// `f` is [`scale`]'s. A non-finite `f` writes zeros. A value that breaks the agreed exponent may overflow at
        /// the switch, which then adds `i32::MIN` units for it.
        ///
        /// # Panics
        /// When `payload` is not two bytes per value.
        #[inline]
        pub fn $quantize(values: &[$bits], f: f32, payload: &mut [u8]) {
            check_length(payload, 2, values.len());
            if f.is_finite() { kernel::$to_half(values, f, payload) } else { payload.fill(0) }
        }

        #[doc = concat!("Reads the summed f16 numbers back as ", $name, ": `sum / f / divisor`.")]
        ///
        /// Undoing the scale is exact in f32 (or infinite where f32 ends); a `divisor` other than 1 (AVG) and a 16-bit
        /// output round once each, half to even. A non-finite `f` makes the whole block NaN.
        ///
        /// # Panics
        /// When `payload` is not two bytes per value of `out`.
        #[inline]
        pub fn $dequantize(payload: &[u8], f: f32, divisor: f32, out: &mut [$bits]) {
            check_length(payload, 2, out.len());
            if !f.is_finite() {
                return $fill_nan(out);
            }
            let [first, second] = inverse_factors(f);
            let (second, divisor) = fold_divisor(second, divisor);
            kernel::$from_half(payload, [first, second], divisor, out)
        }
    };
}

half_wire_format!("f32", f32, fill_nan_f32, quantize_f32 = quantize_half_f32, dequantize_f32 = dequantize_half_f32);
half_wire_format!(
    "f16 (its bits)",
    u16,
    fill_nan_f16,
    quantize_f16 = quantize_half_f16,
    dequantize_f16 = dequantize_half_f16
);
half_wire_format!(
    "bf16 (its bits)",
    u16,
    fill_nan_bf16,
    quantize_bf16 = quantize_half_bf16,
    dequantize_bf16 = dequantize_half_bf16
);
