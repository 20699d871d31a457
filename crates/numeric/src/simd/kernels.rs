//! The kernels, written once over lane operations that the instantiating module provides.
//!
//! In a kernel, `at` is the first element of a step and `n` the number of elements in it. `cover` walks the elements of a
//! conversion with whole vectors that may overlap: what is written a second time are the same bits. `steps` does without
//! overlaps, for steps that change what they read. Loads and stores of less than a vector overlap as well, lane by lane in
//! the same way for every width of the elements. So no step touches anything but the slices' own elements, and any length
//! and alignment works.

/// From this many elements on, stores that do not cross cache lines are worth one more vector.
pub(super) const ALIGN_MIN: usize = 128;

/// Where a kernel's vectors should not cross cache lines, which would halve their speed.
#[derive(Clone, Copy)]
pub(super) struct Place {
    address: usize,
    /// Bytes of an element there.
    width: usize,
}

impl Place {
    /// No cache line matters.
    pub(super) const ANY: Place = Place { address: 0, width: 1 };

    #[inline]
    pub(super) fn of<T>(slice: &[T], width: usize) -> Place {
        Place { address: slice.as_ptr().addr(), width }
    }

    /// Elements before the first cache line; 0 when none begins with an element. Always less than `lanes`.
    #[inline]
    pub(super) fn head(self, lanes: usize) -> usize {
        const LINE_BYTES: usize = 64;
        let bytes = self.address.wrapping_neg() % LINE_BYTES;
        if bytes.is_multiple_of(self.width) { bytes / self.width % lanes } else { 0 }
    }
}

