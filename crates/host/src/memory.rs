//! The caller's memory as a lane sees it: which bytes belong to a block, and
//! how they are encoded.
//!
//! What makes its `unsafe` code sound is
//! the contract of [`crate::Session::submit`]: input and output stay valid and
//! untouched until the ticket is done, and a ticket is only done when no lane
//! will touch them again. Lanes own disjoint blocks, so no two threads write
//! the same bytes.
#![allow(unsafe_code)]

use fanin_numeric::{
    BlockExponent, bfloat_wire, block_fixed, byte_wire, float_wire, float16, half_wire, integer, raw_wire, static_fixed,
};
use fanin_protocol::switchml::{BlockId, Shape, Submission};
use fanin_wire::ElementFormat;
use fanin_wire::atp::ElementFormat as AtpElementFormat;

use crate::chunker::{is_bitwise, is_float_sum};
use crate::request::{CollectiveKind, DataType, ReduceOp, Request};

/// Elements that 16-bit floats are widened in at a time.
const WIDE: usize = 2048;

/// How elements become wire words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// Floats that are summed: scaled by the agreed exponent, or not.
    Float,
    /// 32-bit integers as they are.
    Integer,
    /// Four words per 64-bit integer.
    Limbs,
    /// Integers or order-preserving images of floats.
    Ordered,
    /// Bytes as they are.
    Raw,
}

/// One collective's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    input: *const u8,
    output: *mut u8,
    data_type: DataType,
    encoding: Encoding,
    element_format: ElementFormat,
    /// Send complements (Min, And).
    complement: bool,
    is_average: bool,
    divisor: f32,
    world_size: u16,
    shape: Shape,
    /// Bytes of one shard in memory.
    shard_bytes: usize,
    input_is_split: bool,
    output_is_split: bool,
}

