//! The agreed exponent of a block: SwitchML §4.6's "m, the exponent of h rounded up to a power of 2".

/// Exponent `m` of a block: every finite value `x` in the block obeys `|x| < 2^m`.
///
/// Ordered by value, so the switch merges the workers' exponents by maximum ([`BlockExponent::merge`]). The sentinels
/// sit outside the finite range `MIN..=MAX` so that the same maximum treats them right: nothing needed is below all,
/// an unknown or non-finite block is above all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockExponent(pub i16);

impl BlockExponent {
    /// The sender has nothing to scale (integer jobs, empty contributions): never wins a merge.
    pub const NOT_NEEDED: Self = Self(i16::MIN);
    /// Smallest exponent in use. Smaller blocks are scaled as if they were this large, so that the scale `2^126` of a
    /// single worker and its inverse stay normal f32 numbers; the fixed-point unit is then at most `2^-126 * 2^9`.
    pub const MIN: Self = Self(-95);
    /// Exponent of the largest finite f32.
    pub const MAX: Self = Self(128);
    /// The block holds an infinity or a NaN: the whole aggregated block becomes NaN.
    pub const NON_FINITE: Self = Self(0x7ffe);
    /// The sender does not know this block yet, so the slot's next use only announces the exponent.
    pub const UNKNOWN: Self = Self(0x7fff);

    /// The exponent that covers both blocks. Sentinels follow from the order.
    pub fn merge(self, other: Self) -> Self {
        self.max(other)
    }

    /// True when values can be scaled by it: neither [`Self::NON_FINITE`], nor [`Self::UNKNOWN`], nor a value above
    /// [`Self::MAX`] that no worker of ours sends.
    pub fn is_finite(self) -> bool {
        self <= Self::MAX
    }

    /// The exponent `m = floor(log2 h) + 1`, not below [`Self::MIN`], of a largest magnitude `h` given as the bits of
    /// a non-negative f32.
    pub(crate) fn of_magnitude_bits(bits: u32) -> Self {
        const EXPONENT_ALL_ONES: u32 = 0xff;
        match bits >> 23 {
            EXPONENT_ALL_ONES => Self::NON_FINITE,
            // A biased exponent e means 2^(e-127) <= h < 2^(e-126). Zero and subnormals (e = 0) clamp.
            biased => Self(biased as i16 - 126).max(Self::MIN),
        }
    }

    /// The power of two by which values are scaled, `None` for the exponents above [`Self::MAX`].
    pub(crate) fn to_scale(self, sum_log2: i32) -> Option<f32> {
        // NOT_NEEDED (nobody had a value) scales like a block of zeros.
        let m = i32::from(self.max(Self::MIN).0);
        self.is_finite().then(|| power_of_two(sum_log2 - m))
    }
}

/// `ceil(log2 worker_count)`; 0 workers count as one.
pub(crate) fn ceil_log2(worker_count: u16) -> i32 {
    (u16::BITS - worker_count.max(1).saturating_sub(1).leading_zeros()) as i32
}

/// `2^exponent` as f32 for `-149 <= exponent <= 127`.
pub(crate) fn power_of_two(exponent: i32) -> f32 {
    debug_assert!((-149..=127).contains(&exponent));
    let bits = if exponent >= -126 { (exponent + 127) << 23 } else { 1 << (exponent + 149) };
    f32::from_bits(bits as u32)
}

/// `inverse` and `divisor` with a power-of-two divisor moved into the inverse, which saves the division and changes no
/// bit of a finite result: the product is then rounded once from the same exact value.
#[inline]
pub(crate) fn fold_divisor(inverse: f32, divisor: f32) -> (f32, f32) {
    const FRACTION: u32 = 0x007f_ffff;
    // A sum: most often, and a division takes as long as converting a vector.
    if divisor == 1.0 {
        return (inverse, divisor);
    }
    let folded = inverse / divisor;
    if divisor.to_bits() & FRACTION == 0 && folded.is_normal() { (folded, 1.0) } else { (inverse, divisor) }
}
