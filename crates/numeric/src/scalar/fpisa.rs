//! FPISA's and FPISA-A's steps, one element at a time, as the paper orders them: extract, align, add (§3.2, §4.3), and for
//! the read-out renormalise, round and assemble.

use crate::byte_order::ByteOrder;
use crate::register_pair::{FloatFormat, NO_NUMBER, Registers, Rounding, marks};
use crate::telemetry::Telemetry;

/// How a slot's registers are laid out and shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Setup {
    pub format: FloatFormat,
    pub guard_bits: u32,
    pub alignment: Rounding,
    pub read_out: Rounding,
    /// FPISA-A's greatest shift to the left; `None` is FPISA.
    pub left_shift_max: Option<u32>,
    /// The payload's.
    pub order: ByteOrder,
}

/// One element's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub exponent: u8,
    pub mantissa: i32,
}

/// Extract (MAU0 and MAU1): a number's exponent, 0 for zero only, and its mantissa behind the guard bits.
pub(crate) fn extract(setup: &Setup, bits: u32) -> Pair {
    let format = setup.format;
    let fraction = bits & ((1 << format.fraction_bits()) - 1);
    let field = (bits >> format.fraction_bits()) & format.field_max();
    let is_negative = bits >> (8 * format.bytes() - 1) == 1;
    let (exponent, magnitude) = match (field, fraction) {
        (0, 0) => (0, 0),
        // Subnormals have the scale of exponent 1 and no implied bit.
        (0, _) => (1, fraction),
        (field, _) if field == format.field_max() => {
            return Pair { exponent: NO_NUMBER, mantissa: mark_of(format, fraction, is_negative) };
        }
        _ => (field as u8, fraction | 1 << format.fraction_bits()),
    };
    let mantissa = (magnitude << setup.guard_bits) as i32;
    Pair { exponent, mantissa: if is_negative { -mantissa } else { mantissa } }
}

fn mark_of(format: FloatFormat, fraction: u32, is_negative: bool) -> i32 {
    match fraction {
        0 if is_negative => marks::NEGATIVE_INFINITY,
        0 => marks::POSITIVE_INFINITY,
        // Another switch's sum overflowed.
        _ if fraction == quiet_bit(format) | 1 => marks::OVERFLOW,
        _ => marks::NAN,
    }
}

fn quiet_bit(format: FloatFormat) -> u32 {
    1 << (format.fraction_bits() - 1)
}

/// `mantissa / 2^distance`, rounded.
pub(crate) fn align(mantissa: i32, distance: u32, rounding: Rounding) -> i32 {
    // A mantissa has 32 bits: nothing but its sign is left after 40 places, and i64 shifts that far.
    let (wide, distance) = (i64::from(mantissa), distance.min(40));
    let magnitude = wide.abs();
    let quotient = match rounding {
        Rounding::Floor => return (wide >> distance) as i32,
        Rounding::TowardZero => magnitude >> distance,
        Rounding::NearestEven => {
            let (kept, half) = (magnitude >> distance, (1 << distance) >> 1);
            let rest = magnitude - (kept << distance);
            kept + i64::from(rest > half || (rest == half && distance > 0 && kept % 2 == 1))
        }
    };
    (if wide < 0 { -quotient } else { quotient }) as i32
}

/// Aligns, and counts what that dropped.
fn align_and_count(setup: &Setup, mantissa: i32, distance: u32, telemetry: &mut Telemetry) -> i32 {
    let aligned = align(mantissa, distance, setup.alignment);
    let is_exact = i64::from(aligned) << distance.min(32) == i64::from(mantissa);
    telemetry.lost_bits += u64::from(!is_exact);
    telemetry.flushed_to_zero += u64::from(aligned == 0 && mantissa != 0);
    aligned
}

/// The registers after `x` has been added to `sum`.
pub(crate) fn add_pair(setup: &Setup, sum: Pair, x: Pair, telemetry: &mut Telemetry) -> Pair {
    if sum.exponent == NO_NUMBER || x.exponent == NO_NUMBER {
        let marks_of = |pair: Pair| if pair.exponent == NO_NUMBER { pair.mantissa } else { 0 };
        return Pair { exponent: NO_NUMBER, mantissa: marks_of(sum) | marks_of(x) };
    }
    let distance = u32::from(sum.exponent.abs_diff(x.exponent));
    let is_larger = x.exponent > sum.exponent;
    let (exponent, kept, added) = match setup.left_shift_max {
        _ if !is_larger => (sum.exponent, sum.mantissa, align_and_count(setup, x.mantissa, distance, telemetry)),
        // FPISA shifts the register (§3.2).
        None => (x.exponent, align_and_count(setup, sum.mantissa, distance, telemetry), x.mantissa),
        // FPISA-A shifts the contribution into the headroom, or lets it take the register's place (§4.3).
        Some(limit) if distance <= limit => {
            telemetry.left_shift += 1;
            (sum.exponent, sum.mantissa, x.mantissa << distance)
        }
        Some(_) => {
            telemetry.overwrite += u64::from(sum.mantissa != 0);
            (x.exponent, 0, x.mantissa)
        }
    };
    match kept.checked_add(added) {
        Some(mantissa) => Pair { exponent, mantissa },
        None => {
            telemetry.overflow += 1;
            Pair { exponent: NO_NUMBER, mantissa: marks::OVERFLOW }
        }
    }
}