// SAFETY: the pointers are only followed by lanes, each for its own blocks,
// under the contract in the module's description.
unsafe impl Send for Memory {}
// SAFETY: as for Send: no two threads touch the same bytes.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(request: &Request, submission: &Submission, world_size: u16) -> Memory {
        let shard_elements = request.element_count / usize::from(submission.shape.shard_count);
        Memory {
            input: request.input,
            output: request.output,
            data_type: request.data_type,
            encoding: encoding(request),
            element_format: submission.element_format,
            complement: matches!(request.operator, ReduceOp::Min | ReduceOp::BitAnd) && request.kind.combines(),
            is_average: request.operator == ReduceOp::Average,
            divisor: if request.operator == ReduceOp::Average { f32::from(world_size) } else { 1.0 },
            world_size,
            shape: submission.shape,
            shard_bytes: shard_elements * request.data_type.bytes(),
            input_is_split: request.kind == CollectiveKind::ReduceScatter,
            output_is_split: request.kind == CollectiveKind::AllGather,
        }
    }

    pub fn block_exponent(&self, id: BlockId) -> BlockExponent {
        let block = self.input_block(id);
        match self.data_type {
            DataType::Float32 => block_fixed::exponent_f32(cast(block)),
            DataType::Float16 => block_fixed::exponent_f16(cast(block)),
            DataType::Bfloat16 => block_fixed::exponent_bf16(cast(block)),
            _ => BlockExponent::NOT_NEEDED,
        }
    }

    pub fn write_block(&self, id: BlockId, exponent: BlockExponent, payload: &mut [u8]) {
        match self.encoding {
            Encoding::Float if exponent == BlockExponent::NOT_NEEDED => self.write_plain(self.input_block(id), payload),
            Encoding::Float => self.quantize(self.input_block(id), exponent, payload),
            _ => self.write_words(self.input_block(id), payload),
        }
    }

    /// ATP's form: sums of floats as fixed point, in units of 10^-8 unless an exponent is given, or as they are.
    pub fn write_atp_block(&self, id: BlockId, format: AtpElementFormat, exponent: BlockExponent, payload: &mut [u8]) {
        let block = self.input_block(id);
        match (format, self.data_type) {
            _ if self.encoding != Encoding::Float => self.write_words(block, payload),
            (AtpElementFormat::Float32, DataType::Float32) => float_wire::write_f32(cast(block), payload),
            (AtpElementFormat::Float32, DataType::Float16) => float_wire::write_f16(cast(block), payload),
            (AtpElementFormat::Float32, _) => float_wire::write_bf16(cast(block), payload),
            _ if format.is_raw() => self.write_plain(block, payload),
            _ if exponent != BlockExponent::NOT_NEEDED => self.quantize(block, exponent, payload),
            (_, DataType::Float32) => static_fixed::quantize_f32(cast(block), payload),
            (_, DataType::Float16) => static_fixed::quantize_f16(cast(block), payload),
            (_, _) => static_fixed::quantize_bf16(cast(block), payload),
        }
    }

    /// ATP's form of a sum, which `missing` workers are not in: an average is that of the others. Returns whether it is finite, as
    /// far as floats show it.
    pub fn read_atp_block(
        &self,
        id: BlockId,
        format: AtpElementFormat,
        exponent: BlockExponent,
        missing: u16,
        payload: &[u8],
    ) -> bool {
        if payload.is_empty() {
            return true;
        }
        let block = self.output_block(id);
        let divisor = if self.is_average { f32::from(self.world_size - missing) } else { 1.0 };
        let is_finite =
            format != AtpElementFormat::Float32 || self.encoding != Encoding::Float || float_wire::is_finite(payload);
        match (format, self.data_type) {
            _ if self.encoding != Encoding::Float => self.read_words(payload, block),
            (AtpElementFormat::Float32, DataType::Float32) => float_wire::read_f32(payload, divisor, cast_mut(block)),
            (AtpElementFormat::Float32, DataType::Float16) => float_wire::read_f16(payload, divisor, cast_mut(block)),
            (AtpElementFormat::Float32, _) => float_wire::read_bf16(payload, divisor, cast_mut(block)),
            _ if format.is_raw() => return self.read_plain(payload, divisor, block),
            _ if exponent != BlockExponent::NOT_NEEDED => self.dequantize(payload, exponent, 0, divisor, block),
            (_, DataType::Float32) => static_fixed::dequantize_f32(payload, divisor, cast_mut(block)),
            (_, DataType::Float16) => static_fixed::dequantize_f16(payload, divisor, cast_mut(block)),
            (_, _) => static_fixed::dequantize_bf16(payload, divisor, cast_mut(block)),
        }
        is_finite
    }

    /// What is no sum of floats.
    fn write_words(&self, block: &[u8], payload: &mut [u8]) {
        match self.encoding {
            Encoding::Float => unreachable!("sums of floats are converted"),
            Encoding::Integer => integer::i32_to_payload(cast(block), payload),
            Encoding::Limbs => integer::i64_to_limbs(cast(block), payload),
            Encoding::Ordered => self.write_ordered(block, payload),
            Encoding::Raw if self.complement => integer::bytes_to_payload_complement(block, payload),
            Encoding::Raw => integer::bytes_to_payload(block, payload),
        }
    }

    /// Takes a sum. Returns whether it is finite, as far as only the sum itself shows it: of floats that are not scaled.
    pub fn read_block(&self, id: BlockId, exponent: BlockExponent, shift: u8, payload: &[u8]) -> bool {
        let not_a_number = self.encoding == Encoding::Float && exponent == BlockExponent::NON_FINITE;
        if payload.is_empty() && !not_a_number {
            return true;
        }
        let block = self.output_block(id);
        match self.encoding {
            Encoding::Float if not_a_number => self.fill_nan(block),
            Encoding::Float if exponent == BlockExponent::NOT_NEEDED => {
                return self.read_plain(payload, self.divisor, block);
            }
            Encoding::Float => self.dequantize(payload, exponent, shift, self.divisor, block),
            _ => self.read_words(payload, block),
        }
        true
    }

    /// Floats that the switch adds as they are, or as counts of 10^-8.
    fn write_plain(&self, block: &[u8], payload: &mut [u8]) {
        match (self.element_format, self.data_type) {
            (ElementFormat::RawFloat32, _) => raw_wire::write_f32(cast(block), payload),
            (ElementFormat::RawFloat16 | ElementFormat::RawBfloat16, _) => raw_wire::write_16(cast(block), payload),
            (_, DataType::Float32) => static_fixed::quantize_f32(cast(block), payload),
            (_, DataType::Float16) => static_fixed::quantize_f16(cast(block), payload),
            (_, _) => static_fixed::quantize_bf16(cast(block), payload),
        }
    }

    fn read_plain(&self, payload: &[u8], divisor: f32, block: &mut [u8]) -> bool {
        match (self.element_format, self.data_type) {
            (ElementFormat::RawFloat32, _) => return raw_wire::read_f32(payload, divisor, cast_mut(block)),
            (ElementFormat::RawFloat16, _) => return raw_wire::read_f16(payload, divisor, cast_mut(block)),
            (ElementFormat::RawBfloat16, _) => return raw_wire::read_bf16(payload, divisor, cast_mut(block)),
            (_, DataType::Float32) => static_fixed::dequantize_f32(payload, divisor, cast_mut(block)),
            (_, DataType::Float16) => static_fixed::dequantize_f16(payload, divisor, cast_mut(block)),
            (_, _) => static_fixed::dequantize_bf16(payload, divisor, cast_mut(block)),
        }
        true
    }

    /// How floats are coded that are scaled: those that left their accumulator's format go as 32-bit words.
    fn scaled_format(&self) -> ElementFormat {
        if self.element_format.is_block_scaled() { self.element_format } else { ElementFormat::Int32 }
    }

    fn read_words(&self, payload: &[u8], block: &mut [u8]) {
        match self.encoding {
            Encoding::Float => unreachable!("sums of floats are converted"),
            Encoding::Integer => integer::payload_to_i32(payload, cast_mut(block)),
            Encoding::Limbs => integer::limbs_to_i64(payload, cast_mut(block)),
            Encoding::Ordered => self.read_ordered(payload, block),
            Encoding::Raw if self.complement => integer::payload_to_bytes_complement(payload, block),
            Encoding::Raw => integer::payload_to_bytes(payload, block),
        }
    }

    fn quantize(&self, block: &[u8], exponent: BlockExponent, payload: &mut [u8]) {
        let f = self.scale(exponent);
        match (self.scaled_format(), self.data_type) {
            (ElementFormat::Int32, DataType::Float32) => block_fixed::quantize_f32(cast(block), f, payload),
            (ElementFormat::Int32, DataType::Float16) => block_fixed::quantize_f16(cast(block), f, payload),
            (ElementFormat::Int32, _) => block_fixed::quantize_bf16(cast(block), f, payload),
            (ElementFormat::Float16, DataType::Float32) => half_wire::quantize_f32(cast(block), f, payload),
            (ElementFormat::Float16, DataType::Float16) => half_wire::quantize_f16(cast(block), f, payload),
            (ElementFormat::Float16, _) => half_wire::quantize_bf16(cast(block), f, payload),
            (ElementFormat::Bfloat16, DataType::Float32) => bfloat_wire::quantize_f32(cast(block), f, payload),
            (ElementFormat::Bfloat16, DataType::Float16) => bfloat_wire::quantize_f16(cast(block), f, payload),
            (ElementFormat::Bfloat16, _) => bfloat_wire::quantize_bf16(cast(block), f, payload),
            (ElementFormat::Int8, DataType::Float32) => byte_wire::quantize_f32(cast(block), f, payload),
            (ElementFormat::Int8, DataType::Float16) => byte_wire::quantize_f16(cast(block), f, payload),
            (_, _) => byte_wire::quantize_bf16(cast(block), f, payload),
        }
    }

    fn dequantize(&self, payload: &[u8], exponent: BlockExponent, shift: u8, divisor: f32, block: &mut [u8]) {
        let f = self.scale(exponent);
        match (self.scaled_format(), self.data_type) {
            (ElementFormat::Int32, DataType::Float32) => {
                block_fixed::dequantize_f32(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Int32, DataType::Float16) => {
                block_fixed::dequantize_f16(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Int32, _) => block_fixed::dequantize_bf16(payload, f, divisor, cast_mut(block)),
            (ElementFormat::Float16, DataType::Float32) => {
                half_wire::dequantize_f32(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Float16, DataType::Float16) => {
                half_wire::dequantize_f16(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Float16, _) => half_wire::dequantize_bf16(payload, f, divisor, cast_mut(block)),
            (ElementFormat::Bfloat16, DataType::Float32) => {
                bfloat_wire::dequantize_f32(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Bfloat16, DataType::Float16) => {
                bfloat_wire::dequantize_f16(payload, f, divisor, cast_mut(block))
            }
            (ElementFormat::Bfloat16, _) => bfloat_wire::dequantize_bf16(payload, f, divisor, cast_mut(block)),
            (ElementFormat::Int8, DataType::Float32) => {
                byte_wire::dequantize_f32(payload, f, shift, divisor, cast_mut(block))
            }
            (ElementFormat::Int8, DataType::Float16) => {
                byte_wire::dequantize_f16(payload, f, shift, divisor, cast_mut(block))
            }
            (_, _) => byte_wire::dequantize_bf16(payload, f, shift, divisor, cast_mut(block)),
        }
    }

    fn scale(&self, exponent: BlockExponent) -> f32 {
        match self.scaled_format() {
            ElementFormat::Int32 => block_fixed::scale(exponent, self.world_size),
            ElementFormat::Float16 => half_wire::scale(exponent, self.world_size),
            ElementFormat::Bfloat16 => bfloat_wire::scale(exponent, self.world_size),
            _ => byte_wire::scale(exponent),
        }
    }

    fn fill_nan(&self, block: &mut [u8]) {
        match self.data_type {
            DataType::Float32 => block_fixed::fill_nan_f32(cast_mut(block)),
            DataType::Float16 => block_fixed::fill_nan_f16(cast_mut(block)),
            _ => block_fixed::fill_nan_bf16(cast_mut(block)),
        }
    }

    fn write_ordered(&self, block: &[u8], payload: &mut [u8]) {
        let mut wide = [0f32; WIDE];
        let floats: &[f32] = match self.data_type {
            DataType::Int32 if self.complement => {
                return integer::i32_to_payload_complement(cast(block), payload);
            }
            DataType::Int32 => return integer::i32_to_payload(cast(block), payload),
            DataType::Float32 => cast(block),
            DataType::Float16 => widen(cast(block), &mut wide, float16::f16_to_f32),
            _ => widen(cast(block), &mut wide, float16::bf16_to_f32),
        };
        if self.complement {
            integer::ordered_f32_to_payload_complement(floats, payload);
        } else {
            integer::ordered_f32_to_payload(floats, payload);
        }
    }

    fn read_ordered(&self, payload: &[u8], block: &mut [u8]) {
        match self.data_type {
            DataType::Int32 if self.complement => integer::payload_to_i32_complement(payload, cast_mut(block)),
            DataType::Int32 => integer::payload_to_i32(payload, cast_mut(block)),
            DataType::Float32 => self.read_ordered_f32(payload, cast_mut(block)),
            DataType::Float16 => self.read_narrowed(payload, cast_mut(block), float16::f32_to_f16),
            _ => self.read_narrowed(payload, cast_mut(block), float16::f32_to_bf16),
        }
    }

    fn read_ordered_f32(&self, payload: &[u8], out: &mut [f32]) {
        if self.complement {
            integer::payload_to_ordered_f32_complement(payload, out);
        } else {
            integer::payload_to_ordered_f32(payload, out);
        }
    }

    /// The maximum of values that were 16 bits wide is one of them, so
    /// narrowing is exact.
    fn read_narrowed(&self, payload: &[u8], out: &mut [u16], narrow: fn(f32) -> u16) {
        let mut wide = [0f32; WIDE];
        let wide = &mut wide[..out.len()];
        self.read_ordered_f32(payload, wide);
        for (out, &value) in out.iter_mut().zip(wide.iter()) {
            *out = narrow(value);
        }
    }

    /// Bytes of a block within its shard: offset and length.
    fn block_bytes(&self, id: BlockId) -> (u16, usize, usize) {
        let shard = self.shape.shard(id.block);
        let (first, count) = self.shape.elements_of(id.block);
        let (first, count) = (first as usize, usize::from(count));
        let (offset, bytes) = match self.encoding {
            Encoding::Raw => (first * 4, (count * 4).min(self.shard_bytes - first * 4)),
            Encoding::Limbs => (first * 2, count * 2),
            _ => (first * self.data_type.bytes(), count * self.data_type.bytes()),
        };
        (shard, offset, bytes)
    }

    fn input_block(&self, id: BlockId) -> &[u8] {
        let (shard, offset, bytes) = self.block_bytes(id);
        let start = if self.input_is_split { usize::from(shard) * self.shard_bytes } else { 0 } + offset;
        // SAFETY: the block lies within the input, which the submitter keeps
        // valid and unwritten until the ticket is done; results only overwrite
        // blocks that are never read again.
        unsafe { std::slice::from_raw_parts(self.input.add(start), bytes) }
    }

    #[allow(clippy::mut_from_ref)]
    fn output_block(&self, id: BlockId) -> &mut [u8] {
        let (shard, offset, bytes) = self.block_bytes(id);
        let start = if self.output_is_split { usize::from(shard) * self.shard_bytes } else { 0 } + offset;
        // SAFETY: the block lies within the output; this lane alone handles
        // it, and it holds no other reference to memory of the block now.
        unsafe { std::slice::from_raw_parts_mut(self.output.add(start), bytes) }
    }
}

fn encoding(request: &Request) -> Encoding {
    if is_float_sum(request) {
        Encoding::Float
    } else if !request.kind.combines() || is_bitwise(request.operator) {
        Encoding::Raw
    } else if matches!(request.operator, ReduceOp::Max | ReduceOp::Min) {
        Encoding::Ordered
    } else if request.data_type == DataType::Int64 {
        Encoding::Limbs
    } else {
        Encoding::Integer
    }
}

fn widen<'a>(narrow: &[u16], wide: &'a mut [f32; WIDE], convert: fn(u16) -> f32) -> &'a [f32] {
    let wide = &mut wide[..narrow.len()];
    for (wide, &bits) in wide.iter_mut().zip(narrow) {
        *wide = convert(bits);
    }
    wide
}

/// Plain-old-data element types.
trait Element {}
impl Element for f32 {}
impl Element for u16 {}
impl Element for i32 {}
impl Element for i64 {}

fn cast<T: Element>(bytes: &[u8]) -> &[T] {
    // SAFETY: every bit pattern is a valid T.
    let (before, elements, after) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty() && after.is_empty(), "requests are checked for alignment");
    elements
}

fn cast_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every bit pattern is a valid T.
    let (before, elements, after) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty() && after.is_empty(), "requests are checked for alignment");
    elements
}
