//! Lane operations on 256-bit registers.
//!
//! Partial steps of `n` lanes load and store two halves that overlap: of 4 to 7 elements the first four and the last four, of
//! 2 or 3 the first two and the last two. Lanes that no element belongs to are zero.

use core::arch::x86_64::*;

use super::atp_kernels::atp_kernels;
use super::ieee_kernels::ieee_kernels;
use super::kernels::kernels;
use super::narrow_kernels::narrow_kernels;
use super::sums::sums;

const LANES: usize = 8;
type Floats = __m256;
type Ints = __m256i;
/// 8 lanes of 16 bits.
type Halves = __m128i;
/// 8 lanes of 8 bits in the lower half.
type Bytes = __m128i;

kernels!("avx2,f16c");
sums!("avx2,f16c");
narrow_kernels!("avx2,f16c");
atp_kernels!("avx2,f16c");
ieee_kernels!("avx2,f16c");

/// # Safety
/// `4 * n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_lanes(from: *const u8, n: usize) -> Ints {
    // SAFETY: the caller vouches for n elements of 4 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm256_loadu_si256(from.cast()),
            4.. => _mm256_loadu2_m128i(from.add(4 * (n - 4)).cast(), from.cast()),
            2.. => {
                let halves = [from, from.add(4 * (n - 2))].map(|half| _mm_loadl_epi64(half.cast()));
                _mm256_zextsi128_si256(_mm_unpacklo_epi64(halves[0], halves[1]))
            }
            _ => _mm256_zextsi128_si256(_mm_cvtsi32_si128(from.cast::<i32>().read_unaligned())),
        }
    }
}

/// # Safety
/// `4 * n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store_lanes(to: *mut u8, n: usize, lanes: Ints) {
    let low = _mm256_castsi256_si128(lanes);
    // SAFETY: the caller vouches for n elements of 4 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm256_storeu_si256(to.cast(), lanes),
            4.. => _mm256_storeu2_m128i(to.add(4 * (n - 4)).cast(), to.cast(), lanes),
            2.. => {
                _mm_storel_epi64(to.cast(), low);
                _mm_storel_epi64(to.add(4 * (n - 2)).cast(), _mm_unpackhi_epi64(low, low));
            }
            _ => to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(low)),
        }
    }
}

/// # Safety
/// `2 * n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_half_lanes(from: *const u8, n: usize) -> Halves {
    // SAFETY: the caller vouches for n elements of 2 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_loadu_si128(from.cast()),
            4.. => {
                let halves = [from, from.add(2 * (n - 4))].map(|half| _mm_loadl_epi64(half.cast()));
                _mm_unpacklo_epi64(halves[0], halves[1])
            }
            2.. => {
                let halves = [from, from.add(2 * (n - 2))].map(|half| half.cast::<i32>().read_unaligned());
                _mm_unpacklo_epi32(_mm_cvtsi32_si128(halves[0]), _mm_cvtsi32_si128(halves[1]))
            }
            _ => _mm_cvtsi32_si128(from.cast::<u16>().read_unaligned().into()),
        }
    }
}

/// # Safety
/// `2 * n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store_half_lanes(to: *mut u8, n: usize, lanes: Halves) {
    // SAFETY: the caller vouches for n elements of 2 bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_storeu_si128(to.cast(), lanes),
            4.. => {
                _mm_storel_epi64(to.cast(), lanes);
                _mm_storel_epi64(to.add(2 * (n - 4)).cast(), _mm_unpackhi_epi64(lanes, lanes));
            }
            2.. => {
                to.cast::<i32>().write_unaligned(_mm_cvtsi128_si32(lanes));
                to.add(2 * (n - 2)).cast::<i32>().write_unaligned(_mm_extract_epi32::<1>(lanes));
            }
            _ => to.cast::<u16>().write_unaligned(_mm_cvtsi128_si32(lanes) as u16),
        }
    }
}

/// Stores all lanes past the caches.
///
/// # Safety
/// 32 bytes are writable at `to`, which is a multiple of 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stream_lanes(to: *mut u8, lanes: Ints) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_stream_si256(to.cast(), lanes) }
}

/// Stores all halves past the caches.
///
/// # Safety
/// 16 bytes are writable at `to`, which is a multiple of 16.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stream_half_lanes(to: *mut u8, lanes: Halves) {
    // SAFETY: the caller's promise.
    unsafe { _mm_stream_si128(to.cast(), lanes) }
}

