//! Lane operations on 512-bit registers.
//!
//! Partial steps load and store two halves that overlap, or do as the 256-bit twin does. Masked loads and stores would be
//! shorter to write, but a masked store is several times as slow as a whole one on some processors.

use core::arch::x86_64::*;

use super::atp_kernels::atp_kernels;
use super::avx2;
use super::ieee_kernels::ieee_kernels;
use super::kernels::kernels;
use super::narrow_kernels::narrow_kernels;
use super::sums::sums;

const LANES: usize = 16;
type Floats = __m512;
type Ints = __m512i;
/// 16 lanes of 16 bits.
type Halves = __m256i;
/// 16 lanes of 8 bits.
type Bytes = __m128i;

kernels!("avx512f,avx512bw,avx512vl,f16c");
sums!("avx512f,avx512bw,avx512vl,f16c");
narrow_kernels!("avx512f,avx512bw,avx512vl,f16c");
atp_kernels!("avx512f,avx512bw,avx512vl,f16c");
ieee_kernels!("avx512f,avx512bw,avx512vl,f16c");

/// # Safety
/// `4 * n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn load_lanes(from: *const u8, n: usize) -> Ints {
    // SAFETY: the caller vouches for n elements of 4 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm512_loadu_si512(from.cast()),
            8.. => {
                let halves = [from, from.add(4 * (n - 8))].map(|half| _mm256_loadu_si256(half.cast()));
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1])
            }
            _ => _mm512_zextsi256_si512(avx2::load_lanes(from, n)),
        }
    }
}

/// # Safety
/// `4 * n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn store_lanes(to: *mut u8, n: usize, lanes: Ints) {
    // SAFETY: the caller vouches for n elements of 4 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm512_storeu_si512(to.cast(), lanes),
            8.. => {
                _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(lanes));
                _mm256_storeu_si256(to.add(4 * (n - 8)).cast(), _mm512_extracti64x4_epi64::<1>(lanes));
            }
            _ => avx2::store_lanes(to, n, _mm512_castsi512_si256(lanes)),
        }
    }
}

/// # Safety
/// `2 * n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn load_half_lanes(from: *const u8, n: usize) -> Halves {
    // SAFETY: the caller vouches for n elements of 2 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm256_loadu_si256(from.cast()),
            8.. => _mm256_loadu2_m128i(from.add(2 * (n - 8)).cast(), from.cast()),
            _ => _mm256_zextsi128_si256(avx2::load_half_lanes(from, n)),
        }
    }
}

/// # Safety
/// `2 * n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn store_half_lanes(to: *mut u8, n: usize, lanes: Halves) {
    // SAFETY: the caller vouches for n elements of 2 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm256_storeu_si256(to.cast(), lanes),
            8.. => _mm256_storeu2_m128i(to.add(2 * (n - 8)).cast(), to.cast(), lanes),
            _ => avx2::store_half_lanes(to, n, _mm256_castsi256_si128(lanes)),
        }
    }
}

/// Stores all lanes past the caches.
///
/// # Safety
/// 64 bytes are writable at `to`, which is a multiple of 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn stream_lanes(to: *mut u8, lanes: Ints) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_stream_si512(to.cast(), lanes) }
}

/// Stores all halves past the caches.
///
/// # Safety
/// 32 bytes are writable at `to`, which is a multiple of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn stream_half_lanes(to: *mut u8, lanes: Halves) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_stream_si256(to.cast(), lanes) }
}

/// # Safety
/// `n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn load_byte_lanes(from: *const u8, n: usize) -> Bytes {
    // SAFETY: the caller vouches for n bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_loadu_si128(from.cast()),
            8.. => {
                let halves = [from, from.add(n - 8)].map(|half| _mm_loadl_epi64(half.cast()));
                _mm_unpacklo_epi64(halves[0], halves[1])
            }
            _ => avx2::load_byte_lanes(from, n),
        }
    }
}

/// # Safety
/// `n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn store_byte_lanes(to: *mut u8, n: usize, lanes: Bytes) {
    // SAFETY: the caller vouches for n bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_storeu_si128(to.cast(), lanes),
            8.. => {
                _mm_storel_epi64(to.cast(), lanes);
                _mm_storel_epi64(to.add(n - 8).cast(), _mm_unpackhi_epi64(lanes, lanes));
            }
            _ => avx2::store_byte_lanes(to, n, lanes),
        }
    }
}

