//! One element of several ranks, combined in their order.

use super::integer::{from_ordered, to_ordered};
use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::sum::Task;

/// The sum divided; what is not a number becomes the canonical NaN, since the payload of `a + b` is anybody's choice.
fn finish_sum(sum: f32, task: &Task<'_>) -> f32 {
    let result = sum * task.factor / task.divisor;
    if result.is_nan() { f32::NAN } else { result }
}

/// `first` and the others, combined from left to right.
fn fold<T, const N: usize>(
    mut values: impl Iterator<Item = [u8; N]>,
    read: impl Fn([u8; N]) -> T,
    combine: impl Fn(T, T) -> T,
) -> T {
    let first = values.next().expect("a task has at least one input");
    values.fold(read(first), |result, value| combine(result, read(value)))
}

/// Floats: a sum and a maximum per type.
macro_rules! floats {
    ($($sum:ident, $max:ident, $width:literal, $from_bits:expr, $to_bits:expr;)*) => {$(
        pub(crate) fn $sum(values: impl Iterator<Item = [u8; $width]>, task: &Task<'_>) -> [u8; $width] {
            let sum = fold(values, $from_bits, |a, b| a + b);
            $to_bits(finish_sum(sum, task))
        }

        pub(crate) fn $max(values: impl Iterator<Item = [u8; $width]>, task: &Task<'_>) -> [u8; $width] {
            let largest = fold(values, |bytes| to_ordered($from_bits(bytes), task.flip), i32::max);
            $to_bits(from_ordered(largest, task.flip))
        }
    )*};
}

floats! {
    sum_f32, max_f32, 4, f32::from_ne_bytes, f32::to_ne_bytes;
    sum_f16, max_f16, 2, |bytes| f16_to_f32(u16::from_ne_bytes(bytes)), |value| f32_to_f16(value).to_ne_bytes();
    sum_bf16, max_bf16, 2, |bytes| bf16_to_f32(u16::from_ne_bytes(bytes)), |value| f32_to_bf16(value).to_ne_bytes();
}

/// Integers: `flip` complements what is read and what is written.
macro_rules! integers {
    ($($name:ident, $type:ty, $width:literal, $combine:expr;)*) => {$(
        pub(crate) fn $name(values: impl Iterator<Item = [u8; $width]>, task: &Task<'_>) -> [u8; $width] {
            let flip = task.flip as $type;
            (fold(values, |bytes| <$type>::from_ne_bytes(bytes) ^ flip, $combine) ^ flip).to_ne_bytes()
        }
    )*};
}

integers! {
    sum_i32, i32, 4, i32::wrapping_add;
    max_i32, i32, 4, i32::max;
    sum_i64, i64, 8, i64::wrapping_add;
    max_i64, i64, 8, i64::max;
    or, i8, 1, core::ops::BitOr::bitor;
    xor, i8, 1, core::ops::BitXor::bitxor;
}
