//! Elements of the slots whose accumulator adds floats as they come (`spec/NUMERICS.md`, sections 2 to 6).
//!
//! A sum's state lies beside the job's words, at the same places: FPISA's mantissas are those words, everything else has
//! memory of its own. Payloads are little-endian. FPISA's kernels, native additions of float32 and additions in tables read them so. All other
//! additions read big-endian, and all read-outs but those of FPISA and of native float32 write it: theirs pass through one buffer.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::ops::Range;

use fanin_numeric::exact::{self, Float16Sum, Float32Sum};
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::log_table::{Entries, LogTables};
use fanin_numeric::register_pair::{FloatFormat, Registers};
use fanin_numeric::{Telemetry, byte_order, ieee};
use fanin_wire::{Accumulator, ElementFormat};

/// Steps per octave of a job's logarithms: the keys of Libra's Fig. 9.
const LOG_STEPS: u16 = 1000;

#[derive(Clone)]
pub(crate) struct FloatPool {
    state: State,
    /// One payload in the byte order of kernels that read big-endian.
    turned: Vec<u8>,
}

/// What all contributions to a sum have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub format: FloatFormat,
    /// Of the whole job: FPISA's guard bits are what so many leave.
    pub worker_count: u16,
}

#[derive(Clone)]
enum State {
    /// The accumulator has words only.
    Words,
    /// Exponents; FPISA-A where `is_approximate`.
    Registers {
        exponents: Vec<u8>,
        is_approximate: bool,
    },
    Floats(Vec<f32>),
    Logarithms {
        sums: Vec<f32>,
        tables: Box<LogTables>,
    },
    Exact {
        wide: Sparse<Float32Sum>,
        narrow: Sparse<Float16Sum>,
    },
}

/// States of elements, allocated for a slot copy with its first sum, and let go of where the owner says so: they are many times
/// the words, and a data-plane thread meets the slots of its own lanes and the formats in use only.
#[derive(Clone)]
struct Sparse<T> {
    copies: Vec<Vec<T>>,
    /// Elements of a copy, padding included.
    stride: usize,
}

impl<T: Clone + Default> Sparse<T> {
    fn new(element_count: usize, stride: usize) -> Sparse<T> {
        Sparse { copies: vec![Vec::new(); element_count.div_ceil(stride)], stride }
    }

    /// The sums of `range`, which begins where a copy's elements begin.
    fn made(&mut self, range: Range<usize>) -> &mut [T] {
        let sums = &mut self.copies[range.start / self.stride];
        if sums.is_empty() {
            sums.resize(self.stride, T::default());
        }
        &mut sums[..range.len()]
    }

    /// The same where there is a sum.
    fn of(&self, range: Range<usize>) -> &[T] {
        &self.copies[range.start / self.stride][..range.len()]
    }

    fn release(&mut self, start: usize) {
        self.copies[start / self.stride] = Vec::new();
    }
}

impl FloatPool {
    /// Zeroed memory for `element_count` elements, in slot copies `stride` apart; a payload has at most `payload_bytes`.
    pub fn new(accumulator: Accumulator, element_count: usize, stride: usize, payload_bytes: usize) -> FloatPool {
        let registers = |is_approximate| State::Registers { exponents: vec![0; element_count], is_approximate };
        let state = match accumulator {
            Accumulator::BlockFixed | Accumulator::StaticFixed => State::Words,
            Accumulator::Fpisa => registers(false),
            Accumulator::FpisaA => registers(true),
            Accumulator::Ieee => State::Floats(vec![0.0; element_count]),
            Accumulator::LogTable => State::Logarithms {
                sums: vec![0.0; element_count],
                tables: Box::new(LogTables::new(LOG_STEPS, Entries::Rounded)),
            },
            Accumulator::Exact => {
                State::Exact { wide: Sparse::new(element_count, stride), narrow: Sparse::new(element_count, stride) }
            }
        };
        let turned = match state {
            State::Words | State::Registers { .. } => Vec::new(),
            _ => vec![0; payload_bytes],
        };
        FloatPool { state, turned }
    }

