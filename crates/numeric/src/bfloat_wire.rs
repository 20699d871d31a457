//! The Bfloat16 element format: scaled bfloat16 on the wire, half the bytes of [`block_fixed`](crate::block_fixed)
//! (SwitchML §4.6's restricted 16-bit floats with the other 16-bit float).
//!
//! Each worker scales its block by `f = 2^(30 - ceil(log2 n) - m)`, so that 1 is the unit in which the switch adds and
//! `|x * f| <= 2^30 / n`, and rounds once: to 8 significant bits from 128 on, to a whole number below. bf16 holds both
//! exactly. The switch reads each one as that integer, adds them as i32 — the sum is at most 2^30 of 2^31 — and rounds
//! once to bf16, half to even, on the way out.
//!
//! The unit is the smallest that i32 leaves room for: values down to `2^(ceil(log2 n) - 23)` of the block's bound keep
//! all 8 bits, and below that the error is half a unit, `2^(ceil(log2 n) - 31)` of the bound.
//! [`half_wire`](crate::half_wire) has the same unit and 11 bits. So this format is for tensors of bf16, which lose
//! nothing to 8 bits, and for switches that read bf16 more cheaply.
//!
//! What this gives, for finite inputs and an exponent that covers them:
//!
//! * No sum leaves i32, and the sum does not depend on the order of the additions.
//! * `|sum / f - exact sum| <= sum of |x| * 2^-8 + n / (2 f) + |sum / f| * 2^-8`, and then the rounding of the output.

use crate::exponent::{ceil_log2, fold_divisor};
use crate::{BlockExponent, check_length, simd as kernel};

pub use crate::block_fixed::{exponent_bf16, exponent_f16, exponent_f32};
pub use crate::block_fixed::{fill_nan_bf16, fill_nan_f16, fill_nan_f32};

/// Log2 of the largest sum of a block after scaling.
const SUM_MAX_LOG2: i32 = 30;

/// The power of two `f` for a block with the agreed `exponent` among `worker_count` workers; NaN when the exponent is
/// above [`BlockExponent::MAX`]. Both `f` and `1/f` are normal f32 numbers.
pub fn scale(exponent: BlockExponent, worker_count: u16) -> f32 {
    exponent.to_scale(SUM_MAX_LOG2 - ceil_log2(worker_count)).unwrap_or(f32::NAN)
}

macro_rules! bfloat_wire_format {
    ($name:literal, $bits:ty, $fill_nan:ident,
     $quantize:ident = $to_bfloat:ident, $dequantize:ident = $from_bfloat:ident) => {
        #[doc = concat!("Writes each ", $name, " times `f`, rounded once half to even, as a big-endian bf16.")]
        ///
        /// `f` is [`scale`]'s. A non-finite `f` writes zeros. A value that breaks the agreed exponent may overflow at
        /// the switch, which then adds `i32::MIN` for it.
        ///
        /// # Panics
        /// When `payload` is not two bytes per value.
        #[inline]
        pub fn $quantize(values: &[$bits], f: f32, payload: &mut [u8]) {
            check_length(payload, 2, values.len());
            if f.is_finite() { kernel::$to_bfloat(values, f, payload) } else { payload.fill(0) }
        }

        #[doc = concat!("Reads the summed bf16 numbers back as ", $name, ": `sum / f / divisor`.")]
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
            let (inverse, divisor) = fold_divisor(1.0 / f, divisor);
            kernel::$from_bfloat(payload, inverse, divisor, out)
        }
    };
}

bfloat_wire_format!(
    "f32",
    f32,
    fill_nan_f32,
    quantize_f32 = quantize_bfloat_f32,
    dequantize_f32 = dequantize_bfloat_f32
);
bfloat_wire_format!(
    "f16 (its bits)",
    u16,
    fill_nan_f16,
    quantize_f16 = quantize_bfloat_f16,
    dequantize_f16 = dequantize_bfloat_f16
);
bfloat_wire_format!(
    "bf16 (its bits)",
    u16,
    fill_nan_bf16,
    quantize_bf16 = quantize_bfloat_bf16,
    dequantize_bf16 = dequantize_bfloat_bf16
);
