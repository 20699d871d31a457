//! ATP's numbers: a float travels as a whole count of 10^-8, sums saturate, and what saturated is summed again as floats
//! by the server (ATP §3.8, Appendix B.1).
//!
//! The two outermost words mean "left 32 bits". They are sticky: whatever is added to them, they stay, so that the sum
//! of a chunk tells that some value or partial sum was too large (beyond about ±21.47), infinite or not a number. The
//! paper saturates but would let a later value of the other sign bring the sum back in range, and be wrong in silence.
//!
//! As long as nothing saturates, sums do not depend on the order of arrival, and differ from the exact one by at most
//! `n / 2 * 10^-8` for `n` workers (each value is rounded once), and by one rounding to f32.
//!
//! # Panics
//! Every function panics when its slices' lengths do not belong together.

use crate::check_length;

/// Units of one. Exact in f32 and f64.
const SCALE: f64 = 1e8;

/// The words that say "left 32 bits".
const EXTREMES: [i32; 2] = [i32::MIN, i32::MAX];

/// Writes each value as a big-endian count of 10^-8, rounded once, half to even. Infinities and what 32 bits do not
/// hold become the extreme of their sign, NaN the least.
pub fn quantize_f32(values: &[f32], payload: &mut [u8]) {
    check_length(payload, 4, values.len());
    for (value, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
        word.copy_from_slice(&to_units(*value).to_be_bytes());
    }
}

/// Reads sums back: each is divided by the scale and by `divisor` (the number of workers for a mean, else 1), and
/// rounded to f32 once.
pub fn dequantize_f32(payload: &[u8], divisor: f64, values: &mut [f32]) {
    check_length(payload, 4, values.len());
    for (word, value) in payload.chunks_exact(4).zip(values) {
        *value = (f64::from(word_at(word)) / (SCALE * divisor)) as f32;
    }
}

/// `slot = payload`: the first contribution.
pub fn overwrite(payload: &[u8], slot: &mut [i32]) {
    check_length(payload, 4, slot.len());
    for (word, sum) in payload.chunks_exact(4).zip(slot) {
        *sum = word_at(word);
    }
}

/// `slot += payload`, saturating for good.
pub fn add(payload: &[u8], slot: &mut [i32]) {
    check_length(payload, 4, slot.len());
    for (word, sum) in payload.chunks_exact(4).zip(slot) {
        *sum = add_units(*sum, word_at(word));
    }
}

/// Writes the slot as big-endian words.
pub fn emit(slot: &[i32], payload: &mut [u8]) {
    crate::accumulate::emit(slot, payload);
}

/// Whether some sum of the slot has left 32 bits.
pub fn is_saturated(slot: &[i32]) -> bool {
    slot.iter().any(|sum| EXTREMES.contains(sum))
}

fn word_at(bytes: &[u8]) -> i32 {
    i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Both are whole counts; either may be an extreme, which stays.
fn add_units(sum: i32, units: i32) -> i32 {
    if EXTREMES.contains(&sum) {
        sum
    } else if EXTREMES.contains(&units) {
        units
    } else {
        sum.saturating_add(units)
    }
}

fn to_units(value: f32) -> i32 {
    // Adding this leaves no fraction bits in f64, so the addition itself rounds half to even.
    const INTEGERS_ONLY: f64 = 6_755_399_441_055_744.0;
    let scaled = f64::from(value) * SCALE;
    if scaled.is_nan() {
        return i32::MIN;
    }
    let bounded = scaled.clamp(f64::from(i32::MIN), f64::from(i32::MAX));
    ((bounded + INTEGERS_ONLY) - INTEGERS_ONLY) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_once_and_extremes_say_so() {
        let cases = [
            (0.0, 0),
            (1.0, 100_000_000),
            (-0.5, -50_000_000),
            (5e-9, 0),
            (3e-8, 3),
            (21.474_836, 2_147_483_635),
            (21.474_838, i32::MAX),
            (f32::INFINITY, i32::MAX),
            (f32::NEG_INFINITY, i32::MIN),
            (-1e30, i32::MIN),
            (f32::NAN, i32::MIN),
            (f32::MIN_POSITIVE, 0),
        ];
        for (value, expected) in cases {
            let mut word = [0; 4];
            quantize_f32(&[value], &mut word);
            assert_eq!(i32::from_be_bytes(word), expected, "{value}");
        }
    }

    #[test]
    fn what_has_left_32_bits_never_comes_back() {
        for extreme in EXTREMES {
            for other in [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX] {
                let (mut left, mut right) = ([extreme], [other]);
                add(&other.to_be_bytes(), &mut left);
                add(&extreme.to_be_bytes(), &mut right);
                assert!(is_saturated(&left) && is_saturated(&right), "{extreme} and {other}");
            }
        }
        let mut slot = [i32::MAX - 1];
        add(&1i32.to_be_bytes(), &mut slot);
        add(&(-5i32).to_be_bytes(), &mut slot);
        assert_eq!(slot, [i32::MAX]);
    }

    #[test]
    fn sums_in_range_are_exact_and_come_back() {
        let mut slot = [0; 3];
        overwrite(&[0, 0, 0, 5, 255, 255, 255, 255, 0, 0, 0, 0], &mut slot);
        add(&[0, 0, 0, 7, 0, 0, 0, 1, 5, 245, 225, 0], &mut slot);
        assert_eq!(slot, [12, 0, 100_000_000]);
        let (mut payload, mut values) = ([0; 12], [0.0; 3]);
        emit(&slot, &mut payload);
        dequantize_f32(&payload, 2.0, &mut values);
        assert_eq!(values, [6e-8, 0.0, 0.5]);
    }
}
