//! A block of values on its way: what each worker writes to the wire, what the slot does with it, what every worker reads.
//!
//! `block`: for each worker, in order of arrival, values that the format holds; `out`: the sum.

use fanin_numeric::block_float::BlockFloat;
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::log_table::LogTables;
use fanin_numeric::register_pair::{FloatFormat, Registers};
use fanin_numeric::{
    BlockExponent, Telemetry, accumulate, bfloat_wire, block_fixed as fixed, byte_wire, exact as exact_sum, float_wire,
    half_wire, ieee as native, static_fixed as units,
};

/// Elements of SwitchML's largest packet (§5).
pub const BLOCK_ELEMENTS: usize = 256;
/// Elements of ATP's packet (§3.6).
pub const ATP_ELEMENTS: usize = 62;
/// Elements that share an exponent in FPISA's block floating point; the paper names no number.
pub const BLOCK_FLOAT_ELEMENTS: usize = 64;

/// The exponent that all workers agree on.
pub fn agreed_exponent(block: &[Vec<f32>]) -> BlockExponent {
    let of_each = block.iter().map(|values| fixed::exponent_f32(values));
    of_each.fold(BlockExponent::NOT_NEEDED, BlockExponent::merge)
}

/// Lets each worker's payload into a slot: the first by `overwrite`, the others by `add`.
fn fill<S: ?Sized>(
    block: &[Vec<f32>],
    element_bytes: usize,
    slot: &mut S,
    write: impl Fn(&[f32], &mut [u8]),
    mut overwrite: impl FnMut(&[u8], &mut S),
    mut add: impl FnMut(&[u8], &mut S),
) -> Vec<u8> {
    let mut payload = vec![0; element_bytes * block[0].len()];
    for (worker, values) in block.iter().enumerate() {
        write(values, &mut payload);
        if worker == 0 { overwrite(&payload, slot) } else { add(&payload, slot) }
    }
    payload
}

fn write(format: FloatFormat, values: &[f32], payload: &mut [u8]) {
    match format {
        FloatFormat::Float32 => float_wire::write_f32(values, payload),
        FloatFormat::Float16 => write_narrow(values, payload, f32_to_f16),
        FloatFormat::Bfloat16 => write_narrow(values, payload, f32_to_bf16),
    }
}

fn write_narrow(values: &[f32], payload: &mut [u8], narrow: fn(f32) -> u16) {
    let words = payload.as_chunks_mut().0;
    values.iter().zip(words).for_each(|(value, word)| *word = narrow(*value).to_be_bytes());
}

fn read(format: FloatFormat, payload: &[u8], out: &mut [f32]) {
    match format {
        FloatFormat::Float32 => float_wire::read_f32(payload, 1.0, out),
        FloatFormat::Float16 => read_narrow(payload, out, f16_to_f32),
        FloatFormat::Bfloat16 => read_narrow(payload, out, bf16_to_f32),
    }
}

fn read_narrow(payload: &[u8], out: &mut [f32], widen: fn(u16) -> f32) {
    let words = payload.as_chunks().0;
    out.iter_mut().zip(words).for_each(|(value, word)| *value = widen(u16::from_be_bytes(*word)));
}

/// Sums in wide integers.
pub fn exact(format: FloatFormat, block: &[Vec<f32>], out: &mut [f32]) {
    macro_rules! sums {
        ($slot:ty, $overwrite:ident, $add:ident, $emit:ident) => {{
            let mut slot = vec![<$slot>::default(); out.len()];
            let write = |values: &[f32], payload: &mut [u8]| write(format, values, payload);
            let (overwrite, add) = (exact_sum::$overwrite, exact_sum::$add);
            let mut payload = fill(block, format.bytes(), slot.as_mut_slice(), write, overwrite, add);
            exact_sum::$emit(&slot, &mut payload);
            read(format, &payload, out);
        }};
    }
    match format {
        FloatFormat::Float32 => sums!(exact_sum::Float32Sum, overwrite_f32, add_f32, emit_f32),
        FloatFormat::Float16 => sums!(exact_sum::Float16Sum, overwrite_f16, add_f16, emit_f16),
        FloatFormat::Bfloat16 => sums!(exact_sum::Bfloat16Sum, overwrite_bf16, add_bf16, emit_bf16),
    }
}

