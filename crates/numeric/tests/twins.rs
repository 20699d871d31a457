//! The vector kernels write the same bits as the scalar reference and touch nothing else.
//!
//! Some comparisons are made on allocations that are exactly as long as the slices, so that a memory checker sees every byte
//! too much that is read (`scripts/memory.sh`).
//!
//! One test function, because the level in use belongs to the process.

mod common;

use std::borrow::Cow;

use common::{Random, levels};
use fanin_numeric::limit_kernel_level;
use fanin_numeric::{
    accumulate, bfloat_wire, block_fixed, byte_wire, float_wire, half_wire, ieee, integer, static_fixed,
};

/// Inputs of one comparison, each longer than any slice taken from it.
struct Inputs {
    f32s: Vec<f32>,
    u16s: Vec<u16>,
    i32s: Vec<i32>,
    i64s: Vec<i64>,
    bytes: Vec<u8>,
    f: f32,
    divisor: f32,
    shift: u8,
}

/// Where a comparison looks: `count` elements from element (or byte) `at` on, with `margin` behind them. Without anything
/// before and behind them, inputs are allocations of their own.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    count: usize,
    margin: usize,
}

impl Place {
    const fn inside(at: usize, count: usize) -> Place {
        Place { at, count, margin: MARGIN }
    }

    const fn exact(count: usize) -> Place {
        Place { at: 0, count, margin: 0 }
    }

    /// Items of the input, `per_element` for each element.
    fn of<T: Clone>(self, items: &[T], per_element: usize) -> Cow<'_, [T]> {
        let slice = &items[self.at..][..per_element * self.count];
        if self.at + self.margin > 0 { Cow::Borrowed(slice) } else { Cow::Owned(slice.to_vec()) }
    }
}

/// Longest slice, plus room for the offsets.
const ELEMENTS_MAX: usize = 4096;
const MARGIN: usize = 64;
/// Fills the outputs, so that a byte too much shows.
const UNTOUCHED: u8 = 0xa5;

type Kernel = fn(&Inputs, Place) -> Vec<u8>;

/// A payload of `width` bytes per element at an odd address, with everything around it.
fn payload(place: Place, width: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![UNTOUCHED; place.at + width * place.count + place.margin];
    write(&mut bytes[place.at..][..width * place.count]);
    bytes
}

/// Typed output, with everything around it, as bytes.
fn typed<T: Copy, const N: usize>(
    place: Place,
    fill: T,
    to_bytes: fn(T) -> [u8; N],
    write: impl FnOnce(&mut [T]),
) -> Vec<u8> {
    let mut items = vec![fill; place.at + place.count + place.margin];
    write(&mut items[place.at..][..place.count]);
    items.into_iter().flat_map(to_bytes).collect()
}

/// A slot and a payload changed together.
fn slot_and_payload(i: &Inputs, p: Place, width: usize, write: impl FnOnce(&mut [u8], &mut [i32])) -> Vec<u8> {
    let mut bytes = i.bytes[..p.at + width * p.count + p.margin].to_vec();
    let mut slot = i.i32s[..p.at + p.count + p.margin].to_vec();
    write(&mut bytes[p.at..][..width * p.count], &mut slot[p.at..][..p.count]);
    bytes.into_iter().chain(slot.into_iter().flat_map(i32::to_ne_bytes)).collect()
}

macro_rules! to_payload {
    ($width:literal, $values:ident, $($call:tt)*) => {
        |i, p| payload(p, $width, |out| ($($call)*)(&p.of(&i.$values, 1), i, out))
    };
}
macro_rules! to_typed {
    ($width:literal, $fill:expr, $to_bytes:expr, $($call:tt)*) => {
        |i, p| typed(p, $fill, $to_bytes, |out| ($($call)*)(&p.of(&i.bytes, $width), i, out))
    };
}
macro_rules! verb {
    ($width:literal, $verb:expr) => {
        |i, p| slot_and_payload(i, p, $width, |payload, slot| $verb(payload, slot))
    };
}

