//! Products, logarithms and square roots by table look-ups, as pure functions (FPISA Appendix A.2).
//!
//! | function | table | error |
//! | --- | --- | --- |
//! | [`multiply_bf16`] | 16,384 words of 16 bits | rounded once, half to even: none besides |
//! | [`log2_f32`] | 1024 words of 32 bits | at most `2^-10.4` absolute, one entry's half width |
//! | [`sqrt_f32`] | 2048 words of 32 bits | at most `2^-12` relative |
//!
//! The paper counts "fewer than 2000 entries" with less than 1 % for a logarithm; relative to a logarithm near zero no table
//! keeps that, so the bound here is absolute (it is below 1 % wherever `|log2 x| > 0.08`).

/// Bits of the fraction by which the tables of [`log2_f32`] and [`sqrt_f32`] are read.
const KEY_BITS: u32 = 10;

/// The exact products of two 8-bit significands, by their fractions.
static PRODUCTS: [u16; 1 << 14] = products();
/// `log2` of the middle of each entry, in units of 2^-32.
static LOGS: [u32; 1 << KEY_BITS] = logs();
/// The fraction of the square root of the middle of each entry, 23 bits; for the upper half, of twice the middle.
static ROOTS: [u32; 2 << KEY_BITS] = roots();

const fn products() -> [u16; 1 << 14] {
    let mut table = [0; 1 << 14];
    let mut key = 0;
    while key < table.len() {
        table[key] = ((128 + key / 128) * (128 + key % 128)) as u16;
        key += 1;
    }
    table
}

/// The middle of an entry, a number in 1..2, in units of 2^-60.
const fn middle(key: usize) -> u64 {
    (1 << 60) + ((2 * key as u64 + 1) << (59 - KEY_BITS))
}

const fn logs() -> [u32; 1 << KEY_BITS] {
    let mut table = [0; 1 << KEY_BITS];
    let mut key = 0;
    while key < table.len() {
        let (mut mantissa, mut bit) = (middle(key), 0);
        while bit < 32 {
            // The square of a number in 1..2 reaches 2 where the next bit of the logarithm is 1.
            let square = ((mantissa as u128 * mantissa as u128) >> 60) as u64;
            table[key] = (table[key] << 1) | (square >> 61) as u32;
            mantissa = square >> (square >> 61);
            bit += 1;
        }
        key += 1;
    }
    table
}

const fn roots() -> [u32; 2 << KEY_BITS] {
    let mut table = [0; 2 << KEY_BITS];
    let mut key = 0;
    while key < table.len() {
        let is_doubled = key >> KEY_BITS;
        let root = ((middle(key % (1 << KEY_BITS)) as u128) << (60 + is_doubled)).isqrt() as u64;
        table[key] = ((root - (1 << 60)) >> 37) as u32;
        key += 1;
    }
    table
}

/// `x * y` of bfloat16 (their bits), rounded once, half to even: exponents are added, significands looked up.
///
/// Subnormals, which the table does not hold, count as zero, and results below the least normal number become zero. Infinities
/// and NaN follow IEEE 754; NaN is the canonical one.
pub fn multiply_bf16(x: u16, y: u16) -> u16 {
    const INFINITY: u16 = 0x7f80;
    const NAN: u16 = 0x7fc0;
    let sign = (x ^ y) & 0x8000;
    let (x, y) = (x & 0x7fff, y & 0x7fff);
    let is_zero = |bits: u16| bits < 0x0080;
    if x > INFINITY || y > INFINITY || (x.max(y) == INFINITY && is_zero(x.min(y))) {
        return NAN;
    }
    if x.max(y) == INFINITY || is_zero(x.min(y)) {
        return sign | if is_zero(x.min(y)) { 0 } else { INFINITY };
    }
    let product = u32::from(PRODUCTS[usize::from(x & 0x7f) << 7 | usize::from(y & 0x7f)]);
    // 1 to 4 in units of 2^-14: one place more where it reaches 2.
    let carry = product >> 15;
    let places = 7 + carry;
    let is_odd = (product >> places) & 1;
    let significand = (product + (1 << (places - 1)) - 1 + is_odd) >> places;
    let field = i32::from(x >> 7) + i32::from(y >> 7) - 127 + carry as i32;
    // A carry out of the significand is right as it is.
    let bits = ((field - 1) << 7) + significand as i32;
    sign | match bits {
        ..0x0080 => 0,
        0x7f80.. => INFINITY,
        _ => bits as u16,
    }
}

/// `log2(x)`: the exponent, and the table's middle of 1024 parts of the significand.
///
/// Zero and subnormals give negative infinity, negative numbers and NaN the canonical NaN, infinity itself.
pub fn log2_f32(x: f32) -> f32 {
    let bits = x.to_bits();
    match bits {
        0x7f80_0000 => x,
        0x0080_0000..0x7f80_0000 => {
            let fraction = LOGS[(bits >> (23 - KEY_BITS)) as usize % LOGS.len()];
            ((bits >> 23) as i32 - 127) as f32 + fraction as f32 * (1.0 / 4_294_967_296.0)
        }
        _ if bits << 1 < 0x0100_0000 => f32::NEG_INFINITY,
        _ => f32::NAN,
    }
}

/// `sqrt(x)`: half the exponent, and a table by its lowest bit and 10 bits of the significand.
///
/// Zero and subnormals give zero, negative numbers and NaN the canonical NaN, infinity itself.
pub fn sqrt_f32(x: f32) -> f32 {
    let bits = x.to_bits();
    match bits {
        0x7f80_0000 => x,
        0x0080_0000..0x7f80_0000 => {
            let exponent = (bits >> 23) as i32 - 127;
            let key = (exponent & 1) << KEY_BITS | (bits >> (23 - KEY_BITS)) as i32 & ((1 << KEY_BITS) - 1);
            f32::from_bits((((exponent >> 1) + 127) as u32) << 23 | ROOTS[key as usize])
        }
        _ if bits << 1 < 0x0100_0000 => 0.0,
        _ => f32::NAN,
    }
}
