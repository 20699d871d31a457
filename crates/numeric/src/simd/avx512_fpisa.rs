//! FPISA's and FPISA-A's registers on 512-bit registers, 64 elements at a time.
//!
//! As in [`crate::blocks`], a block that meets something rare is left to the scalar reference as a whole, before anything of it
//! has been stored; so are the elements behind the last whole block, and alignments other than the paper's.

use core::arch::x86_64::*;

use crate::byte_order::ByteOrder;
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

/// Orders of bytes for shuffles: words as they are or turned round, the two low bytes of words moved to the top as they are or
/// turned round, and half words likewise.
const WORDS: i128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
const SWAP_WORDS: i128 = 0x0c0d_0e0f_0809_0a0b_0405_0607_0001_0203;
const TO_TOP: i128 = 0x0d0c_8080_0908_8080_0504_8080_0100_8080_u128 as i128;
const SWAP_TO_TOP: i128 = 0x0c0d_8080_0809_8080_0405_8080_0001_8080_u128 as i128;
const SWAP_HALVES: i128 = 0x0e0f_0c0d_0a0b_0809_0607_0405_0203_0001;

/// Counts of a block.
#[derive(Clone, Copy, Default)]
struct Counts {
    lost: u32,
    flushed: u32,
    overwritten: u32,
    left_shifts: u32,
}

/// Elements in the registers of a slot or as they are to go there: the exponents are bytes, in the elements' order, as they lie in
/// the slot, so that one instruction handles those of a whole block.
#[derive(Clone, Copy)]
struct Block {
    exponents: __m512i,
    mantissas: [__m512i; VECTORS],
}

/// The exponents and mantissas of some elements of a slot, one per lane.
#[derive(Clone, Copy)]
struct Lanes {
    exponents: __m512i,
    mantissas: __m512i,
}

/// `slot += payload`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn add_blocks<const BYTES: usize, const FIELD: u32, const APPROXIMATELY: bool, const COUNT: bool>(
    setup: &Setup,
    payload: &[u8],
    slot: &mut Registers<'_>,
    telemetry: &mut Telemetry,
) {
    let (exponent_blocks, exponents) = slot.exponents.as_chunks_mut::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks_mut::<BLOCK>();
    let payloads = payload.chunks_exact(BYTES * BLOCK);
    let rest = payloads.remainder();
    let (guard_bits, order) = (setup.guard_bits, to_top::<BYTES>(setup.order));
    let limit = _mm512_set1_epi8(setup.left_shift_max.unwrap_or(0) as i8);
    for ((payload, exponents), mantissas) in payloads.zip(exponent_blocks).zip(mantissa_blocks) {
        let mut counts = Counts::default();
        let x = extract::<BYTES, FIELD>(load_all::<BYTES>(payload, order), guard_bits);
        let sum = slot_block(exponents, mantissas);
        let (after, overflow) = if APPROXIMATELY {
            add_approximately::<COUNT>(sum, x, limit, &mut counts)
        } else {
            add_exactly::<COUNT>(sum, x, &mut counts)
        };
        if no_numbers::<FIELD>(_mm512_max_epu8(sum.exponents, x.exponents)) | (signs(overflow) != 0) {
            add_rare(setup, payload, exponents, mantissas, telemetry);
            continue;
        }
        store(exponents, mantissas, after);
        if COUNT {
            telemetry.lost_bits += u64::from(counts.lost);
            telemetry.flushed_to_zero += u64::from(counts.flushed);
            telemetry.overwrite += u64::from(counts.overwritten);
            telemetry.left_shift += u64::from(counts.left_shifts);
        }
    }
    if !exponents.is_empty() {
        let telemetry = if COUNT { Some(telemetry) } else { None };
        scalar::fpisa_add(setup, rest, &mut Registers { exponents, mantissas }, telemetry);
    }
}

