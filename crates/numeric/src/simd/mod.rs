//! Vector kernels and the choice among them: the only unsafe code of this crate.
//!
//! `kernels.rs` writes each kernel once, in terms of lane operations; `avx512.rs` and `avx2.rs` define these operations
//! for their registers and instantiate the kernels. `sums.rs` does the same for the kernels of [`crate::sum`]. `scalar` is the third instance and the reference.

#[cfg(target_arch = "x86_64")]
mod atp_kernels;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_fpisa;
mod byte_order;
mod detect;
#[cfg(target_arch = "x86_64")]
mod ieee_kernels;
#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod narrow_kernels;
mod raw;
#[cfg(target_arch = "x86_64")]
mod sums;
mod versions;

pub(crate) use byte_order::{reverse_halves, reverse_words};
pub use detect::{KernelLevel, kernel_level, limit_kernel_level};
pub(crate) use raw::*;
pub(crate) use versions::*;

use crate::scalar;
use crate::sum::{Kernel, Task};

/// Gives each kernel one safe function that runs the best twin.
macro_rules! dispatch {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $return:ty)?;)*) => {$(
        #[inline]
        pub(crate) fn $name($($arg: $type),*) $(-> $return)? {
            #[cfg(target_arch = "x86_64")]
            match kernel_level() {
                // SAFETY: the level never exceeds the detected one, which has all features of the module.
                KernelLevel::Avx512 => return unsafe { avx512::$name($($arg),*) },
                // SAFETY: as above.
                KernelLevel::Avx2 => return unsafe { avx2::$name($($arg),*) },
                KernelLevel::Scalar => {}
            }
            scalar::$name($($arg),*)
        }
    )*};
}

