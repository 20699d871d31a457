//! Raw floats: loops that the compiler vectorises, for what travels as it lies in a little-endian machine's memory. They are
//! their own references.

use super::{KernelLevel, kernel_level};

/// Elements that a copy moves as one.
const STEP: usize = 16;

macro_rules! versions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) = $loop:ident;)*) => {$(
        #[inline]
        pub(crate) fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) {
                    $loop($($arg),*)
                }
                if kernel_level() != KernelLevel::Scalar {
                    // SAFETY: both other levels have AVX2, and the level never exceeds the detected one.
                    return unsafe { avx2($($arg),*) };
                }
            }
            $loop($($arg),*)
        }
    )*};
}

versions! {
    fn write_raw_f32(values: &[f32], payload: &mut [u8]) = write_words;
    fn write_raw_16(values: &[u16], payload: &mut [u8]) = write_halves;
    fn raw_overwrite_f32(payload: &[u8], slot: &mut [f32]) = overwrite;
    fn raw_add_f32(payload: &[u8], slot: &mut [f32]) = add;
    fn raw_add_and_emit_f32(payload: &[u8], slot: &mut [f32], out: &mut [u8]) = add_and_emit;
    fn raw_emit_f32(slot: &[f32], payload: &mut [u8]) = emit;
}

macro_rules! write {
    ($name:ident, $type:ty) => {
        #[inline(always)]
        fn $name(values: &[$type], payload: &mut [u8]) {
            // Steps of a constant length, without which each element is copied for itself.
            let (steps, rest) = values.as_chunks::<STEP>();
            let (step_words, rest_words) = payload.as_chunks_mut().0.as_chunks_mut::<STEP>();
            for (values, words) in steps.iter().zip(step_words) {
                *words = values.map(<$type>::to_le_bytes);
            }
            for (value, word) in rest.iter().zip(rest_words) {
                *word = value.to_le_bytes();
            }
        }
    };
}

write!(write_words, f32);
write!(write_halves, u16);

/// Copies, and says whether all are finite: one added to an exponent field of ones carries into the sign's place. Without versions:
/// wider registers make it no faster in the cache, and a fifth slower where the tensor is in memory.
macro_rules! read {
    ($name:ident, $type:ty, $bits:ty, $from_bits:expr, $field:literal, $lowest:literal) => {
        pub(crate) fn $name(payload: &[u8], out: &mut [$type]) -> bool {
            let mut carries = 0;
            for (word, value) in payload.as_chunks().0.iter().zip(out) {
                let bits = <$bits>::from_le_bytes(*word);
                carries |= (bits & $field) + $lowest;
                *value = $from_bits(bits);
            }
            carries >> (<$bits>::BITS - 1) == 0
        }
    };
}

read!(read_raw_f32, f32, u32, f32::from_bits, 0x7f80_0000, 0x0080_0000);
read!(read_raw_f16, u16, u16, core::convert::identity, 0x7c00, 0x0400);
read!(read_raw_bf16, u16, u16, core::convert::identity, 0x7f80, 0x0080);

#[inline(always)]
fn overwrite(payload: &[u8], slot: &mut [f32]) {
    for (word, sum) in payload.as_chunks().0.iter().zip(slot) {
        *sum = f32::from_le_bytes(*word);
    }
}

#[inline(always)]
fn add(payload: &[u8], slot: &mut [f32]) {
    for (word, sum) in payload.as_chunks().0.iter().zip(slot) {
        *sum += f32::from_le_bytes(*word);
    }
}

#[inline(always)]
fn add_and_emit(payload: &[u8], slot: &mut [f32], out: &mut [u8]) {
    for ((word, sum), out) in payload.as_chunks().0.iter().zip(slot).zip(out.as_chunks_mut().0) {
        *sum += f32::from_le_bytes(*word);
        *out = canonical(*sum).to_le_bytes();
    }
}

#[inline(always)]
fn emit(slot: &[f32], payload: &mut [u8]) {
    for (sum, word) in slot.iter().zip(payload.as_chunks_mut().0) {
        *word = canonical(*sum).to_le_bytes();
    }
}

#[inline(always)]
fn canonical(sum: f32) -> f32 {
    if sum.is_nan() { f32::NAN } else { sum }
}
