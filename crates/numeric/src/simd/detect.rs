//! Which twin runs: found once, kept in an atomic.

use core::sync::atomic::{AtomicU8, Ordering};

/// The instruction set that the kernels use. All levels write the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum KernelLevel {
    /// The reference, one value at a time (or what the compiler makes of it).
    Scalar = 1,
    /// AVX2 and F16C, 8 values at a time.
    Avx2 = 2,
    /// AVX-512 F, BW and VL, 16 values at a time.
    Avx512 = 3,
}

const NOT_DETECTED: u8 = 0;
static LEVEL: AtomicU8 = AtomicU8::new(NOT_DETECTED);

/// The level in use.
#[inline]
pub fn kernel_level() -> KernelLevel {
    // Relaxed: every thread that detects finds the same value, and no other memory depends on it.
    match LEVEL.load(Ordering::Relaxed) {
        1 => KernelLevel::Scalar,
        2 => KernelLevel::Avx2,
        3 => KernelLevel::Avx512,
        _ => limit_kernel_level(KernelLevel::Avx512),
    }
}

/// Uses at most `limit` from now on, in the whole process, and returns the level that results: for measurements and
/// for tests of the twins. A level that the processor lacks is never used.
#[cold]
pub fn limit_kernel_level(limit: KernelLevel) -> KernelLevel {
    let level = limit.min(detect());
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> KernelLevel {
    KernelLevel::Scalar
}

/// The processor must have the instructions and the operating system must save the registers (XCR0).
#[cfg(target_arch = "x86_64")]
fn detect() -> KernelLevel {
    const FMA_POPCNT_OSXSAVE_AVX_F16C: u32 = 1 << 12 | 1 << 23 | 1 << 27 | 1 << 28 | 1 << 29;
    const AVX2: u32 = 1 << 5;
    const AVX512F_BW_VL: u32 = 1 << 16 | 1 << 30 | 1 << 31;
    const YMM_STATE: u64 = 0b110;
    const ZMM_STATE: u64 = 0b1110_0110;

    let has = |found: u32, wanted: u32| found & wanted == wanted;
    let (leaf_1_ecx, leaf_7_ebx) = feature_bits();
    // The compiler counts FMA among what AVX-512 implies, so it is asked for, though no kernel may fuse.
    if !has(leaf_1_ecx, FMA_POPCNT_OSXSAVE_AVX_F16C) || !has(leaf_7_ebx, AVX2) {
        return KernelLevel::Scalar;
    }
    // SAFETY: OSXSAVE says that the instruction may be used.
    let saved = unsafe { saved_state() };
    if saved & ZMM_STATE == ZMM_STATE && has(leaf_7_ebx, AVX512F_BW_VL) {
        KernelLevel::Avx512
    } else if saved & YMM_STATE == YMM_STATE {
        KernelLevel::Avx2
    } else {
        KernelLevel::Scalar
    }
}

/// Leaf 1's ECX and leaf 7's EBX.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "newer compilers made the intrinsic safe")]
fn feature_bits() -> (u32, u32) {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY: every x86-64 processor has CPUID.
    unsafe {
        let leaf_7_ebx = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        (__cpuid(1).ecx, leaf_7_ebx)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: the caller found OSXSAVE; register 0 always exists.
    unsafe { core::arch::x86_64::_xgetbv(0) }
}
