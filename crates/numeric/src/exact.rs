//! Exact sums: a wide integer for each element (Kulisch's long accumulator, with carries saved), rounded once at the read-out.
//!
//! Every finite number of a format is a whole multiple of the format's least number, and the accumulator holds such multiples:
//! digits of 32 bits in words of 64, so that additions touch two words and carry nothing. The result is the format's number
//! nearest to the exact sum, half to even, whatever the order of arrival, the number of contributions or the shape of a
//! tree of switches ([`Sum::merge`]).
//!
//! * The order does not matter.
//! * Error: half a unit in the last place of the result, for up to 2^31 contributions.
//! * Cost: 80 bytes per element for float32 and bfloat16, 24 for float16, and two integer additions per contribution.
//!
//! There is no vector version: each element adds to digits at places of its own. `cargo bench -p fanin-numeric --bench
//! accumulators -- exact` shows what that costs.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use crate::byte_order::ByteOrder;
use crate::certificate::{Certificate, Contributions, floor_log2, pow2};
use crate::check_length;
use crate::register_pair::{FloatFormat, NO_NUMBER, Rounding};
use crate::scalar::{Setup, bits_of_marks, extract, load, store};

/// Bits of a digit.
const DIGIT_BITS: u32 = 32;

/// One element's exact sum, in `LIMBS` digits of 32 bits with room for carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum<const LIMBS: usize> {
    /// `limbs[k]` counts `2^(32 k)` times the format's least number; signed, and not reduced.
    limbs: [i64; LIMBS],
    /// Infinities and NaN that arrived, see [`crate::register_pair::marks`].
    marks: i32,
}

/// Sums of float32: 277 bits.
pub type Float32Sum = Sum<9>;
/// Sums of float16: 40 bits.
pub type Float16Sum = Sum<2>;
/// Sums of bfloat16: 261 bits.
pub type Bfloat16Sum = Sum<9>;

impl<const LIMBS: usize> Default for Sum<LIMBS> {
    fn default() -> Self {
        Self { limbs: [0; LIMBS], marks: 0 }
    }
}

impl<const LIMBS: usize> Sum<LIMBS> {
    /// Adds another slot's sum, as a switch above adds those of switches below.
    pub fn merge(&mut self, other: &Self) {
        for (limb, more) in self.limbs.iter_mut().zip(other.limbs) {
            *limb += more;
        }
        self.marks |= other.marks;
    }

    /// Adds one number of the format, given as its bits.
    #[inline]
    fn add(&mut self, setup: &Setup, bits: u32) {
        let x = extract(setup, bits);
        if x.exponent == NO_NUMBER {
            self.marks |= x.mantissa;
            return;
        }
        // Exponent 1, and 0 of zero, is the place of the least number.
        let place = u32::from(x.exponent).saturating_sub(1);
        let (limb, shift) = ((place / DIGIT_BITS) as usize, place % DIGIT_BITS);
        let wide = i64::from(x.mantissa) << shift;
        // The lower digit is never negative, the upper one has the sign.
        self.limbs[limb] += wide & 0xffff_ffff;
        self.limbs[limb + 1] += wide >> DIGIT_BITS;
    }

    /// The nearest number of the format, half to even, as its bits.
    fn round(&self, format: FloatFormat) -> u32 {
        if self.marks != 0 {
            return bits_of_marks(format, self.marks);
        }
        let (is_negative, magnitude) = self.magnitude();
        let sign = u32::from(is_negative) << (8 * format.bytes() - 1);
        let Some(leading) = magnitude.leading_place() else { return 0 };
        // The last place that the format keeps: the least number's, or as many below the leading one as it has bits.
        let last = leading.saturating_sub(format.fraction_bits());
        let kept = magnitude.bits_from(last);
        let up = last > 0 && magnitude.bit(last - 1) && (kept & 1 == 1 || magnitude.any_below(last - 1));
        let bits = (u64::from(last) << format.fraction_bits()) + kept + u64::from(up);
        let infinity = format.field_max() << format.fraction_bits();
        sign | bits.min(infinity.into()) as u32
    }

    /// The sum's sign, and its magnitude in reduced digits.
    fn magnitude(&self) -> (bool, Magnitude<LIMBS>) {
        let positive = Magnitude::reduce(self.limbs);
        if positive.top >= 0 {
            return (false, positive);
        }
        (true, Magnitude::reduce(self.limbs.map(|limb| -limb)))
    }
}

