//! Worker side of the exact formats. `flip` is 0, or -1 to complement every word.

/// What NaN becomes in the ordered map, before and after `flip`: above every number, so that it wins.
const NAN_ORDERED: i32 = i32::MAX;

pub(crate) fn i32_to_payload(values: &[i32], flip: i32, payload: &mut [u8]) {
    for (value, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
        word.copy_from_slice(&(value ^ flip).to_be_bytes());
    }
}

pub(crate) fn payload_to_i32(payload: &[u8], flip: i32, out: &mut [i32]) {
    for (word, out) in payload.chunks_exact(4).zip(out) {
        *out = i32::from_be_bytes([word[0], word[1], word[2], word[3]]) ^ flip;
    }
}

pub(crate) fn i64_to_limbs(values: &[i64], payload: &mut [u8]) {
    for (value, limbs) in values.iter().zip(payload.chunks_exact_mut(16)) {
        for (k, limb) in limbs.chunks_exact_mut(4).enumerate() {
            let bits = (value >> (16 * k)) as u32 & 0xffff;
            limb.copy_from_slice(&bits.to_be_bytes());
        }
    }
}

/// Carries resolve themselves: each limb sum is added at its place, modulo 2^64.
pub(crate) fn limbs_to_i64(payload: &[u8], out: &mut [i64]) {
    for (limbs, out) in payload.chunks_exact(16).zip(out) {
        *out = limbs.chunks_exact(4).enumerate().fold(0i64, |sum, (k, limb)| {
            let limb_sum = u32::from_be_bytes([limb[0], limb[1], limb[2], limb[3]]);
            sum.wrapping_add(i64::from(limb_sum) << (16 * k))
        });
    }
}

pub(crate) fn ordered_f32_to_payload(values: &[f32], flip: i32, payload: &mut [u8]) {
    for (value, word) in values.iter().zip(payload.chunks_exact_mut(4)) {
        word.copy_from_slice(&to_ordered(*value, flip).to_be_bytes());
    }
}

pub(crate) fn payload_to_ordered_f32(payload: &[u8], flip: i32, out: &mut [f32]) {
    for (word, out) in payload.chunks_exact(4).zip(out) {
        *out = from_ordered(i32::from_be_bytes([word[0], word[1], word[2], word[3]]), flip);
    }
}

/// The integer that orders as the float does (or as its opposite does, with `flip`).
pub(super) fn to_ordered(value: f32, flip: i32) -> i32 {
    if value.is_nan() { NAN_ORDERED } else { swap_order(value.to_bits() as i32) ^ flip }
}

/// The float that [`to_ordered`] gave this integer.
pub(super) fn from_ordered(ordered: i32, flip: i32) -> f32 {
    let value = f32::from_bits(swap_order(ordered ^ flip) as u32);
    if value.is_nan() { f32::NAN } else { value }
}

/// Negative floats order backwards as integers: flip their magnitude bits. Its own inverse.
fn swap_order(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}
