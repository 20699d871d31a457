//! The kernels of [`crate::sum`], written once over lane operations that the instantiating module provides.
//!
//! A kernel walks its elements in blocks of [`UNROLL`] vectors: it reads the first input's block into registers, combines
//! the other inputs with it in order, and writes every output. What lies before the outputs' first whole vector and after
//! the last one goes one vector, or a part of one, at a time.

/// Vectors of a block: enough to hide the latency of an addition, few enough for 16 registers.
pub(super) const UNROLL: usize = 4;

/// Instantiates the kernels for one instruction set.
macro_rules! sums {
    ($features:tt) => {
        use super::sums::UNROLL;
        use crate::sum::{Kernel, Task};

        /// Runs `kernel`.
        ///
        /// # Safety
        /// As [`super::combine`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn combine(kernel: Kernel, task: &Task<'_>) {
            // SAFETY: the caller's promise. Lanes have 4 bytes, so bitwise kernels leave up to 3 bytes over.
            unsafe {
                match kernel {
                    Kernel::SumF32 => sum_f32(task),
                    Kernel::SumF16 => sum_f16(task),
                    Kernel::SumBf16 => sum_bf16(task),
                    Kernel::SumI32 => sum_i32(task),
                    Kernel::SumI64 => sum_i64(task),
                    Kernel::MaxF32 => max_f32(task),
                    Kernel::MaxF16 => max_f16(task),
                    Kernel::MaxBf16 => max_bf16(task),
                    Kernel::MaxI32 => max_of_i32(task),
                    Kernel::MaxI64 => max_of_i64(task),
                    Kernel::Or => bitwise_or(task),
                    Kernel::Xor => bitwise_xor(task),
                }
                if matches!(kernel, Kernel::Or | Kernel::Xor) {
                    super::combine_from(kernel, task, task.bytes / 4 * 4);
                }
            }
            if task.streams {
                // Streamed stores pass later ones, also the one that tells others of them.
                _mm_sfence();
            }
        }

        sums!(@kernel $features, sum_f32, 4, 4, load_lanes, store_lanes, stream_lanes,
            from_bits, add_f32, |sum, task| bits_of(finish_sum(sum, task)));
        sums!(@kernel $features, sum_f16, 2, 2, load_half_lanes, store_half_lanes, stream_half_lanes,
            widen_f16, add_f32, |sum, task| narrow_f16(finish_sum(sum, task)));
        sums!(@kernel $features, sum_bf16, 2, 2, load_half_lanes, store_half_lanes, stream_half_lanes,
            widen_bf16, add_f32, |sum, task| narrow_bf16(finish_sum(sum, task)));
        sums!(@kernel $features, sum_i32, 4, 4, load_lanes, store_lanes, stream_lanes,
            same, add_i32, |sum, _task| sum);
        sums!(@kernel $features, sum_i64, 8, 4, load_lanes, store_lanes, stream_lanes,
            same, add_i64, |sum, _task| sum);
        sums!(@flipped $features, max_f32, 4, 4, load_lanes, store_lanes, stream_lanes,
            |bits, flip| to_ordered(from_bits(bits), flip), max_i32, |max, flip| bits_of(from_ordered(max, flip)));
        sums!(@flipped $features, max_f16, 2, 2, load_half_lanes, store_half_lanes, stream_half_lanes,
            |bits, flip| to_ordered(widen_f16(bits), flip), max_i32, |max, flip| narrow_f16(from_ordered(max, flip)));
        sums!(@flipped $features, max_bf16, 2, 2, load_half_lanes, store_half_lanes, stream_half_lanes,
            |bits, flip| to_ordered(widen_bf16(bits), flip), max_i32, |max, flip| narrow_bf16(from_ordered(max, flip)));
        sums!(@flipped $features, max_of_i32, 4, 4, load_lanes, store_lanes, stream_lanes,
            |bits, flip| xor_i32(bits, flip), max_i32, |max, flip| xor_i32(max, flip));
        sums!(@flipped $features, max_of_i64, 8, 4, load_lanes, store_lanes, stream_lanes,
            |bits, flip| xor_i32(bits, flip), max_i64, |max, flip| xor_i32(max, flip));
        sums!(@flipped $features, bitwise_or, 4, 4, load_lanes, store_lanes, stream_lanes,
            |bits, flip| xor_i32(bits, flip), or_i32, |or, flip| xor_i32(or, flip));
        sums!(@flipped $features, bitwise_xor, 4, 4, load_lanes, store_lanes, stream_lanes,
            |bits, _flip| bits, xor_i32, |xor, _flip| xor);

        /// See the scalar twin.
        #[inline]
        #[target_feature(enable = $features)]
        fn finish_sum(sum: Floats, task: &Task<'_>) -> Floats {
            let scaled = mul(sum, splat_f32(task.factor));
            let result = if task.divisor == 1.0 { scaled } else { div(scaled, splat_f32(task.divisor)) };
            from_bits(where_nan(result, splat_i32(f32::NAN.to_bits() as i32), bits_of(result)))
        }

        /// See the scalar twin.
        #[inline]
        #[target_feature(enable = $features)]
        fn to_ordered(value: Floats, flip: Ints) -> Ints {
            where_nan(value, splat_i32(i32::MAX), xor_i32(swap_order(bits_of(value)), flip))
        }

        /// See the scalar twin.
        #[inline]
        #[target_feature(enable = $features)]
        fn from_ordered(ordered: Ints, flip: Ints) -> Floats {
            let bits = swap_order(xor_i32(ordered, flip));
            from_bits(where_nan(from_bits(bits), splat_i32(f32::NAN.to_bits() as i32), bits))
        }

        /// Lanes of `width` bytes before the first output's first whole vector, made of whole elements of
        /// `element_bytes`, and whether the outputs can be streamed from there on.
        #[inline]
        fn align(task: &Task<'_>, element_bytes: usize, width: usize) -> (usize, bool) {
            let vector = width * LANES;
            let offset = |output: *mut u8| output.addr().wrapping_neg() % vector;
            let Some(head) = task.outputs.first().map(|output| offset(*output)) else { return (0, false) };
            if head % element_bytes != 0 {
                return (0, false);
            }
            (head / width, task.streams && task.outputs.iter().all(|output| offset(*output) == head))
        }
    };

    // A kernel whose elements are complemented by the task's `flip` on the way in and out.
    (@flipped $features:tt, $name:ident, $element_bytes:literal, $width:literal,
     $load:ident, $store:ident, $stream:ident, $read:expr, $combine:ident, $finish:expr) => {
        sums!(@kernel $features, $name, $element_bytes, $width, $load, $store, $stream,
            $read, $combine, $finish, |task: &Task<'_>| splat_i32(task.flip));
    };
    // A sum: nothing to complement, and the task itself to finish with.
    (@kernel $features:tt, $name:ident, $element_bytes:literal, $width:literal,
     $load:ident, $store:ident, $stream:ident, $read:ident, $combine:ident, $finish:expr) => {
        sums!(@kernel $features, $name, $element_bytes, $width, $load, $store, $stream,
            |lanes, _task| $read(lanes), $combine, $finish, |task| task);
    };
    (@kernel $features:tt, $name:ident, $element_bytes:literal, $width:literal, $load:ident, $store:ident,
     $stream:ident, $read:expr, $combine:ident, $finish:expr, $context:expr) => {
        /// # Safety
        /// As [`super::combine`].
        #[target_feature(enable = $features)]
        unsafe fn $name(task: &Task<'_>) {
            /// One vector or less.
            ///
            /// # Safety
            /// As [`super::combine`], and elements `at..at + n` exist.
            #[target_feature(enable = $features)]
            unsafe fn part(task: &Task<'_>, first: *const u8, others: &[*const u8], at: usize, n: usize) {
                let context = ($context)(task);
                // SAFETY: the caller's promise.
                let read = |input: *const u8| ($read)(unsafe { $load(input.add($width * at), n) }, context);
                let lanes = others.iter().fold(read(first), |lanes, &input| $combine(lanes, read(input)));
                let done = ($finish)(lanes, context);
                for &output in task.outputs {
                    // SAFETY: the caller's promise.
                    unsafe { $store(output.add($width * at), n, done) }
                }
            }

            let (&first, others) = task.inputs.split_first().expect("a task has at least one input");
            let context = ($context)(task);
            let (head, streams) = align(task, $element_bytes, $width);
            let count = task.bytes / $width;
            // SAFETY: `steps` stays below `head` and `count`, so what is read and written lies within `bytes`.
            steps(head, head.min(count), |at, n| unsafe { part(task, first, others, at, n) });
            let mut at = head.min(count);
            while count - at >= UNROLL * LANES {
                // SAFETY: a whole block is left; `streams` says that whole vectors from `head` on are aligned.
                unsafe {
                    let read = |input: *const u8, k: usize| {
                        ($read)($load(input.add($width * (at + k * LANES)), LANES), context)
                    };
                    let mut lanes = [read(first, 0), read(first, 1), read(first, 2), read(first, 3)];
                    for &input in others {
                        for k in 0..UNROLL {
                            lanes[k] = $combine(lanes[k], read(input, k));
                        }
                    }
                    let done = lanes.map(|lanes| ($finish)(lanes, context));
                    for &output in task.outputs {
                        for k in 0..UNROLL {
                            let to = output.add($width * (at + k * LANES));
                            if streams { $stream(to, done[k]) } else { $store(to, LANES, done[k]) }
                        }
                    }
                }
                at += UNROLL * LANES;
            }
            // SAFETY: as above.
            steps(0, count - at, |step, n| unsafe { part(task, first, others, at + step, n) });
        }
    };
}

pub(super) use sums;
