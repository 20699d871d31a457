//! The registers' additions and read-out, block by block.

use core::marker::PhantomData;

use crate::byte_order::ByteOrder;
use crate::register_pair::{FloatFormat, NO_NUMBER, Registers, Rounding};
use crate::scalar::{self, Setup};
use crate::telemetry::Telemetry;

/// Elements of a block: some vectors of every width.
const BLOCK: usize = 64;

/// A float format as constants. Words are arrays, so that no access in a loop needs a check.
trait Format {
    const FORMAT: FloatFormat;
    const FRACTION: u32 = Self::FORMAT.fraction_bits();
    /// An element in a payload.
    type Word: Copy;

    fn load(word: Self::Word, order: ByteOrder) -> u32;

    fn words(payload: &[u8]) -> &[Self::Word];

    const ZERO: Self::Word;
}

macro_rules! format {
    ($name:ident, $format:ident, $bits:ty, $bytes:literal) => {
        struct $name;

        impl Format for $name {
            const FORMAT: FloatFormat = FloatFormat::$format;
            type Word = [u8; $bytes];
            const ZERO: Self::Word = [0; $bytes];

            #[inline(always)]
            fn load(word: Self::Word, order: ByteOrder) -> u32 {
                match order {
                    ByteOrder::Big => <$bits>::from_be_bytes(word).into(),
                    ByteOrder::Little => <$bits>::from_le_bytes(word).into(),
                }
            }

            #[inline(always)]
            fn words(payload: &[u8]) -> &[Self::Word] {
                payload.as_chunks().0
            }
        }
    };
}

format!(F32, Float32, u32, 4);
format!(F16, Float16, u16, 2);
format!(Bf16, Bfloat16, u16, 2);

/// A rounding of the alignment: `mantissa / 2^distance`, for distances from 0.
trait Align {
    fn align(mantissa: i32, distance: i32) -> i32;
}

struct Floor;
struct TowardZero;
struct NearestEven;

impl Align for Floor {
    #[inline(always)]
    fn align(mantissa: i32, distance: i32) -> i32 {
        mantissa >> distance.min(31)
    }
}

impl Align for TowardZero {
    #[inline(always)]
    fn align(mantissa: i32, distance: i32) -> i32 {
        let quotient = mantissa.unsigned_abs() >> distance.min(31);
        let sign = mantissa >> 31;
        if distance > 31 { 0 } else { (quotient as i32 ^ sign).wrapping_sub(sign) }
    }
}

impl Align for NearestEven {
    /// Adds half a unit, less one where the quotient is even: from 32 places on at most a tie with zero is left.
    #[inline(always)]
    fn align(mantissa: i32, distance: i32) -> i32 {
        let (magnitude, sign, places) = (mantissa.unsigned_abs(), mantissa >> 31, distance.min(31));
        let half = (1u32 << places) >> 1;
        let is_odd = (magnitude >> places) & 1;
        let bias = if distance == 0 { 0 } else { half.wrapping_sub(1).wrapping_add(is_odd) };
        let quotient = magnitude.wrapping_add(bias) >> places;
        if distance > 31 { 0 } else { (quotient as i32 ^ sign).wrapping_sub(sign) }
    }
}

/// One number of a payload: field, register exponent and mantissa.
#[inline(always)]
fn extract<F: Format>(bits: u32, guard_bits: u32) -> (i32, i32, i32) {
    let fraction = bits & ((1 << F::FRACTION) - 1);
    let field = (bits >> F::FRACTION) & F::FORMAT.field_max();
    let implied = if field == 0 { 0 } else { 1 << F::FRACTION };
    // 0 for zero only; a subnormal's is 1.
    let exponent = field.max(fraction.min(1));
    let sign = ((bits << (32 - 8 * F::FORMAT.bytes())) as i32) >> 31;
    let magnitude = ((fraction | implied) << guard_bits) as i32;
    (field as i32, exponent as i32, (magnitude ^ sign) - sign)
}

/// Whether alignment dropped bits other than zero.
#[inline(always)]
fn is_inexact(before: i32, after: i32, distance: i32) -> bool {
    if distance > 31 { before != 0 } else { after.wrapping_shl(distance as u32) != before }
}

/// What the additions of a block met.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Negative if some element needs the reference.
    rare: i32,
    lost: i32,
    flushed: i32,
    overwritten: i32,
    left_shifts: i32,
}

