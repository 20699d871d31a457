//! A float as two integer registers, exponent and signed mantissa (FPISA §3.1, Fig. 3): what [`fpisa`](crate::fpisa) and
//! [`fpisa_a`](crate::fpisa_a) share.
//!
//! An element's value is `mantissa * 2^(exponent - bias - fraction_bits - guard_bits)`, whether or not the mantissa is
//! normalised. The exponent register 255 holds no number: the mantissa register then is a set of [`marks`].

/// The float format of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatFormat {
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16: binary32 without its low 16 bits.
    Bfloat16,
}

impl FloatFormat {
    /// Bytes of an element in a payload.
    pub const fn bytes(self) -> usize {
        match self {
            FloatFormat::Float32 => 4,
            FloatFormat::Float16 | FloatFormat::Bfloat16 => 2,
        }
    }

    /// Bits of the fraction field.
    pub const fn fraction_bits(self) -> u32 {
        match self {
            FloatFormat::Float32 => 23,
            FloatFormat::Float16 => 10,
            FloatFormat::Bfloat16 => 7,
        }
    }

    /// Significant bits, the implied one included.
    pub const fn precision(self) -> u32 {
        self.fraction_bits() + 1
    }

    /// What the exponent field of 1.0 holds.
    pub const fn bias(self) -> i32 {
        match self {
            FloatFormat::Float32 | FloatFormat::Bfloat16 => 127,
            FloatFormat::Float16 => 15,
        }
    }

    /// The exponent field of infinities and NaN.
    pub const fn field_max(self) -> u32 {
        2 * self.bias() as u32 + 1
    }

    /// Bits of a 32-bit signed register to the left of this format's mantissa (FPISA §3.3): 7, 20 and 23.
    pub const fn headroom_bits(self) -> u32 {
        31 - self.precision()
    }
}

/// How bits that do not fit are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Toward negative infinity: an arithmetic shift, as in the paper's alignment (§3.3, Appendix A.1).
    Floor,
    /// Toward zero: a shift of the magnitude, as in the paper's read-out (§3.2, MAU5 and MAU6).
    TowardZero,
    /// To the nearest, ties to even.
    NearestEven,
}

/// The registers of a slot, one pair per element.
#[derive(Debug)]
pub struct Registers<'a> {
    /// Biased exponents; 255 marks an element that holds no number.
    pub exponents: &'a mut [u8],
    /// Signed mantissas, or sets of [`marks`].
    pub mantissas: &'a mut [i32],
}

impl Registers<'_> {
    /// Elements of the slot.
    ///
    /// # Panics
    /// When there are not as many exponents as mantissas.
    pub(crate) fn element_count(&self) -> usize {
        assert_eq!(
            self.exponents.len(),
            self.mantissas.len(),
            "a slot has one exponent per mantissa: pass equal lengths"
        );
        self.mantissas.len()
    }
}

/// The exponent register of an element that holds no number.
pub const NO_NUMBER: u8 = 255;

/// What an element without a number has met; marks accumulate, so what is read out does not depend on their order.
pub mod marks {
    /// A NaN arrived.
    pub const NAN: i32 = 1;
    /// Positive infinity arrived.
    pub const POSITIVE_INFINITY: i32 = 2;
    /// Negative infinity arrived.
    pub const NEGATIVE_INFINITY: i32 = 4;
    /// The mantissa register overflowed here, or below in a tree of switches.
    pub const OVERFLOW: i32 = 8;
}

/// Guard bits and left shifts that the mantissa register has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Bits wanted beside the mantissa.
    pub wanted: u32,
    /// Bits that there are, [`FloatFormat::headroom_bits`].
    pub headroom_bits: u32,
}

impl core::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { wanted, headroom_bits } = self;
        write!(
            f,
            "{wanted} bits beside the mantissa are wanted, the register has {headroom_bits}: use fewer guard bits, "
        )?;
        write!(f, "a smaller shift or fewer workers")
    }
}

impl core::error::Error for NoRoom {}

/// `ceil(log2 worker_count)`, 0 for none.
pub(crate) fn sum_bits(worker_count: u32) -> u32 {
    u32::BITS - worker_count.max(1).saturating_sub(1).leading_zeros()
}
