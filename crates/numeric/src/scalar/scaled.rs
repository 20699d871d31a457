//! Worker side: SwitchML Appendix E's `rho(f * x)` on the way out and `1/f * A` on the way back, for every pair of
//! memory format and wire format.

use super::round_to_i32;
use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Largest magnitude of the block as f32 bits, where infinities and NaN count as larger than any number.
pub(crate) fn magnitude_bits_f32(values: &[f32]) -> u32 {
    values.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0)
}

/// The same for either 16-bit float: both order like integers once the sign is gone.
pub(crate) fn magnitude_bits_16(values: &[u16]) -> u16 {
    values.iter().map(|x| x & 0x7fff).max().unwrap_or(0)
}

macro_rules! worker_kernels {
    ($bits:ty, $to_f32:expr, $from_f32:expr,
     $quantize_i32:ident, $dequantize_i32:ident, $quantize_half:ident, $dequantize_half:ident) => {
        pub(crate) fn $quantize_i32(values: &[$bits], f: f32, payload: &mut [u8]) {
            for (x, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
                word.copy_from_slice(&round_to_i32($to_f32(*x) * f).to_be_bytes());
            }
        }

        pub(crate) fn $dequantize_i32(payload: &[u8], inverse: f32, divisor: f32, out: &mut [$bits]) {
            for (word, out) in payload.chunks_exact(4).zip(out) {
                let sum = i32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                *out = $from_f32(divide(sum as f32 * inverse, divisor));
            }
        }

        pub(crate) fn $quantize_half(values: &[$bits], f: f32, payload: &mut [u8]) {
            for (x, half) in values.iter().zip(payload.chunks_exact_mut(2)) {
                half.copy_from_slice(&f32_to_f16($to_f32(*x) * f).to_be_bytes());
            }
        }

        pub(crate) fn $dequantize_half(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [$bits]) {
            for (half, out) in payload.chunks_exact(2).zip(out) {
                let sum = f16_to_f32(u16::from_be_bytes([half[0], half[1]]));
                *out = $from_f32(divide(sum * inverse[0] * inverse[1], divisor));
            }
        }
    };
}

worker_kernels!(
    f32,
    core::convert::identity,
    core::convert::identity,
    quantize_f32,
    dequantize_f32,
    quantize_half_f32,
    dequantize_half_f32
);
worker_kernels!(u16, f16_to_f32, f32_to_f16, quantize_f16, dequantize_f16, quantize_half_f16, dequantize_half_f16);
worker_kernels!(
    u16,
    bf16_to_f32,
    f32_to_bf16,
    quantize_bf16,
    dequantize_bf16,
    quantize_half_bf16,
    dequantize_half_bf16
);

pub(super) fn divide(value: f32, divisor: f32) -> f32 {
    if divisor == 1.0 { value } else { value / divisor }
}
