//! What the test files share: seeded random values and the list of kernel levels.
#![allow(dead_code, unused_macros, reason = "each test file uses its part")]

use fanin_numeric::{BlockExponent, KernelLevel, float16, limit_kernel_level};
use proptest::prelude::*;

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

/// The blocks of 1 to 256 workers, 1 to 7 values each. Values lie up to `exponent_depth` binary orders below the block's
/// largest, so that what a wire format rounds away is among them.
pub fn blocks(exponent_depth: i32) -> impl Strategy<Value = Vec<Vec<f32>>> {
    let worker_count = prop_oneof![1usize..=256, Just(1), Just(2), Just(3), Just(256)];
    let exponent = prop_oneof![-94i32..=128, Just(128), Just(-95)];
    (worker_count, exponent, 1usize..8).prop_flat_map(move |(worker_count, exponent, count)| {
        let h = largest_below_pow2(exponent);
        let value = prop_oneof![
            1 => prop_oneof![Just(h), Just(-h), Just(0.0f32)],
            3 => (-1.0f64..1.0, 0..exponent_depth)
                .prop_map(move |(x, down)| (x * pow2(exponent - down) * (1.0 - pow2(-24))) as f32),
        ];
        proptest::collection::vec(proptest::collection::vec(value, count), worker_count)
    })
}

/// A wire format's conversions of one type of tensor element.
pub struct Conversions<T> {
    pub exponent: fn(&[T]) -> BlockExponent,
    pub quantize: fn(&[T], f32, &mut [u8]),
    pub dequantize: fn(&[u8], f32, f32, &mut [T]),
}

/// A wire format with `width` bytes per element, which should treat 16-bit tensors as the f32 tensors of their values.
pub struct WireFormat {
    pub width: usize,
    pub scale: fn(BlockExponent, u16) -> f32,
    pub f32: Conversions<f32>,
    pub f16: Conversions<u16>,
    pub bf16: Conversions<u16>,
}

/// The [`WireFormat`] of a module of fanin-numeric.
macro_rules! wire_format {
    ($module:ident, $width:literal) => {
        common::WireFormat {
            width: $width,
            scale: $module::scale,
            f32: common::Conversions {
                exponent: $module::exponent_f32,
                quantize: $module::quantize_f32,
                dequantize: $module::dequantize_f32,
            },
            f16: common::Conversions {
                exponent: $module::exponent_f16,
                quantize: $module::quantize_f16,
                dequantize: $module::dequantize_f16,
            },
            bf16: common::Conversions {
                exponent: $module::exponent_bf16,
                quantize: $module::quantize_bf16,
                dequantize: $module::dequantize_bf16,
            },
        }
    };
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use wire_format;

impl WireFormat {
    /// The finite ones of `bits` go out like their values as f32, and what comes back is narrowed once at the end.
    pub fn assert_sixteen_bits_agree_with_f32(&self, bits: &[u16], worker_count: u16, divisor: f32) {
        let compare = |tensor: &Conversions<u16>, widen: fn(u16) -> f32, narrow: fn(f32) -> u16| {
            let bits: Vec<u16> = bits.iter().copied().filter(|x| widen(*x).is_finite()).collect();
            let wide: Vec<f32> = bits.iter().map(|x| widen(*x)).collect();
            assert_eq!((tensor.exponent)(&bits), (self.f32.exponent)(&wide));
            let f = (self.scale)((tensor.exponent)(&bits), worker_count);
            let (mut payload, mut expected) = (vec![0; self.width * bits.len()], vec![0; self.width * bits.len()]);
            (tensor.quantize)(&bits, f, &mut payload);
            (self.f32.quantize)(&wide, f, &mut expected);
            assert_eq!(payload, expected);
            let (mut out, mut wide_out) = (vec![0; bits.len()], vec![0.0; bits.len()]);
            (tensor.dequantize)(&payload, f, divisor, &mut out);
            (self.f32.dequantize)(&payload, f, divisor, &mut wide_out);
            assert_eq!(out, wide_out.into_iter().map(narrow).collect::<Vec<_>>());
        };
        compare(&self.f16, float16::f16_to_f32, float16::f32_to_f16);
        compare(&self.bf16, float16::bf16_to_f32, float16::f32_to_bf16);
    }
}