/// FPISA: whichever mantissa is smaller shifts (§3.2). Also lanes that are negative where a sum has left its register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn add_exactly<const COUNT: bool>(sum: Block, x: Block, counts: &mut Counts) -> (Block, __m512i) {
    let exponents = _mm512_max_epu8(sum.exponents, x.exponents);
    let distance = in_order(_mm512_sub_epi8(exponents, _mm512_min_epu8(sum.exponents, x.exponents)));
    let is_larger = _mm512_cmpgt_epu8_mask(x.exponents, sum.exponents);
    let mut overflow = _mm512_setzero_si512();
    let mantissas = core::array::from_fn(|k| {
        let is_larger = part(is_larger, k);
        let small = _mm512_mask_mov_epi32(x.mantissas[k], is_larger, sum.mantissas[k]);
        let large = _mm512_mask_mov_epi32(sum.mantissas[k], is_larger, x.mantissas[k]);
        let distance = unpack(distance, k);
        // The shift takes counts beyond 31 as the definition does: the sign is left.
        let aligned = _mm512_srav_epi32(small, distance);
        if COUNT {
            count_alignment(small, aligned, distance, counts);
        }
        add(large, aligned, &mut overflow)
    });
    (Block { exponents, mantissas }, overflow)
}

/// FPISA-A: only the contribution shifts, or takes the register's place (§4.3).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn add_approximately<const COUNT: bool>(sum: Block, x: Block, limit: __m512i, counts: &mut Counts) -> (Block, __m512i) {
    // Subtractions that end at 0.
    let left = _mm512_subs_epu8(x.exponents, sum.exponents);
    let right = in_order(_mm512_subs_epu8(sum.exponents, x.exponents));
    let stays = _mm512_cmple_epu8_mask(left, limit);
    if COUNT {
        counts.left_shifts += _mm512_mask_test_epi8_mask(stays, left, left).count_ones();
    }
    let exponents = _mm512_mask_mov_epi8(x.exponents, stays, sum.exponents);
    let left = in_order(left);
    let mut overflow = _mm512_setzero_si512();
    let mantissas = core::array::from_fn(|k| {
        let stays = part(stays, k);
        let right = unpack(right, k);
        let aligned = _mm512_srav_epi32(x.mantissas[k], right);
        let added = _mm512_mask_sllv_epi32(aligned, stays, aligned, unpack(left, k));
        let kept = _mm512_maskz_mov_epi32(stays, sum.mantissas[k]);
        if COUNT {
            count_alignment(x.mantissas[k], aligned, right, counts);
            let overwritten = _mm512_mask_test_epi32_mask(!stays, sum.mantissas[k], sum.mantissas[k]);
            counts.overwritten += overwritten.count_ones();
        }
        add(kept, added, &mut overflow)
    });
    (Block { exponents, mantissas }, overflow)
}

