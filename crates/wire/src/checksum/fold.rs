//! CRC-32C by folding 512-bit registers with carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
//! Polynomials Using PCLMULQDQ", Intel 2009), finished by the processor's own CRC-32C instructions.
//!
//! A datagram of 1 KiB takes a quarter of the time of a general library, whose setting up weighs more than its bytes.
//!
//! A message is a polynomial over GF(2), first bit first. A register of 128 bits that stands `d` bits before another
//! may be replaced by anything congruent to it times `x^d`: its two halves, each multiplied by a constant.

use core::arch::x86_64::*;
use std::sync::LazyLock;

use super::POLYNOMIAL;

/// Bytes of one register.
const BLOCK: usize = 64;
/// Independent registers, enough to hide the multiplication's latency.
const WAYS: usize = 4;

static HAS_FOLDING: LazyLock<bool> = LazyLock::new(|| {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("vpclmulqdq")
        && std::arch::is_x86_feature_detected!("sse4.2")
});

/// CRC-32C of the concatenation of `parts`; `None` on a processor without the instructions.
#[inline]
pub(super) fn crc32c(parts: [&[u8]; 2]) -> Option<u32> {
    if !*HAS_FOLDING {
        return None;
    }
    // SAFETY: the processor has the features.
    Some(unsafe { !update(update(!0, parts[0]), parts[1]) })
}

/// `x^n` modulo the polynomial, bit-reversed.
const fn power_of_x(n: u32) -> u64 {
    let mut value = 0x8000_0000u32;
    let mut exponent = 0;
    while exponent < n {
        value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
        exponent += 1;
    }
    value as u64
}

/// Multipliers of a register's low and high half that move it `bits` bits towards the end. The product of reversed
/// polynomials comes out one bit low, and the constants have 32 bits in a 64-bit half: hence the 33.
const fn distance(bits: u32) -> [u64; 2] {
    [power_of_x(bits + 64 - 33), power_of_x(bits - 33)]
}

/// Runs the CRC's state over `bytes`.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn update(state: u32, bytes: &[u8]) -> u32 {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    let state = if blocks.is_empty() { state } else { fold_blocks(state, blocks) };
    finish(state, tail)
}

/// What is shorter than a register, with the CRC instructions.
#[target_feature(enable = "sse4.2")]
fn finish(state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let state = words.iter().fold(u64::from(state), |state, word| _mm_crc32_u64(state, u64::from_le_bytes(*word)));
    let (half, rest) = rest.as_chunks::<4>();
    let state = half.iter().fold(state as u32, |state, word| _mm_crc32_u32(state, u32::from_le_bytes(*word)));
    rest.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}

/// # Panics
/// Without a block.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn fold_blocks(state: u32, blocks: &[[u8; BLOCK]]) -> u32 {
    const ALL_WAYS: [u64; 2] = distance((WAYS * BLOCK * 8) as u32);
    const ONE_BLOCK: [u64; 2] = distance((BLOCK * 8) as u32);
    // The state acts like a change of the first four bytes.
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    let first = _mm512_xor_si512(load(&blocks[0]), start);
    let (mut sum, rest) = if blocks.len() < WAYS {
        (first, &blocks[1..])
    } else {
        let mut ways = [first, load(&blocks[1]), load(&blocks[2]), load(&blocks[3])];
        let (groups, rest) = blocks[WAYS..].as_chunks::<WAYS>();
        for group in groups {
            for (way, block) in ways.iter_mut().zip(group) {
                *way = fold(*way, ALL_WAYS, load(block));
            }
        }
        (ways[1..].iter().fold(ways[0], |sum, way| fold(sum, ONE_BLOCK, *way)), rest)
    };
    for block in rest {
        sum = fold(sum, ONE_BLOCK, load(block));
    }
    reduce(sum)
}

/// `register` moved by a distance and added to what stands there.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(register: __m512i, [low, high]: [u64; 2], there: __m512i) -> __m512i {
    let constants = _mm512_broadcast_i32x4(_mm_set_epi64x(high as i64, low as i64));
    let low = _mm512_clmulepi64_epi128::<0x00>(register, constants);
    let high = _mm512_clmulepi64_epi128::<0x11>(register, constants);
    // Exclusive or of all three.
    _mm512_ternarylogic_epi64::<0x96>(low, high, there)
}

/// The CRC of one register: its four quarters meet in the last, and the instructions do the rest.
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn reduce(register: __m512i) -> u32 {
    const THREE: [u64; 2] = distance(3 * 128);
    const TWO: [u64; 2] = distance(2 * 128);
    const ONE: [u64; 2] = distance(128);
    let constants = _mm512_set_epi64(
        0,
        0,
        ONE[1] as i64,
        ONE[0] as i64,
        TWO[1] as i64,
        TWO[0] as i64,
        THREE[1] as i64,
        THREE[0] as i64,
    );
    let low = _mm512_clmulepi64_epi128::<0x00>(register, constants);
    let high = _mm512_clmulepi64_epi128::<0x11>(register, constants);
    // The last quarter's constants are zero: it enters as it is.
    let moved = _mm512_xor_si512(low, high);
    let sum = [
        _mm512_extracti32x4_epi32::<0>(moved),
        _mm512_extracti32x4_epi32::<1>(moved),
        _mm512_extracti32x4_epi32::<2>(moved),
        _mm512_extracti32x4_epi32::<3>(register),
    ]
    .into_iter()
    .fold(_mm_setzero_si128(), |sum, quarter| _mm_xor_si128(sum, quarter));
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum) as u64);
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(sum) as u64) as u32
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> __m512i {
    // SAFETY: the reference vouches for 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}