/// # Safety
/// `n` bytes are readable at `from`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_byte_lanes(from: *const u8, n: usize) -> Bytes {
    // SAFETY: the caller vouches for n bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_loadl_epi64(from.cast()),
            4.. => {
                let halves = [from, from.add(n - 4)].map(|half| half.cast::<i32>().read_unaligned());
                _mm_unpacklo_epi32(_mm_cvtsi32_si128(halves[0]), _mm_cvtsi32_si128(halves[1]))
            }
            2.. => {
                let halves = [from, from.add(n - 2)].map(|half| i32::from(half.cast::<u16>().read_unaligned()));
                _mm_cvtsi32_si128(halves[0] | halves[1] << 16)
            }
            _ => _mm_cvtsi32_si128(from.read().into()),
        }
    }
}

/// # Safety
/// `n` bytes are writable at `to`, `1 <= n <= LANES`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store_byte_lanes(to: *mut u8, n: usize, lanes: Bytes) {
    let low = _mm_cvtsi128_si32(lanes);
    // SAFETY: the caller vouches for n bytes, which hold both halves.
    unsafe {
        match n {
            LANES => _mm_storel_epi64(to.cast(), lanes),
            4.. => {
                to.cast::<i32>().write_unaligned(low);
                to.add(n - 4).cast::<i32>().write_unaligned(_mm_extract_epi32::<1>(lanes));
            }
            2.. => {
                to.cast::<u16>().write_unaligned(low as u16);
                to.add(n - 2).cast::<u16>().write_unaligned((low >> 16) as u16);
            }
            _ => to.write(low as u8),
        }
    }
}

/// Stores every second of the `2 * n` 64-bit lanes in use.
///
/// # Safety
/// `8 * n` bytes are writable at `to`, `1 <= n <= LANES / 4`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_even_i64(to: *mut i64, n: usize, lanes: Ints) {
    let packed = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(lanes));
    // SAFETY: the caller vouches for n values, one or two.
    unsafe { if n == 1 { _mm_storel_epi64(to.cast(), packed) } else { _mm_storeu_si128(to.cast(), packed) } }
}

/// Functions of lanes, one instruction or a few.
macro_rules! lanes {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $return:ty $body:block)*) => {$(
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        fn $name($($arg: $type),*) -> $return $body
    )*};
}