/// The bits of elements `LANES * k..`.
#[inline]
fn part(mask: __mmask64, k: usize) -> __mmask16 {
    (mask >> (LANES * k)) as __mmask16
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn add(kept: __m512i, added: __m512i, overflow: &mut __m512i) -> __m512i {
    let total = _mm512_add_epi32(kept, added);
    // (kept ^ total) & (added ^ total)
    let left = _mm512_ternarylogic_epi32::<0b0001_1000>(total, kept, added);
    *overflow = _mm512_or_si512(*overflow, left);
    total
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn count_alignment(before: __m512i, after: __m512i, distance: __m512i, counts: &mut Counts) {
    // A shift by 32 or more leaves 0, and all that there was is lost.
    let lost = _mm512_cmpneq_epi32_mask(_mm512_sllv_epi32(after, distance), before);
    counts.lost += lost.count_ones();
    counts.flushed += _mm512_mask_testn_epi32_mask(lost, after, after).count_ones();
}

/// Whether an element holds no number: exponent registers end below the field's maximum, but for the mark of no number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn no_numbers<const FIELD: u32>(exponents: __m512i) -> bool {
    _mm512_cmpge_epu8_mask(exponents, _mm512_set1_epi8(((1u32 << FIELD) - 1) as i8)) != 0
}

/// A block's payload, each number in the top bits of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn load_all<const BYTES: usize>(payload: &[u8], order: __m512i) -> [__m512i; VECTORS] {
    core::array::from_fn(|k| load::<BYTES>(payload, order, k))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn slot_block(exponents: &[u8; BLOCK], mantissas: &[i32; BLOCK]) -> Block {
    // SAFETY: a block of exponents is 64 bytes.
    let exponents = unsafe { _mm512_loadu_si512(exponents.as_ptr().cast()) };
    Block { exponents, mantissas: core::array::from_fn(|k| load_mantissas(mantissas, k)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn store(exponents: &mut [u8; BLOCK], mantissas: &mut [i32; BLOCK], block: Block) {
    // SAFETY: as above.
    unsafe { _mm512_storeu_si512(exponents.as_mut_ptr().cast(), block.exponents) }
    for (k, lanes) in block.mantissas.into_iter().enumerate() {
        store_mantissas(mantissas, k, lanes);
    }
}

/// The sign bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn signs(lanes: __m512i) -> __mmask16 {
    _mm512_cmplt_epi32_mask(lanes, _mm512_setzero_si512())
}

/// The same order of bytes in every 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn bytes(order: i128) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x((order >> 64) as i64, order as i64))
}

/// What brings an element of a payload to the top bits of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn to_top<const BYTES: usize>(order: ByteOrder) -> __m512i {
    match (BYTES, order) {
        (4, ByteOrder::Big) => bytes(SWAP_WORDS),
        (4, ByteOrder::Little) => bytes(WORDS),
        (_, ByteOrder::Big) => bytes(SWAP_TO_TOP),
        (_, ByteOrder::Little) => bytes(TO_TOP),
    }
}

/// Elements `LANES * k..` of a payload's block, each in the top bits of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn load<const BYTES: usize>(payload: &[u8], order: __m512i, k: usize) -> __m512i {
    let from = &payload[BYTES * LANES * k..][..BYTES * LANES];
    // SAFETY: `from` holds as many bytes.
    unsafe {
        if BYTES == 4 {
            _mm512_shuffle_epi8(_mm512_loadu_si512(from.as_ptr().cast()), order)
        } else {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_shuffle_epi8(halves, order)
        }
    }
}

/// The contributions of a block, from numbers in the top bits of their lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn extract<const BYTES: usize, const FIELD: u32>(bits: [__m512i; VECTORS], guard_bits: u32) -> Block {
    let fields = fields::<FIELD>(bits);
    if _mm512_testn_epi8_mask(fields, fields) != 0 {
        return extract_any::<BYTES, FIELD>(bits, fields, guard_bits);
    }
    let (fraction_mask, implied) = fraction_mask_and_implied::<FIELD>();
    // (bits & fraction_mask) | implied
    let significands = bits.map(|bits| _mm512_ternarylogic_epi32::<0b1110_1010>(bits, fraction_mask, implied));
    Block { exponents: fields, mantissas: mantissas::<BYTES>(bits, significands, guard_bits) }
}

