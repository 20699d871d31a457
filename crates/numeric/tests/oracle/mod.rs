//! Floats and sums as big integers, independent of the crate's registers: what the accumulators are compared with.
#![allow(dead_code, reason = "each test file uses its part")]

use fanin_numeric::float16;
use fanin_numeric::register_pair::{FloatFormat, Rounding};
use num_bigint::BigInt;

pub const FORMATS: [FloatFormat; 3] = [FloatFormat::Float32, FloatFormat::Float16, FloatFormat::Bfloat16];
pub const ROUNDINGS: [Rounding; 3] = [Rounding::Floor, Rounding::TowardZero, Rounding::NearestEven];

/// The number that these bits are in the format.
pub fn value(format: FloatFormat, bits: u32) -> f64 {
    f64::from(match format {
        FloatFormat::Float32 => f32::from_bits(bits),
        FloatFormat::Float16 => float16::f16_to_f32(bits as u16),
        FloatFormat::Bfloat16 => f32::from_bits(bits << 16),
    })
}

/// Big-endian payload of the values' bits.
pub fn payload(format: FloatFormat, bits: &[u32]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_be_bytes()[4 - format.bytes()..].to_vec()).collect()
}

/// The bits of each element of a payload.
pub fn words(format: FloatFormat, payload: &[u8]) -> Vec<u32> {
    payload
        .chunks(format.bytes())
        .map(|bytes| bytes.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)))
        .collect()
}

/// `x * 2^exponent`, which must be whole.
pub fn whole(x: f64, exponent: i32) -> BigInt {
    assert!(x.is_finite());
    if x == 0.0 {
        return BigInt::ZERO;
    }
    let (bits, sign) = (x.abs().to_bits(), if x < 0.0 { -1 } else { 1 });
    let field = (bits >> 52) as i32;
    let (significand, place) =
        if field == 0 { (bits, -1074) } else { ((bits & ((1 << 52) - 1)) | 1 << 52, field - 1075) };
    let zeros = significand.trailing_zeros() as i32;
    let shift = place + zeros + exponent;
    assert!(shift >= 0, "{x:e} is no multiple of 2^-{exponent}");
    BigInt::from(sign) * (BigInt::from(significand >> zeros) << shift)
}

/// `x / 2^places`, rounded to a whole number.
pub fn round(x: &BigInt, places: u64, rounding: Rounding) -> BigInt {
    // Shifts of big integers round down.
    let floor: BigInt = x >> places;
    let rest: BigInt = x - (&floor << places);
    if rest == BigInt::ZERO {
        return floor;
    }
    let twice: BigInt = &rest << 1;
    let unit = BigInt::from(1) << places;
    let up = match rounding {
        Rounding::Floor => false,
        Rounding::TowardZero => *x < BigInt::ZERO,
        Rounding::NearestEven => twice > unit || (twice == unit && &floor % 2 != BigInt::ZERO),
    };
    floor + i32::from(up)
}

/// `x * 2^-exponent` rounded once to the format, as f64; infinite or the largest number beyond it.
pub fn to_format(x: &BigInt, exponent: i32, format: FloatFormat, rounding: Rounding) -> f64 {
    let leading = x.bits() as i32 - 1 - exponent;
    let place = leading.max(1 - format.bias()) - format.fraction_bits() as i32;
    let drop = place + exponent;
    let significand = if drop > 0 { round(x, drop as u64, rounding) } else { x << -drop };
    let digits: i64 = significand.try_into().expect("as many bits as the format has");
    let result = digits as f64 * 2f64.powi(place);
    let largest = (2.0 - 2f64.powi(-(format.fraction_bits() as i32))) * 2f64.powi(format.bias());
    let beyond = match rounding {
        Rounding::NearestEven => f64::INFINITY,
        Rounding::Floor if result < 0.0 => f64::INFINITY,
        _ => largest,
    };
    if result.abs() > largest { beyond.copysign(result) } else { result }
}

/// Numbers at the boundaries of the format: zeros, subnormals, powers of two and their neighbours, the largest.
pub fn corners(format: FloatFormat) -> Vec<u32> {
    let fraction_bits = format.fraction_bits();
    let one = (format.bias() as u32) << fraction_bits;
    let infinity = format.field_max() << fraction_bits;
    let least_normal = 1 << fraction_bits;
    let step = |exponents: i32| one.wrapping_add_signed(exponents << fraction_bits);
    let mut magnitudes = vec![0, 1, 2, 3, least_normal / 2, least_normal - 1, least_normal, least_normal + 1];
    magnitudes.extend([
        2 * least_normal - 1,
        2 * least_normal,
        3 * least_normal + 1,
        infinity - 1,
        infinity - least_normal,
    ]);
    magnitudes.extend([-13, -9, -8, -7, -2, -1, 0, 1, 2, 7, 8, 9, 13].map(step));
    magnitudes.extend([one + 1, one - 1, one + least_normal / 2, step(8) - 1, step(-8) + 1]);
    let sign = 1 << (8 * format.bytes() - 1);
    magnitudes.iter().flat_map(|bits| [*bits, bits | sign]).collect()
}
