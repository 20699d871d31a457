//! Float addition by table look-ups in the logarithmic number system, for switches that can only look up and add integers
//! (Libra §3.5, Fig. 9).
//!
//! `x + y = 2^(i + log2(1 + 2^(j - i)))` with `i = log2 x`, `j = log2 y`: six look-ups in seven tables of 16-bit words, 408.5 KiB
//! as printed. Logarithms are fixed-point numbers of `steps` steps per octave; 16 bits then span `65536 / steps` octaves, 256
//! steps all of float32, 1000 (the keys of Fig. 9) from 2^-32.8 to 2^32.8. What the paper leaves open (negative numbers, for
//! which an eighth table is needed, zeros, the ends of the range) is settled in `spec/NUMERICS.md`, section 6.
//!
//! * The order matters.
//! * Error of one addition of numbers of one sign: about a step, `2^(1/steps) - 1`, of the sum for each of the three truncated
//!   look-ups. Numbers of opposite signs may lose everything ([`LogTables::certify`] promises nothing).
//!
//! There is no vector version: the look-ups depend on each other.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use alloc::vec::Vec;

use crate::certificate::{Certificate, Contributions};
use crate::fixed_log::{Fixed, Roots, log2};
use crate::telemetry::Telemetry;
use crate::{check_length, ieee};

/// How the tables' entries are made whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entries {
    /// Toward zero, as the paper's numbers suggest.
    Truncated,
    /// To the nearest: about half the error from tables of the same size.
    Rounded,
}

/// The seven tables, and the one for opposite signs.
#[derive(Clone, Debug)]
pub struct LogTables {
    /// `epo[field]`: the exponent, in steps.
    epo: Vec<i16>,
    /// By the leading 12 bits `m` of the significand: `log2(m)` and `log2(m ln 2)`.
    log_m: Vec<i16>,
    log_m_ln2: Vec<i16>,
    /// By the last 12 bits of the fraction: `log2(dm)`.
    log_dm: Vec<i16>,
    /// By 16 bits: `2^u` in steps, `log2(1 + 2^z)`, and 16 fraction bits of `2^t`.
    exp_u: Vec<i16>,
    mi: Vec<i16>,
    exp_t: Vec<u16>,
    /// By 16 bits: `log2(1 - 2^z)`; not in the paper.
    mi_opposite: Vec<i16>,
    steps: i32,
}

/// `log2(dm)` of 0 and `log2(1 - 2^0)`: no number.
const NO_LOG: i16 = i16::MIN;

impl LogTables {
    /// Computes the tables (a few ten milliseconds), with `steps` steps per octave.
    ///
    /// # Panics
    /// When `steps` is not in 256..=1000: below, 12 bits of the significand would be more than its logarithm has, above, the
    /// range is less than that of the paper's keys.
    pub fn new(steps: u16, entries: Entries) -> Self {
        assert!((256..=1000).contains(&steps), "{steps} steps per octave: use 256 to 1000");
        let fixed = Fixed { steps: steps.into(), rounds: entries == Entries::Rounded };
        let (keys, roots) = (i16::MIN..=i16::MAX, Roots::new());
        // Of 2^z, as all fractions here, 60 bits.
        let power = |z: i16| roots.exp2(fixed.octaves(z));
        Self {
            epo: (0..256).map(|field| saturate((field - 127) * i64::from(steps))).collect(),
            log_m: (0..4096).map(|m| fixed.log_or(log2(m << 49), NO_LOG)).collect(),
            log_m_ln2: (0..4096).map(|m| fixed.log_or(log2(times_ln2(m << 49)), NO_LOG)).collect(),
            log_dm: (0..4096).map(|dm| fixed.log_or(log2(dm << 37), NO_LOG)).collect(),
            exp_u: keys.clone().map(|u| fixed.whole(i128::from(power(u.min(0))) * i128::from(steps))).collect(),
            mi: keys.clone().map(|z| fixed.log_or(log2((1 << 60) + power(z.min(0))), 0)).collect(),
            exp_t: keys.clone().map(|t| fixed.fraction(&roots, t)).collect(),
            mi_opposite: keys.map(|z| fixed.log_or(log2((1 << 60) - power(z.min(0))), NO_LOG)).collect(),
            steps: steps.into(),
        }
    }

    /// Bytes of the paper's seven tables.
    pub fn bytes(&self) -> usize {
        let narrow = self.epo.len() + self.log_m.len() + self.log_m_ln2.len() + self.log_dm.len();
        2 * (narrow + self.exp_u.len() + self.mi.len() + self.exp_t.len())
    }