/// Native additions in float32 registers.
pub fn ieee(format: FloatFormat, block: &[Vec<f32>], out: &mut [f32]) {
    type Verb = fn(&[u8], &mut [f32]);
    type Emit = fn(&[f32], &mut [u8]);
    let (overwrite, add, emit): (Verb, Verb, Emit) = match format {
        FloatFormat::Float32 => (native::overwrite_f32, native::add_f32, native::emit_f32),
        FloatFormat::Float16 => (native::overwrite_f16, native::add_f16, native::emit_f16),
        FloatFormat::Bfloat16 => (native::overwrite_bf16, native::add_bf16, native::emit_bf16),
    };
    let mut slot = vec![0.0; out.len()];
    let write = |values: &[f32], payload: &mut [u8]| write(format, values, payload);
    let mut payload = fill(block, format.bytes(), slot.as_mut_slice(), write, overwrite, add);
    emit(&slot, &mut payload);
    read(format, &payload, out);
}

macro_rules! register_pairs {
    ($(#[$doc:meta])* $name:ident, $type:ty) => {
        $(#[$doc])*
        pub fn $name(adder: &$type, block: &[Vec<f32>], out: &mut [f32], telemetry: &mut Telemetry) {
            let (mut exponents, mut mantissas) = (vec![0; out.len()], vec![0; out.len()]);
            let mut slot = Registers { exponents: &mut exponents, mantissas: &mut mantissas };
            let format = adder.format();
            let mut payload = fill(
                block,
                format.bytes(),
                &mut slot,
                |values, payload| write(format, values, payload),
                |payload, slot| adder.overwrite(payload, slot),
                |payload, slot| adder.add(payload, slot, Some(telemetry)),
            );
            adder.emit(&slot, &mut payload, Some(telemetry));
            read(format, &payload, out);
        }
    };
}

register_pairs! {
    /// FPISA.
    fpisa, Fpisa
}
register_pairs! {
    /// FPISA-A.
    fpisa_a, FpisaA
}

/// SwitchML's fixed point.
pub fn block_fixed(block: &[Vec<f32>], out: &mut [f32]) {
    let f = fixed::scale(agreed_exponent(block), block.len() as u16);
    let mut slot = vec![0; out.len()];
    let write = |values: &[f32], payload: &mut [u8]| fixed::quantize_f32(values, f, payload);
    let mut payload = fill(block, 4, slot.as_mut_slice(), write, accumulate::overwrite, accumulate::add);
    accumulate::emit(&slot, &mut payload);
    fixed::dequantize_f32(&payload, f, 1.0, out);
}

/// Scaled binary16.
pub fn half(block: &[Vec<f32>], out: &mut [f32]) {
    let f = half_wire::scale(agreed_exponent(block), block.len() as u16);
    let mut slot = vec![0; out.len()];
    let write = |values: &[f32], payload: &mut [u8]| half_wire::quantize_f32(values, f, payload);
    let mut payload = fill(block, 2, slot.as_mut_slice(), write, accumulate::half::overwrite, accumulate::half::add);
    accumulate::half::emit(&slot, &mut payload);
    half_wire::dequantize_f32(&payload, f, 1.0, out);
}

/// Scaled bfloat16.
pub fn bfloat(block: &[Vec<f32>], out: &mut [f32]) {
    let f = bfloat_wire::scale(agreed_exponent(block), block.len() as u16);
    let mut slot = vec![0; out.len()];
    let write = |values: &[f32], payload: &mut [u8]| bfloat_wire::quantize_f32(values, f, payload);
    let (overwrite, add) = (accumulate::bfloat::overwrite, accumulate::bfloat::add);
    let mut payload = fill(block, 2, slot.as_mut_slice(), write, overwrite, add);
    accumulate::bfloat::emit(&slot, &mut payload);
    bfloat_wire::dequantize_f32(&payload, f, 1.0, out);
}

/// Scaled bytes.
pub fn byte(block: &[Vec<f32>], out: &mut [f32]) {
    let f = byte_wire::scale(agreed_exponent(block));
    let mut slot = vec![0; out.len()];
    let write = |values: &[f32], payload: &mut [u8]| byte_wire::quantize_f32(values, f, payload);
    let mut payload = fill(block, 1, slot.as_mut_slice(), write, accumulate::byte::overwrite, accumulate::byte::add);
    let shift = accumulate::byte::shift(&slot);
    accumulate::byte::emit(&slot, shift, &mut payload);
    byte_wire::dequantize_f32(&payload, f, shift, 1.0, out);
}

/// ATP's fixed point; a block whose sum has left 32 bits is summed again as floats, as ATP's server does (§3.8).
pub fn static_fixed(block: &[Vec<f32>], out: &mut [f32], telemetry: &mut Telemetry) {
    let mut slot = vec![0; out.len()];
    let mut payload = fill(block, 4, slot.as_mut_slice(), units::quantize_f32, units::overwrite, units::add);
    if units::is_saturated(&slot) {
        telemetry.overflow += slot.iter().filter(|word| [i32::MIN, i32::MAX].contains(word)).count() as u64;
        return ieee(FloatFormat::Float32, block, out);
    }
    units::emit(&slot, &mut payload);
    units::dequantize_f32(&payload, 1.0, out);
}

/// Bytes with a shared exponent. Each worker's block is what the registers emit for it alone, rounded to the nearest.
pub fn block_float(adder: &BlockFloat, block: &[Vec<f32>], out: &mut [f32], telemetry: &mut Telemetry) {
    let (mut exponents, mut mantissas) = (vec![0; out.len()], vec![0; out.len()]);
    let (mut own_exponents, mut own_mantissas) = (vec![0; out.len()], vec![0; out.len()]);
    let mut slot = Registers { exponents: &mut exponents, mantissas: &mut mantissas };
    let mut own = Registers { exponents: &mut own_exponents, mantissas: &mut own_mantissas };
    let (mut payload, mut bytes) = (vec![0; 4 * out.len()], vec![0i8; out.len()]);
    let loader = Fpisa::paper(FloatFormat::Float32);
    for (worker, values) in block.iter().enumerate() {
        float_wire::write_f32(values, &mut payload);
        loader.overwrite(&payload, &mut own);
        let exponent = adder.emit(&own, &mut bytes);
        match worker {
            0 => adder.overwrite(exponent, &bytes, &mut slot),
            _ => adder.add(exponent, &bytes, &mut slot, Some(telemetry)),
        }
    }
    let exponent = adder.emit(&slot, &mut bytes);
    // What a worker reads: a float32 holds each byte's value, whichever way it rounds.
    adder.overwrite(exponent, &bytes, &mut slot);
    loader.emit(&slot, &mut payload, None);
    float_wire::read_f32(&payload, 1.0, out);
}

/// Libra's look-ups.
pub fn log_tables(tables: &LogTables, block: &[Vec<f32>], out: &mut [f32], telemetry: &mut Telemetry) {
    let mut slot = vec![0.0; out.len()];
    let mut payload = fill(
        block,
        4,
        slot.as_mut_slice(),
        float_wire::write_f32,
        |payload, slot: &mut [f32]| tables.overwrite(payload, slot),
        |payload, slot: &mut [f32]| tables.add(payload, slot, Some(telemetry)),
    );
    tables.emit(&slot, &mut payload);
    float_wire::read_f32(&payload, 1.0, out);
}