/// The payload that comes out takes the place of the one that went in.
macro_rules! fused {
    ($width:literal, $verb:expr) => {
        verb!($width, |payload: &mut [u8], slot: &mut [i32]| $verb(&payload.to_vec(), slot, payload))
    };
}

const F32_FILL: f32 = 12345.678;

fn scaled_kernels() -> Vec<(&'static str, Kernel)> {
    use {block_fixed as fixed, half_wire as half};
    vec![
        ("exponent_f32", |i, p| fixed::exponent_f32(&p.of(&i.f32s, 1)).0.to_ne_bytes().to_vec()),
        ("exponent_f16", |i, p| fixed::exponent_f16(&p.of(&i.u16s, 1)).0.to_ne_bytes().to_vec()),
        ("exponent_bf16", |i, p| fixed::exponent_bf16(&p.of(&i.u16s, 1)).0.to_ne_bytes().to_vec()),
        ("fixed::quantize_f32", to_payload!(4, f32s, |v, i: &Inputs, out| fixed::quantize_f32(v, i.f, out))),
        ("fixed::quantize_f16", to_payload!(4, u16s, |v, i: &Inputs, out| fixed::quantize_f16(v, i.f, out))),
        ("fixed::quantize_bf16", to_payload!(4, u16s, |v, i: &Inputs, out| fixed::quantize_bf16(v, i.f, out))),
        ("half::quantize_f32", to_payload!(2, f32s, |v, i: &Inputs, out| half::quantize_f32(v, i.f, out))),
        ("half::quantize_f16", to_payload!(2, u16s, |v, i: &Inputs, out| half::quantize_f16(v, i.f, out))),
        ("half::quantize_bf16", to_payload!(2, u16s, |v, i: &Inputs, out| half::quantize_bf16(v, i.f, out))),
        (
            "fixed::dequantize_f32",
            to_typed!(4, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_f32(
                b, i.f, i.divisor, out
            )),
        ),
        (
            "fixed::dequantize_f16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_f16(b, i.f, i.divisor, out)),
        ),
        (
            "fixed::dequantize_bf16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_bf16(b, i.f, i.divisor, out)),
        ),
        (
            "half::dequantize_f32",
            to_typed!(2, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| half::dequantize_f32(b, i.f, i.divisor, out)),
        ),
        (
            "half::dequantize_f16",
            to_typed!(2, 7, u16::to_ne_bytes, |b, i: &Inputs, out| half::dequantize_f16(b, i.f, i.divisor, out)),
        ),
        (
            "half::dequantize_bf16",
            to_typed!(2, 7, u16::to_ne_bytes, |b, i: &Inputs, out| half::dequantize_bf16(b, i.f, i.divisor, out)),
        ),
    ]
}

