//! binary16 (`f16`) and bfloat16 (`bf16`) as their bits in a `u16`, one value at a time.
//!
//! Widening is exact. Narrowing rounds once, half to even, and agrees bit for bit with the processor's own
//! `vcvtph2ps` / `vcvtps2ph`, also for NaN: the payload's upper bits stay and the quiet bit is set.

/// `2^-24`, the smallest f16 above zero and the unit in which the switch adds f16 numbers.
pub(crate) const F16_UNIT: f32 = 1.0 / F16_UNITS_PER_ONE;
/// `2^24`.
pub(crate) const F16_UNITS_PER_ONE: f32 = 16_777_216.0;

/// The f16 with these bits as f32, exactly.
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = match magnitude {
        0x7c01.. => 0x7fc0_0000 | (magnitude << 13),
        0x7c00 => f32::INFINITY.to_bits(),
        // Same fraction, exponent bias 127 in place of 15.
        0x0400.. => (magnitude << 13) + ((127 - 15) << 23),
        subnormal => (subnormal as f32 * F16_UNIT).to_bits(),
    };
    f32::from_bits(sign | bits)
}

/// The f16 nearest to `value`, half to even; magnitudes from 65520 on become infinite.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = match magnitude {
        0x7f80_0001.. => 0x7e00 | ((magnitude >> 13) & 0x03ff),
        // 65520 is halfway between the largest f16 and the next power of two.
        0x477f_f000.. => 0x7c00,
        // From 2^-14 on: rebias the exponent, then round away 13 bits. A carry out of the fraction is right as it is.
        0x3880_0000.. => round_away_bits::<13>(magnitude - ((127 - 15) << 23)),
        _ => round_small_half_even(f32::from_bits(magnitude) * F16_UNITS_PER_ONE),
    };
    sign | half as u16
}

/// The bf16 with these bits as f32, exactly.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bf16 nearest to `value`, half to even.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    round_away_bits::<16>(bits) as u16
}

/// `bits / 2^N`, rounded half to even.
fn round_away_bits<const N: u32>(bits: u32) -> u32 {
    let is_odd = (bits >> N) & 1;
    (bits + (1 << (N - 1)) - 1 + is_odd) >> N
}

/// A value in `0.0..=2^22` as the nearest integer, half to even: beside `2^23` f32 numbers are the integers.
fn round_small_half_even(value: f32) -> u32 {
    const INTEGERS_ONLY: f32 = 8_388_608.0;
    (value + INTEGERS_ONLY).to_bits() - INTEGERS_ONLY.to_bits()
}
