//! Floats as they are: big-endian binary32, four bytes for each element.
//!
//! ATP's workers send them when a fixed-point sum has left 32 bits ([`static_fixed`](crate::static_fixed), ATP §3.8).
//! Whoever adds them decides in which order, and so what the sum is; nothing here rounds but the way back.

use crate::{check_length, simd as kernel};

macro_rules! float_wire_format {
    ($name:literal, $bits:ty, $write:ident = $write_kernel:ident, $read:ident = $read_kernel:ident) => {
        #[doc = concat!("Writes each ", $name, " as a big-endian f32, which holds it exactly; a signalling NaN may")]
        /// become quiet.
        ///
        /// # Panics
        /// When `payload` is not four bytes per value.
        #[inline]
        pub fn $write(values: &[$bits], payload: &mut [u8]) {
            check_length(payload, 4, values.len());
            kernel::$write_kernel(values, payload);
        }

        #[doc = concat!("Reads big-endian f32 sums back as ", $name, ": `sum / divisor`.")]
        ///
        /// A `divisor` other than 1 (the number of workers for a mean) and a 16-bit output round once each, half to even.
        ///
        /// # Panics
        /// When `payload` is not four bytes per value of `out`.
        #[inline]
        pub fn $read(payload: &[u8], divisor: f32, out: &mut [$bits]) {
            check_length(payload, 4, out.len());
            kernel::$read_kernel(payload, divisor, out);
        }
    };
}

float_wire_format!("f32", f32, write_f32 = write_plain_f32, read_f32 = read_plain_f32);
float_wire_format!("f16 (its bits)", u16, write_f16 = write_plain_f16, read_f16 = read_plain_f16);
float_wire_format!("bf16 (its bits)", u16, write_bf16 = write_plain_bf16, read_bf16 = read_plain_bf16);

/// Whether all of the big-endian f32 sums of a payload are finite.
#[inline]
pub fn is_finite(payload: &[u8]) -> bool {
    payload.as_chunks().0.iter().all(|bytes| f32::from_be_bytes(*bytes).is_finite())
}
