//! Native float addition in order of arrival, as a switch with floating-point adders does it (PANAMA §4).
//!
//! A slot is f32 for every format; each addition rounds half to even, and a 16-bit result rounds once more when it is
//! emitted. A sum that is not a number is emitted as the canonical NaN.
//!
//! * The order matters.
//! * Error: `|result - exact| <= (n-1)u / (1 - (n-1)u) * sum of |x|`, with `u = 2^-24` (Higham, Accuracy and Stability of Numerical
//!   Algorithms, 2002, §4.2), plus the rounding to 16 bits. Additions of subnormals are exact, so it holds down to zero.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use crate::certificate::{Certificate, Contributions, floor_log2, pow2};
use crate::register_pair::FloatFormat;
use crate::{check_length, simd as kernel};

macro_rules! ieee_format {
    ($name:literal, $width:literal, $overwrite:ident = $overwrite_kernel:ident, $add:ident = $add_kernel:ident,
     $add_and_emit:ident = $add_and_emit_kernel:ident, $emit:ident = $emit_kernel:ident) => {
        #[doc = concat!("`slot = payload` of big-endian ", $name, ": the first contribution.")]
        pub fn $overwrite(payload: &[u8], slot: &mut [f32]) {
            check_length(payload, $width, slot.len());
            kernel::$overwrite_kernel(payload, slot);
        }

        #[doc = concat!("`slot += payload` of big-endian ", $name, ".")]
        pub fn $add(payload: &[u8], slot: &mut [f32]) {
            check_length(payload, $width, slot.len());
            kernel::$add_kernel(payload, slot);
        }

        #[doc = concat!("[`", stringify!($add), "`], which also writes the slot to `out` as [`", stringify!($emit), "`] does.")]
        pub fn $add_and_emit(payload: &[u8], slot: &mut [f32], out: &mut [u8]) {
            check_length(payload, $width, slot.len());
            check_length(out, $width, slot.len());
            kernel::$add_and_emit_kernel(payload, slot, out);
        }

        #[doc = concat!("Writes the slot as big-endian ", $name, "; NaN becomes the canonical one.")]
        pub fn $emit(slot: &[f32], payload: &mut [u8]) {
            check_length(payload, $width, slot.len());
            kernel::$emit_kernel(slot, payload);
        }
    };
}

ieee_format!(
    "f32",
    4,
    overwrite_f32 = ieee_overwrite_f32,
    add_f32 = ieee_add_f32,
    add_and_emit_f32 = ieee_add_and_emit_f32,
    emit_f32 = ieee_emit_f32
);
ieee_format!(
    "f16",
    2,
    overwrite_f16 = ieee_overwrite_f16,
    add_f16 = ieee_add_f16,
    add_and_emit_f16 = ieee_add_and_emit_f16,
    emit_f16 = ieee_emit_f16
);
ieee_format!(
    "bf16",
    2,
    overwrite_bf16 = ieee_overwrite_bf16,
    add_bf16 = ieee_add_bf16,
    add_and_emit_bf16 = ieee_add_and_emit_bf16,
    emit_bf16 = ieee_emit_bf16
);

/// [`overwrite_f32`] of little-endian f32, as raw floats travel.
pub fn overwrite_f32_le(payload: &[u8], slot: &mut [f32]) {
    check_length(payload, 4, slot.len());
    kernel::raw_overwrite_f32(payload, slot);
}

/// [`add_f32`] of little-endian f32.
pub fn add_f32_le(payload: &[u8], slot: &mut [f32]) {
    check_length(payload, 4, slot.len());
    kernel::raw_add_f32(payload, slot);
}

/// [`add_f32_le`], which also writes the slot to `out` as [`emit_f32_le`] does.
pub fn add_and_emit_f32_le(payload: &[u8], slot: &mut [f32], out: &mut [u8]) {
    check_length(payload, 4, slot.len());
    check_length(out, 4, slot.len());
    kernel::raw_add_and_emit_f32(payload, slot, out);
}

/// [`emit_f32`] as little-endian f32.
pub fn emit_f32_le(slot: &[f32], payload: &mut [u8]) {
    check_length(payload, 4, slot.len());
    kernel::raw_emit_f32(slot, payload);
}

/// What the sum of these contributions promises; nothing where it may leave the format's range.
pub fn certify(format: FloatFormat, contributions: &Contributions) -> Certificate {
    let steps = f64::from(contributions.worker_count.saturating_sub(1)) * pow2(-24);
    let added = steps / (1.0 - steps) * contributions.magnitude_sum;
    let exponent = floor_log2(contributions.magnitude_sum + added);
    let read_out = match format {
        FloatFormat::Float32 => 0.0,
        _ => pow2(exponent.max(1 - format.bias()) - format.precision() as i32),
    };
    let absolute_error = if exponent >= format.bias() || steps >= 1.0 { f64::INFINITY } else { added + read_out };
    Certificate { order_independent: false, absolute_error, source: "Higham 2002, section 4.2" }
}
