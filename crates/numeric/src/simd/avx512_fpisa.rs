//! FPISA's and FPISA-A's registers on 512-bit registers, 64 elements at a time.
//!
//! As in [`crate::blocks`], a block that meets something rare is left to the scalar reference as a whole, before anything of it
//! has been stored; so are the elements behind the last whole block, and alignments other than the paper's.

use core::arch::x86_64::*;

use crate::register_pair::{FloatFormat, NO_NUMBER, Registers, Rounding};
use crate::scalar::Setup;
use crate::telemetry::Telemetry;
use crate::{blocks, scalar};

const LANES: usize = 16;
/// Vectors of a block.
const VECTORS: usize = 4;
const BLOCK: usize = VECTORS * LANES;
/// Bits of a format's exponent field: 8, or 5 in binary16.
const WIDE: u32 = 8;
const HALF: u32 = 5;

/// Orders of bytes for shuffles: words turned round, the two low bytes of words turned round and moved to the top, and half words turned round.
const SWAP_WORDS: i128 = 0x0c0d_0e0f_0809_0a0b_0405_0607_0001_0203;
const SWAP_TO_TOP: i128 = 0x0c0d_8080_0809_8080_0405_8080_0001_8080_u128 as i128;
const SWAP_HALVES: i128 = 0x0e0f_0c0d_0a0b_0809_0607_0405_0203_0001;

/// Contributions, one per lane: the exponent register's value and the mantissa.
#[derive(Clone, Copy)]
struct Lanes {
    exponents: __m512i,
    mantissas: __m512i,
}

/// Counts of a call, one per lane. A lane meets a few hundred elements per call.
#[derive(Clone, Copy)]
struct Counts {
    lost: __m512i,
    flushed: __m512i,
    overwritten: __m512i,
    left_shifts: __m512i,
}

/// What the additions of a block have met that the reference must look at.
#[derive(Clone, Copy)]
struct Rare {
    exponent_max: __m512i,
    /// Negative where a sum has left the register.
    overflow: __m512i,
}

/// `slot += payload`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) fn fpisa_add(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>) {
    if setup.alignment != Rounding::Floor {
        return blocks::fpisa_add(setup, payload, slot, telemetry);
    }
    match telemetry {
        Some(counts) => add_format::<true>(setup, payload, slot, counts),
        None => add_format::<false>(setup, payload, slot, &mut Telemetry::default()),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn add_format<const COUNT: bool>(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>, telemetry: &mut Telemetry) {
    match (setup.format, setup.left_shift_max.is_some()) {
        (FloatFormat::Float32, false) => add_blocks::<4, WIDE, false, COUNT>(setup, payload, slot, telemetry),
        (FloatFormat::Float16, false) => add_blocks::<2, HALF, false, COUNT>(setup, payload, slot, telemetry),
        (FloatFormat::Bfloat16, false) => add_blocks::<2, WIDE, false, COUNT>(setup, payload, slot, telemetry),
        (FloatFormat::Float32, true) => add_blocks::<4, WIDE, true, COUNT>(setup, payload, slot, telemetry),
        (FloatFormat::Float16, true) => add_blocks::<2, HALF, true, COUNT>(setup, payload, slot, telemetry),
        (FloatFormat::Bfloat16, true) => add_blocks::<2, WIDE, true, COUNT>(setup, payload, slot, telemetry),
    }
}

// One function per format: the loops of all of them together spill.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn add_blocks<const BYTES: usize, const FIELD: u32, const APPROXIMATELY: bool, const COUNT: bool>(
    setup: &Setup,
    payload: &[u8],
    slot: &mut Registers<'_>,
    telemetry: &mut Telemetry,
) {
    let zero = _mm512_setzero_si512();
    let mut counts = Counts { lost: zero, flushed: zero, overwritten: zero, left_shifts: zero };
    let (exponent_blocks, exponents) = slot.exponents.as_chunks_mut::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks_mut::<BLOCK>();
    let payloads = payload.chunks_exact(BYTES * BLOCK);
    let rest = payloads.remainder();
    let guard_bits = setup.guard_bits;
    let limit = _mm512_set1_epi32(setup.left_shift_max.unwrap_or(0) as i32);
    for ((payload, exponents), mantissas) in payloads.zip(exponent_blocks).zip(mantissa_blocks) {
        let counts_before = counts;
        let mut rare = Rare { exponent_max: zero, overflow: zero };
        let mut after = [Lanes { exponents: zero, mantissas: zero }; VECTORS];
        for (k, after) in after.iter_mut().enumerate() {
            let x = extract::<BYTES, FIELD>(load::<BYTES>(payload, k), guard_bits);
            let sum = Lanes { exponents: load_exponents(exponents, k), mantissas: load_mantissas(mantissas, k) };
            *after = if APPROXIMATELY {
                add_approximately::<COUNT>(sum, x, limit, &mut rare, &mut counts)
            } else {
                add_exactly::<COUNT>(sum, x, &mut rare, &mut counts)
            };
        }
        if is_rare::<FIELD>(&rare) {
            counts = counts_before;
            add_rare(setup, payload, exponents, mantissas, telemetry);
            continue;
        }
        for (k, after) in after.iter().enumerate() {
            store_exponents(exponents, k, after.exponents);
            store_mantissas(mantissas, k, after.mantissas);
        }
    }
    if COUNT {
        telemetry.lost_bits += total(counts.lost);
        telemetry.flushed_to_zero += total(counts.flushed);
        telemetry.overwrite += total(counts.overwritten);
        telemetry.left_shift += total(counts.left_shifts);
    }
    if !exponents.is_empty() {
        let telemetry = if COUNT { Some(telemetry) } else { None };
        scalar::fpisa_add(setup, rest, &mut Registers { exponents, mantissas }, telemetry);
    }
}

