//! Raw floats: loops that the compiler vectorises, for what travels as it lies in a little-endian machine's memory. They are
//! their own references.

use super::{KernelLevel, kernel_level};

/// How far ahead of a copy its source is fetched: about a packet, since the next packet takes what lies behind this one. Out of
/// memory a copy to a packet takes a fifth to a third less time so.
const AHEAD_BYTES: usize = 8 << 10;
const LINE_BYTES: usize = 64;

macro_rules! versions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $return:ty)? = $loop:ident;)*) => {$(
        #[inline]
        pub(crate) fn $name($($arg: $type),*) $(-> $return)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) $(-> $return)? {
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
    fn read_raw_f32(payload: &[u8], out: &mut [f32]) -> bool = read_words;
    fn read_raw_f16(payload: &[u8], out: &mut [u16]) -> bool = read_f16;
    fn read_raw_bf16(payload: &[u8], out: &mut [u16]) -> bool = read_bf16;
    fn raw_overwrite_f32(payload: &[u8], slot: &mut [f32]) = overwrite;
    fn raw_add_f32(payload: &[u8], slot: &mut [f32]) = add;
    fn raw_add_and_emit_f32(payload: &[u8], slot: &mut [f32], out: &mut [u8]) = add_and_emit;
    fn raw_emit_f32(slot: &[f32], payload: &mut [u8]) = emit;
}

/// Has the memory of a line read into the cache, wherever it points: beyond the tensor nothing comes of it.
#[inline(always)]
fn fetch<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing that the program sees and never faults, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_byte_add(AHEAD_BYTES).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (line, AHEAD_BYTES);
}

macro_rules! write {
    ($name:ident, $type:ty) => {
        #[inline(always)]
        fn $name(values: &[$type], payload: &mut [u8]) {
            const BYTES: usize = size_of::<$type>();
            let words = payload.as_chunks_mut::<BYTES>().0;
            for (values, words) in values.chunks(LINE_BYTES / BYTES).zip(words.chunks_mut(LINE_BYTES / BYTES)) {
                fetch(values.as_ptr());
                for (value, word) in values.iter().zip(words) {
                    *word = value.to_le_bytes();
                }
            }
        }
    };
}

write!(write_words, f32);
write!(write_halves, u16);

/// Copies, and says whether all are finite: one added to an exponent field of ones carries into the sign's place.
macro_rules! read {
    ($name:ident, $type:ty, $bits:ty, $from_bits:expr, $field:literal, $lowest:literal) => {
        #[inline(always)]
        fn $name(payload: &[u8], out: &mut [$type]) -> bool {
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

read!(read_words, f32, u32, f32::from_bits, 0x7f80_0000, 0x0080_0000);
read!(read_f16, u16, u16, core::convert::identity, 0x7c00, 0x0400);
read!(read_bf16, u16, u16, core::convert::identity, 0x7f80, 0x0080);

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
