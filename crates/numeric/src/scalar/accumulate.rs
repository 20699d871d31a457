//! Switch side: one slot, one packet.

use super::{f16_to_units, units_to_f16};

fn word(bytes: &[u8]) -> i32 {
    i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn half_units(bytes: &[u8]) -> i32 {
    f16_to_units(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn put_word(sum: i32, bytes: &mut [u8]) {
    bytes.copy_from_slice(&sum.to_be_bytes());
}

fn put_half(sum: i32, bytes: &mut [u8]) {
    bytes.copy_from_slice(&units_to_f16(sum).to_be_bytes());
}

/// One verb for one element format: the slot takes a contribution; the `_and_emit` twin also writes the result out.
macro_rules! verb {
    ($name:ident, $name_and_emit:ident, $width:literal, $get:ident, $put:ident, $combine:expr) => {
        pub(crate) fn $name(payload: &[u8], slot: &mut [i32]) {
            for (bytes, sum) in payload.chunks_exact($width).zip(slot) {
                *sum = $combine(*sum, $get(bytes));
            }
        }

        pub(crate) fn $name_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]) {
            let datagrams = payload.chunks_exact($width).zip(out.chunks_exact_mut($width));
            for ((bytes, out), sum) in datagrams.zip(slot) {
                *sum = $combine(*sum, $get(bytes));
                $put(*sum, out);
            }
        }
    };
}

fn take_new(_: i32, new: i32) -> i32 {
    new
}

verb!(overwrite, overwrite_and_emit, 4, word, put_word, take_new);
verb!(add, add_and_emit, 4, word, put_word, i32::wrapping_add);
verb!(max, max_and_emit, 4, word, put_word, i32::max);
verb!(or, or_and_emit, 4, word, put_word, core::ops::BitOr::bitor);
verb!(xor, xor_and_emit, 4, word, put_word, core::ops::BitXor::bitxor);
verb!(overwrite_half, overwrite_half_and_emit, 2, half_units, put_half, take_new);
verb!(add_half, add_half_and_emit, 2, half_units, put_half, i32::wrapping_add);
verb!(max_half, max_half_and_emit, 2, half_units, put_half, i32::max);

pub(crate) fn emit(slot: &[i32], payload: &mut [u8]) {
    for (sum, bytes) in slot.iter().zip(payload.chunks_exact_mut(4)) {
        put_word(*sum, bytes);
    }
}

pub(crate) fn emit_half(slot: &[i32], payload: &mut [u8]) {
    for (sum, bytes) in slot.iter().zip(payload.chunks_exact_mut(2)) {
        put_half(*sum, bytes);
    }
}
