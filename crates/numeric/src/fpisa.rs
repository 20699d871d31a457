//! FPISA: floats added in integer registers, as a switch without floating point can (Yuan et al., NSDI 2022, §3).
//!
//! A slot is a [`Registers`] pair per element. To add, the mantissa of the smaller exponent is shifted right and the two are
//! added; nothing is renormalised before the read-out. What the paper leaves open is settled in `spec/NUMERICS.md`: zeros do
//! not touch the exponent, subnormals are exact, infinities and NaN are kept apart as marks, and a register that overflows is
//! marked and read out as the NaN with payload 1, which another FPISA switch knows again.
//!
//! * The order matters: a result depends on it wherever alignment drops bits. It does not if no two exponents of an element
//!   differ by more than the guard bits.
//! * Error: each addition drops less than one unit of the last place of the largest contribution, guard bits included (half of
//!   one with [`Rounding::NearestEven`]); the read-out rounds once. [`Fpisa::certify`] gives the number.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use crate::byte_order::ByteOrder;
use crate::certificate::{Certificate, Contributions, floor_log2, pow2};
use crate::register_pair::{FloatFormat, NoRoom, Registers, Rounding, sum_bits};
use crate::scalar::Setup;
use crate::telemetry::Telemetry;
use crate::{check_length, simd as kernel};

/// The accumulator: a format, guard bits to the right of the mantissa, and a rounding each for alignment and read-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fpisa(Setup);

impl Fpisa {
    /// As the paper has it: no guard bits, alignment by arithmetic shifts, a read-out that truncates the magnitude (§3.2).
    pub const fn paper(format: FloatFormat) -> Self {
        let (alignment, read_out) = (Rounding::Floor, Rounding::TowardZero);
        Self(Setup { format, guard_bits: 0, alignment, read_out, left_shift_max: None, order: ByteOrder::Big })
    }

    /// With guard bits (Appendix A.1) and roundings of choice. Each guard bit halves [`Self::workers_max`].
    ///
    /// # Errors
    /// When the register has no room for the guard bits.
    pub fn new(format: FloatFormat, guard_bits: u32, alignment: Rounding, read_out: Rounding) -> Result<Self, NoRoom> {
        check_room(format, guard_bits)?;
        Ok(Self(Setup { format, guard_bits, alignment, read_out, left_shift_max: None, order: ByteOrder::Big }))
    }

    /// The guard bits that `worker_count` contributions leave of the headroom, so that none of their sums overflows while there
    /// is room for them; the read-out rounds to nearest. Alignment is the paper's, an arithmetic shift.
    pub fn for_workers(format: FloatFormat, worker_count: u32) -> Self {
        let guard_bits = format.headroom_bits().saturating_sub(sum_bits(worker_count));
        let (alignment, read_out) = (Rounding::Floor, Rounding::NearestEven);
        Self(Setup { format, guard_bits, alignment, read_out, left_shift_max: None, order: ByteOrder::Big })
    }

    /// The same for payloads of little-endian floats, as raw floats travel. Without, they are big-endian.
    pub const fn little_endian(self) -> Self {
        Self(Setup { order: ByteOrder::Little, ..self.0 })
    }

    /// The payload's format.
    pub const fn format(&self) -> FloatFormat {
        self.0.format
    }

    /// As many contributions never overflow the register: 128 for float32 without guard bits (§3.3).
    pub const fn workers_max(&self) -> u32 {
        1 << (self.0.format.headroom_bits() - self.0.guard_bits)
    }

    /// `slot = payload`: the first contribution.
    pub fn overwrite(&self, payload: &[u8], slot: &mut Registers<'_>) {
        check_length(payload, self.0.format.bytes(), slot.element_count());
        kernel::fpisa_overwrite(&self.0, payload, slot);
    }

    /// `slot += payload`.
    pub fn add(&self, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
        check_length(payload, self.0.format.bytes(), slot.element_count());
        kernel::fpisa_add(&self.0, payload, slot, telemetry);
    }

    /// Writes the slot as floats in the payload's byte order, renormalised and rounded once; the registers stay as they are.
    pub fn emit(&self, slot: &Registers<'_>, payload: &mut [u8], telemetry: Option<&mut Telemetry>) {
        check_length(payload, self.0.format.bytes(), slot.element_count());
        kernel::fpisa_emit(&self.0, slot, payload, telemetry);
    }

    /// What the sum of these contributions promises; nothing beyond [`Self::workers_max`].
    pub fn certify(&self, contributions: &Contributions) -> Certificate {
        let dropped = alignment_error(&self.0, contributions);
        let absolute_error = if contributions.worker_count > self.workers_max() {
            f64::INFINITY
        } else {
            dropped + read_out_error(&self.0, contributions.magnitude_sum + dropped)
        };
        Certificate { order_independent: false, absolute_error, source: "spec/NUMERICS.md, section 2.4" }
    }
}

pub(crate) fn check_room(format: FloatFormat, wanted: u32) -> Result<(), NoRoom> {
    let headroom_bits = format.headroom_bits();
    if wanted <= headroom_bits { Ok(()) } else { Err(NoRoom { wanted, headroom_bits }) }
}

/// What all additions together drop: one unit of the register's last place each, at its highest exponent.
pub(crate) fn alignment_error(setup: &Setup, contributions: &Contributions) -> f64 {
    let exponent = floor_log2(contributions.magnitude_max).max(1 - setup.format.bias());
    let unit = pow2(exponent - setup.format.fraction_bits() as i32 - setup.guard_bits as i32);
    let share = if setup.alignment == Rounding::NearestEven { 0.5 } else { 1.0 };
    f64::from(contributions.worker_count.saturating_sub(1)) * share * unit
}

/// What rounding a sum of at most `magnitude` to the format drops; infinite if it may be too large for it.
pub(crate) fn read_out_error(setup: &Setup, magnitude: f64) -> f64 {
    let format = setup.format;
    let exponent = floor_log2(magnitude).max(1 - format.bias());
    if exponent >= format.bias() {
        return f64::INFINITY;
    }
    let share = if setup.read_out == Rounding::NearestEven { 0.5 } else { 1.0 };
    share * pow2(exponent - format.fraction_bits() as i32)
}
