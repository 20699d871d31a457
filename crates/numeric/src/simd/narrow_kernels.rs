//! The kernels of the Int8 and the Bfloat16 element format, over the same lane operations as `kernels.rs`, whose
//! helpers they use.

/// Instantiates them for one instruction set, beside `kernels!`.
macro_rules! narrow_kernels {
    ($features:tt) => {
        narrow_kernels!(@worker $features, f32, load_f32, store_f32, same, same,
            quantize_byte_f32, dequantize_byte_f32, quantize_bfloat_f32, dequantize_bfloat_f32);
        narrow_kernels!(@worker $features, u16, load_u16, store_u16, widen_f16, narrow_f16,
            quantize_byte_f16, dequantize_byte_f16, quantize_bfloat_f16, dequantize_bfloat_f16);
        narrow_kernels!(@worker $features, u16, load_u16, store_u16, widen_bf16, narrow_bf16,
            quantize_byte_bf16, dequantize_byte_bf16, quantize_bfloat_bf16, dequantize_bfloat_bf16);

        narrow_kernels!(@verb $features, overwrite_byte, 1, load_bytes, take_new);
        narrow_kernels!(@verb $features, add_byte, 1, load_bytes, add_i32);
        narrow_kernels!(@verb $features, overwrite_bfloat, 2, load_bfloat_units, take_new);
        narrow_kernels!(@verb $features, add_bfloat, 2, load_bfloat_units, add_i32);

        #[target_feature(enable = $features)]
        pub(super) fn magnitude_i32(slot: &[i32]) -> i32 {
            let mut largest = splat_i32(0);
            steps(0, slot.len(), |at, n| {
                // SAFETY: `steps` stays within slot.len().
                largest = max_i32(largest, abs_i32(unsafe { load_i32(slot, at, n) }));
            });
            reduce_max_i32(largest)
        }

        #[target_feature(enable = $features)]
        pub(super) fn emit_byte(slot: &[i32], unit: f32, payload: &mut [u8]) {
            let count = slot.len().min(payload.len());
            let unit = splat_f32(unit);
            cover(Place::of(payload, 1), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_bytes(payload, at, n, round(mul(to_f32(load_i32(slot, at, n)), unit))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn emit_bfloat(slot: &[i32], payload: &mut [u8]) {
            let count = slot.len().min(payload.len() / 2);
            cover(Place::of(payload, 2), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe {
                    let sum = to_f32(make_exact_in_f32(load_i32(slot, at, n)));
                    store_halves(payload, at, n, narrow_bf16(sum));
                }
            });
        }

        /// # Safety
        /// The payload has elements `at..at + n`, `1 <= n <= LANES`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_bytes(payload: &[u8], at: usize, n: usize) -> Ints {
            debug_assert!(at + n <= payload.len());
            // SAFETY: the caller's promise.
            widen_i8(unsafe { load_byte_lanes(payload.as_ptr().add(at), n) })
        }

        /// Clamps to -127..=127.
        ///
        /// # Safety
        /// The payload has elements `at..at + n`, `1 <= n <= LANES`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store_bytes(payload: &mut [u8], at: usize, n: usize, lanes: Ints) {
            debug_assert!(at + n <= payload.len());
            let bytes = narrow_i8(max_i32(lanes, splat_i32(-127)));
            // SAFETY: the caller's promise.
            unsafe { store_byte_lanes(payload.as_mut_ptr().add(at), n, bytes) }
        }

        /// bf16 payload as whole numbers.
        ///
        /// # Safety
        /// The payload has elements `at..at + n`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_bfloat_units(payload: &[u8], at: usize, n: usize) -> Ints {
            // SAFETY: the caller's promise.
            round(widen_bf16(unsafe { load_halves(payload, at, n) }))
        }

        /// See the scalar twin.
        #[inline]
        #[target_feature(enable = $features)]
        fn whole_bfloat(value: Floats) -> Halves {
            narrow_bf16(where_below(value, 128.0, to_f32(round(value)), value))
        }
    };

    // One memory format of the worker: its four conversions.
    (@worker $features:tt, $bits:ty, $load:ident, $store:ident, $widen:ident, $narrow:ident,
     $quantize_byte:ident, $dequantize_byte:ident, $quantize_bfloat:ident, $dequantize_bfloat:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $quantize_byte(values: &[$bits], f: f32, payload: &mut [u8]) {
            let count = values.len().min(payload.len());
            let f = splat_f32(f);
            cover(Place::of(payload, 1), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_bytes(payload, at, n, round(mul($widen($load(values, at, n)), f))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $dequantize_byte(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [$bits]) {
            let count = out.len().min(payload.len());
            let [first, second, divisor_lanes] = [inverse[0], inverse[1], divisor].map(|factor| splat_f32(factor));
            let place = Place::of(out, size_of::<$bits>());
            // SAFETY: `cover` stays within both slices.
            let sum = |at, n| mul(mul(to_f32(unsafe { load_bytes(payload, at, n) }), first), second);
            // Two loops, lest the compiler divides always and then selects: that halves the speed.
            if divisor == 1.0 {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(sum(at, n))) });
            } else {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(div(sum(at, n), divisor_lanes))) });
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn $quantize_bfloat(values: &[$bits], f: f32, payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 2);
            let f = splat_f32(f);
            cover(Place::of(payload, 2), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_halves(payload, at, n, whole_bfloat(mul($widen($load(values, at, n)), f))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $dequantize_bfloat(payload: &[u8], inverse: f32, divisor: f32, out: &mut [$bits]) {
            let count = out.len().min(payload.len() / 2);
            let (inverse, divisor_lanes) = (splat_f32(inverse), splat_f32(divisor));
            let place = Place::of(out, size_of::<$bits>());
            // SAFETY: `cover` stays within both slices.
            let sum = |at, n| mul(widen_bf16(unsafe { load_halves(payload, at, n) }), inverse);
            if divisor == 1.0 {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(sum(at, n))) });
            } else {
                // SAFETY: as above.
                cover(place, count, |at, n| unsafe { $store(out, at, n, $narrow(div(sum(at, n), divisor_lanes))) });
            }
        }
    };

    // One verb of the switch for one element format.
    (@verb $features:tt, $name:ident, $width:literal, $load:ident, $combine:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(payload: &[u8], slot: &mut [i32]) {
            steps(Place::of(slot, 4).head(LANES), slot.len().min(payload.len() / $width), |at, n| {
                // SAFETY: `steps` stays within both slices.
                unsafe {
                    let sum = $combine(load_i32(slot, at, n), $load(payload, at, n));
                    store_i32(slot, at, n, sum);
                }
            });
        }
    };
}

pub(super) use narrow_kernels;