/// Stores every second of the `2 * n` 64-bit lanes in use.
///
/// # Safety
/// `8 * n` bytes are writable at `to`, `1 <= n <= LANES / 4`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn store_even_i64(to: *mut i64, n: usize, lanes: Ints) {
    let packed = _mm512_maskz_compress_epi64(0b0101_0101, lanes);
    // SAFETY: the caller vouches for n values, and the mask selects them.
    unsafe { _mm512_mask_storeu_epi64(to, (1 << n) - 1, packed) }
}

/// Functions of lanes, one instruction or a few.
macro_rules! lanes {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $return:ty $body:block)*) => {$(
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
        fn $name($($arg: $type),*) -> $return $body
    )*};
}

lanes! {
    fn splat_i32(value: i32) -> Ints { _mm512_set1_epi32(value) }
    fn splat_f32(value: f32) -> Floats { _mm512_set1_ps(value) }
    fn bits_of(value: Floats) -> Ints { _mm512_castps_si512(value) }
    fn from_bits(bits: Ints) -> Floats { _mm512_castsi512_ps(bits) }

    fn add_i32(a: Ints, b: Ints) -> Ints { _mm512_add_epi32(a, b) }
    fn max_i32(a: Ints, b: Ints) -> Ints { _mm512_max_epi32(a, b) }
    fn and_i32(a: Ints, b: Ints) -> Ints { _mm512_and_si512(a, b) }
    fn or_i32(a: Ints, b: Ints) -> Ints { _mm512_or_si512(a, b) }
    fn xor_i32(a: Ints, b: Ints) -> Ints { _mm512_xor_si512(a, b) }
    /// `i32::MIN` stays what it is.
    fn abs_i32(a: Ints) -> Ints { _mm512_abs_epi32(a) }
    fn sign_mask(a: Ints) -> Ints { _mm512_srai_epi32::<31>(a) }
    fn reduce_max_i32(a: Ints) -> i32 { _mm512_reduce_max_epi32(a) }
    fn add_f32(a: Floats, b: Floats) -> Floats { _mm512_add_ps(a, b) }
    fn add_i64(a: Ints, b: Ints) -> Ints { _mm512_add_epi64(a, b) }
    fn max_i64(a: Ints, b: Ints) -> Ints { _mm512_max_epi64(a, b) }
    fn mul(a: Floats, b: Floats) -> Floats { _mm512_mul_ps(a, b) }
    fn div(a: Floats, b: Floats) -> Floats { _mm512_div_ps(a, b) }

    /// Half to even; `i32::MIN` for NaN and what does not fit.
    fn round(value: Floats) -> Ints { _mm512_cvtps_epi32(value) }
    fn to_f32(value: Ints) -> Floats { _mm512_cvtepi32_ps(value) }
    fn widen_i8(bytes: Bytes) -> Ints { _mm512_cvtepi8_epi32(bytes) }
    /// Saturates.
    fn narrow_i8(value: Ints) -> Bytes { _mm512_cvtsepi32_epi8(value) }
    fn widen_u16(halves: Halves) -> Ints { _mm512_cvtepu16_epi32(halves) }
    fn widen_f16(halves: Halves) -> Floats { _mm512_cvtph_ps(halves) }
    fn narrow_f16(value: Floats) -> Halves { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value) }
    fn widen_bf16(halves: Halves) -> Floats { from_bits(_mm512_slli_epi32::<16>(widen_u16(halves))) }

    /// Rounds in the upper 16 bits of each lane, then takes these; NaN keeps its upper bits and becomes quiet.
    fn narrow_bf16(value: Floats) -> Halves {
        let bits = bits_of(value);
        let is_odd = and_i32(_mm512_srli_epi32::<16>(bits), splat_i32(1));
        let rounded = add_i32(bits, add_i32(is_odd, splat_i32(0x7fff)));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        let upper = _mm512_mask_or_epi32(rounded, is_nan, bits, splat_i32(0x0040_0000));
        // Words 1, 3, 5 ... 31: one permutation costs half of what a shift and a truncation do.
        let low = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 31, 27, 23, 19, 15, 11, 7, 3);
        let odd_words = _mm512_or_si512(_mm512_slli_epi32::<16>(low), _mm512_sub_epi32(low, splat_i32(2)));
        _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd_words, upper))
    }

    /// `then` in the lanes where the magnitude of `value` is below `bound`.
    fn where_below(value: Floats, bound: f32, then: Floats, otherwise: Floats) -> Floats {
        let is_below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(value), splat_f32(bound));
        _mm512_mask_mov_ps(otherwise, is_below, then)
    }

    /// `then` in the lanes where `value` is NaN.
    fn where_nan(value: Floats, then: Ints, otherwise: Ints) -> Ints {
        _mm512_mask_mov_epi32(otherwise, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value), then)
    }

    /// See the scalar twin: from 2^24 on the low 8 bits become one sticky bit.
    fn make_exact_in_f32(units: Ints) -> Ints {
        let is_large = _mm512_cmpge_epu32_mask(_mm512_abs_epi32(units), splat_i32(1 << 24));
        let needs_it = _mm512_mask_test_epi32_mask(is_large, units, splat_i32(0xff));
        let sticky = or_i32(and_i32(units, splat_i32(!0xff)), splat_i32(0x80));
        _mm512_mask_mov_epi32(units, needs_it, sticky)
    }

    /// See the scalar twin. The minimum keeps a NaN of its second operand, and converting makes `i32::MIN` of it, as of what
    /// is too small.
    fn to_units(value: Floats) -> Ints {
        let half = |value| {
            let scaled = _mm512_mul_pd(_mm512_cvtps_pd(value), _mm512_set1_pd(SCALE));
            _mm512_cvtpd_epi32(_mm512_min_pd(_mm512_set1_pd(i32::MAX.into()), scaled))
        };
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(value)));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(_mm512_castps512_ps256(value))), half(upper))
    }

    /// Times `inverse` in f64, rounded to f32 once.
    fn from_units(units: Ints, inverse: f64) -> Floats {
        let half = |units| _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_cvtepi32_pd(units), _mm512_set1_pd(inverse)));
        let lower = _mm512_castps_pd(_mm512_castps256_ps512(half(_mm512_castsi512_si256(units))));
        let upper = _mm256_castps_pd(half(_mm512_extracti64x4_epi64::<1>(units)));
        _mm512_castpd_ps(_mm512_insertf64x4::<1>(lower, upper))
    }

    /// All bits in the lanes that hold an outermost value.
    fn extremes(units: Ints) -> Ints {
        _mm512_maskz_mov_epi32(is_extreme(units), splat_i32(-1))
    }

    /// The two outermost values are next to each other where the order wraps.
    fn is_extreme(units: Ints) -> __mmask16 {
        _mm512_cmple_epu32_mask(add_i32(units, splat_i32(i32::MIN + 1)), splat_i32(1))
    }

    /// The sum; the outermost value of its sign where it overflows; an outermost operand where there is one, the first of two.
    fn add_sticky(sum: Ints, units: Ints) -> Ints {
        let wrapped = add_i32(sum, units);
        // Both operands have another sign than the result.
        let overflow = and_i32(xor_i32(sum, wrapped), xor_i32(units, wrapped));
        let end = xor_i32(sign_mask(sum), splat_i32(i32::MAX));
        let total = _mm512_mask_mov_epi32(wrapped, _mm512_cmplt_epi32_mask(overflow, splat_i32(0)), end);
        _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(total, is_extreme(units), units), is_extreme(sum), sum)
    }

    fn swap_bytes(words: Ints) -> Ints {
        let order = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
        _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(order))
    }

    fn swap_half_bytes(halves: Halves) -> Halves {
        let order = _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
        _mm256_shuffle_epi8(halves, _mm256_broadcastsi128_si256(order))
    }

    /// Of each four limb sums the 64-bit value modulo 2^64, in the lower half of their 128 bits.
    fn resolve_carries(limbs: Ints) -> Ints {
        let even = _mm512_and_si512(limbs, _mm512_set1_epi64(0xffff_ffff));
        let odd = _mm512_srli_epi64::<32>(limbs);
        let pairs = _mm512_add_epi64(even, _mm512_slli_epi64::<16>(odd));
        let upper = _mm512_unpackhi_epi64(pairs, pairs);
        _mm512_add_epi64(pairs, _mm512_slli_epi64::<32>(upper))
    }
}