impl Counts {
    #[inline(always)]
    fn alignment<const COUNT: bool>(&mut self, before: i32, after: i32, distance: i32) {
        if COUNT {
            self.lost += i32::from(is_inexact(before, after, distance));
            self.flushed += i32::from((after == 0) & (before != 0));
        }
    }

    fn add_to(&self, telemetry: &mut Telemetry) {
        telemetry.lost_bits += self.lost as u64;
        telemetry.flushed_to_zero += self.flushed as u64;
        telemetry.overwrite += self.overwritten as u64;
        telemetry.left_shift += self.left_shifts as u64;
    }
}

/// FPISA: whichever mantissa is smaller shifts (§3.2).
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "five arrays side by side, which vectorise so")]
fn add_exactly<F: Format, A: Align, const COUNT: bool>(
    words: &[F::Word; BLOCK],
    setup: &Setup,
    before: (&[u8; BLOCK], &[i32; BLOCK]),
    after: (&mut [u8; BLOCK], &mut [i32; BLOCK]),
) -> Counts {
    let mut counts = Counts::default();
    for k in 0..BLOCK {
        let (field, exponent, x) = extract::<F>(F::load(words[k], setup.order), setup.guard_bits);
        let (register, sum) = (i32::from(before.0[k]), before.1[k]);
        counts.rare |= no_number::<F>(field, register);
        let distance = (exponent - register).abs();
        let is_larger = exponent > register;
        let (small, large) = if is_larger { (sum, x) } else { (x, sum) };
        let aligned = A::align(small, distance);
        counts.alignment::<COUNT>(small, aligned, distance);
        let total = aligned.wrapping_add(large);
        counts.rare |= (aligned ^ total) & (large ^ total);
        after.0[k] = exponent.max(register) as u8;
        after.1[k] = total;
    }
    counts
}

/// FPISA-A: only the contribution shifts, or takes the register's place (§4.3).
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "as above")]
fn add_approximately<F: Format, A: Align, const COUNT: bool>(
    words: &[F::Word; BLOCK],
    (setup, limit): (&Setup, i32),
    before: (&[u8; BLOCK], &[i32; BLOCK]),
    after: (&mut [u8; BLOCK], &mut [i32; BLOCK]),
) -> Counts {
    let mut counts = Counts::default();
    for k in 0..BLOCK {
        let (field, exponent, x) = extract::<F>(F::load(words[k], setup.order), 0);
        let (register, sum) = (i32::from(before.0[k]), before.1[k]);
        counts.rare |= no_number::<F>(field, register);
        let (right, left) = ((register - exponent).max(0), (exponent - register).max(0));
        let aligned = A::align(x, right);
        counts.alignment::<COUNT>(x, aligned, right);
        let overwrites = left > limit;
        let kept = if overwrites { 0 } else { sum };
        let shifted = aligned << if overwrites { 0 } else { left & 31 };
        if COUNT {
            counts.overwritten += i32::from(overwrites & (sum != 0));
            counts.left_shifts += i32::from((left > 0) & !overwrites);
        }
        let total = kept.wrapping_add(shifted);
        counts.rare |= (kept ^ total) & (shifted ^ total);
        after.0[k] = if overwrites { exponent } else { register } as u8;
        after.1[k] = total;
    }
    counts
}

/// Negative where the contribution or the register holds no number.
#[inline(always)]
fn no_number<F: Format>(field: i32, register: i32) -> i32 {
    (F::FORMAT.field_max() as i32 - 1 - field) | (i32::from(NO_NUMBER) - 1 - register)
}

/// A step over one block.
trait Step<F: Format> {
    fn step(
        &mut self,
        words: &[F::Word; BLOCK],
        payload: &[u8],
        exponents: &mut [u8; BLOCK],
        mantissas: &mut [i32; BLOCK],
    );
}

