//! Floats as they lie in the memory of a little-endian machine: what workers send where the switch adds floats itself.
//!
//! Out, nothing happens to a value. Back, a mean divides each sum once; a 16-bit mean rounds once more, half to even.
//!
//! # Panics
//! Every function panics when its slices' lengths do not belong together.

use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::{check_length, simd as kernel};

/// Writes each f32 as it is, little-endian.
#[inline]
pub fn write_f32(values: &[f32], payload: &mut [u8]) {
    check_length(payload, 4, values.len());
    kernel::write_raw_f32(values, payload);
}

/// Writes each f16 or bf16 (its bits) as it is, little-endian.
#[inline]
pub fn write_16(values: &[u16], payload: &mut [u8]) {
    check_length(payload, 2, values.len());
    kernel::write_raw_16(values, payload);
}

macro_rules! raw_wire_format {
    ($name:literal, $type:ty, $width:literal, $read:ident = $kernel:ident, $divide:expr) => {
        #[doc = concat!("Reads sums of ", $name, ": `sum / divisor`. Returns whether all sums are finite.")]
        #[inline]
        pub fn $read(payload: &[u8], divisor: f32, out: &mut [$type]) -> bool {
            check_length(payload, $width, out.len());
            let all_finite = kernel::$kernel(payload, out);
            if divisor != 1.0 {
                out.iter_mut().for_each(|value| *value = $divide(*value, divisor));
            }
            all_finite
        }
    };
}

raw_wire_format!("f32", f32, 4, read_f32 = read_raw_f32, |sum: f32, divisor| sum / divisor);
raw_wire_format!("f16 (its bits)", u16, 2, read_f16 = read_raw_f16, |sum, divisor| f32_to_f16(
    f16_to_f32(sum) / divisor
));
raw_wire_format!("bf16 (its bits)", u16, 2, read_bf16 = read_raw_bf16, |sum, divisor| f32_to_bf16(
    bf16_to_f32(sum) / divisor
));
