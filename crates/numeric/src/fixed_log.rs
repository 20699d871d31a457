//! Logarithms and powers of two in integers, for tables: the crate has no libm, and integers give the same tables everywhere.
//!
//! Fractions have 60 bits. Results are off by less than 2^-40, far below any table's step.

/// Bits of a fraction.
const BITS: u32 = 60;
/// Bits of a logarithm's fraction.
const LOG_BITS: u32 = 44;

/// `log2(x / 2^60)` in units of 2^-44; `None` for zero.
pub(crate) fn log2(x: u64) -> Option<i64> {
    let leading = x.checked_ilog2()?;
    let mut mantissa = ((u128::from(x) << 60) >> leading) as u64;
    let mut log = i64::from(leading) - i64::from(BITS);
    for _ in 0..LOG_BITS {
        // The square of a number in 1..2 is in 1..4: whether it reaches 2 is the next bit of the logarithm.
        let square = ((u128::from(mantissa) * u128::from(mantissa)) >> BITS) as u64;
        let bit = square >> (BITS + 1);
        mantissa = square >> bit;
        log = (log << 1) | bit as i64;
    }
    Some(log)
}

/// 2^(1/2), 2^(1/4), ... in units of 2^-60: powers of two are products of these.
pub(crate) struct Roots([u64; LOG_BITS as usize]);

impl Roots {
    pub(crate) fn new() -> Self {
        let mut root = 2u128 << BITS;
        Self(core::array::from_fn(|_| {
            root = (root << BITS).isqrt();
            root as u64
        }))
    }

    /// `2^x` in units of 2^-60, for `x <= 0` in units of 2^-44.
    pub(crate) fn exp2(&self, x: i64) -> u64 {
        let octaves = x >> LOG_BITS;
        let mut power = 1u64 << BITS;
        for (root, k) in self.0.iter().zip((0..LOG_BITS).rev()) {
            if (x >> k) & 1 == 1 {
                power = ((u128::from(power) * u128::from(*root)) >> BITS) as u64;
            }
        }
        if octaves < -63 { 0 } else { power >> -octaves }
    }
}

/// A fixed-point format of `steps` steps per octave.
#[derive(Clone, Copy)]
pub(crate) struct Fixed {
    pub steps: i64,
    pub rounds: bool,
}

impl Fixed {
    /// Steps as octaves in units of 2^-44.
    pub(crate) fn octaves(self, steps: i16) -> i64 {
        (i64::from(steps) << LOG_BITS).div_euclid(self.steps)
    }

    /// A logarithm as whole steps, `otherwise` where there is none.
    pub(crate) fn log_or(self, log: Option<i64>, otherwise: i16) -> i16 {
        log.map_or(otherwise, |log| self.drop_bits(i128::from(log) * i128::from(self.steps), LOG_BITS))
    }

    /// A number of 60 fraction bits as a whole one.
    pub(crate) fn whole(self, x: i128) -> i16 {
        self.drop_bits(x, BITS)
    }

    /// The 16 bits behind the point of `2^(t / steps)`, scaled to 1..2.
    pub(crate) fn fraction(self, roots: &Roots, t: i16) -> u16 {
        let within = i64::from(t).rem_euclid(self.steps);
        // One octave lower, where `exp2` is defined.
        let power = roots.exp2(self.octaves(within as i16) - (1 << LOG_BITS));
        let fraction = (power << 1) - (1 << BITS);
        let half = if self.rounds { 1 << (BITS - 17) } else { 0 };
        ((fraction + half) >> (BITS - 16)).min(0xffff) as u16
    }

    fn drop_bits(self, x: i128, bits: u32) -> i16 {
        // Without rounding toward zero, also of negative logarithms.
        let added = if self.rounds { 1 << (bits - 1) } else { (x >> 127) & ((1 << bits) - 1) };
        ((x + added) >> bits).clamp(i16::MIN.into(), i16::MAX.into()) as i16
    }
}
