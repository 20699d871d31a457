//! Native float additions, over the same lane operations as `kernels.rs`, whose helpers they use.

/// Instantiates them for one instruction set, beside `kernels!`.
macro_rules! ieee_kernels {
    ($features:tt) => {
        ieee_kernels!(@format $features, 4, load_words, store_words, from_bits, bits_of,
            ieee_overwrite_f32, ieee_add_f32, ieee_add_and_emit_f32, ieee_emit_f32);
        ieee_kernels!(@format $features, 2, load_halves, store_halves, widen_f16, narrow_f16,
            ieee_overwrite_f16, ieee_add_f16, ieee_add_and_emit_f16, ieee_emit_f16);
        ieee_kernels!(@format $features, 2, load_halves, store_halves, widen_bf16, narrow_bf16,
            ieee_overwrite_bf16, ieee_add_bf16, ieee_add_and_emit_bf16, ieee_emit_bf16);

        #[inline]
        #[target_feature(enable = $features)]
        fn canonical(value: Floats) -> Floats {
            from_bits(where_nan(value, splat_i32(f32::NAN.to_bits() as i32), bits_of(value)))
        }
    };

    (@format $features:tt, $width:literal, $load:ident, $store:ident, $widen:ident, $narrow:ident,
     $overwrite:ident, $add:ident, $add_and_emit:ident, $emit:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $overwrite(payload: &[u8], slot: &mut [f32]) {
            let count = slot.len().min(payload.len() / $width);
            cover(Place::of(slot, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_f32(slot, at, n, $widen($load(payload, at, n))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $add(payload: &[u8], slot: &mut [f32]) {
            steps(Place::of(slot, 4).head(LANES), slot.len().min(payload.len() / $width), |at, n| {
                // SAFETY: `steps` stays within both slices.
                unsafe {
                    let sum = add_f32(load_f32(slot, at, n), $widen($load(payload, at, n)));
                    store_f32(slot, at, n, sum);
                }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $add_and_emit(payload: &[u8], slot: &mut [f32], out: &mut [u8]) {
            let count = slot.len().min(payload.len() / $width).min(out.len() / $width);
            steps(Place::of(slot, 4).head(LANES), count, |at, n| {
                // SAFETY: `steps` stays within all three slices.
                unsafe {
                    let sum = add_f32(load_f32(slot, at, n), $widen($load(payload, at, n)));
                    store_f32(slot, at, n, sum);
                    $store(out, at, n, $narrow(canonical(sum)));
                }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $emit(slot: &[f32], payload: &mut [u8]) {
            let count = slot.len().min(payload.len() / $width);
            cover(Place::of(payload, $width), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { $store(payload, at, n, $narrow(canonical(load_f32(slot, at, n)))) }
            });
        }
    };
}

pub(super) use ieee_kernels;
