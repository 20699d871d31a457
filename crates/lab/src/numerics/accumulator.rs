//! All ways of adding floats, as one kind of value: what a sum becomes between workers and a switch.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use fanin_numeric::block_float::BlockFloat;
use fanin_numeric::certificate::{Certificate, Contributions};
use fanin_numeric::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::log_table::{Entries, LogTables};
use fanin_numeric::register_pair::{FloatFormat, Rounding};
use fanin_numeric::{Telemetry, block_fixed, exact, ieee, static_fixed};

use super::slots;

/// One way of adding floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accumulator {
    /// Wide integers, rounded once.
    Exact,
    /// Native additions in order of arrival.
    Ieee,
    /// FPISA as the paper has it.
    Fpisa,
    /// FPISA with all guard bits that the workers leave room for, to the nearest.
    FpisaGuarded,
    /// FPISA-A as the paper has it: left shifts fill the register.
    FpisaA,
    /// FPISA-A with headroom for the workers.
    FpisaASafe,
    /// SwitchML's 32-bit integers with an exponent for each packet.
    BlockFixed,
    /// Scaled binary16 on the wire.
    HalfWire,
    /// Scaled bfloat16 on the wire.
    BfloatWire,
    /// Scaled 8-bit integers on the wire.
    ByteWire,
    /// ATP's counts of 10^-8.
    StaticFixed,
    /// Blocks of bytes that share an exponent, in FPISA's registers.
    BlockFloat,
    /// Libra's tables over float32's whole range.
    LogTables256,
    /// Libra's tables as fine as the keys of its Fig. 9.
    LogTables1000,
}

impl Accumulator {
    /// All of them, the most exact first.
    pub const ALL: [Accumulator; 14] = [
        Accumulator::Exact,
        Accumulator::Ieee,
        Accumulator::FpisaGuarded,
        Accumulator::Fpisa,
        Accumulator::FpisaASafe,
        Accumulator::FpisaA,
        Accumulator::BlockFixed,
        Accumulator::HalfWire,
        Accumulator::BfloatWire,
        Accumulator::ByteWire,
        Accumulator::StaticFixed,
        Accumulator::BlockFloat,
        Accumulator::LogTables1000,
        Accumulator::LogTables256,
    ];

    /// Its name on the command line, in files and in Python.
    pub fn name(self) -> &'static str {
        match self {
            Accumulator::Exact => "exact",
            Accumulator::Ieee => "ieee",
            Accumulator::Fpisa => "fpisa",
            Accumulator::FpisaGuarded => "fpisa-guarded",
            Accumulator::FpisaA => "fpisa-a",
            Accumulator::FpisaASafe => "fpisa-a-safe",
            Accumulator::BlockFixed => "block-fixed",
            Accumulator::HalfWire => "half-wire",
            Accumulator::BfloatWire => "bfloat-wire",
            Accumulator::ByteWire => "byte-wire",
            Accumulator::StaticFixed => "static-fixed",
            Accumulator::BlockFloat => "block-float",
            Accumulator::LogTables256 => "log-tables-256",
            Accumulator::LogTables1000 => "log-tables-1000",
        }
    }

    /// Makes it ready for tensors of a format from so many workers.
    ///
    /// # Errors
    /// The accumulator has no room for so many workers.
    pub fn prepare(self, format: FloatFormat, worker_count: usize) -> anyhow::Result<Summer> {
        ensure!(worker_count > 0, "no workers: give one tensor at least");
        let workers = u16::try_from(worker_count).context("more workers than a job has: 65,535")?;
        let (nearest, count) = (Rounding::NearestEven, u32::from(workers));
        let method = match self {
            Accumulator::Exact => Method::Exact,
            Accumulator::Ieee => Method::Ieee,
            Accumulator::Fpisa => Method::Fpisa(Fpisa::paper(format)),
            Accumulator::FpisaGuarded => {
                let needed = count.next_power_of_two().ilog2();
                let guard_bits = format.headroom_bits().saturating_sub(needed);
                Method::Fpisa(Fpisa::new(format, guard_bits, nearest, nearest)?)
            }
            Accumulator::FpisaA => Method::FpisaA(FpisaA::paper(format)),
            Accumulator::FpisaASafe => {
                let safe = FpisaA::for_workers(format, count, Rounding::Floor, Rounding::TowardZero);
                Method::FpisaA(safe.with_context(|| format!("{self} among {workers} workers"))?)
            }
            Accumulator::BlockFixed => Method::BlockFixed,
            Accumulator::HalfWire => Method::Half,
            Accumulator::BfloatWire => Method::Bfloat,
            Accumulator::ByteWire => Method::Byte,
            Accumulator::StaticFixed => Method::StaticFixed,
            Accumulator::BlockFloat => Method::BlockFloat(BlockFloat::new(0, Rounding::Floor)?),
            Accumulator::LogTables256 => Method::LogTables(Box::new(LogTables::new(256, Entries::Truncated))),
            Accumulator::LogTables1000 => Method::LogTables(Box::new(LogTables::new(1000, Entries::Truncated))),
        };
        Ok(Summer { accumulator: self, format, workers, method })
    }
}

impl fmt::Display for Accumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Accumulator {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Accumulator> {
        let found = Accumulator::ALL.into_iter().find(|accumulator| accumulator.name() == name);
        let names = || Accumulator::ALL.map(Accumulator::name).join(", ");
        found.with_context(|| format!("no accumulator is called {name:?}: use one of {}", names()))
    }
}

/// A float format's name, as in PyTorch.
pub fn format_name(format: FloatFormat) -> &'static str {
    match format {
        FloatFormat::Float32 => "float32",
        FloatFormat::Float16 => "float16",
        FloatFormat::Bfloat16 => "bfloat16",
    }
}