/// FPISA (§3.2). Both mantissas are shifted to the larger exponent, one of them by nothing: cheaper than to choose.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn add_exactly<const COUNT: bool>(sum: Lanes, x: Lanes, rare: &mut Rare, counts: &mut Counts) -> Lanes {
    let exponents = _mm512_max_epi32(sum.exponents, x.exponents);
    let distances = [sum, x].map(|lanes| _mm512_sub_epi32(exponents, lanes.exponents));
    // The shift takes counts beyond 31 as the definition does: the sign is left.
    let kept = _mm512_srav_epi32(sum.mantissas, distances[0]);
    let added = _mm512_srav_epi32(x.mantissas, distances[1]);
    if COUNT {
        count_alignment(sum.mantissas, kept, distances[0], counts);
        count_alignment(x.mantissas, added, distances[1], counts);
    }
    rare.exponent_max = _mm512_max_epi32(rare.exponent_max, exponents);
    Lanes { exponents, mantissas: add(kept, added, rare) }
}

/// FPISA-A: only the contribution shifts, or takes the register's place (§4.3).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn add_approximately<const COUNT: bool>(
    sum: Lanes,
    x: Lanes,
    limit: __m512i,
    rare: &mut Rare,
    counts: &mut Counts,
) -> Lanes {
    let zero = _mm512_setzero_si512();
    let higher = _mm512_sub_epi32(x.exponents, sum.exponents);
    let left = _mm512_max_epi32(higher, zero);
    let right = _mm512_sub_epi32(left, higher);
    let stays = _mm512_cmple_epi32_mask(left, limit);
    let aligned = _mm512_srav_epi32(x.mantissas, right);
    let added = _mm512_mask_sllv_epi32(aligned, stays, aligned, left);
    let kept = _mm512_maskz_mov_epi32(stays, sum.mantissas);
    if COUNT {
        count_alignment(x.mantissas, aligned, right, counts);
        let one = _mm512_set1_epi32(1);
        let overwritten = _mm512_mask_test_epi32_mask(!stays, sum.mantissas, sum.mantissas);
        counts.overwritten = _mm512_mask_add_epi32(counts.overwritten, overwritten, counts.overwritten, one);
        let shifted = _mm512_mask_test_epi32_mask(stays, left, left);
        counts.left_shifts = _mm512_mask_add_epi32(counts.left_shifts, shifted, counts.left_shifts, one);
    }
    let both = _mm512_max_epi32(sum.exponents, x.exponents);
    rare.exponent_max = _mm512_max_epi32(rare.exponent_max, both);
    let exponents = _mm512_mask_mov_epi32(x.exponents, stays, sum.exponents);
    Lanes { exponents, mantissas: add(kept, added, rare) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn add(kept: __m512i, added: __m512i, rare: &mut Rare) -> __m512i {
    let total = _mm512_add_epi32(kept, added);
    // (kept ^ total) & (added ^ total)
    let left = _mm512_ternarylogic_epi32::<0b0001_1000>(total, kept, added);
    rare.overflow = _mm512_or_si512(rare.overflow, left);
    total
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn count_alignment(before: __m512i, after: __m512i, distance: __m512i, counts: &mut Counts) {
    let one = _mm512_set1_epi32(1);
    // A shift by 32 or more leaves 0, and all that there was is lost.
    let lost = _mm512_cmpneq_epi32_mask(_mm512_sllv_epi32(after, distance), before);
    counts.lost = _mm512_mask_add_epi32(counts.lost, lost, counts.lost, one);
    let flushed = _mm512_mask_testn_epi32_mask(lost, after, after);
    counts.flushed = _mm512_mask_add_epi32(counts.flushed, flushed, counts.flushed, one);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn total(counts: __m512i) -> u64 {
    _mm512_reduce_add_epi32(counts) as u64
}

/// An element that holds no number, on either side, or a sum that has left the register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn is_rare<const FIELD: u32>(rare: &Rare) -> bool {
    let field_max = _mm512_set1_epi32((1 << FIELD) - 1);
    // Exponent registers end below the field's maximum, but for the mark of no number.
    _mm512_cmpge_epi32_mask(rare.exponent_max, field_max) | signs(rare.overflow) != 0
}

/// The sign bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn signs(lanes: __m512i) -> __mmask16 {
    _mm512_cmplt_epi32_mask(lanes, _mm512_setzero_si512())
}

/// The same order of bytes in every 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn bytes(order: i128) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x((order >> 64) as i64, order as i64))
}

/// Elements `LANES * k..` of a payload's block, each in the top bits of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn load<const BYTES: usize>(payload: &[u8], k: usize) -> __m512i {
    let from = &payload[BYTES * LANES * k..][..BYTES * LANES];
    // SAFETY: `from` holds as many bytes.
    unsafe {
        if BYTES == 4 {
            _mm512_shuffle_epi8(_mm512_loadu_si512(from.as_ptr().cast()), bytes(SWAP_WORDS))
        } else {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_shuffle_epi8(halves, bytes(SWAP_TO_TOP))
        }
    }
}