fn narrow_kernels() -> Vec<(&'static str, Kernel)> {
    use {bfloat_wire as bfloat, byte_wire as byte};
    vec![
        ("byte::quantize_f32", to_payload!(1, f32s, |v, i: &Inputs, out| byte::quantize_f32(v, i.f, out))),
        ("byte::quantize_f16", to_payload!(1, u16s, |v, i: &Inputs, out| byte::quantize_f16(v, i.f, out))),
        ("byte::quantize_bf16", to_payload!(1, u16s, |v, i: &Inputs, out| byte::quantize_bf16(v, i.f, out))),
        (
            "byte::dequantize_f32",
            to_typed!(1, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| byte::dequantize_f32(
                b, i.f, i.shift, i.divisor, out
            )),
        ),
        (
            "byte::dequantize_f16",
            to_typed!(1, 7, u16::to_ne_bytes, |b, i: &Inputs, out| byte::dequantize_f16(
                b, i.f, i.shift, i.divisor, out
            )),
        ),
        (
            "byte::dequantize_bf16",
            to_typed!(1, 7, u16::to_ne_bytes, |b, i: &Inputs, out| byte::dequantize_bf16(
                b, i.f, i.shift, i.divisor, out
            )),
        ),
        ("bfloat::quantize_f32", to_payload!(2, f32s, |v, i: &Inputs, out| bfloat::quantize_f32(v, i.f, out))),
        ("bfloat::quantize_f16", to_payload!(2, u16s, |v, i: &Inputs, out| bfloat::quantize_f16(v, i.f, out))),
        ("bfloat::quantize_bf16", to_payload!(2, u16s, |v, i: &Inputs, out| bfloat::quantize_bf16(v, i.f, out))),
        (
            "bfloat::dequantize_f32",
            to_typed!(2, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| bfloat::dequantize_f32(
                b, i.f, i.divisor, out
            )),
        ),
        (
            "bfloat::dequantize_f16",
            to_typed!(2, 7, u16::to_ne_bytes, |b, i: &Inputs, out| bfloat::dequantize_f16(b, i.f, i.divisor, out)),
        ),
        (
            "bfloat::dequantize_bf16",
            to_typed!(2, 7, u16::to_ne_bytes, |b, i: &Inputs, out| bfloat::dequantize_bf16(b, i.f, i.divisor, out)),
        ),
        ("accumulate::bfloat::emit", verb!(2, |p: &mut [u8], s: &mut [i32]| accumulate::bfloat::emit(s, p))),
        ("accumulate::bfloat::overwrite", verb!(2, |p: &mut [u8], s: &mut [i32]| accumulate::bfloat::overwrite(p, s))),
        ("accumulate::bfloat::add", verb!(2, |p: &mut [u8], s: &mut [i32]| accumulate::bfloat::add(p, s))),
        ("accumulate::byte::overwrite", verb!(1, |p: &mut [u8], s: &mut [i32]| accumulate::byte::overwrite(p, s))),
        ("accumulate::byte::add", verb!(1, |p: &mut [u8], s: &mut [i32]| accumulate::byte::add(p, s))),
        // With the slot's own shift and with one that is too small: then bytes saturate.
        (
            "accumulate::byte::emit",
            verb!(1, |p: &mut [u8], s: &mut [i32]| {
                accumulate::byte::emit(s, accumulate::byte::shift(s), p);
            }),
        ),
        ("accumulate::byte::emit saturating", |i, p| {
            slot_and_payload(i, p, 1, |payload, slot| accumulate::byte::emit(slot, i.shift, payload))
        }),
        ("accumulate::byte::shift", |i, p| vec![accumulate::byte::shift(&p.of(&i.i32s, 1))]),
    ]
}