/// Takes every whole block, then the rest in a block of its own, padded with zeros.
#[inline(always)]
fn each_block<F: Format>(payload: &[u8], slot: &mut Registers<'_>, mut step: impl Step<F>) {
    let bytes = F::FORMAT.bytes();
    let rest = slot.element_count() % BLOCK;
    let (word_blocks, words) = F::words(payload).as_chunks::<BLOCK>();
    let (exponent_blocks, exponents) = slot.exponents.as_chunks_mut::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks_mut::<BLOCK>();
    let payloads = payload.chunks_exact(bytes * BLOCK);
    for (((words, payload), exponents), mantissas) in
        word_blocks.iter().zip(payloads).zip(exponent_blocks).zip(mantissa_blocks)
    {
        step.step(words, payload, exponents, mantissas);
    }
    if rest > 0 {
        let (mut padded, mut wide, mut narrow) = ([F::ZERO; BLOCK], [0; BLOCK], [0; BLOCK]);
        let mut datagram = [0; 4 * BLOCK];
        datagram[..bytes * rest].copy_from_slice(&payload[payload.len() - bytes * rest..]);
        padded[..rest].copy_from_slice(words);
        narrow[..rest].copy_from_slice(exponents);
        wide[..rest].copy_from_slice(mantissas);
        step.step(&padded, &datagram[..bytes * BLOCK], &mut narrow, &mut wide);
        exponents.copy_from_slice(&narrow[..rest]);
        mantissas.copy_from_slice(&wide[..rest]);
    }
}

struct Add<'a, A, const COUNT: bool> {
    setup: &'a Setup,
    counts: &'a mut Telemetry,
    alignment: PhantomData<A>,
}

impl<F: Format, A: Align, const COUNT: bool> Step<F> for Add<'_, A, COUNT> {
    #[inline(always)]
    fn step(
        &mut self,
        words: &[F::Word; BLOCK],
        payload: &[u8],
        exponents: &mut [u8; BLOCK],
        mantissas: &mut [i32; BLOCK],
    ) {
        let (before, mut exponents_after, mut sums) = ((&*exponents, &*mantissas), [0; BLOCK], [0; BLOCK]);
        let after = (&mut exponents_after, &mut sums);
        let counts = match self.setup.left_shift_max {
            None => add_exactly::<F, A, COUNT>(words, self.setup, before, after),
            Some(limit) => add_approximately::<F, A, COUNT>(words, (self.setup, limit as i32), before, after),
        };
        if counts.rare < 0 {
            return add_rare(self.setup, payload, exponents, mantissas, self.counts);
        }
        *exponents = exponents_after;
        *mantissas = sums;
        if COUNT {
            counts.add_to(self.counts);
        }
    }
}

#[cold]
#[inline(never)]
fn add_rare(setup: &Setup, payload: &[u8], exponents: &mut [u8], mantissas: &mut [i32], counts: &mut Telemetry) {
    scalar::fpisa_add(setup, payload, &mut Registers { exponents, mantissas }, Some(counts));
}

#[inline(always)]
fn add_format<F: Format, const COUNT: bool>(
    setup: &Setup,
    payload: &[u8],
    slot: &mut Registers<'_>,
    counts: &mut Telemetry,
) {
    match setup.alignment {
        Rounding::Floor => {
            each_block::<F>(payload, slot, Add::<Floor, COUNT> { setup, counts, alignment: PhantomData })
        }
        Rounding::TowardZero => {
            each_block::<F>(payload, slot, Add::<TowardZero, COUNT> { setup, counts, alignment: PhantomData });
        }
        Rounding::NearestEven => {
            each_block::<F>(payload, slot, Add::<NearestEven, COUNT> { setup, counts, alignment: PhantomData });
        }
    }
}

#[inline(always)]
pub(crate) fn fpisa_add(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
    let mut unread = Telemetry::default();
    match (setup.format, telemetry) {
        (FloatFormat::Float32, Some(counts)) => add_format::<F32, true>(setup, payload, slot, counts),
        (FloatFormat::Float32, None) => add_format::<F32, false>(setup, payload, slot, &mut unread),
        (FloatFormat::Float16, Some(counts)) => add_format::<F16, true>(setup, payload, slot, counts),
        (FloatFormat::Float16, None) => add_format::<F16, false>(setup, payload, slot, &mut unread),
        (FloatFormat::Bfloat16, Some(counts)) => add_format::<Bf16, true>(setup, payload, slot, counts),
        (FloatFormat::Bfloat16, None) => add_format::<Bf16, false>(setup, payload, slot, &mut unread),
    }
}

struct Overwrite<'a>(&'a Setup);

