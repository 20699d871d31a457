//! FPISA-A: the approximation of FPISA for switches that cannot shift a register and add to it in one stage (FPISA §4.3).
//!
//! Only the contribution shifts: right if its exponent is not larger, left by up to `H` bits if it is, and beyond that it takes
//! the register's place, whatever the register held. [`FpisaA::paper`] is the paper's, `H` = all bits of headroom: a shifted
//! contribution fills the register alone, and the next may overflow it (which the paper excludes, and which marks the
//! element here). [`FpisaA::for_workers`] leaves room, `H + ceil(log2 W) <= headroom`, and then no `W` contributions overflow.
//!
//! * The order matters.
//! * Error: an overwrite loses all that came before it, so nothing better than the sum of magnitudes is promised; with
//!   neither overwrites nor left shifts counted, FPISA's bound holds.
//!
//! # Panics
//! Every verb panics when its slices' lengths do not belong together.

use crate::byte_order::ByteOrder;
use crate::certificate::{Certificate, Contributions};
use crate::fpisa::{alignment_error, check_room, read_out_error};
use crate::register_pair::{FloatFormat, NoRoom, Registers, Rounding, sum_bits};
use crate::scalar::Setup;
use crate::telemetry::Telemetry;
use crate::{check_length, simd as kernel};

/// The accumulator: a format and the greatest shift to the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FpisaA {
    setup: Setup,
    left_shift_max: u32,
}

impl FpisaA {
    /// As the paper has it: left shifts of up to the headroom (7 for float32), arithmetic right shifts, a truncating read-out.
    pub const fn paper(format: FloatFormat) -> Self {
        Self::with_shift(format, format.headroom_bits(), Rounding::Floor, Rounding::TowardZero)
    }

    /// Never overflows for `worker_count` contributions. Left shifts have what these leave of the headroom.
    ///
    /// # Errors
    /// When so many contributions of equal exponent fill the register by themselves.
    pub fn for_workers(
        format: FloatFormat,
        worker_count: u32,
        alignment: Rounding,
        read_out: Rounding,
    ) -> Result<Self, NoRoom> {
        check_room(format, sum_bits(worker_count))?;
        Ok(Self::with_shift(format, format.headroom_bits() - sum_bits(worker_count), alignment, read_out))
    }

    const fn with_shift(format: FloatFormat, left_shift_max: u32, alignment: Rounding, read_out: Rounding) -> Self {
        let setup = Setup {
            format,
            guard_bits: 0,
            alignment,
            read_out,
            left_shift_max: Some(left_shift_max),
            order: ByteOrder::Big,
        };
        Self { setup, left_shift_max }
    }

    /// The same for payloads of little-endian floats, as raw floats travel. Without, they are big-endian.
    pub const fn little_endian(self) -> Self {
        Self { setup: Setup { order: ByteOrder::Little, ..self.setup }, ..self }
    }

    /// The payload's format.
    pub const fn format(&self) -> FloatFormat {
        self.setup.format
    }

    /// `H`, the greatest shift to the left.
    pub const fn left_shift_max(&self) -> u32 {
        self.left_shift_max
    }

    /// `slot = payload`: the first contribution.
    pub fn overwrite(&self, payload: &[u8], slot: &mut Registers<'_>) {
        check_length(payload, self.setup.format.bytes(), slot.element_count());
        kernel::fpisa_overwrite(&self.setup, payload, slot);
    }

    /// `slot += payload`, approximately.
    pub fn add(&self, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
        check_length(payload, self.setup.format.bytes(), slot.element_count());
        kernel::fpisa_add(&self.setup, payload, slot, telemetry);
    }

    /// Writes the slot as floats in the payload's byte order, renormalised and rounded once; the registers stay as they are.
    pub fn emit(&self, slot: &Registers<'_>, payload: &mut [u8], telemetry: Option<&mut Telemetry>) {
        check_length(payload, self.setup.format.bytes(), slot.element_count());
        kernel::fpisa_emit(&self.setup, slot, payload, telemetry);
    }

    /// What the sum of these contributions promises: the sum of magnitudes, since an overwrite may lose all before it; and
    /// nothing where the register may overflow.
    pub fn certify(&self, contributions: &Contributions) -> Certificate {
        let needed = self.left_shift_max + sum_bits(contributions.worker_count);
        let dropped = contributions.magnitude_sum + alignment_error(&self.setup, contributions);
        let absolute_error = if needed > self.setup.format.headroom_bits() {
            f64::INFINITY
        } else {
            dropped + read_out_error(&self.setup, contributions.magnitude_sum + dropped)
        };
        Certificate { order_independent: false, absolute_error, source: "spec/NUMERICS.md, section 3" }
    }
}