dispatch! {
    fn magnitude_bits_f32(values: &[f32]) -> u32;
    fn magnitude_bits_16(values: &[u16]) -> u16;

    fn quantize_f32(values: &[f32], f: f32, payload: &mut [u8]);
    fn quantize_f16(values: &[u16], f: f32, payload: &mut [u8]);
    fn quantize_bf16(values: &[u16], f: f32, payload: &mut [u8]);
    fn dequantize_f32(payload: &[u8], inverse: f32, divisor: f32, out: &mut [f32]);
    fn dequantize_f16(payload: &[u8], inverse: f32, divisor: f32, out: &mut [u16]);
    fn dequantize_bf16(payload: &[u8], inverse: f32, divisor: f32, out: &mut [u16]);

    fn quantize_half_f32(values: &[f32], f: f32, payload: &mut [u8]);
    fn quantize_half_f16(values: &[u16], f: f32, payload: &mut [u8]);
    fn quantize_half_bf16(values: &[u16], f: f32, payload: &mut [u8]);
    fn dequantize_half_f32(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [f32]);
    fn dequantize_half_f16(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [u16]);
    fn dequantize_half_bf16(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [u16]);

    fn overwrite(payload: &[u8], slot: &mut [i32]);
    fn add(payload: &[u8], slot: &mut [i32]);
    fn max(payload: &[u8], slot: &mut [i32]);
    fn or(payload: &[u8], slot: &mut [i32]);
    fn xor(payload: &[u8], slot: &mut [i32]);
    fn emit(slot: &[i32], payload: &mut [u8]);
    fn overwrite_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn add_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn max_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn or_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn xor_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);

    fn overwrite_half(payload: &[u8], slot: &mut [i32]);
    fn add_half(payload: &[u8], slot: &mut [i32]);
    fn max_half(payload: &[u8], slot: &mut [i32]);
    fn emit_half(slot: &[i32], payload: &mut [u8]);
    fn overwrite_half_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn add_half_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);
    fn max_half_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]);

    fn quantize_byte_f32(values: &[f32], f: f32, payload: &mut [u8]);
    fn quantize_byte_f16(values: &[u16], f: f32, payload: &mut [u8]);
    fn quantize_byte_bf16(values: &[u16], f: f32, payload: &mut [u8]);
    fn dequantize_byte_f32(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [f32]);
    fn dequantize_byte_f16(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [u16]);
    fn dequantize_byte_bf16(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [u16]);
    fn overwrite_byte(payload: &[u8], slot: &mut [i32]);
    fn add_byte(payload: &[u8], slot: &mut [i32]);
    fn magnitude_i32(slot: &[i32]) -> i32;
    fn emit_byte(slot: &[i32], unit: f32, payload: &mut [u8]);

    fn quantize_bfloat_f32(values: &[f32], f: f32, payload: &mut [u8]);
    fn quantize_bfloat_f16(values: &[u16], f: f32, payload: &mut [u8]);
    fn quantize_bfloat_bf16(values: &[u16], f: f32, payload: &mut [u8]);
    fn dequantize_bfloat_f32(payload: &[u8], inverse: f32, divisor: f32, out: &mut [f32]);
    fn dequantize_bfloat_f16(payload: &[u8], inverse: f32, divisor: f32, out: &mut [u16]);
    fn dequantize_bfloat_bf16(payload: &[u8], inverse: f32, divisor: f32, out: &mut [u16]);
    fn overwrite_bfloat(payload: &[u8], slot: &mut [i32]);
    fn add_bfloat(payload: &[u8], slot: &mut [i32]);
    fn emit_bfloat(slot: &[i32], payload: &mut [u8]);

    fn quantize_units_f32(values: &[f32], payload: &mut [u8]);
    fn quantize_units_f16(values: &[u16], payload: &mut [u8]);
    fn quantize_units_bf16(values: &[u16], payload: &mut [u8]);
    fn dequantize_units_f32(payload: &[u8], inverse: f64, out: &mut [f32]);
    fn dequantize_units_f16(payload: &[u8], inverse: f64, out: &mut [u16]);
    fn dequantize_units_bf16(payload: &[u8], inverse: f64, out: &mut [u16]);
    fn write_plain_f32(values: &[f32], payload: &mut [u8]);
    fn write_plain_f16(values: &[u16], payload: &mut [u8]);
    fn write_plain_bf16(values: &[u16], payload: &mut [u8]);
    fn read_plain_f32(payload: &[u8], divisor: f32, out: &mut [f32]);
    fn read_plain_f16(payload: &[u8], divisor: f32, out: &mut [u16]);
    fn read_plain_bf16(payload: &[u8], divisor: f32, out: &mut [u16]);
    fn add_units(payload: &[u8], slot: &mut [i32]);
    fn has_extreme(slot: &[i32]) -> bool;

    fn ieee_overwrite_f32(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_f32(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_and_emit_f32(payload: &[u8], slot: &mut [f32], out: &mut [u8]);
    fn ieee_emit_f32(slot: &[f32], payload: &mut [u8]);
    fn ieee_overwrite_f16(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_f16(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_and_emit_f16(payload: &[u8], slot: &mut [f32], out: &mut [u8]);
    fn ieee_emit_f16(slot: &[f32], payload: &mut [u8]);
    fn ieee_overwrite_bf16(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_bf16(payload: &[u8], slot: &mut [f32]);
    fn ieee_add_and_emit_bf16(payload: &[u8], slot: &mut [f32], out: &mut [u8]);
    fn ieee_emit_bf16(slot: &[f32], payload: &mut [u8]);

    fn i32_to_payload(values: &[i32], flip: i32, payload: &mut [u8]);
    fn payload_to_i32(payload: &[u8], flip: i32, out: &mut [i32]);
    fn ordered_f32_to_payload(values: &[f32], flip: i32, payload: &mut [u8]);
    fn payload_to_ordered_f32(payload: &[u8], flip: i32, out: &mut [f32]);
    fn i64_to_limbs(values: &[i64], payload: &mut [u8]);
    fn limbs_to_i64(payload: &[u8], out: &mut [i64]);
}

/// Runs one of the kernels of [`crate::sum`].
///
/// # Safety
/// As [`crate::sum::Reduction::apply`].
pub(crate) unsafe fn combine(kernel: Kernel, task: &Task<'_>) {
    #[cfg(target_arch = "x86_64")]
    match kernel_level() {
        // SAFETY: the caller's promise, and the level never exceeds the detected one.
        KernelLevel::Avx512 => return unsafe { avx512::combine(kernel, task) },
        // SAFETY: as above.
        KernelLevel::Avx2 => return unsafe { avx2::combine(kernel, task) },
        KernelLevel::Scalar => {}
    }
    // SAFETY: the caller's promise.
    unsafe { combine_from(kernel, task, 0) }
}

/// The scalar reference, from byte `start` on.
///
/// # Safety
/// As [`combine`].
unsafe fn combine_from(kernel: Kernel, task: &Task<'_>, start: usize) {
    use scalar::sum::*;
    // SAFETY: the caller's promise.
    unsafe {
        match kernel {
            Kernel::SumF32 => each(task, start, |values| sum_f32(values, task)),
            Kernel::SumF16 => each(task, start, |values| sum_f16(values, task)),
            Kernel::SumBf16 => each(task, start, |values| sum_bf16(values, task)),
            Kernel::SumI32 => each(task, start, |values| sum_i32(values, task)),
            Kernel::SumI64 => each(task, start, |values| sum_i64(values, task)),
            Kernel::MaxF32 => each(task, start, |values| max_f32(values, task)),
            Kernel::MaxF16 => each(task, start, |values| max_f16(values, task)),
            Kernel::MaxBf16 => each(task, start, |values| max_bf16(values, task)),
            Kernel::MaxI32 => each(task, start, |values| max_i32(values, task)),
            Kernel::MaxI64 => each(task, start, |values| max_i64(values, task)),
            Kernel::Or => each(task, start, |values| or(values, task)),
            Kernel::Xor => each(task, start, |values| xor(values, task)),
        }
    }
}

/// Applies `element` to the elements of all inputs at one place after the other.
///
/// # Safety
/// As [`combine`].
unsafe fn each<const N: usize>(
    task: &Task<'_>,
    start: usize,
    element: impl Fn(&mut dyn Iterator<Item = [u8; N]>) -> [u8; N],
) {
    for at in (start..task.bytes).step_by(N) {
        // SAFETY: whole elements fill `bytes`, which are readable at every input; the array needs no alignment.
        let mut values = task.inputs.iter().map(|input| unsafe { input.add(at).cast::<[u8; N]>().read() });
        let result = element(&mut values);
        for output in task.outputs {
            // SAFETY: as above, writable.
            unsafe { output.add(at).cast::<[u8; N]>().write(result) }
        }
    }
}