fn atp_kernels() -> Vec<(&'static str, Kernel)> {
    use {float_wire as float, static_fixed as fixed};
    vec![
        ("static_fixed::quantize_f32", to_payload!(4, f32s, |v, _, out| fixed::quantize_f32(v, out))),
        // At the values' own scale most of them leave 32 bits; at this one few do.
        ("static_fixed::quantize_f32, small", |i, p| {
            let small: Vec<f32> = p.of(&i.f32s, 1).iter().map(|x| x * i.f * 1e-8).collect();
            payload(p, 4, |out| fixed::quantize_f32(&small, out))
        }),
        ("static_fixed::quantize_f16", to_payload!(4, u16s, |v, _, out| fixed::quantize_f16(v, out))),
        ("static_fixed::quantize_bf16", to_payload!(4, u16s, |v, _, out| fixed::quantize_bf16(v, out))),
        (
            "static_fixed::dequantize_f32",
            to_typed!(4, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_f32(b, i.divisor, out)),
        ),
        (
            "static_fixed::dequantize_f16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_f16(b, i.divisor, out)),
        ),
        (
            "static_fixed::dequantize_bf16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| fixed::dequantize_bf16(b, i.divisor, out)),
        ),
        ("float_wire::write_f32", to_payload!(4, f32s, |v, _, out| float::write_f32(v, out))),
        ("float_wire::write_f16", to_payload!(4, u16s, |v, _, out| float::write_f16(v, out))),
        ("float_wire::write_bf16", to_payload!(4, u16s, |v, _, out| float::write_bf16(v, out))),
        (
            "float_wire::read_f32",
            to_typed!(4, F32_FILL, f32::to_ne_bytes, |b, i: &Inputs, out| float::read_f32(b, i.divisor, out)),
        ),
        (
            "float_wire::read_f16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| float::read_f16(b, i.divisor, out)),
        ),
        (
            "float_wire::read_bf16",
            to_typed!(4, 7, u16::to_ne_bytes, |b, i: &Inputs, out| float::read_bf16(b, i.divisor, out)),
        ),
        ("static_fixed::add", verb!(4, |p: &mut [u8], s: &mut [i32]| static_fixed::add(p, s))),
        // Sums at and around both ends, which random ones hardly meet.
        ("static_fixed::add at the ends", |i, p| {
            slot_and_payload(i, p, 4, |payload, slot| {
                bring_to_the_ends(slot, payload);
                static_fixed::add(payload, slot);
            })
        }),
        ("static_fixed::is_saturated", |i, p| {
            // Of each place alone as well, so that one mark among many counts.
            let mut slot = p.of(&i.i32s, 1).iter().map(|x| x >> 1).collect::<Vec<_>>();
            let mut found = vec![u8::from(static_fixed::is_saturated(&slot))];
            for at in (0..slot.len()).step_by(slot.len() / 40 + 1) {
                let kept = std::mem::replace(&mut slot[at], if at % 2 == 0 { i32::MIN } else { i32::MAX });
                found.push(u8::from(static_fixed::is_saturated(&slot)));
                slot[at] = kept;
            }
            found
        }),
    ]
}

/// Makes pairs of the outermost values, their neighbours and small ones of either sign.
fn bring_to_the_ends(slot: &mut [i32], payload: &mut [u8]) {
    let near = |bits: i32| match bits.rem_euclid(7) {
        0 => i32::MIN,
        1 => i32::MAX,
        2 => i32::MIN + 1 + (bits >> 28 & 3),
        3 => i32::MAX - 1 - (bits >> 28 & 3),
        4 => (bits >> 20) % 3,
        5 => bits | 0x4000_0000,
        _ => bits,
    };
    for (sum, word) in slot.iter_mut().zip(payload.chunks_exact_mut(4)) {
        let units = i32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        word.copy_from_slice(&near(units).to_be_bytes());
        *sum = near(*sum ^ units.rotate_left(7));
    }
}

/// The slot's bits before the verb, and what they are after it: NaN as such, since processors choose which operand's bits it
/// keeps.
fn float_slot(i: &Inputs, p: Place, width: usize, verb: impl FnOnce(&mut [u8], &mut [f32])) -> Vec<u8> {
    let mut bytes = i.bytes[..p.at + width * p.count + p.margin].to_vec();
    let mut slot = i.f32s[..p.at + p.count + p.margin].to_vec();
    verb(&mut bytes[p.at..][..width * p.count], &mut slot[p.at..][..p.count]);
    let comparable = slot.into_iter().map(|x| if x.is_nan() { f32::NAN } else { x });
    bytes.into_iter().chain(comparable.flat_map(f32::to_ne_bytes)).collect()
}

macro_rules! ieee {
    ($name:literal, $width:literal, $overwrite:ident, $add:ident, $add_and_emit:ident, $emit:ident) => {
        [
            (concat!($name, "::overwrite"), |i, p| float_slot(i, p, $width, |p, s| ieee::$overwrite(p, s))),
            (concat!($name, "::add"), |i, p| float_slot(i, p, $width, |p, s| ieee::$add(p, s))),
            (concat!($name, "::add_and_emit"), |i, p| {
                float_slot(i, p, $width, |p, s| ieee::$add_and_emit(&p.to_vec(), s, p))
            }),
            (concat!($name, "::emit"), |i, p| float_slot(i, p, $width, |p, s| ieee::$emit(s, p))),
        ]
    };
}

