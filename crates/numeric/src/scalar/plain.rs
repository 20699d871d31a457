//! Floats as they are, in big-endian words of 32 bits.

use super::scaled::divide;
use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

macro_rules! worker_kernels {
    ($bits:ty, $to_f32:expr, $from_f32:expr, $write:ident, $read:ident) => {
        pub(crate) fn $write(values: &[$bits], payload: &mut [u8]) {
            for (x, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
                word.copy_from_slice(&$to_f32(*x).to_be_bytes());
            }
        }

        pub(crate) fn $read(payload: &[u8], divisor: f32, out: &mut [$bits]) {
            for (word, out) in payload.chunks_exact(4).zip(out) {
                let sum = f32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                *out = $from_f32(divide(sum, divisor));
            }
        }
    };
}

worker_kernels!(f32, core::convert::identity::<f32>, core::convert::identity, write_plain_f32, read_plain_f32);
worker_kernels!(u16, f16_to_f32, f32_to_f16, write_plain_f16, read_plain_f16);
worker_kernels!(u16, bf16_to_f32, f32_to_bf16, write_plain_bf16, read_plain_bf16);