/// The same where some number is zero or subnormal, and so has no implied bit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn extract_any<const BYTES: usize, const FIELD: u32>(
    bits: [__m512i; VECTORS],
    fields: __m512i,
    guard_bits: u32,
) -> Block {
    let (fraction_mask, implied) = fraction_mask_and_implied::<FIELD>();
    let field_mask = _mm512_andnot_si512(fraction_mask, _mm512_set1_epi32(i32::MAX));
    let fractions = bits.map(|bits| _mm512_and_si512(bits, fraction_mask));
    let significands = core::array::from_fn(|k| {
        let is_normal = _mm512_test_epi32_mask(bits[k], field_mask);
        _mm512_mask_or_epi32(fractions[k], is_normal, fractions[k], implied)
    });
    // 1 for subnormals, 0 for zero only.
    let subnormal = pack(fractions.map(|fraction| _mm512_min_epu32(fraction, _mm512_set1_epi32(1))));
    Block {
        exponents: _mm512_max_epu8(fields, in_order(subnormal)),
        mantissas: mantissas::<BYTES>(bits, significands, guard_bits),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn fraction_mask_and_implied<const FIELD: u32>() -> (__m512i, __m512i) {
    let below_field = 31 - FIELD;
    (_mm512_set1_epi32((1 << below_field) - 1), _mm512_set1_epi32(1 << below_field))
}

/// Significands in the top bits of their lanes to signed mantissas.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn mantissas<const BYTES: usize>(
    bits: [__m512i; VECTORS],
    significands: [__m512i; VECTORS],
    guard_bits: u32,
) -> [__m512i; VECTORS] {
    let guard_bits = _mm_cvtsi32_si128(guard_bits as i32);
    core::array::from_fn(|k| {
        // The unused bits below a fraction of 16-bit formats, and the guard bits.
        let narrow = if BYTES == 4 { significands[k] } else { _mm512_srli_epi32::<16>(significands[k]) };
        let magnitude = _mm512_sll_epi32(narrow, guard_bits);
        _mm512_mask_sub_epi32(magnitude, signs(bits[k]), _mm512_setzero_si512(), magnitude)
    })
}

/// The exponent fields of numbers in the top bits of their lanes, as bytes in the elements' order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn fields<const FIELD: u32>(bits: [__m512i; VECTORS]) -> __m512i {
    let to_bottom = _mm_cvtsi32_si128(31 - FIELD as i32);
    let with_signs = bits.map(|bits| _mm512_srl_epi32(bits, to_bottom));
    let field_mask = _mm512_set1_epi16((1 << FIELD) - 1);
    let low = _mm512_and_si512(_mm512_packus_epi32(with_signs[0], with_signs[1]), field_mask);
    let high = _mm512_and_si512(_mm512_packus_epi32(with_signs[2], with_signs[3]), field_mask);
    in_order(_mm512_packus_epi16(low, high))
}

/// One byte of each lane, in the order that [`in_order`] undoes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn pack(lanes: [__m512i; VECTORS]) -> __m512i {
    let (low, high) = (_mm512_packus_epi32(lanes[0], lanes[1]), _mm512_packus_epi32(lanes[2], lanes[3]));
    _mm512_packus_epi16(low, high)
}

/// Bytes from the order of the pack instructions, which work within 128 bits, to the elements' order, or back: words are the
/// elements of a 4 by 4 matrix, which is transposed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn in_order(bytes: __m512i) -> __m512i {
    let transposed = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(transposed, bytes)
}

/// The bytes of elements `LANES * k..`, one per lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn unpack(packed: __m512i, k: usize) -> __m512i {
    // Word k of each 128 bits, a byte to a lane; the other bytes become 0.
    const FIRST: i128 = 0x8080_8003_8080_8002_8080_8001_8080_8000_u128 as i128;
    const STEP: i128 = 0x0000_0004_0000_0004_0000_0004_0000_0004;
    _mm512_shuffle_epi8(packed, bytes(FIRST + STEP * k as i128))
}

/// `slot = payload`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
pub(super) fn fpisa_overwrite(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    match setup.format {
        FloatFormat::Float32 => overwrite_blocks::<4, WIDE>(setup, payload, slot),
        FloatFormat::Float16 => overwrite_blocks::<2, HALF>(setup, payload, slot),
        FloatFormat::Bfloat16 => overwrite_blocks::<2, WIDE>(setup, payload, slot),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn overwrite_blocks<const BYTES: usize, const FIELD: u32>(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>) {
    let (exponent_blocks, exponents) = slot.exponents.as_chunks_mut::<BLOCK>();
    let (mantissa_blocks, mantissas) = slot.mantissas.as_chunks_mut::<BLOCK>();
    let payloads = payload.chunks_exact(BYTES * BLOCK);
    let rest = payloads.remainder();
    let order = to_top::<BYTES>(setup.order);
    for ((payload, exponents), mantissas) in payloads.zip(exponent_blocks).zip(mantissa_blocks) {
        let x = extract::<BYTES, FIELD>(load_all::<BYTES>(payload, order), setup.guard_bits);
        if no_numbers::<FIELD>(x.exponents) {
            scalar::fpisa_overwrite(setup, payload, &mut Registers { exponents, mantissas });
        } else {
            store(exponents, mantissas, x);
        }
    }
    if !exponents.is_empty() {
        scalar::fpisa_overwrite(setup, rest, &mut Registers { exponents, mantissas });
    }
}

/// Writes the slot, renormalised and rounded once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn emit_f32(setup: &Setup, sum: Lanes, to: &mut [u8]) -> __mmask16 {
    const EXCEPTIONS: i32 = _MM_FROUND_NO_EXC;
    let rounded = match setup.read_out {
        Rounding::Floor => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_NEG_INF | EXCEPTIONS }>(sum.mantissas),
        Rounding::TowardZero => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | EXCEPTIONS }>(sum.mantissas),
        Rounding::NearestEven => _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_NEAREST_INT | EXCEPTIONS }>(sum.mantissas),
    };
    let (bits, field) = scale(setup, sum, rounded);
    // SAFETY: `to` holds 64 bytes.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_shuffle_epi8(bits, to_top::<4>(setup.order))) }
    unusual(sum, field)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
    store_halves(setup.order, _mm512_cvtepi32_epi16(rounded), to);
    unusual(sum, field)
}