fn ieee_kernels() -> Vec<(&'static str, Kernel)> {
    let f32s: [(&'static str, Kernel); 4] = ieee!("ieee f32", 4, overwrite_f32, add_f32, add_and_emit_f32, emit_f32);
    let f16s: [(&'static str, Kernel); 4] = ieee!("ieee f16", 2, overwrite_f16, add_f16, add_and_emit_f16, emit_f16);
    let bf16s: [(&'static str, Kernel); 4] =
        ieee!("ieee bf16", 2, overwrite_bf16, add_bf16, add_and_emit_bf16, emit_bf16);
    [f32s, f16s, bf16s].concat()
}

fn integer_kernels() -> Vec<(&'static str, Kernel)> {
    use integer::*;
    vec![
        ("i32_to_payload", to_payload!(4, i32s, |v, _, out| i32_to_payload(v, out))),
        ("i32_to_payload_complement", to_payload!(4, i32s, |v, _, out| i32_to_payload_complement(v, out))),
        ("i64_to_limbs", to_payload!(16, i64s, |v, _, out| i64_to_limbs(v, out))),
        ("ordered_f32_to_payload", to_payload!(4, f32s, |v, _, out| ordered_f32_to_payload(v, out))),
        (
            "ordered_f32_to_payload_complement",
            to_payload!(4, f32s, |v, _, out| ordered_f32_to_payload_complement(v, out)),
        ),
        ("payload_to_i32", to_typed!(4, 7, i32::to_ne_bytes, |b, _, out| payload_to_i32(b, out))),
        ("payload_to_i32_complement", to_typed!(4, 7, i32::to_ne_bytes, |b, _, out| payload_to_i32_complement(b, out))),
        ("limbs_to_i64", to_typed!(16, 7, i64::to_ne_bytes, |b, _, out| limbs_to_i64(b, out))),
        (
            "payload_to_ordered_f32",
            to_typed!(4, F32_FILL, f32::to_ne_bytes, |b, _, out| payload_to_ordered_f32(b, out)),
        ),
        (
            "payload_to_ordered_f32_complement",
            to_typed!(4, F32_FILL, f32::to_ne_bytes, |b, _, out| payload_to_ordered_f32_complement(b, out)),
        ),
    ]
}

fn switch_kernels() -> Vec<(&'static str, Kernel)> {
    use accumulate::*;
    vec![
        ("overwrite", verb!(4, |p: &mut [u8], s: &mut [i32]| overwrite(p, s))),
        ("add", verb!(4, |p: &mut [u8], s: &mut [i32]| add(p, s))),
        ("max", verb!(4, |p: &mut [u8], s: &mut [i32]| max(p, s))),
        ("or", verb!(4, |p: &mut [u8], s: &mut [i32]| or(p, s))),
        ("xor", verb!(4, |p: &mut [u8], s: &mut [i32]| xor(p, s))),
        ("emit", verb!(4, |p: &mut [u8], s: &mut [i32]| emit(s, p))),
        ("overwrite_and_emit", fused!(4, overwrite_and_emit)),
        ("add_and_emit", fused!(4, add_and_emit)),
        ("max_and_emit", fused!(4, max_and_emit)),
        ("or_and_emit", fused!(4, or_and_emit)),
        ("xor_and_emit", fused!(4, xor_and_emit)),
        ("half::overwrite", verb!(2, |p: &mut [u8], s: &mut [i32]| half::overwrite(p, s))),
        ("half::add", verb!(2, |p: &mut [u8], s: &mut [i32]| half::add(p, s))),
        ("half::max", verb!(2, |p: &mut [u8], s: &mut [i32]| half::max(p, s))),
        ("half::emit", verb!(2, |p: &mut [u8], s: &mut [i32]| half::emit(s, p))),
        ("half::overwrite_and_emit", fused!(2, half::overwrite_and_emit)),
        ("half::add_and_emit", fused!(2, half::add_and_emit)),
        ("half::max_and_emit", fused!(2, half::max_and_emit)),
    ]
}

/// Random bits everywhere: numbers of every size, subnormals, infinities, NaN.
fn random_inputs(random: &mut Random) -> Inputs {
    let count = ELEMENTS_MAX + 2 * MARGIN;
    let exponent = (random.bits() % 250) as i32 - 124;
    let divisor = [1.0, 2.0, 3.0, 7.0, 256.0, 0.5][(random.bits() % 6) as usize];
    let mut inputs = Inputs {
        f32s: random.vec(count, |bits| f32::from_bits(bits as u32)),
        u16s: random.vec(count, |bits| bits as u16),
        // Shifted, so that sums of every size occur.
        i32s: random.vec(count, |bits| bits as i32 >> (bits >> 59)),
        i64s: random.vec(count, |bits| bits as i64),
        bytes: random.vec(16 * count, |bits| bits as u8),
        f: common::pow2(exponent) as f32,
        divisor,
        shift: (random.bits() % 10) as u8,
    };
    // Random bits are seldom near a chosen scale; half of the values are brought there, ties included.
    for (k, value) in inputs.f32s.iter_mut().enumerate().step_by(2) {
        let magnitude = 1u64 << (random.0.rotate_left(k as u32) % 33);
        *value = ((random.bits() % (4 * magnitude)) as f64 / 2.0 / f64::from(inputs.f)) as f32;
    }
    inputs
}

fn compare(kernels: &[(&'static str, Kernel)], inputs: &Inputs, places: &[Place]) {
    let levels = levels();
    for (name, kernel) in kernels {
        limit_kernel_level(levels[0]);
        let expected: Vec<_> = places.iter().map(|place| kernel(inputs, *place)).collect();
        for level in &levels[1..] {
            assert_eq!(limit_kernel_level(*level), *level);
            for (place, expected) in places.iter().zip(&expected) {
                let found = kernel(inputs, *place);
                let first = found.iter().zip(expected).position(|(a, b)| a != b);
                assert!(
                    first.is_none() && found.len() == expected.len(),
                    "{name} at {level:?} with {place:?}, f {}, divisor {}: byte {first:?} differs",
                    inputs.f,
                    inputs.divisor
                );
            }
        }
    }
}

#[test]
fn every_level_writes_the_same_bits() {
    let kernels: Vec<_> =
        [scaled_kernels(), narrow_kernels(), atp_kernels(), ieee_kernels(), integer_kernels(), switch_kernels()]
            .concat();
    let mut random = Random(1);
    let lengths = 0..=200;
    let inputs = random_inputs(&mut random);
    compare(&kernels, &inputs, &lengths.clone().map(Place::exact).collect::<Vec<_>>());
    // All lengths at every alignment of a vector's worth of lengths, odd ones included.
    for at in [0, 1, 2, 3, 5, 31, 63] {
        let inputs = random_inputs(&mut random);
        let places: Vec<_> = lengths.clone().map(|count| Place::inside(at, count)).collect();
        compare(&kernels, &inputs, &places);
    }
    if std::env::var_os("FANIN_TEST_BRIEF").is_some() {
        return;
    }
    // Ten million values through each kernel that rounds, two million through the others, in long blocks that are not
    // whole vectors.
    let place = Place::inside(1, ELEMENTS_MAX - 3);
    let rounding = [scaled_kernels(), narrow_kernels(), atp_kernels()].concat();
    let exact = [ieee_kernels(), integer_kernels(), switch_kernels()].concat();
    for block in 0..10_000_000 / place.count + 1 {
        let inputs = random_inputs(&mut random);
        compare(&rounding, &inputs, &[place]);
        if block % 5 == 0 {
            compare(&exact, &inputs, &[place]);
        }
    }
}