    /// `x + y` by look-ups.
    ///
    /// Subnormals count as zeros, and so do numbers whose logarithm is below 16 bits; where one operand is zero, the other is
    /// the sum. Infinities and NaN follow IEEE 754. A look-up that adds nothing returns the larger operand as it is. A sum
    /// above 16 bits of logarithm, or of what lies above them, takes [`Self::largest`] (counted as saturation) and keeps it.
    pub fn sum(&self, x: f32, y: f32, telemetry: &mut Telemetry) -> f32 {
        if !x.is_finite() || !y.is_finite() {
            return x + y;
        }
        let (large, small) = if x.abs() >= y.abs() { (x, y) } else { (y, x) };
        for operand in [x, y] {
            if operand.abs() == self.largest() {
                return operand;
            }
        }
        let Some(j) = self.log(small, telemetry) else {
            return if self.log(large, telemetry).is_some() { large } else { 0.0 };
        };
        // The larger one's logarithm is not less.
        let Some(i) = self.log(large, telemetry) else { return 0.0 };
        if large == -small {
            return 0.0;
        }
        let is_above = i.max(j) > i16::MAX.into();
        let (i, j) = (saturate(i), saturate(j));
        let z = saturate(i64::from(j) - i64::from(i));
        let is_opposite = large.is_sign_negative() != small.is_sign_negative();
        let added = if is_opposite { self.mi_opposite[key(z)] } else { self.mi[key(z)] };
        if added == 0 {
            telemetry.lost_bits += 1;
            return large;
        }
        // Whatever was looked up, even no number, where logarithms had been cut: it was not for these operands.
        let t = i64::from(i) + i64::from(added);
        if is_above || t > i16::MAX.into() {
            telemetry.saturation += 1;
            return self.largest().copysign(large);
        }
        if added == NO_LOG {
            return 0.0;
        }
        if t < i16::MIN.into() {
            telemetry.flushed_to_zero += 1;
            return 0.0;
        }
        self.power(saturate(t)).copysign(large)
    }

    /// The magnitude of a sum that has left 16 bits of logarithm: 2^32.767 of 1000 steps per octave.
    pub fn largest(&self) -> f32 {
        self.power(i16::MAX)
    }

    /// How many sums of the slot have left 16 bits of logarithm. A contribution of just that magnitude counts as well.
    pub fn count_saturated(&self, slot: &[f32]) -> u64 {
        let largest = self.largest();
        slot.iter().filter(|sum| sum.abs() == largest).count() as u64
    }

    /// The logarithm of a magnitude in steps, also beyond 16 bits above; `None` for what counts as zero.
    fn log(&self, x: f32, telemetry: &mut Telemetry) -> Option<i64> {
        let bits = x.to_bits();
        let (field, m, dm) = ((bits >> 23) & 0xff, (bits >> 12) & 0x7ff | 0x800, bits & 0xfff);
        let (m, dm) = (m as usize, dm as usize);
        let u = i32::from(self.log_dm[dm]) - i32::from(self.log_m_ln2[m]);
        let correction = if self.log_dm[dm] == NO_LOG { 0 } else { self.exp_u[key(saturate(u.into()))] };
        let log = i64::from(self.epo[field as usize]) + i64::from(self.log_m[m]) + i64::from(correction);
        // The table of exponents ends at 16 bits.
        let octaves = i64::from((field as i32 - 127) * self.steps);
        if field == 0 || octaves < i16::MIN.into() {
            telemetry.flushed_to_zero += u64::from(bits << 1 != 0);
            return None;
        }
        Some(log.max(octaves))
    }

    /// `2^t`: the exponent is the whole octaves, the table has the fraction.
    fn power(&self, t: i16) -> f32 {
        let octaves = i32::from(t).div_euclid(self.steps);
        let fraction = u32::from(self.exp_t[key(t)]);
        // 16 bits hold no number outside of float32's normal ones, except at the least with 256 steps.
        let field = (octaves + 127).clamp(0, 254) as u32;
        if field == 0 { 0.0 } else { f32::from_bits((field << 23) | (fraction << 7)) }
    }

    /// `slot = payload` of big-endian f32: the first contribution.
    pub fn overwrite(&self, payload: &[u8], slot: &mut [f32]) {
        ieee::overwrite_f32(payload, slot);
    }

    /// `slot += payload` of big-endian f32, by look-ups.
    pub fn add(&self, payload: &[u8], slot: &mut [f32], telemetry: Option<&mut Telemetry>) {
        check_length(payload, 4, slot.len());
        let mut counts = Telemetry::default();
        for (word, sum) in payload.as_chunks().0.iter().zip(slot) {
            *sum = self.sum(*sum, f32::from_be_bytes(*word), &mut counts);
        }
        if let Some(telemetry) = telemetry {
            telemetry.merge(&counts);
        }
    }

    /// Writes the slot as big-endian f32; NaN becomes the canonical one.
    pub fn emit(&self, slot: &[f32], payload: &mut [u8]) {
        ieee::emit_f32(slot, payload);
    }

    /// Promises nothing: contributions of opposite signs may lose everything, whatever their sizes.
    pub fn certify(&self, _: &Contributions) -> Certificate {
        Certificate { order_independent: false, absolute_error: f64::INFINITY, source: "spec/NUMERICS.md, section 6" }
    }
}

/// The place of a signed key in a table.
fn key(value: i16) -> usize {
    (i32::from(value) - i32::from(i16::MIN)) as usize
}

fn saturate(value: i64) -> i16 {
    value.clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

/// `x ln 2` of 60 fraction bits.
fn times_ln2(x: u64) -> u64 {
    const LN_2: u128 = (core::f64::consts::LN_2 * (1u64 << 60) as f64) as u128;
    ((u128::from(x) * LN_2) >> 60) as u64
}