/// The rounding instruction knows binary16's subnormals.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn emit_f16(setup: &Setup, sum: Lanes, to: &mut [u8]) -> __mmask16 {
    const EXCEPTIONS: i32 = _MM_FROUND_NO_EXC;
    let (bits, _) = scale(setup, sum, to_odd(sum.mantissas));
    let exact = _mm512_castsi512_ps(bits);
    let halves = match setup.read_out {
        Rounding::Floor => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_NEG_INF | EXCEPTIONS }>(exact),
        Rounding::TowardZero => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_ZERO | EXCEPTIONS }>(exact),
        Rounding::NearestEven => _mm512_cvt_roundps_ph::<{ _MM_FROUND_TO_NEAREST_INT | EXCEPTIONS }>(exact),
    };
    store_halves(setup.order, halves, to);
    // Neither flushed to zero nor in the highest binade or beyond.
    const HIGHEST: i32 = 0x7800;
    let magnitude = _mm512_and_si512(_mm512_cvtepu16_epi32(halves), _mm512_set1_epi32(0x7fff));
    let one = _mm512_set1_epi32(1);
    let unusual = _mm512_cmpge_epu32_mask(_mm512_sub_epi32(magnitude, one), _mm512_set1_epi32(HIGHEST - 1));
    unusual & _mm512_test_epi32_mask(sum.mantissas, sum.mantissas) | no_number(sum)
}

/// Truncated, and odd where that dropped something: what is rounded to fewer bits afterwards is then rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn to_odd(mantissas: __m512i) -> __m512 {
    let truncated = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(mantissas);
    let inexact = _mm512_cmpneq_epi32_mask(_mm512_cvttps_epi32(truncated), mantissas);
    let bits = _mm512_castps_si512(truncated);
    _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, inexact, bits, _mm512_set1_epi32(1)))
}

/// The mantissas times the power of two of their registers, as bits of a binary32, and these numbers' exponent fields, which
/// may lie outside of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn unusual(sum: Lanes, field: __m512i) -> __mmask16 {
    const HIGHEST: i32 = 254;
    let one = _mm512_set1_epi32(1);
    let outside = _mm512_cmpge_epu32_mask(_mm512_sub_epi32(field, one), _mm512_set1_epi32(HIGHEST - 1));
    outside & _mm512_test_epi32_mask(sum.mantissas, sum.mantissas) | no_number(sum)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn no_number(sum: Lanes) -> __mmask16 {
    _mm512_cmpeq_epi32_mask(sum.exponents, _mm512_set1_epi32(NO_NUMBER.into()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn store_halves(order: ByteOrder, halves: __m256i, to: &mut [u8]) {
    let order = _mm512_castsi512_si256(bytes(if order == ByteOrder::Big { SWAP_HALVES } else { WORDS }));
    // SAFETY: `to` holds 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_shuffle_epi8(halves, order)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn load_exponents(exponents: &[u8; BLOCK], k: usize) -> __m512i {
    let from = &exponents[LANES * k..][..LANES];
    // SAFETY: `from` holds 16 bytes.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
fn load_mantissas(mantissas: &[i32; BLOCK], k: usize) -> __m512i {
    let from = &mantissas[LANES * k..][..LANES];
    // SAFETY: `from` holds 64 bytes.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,popcnt")]
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