/// Instantiates all kernels for one instruction set.
macro_rules! kernels {
    ($features:tt) => {
        use super::kernels::{ALIGN_MIN, Place};
        use crate::float16::{F16_UNIT, F16_UNITS_PER_ONE};

        /// Calls `step(at, n)` until `count` elements are done, the first time with `head` of them.
        #[inline]
        #[target_feature(enable = $features)]
        fn steps(head: usize, count: usize, mut step: impl FnMut(usize, usize)) {
            let mut at = head.min(count);
            if at > 0 {
                step(0, at);
            }
            while count - at >= LANES {
                step(at, LANES);
                at += LANES;
            }
            if at < count {
                step(at, count - at);
            }
        }

        /// Calls `step(at, n)` until all of `count` elements are done, for steps that may be done twice: with whole vectors, of
        /// which the first and the last may overlap their neighbours. Many elements are cut at the cache lines of `place`.
        #[inline]
        #[target_feature(enable = $features)]
        fn cover(place: Place, count: usize, mut step: impl FnMut(usize, usize)) {
            if count < LANES {
                if count > 0 {
                    step(0, count);
                }
                return;
            }
            step(0, LANES);
            let mut at = LANES;
            if count >= ALIGN_MIN {
                at -= (LANES - place.head(LANES)) % LANES;
            }
            while count - at >= LANES {
                step(at, LANES);
                at += LANES;
            }
            if at < count {
                step(count - LANES, LANES);
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn magnitude_bits_f32(values: &[f32]) -> u32 {
            let mut largest = splat_i32(0);
            steps(0, values.len(), |at, n| {
                // SAFETY: `steps` stays within values.len().
                let bits = bits_of(unsafe { load_f32(values, at, n) });
                // Without the sign bit, signed and unsigned order agree.
                largest = max_i32(largest, and_i32(bits, splat_i32(i32::MAX)));
            });
            reduce_max_i32(largest) as u32
        }

        #[target_feature(enable = $features)]
        pub(super) fn magnitude_bits_16(values: &[u16]) -> u16 {
            let mut largest = splat_i32(0);
            steps(0, values.len(), |at, n| {
                // SAFETY: `steps` stays within values.len().
                let bits = widen_u16(unsafe { load_u16(values, at, n) });
                largest = max_i32(largest, and_i32(bits, splat_i32(0x7fff)));
            });
            reduce_max_i32(largest) as u16
        }

        kernels!(@worker $features, f32, load_f32, store_f32, same, same,
            quantize_f32, dequantize_f32, quantize_half_f32, dequantize_half_f32);
        kernels!(@worker $features, u16, load_u16, store_u16, widen_f16, narrow_f16,
            quantize_f16, dequantize_f16, quantize_half_f16, dequantize_half_f16);
        kernels!(@worker $features, u16, load_u16, store_u16, widen_bf16, narrow_bf16,
            quantize_bf16, dequantize_bf16, quantize_half_bf16, dequantize_half_bf16);

        kernels!(@verb $features, overwrite, overwrite_and_emit, 4, load_words, store_words, take_new);
        kernels!(@verb $features, add, add_and_emit, 4, load_words, store_words, add_i32);
        kernels!(@verb $features, max, max_and_emit, 4, load_words, store_words, max_i32);
        kernels!(@verb $features, or, or_and_emit, 4, load_words, store_words, or_i32);
        kernels!(@verb $features, xor, xor_and_emit, 4, load_words, store_words, xor_i32);
        kernels!(@verb $features, overwrite_half, overwrite_half_and_emit, 2, load_units, store_units, take_new);
        kernels!(@verb $features, add_half, add_half_and_emit, 2, load_units, store_units, add_i32);
        kernels!(@verb $features, max_half, max_half_and_emit, 2, load_units, store_units, max_i32);

        #[target_feature(enable = $features)]
        pub(super) fn emit(slot: &[i32], payload: &mut [u8]) {
            let count = slot.len().min(payload.len() / 4);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, load_i32(slot, at, n)) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn emit_half(slot: &[i32], payload: &mut [u8]) {
            let count = slot.len().min(payload.len() / 2);
            cover(Place::of(payload, 2), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_units(payload, at, n, load_i32(slot, at, n)) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn i32_to_payload(values: &[i32], flip: i32, payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 4);
            let flip = splat_i32(flip);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, xor_i32(load_i32(values, at, n), flip)) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn payload_to_i32(payload: &[u8], flip: i32, out: &mut [i32]) {
            let count = out.len().min(payload.len() / 4);
            let flip = splat_i32(flip);
            cover(Place::of(out, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_i32(out, at, n, xor_i32(load_words(payload, at, n), flip)) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn ordered_f32_to_payload(values: &[f32], flip: i32, payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 4);
            let flip = splat_i32(flip);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                let value = unsafe { load_f32(values, at, n) };
                let ordered = xor_i32(swap_order(bits_of(value)), flip);
                let ordered = where_nan(value, splat_i32(i32::MAX), ordered);
                // SAFETY: as above.
                unsafe { store_words(payload, at, n, ordered) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn payload_to_ordered_f32(payload: &[u8], flip: i32, out: &mut [f32]) {
            let count = out.len().min(payload.len() / 4);
            let flip = splat_i32(flip);
            cover(Place::of(out, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                let bits = swap_order(xor_i32(unsafe { load_words(payload, at, n) }, flip));
                let canonical_nan = splat_i32(f32::NAN.to_bits() as i32);
                let value = from_bits(where_nan(from_bits(bits), canonical_nan, bits));
                // SAFETY: as above.
                unsafe { store_f32(out, at, n, value) }
            });
        }

        /// In memory a little-endian i64 already is its four limbs, least significant first.
        #[target_feature(enable = $features)]
        pub(super) fn i64_to_limbs(values: &[i64], payload: &mut [u8]) {
            let count = (4 * values.len()).min(payload.len() / 4);
            // SAFETY: the same bytes, at a smaller alignment; every bit pattern is a u16.
            let limbs = unsafe { core::slice::from_raw_parts(values.as_ptr().cast::<u16>(), 4 * values.len()) };
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, widen_u16(load_u16(limbs, at, n))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn limbs_to_i64(payload: &[u8], out: &mut [i64]) {
            // Four words make one value. Less than a vector goes value by value: halves of three would tear one apart.
            let count = 4 * out.len().min(payload.len() / 16);
            let mut step = |at, n| {
                // SAFETY: the steps below stay within both slices.
                unsafe {
                    let sums = resolve_carries(load_words(payload, at, n));
                    store_even_i64(out.as_mut_ptr().add(at / 4), n / 4, sums)
                }
            };
            if count >= LANES {
                cover(Place::ANY, count, step);
            } else {
                (0..count).step_by(4).for_each(|at| step(at, 4));
            }
        }

        kernels!(@element $features, load_f32, store_f32, f32, 1, Floats, load_lanes, store_lanes, from_bits, bits_of);
        kernels!(@element $features, load_i32, store_i32, i32, 1, Ints, load_lanes, store_lanes, same, same);
        kernels!(@element $features, load_words, store_words, u8, 4, Ints, load_lanes, store_lanes,
            swap_bytes, swap_bytes);
        kernels!(@element $features, load_u16, store_u16, u16, 1, Halves, load_half_lanes, store_half_lanes,
            same, same);
        kernels!(@element $features, load_halves, store_halves, u8, 2, Halves, load_half_lanes, store_half_lanes,
            swap_half_bytes, swap_half_bytes);

        /// f16 payload as counts of 2^-24.
        ///
        /// # Safety
        /// The payload has elements `at..at + n`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_units(payload: &[u8], at: usize, n: usize) -> Ints {
            // SAFETY: the caller's promise.
            let halves = unsafe { load_halves(payload, at, n) };
            round(mul(widen_f16(halves), splat_f32(F16_UNITS_PER_ONE)))
        }

        /// Counts of 2^-24 as f16 payload.
        ///
        /// # Safety
        /// The payload has elements `at..at + n`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store_units(payload: &mut [u8], at: usize, n: usize, units: Ints) {
            let value = mul(to_f32(make_exact_in_f32(units)), splat_f32(F16_UNIT));
            // SAFETY: the caller's promise.
            unsafe { store_halves(payload, at, n, narrow_f16(value)) }
        }

        /// Negative floats order backwards as integers: flip their magnitude bits.
        #[inline]
        #[target_feature(enable = $features)]
        fn swap_order(bits: Ints) -> Ints {
            xor_i32(bits, and_i32(sign_mask(bits), splat_i32(i32::MAX)))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn take_new(_: Ints, new: Ints) -> Ints {
            new
        }

        #[inline]
        fn same<T>(lanes: T) -> T {
            lanes
        }
    };

    // Loads and stores of one kind of element: `width` slice items each, changed on the way in and out.
    (@element $features:tt, $load:ident, $store:ident, $item:ty, $width:literal, $lanes:ty,
     $load_lanes:ident, $store_lanes:ident, $from_memory:ident, $to_memory:ident) => {
        /// # Safety
        /// The slice has elements `at..at + n`, `1 <= n <= LANES`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $load(from: &[$item], at: usize, n: usize) -> $lanes {
            debug_assert!($width * (at + n) <= from.len());
            // SAFETY: the caller's promise.
            $from_memory(unsafe { $load_lanes(from.as_ptr().add($width * at).cast(), n) })
        }

        /// # Safety
        /// The slice has elements `at..at + n`, `1 <= n <= LANES`.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $store(to: &mut [$item], at: usize, n: usize, lanes: $lanes) {
            debug_assert!($width * (at + n) <= to.len());
            // SAFETY: the caller's promise.
            unsafe { $store_lanes(to.as_mut_ptr().add($width * at).cast(), n, $to_memory(lanes)) }
        }
    };

    // One memory format of the worker: its four conversions.
    (@worker $features:tt, $bits:ty, $load:ident, $store:ident, $widen:ident, $narrow:ident,
     $quantize:ident, $dequantize:ident, $quantize_half:ident, $dequantize_half:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $quantize(values: &[$bits], f: f32, payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 4);
            let f = splat_f32(f);
            cover(Place::of(payload, 4), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_words(payload, at, n, round(mul($widen($load(values, at, n)), f))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $dequantize(payload: &[u8], inverse: f32, divisor: f32, out: &mut [$bits]) {
            let count = out.len().min(payload.len() / 4);
            let (inverse, divisor_lanes) = (splat_f32(inverse), splat_f32(divisor));
            let place = Place::of(out, size_of::<$bits>());
            // SAFETY: `cover` stays within both slices.
            let sum = |at, n| mul(to_f32(unsafe { load_words(payload, at, n) }), inverse);
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
        pub(super) fn $quantize_half(values: &[$bits], f: f32, payload: &mut [u8]) {
            let count = values.len().min(payload.len() / 2);
            let f = splat_f32(f);
            cover(Place::of(payload, 2), count, |at, n| {
                // SAFETY: `cover` stays within both slices.
                unsafe { store_halves(payload, at, n, narrow_f16(mul($widen($load(values, at, n)), f))) }
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn $dequantize_half(payload: &[u8], inverse: [f32; 2], divisor: f32, out: &mut [$bits]) {
            let count = out.len().min(payload.len() / 2);
            let [first, second, divisor_lanes] = [inverse[0], inverse[1], divisor].map(|factor| splat_f32(factor));
            let place = Place::of(out, size_of::<$bits>());
            // SAFETY: `cover` stays within both slices.
            let sum = |at, n| mul(mul(widen_f16(unsafe { load_halves(payload, at, n) }), first), second);
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
    (@verb $features:tt, $name:ident, $name_and_emit:ident, $width:literal,
     $load:ident, $store:ident, $combine:ident) => {
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

        #[target_feature(enable = $features)]
        pub(super) fn $name_and_emit(payload: &[u8], slot: &mut [i32], out: &mut [u8]) {
            let count = slot.len().min(payload.len() / $width).min(out.len() / $width);
            steps(Place::of(slot, 4).head(LANES), count, |at, n| {
                // SAFETY: `steps` stays within all three slices.
                unsafe {
                    let sum = $combine(load_i32(slot, at, n), $load(payload, at, n));
                    store_i32(slot, at, n, sum);
                    $store(out, at, n, sum);
                }
            });
        }
    };
}

pub(super) use kernels;
