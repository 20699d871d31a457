//! What the test files share: seeded random values and the list of kernel levels.
#![allow(dead_code, reason = "each test file uses its part")]

use fanin_numeric::{KernelLevel, limit_kernel_level};

/// SplitMix64: every seed is fine, every value is equally likely.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn vec<T>(&mut self, count: usize, mut from_bits: impl FnMut(u64) -> T) -> Vec<T> {
        (0..count).map(|_| from_bits(self.bits())).collect()
    }
}

/// The levels this processor has, the reference first.
pub fn levels() -> Vec<KernelLevel> {
    let best = limit_kernel_level(KernelLevel::Avx512);
    [KernelLevel::Scalar, KernelLevel::Avx2, KernelLevel::Avx512].into_iter().filter(|level| *level <= best).collect()
}

/// `2^exponent`, exact for every exponent used here.
pub fn pow2(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// The largest f32 below `2^exponent`.
pub fn largest_below_pow2(exponent: i32) -> f32 {
    (pow2(exponent) * (1.0 - pow2(-24))) as f32
}