/// A number of reduced digits; `top` is what is left beyond them.
struct Magnitude<const LIMBS: usize> {
    digits: [u32; LIMBS],
    top: i64,
}

impl<const LIMBS: usize> Magnitude<LIMBS> {
    /// Resolves the carries.
    fn reduce(limbs: [i64; LIMBS]) -> Self {
        let mut top = 0;
        let digits = limbs.map(|limb| {
            let digit = limb + top;
            top = digit >> DIGIT_BITS;
            digit as u32
        });
        Self { digits, top }
    }

    /// The digit at a place of 32 bits, those of `top` included.
    fn digit(&self, index: usize) -> u64 {
        let beyond = |k: usize| if k < 2 { (self.top as u64 >> (32 * k)) & 0xffff_ffff } else { 0 };
        self.digits.get(index).map_or_else(|| beyond(index - LIMBS), |digit| u64::from(*digit))
    }

    fn leading_place(&self) -> Option<u32> {
        (0..LIMBS + 2).rev().find(|k| self.digit(*k) != 0).map(|k| k as u32 * DIGIT_BITS + self.digit(k).ilog2())
    }

    /// The bits from a place on, at most 24 of which are used.
    fn bits_from(&self, place: u32) -> u64 {
        let (index, shift) = ((place / DIGIT_BITS) as usize, place % DIGIT_BITS);
        (self.digit(index) | self.digit(index + 1) << DIGIT_BITS) >> shift
    }

    fn bit(&self, place: u32) -> bool {
        self.bits_from(place) & 1 == 1
    }

    fn any_below(&self, place: u32) -> bool {
        let (index, shift) = ((place / DIGIT_BITS) as usize, place % DIGIT_BITS);
        (0..index).any(|k| self.digit(k) != 0) || self.digit(index) & ((1 << shift) - 1) != 0
    }
}

const fn setup(format: FloatFormat) -> Setup {
    let rounding = Rounding::NearestEven;
    Setup {
        format,
        guard_bits: 0,
        alignment: rounding,
        read_out: rounding,
        left_shift_max: None,
        order: ByteOrder::Big,
    }
}

macro_rules! exact_format {
    ($format:ident, $slot:ty, $overwrite:ident, $add:ident, $emit:ident) => {
        #[doc = concat!("`slot = payload` of big-endian ", stringify!($format), ": the first contribution.")]
        pub fn $overwrite(payload: &[u8], slot: &mut [$slot]) {
            slot.fill(Sum::default());
            $add(payload, slot);
        }

        #[doc = concat!("`slot += payload` of big-endian ", stringify!($format), ", exactly.")]
        pub fn $add(payload: &[u8], slot: &mut [$slot]) {
            const SETUP: Setup = setup(FloatFormat::$format);
            check_length(payload, SETUP.format.bytes(), slot.len());
            for (at, sum) in slot.iter_mut().enumerate() {
                sum.add(&SETUP, load(&SETUP, payload, at));
            }
        }

        #[doc = concat!("Writes the slot as big-endian ", stringify!($format), ", each sum rounded once, half to even.")]
        ///
        /// A sum of zero is +0, one beyond the largest number infinite.
        pub fn $emit(slot: &[$slot], payload: &mut [u8]) {
            const SETUP: Setup = setup(FloatFormat::$format);
            check_length(payload, SETUP.format.bytes(), slot.len());
            for (at, sum) in slot.iter().enumerate() {
                store(&SETUP, payload, at, sum.round(SETUP.format));
            }
        }
    };
}

exact_format!(Float32, Float32Sum, overwrite_f32, add_f32, emit_f32);
exact_format!(Float16, Float16Sum, overwrite_f16, add_f16, emit_f16);
exact_format!(Bfloat16, Bfloat16Sum, overwrite_bf16, add_bf16, emit_bf16);

/// What the sum of these contributions promises: half a unit in the last place of the largest possible result.
pub fn certify(format: FloatFormat, contributions: &Contributions) -> Certificate {
    let exponent = floor_log2(contributions.magnitude_sum).max(1 - format.bias());
    let half_unit = pow2(exponent - format.precision() as i32);
    let absolute_error = if exponent >= format.bias() { f64::INFINITY } else { half_unit };
    Certificate { order_independent: true, absolute_error, source: "spec/NUMERICS.md, section 5" }
}