/// Exponent and mantissa of numbers in the top bits of their lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn extract<const BYTES: usize, const FIELD: u32>(bits: __m512i, guard_bits: u32) -> Lanes {
    let below_field = 31 - FIELD;
    let fraction_mask = _mm512_set1_epi32((1 << below_field) - 1);
    let field_mask = _mm512_set1_epi32(((1u32 << 31) - (1 << below_field)) as i32);
    let fraction = _mm512_and_si512(bits, fraction_mask);
    let is_normal = _mm512_test_epi32_mask(bits, field_mask);
    let implied = _mm512_set1_epi32(1 << below_field);
    let significand = _mm512_mask_or_epi32(fraction, is_normal, fraction, implied);
    // The unused bits below a fraction of 16-bit formats, and the guard bits.
    let significand = if BYTES == 4 { significand } else { _mm512_srli_epi32::<16>(significand) };
    let significand = _mm512_sll_epi32(significand, _mm_cvtsi32_si128(guard_bits as i32));
    let is_negative = signs(bits);
    let mantissas = _mm512_mask_sub_epi32(significand, is_negative, _mm512_setzero_si512(), significand);
    let field = _mm512_srl_epi32(_mm512_slli_epi32::<1>(bits), _mm_cvtsi32_si128(32 - FIELD as i32));
    // 1 for subnormals, 0 for zero only: whatever a fraction holds carries into the field.
    let carry = _mm512_add_epi32(fraction, fraction_mask);
    let subnormal = _mm512_srl_epi32(carry, _mm_cvtsi32_si128(below_field as i32));
    Lanes { exponents: _mm512_max_epi32(field, subnormal), mantissas }
}

