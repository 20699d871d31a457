//! Both sides of the Int8 and the Bfloat16 element format.

use super::scaled::divide;
use super::{make_exact_in_f32, round_half_even, round_to_i32};
use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Largest magnitude that a byte carries; -128 would have no opposite.
const BYTE_MAX: i32 = 127;
/// From here on bf16 numbers are whole.
const BFLOAT_WHOLE_FROM: f32 = 128.0;

macro_rules! worker_kernels {
    ($bits:ty, $to_f32:expr, $from_f32:expr,
     $quantize_byte:ident, $dequantize_byte:ident, $quantize_bfloat:ident, $dequantize_bfloat:ident) => {
        pub(crate) fn $quantize_byte(values: &[$bits], f: f32, payload: &mut [u8]) {
            for (x, byte) in values.iter().zip(payload) {
                *byte = round_to_i32($to_f32(*x) * f).clamp(-BYTE_MAX, BYTE_MAX) as u8;
            }
        }

        pub(crate) fn $dequantize_byte(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [$bits]) {
            for (byte, out) in payload.iter().zip(out) {
                let sum = f32::from(*byte as i8) * inverse[0] * inverse[1];
                *out = $from_f32(divide(sum, divisor));
            }
        }

        pub(crate) fn $quantize_bfloat(values: &[$bits], f: f32, payload: &mut [u8]) {
            for (x, bytes) in values.iter().zip(payload.chunks_exact_mut(2)) {
                bytes.copy_from_slice(&whole_bfloat($to_f32(*x) * f).to_be_bytes());
            }
        }

        pub(crate) fn $dequantize_bfloat(payload: &[u8], inverse: f32, divisor: f32, out: &mut [$bits]) {
            for (bytes, out) in payload.chunks_exact(2).zip(out) {
                let sum = bf16_to_f32(u16::from_be_bytes([bytes[0], bytes[1]]));
                *out = $from_f32(divide(sum * inverse, divisor));
            }
        }
    };
}

worker_kernels!(
    f32,
    core::convert::identity,
    core::convert::identity,
    quantize_byte_f32,
    dequantize_byte_f32,
    quantize_bfloat_f32,
    dequantize_bfloat_f32
);
worker_kernels!(
    u16,
    f16_to_f32,
    f32_to_f16,
    quantize_byte_f16,
    dequantize_byte_f16,
    quantize_bfloat_f16,
    dequantize_bfloat_f16
);
worker_kernels!(
    u16,
    bf16_to_f32,
    f32_to_bf16,
    quantize_byte_bf16,
    dequantize_byte_bf16,
    quantize_bfloat_bf16,
    dequantize_bfloat_bf16
);

/// The whole bf16 number nearest to `value`, half to even. Rounding to a whole number first would round larger values
/// twice.
fn whole_bfloat(value: f32) -> u16 {
    let is_small = value.abs() < BFLOAT_WHOLE_FROM;
    f32_to_bf16(if is_small { round_half_even(value) } else { value })
}

fn byte(bytes: &[u8]) -> i32 {
    i32::from(bytes[0] as i8)
}

fn bfloat_units(bytes: &[u8]) -> i32 {
    round_to_i32(bf16_to_f32(u16::from_be_bytes([bytes[0], bytes[1]])))
}

macro_rules! verb {
    ($name:ident, $width:literal, $get:ident, $combine:expr) => {
        pub(crate) fn $name(payload: &[u8], slot: &mut [i32]) {
            for (bytes, sum) in payload.chunks_exact($width).zip(slot) {
                *sum = $combine(*sum, $get(bytes));
            }
        }
    };
}

verb!(overwrite_byte, 1, byte, |_, new| new);
verb!(add_byte, 1, byte, i32::wrapping_add);
verb!(overwrite_bfloat, 2, bfloat_units, |_, new| new);
verb!(add_bfloat, 2, bfloat_units, i32::wrapping_add);

/// Largest magnitude of a slot; `i32::MIN`, which has none in i32, is passed over.
pub(crate) fn magnitude_i32(slot: &[i32]) -> i32 {
    slot.iter().map(|sum| sum.wrapping_abs()).max().unwrap_or(0).max(0)
}

/// `unit` is `2^-shift`.
pub(crate) fn emit_byte(slot: &[i32], unit: f32, payload: &mut [u8]) {
    for (sum, byte) in slot.iter().zip(payload) {
        *byte = round_to_i32(*sum as f32 * unit).clamp(-BYTE_MAX, BYTE_MAX) as u8;
    }
}

pub(crate) fn emit_bfloat(slot: &[i32], payload: &mut [u8]) {
    for (sum, bytes) in slot.iter().zip(payload.chunks_exact_mut(2)) {
        bytes.copy_from_slice(&f32_to_bf16(make_exact_in_f32(*sum) as f32).to_be_bytes());
    }
}
