//! Native float addition: one slot, one packet.

use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value }
}

macro_rules! ieee_kernels {
    ($bits:ty, $width:literal, $to_f32:expr, $from_f32:expr,
     $overwrite:ident, $add:ident, $add_and_emit:ident, $emit:ident) => {
        pub(crate) fn $overwrite(payload: &[u8], slot: &mut [f32]) {
            for (word, sum) in payload.as_chunks().0.iter().zip(slot) {
                *sum = $to_f32(<$bits>::from_be_bytes(*word));
            }
        }

        pub(crate) fn $add(payload: &[u8], slot: &mut [f32]) {
            for (word, sum) in payload.as_chunks().0.iter().zip(slot) {
                *sum += $to_f32(<$bits>::from_be_bytes(*word));
            }
        }

        pub(crate) fn $add_and_emit(payload: &[u8], slot: &mut [f32], out: &mut [u8]) {
            $add(payload, slot);
            $emit(slot, out);
        }

        pub(crate) fn $emit(slot: &[f32], payload: &mut [u8]) {
            for (sum, word) in slot.iter().zip(payload.chunks_exact_mut($width)) {
                word.copy_from_slice(&$from_f32(canonical(*sum)).to_be_bytes());
            }
        }
    };
}

ieee_kernels!(
    u32,
    4,
    f32::from_bits,
    f32::to_bits,
    ieee_overwrite_f32,
    ieee_add_f32,
    ieee_add_and_emit_f32,
    ieee_emit_f32
);
ieee_kernels!(u16, 2, f16_to_f32, f32_to_f16, ieee_overwrite_f16, ieee_add_f16, ieee_add_and_emit_f16, ieee_emit_f16);
ieee_kernels!(
    u16,
    2,
    bf16_to_f32,
    f32_to_bf16,
    ieee_overwrite_bf16,
    ieee_add_bf16,
    ieee_add_and_emit_bf16,
    ieee_emit_bf16
);
