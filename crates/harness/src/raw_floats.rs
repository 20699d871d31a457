//! What is true of floats that travel as they lie in memory and of sums of them (`spec/NUMERICS.md`), written down without the
//! accumulators' code.

/// A raw format.
pub(crate) struct RawFloat {
    /// Bits of its fraction.
    pub fraction: i32,
    /// Bits of a mantissa register beside the mantissa.
    pub headroom: i32,
    /// Exponent of its least normal number.
    pub exponent_min: i32,
    /// Its largest number.
    pub end: f64,
}

pub(crate) const FLOAT32: RawFloat = RawFloat { fraction: 23, headroom: 7, exponent_min: -126, end: f32::MAX as f64 };
pub(crate) const FLOAT16: RawFloat = RawFloat { fraction: 10, headroom: 20, exponent_min: -14, end: 65_504.0 };
pub(crate) const BFLOAT16: RawFloat =
    RawFloat { fraction: 7, headroom: 23, exponent_min: -126, end: f32::from_bits(0x7f7f_0000) as f64 };

/// Which sums an addition may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meets {
    /// Contributions come one by one to one place.
    Contributions,
    /// And sums of some of them, made elsewhere.
    Parts,
}

impl RawFloat {
    /// The exponent with which a register holds a number.
    fn exponent(&self, number: f64) -> i32 {
        match number {
            0.0 => self.exponent_min - 1,
            _ => (number.abs().log2().floor() as i32).clamp(self.exponent_min, 127),
        }
    }

    /// What the last bit of a number is worth.
    pub fn unit(&self, number: f64) -> f64 {
        2f64.powi(self.exponent(number).max(self.exponent_min) - self.fraction)
    }

    /// Whether FPISA-A (§4.3) overwrites no register of these numbers, in no order of arrival.
    pub fn are_all_kept(&self, numbers: &[f64]) -> bool {
        let exponents = || numbers.iter().map(|&number| self.exponent(number));
        exponents().max().zip(exponents().min()).is_none_or(|(largest, least)| largest - least <= self.headroom)
    }

    /// Whether FPISA-A's mantissa register may be full, in some order of arrival: it keeps the exponent that it began with, and numbers of up to
    /// `headroom` more are added to it, shifted to the left.
    pub fn may_fill(&self, numbers: &[f64], meets: Meets) -> bool {
        let exponents = || numbers.iter().map(|&number| self.exponent(number));
        let (Some(least), Some(largest)) = (exponents().min(), exponents().max()) else { return false };
        let is_one_sign = numbers.iter().all(|&number| number >= 0.0) || numbers.iter().all(|&number| number <= 0.0);
        let begins: Vec<i32> = match meets {
            // A sum of two is added to nothing any more.
            Meets::Contributions => exponents().collect(),
            Meets::Parts if numbers.len() <= 2 => exponents().collect(),
            Meets::Parts if is_one_sign => (least..=largest).collect(),
            // Parts may cancel.
            Meets::Parts => (self.exponent_min - 1..=largest).collect(),
        };
        // Shifts to the right round down, and so may every part have been.
        let rounded = 1.01 * (1.0 + numbers.len() as f64 * 2f64.powi(-self.fraction));
        begins.into_iter().any(|begin| {
            let shifted = numbers.iter().filter(|&&number| self.exponent(number) <= begin + self.headroom);
            let sum: f64 = shifted.map(|number| number.abs()).sum();
            sum * rounded >= 2f64.powi(31 + begin - self.fraction)
        })
    }
}

/// How far a sum in tables (Libra §4.3) may be off after so many additions. Nothing is promised where signs differ, but no look-up makes
/// more of two magnitudes than their sum. Of one sign, an addition is off by three look-ups of half a step of 1/1000 octave, here with
/// room to spare, and by what is below 2^-32.8.
pub(crate) fn by_tables(sum: f64, magnitude: f64, additions: f64) -> f64 {
    let steps = magnitude * (1.0025f64.powf(additions) - 1.0) + additions * 2f64.powi(-32);
    if sum.abs() == magnitude { steps } else { 2.0 * magnitude + steps }
}

/// Whether a sum in tables may have left 16 bits of logarithm: 2^32.767 of 1000 steps per octave.
pub(crate) fn may_leave_tables(magnitude: f64, additions: f64) -> bool {
    magnitude + by_tables(magnitude, magnitude, additions) >= 2f64.powf(32.766)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_full_only_with_numbers_far_from_where_it_began() {
        // 128 * 1.75 begins a register's shift to the left by 7 bits: 1.75 * 2^30. It takes another such number to fill it.
        assert!(!FLOAT32.may_fill(&[1.0, 224.0], Meets::Contributions));
        assert!(FLOAT32.may_fill(&[1.0, 224.0, 224.0], Meets::Contributions));
        assert!(!FLOAT32.may_fill(&[2.0, 224.0, 224.0], Meets::Contributions));
        assert!(!FLOAT32.may_fill(&[1.0, 256.0, 256.0], Meets::Contributions), "they overwrite, and begin with 8");
        assert!(!FLOAT32.may_fill(&[224.0; 9], Meets::Contributions));
        // 224 - 223 is 1.
        assert!(FLOAT32.may_fill(&[224.0, -223.0, 224.0, 224.0], Meets::Parts));
        assert!(!FLOAT32.may_fill(&[224.0, 223.0, 224.0, 224.0], Meets::Parts));
        assert!(!FLOAT16.may_fill(&[0.001, 65_504.0, 40_000.0], Meets::Contributions));
        assert!(BFLOAT16.may_fill(&[1.0, 1.75 * 2f64.powi(23), 1.75 * 2f64.powi(23)], Meets::Contributions));
    }

    #[test]
    fn numbers_are_kept_unless_one_is_shifted_out() {
        assert!(FLOAT32.are_all_kept(&[1.0, 255.0, -3.0]));
        assert!(!FLOAT32.are_all_kept(&[1.0, 256.0]));
        assert!(!FLOAT32.are_all_kept(&[0.0, 1.0]));
        assert!(FLOAT16.are_all_kept(&[0.1, 65_504.0]));
    }
}