/// `slot = payload`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) fn fpisa_overwrite(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    match setup.format {
        FloatFormat::Float32 => overwrite_blocks::<4, WIDE>(setup, payload, slot),
        FloatFormat::Float16 => overwrite_blocks::<2, HALF>(setup, payload, slot),
        FloatFormat::Bfloat16 => overwrite_blocks::<2, WIDE>(setup, payload, slot),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn overwrite_blocks<const BYTES: usize, const FIELD: u32>(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    let (exponent_blocks, exponents) = slot.exponents.as_chunks_mut::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks_mut::<BLOCK>();
    let payloads = payload.chunks_exact(BYTES * BLOCK);
    let rest = payloads.remainder();
    for ((payload, exponents), mantissas) in payloads.zip(exponent_blocks).zip(mantissa_blocks) {
        let zero = _mm512_setzero_si512();
        let mut rare = Rare { exponent_max: zero, overflow: zero };
        for k in 0..VECTORS {
            let x = extract::<BYTES, FIELD>(load::<BYTES>(payload, k), setup.guard_bits);
            rare.exponent_max = _mm512_max_epi32(rare.exponent_max, x.exponents);
            store_exponents(exponents, k, x.exponents);
            store_mantissas(mantissas, k, x.mantissas);
        }
        if is_rare::<FIELD>(&rare) {
            scalar::fpisa_overwrite(setup, payload, &mut Registers { exponents, mantissas });
        }
    }
    if !exponents.is_empty() {
        scalar::fpisa_overwrite(setup, rest, &mut Registers { exponents, mantissas });
    }
}

/// Writes the slot, renormalised and rounded once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) fn fpisa_emit(
    setup: &Setup,
    slot: &Registers<'_>,
    payload: &mut [u8],
    mut telemetry: Option<&mut Telemetry>,
) {
    let bytes = setup.format.bytes();
    let (exponent_blocks, exponents) = slot.exponents.as_chunks::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks::<BLOCK>();
    let mut payloads = payload.chunks_exact_mut(bytes * BLOCK);
    for ((payload, exponents), mantissas) in (&mut payloads).zip(exponent_blocks).zip(mantissa_blocks) {
        let mut rare = 0;
        for k in 0..VECTORS {
            let sum = Lanes { exponents: load_exponents(exponents, k), mantissas: load_mantissas(mantissas, k) };
            let to = &mut payload[bytes * LANES * k..][..bytes * LANES];
            rare |= match setup.format {
                FloatFormat::Float32 => emit_f32(setup, sum, to),
                FloatFormat::Float16 => emit_f16(setup, sum, to),
                FloatFormat::Bfloat16 => emit_bf16(setup, sum, to),
            };
        }
        if rare != 0 {
            emit_by_reference(setup, exponents, mantissas, payload, telemetry.as_deref_mut());
        }
    }
    emit_by_reference(setup, exponents, mantissas, payloads.into_remainder(), telemetry);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn emit_f32(setup: &Setup, sum: Lanes, to: &mut [u8]) -> __mmask16 {
    const EXCEPTIONS: i32 = _MM_FROUND_NO_EXC;
    let rounded = match setup.read_out {
        Rounding::Floor => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_NEG_INF | EXCEPTIONS }>(sum.mantissas),
        Rounding::TowardZero => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | EXCEPTIONS }>(sum.mantissas),
        Rounding::NearestEven => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_NEAREST_INT | EXCEPTIONS }>(sum.mantissas),
    };
    let (bits, field) = scale(setup, sum, rounded);
    // SAFETY: `to` holds 64 bytes.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_shuffle_epi8(bits, bytes(SWAP_WORDS))) }
    unusual(sum, field)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn emit_bf16(setup: &Setup, sum: Lanes, to: &mut [u8]) -> __mmask16 {
    let (bits, field) = scale(setup, sum, to_odd(sum.mantissas));
    let kept = _mm512_srli_epi32::<16>(bits);
    let one = _mm512_set1_epi32(1);
    let rounded = match setup.read_out {
        Rounding::TowardZero => kept,
        Rounding::Floor => {
            let inexact = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0xffff));
            _mm512_mask_add_epi32(kept, inexact & signs(bits), kept, one)
        }
        Rounding::NearestEven => {
            let bias = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(kept, one));
            _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias))
        }
    };
    store_halves(_mm512_cvtepi32_epi16(rounded), to);
    unusual(sum, field)
}