impl<F: Format> Step<F> for Overwrite<'_> {
    #[inline(always)]
    fn step(
        &mut self,
        words: &[F::Word; BLOCK],
        payload: &[u8],
        exponents: &mut [u8; BLOCK],
        mantissas: &mut [i32; BLOCK],
    ) {
        let mut rare = 0;
        for k in 0..BLOCK {
            let (field, exponent, x) = extract::<F>(F::load(words[k], self.0.order), self.0.guard_bits);
            (exponents[k], mantissas[k]) = (exponent as u8, x);
            rare |= no_number::<F>(field, 0);
        }
        if rare < 0 {
            scalar::fpisa_overwrite(self.0, payload, &mut Registers { exponents, mantissas });
        }
    }
}

#[inline(always)]
pub(crate) fn fpisa_overwrite(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    match setup.format {
        FloatFormat::Float32 => each_block::<F32>(payload, slot, Overwrite(setup)),
        FloatFormat::Float16 => each_block::<F16>(payload, slot, Overwrite(setup)),
        FloatFormat::Bfloat16 => each_block::<Bf16>(payload, slot, Overwrite(setup)),
    }
}

/// The f32 read-out through f64, which holds every register exactly: converting rounds once. 16-bit formats use the
/// reference.
#[inline(always)]
pub(crate) fn fpisa_emit(
    setup: &Setup,
    slot: &Registers<'_>,
    payload: &mut [u8],
    mut telemetry: Option<&mut Telemetry>,
) {
    if setup.format != FloatFormat::Float32 {
        return scalar::fpisa_emit(setup, slot, payload, telemetry);
    }
    let blocks = slot.exponents.chunks(BLOCK).zip(slot.mantissas.chunks(BLOCK));
    for ((exponents, mantissas), payload) in blocks.zip(payload.chunks_mut(4 * BLOCK)) {
        let is_rare = match setup.read_out {
            Rounding::Floor => emit_block(setup, exponents, mantissas, payload, |r, x| {
                let below = f64::from(r) > x;
                let step = if r.is_sign_negative() { 1 } else { u32::MAX };
                r.to_bits().wrapping_add(if below { step } else { 0 })
            }),
            Rounding::TowardZero => emit_block(setup, exponents, mantissas, payload, |r, x| {
                let beyond = f64::from(r).abs() > x.abs();
                r.to_bits().wrapping_sub(u32::from(beyond))
            }),
            Rounding::NearestEven => emit_block(setup, exponents, mantissas, payload, |r, _| r.to_bits()),
        };
        if is_rare {
            emit_rare(setup, exponents, mantissas, payload, telemetry.as_deref_mut());
        }
    }
}

/// Writes the block and says whether the reference must do it again: an element without a number, a result in the highest
/// binade or beyond, or one below the least normal number.
#[inline(always)]
fn emit_block(
    setup: &Setup,
    exponents: &[u8],
    mantissas: &[i32],
    payload: &mut [u8],
    round: impl Fn(f32, f64) -> u32,
) -> bool {
    const USUAL: u32 = 0x0080_0000;
    const USUAL_COUNT: u32 = 0x7f00_0000 - USUAL;
    let unit = 1023 - 127 - 23 - setup.guard_bits as i32;
    let mut rare = false;
    for ((exponent, mantissa), word) in exponents.iter().zip(mantissas).zip(payload.as_chunks_mut::<4>().0) {
        let scale = f64::from_bits(((i32::from(*exponent) + unit) as u64) << 52);
        let exact = f64::from(*mantissa) * scale;
        let bits = round(exact as f32, exact);
        let is_usual = (bits & 0x7fff_ffff).wrapping_sub(USUAL) < USUAL_COUNT;
        rare |= (!is_usual & (*mantissa != 0)) | (*exponent == NO_NUMBER);
        *word = match setup.order {
            ByteOrder::Big => bits.to_be_bytes(),
            ByteOrder::Little => bits.to_le_bytes(),
        };
    }
    rare
}

#[cold]
#[inline(never)]
fn emit_rare(
    setup: &Setup,
    exponents: &[u8],
    mantissas: &[i32],
    payload: &mut [u8],
    telemetry: Option<&mut Telemetry>,
) {
    // The reference only reads; copies make the registers its own.
    let (mut narrow, mut wide) = ([0; BLOCK], [0; BLOCK]);
    let count = exponents.len();
    narrow[..count].copy_from_slice(exponents);
    wide[..count].copy_from_slice(mantissas);
    let slot = Registers { exponents: &mut narrow[..count], mantissas: &mut wide[..count] };
    scalar::fpisa_emit(setup, &slot, payload, telemetry);
}
