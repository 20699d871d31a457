//! Exact formats on 32-bit big-endian words: integers, 64-bit integers as limbs, floats ordered for Max, raw bytes.
//!
//! Min and And are Max and Or of complements: `min(a, b) = !max(!a, !b)` and `a & b = !(!a | !b)`. So each format has a
//! `_complement` twin, used on the way out and on the way back. All of this is exact.

use crate::{check_length, simd as kernel};

/// The complement flips every bit of a word.
const PLAIN: i32 = 0;
const COMPLEMENT: i32 = -1;

macro_rules! word_format {
    ($(#[$out_doc:meta])* $to_payload:ident, $to_payload_complement:ident,
     $(#[$back_doc:meta])* $from_payload:ident, $from_payload_complement:ident, $value:ty) => {
        $(#[$out_doc])*
        ///
        /// # Panics
        /// When `payload` is not four bytes per value.
        #[inline]
        pub fn $to_payload(values: &[$value], payload: &mut [u8]) {
            check_length(payload, 4, values.len());
            kernel::$to_payload(values, PLAIN, payload);
        }

        #[doc = concat!("[`", stringify!($to_payload), "`] with every word complemented, for Min and And.")]
        #[inline]
        pub fn $to_payload_complement(values: &[$value], payload: &mut [u8]) {
            check_length(payload, 4, values.len());
            kernel::$to_payload(values, COMPLEMENT, payload);
        }

        $(#[$back_doc])*
        ///
        /// # Panics
        /// When `payload` is not four bytes per value of `out`.
        #[inline]
        pub fn $from_payload(payload: &[u8], out: &mut [$value]) {
            check_length(payload, 4, out.len());
            kernel::$from_payload(payload, PLAIN, out);
        }

        #[doc = concat!("[`", stringify!($from_payload), "`] of complemented words, for Min and And.")]
        #[inline]
        pub fn $from_payload_complement(payload: &[u8], out: &mut [$value]) {
            check_length(payload, 4, out.len());
            kernel::$from_payload(payload, COMPLEMENT, out);
        }
    };
}

word_format!(
    /// Writes each i32 as a big-endian word.
    i32_to_payload, i32_to_payload_complement,
    /// Reads big-endian words as i32.
    payload_to_i32, payload_to_i32_complement,
    i32
);

word_format!(
    /// Writes each f32 as the i32 of the same rank, so that the switch's signed Max is the maximum of floats.
    ///
    /// -0 ranks below +0. Every NaN ranks above all numbers, here and in the complement: a NaN in any contribution
    /// makes the element NaN for Max as for Min.
    ordered_f32_to_payload, ordered_f32_to_payload_complement,
    /// Reads ranks back as the f32 they came from, bit for bit; NaN comes back as the canonical `f32::NAN`.
    payload_to_ordered_f32, payload_to_ordered_f32_complement,
    f32
);

/// Writes each i64 as four words of 16 bits each, least significant first (16 bytes per value).
///
/// A word then sums 65535 at most per worker, so up to 32768 workers' sums fit i32 and no carry is lost.
///
/// # Panics
/// When `payload` is not sixteen bytes per value.
pub fn i64_to_limbs(values: &[i64], payload: &mut [u8]) {
    check_length(payload, 16, values.len());
    kernel::i64_to_limbs(values, payload);
}

/// Reads sums of limbs as i64 and resolves their carries: the exact sum modulo 2^64.
///
/// # Panics
/// When `payload` is not sixteen bytes per value of `out`.
pub fn limbs_to_i64(payload: &[u8], out: &mut [i64]) {
    check_length(payload, 16, out.len());
    kernel::limbs_to_i64(payload, out);
}

/// Words that carry `byte_count` bytes; the last one is padded.
pub fn words_for_bytes(byte_count: usize) -> usize {
    byte_count.div_ceil(4)
}

/// Writes raw bytes in their order, zeros behind them up to a whole word. Or and Xor act on bits, so byte order does
/// not matter to them; an all-gather is the Or of one owner's bytes and the others' empty contributions.
///
/// # Panics
/// When `payload` is not four times [`words_for_bytes`].
pub fn bytes_to_payload(bytes: &[u8], payload: &mut [u8]) {
    pad_bytes(bytes, PLAIN, payload);
}

/// [`bytes_to_payload`] with every byte complemented, for And.
pub fn bytes_to_payload_complement(bytes: &[u8], payload: &mut [u8]) {
    pad_bytes(bytes, COMPLEMENT, payload);
}

/// Reads the bytes back, without the padding.
///
/// # Panics
/// When `payload` is not four times [`words_for_bytes`].
pub fn payload_to_bytes(payload: &[u8], out: &mut [u8]) {
    check_length(payload, 4, words_for_bytes(out.len()));
    copy_bytes(payload, PLAIN as u8, out);
}

/// [`payload_to_bytes`] of complemented bytes, for And.
///
/// # Panics
/// When `payload` is not four times [`words_for_bytes`].
pub fn payload_to_bytes_complement(payload: &[u8], out: &mut [u8]) {
    check_length(payload, 4, words_for_bytes(out.len()));
    copy_bytes(payload, COMPLEMENT as u8, out);
}

fn pad_bytes(bytes: &[u8], flip: i32, payload: &mut [u8]) {
    check_length(payload, 4, words_for_bytes(bytes.len()));
    let (body, padding) = payload.split_at_mut(bytes.len());
    copy_bytes(bytes, flip as u8, body);
    padding.fill(0);
}

/// Copies bytes, each exclusive-ored with `flip`. No twins: this is a plain copy, or a loop that compilers vectorise.
fn copy_bytes(from: &[u8], flip: u8, to: &mut [u8]) {
    if flip == 0 {
        return to.copy_from_slice(&from[..to.len()]);
    }
    for (from, to) in from.iter().zip(to) {
        *to = from ^ flip;
    }
}