/// The rounding instruction knows binary16's subnormals.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn emit_f16(setup: &Setup, sum: Lanes, to: &mut [u8]) -> __mmask16 {
    const EXCEPTIONS: i32 = _MM_FROUND_NO_EXC;
    let (bits, _) = scale(setup, sum, to_odd(sum.mantissas));
    let exact = _mm512_castsi512_ps(bits);
    let halves = match setup.read_out {
        Rounding::Floor => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_NEG_INF | EXCEPTIONS }>(exact),
        Rounding::TowardZero => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_ZERO | EXCEPTIONS }>(exact),
        Rounding::NearestEven => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_NEAREST_INT | EXCEPTIONS }>(exact),
    };
    store_halves(halves, to);
    // Neither flushed to zero nor in the highest binade or beyond.
    const HIGHEST: i32 = 0x7800;
    let magnitude = _mm512_and_si512(_mm512_cvtepu16_epi32(halves), _mm512_set1_epi32(0x7fff));
    let one = _mm512_set1_epi32(1);
    let unusual = _mm512_cmpge_epu32_mask(_mm512_sub_epi32(magnitude, one), _mm512_set1_epi32(HIGHEST - 1));
    unusual & _mm512_test_epi32_mask(sum.mantissas, sum.mantissas) | no_number(sum)
}

/// Truncated, and odd where that dropped something: what is rounded to fewer bits afterwards is then rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn to_odd(mantissas: __m512i) -> __m512 {
    let truncated = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(mantissas);
    let inexact = _mm512_cmpneq_epi32_mask(_mm512_cvttps_epi32(truncated), mantissas);
    let bits = _mm512_castps_si512(truncated);
    _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, inexact, bits, _mm512_set1_epi32(1)))
}

/// The mantissas times the power of two of their registers, as bits of a binary32, and these numbers' exponent fields, which
/// may lie outside of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn scale(setup: &Setup, sum: Lanes, mantissas: __m512) -> (__m512i, __m512i) {
    let format = setup.format;
    let unit = format.bias() + format.fraction_bits() as i32 + setup.guard_bits as i32;
    let power = _mm512_sub_epi32(sum.exponents, _mm512_set1_epi32(unit));
    let bits = _mm512_castps_si512(mantissas);
    let is_number = _mm512_test_epi32_mask(sum.mantissas, sum.mantissas);
    let field = _mm512_and_si512(_mm512_srli_epi32::<23>(bits), _mm512_set1_epi32(0xff));
    let scaled = _mm512_maskz_add_epi32(is_number, bits, _mm512_slli_epi32::<23>(power));
    (scaled, _mm512_add_epi32(field, power))
}

/// Elements with an exponent field of binary32 in which rounding may flush or saturate.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn unusual(sum: Lanes, field: __m512i) -> __mmask16 {
    const HIGHEST: i32 = 254;
    let one = _mm512_set1_epi32(1);
    let outside = _mm512_cmpge_epu32_mask(_mm512_sub_epi32(field, one), _mm512_set1_epi32(HIGHEST - 1));
    outside & _mm512_test_epi32_mask(sum.mantissas, sum.mantissas) | no_number(sum)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn no_number(sum: Lanes) -> __mmask16 {
    _mm512_cmpeq_epi32_mask(sum.exponents, _mm512_set1_epi32(NO_NUMBER.into()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn store_halves(halves: __m256i, to: &mut [u8]) {
    let order = _mm512_castsi512_si256(bytes(SWAP_HALVES));
    // SAFETY: `to` holds 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_shuffle_epi8(halves, order)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn load_exponents(exponents: &[u8; BLOCK], k: usize) -> __m512i {
    let from = &exponents[LANES * k..][..LANES];
    // SAFETY: `from` holds 16 bytes.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn store_exponents(exponents: &mut [u8; BLOCK], k: usize, lanes: __m512i) {
    let to = &mut exponents[LANES * k..][..LANES];
    // SAFETY: `to` holds 16 bytes.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(lanes)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn load_mantissas(mantissas: &[i32; BLOCK], k: usize) -> __m512i {
    let from = &mantissas[LANES * k..][..LANES];
    // SAFETY: `from` holds 64 bytes.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn store_mantissas(mantissas: &mut [i32; BLOCK], k: usize, lanes: __m512i) {
    let to = &mut mantissas[LANES * k..][..LANES];
    // SAFETY: `to` holds 64 bytes.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), lanes) }
}

#[cold]
#[inline(never)]
fn add_rare(setup: &Setup, payload: &[u8], exponents: &mut [u8], mantissas: &mut [i32], counts: &mut Telemetry) {
    scalar::fpisa_add(setup, payload, &mut Registers { exponents, mantissas }, Some(counts));
}

#[cold]
#[inline(never)]
fn emit_by_reference(
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
