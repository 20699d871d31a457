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

use crate::certificate::{Certificate, Contributions, floor_log2, pow2};
use crate::{check_length, simd as kernel};

/// Units of one. Exact in f32 and f64.
pub(crate) const SCALE: f64 = 1e8;

macro_rules! static_fixed_format {
    ($name:literal, $bits:ty, $quantize:ident = $to_units:ident, $dequantize:ident = $from_units:ident) => {
        #[doc = concat!("Writes each ", $name, " as a big-endian count of 10^-8, rounded once, half to even.")]
        ///
        /// Infinities and what 32 bits do not hold become the extreme of their sign, NaN the least.
        #[inline]
        pub fn $quantize(values: &[$bits], payload: &mut [u8]) {
            check_length(payload, 4, values.len());
            kernel::$to_units(values, payload);
        }

        #[doc = concat!("Reads sums back as ", $name, ": `sum / 10^8 / divisor`, where `divisor` is the number of workers")]
        /// for a mean, else 1.
        ///
        /// The result is the f32 nearest to the quotient for every whole divisor up to 256: the f64 product with the
        /// inverse is off by at most one in 2^52, and no such quotient lies nearer than that to the middle between two
        /// f32 numbers. A 16-bit output rounds once more.
        #[inline]
        pub fn $dequantize(payload: &[u8], divisor: f32, values: &mut [$bits]) {
            check_length(payload, 4, values.len());
            kernel::$from_units(payload, 1.0 / (SCALE * f64::from(divisor)), values);
        }
    };
}

static_fixed_format!("f32", f32, quantize_f32 = quantize_units_f32, dequantize_f32 = dequantize_units_f32);
static_fixed_format!("f16 (its bits)", u16, quantize_f16 = quantize_units_f16, dequantize_f16 = dequantize_units_f16);
static_fixed_format!(
    "bf16 (its bits)",
    u16,
    quantize_bf16 = quantize_units_bf16,
    dequantize_bf16 = dequantize_units_bf16
);

/// `slot = payload`: the first contribution.
pub fn overwrite(payload: &[u8], slot: &mut [i32]) {
    crate::accumulate::overwrite(payload, slot);
}

/// `slot += payload`, saturating for good.
pub fn add(payload: &[u8], slot: &mut [i32]) {
    check_length(payload, 4, slot.len());
    kernel::add_units(payload, slot);
}

/// Writes the slot as big-endian words.
pub fn emit(slot: &[i32], payload: &mut [u8]) {
    crate::accumulate::emit(slot, payload);
}

/// Whether some sum of the slot has left 32 bits.
pub fn is_saturated(slot: &[i32]) -> bool {
    kernel::has_extreme(slot)
}

/// What the sum of these contributions promises: half of 10^-8 for each value, and the rounding to f32; nothing where a sum may
/// leave 32 bits, not even the same bits in every order: 20, 20, -20 saturates, 20, -20, 20 does not.
pub fn certify(contributions: &Contributions) -> Certificate {
    let steps = f64::from(contributions.worker_count) / (2.0 * SCALE);
    let largest = contributions.magnitude_sum + steps;
    let read_out = pow2(floor_log2(largest) - 24);
    let fits = largest * SCALE < f64::from(i32::MAX);
    let absolute_error = if fits { steps + read_out } else { f64::INFINITY };
    Certificate { order_independent: fits, absolute_error, source: "ATP, Appendix B.1" }
}

/// How many sums of the slot have left 32 bits.
pub fn count_saturated(slot: &[i32]) -> u32 {
    if !is_saturated(slot) {
        return 0;
    }
    slot.iter().filter(|&&sum| sum == i32::MIN || sum == i32::MAX).count() as u32
}
