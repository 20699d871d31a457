//! The scalar reference: what every vector kernel must reproduce bit for bit, written to be read.
//!
//! Lengths are checked by the callers; here the shorter slice ends a loop.

mod accumulate;
mod fpisa;
mod ieee;
mod integer;
mod narrow;
mod plain;
mod scaled;
pub(crate) mod sum;
mod units;

pub(crate) use accumulate::*;
pub(crate) use fpisa::*;
pub(crate) use ieee::*;
pub(crate) use integer::*;
pub(crate) use narrow::*;
pub(crate) use plain::*;
pub(crate) use scaled::*;
pub(crate) use units::*;

use crate::float16::F16_UNITS_PER_ONE;
use crate::float16::{F16_UNIT, f16_to_f32, f32_to_f16};

/// The value as i32, rounded half to even; NaN and what does not fit gives `i32::MIN`, the processor's "integer
/// indefinite". A block whose values obey its exponent never gets there.
pub(crate) fn round_to_i32(value: f32) -> i32 {
    const TWO_POW_31: f32 = 2_147_483_648.0;
    if (-TWO_POW_31..TWO_POW_31).contains(&value) { round_half_even(value) as i32 } else { i32::MIN }
}

/// Adding 2^23 leaves no fraction bits, so the addition itself rounds half to even; beyond 2^23 there is no fraction.
fn round_half_even(value: f32) -> f32 {
    const INTEGERS_ONLY: f32 = 8_388_608.0;
    if value.abs() >= INTEGERS_ONLY {
        return value;
    }
    let shift = INTEGERS_ONLY.copysign(value);
    (value + shift) - shift
}

/// An f16 as an integer count of `2^-24`, exact for magnitudes below 128; beyond that, and for NaN, `i32::MIN`.
pub(crate) fn f16_to_units(half: u16) -> i32 {
    round_to_i32(f16_to_f32(half) * F16_UNITS_PER_ONE)
}

/// The f16 nearest to `units * 2^-24`, rounded once, half to even.
pub(crate) fn units_to_f16(units: i32) -> u16 {
    f32_to_f16(make_exact_in_f32(units) as f32 * F16_UNIT)
}

/// An integer that f32 holds exactly and that rounds to the same f16.
///
/// From 2^24 on f32 would round a first time. There f16 steps are at least 2^14, so of the low 8 bits only "are they
/// all zero?" matters: one sticky bit says it, and 24 significant bits remain.
fn make_exact_in_f32(units: i32) -> i32 {
    const LOW: i32 = 0xff;
    const STICKY: i32 = 0x80;
    if units.unsigned_abs() < 1 << 24 || units & LOW == 0 {
        return units;
    }
    (units & !LOW) | STICKY
}
