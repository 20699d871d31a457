//! Block floating point in FPISA's registers: values that share one exponent, which each element's register replicates
//! (FPISA §3.3; the layout is spec/NUMERICS.md, section 2.5).
//!
//! A block is one byte `e` and a signed byte `x` per element, of value `x * 2^(e - 127 - 6)`; `e = 255` says that the block holds
//! no numbers. Order and error are those of [`fpisa`](crate::fpisa) for float32, with half a step of the emitted block for its
//! rounding. There is no vector version: blocks are narrow, and their uses few.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use crate::byte_order::ByteOrder;
use crate::certificate::pow2;
use crate::fpisa::check_room;
use crate::register_pair::{FloatFormat, NO_NUMBER, NoRoom, Registers, Rounding, marks};
use crate::scalar::{Pair, Setup, add_pair};
use crate::telemetry::Telemetry;

/// Places from the last bit of a block's byte to that of a float32 mantissa.
const BYTE_PLACES: u32 = 17;
/// The exponent of one step of a block is this much below its byte.
const STEP_BIAS: i32 = 127 + 6;

/// The accumulator: float32 registers that take whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFloat(Setup);

impl BlockFloat {
    /// With guard bits and a rounding of the alignment.
    ///
    /// # Errors
    /// When the register has no room for the guard bits.
    pub fn new(guard_bits: u32, alignment: Rounding) -> Result<Self, NoRoom> {
        check_room(FloatFormat::Float32, guard_bits)?;
        let read_out = Rounding::NearestEven;
        Ok(Self(Setup {
            format: FloatFormat::Float32,
            guard_bits,
            alignment,
            read_out,
            left_shift_max: None,
            order: ByteOrder::Big,
        }))
    }

    /// `slot = block`: the first contribution.
    pub fn overwrite(&self, exponent: u8, values: &[i8], slot: &mut Registers<'_>) {
        check_block(values, slot);
        for (at, value) in values.iter().enumerate() {
            let pair = self.extract(exponent, *value);
            (slot.exponents[at], slot.mantissas[at]) = (pair.exponent, pair.mantissa);
        }
    }

    /// `slot += block`.
    pub fn add(&self, exponent: u8, values: &[i8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
        check_block(values, slot);
        let mut counts = Telemetry::default();
        for (at, value) in values.iter().enumerate() {
            let sum = Pair { exponent: slot.exponents[at], mantissa: slot.mantissas[at] };
            let sum = add_pair(&self.0, sum, self.extract(exponent, *value), &mut counts);
            (slot.exponents[at], slot.mantissas[at]) = (sum.exponent, sum.mantissa);
        }
        if let Some(telemetry) = telemetry {
            telemetry.merge(&counts);
        }
    }

    /// Writes the slot as a block and returns its exponent: the least at which every element fits, rounded half to even.
    pub fn emit(&self, slot: &Registers<'_>, values: &mut [i8]) -> u8 {
        check_block(values, slot);
        values.fill(0);
        if slot.exponents.contains(&NO_NUMBER) {
            return NO_NUMBER;
        }
        let exponent = self.block_exponent(slot);
        if exponent == NO_NUMBER {
            return exponent;
        }
        let step_inverse = pow2(STEP_BIAS - i32::from(exponent));
        for (at, value) in values.iter_mut().enumerate() {
            *value = round_half_even(self.value(slot, at) * step_inverse) as i8;
        }
        exponent
    }

    fn extract(&self, exponent: u8, value: i8) -> Pair {
        match (exponent, value) {
            (NO_NUMBER, _) => Pair { exponent, mantissa: marks::NAN },
            (_, 0) => Pair { exponent: 0, mantissa: 0 },
            _ => Pair { exponent, mantissa: i32::from(value) << (BYTE_PLACES + self.0.guard_bits) },
        }
    }

    /// An element as f64, exactly.
    fn value(&self, slot: &Registers<'_>, at: usize) -> f64 {
        let unit = i32::from(slot.exponents[at]) - 127 - 23 - self.0.guard_bits as i32;
        f64::from(slot.mantissas[at]) * pow2(unit)
    }

    fn block_exponent(&self, slot: &Registers<'_>) -> u8 {
        let largest = (0..slot.mantissas.len()).map(|at| self.value(slot, at).abs()).fold(0.0, f64::max);
        // Up to 127.5 steps round to 127; 127.5 itself to 128, which is even. What no exponent holds is no number.
        (1..NO_NUMBER).find(|exponent| largest * pow2(STEP_BIAS - i32::from(*exponent)) < 127.5).unwrap_or(NO_NUMBER)
    }
}

/// A magnitude of at most 128 as a whole number.
fn round_half_even(x: f64) -> f64 {
    /// Beside 1.5 * 2^52 f64 numbers are the integers.
    const INTEGERS_ONLY: f64 = 6_755_399_441_055_744.0;
    (x + INTEGERS_ONLY) - INTEGERS_ONLY
}

#[track_caller]
fn check_block(values: &[i8], slot: &Registers<'_>) {
    assert_eq!(values.len(), slot.element_count(), "a block has one byte per element of the slot: pass equal lengths");
}