lanes! {
    fn splat_i32(value: i32) -> Ints { _mm256_set1_epi32(value) }
    fn splat_f32(value: f32) -> Floats { _mm256_set1_ps(value) }
    fn bits_of(value: Floats) -> Ints { _mm256_castps_si256(value) }
    fn from_bits(bits: Ints) -> Floats { _mm256_castsi256_ps(bits) }

    fn add_i32(a: Ints, b: Ints) -> Ints { _mm256_add_epi32(a, b) }
    fn max_i32(a: Ints, b: Ints) -> Ints { _mm256_max_epi32(a, b) }
    fn and_i32(a: Ints, b: Ints) -> Ints { _mm256_and_si256(a, b) }
    fn or_i32(a: Ints, b: Ints) -> Ints { _mm256_or_si256(a, b) }
    fn xor_i32(a: Ints, b: Ints) -> Ints { _mm256_xor_si256(a, b) }
    /// `i32::MIN` stays what it is.
    fn abs_i32(a: Ints) -> Ints { _mm256_abs_epi32(a) }
    fn sign_mask(a: Ints) -> Ints { _mm256_srai_epi32::<31>(a) }
    fn add_f32(a: Floats, b: Floats) -> Floats { _mm256_add_ps(a, b) }
    fn add_i64(a: Ints, b: Ints) -> Ints { _mm256_add_epi64(a, b) }
    fn max_i64(a: Ints, b: Ints) -> Ints { _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b)) }
    fn mul(a: Floats, b: Floats) -> Floats { _mm256_mul_ps(a, b) }
    fn div(a: Floats, b: Floats) -> Floats { _mm256_div_ps(a, b) }

    fn reduce_max_i32(a: Ints) -> i32 {
        let four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
        _mm_cvtsi128_si32(two).max(_mm_extract_epi32::<1>(two))
    }

    /// Half to even; `i32::MIN` for NaN and what does not fit.
    fn round(value: Floats) -> Ints { _mm256_cvtps_epi32(value) }
    fn to_f32(value: Ints) -> Floats { _mm256_cvtepi32_ps(value) }
    fn widen_i8(bytes: Bytes) -> Ints { _mm256_cvtepi8_epi32(bytes) }
    fn widen_u16(halves: Halves) -> Ints { _mm256_cvtepu16_epi32(halves) }
    fn widen_f16(halves: Halves) -> Floats { _mm256_cvtph_ps(halves) }
    fn narrow_f16(value: Floats) -> Halves { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value) }
    fn widen_bf16(halves: Halves) -> Floats { from_bits(_mm256_slli_epi32::<16>(widen_u16(halves))) }

    fn narrow_bf16(value: Floats) -> Halves {
        let bits = bits_of(value);
        let upper = _mm256_srli_epi32::<16>(bits);
        let is_odd = and_i32(upper, splat_i32(1));
        let rounded = _mm256_srli_epi32::<16>(add_i32(bits, add_i32(is_odd, splat_i32(0x7fff))));
        let lanes = where_nan(value, or_i32(upper, splat_i32(0x0040)), rounded);
        // All lanes are below 2^16, so the pack does not saturate.
        _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes))
    }

    /// Saturates.
    fn narrow_i8(value: Ints) -> Bytes {
        let halves = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
        _mm_packs_epi16(halves, halves)
    }

    /// `then` in the lanes where the magnitude of `value` is below `bound`.
    fn where_below(value: Floats, bound: f32, then: Floats, otherwise: Floats) -> Floats {
        let magnitude = and_i32(bits_of(value), splat_i32(i32::MAX));
        _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps::<_CMP_LT_OQ>(from_bits(magnitude), splat_f32(bound)))
    }

    /// `then` in the lanes where `value` is NaN.
    fn where_nan(value: Floats, then: Ints, otherwise: Ints) -> Ints {
        _mm256_blendv_epi8(otherwise, then, bits_of(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value)))
    }

    /// See the scalar twin: from 2^24 on the low 8 bits become one sticky bit.
    fn make_exact_in_f32(units: Ints) -> Ints {
        let zero = _mm256_setzero_si256();
        let is_small = _mm256_cmpeq_epi32(_mm256_srli_epi32::<24>(_mm256_abs_epi32(units)), zero);
        let is_exact = _mm256_cmpeq_epi32(and_i32(units, splat_i32(0xff)), zero);
        let sticky = or_i32(and_i32(units, splat_i32(!0xff)), splat_i32(0x80));
        _mm256_blendv_epi8(sticky, units, or_i32(is_small, is_exact))
    }

    /// See the scalar twin. The minimum keeps a NaN of its second operand, and converting makes `i32::MIN` of it, as of what
    /// is too small.
    fn to_units(value: Floats) -> Ints {
        let half = |value| {
            let scaled = _mm256_mul_pd(_mm256_cvtps_pd(value), _mm256_set1_pd(SCALE));
            _mm256_cvtpd_epi32(_mm256_min_pd(_mm256_set1_pd(i32::MAX.into()), scaled))
        };
        _mm256_set_m128i(half(_mm256_extractf128_ps::<1>(value)), half(_mm256_castps256_ps128(value)))
    }

    /// Times `inverse` in f64, rounded to f32 once.
    fn from_units(units: Ints, inverse: f64) -> Floats {
        let half = |units| _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_cvtepi32_pd(units), _mm256_set1_pd(inverse)));
        _mm256_set_m128(half(_mm256_extracti128_si256::<1>(units)), half(_mm256_castsi256_si128(units)))
    }

    /// All bits in the lanes that hold an outermost value.
    fn extremes(units: Ints) -> Ints {
        let least = _mm256_cmpeq_epi32(units, splat_i32(i32::MIN));
        or_i32(least, _mm256_cmpeq_epi32(units, splat_i32(i32::MAX)))
    }

    /// The sum; the outermost value of its sign where it overflows; an outermost operand where there is one, the first of two.
    fn add_sticky(sum: Ints, units: Ints) -> Ints {
        let wrapped = add_i32(sum, units);
        // Both operands have another sign than the result.
        let overflow = and_i32(xor_i32(sum, wrapped), xor_i32(units, wrapped));
        let end = xor_i32(sign_mask(sum), splat_i32(i32::MAX));
        let total = _mm256_blendv_epi8(wrapped, end, sign_mask(overflow));
        _mm256_blendv_epi8(_mm256_blendv_epi8(total, units, extremes(units)), sum, extremes(sum))
    }

    fn swap_bytes(words: Ints) -> Ints {
        let order = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
        _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(order))
    }

    fn swap_half_bytes(halves: Halves) -> Halves {
        _mm_shuffle_epi8(halves, _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))
    }

    /// Of each four limb sums the 64-bit value modulo 2^64, in the lower half of their 128 bits.
    fn resolve_carries(limbs: Ints) -> Ints {
        let even = _mm256_and_si256(limbs, _mm256_set1_epi64x(0xffff_ffff));
        let odd = _mm256_srli_epi64::<32>(limbs);
        let pairs = _mm256_add_epi64(even, _mm256_slli_epi64::<16>(odd));
        let upper = _mm256_unpackhi_epi64(pairs, pairs);
        _mm256_add_epi64(pairs, _mm256_slli_epi64::<32>(upper))
    }
}