/// Renormalise, round and assemble (MAU5 to MAU8): the payload's bits of an element.
pub(crate) fn assemble(setup: &Setup, pair: Pair, telemetry: &mut Telemetry) -> u32 {
    let format = setup.format;
    if pair.exponent == NO_NUMBER {
        return bits_of_marks(format, pair.mantissa);
    }
    if pair.mantissa == 0 {
        return 0;
    }
    let is_negative = pair.mantissa < 0;
    let magnitude = pair.mantissa.unsigned_abs();
    // Where the leading one belongs, and so the exponent field; below 1 the result is subnormal.
    let place = (format.fraction_bits() + setup.guard_bits) as i32;
    let field = (i32::from(pair.exponent) + magnitude.ilog2() as i32 - place).max(1);
    let dropped = field - i32::from(pair.exponent) + setup.guard_bits as i32;
    let significand = round_magnitude(magnitude, dropped, is_negative, setup.read_out);
    telemetry.flushed_to_zero += u64::from(significand == 0);
    // The implied bit adds one to the field, and so does a carry out of the fraction.
    let bits = ((field as u64 - 1) << format.fraction_bits()) + significand;
    let sign = u32::from(is_negative) << (8 * format.bytes() - 1);
    let infinity = u64::from(format.field_max()) << format.fraction_bits();
    if bits < infinity {
        return sign | bits as u32;
    }
    telemetry.saturation += 1;
    let becomes_infinite = match setup.read_out {
        Rounding::NearestEven => true,
        Rounding::TowardZero => false,
        Rounding::Floor => is_negative,
    };
    sign | (infinity as u32 - u32::from(!becomes_infinite))
}

/// `magnitude / 2^dropped` of a number with that sign; a negative `dropped` multiplies.
fn round_magnitude(magnitude: u32, dropped: i32, is_negative: bool, rounding: Rounding) -> u64 {
    let wide = u64::from(magnitude);
    if dropped <= 0 {
        return wide << -dropped;
    }
    let kept = wide >> dropped.min(63);
    let rest = wide - (kept << dropped.min(63));
    let half = 1u64 << (dropped.min(63) - 1);
    let up = match rounding {
        Rounding::Floor => is_negative && rest > 0,
        Rounding::TowardZero => false,
        Rounding::NearestEven => rest > half || (rest == half && kept % 2 == 1),
    };
    kept + u64::from(up)
}

/// What an element without a number reads as: infinities win over an overflow, which says only that the finite part is lost.
pub(crate) fn bits_of_marks(format: FloatFormat, found: i32) -> u32 {
    let infinity = format.field_max() << format.fraction_bits();
    let both = marks::POSITIVE_INFINITY | marks::NEGATIVE_INFINITY;
    if found & marks::NAN != 0 || found & both == both {
        return infinity | quiet_bit(format);
    }
    match found & both {
        marks::POSITIVE_INFINITY => infinity,
        marks::NEGATIVE_INFINITY => infinity | 1 << (8 * format.bytes() - 1),
        _ => infinity | quiet_bit(format) | 1,
    }
}

/// An element's bits in a payload.
pub(crate) fn load(setup: &Setup, payload: &[u8], at: usize) -> u32 {
    let width = setup.format.bytes();
    let bytes = payload[at * width..][..width].iter();
    let append = |bits, byte: &u8| bits << 8 | u32::from(*byte);
    match setup.order {
        ByteOrder::Big => bytes.fold(0, append),
        ByteOrder::Little => bytes.rev().fold(0, append),
    }
}

pub(crate) fn store(setup: &Setup, payload: &mut [u8], at: usize, bits: u32) {
    let width = setup.format.bytes();
    let to = &mut payload[at * width..][..width];
    match setup.order {
        ByteOrder::Big => to.copy_from_slice(&bits.to_be_bytes()[4 - width..]),
        ByteOrder::Little => to.copy_from_slice(&bits.to_le_bytes()[..width]),
    }
}

pub(crate) fn fpisa_overwrite(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    for at in 0..slot.element_count() {
        let x = extract(setup, load(setup, payload, at));
        (slot.exponents[at], slot.mantissas[at]) = (x.exponent, x.mantissa);
    }
}

pub(crate) fn fpisa_add(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
    let mut counts = Telemetry::default();
    for at in 0..slot.element_count() {
        let sum = Pair { exponent: slot.exponents[at], mantissa: slot.mantissas[at] };
        let sum = add_pair(setup, sum, extract(setup, load(setup, payload, at)), &mut counts);
        (slot.exponents[at], slot.mantissas[at]) = (sum.exponent, sum.mantissa);
    }
    if let Some(telemetry) = telemetry {
        telemetry.merge(&counts);
    }
}

pub(crate) fn fpisa_emit(setup: &Setup, slot: &Registers<'_>, payload: &mut [u8], telemetry: Option<&mut Telemetry>) {
    let mut counts = Telemetry::default();
    for at in 0..slot.element_count() {
        let pair = Pair { exponent: slot.exponents[at], mantissa: slot.mantissas[at] };
        store(setup, payload, at, assemble(setup, pair, &mut counts));
    }
    if let Some(telemetry) = telemetry {
        telemetry.merge(&counts);
    }
}