/// The format of a name.
///
/// # Errors
/// No format has it.
pub fn parse_format(name: &str) -> anyhow::Result<FloatFormat> {
    let all = [FloatFormat::Float32, FloatFormat::Float16, FloatFormat::Bfloat16];
    let found = all.into_iter().find(|format| format_name(*format) == name);
    found.with_context(|| format!("no format is called {name:?}: use float32, float16 or bfloat16"))
}

/// The number of the format nearest to a value.
pub fn round_to(format: FloatFormat, value: f32) -> f32 {
    match format {
        FloatFormat::Float32 => value,
        FloatFormat::Float16 => f16_to_f32(f32_to_f16(value)),
        FloatFormat::Bfloat16 => bf16_to_f32(f32_to_bf16(value)),
    }
}

/// An accumulator for tensors of one format from a number of workers.
#[derive(Debug)]
pub struct Summer {
    accumulator: Accumulator,
    pub(super) format: FloatFormat,
    pub(super) workers: u16,
    method: Method,
}

/// What it is made of.
#[derive(Debug)]
pub(super) enum Method {
    Exact,
    Ieee,
    Fpisa(Fpisa),
    FpisaA(FpisaA),
    BlockFixed,
    Half,
    Bfloat,
    Byte,
    StaticFixed,
    BlockFloat(BlockFloat),
    LogTables(Box<LogTables>),
}

impl Summer {
    /// Which accumulator.
    pub fn accumulator(&self) -> Accumulator {
        self.accumulator
    }

    /// Elements of one packet, which share an exponent where the accumulator has one.
    pub fn block_elements(&self) -> usize {
        match self.method {
            Method::StaticFixed => slots::ATP_ELEMENTS,
            Method::BlockFloat(_) => slots::BLOCK_FLOAT_ELEMENTS,
            _ => slots::BLOCK_ELEMENTS,
        }
    }

    /// Adds tensors, one a worker, in the order given; `out` becomes what every worker reads, in the summer's format. Values
    /// are rounded to the format first. Counts of what was met go to `telemetry`.
    ///
    /// # Errors
    /// Not as many tensors as workers, or tensors of different lengths.
    pub fn sum(&self, tensors: &[&[f32]], out: &mut [f32], telemetry: &mut Telemetry) -> anyhow::Result<()> {
        let workers = usize::from(self.workers);
        ensure!(tensors.len() == workers, "{} tensors for {workers} workers: give one each", tensors.len());
        if let Some(other) = tensors.iter().find(|tensor| tensor.len() != out.len()) {
            bail!("tensors of {} and {} elements: give equal ones", other.len(), out.len());
        }
        let mut rounded = vec![Vec::new(); workers];
        for (index, out) in out.chunks_mut(self.block_elements()).enumerate() {
            let first = index * self.block_elements();
            for (rounded, tensor) in rounded.iter_mut().zip(tensors) {
                rounded.clear();
                let block = &tensor[first..first + out.len()];
                rounded.extend(block.iter().map(|value| round_to(self.format, *value)));
            }
            self.sum_block(&rounded, out, telemetry);
            out.iter_mut().for_each(|value| *value = round_to(self.format, *value));
        }
        Ok(())
    }

    fn sum_block(&self, block: &[Vec<f32>], out: &mut [f32], telemetry: &mut Telemetry) {
        match &self.method {
            Method::Exact => slots::exact(self.format, block, out),
            Method::Ieee => slots::ieee(self.format, block, out),
            Method::Fpisa(fpisa) => slots::fpisa(fpisa, block, out, telemetry),
            Method::FpisaA(fpisa_a) => slots::fpisa_a(fpisa_a, block, out, telemetry),
            Method::BlockFixed => slots::block_fixed(block, out),
            Method::Half => slots::half(block, out),
            Method::Bfloat => slots::bfloat(block, out),
            Method::Byte => slots::byte(block, out),
            Method::StaticFixed => slots::static_fixed(block, out, telemetry),
            Method::BlockFloat(adder) => slots::block_float(adder, block, out, telemetry),
            Method::LogTables(tables) => slots::log_tables(tables, block, out, telemetry),
        }
    }

    /// What the accumulator promises for an element; `block` has the largest magnitude and the largest sum of magnitudes in the
    /// element's block, which all of it is summed by where one exponent or one saturation decides. `None` where nothing is promised.
    pub fn certify(&self, contributions: &Contributions, block: &Contributions) -> Option<Certificate> {
        match &self.method {
            Method::Exact => Some(exact::certify(self.format, contributions)),
            Method::Ieee => Some(ieee::certify(self.format, contributions)),
            Method::Fpisa(fpisa) => Some(fpisa.certify(contributions)),
            Method::FpisaA(fpisa_a) => Some(fpisa_a.certify(contributions)),
            Method::LogTables(tables) => Some(tables.certify(contributions)),
            Method::BlockFixed => {
                let of_block = Contributions { magnitude_max: block.magnitude_max, ..*contributions };
                Some(self.rounded(block_fixed::certify(&of_block), contributions))
            }
            Method::StaticFixed => {
                let keeps_format = static_fixed::certify(block).absolute_error.is_finite();
                keeps_format.then(|| self.rounded(static_fixed::certify(contributions), contributions))
            }
            _ => None,
        }
    }

    /// The promise of a float32 for which the format's nearest number is taken.
    fn rounded(&self, certificate: Certificate, contributions: &Contributions) -> Certificate {
        if self.format == FloatFormat::Float32 {
            return certificate;
        }
        let magnitude_sum = contributions.magnitude_sum + certificate.absolute_error;
        let rounding = exact::certify(self.format, &Contributions { magnitude_sum, ..*contributions }).absolute_error;
        Certificate { absolute_error: certificate.absolute_error + rounding, ..certificate }
    }
}