    /// Brings a payload into the sums of `range`, whose words are `words`.
    pub fn add(
        &mut self,
        terms: Terms,
        overwrite: bool,
        payload: &[u8],
        range: Range<usize>,
        words: &mut [i32],
    ) -> Telemetry {
        let format = terms.format;
        let mut telemetry = Telemetry::default();
        let turned = &mut self.turned;
        match &mut self.state {
            State::Words => unreachable!("a job has raw elements only if its accumulator adds floats"),
            State::Registers { exponents, is_approximate } => {
                let mut slot = Registers { exponents: &mut exponents[range], mantissas: words };
                let counted = Some(&mut telemetry);
                match (*is_approximate, overwrite) {
                    (false, true) => terms.fpisa().overwrite(payload, &mut slot),
                    (false, false) => terms.fpisa().add(payload, &mut slot, counted),
                    (true, true) => terms.fpisa_a().overwrite(payload, &mut slot),
                    (true, false) => terms.fpisa_a().add(payload, &mut slot, counted),
                }
            }
            State::Floats(sums) => add_floats(format, overwrite, payload, turned, &mut sums[range]),
            State::Logarithms { sums, tables } => {
                add_logarithms(tables, format, overwrite, payload, &mut sums[range], &mut telemetry);
                // A sum that has saturated stays so: each is counted at the read-out, once, however it came about.
                telemetry.saturation = 0;
            }
            State::Exact { wide, narrow } => {
                let turned = turn(format, payload, turned);
                match format {
                    FloatFormat::Float32 if overwrite => exact::overwrite_f32(turned, wide.made(range)),
                    FloatFormat::Float32 => exact::add_f32(turned, wide.made(range)),
                    FloatFormat::Bfloat16 if overwrite => exact::overwrite_bf16(turned, wide.made(range)),
                    FloatFormat::Bfloat16 => exact::add_bf16(turned, wide.made(range)),
                    FloatFormat::Float16 if overwrite => exact::overwrite_f16(turned, narrow.made(range)),
                    FloatFormat::Float16 => exact::add_f16(turned, narrow.made(range)),
                }
            }
        }
        telemetry
    }

    /// [`FloatPool::add`] of the last contribution, then [`FloatPool::emit`]; in one pass where there is a kernel for it.
    pub fn add_and_emit(
        &mut self,
        terms: Terms,
        overwrite: bool,
        payload: &[u8],
        range: Range<usize>,
        words: &mut [i32],
        out: &mut [u8],
    ) -> Telemetry {
        if let (State::Floats(sums), FloatFormat::Float32, false) = (&mut self.state, terms.format, overwrite) {
            ieee::add_and_emit_f32_le(payload, &mut sums[range], out);
            return Telemetry::default();
        }
        let mut telemetry = self.add(terms, overwrite, payload, range.clone(), words);
        telemetry.merge(&self.emit(terms, range, words, out));
        telemetry
    }

    /// Writes the sums of `range`, whose words are `words`, as a payload.
    pub fn emit(&mut self, terms: Terms, range: Range<usize>, words: &mut [i32], out: &mut [u8]) -> Telemetry {
        let format = terms.format;
        let mut telemetry = Telemetry::default();
        let turned = self.turned.get_mut(..out.len()).unwrap_or_default();
        match &mut self.state {
            State::Words => unreachable!("a job has raw elements only if its accumulator adds floats"),
            State::Registers { exponents, is_approximate } => {
                let slot = Registers { exponents: &mut exponents[range], mantissas: words };
                let counted = Some(&mut telemetry);
                match *is_approximate {
                    false => terms.fpisa().emit(&slot, out, counted),
                    true => terms.fpisa_a().emit(&slot, out, counted),
                }
                return telemetry;
            }
            State::Floats(sums) if format == FloatFormat::Float32 => {
                ieee::emit_f32_le(&sums[range], out);
                return telemetry;
            }
            State::Floats(sums) => emit_floats(format, &sums[range], turned),
            State::Logarithms { sums, tables } => {
                telemetry.saturation = tables.count_saturated(&sums[range.clone()]);
                emit_floats(format, &sums[range], turned);
            }
            State::Exact { wide, narrow } => match format {
                FloatFormat::Float32 => exact::emit_f32(wide.of(range), turned),
                FloatFormat::Bfloat16 => exact::emit_bf16(wide.of(range), turned),
                FloatFormat::Float16 => exact::emit_f16(narrow.of(range), turned),
            },
        }
        byte_order::reverse(turned, format.bytes(), out);
        telemetry
    }

    /// How many sums are infinite once they are rounded to the elements' format: whether an infinity was a contribution or what an
    /// addition came to is not seen here. Registers count theirs at the read-out, as tables do that have saturated; an exact sum is
    /// rounded where nothing is added to it any more.
    pub fn count_beyond(&self, format: FloatFormat, range: Range<usize>) -> u64 {
        let rounded: fn(f32) -> f32 = match format {
            FloatFormat::Float32 => |sum| sum,
            FloatFormat::Float16 => |sum| f16_to_f32(f32_to_f16(sum)),
            FloatFormat::Bfloat16 => |sum| bf16_to_f32(f32_to_bf16(sum)),
        };
        let count = |sums: &[f32], largest: f32| {
            sums.iter().filter(|sum| sum.abs() != largest && rounded(**sum).is_infinite()).count() as u64
        };
        match &self.state {
            State::Floats(sums) => count(&sums[range], f32::NAN),
            State::Logarithms { sums, tables } => count(&sums[range], tables.largest()),
            State::Words | State::Registers { .. } | State::Exact { .. } => 0,
        }
    }

