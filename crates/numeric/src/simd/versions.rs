//! The kernels of [`crate::blocks`]: their AVX2 version is what the compiler makes of them; `avx512_fpisa` is written by hand.

#[cfg(target_arch = "x86_64")]
use super::avx512_fpisa;
use super::kernel_level;
use crate::register_pair::Registers;
use crate::scalar::Setup;
use crate::telemetry::Telemetry;
use crate::{KernelLevel, blocks, scalar};

/// Gives each kernel one safe function that runs the best version: the one of the level, else the
/// scalar reference.
macro_rules! versions {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[inline]
        pub(crate) fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,f16c")]
                fn avx2($($arg: $type),*) {
                    blocks::$name($($arg),*)
                }
                match kernel_level() {
                    // SAFETY: the level never exceeds the detected one, which has all of these features.
                    KernelLevel::Avx512 => return unsafe { avx512_fpisa::$name($($arg),*) },
                    // SAFETY: as above.
                    KernelLevel::Avx2 => return unsafe { avx2($($arg),*) },
                    KernelLevel::Scalar => {}
                }
            }
            scalar::$name($($arg),*)
        }
    )*};
}

versions! {
    fn fpisa_overwrite(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>);
    fn fpisa_add(setup: &Setup, payload: &[u8], slot: &mut Registers<'_>, telemetry: Option<&mut Telemetry>);
    fn fpisa_emit(setup: &Setup, slot: &Registers<'_>, payload: &mut [u8], telemetry: Option<&mut Telemetry>);
}
