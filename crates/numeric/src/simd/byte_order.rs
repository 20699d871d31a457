//! [`crate::byte_order`]'s loops, which the compiler turns into byte shuffles where the processor has them.

use super::{KernelLevel, kernel_level};
use crate::byte_order::{halves, words};

macro_rules! versions {
    ($(fn $name:ident = $loop:ident;)*) => {$(
        #[inline]
        pub(crate) fn $name(payload: &[u8], out: &mut [u8]) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2(payload: &[u8], out: &mut [u8]) {
                    $loop(payload, out)
                }
                if kernel_level() != KernelLevel::Scalar {
                    // SAFETY: both other levels have AVX2, and the level never exceeds the detected one.
                    return unsafe { avx2(payload, out) };
                }
            }
            $loop(payload, out)
        }
    )*};
}

versions! {
    fn reverse_words = words;
    fn reverse_halves = halves;
}