    /// How many elements of a payload that [`FloatPool::emit`] wrote read as those do that have left the format: infinite or no
    /// number, or not below the largest number where that stands for them.
    pub fn count_at_end(&self, format: FloatFormat, payload: &[u8]) -> u64 {
        let end = match (&self.state, format) {
            (State::Logarithms { tables, .. }, _) => tables.largest(),
            (State::Registers { is_approximate: true, .. }, FloatFormat::Float32) => f32::MAX,
            (State::Registers { is_approximate: true, .. }, FloatFormat::Float16) => f16_to_f32(0x7bff),
            (State::Registers { is_approximate: true, .. }, FloatFormat::Bfloat16) => bf16_to_f32(0x7f7f),
            _ => f32::INFINITY,
        };
        let is_at_end = |value: f32| value.is_nan() || value.abs() >= end;
        let pairs = || payload.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        let count = match format {
            FloatFormat::Float32 => {
                payload.as_chunks().0.iter().filter(|bytes| is_at_end(f32::from_le_bytes(**bytes))).count()
            }
            FloatFormat::Float16 => pairs().filter(|bits| is_at_end(f16_to_f32(*bits))).count(),
            FloatFormat::Bfloat16 => pairs().filter(|bits| is_at_end(bf16_to_f32(*bits))).count(),
        };
        count as u64
    }

    /// Whether an element that has left the format reads so at every read-out further up as well. FPISA-A's is the largest number
    /// then, which what is added later may make smaller again.
    pub fn stays_at_end(&self) -> bool {
        !matches!(self.state, State::Registers { is_approximate: true, .. })
    }

    /// The sum whose elements begin at `start` is not needed any more.
    pub fn release(&mut self, start: usize) {
        if let State::Exact { wide, narrow } = &mut self.state {
            wide.release(start);
            narrow.release(start);
        }
    }

    /// Hashes the state of a sum's elements beside its words.
    pub fn hash_state(&self, format: FloatFormat, range: Range<usize>, hasher: &mut impl Hasher) {
        match &self.state {
            State::Words => {}
            State::Registers { exponents, .. } => exponents[range].hash(hasher),
            State::Floats(sums) | State::Logarithms { sums, .. } => {
                sums[range].iter().for_each(|sum| sum.to_bits().hash(hasher));
            }
            State::Exact { narrow, .. } if format == FloatFormat::Float16 => narrow.of(range).hash(hasher),
            State::Exact { wide, .. } => wide.of(range).hash(hasher),
        }
    }
}

impl Terms {
    fn fpisa(self) -> Fpisa {
        Fpisa::for_workers(self.format, self.worker_count.into()).little_endian()
    }

    fn fpisa_a(self) -> FpisaA {
        FpisaA::paper(self.format).little_endian()
    }
}

/// The format of raw elements.
pub(crate) fn raw_format(format: ElementFormat) -> Option<FloatFormat> {
    match format {
        ElementFormat::RawFloat32 => Some(FloatFormat::Float32),
        ElementFormat::RawFloat16 => Some(FloatFormat::Float16),
        ElementFormat::RawBfloat16 => Some(FloatFormat::Bfloat16),
        _ => None,
    }
}

/// A payload big-endian.
fn turn<'a>(format: FloatFormat, payload: &[u8], turned: &'a mut [u8]) -> &'a [u8] {
    let turned = &mut turned[..payload.len()];
    byte_order::reverse(payload, format.bytes(), turned);
    turned
}

fn add_floats(format: FloatFormat, overwrite: bool, payload: &[u8], turned: &mut [u8], sums: &mut [f32]) {
    if format == FloatFormat::Float32 {
        return if overwrite { ieee::overwrite_f32_le(payload, sums) } else { ieee::add_f32_le(payload, sums) };
    }
    let turned = turn(format, payload, turned);
    match format {
        FloatFormat::Float32 => unreachable!("returned above"),
        FloatFormat::Float16 if overwrite => ieee::overwrite_f16(turned, sums),
        FloatFormat::Float16 => ieee::add_f16(turned, sums),
        FloatFormat::Bfloat16 if overwrite => ieee::overwrite_bf16(turned, sums),
        FloatFormat::Bfloat16 => ieee::add_bf16(turned, sums),
    }
}

fn emit_floats(format: FloatFormat, sums: &[f32], turned: &mut [u8]) {
    match format {
        FloatFormat::Float32 => ieee::emit_f32(sums, turned),
        FloatFormat::Float16 => ieee::emit_f16(sums, turned),
        FloatFormat::Bfloat16 => ieee::emit_bf16(sums, turned),
    }
}

fn add_logarithms(
    tables: &LogTables,
    format: FloatFormat,
    overwrite: bool,
    payload: &[u8],
    sums: &mut [f32],
    telemetry: &mut Telemetry,
) {
    let mut combine = |sum: &mut f32, value: f32| {
        *sum = if overwrite { value } else { tables.sum(*sum, value, telemetry) };
    };
    match format {
        FloatFormat::Float32 => {
            let values = payload.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            sums.iter_mut().zip(values).for_each(|(sum, value)| combine(sum, value));
        }
        FloatFormat::Float16 => {
            let values = payload.as_chunks().0.iter().map(|bytes| f16_to_f32(u16::from_le_bytes(*bytes)));
            sums.iter_mut().zip(values).for_each(|(sum, value)| combine(sum, value));
        }
        FloatFormat::Bfloat16 => {
            let values = payload.as_chunks().0.iter().map(|bytes| bf16_to_f32(u16::from_le_bytes(*bytes)));
            sums.iter_mut().zip(values).for_each(|(sum, value)| combine(sum, value));
        }
    }
}
