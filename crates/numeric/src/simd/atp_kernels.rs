//! The kernels of ATP's numbers: counts of 10^-8 whose sums stick where 32 bits end, and floats as they are; over the same
//! lane operations as `kernels.rs`, whose helpers they use.

/// Instantiates them for one instruction set, beside `kernels!`.
macro_rules! atp_kernels {
    ($features:tt) => {
        use crate::static_fixed::SCALE;

        atp_kernels!(@worker $features, f32, load_f32, store_f32, same, same,
            quantize_units_f32, dequantize_units_f32, write_plain_f32, read_plain_f32);
        atp_kernels!(@worker $features, u16, load_u16, store_u16, widen_f16, narrow_f16,
            quantize_units_f16, dequantize_units_f16, write_plain_f16, read_plain_f16);
        atp_kernels!(@worker $features, u16, load_u16, store_u16, widen_bf16, narrow_bf16,
            quantize_units_bf16, dequantize_units_bf16, write_plain_bf16, read_plain_bf16);

        #[target_feature(enable = $features)]
        pub(super) fn add_units(payload: &[u8], slot: &mut [i32]) {
            steps(Place::of(slot, 4).head(LANES), slot.len().min(payload.len() / 4), |at, n| {
                // SAFETY: `steps` stays within both slices.
                unsafe {
                    let sum = add_sticky(load_i32(slot, at, n), load_words(payload, at, n));
                    store_i32(slot, at, n, sum);
                }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn has_extreme(slot: &[i32]) -> bool {
            let mut any = splat_i32(0);
            steps(0, slot.len(), |at, n| {
                // SAFETY: `steps` stays within slot.len().
                any = or_i32(any, extremes(unsafe { load_i32(slot, at, n) }));
            });
            // A mark has all bits set, as a signed number it would be less than none.
            reduce_max_i32(and_i32(any, splat_i32(1))) != 0
        }
    };

    // One memory format of the worker: its four conversions.
    (@worker $features:tt, $bits:ty, $load:ident, $store:ident, $widen:ident, $narrow:ident,
     $quantize:ident, $dequantize:ident, $write:ident, $read:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $quantize(values: &[$bits], payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 4);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, to_units($widen($load(values, at, n)))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $dequantize(payload: &[u8], inverse: f64, out: &mut [$bits]) {
            let count = out.len().min(payload.len() / 4);
            cover(Place::of(out, size_of::<$bits>()), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { $store(out, at, n, $narrow(from_units(load_words(payload, at, n), inverse))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $write(values: &[$bits], payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 4);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, bits_of($widen($load(values, at, n)))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $read(payload: &[u8], divisor: f32, out: &mut [$bits]) {
            let count = out.len().min(payload.len() / 4);
            let divisor_lanes = splat_f32(divisor);
            let place = Place::of(out, size_of::<$bits>());
            // SAFETY: `cover` stays within both slices.
            let sum = |at, n| from_bits(unsafe { load_words(payload, at, n) });
            // Two loops, lest the compiler divides always and then selects: that halves the speed.
            if divisor == 1.0 {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(sum(at, n))) });
            } else {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(div(sum(at, n), divisor_lanes))) });
            }
        }
    };
}

pub(super) use atp_kernels;
