//! What the switch does to a slot: the five verbs of its accumulate stage on big-endian payloads.
//!
//! A slot is a slice of host-order `i32`, as many as the payload has elements. The first contribution overwrites, the
//! others combine, and the `_and_emit` twins serve the last one: in one pass they combine, keep the result in the slot
//! (a complete copy answers resends) and write it to the datagram that is multicast.
//!
//! Addition wraps. It never does for a float job whose workers obey the agreed exponent
//! ([`block_fixed`](crate::block_fixed), [`half_wire`](crate::half_wire)); for integer jobs wrapping is the meaning of
//! the sum. Add, Max, Or and Xor are associative and commutative, so a slot's result is independent of arrival order.
//!
//! # Panics
//! Every function panics when the payload is not exactly the slot's element count times the element size: the caller
//! has compared `element_count` with the datagram before it picks a slot.

use crate::{check_length, simd as kernel};

macro_rules! verbs {
    ($width:literal; $(
        $(#[$doc:meta])*
        $name:ident = $kernel:ident, $name_and_emit:ident = $kernel_and_emit:ident;
    )*) => {$(
        $(#[$doc])*
        pub fn $name(payload: &[u8], slot: &mut [i32]) {
            check_length(payload, $width, slot.len());
            kernel::$kernel(payload, slot);
        }

        #[doc = concat!("[`", stringify!($name), "`], which also writes the slot to `out` as a payload.")]
        pub fn $name_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]) {
            check_length(payload, $width, slot.len());
            check_length(out, $width, slot.len());
            kernel::$kernel_and_emit(payload, slot, out);
        }
    )*};
}

verbs! { 4;
    /// `slot = payload`: the first contribution.
    overwrite = overwrite, overwrite_and_emit = overwrite_and_emit;
    /// `slot += payload`, modulo 2^32.
    add = add, add_and_emit = add_and_emit;
    /// `slot = max(slot, payload)` of signed words.
    max = max, max_and_emit = max_and_emit;
    /// `slot |= payload`.
    or = or, or_and_emit = or_and_emit;
    /// `slot ^= payload`.
    xor = xor, xor_and_emit = xor_and_emit;
}

/// Writes the slot as big-endian i32 words.
pub fn emit(slot: &[i32], payload: &mut [u8]) {
    check_length(payload, 4, slot.len());
    kernel::emit(slot, payload);
}

/// The same verbs for the Float16 element format, two bytes per element.
///
/// The slot counts units of 2^-24: every f16 below 128 in magnitude converts exactly (larger ones, infinities and NaN,
/// which no worker of ours sends, count as `i32::MIN`), and emitting rounds once, half to even. Or and Xor do not exist
/// here: bits travel as Int32 words.
pub mod half {
    use crate::{check_length, simd as kernel};

    verbs! { 2;
        /// `slot = payload` in units of 2^-24: the first contribution.
        overwrite = overwrite_half, overwrite_and_emit = overwrite_half_and_emit;
        /// `slot += payload` in units of 2^-24, modulo 2^32.
        add = add_half, add_and_emit = add_half_and_emit;
        /// `slot = max(slot, payload)` in units of 2^-24.
        max = max_half, max_and_emit = max_half_and_emit;
    }

    /// Writes the slot as big-endian f16, rounded half to even from units of 2^-24.
    pub fn emit(slot: &[i32], payload: &mut [u8]) {
        check_length(payload, 2, slot.len());
        kernel::emit_half(slot, payload);
    }
}

/// The sums of the Int8 element format, one signed byte per element; only addition exists.
///
/// The slot counts the workers' steps, exactly: 256 bytes sum to 15 bits. An answer's bytes count `2^shift` steps.
pub mod byte {
    use crate::exponent::power_of_two;
    use crate::{check_length, simd as kernel};

    /// `slot = payload`: the first contribution.
    pub fn overwrite(payload: &[u8], slot: &mut [i32]) {
        check_length(payload, 1, slot.len());
        kernel::overwrite_byte(payload, slot);
    }

    /// `slot += payload`.
    pub fn add(payload: &[u8], slot: &mut [i32]) {
        check_length(payload, 1, slot.len());
        kernel::add_byte(payload, slot);
    }

    /// The smallest shift by which every sum of the slot, rounded half to even, fits in -127..=127: at most
    /// `ceil(log2 n)` for `n` contributions of -127..=127, and always below 32.
    pub fn shift(slot: &[i32]) -> u8 {
        let largest = i64::from(kernel::magnitude_i32(slot));
        // Up to 127.5 rounds to 127; 127.5 itself to 128, which is even.
        (0..=25).find(|shift| 2 * largest < 255 << shift).unwrap_or(25)
    }

    /// Writes `round_half_even(sum / 2^shift)` of each sum; `shift` is [`shift`]'s of the same slot.
    ///
    /// # Panics
    /// When the payload is not one byte per element of the slot.
    pub fn emit(slot: &[i32], shift: u8, payload: &mut [u8]) {
        check_length(payload, 1, slot.len());
        kernel::emit_byte(slot, power_of_two(-i32::from(shift)), payload);
    }
}

/// The sums of the Bfloat16 element format, two bytes per element; only addition exists.
///
/// The slot holds whole numbers, as which workers scale their values
/// ([`bfloat_wire`](crate::bfloat_wire)). A bf16 that is not whole, which no worker of ours sends, is rounded; one that
/// i32 does not hold, an infinity and NaN count as `i32::MIN`.
pub mod bfloat {
    use crate::{check_length, simd as kernel};

    /// `slot = payload`: the first contribution.
    pub fn overwrite(payload: &[u8], slot: &mut [i32]) {
        check_length(payload, 2, slot.len());
        kernel::overwrite_bfloat(payload, slot);
    }

    /// `slot += payload`, modulo 2^32.
    pub fn add(payload: &[u8], slot: &mut [i32]) {
        check_length(payload, 2, slot.len());
        kernel::add_bfloat(payload, slot);
    }

    /// Writes the slot as big-endian bf16, rounded once, half to even.
    pub fn emit(slot: &[i32], payload: &mut [u8]) {
        check_length(payload, 2, slot.len());
        kernel::emit_bfloat(slot, payload);
    }
}
