//! Speed of every accumulator's additions beside integer addition and memcpy in the same seconds:
//! `cargo bench -p fanin-numeric --bench accumulators [-- FILTER]`.
//!
//! Machines drift, so only ratios are worth keeping: each round times the copy, the integer addition and the kernel in turn,
//! a fraction of a millisecond each, so that few rounds meet another program, and the table shows medians over the rounds. All
//! work on datagrams of 2048 elements behind a 40-byte header, once with slots and datagrams in the second-level cache, once
//! with slots that only memory holds.
//! `KERNEL_LEVEL=scalar|avx2|avx512` limits the kernels.

mod support;

use std::hint::black_box;
use std::ops::Range;

use fanin_numeric::fpisa::Fpisa;
use fanin_numeric::fpisa_a::FpisaA;
use fanin_numeric::register_pair::{FloatFormat, Registers, Rounding};
use fanin_numeric::{KernelLevel, Telemetry, accumulate, exact, ieee, kernel_level, limit_kernel_level};
use support::{median, time};

const ROUNDS: usize = 101;
/// Of a sample. With more slots than that each sample goes on where the last one ended.
const SAMPLE_CHUNKS: usize = 64;
const HEADER_BYTES: usize = 40;
const CHUNK: usize = 2048;

/// Name, elements of the slots.
const SETTINGS: [(&str, usize); 2] =
    [("slots in L2: 16 Ki elements", 16 << 10), ("slots in memory: 8 Mi elements", 8 << 20)];
/// Datagrams that come in turn.
const DATAGRAMS: usize = 8;

/// What the kernels work on.
struct Buffers {
    payload: Vec<u8>,
    /// The same datagrams with elements of four bytes little-endian.
    little: Vec<u8>,
    out: Vec<u8>,
    exponents: Vec<u8>,
    mantissas: Vec<i32>,
    floats: Vec<f32>,
    exact: Vec<exact::Float32Sum>,
    exact_f16: Vec<exact::Float16Sum>,
    copy: Vec<u8>,
    /// Chunks visited so far.
    visited: usize,
}

impl Buffers {
    fn new(element_count: usize, format: FloatFormat) -> Self {
        let mut payload = Vec::new();
        for datagram in 0..DATAGRAMS {
            payload.extend([0; HEADER_BYTES]);
            for k in 0..CHUNK {
                // Gradients of both signs, over a few binary orders; one element's values cancel over eight datagrams.
                let sign = if datagram % 2 == 0 { 1.0 } else { -1.0 };
                let value = sign * ((k * 8 + datagram / 2) as f32).sin() * 0.01;
                let bits = value.to_bits().to_be_bytes();
                let half = [0x20 | bits[0] & 0x80 | bits[1] & 7, bits[2]];
                payload.extend(match format {
                    FloatFormat::Float32 => &bits[..],
                    FloatFormat::Bfloat16 => &bits[..2],
                    FloatFormat::Float16 => &half[..],
                });
            }
        }
        let mut buffers = Self {
            little: payload.chunks(4).flat_map(|word| word.iter().rev().copied()).collect(),
            payload,
            out: vec![0; 4 * CHUNK],
            exponents: vec![0; element_count],
            mantissas: vec![0; element_count],
            floats: vec![0.0; element_count],
            exact: vec![Default::default(); element_count],
            exact_f16: vec![Default::default(); element_count],
            copy: vec![0; 4 * element_count],
            visited: 0,
        };
        let fpisa = Fpisa::paper(format);
        for _ in 0..element_count.div_ceil(CHUNK * SAMPLE_CHUNKS) {
            buffers.each(format.bytes(), |payload, slot, _| fpisa.overwrite(payload, slot));
        }
        buffers
    }

    /// The chunks of the next sample, each with its datagram: an element meets the datagrams in turn.
    fn visits(&mut self, bytes: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let (stride, chunk_count) = (HEADER_BYTES + bytes * CHUNK, self.mantissas.len() / CHUNK);
        let visits = self.visited..self.visited + SAMPLE_CHUNKS;
        self.visited = visits.end;
        visits.map(move |visit| {
            let datagram = (visit + visit / chunk_count) % DATAGRAMS * stride + HEADER_BYTES;
            let chunk = visit % chunk_count * CHUNK;
            (chunk..chunk + CHUNK, datagram..datagram + bytes * CHUNK)
        })
    }

    /// Calls `call(payload, registers, out)` for each chunk of a sample.
    fn each(&mut self, bytes: usize, mut call: impl FnMut(&[u8], &mut Registers<'_>, &mut [u8])) {
        for (chunk, datagram) in self.visits(bytes) {
            let (exponents, mantissas) = (&mut self.exponents[chunk.clone()], &mut self.mantissas[chunk]);
            call(&self.payload[datagram], &mut Registers { exponents, mantissas }, &mut self.out[..bytes * CHUNK]);
        }
    }
}

/// Calls `call(payload, slot)` for each chunk of a sample.
macro_rules! each {
    ($buffers:ident, $slots:ident, $bytes:literal, $call:expr) => {
        for (chunk, datagram) in $buffers.visits($bytes) {
            $call(&$buffers.payload[datagram], &mut $buffers.$slots[chunk]);
        }
    };
}

/// Name, format of the payload, one sample.
type Kernel = (&'static str, FloatFormat, fn(&mut Buffers));

/// One verb of a register-pair accumulator.
macro_rules! registers {
    ($name:literal, $format:ident, $accumulator:expr, |$a:ident, $payload:ident, $slot:ident, $out:ident| $call:expr) => {
        ($name, FloatFormat::$format, |b: &mut Buffers| {
            let $a = $accumulator;
            b.each(FloatFormat::$format.bytes(), |$payload, $slot, $out| {
                let _ = &$out;
                $call
            });
        })
    };
}

const NEAREST: Rounding = Rounding::NearestEven;

fn nearest(format: FloatFormat, guard_bits: u32) -> Fpisa {
    Fpisa::new(format, guard_bits, NEAREST, NEAREST).expect("room for the guard bits")
}

/// What a job of 8 workers has.
fn as_jobs_do() -> Fpisa {
    Fpisa::for_workers(FloatFormat::Float32, 8).little_endian()
}

fn safe(format: FloatFormat) -> FpisaA {
    FpisaA::for_workers(format, 8, Rounding::Floor, NEAREST).expect("room for eight workers")
}

fn kernels() -> Vec<Kernel> {
    use FloatFormat::{Bfloat16, Float16, Float32};
    vec![
        registers!("fpisa::add f32, floor", Float32, Fpisa::paper(Float32), |a, p, s, _o| a.add(p, s, None)),
        registers!("fpisa::add f32, nearest, 2 guard bits", Float32, nearest(Float32, 2), |a, p, s, _o| a
            .add(p, s, None)),
        registers!("fpisa::add f32, floor, counted", Float32, Fpisa::paper(Float32), |a, p, s, _o| {
            let mut counts = Telemetry::default();
            a.add(p, s, Some(&mut counts));
            black_box(counts);
        }),
        ("fpisa::add f32, as jobs do, counted", Float32, |b| {
            for (chunk, datagram) in b.visits(4) {
                let (exponents, mantissas) = (&mut b.exponents[chunk.clone()], &mut b.mantissas[chunk]);
                let mut counts = Telemetry::default();
                let slot = &mut Registers { exponents, mantissas };
                as_jobs_do().add(&b.little[datagram], slot, Some(&mut counts));
                black_box(counts);
            }
        }),
        registers!("fpisa::add f16, floor", Float16, Fpisa::paper(Float16), |a, p, s, _o| a.add(p, s, None)),
        registers!("fpisa::add bf16, floor", Bfloat16, Fpisa::paper(Bfloat16), |a, p, s, _o| a.add(p, s, None)),
        registers!("fpisa::overwrite f32", Float32, Fpisa::paper(Float32), |a, p, s, _o| a.overwrite(p, s)),
        registers!("fpisa::emit f32, truncating", Float32, Fpisa::paper(Float32), |a, _p, s, o| a.emit(s, o, None)),
        registers!("fpisa::emit f32, nearest", Float32, nearest(Float32, 0), |a, _p, s, o| a.emit(s, o, None)),
        registers!("fpisa_a::add f32, floor", Float32, safe(Float32), |a, p, s, _o| a.add(p, s, None)),
        registers!("fpisa_a::add f32, floor, counted", Float32, safe(Float32), |a, p, s, _o| {
            let mut counts = Telemetry::default();
            a.add(p, s, Some(&mut counts));
            black_box(counts);
        }),
        registers!("fpisa_a::add bf16, floor", Bfloat16, safe(Bfloat16), |a, p, s, _o| a.add(p, s, None)),
        ("ieee::add f32", Float32, |b| each!(b, floats, 4, ieee::add_f32)),
        ("ieee::add f32, little-endian", Float32, |b| {
            for (chunk, datagram) in b.visits(4) {
                ieee::add_f32_le(&b.little[datagram], &mut b.floats[chunk]);
            }
        }),
        ("ieee::add f16", Float16, |b| each!(b, floats, 2, ieee::add_f16)),
        ("ieee::add bf16", Bfloat16, |b| each!(b, floats, 2, ieee::add_bf16)),
        ("exact::add f32", Float32, |b| each!(b, exact, 4, exact::add_f32)),
        ("exact::add f16", Float16, |b| each!(b, exact_f16, 2, exact::add_f16)),
        ("exact::add bf16", Bfloat16, |b| each!(b, exact, 2, exact::add_bf16)),
        ("exact::emit f32", Float32, |b| {
            for (chunk, _) in b.visits(4) {
                exact::emit_f32(&b.exact[chunk], &mut b.out);
            }
        }),
    ]
}

fn integer_add(buffers: &mut Buffers) {
    buffers.each(4, |payload, slot, _| accumulate::add(payload, slot.mantissas));
}

fn memcpy(buffers: &mut Buffers) {
    for (chunk, datagram) in buffers.visits(4) {
        buffers.copy[4 * chunk.start..4 * chunk.end].copy_from_slice(&buffers.payload[datagram]);
    }
}

/// One line of the table: elements per nanosecond, shares of the integer addition's and the copy's speed.
fn measure(element_count: usize, (name, format, kernel): &Kernel) {
    let mut buffers = Buffers::new(element_count, *format);
    // Of its own, so that what integers add up to never reaches the kernel's registers.
    let mut yardstick = Buffers::new(element_count, FloatFormat::Float32);
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    // Every slot once, so that none is a fresh page.
    for _ in 0..element_count.div_ceil(CHUNK * SAMPLE_CHUNKS) {
        memcpy(&mut yardstick);
        integer_add(&mut yardstick);
        kernel(&mut buffers);
    }
    for _ in 0..ROUNDS {
        let copied = time(1, || memcpy(black_box(&mut yardstick)));
        let added = time(1, || integer_add(black_box(&mut yardstick)));
        let seconds = time(1, || kernel(black_box(&mut buffers)));
        columns.0.push(1e-9 * (SAMPLE_CHUNKS * CHUNK) as f64 / seconds);
        columns.1.push(100.0 * added / seconds);
        columns.2.push(100.0 * copied / seconds);
    }
    println!("{name:42} {:8.2} {:9.0} % {:9.0} %", median(columns.0), median(columns.1), median(columns.2));
}

/// `--passes N KERNEL`: a fixed number of samples of one kernel, for an instruction counter.
fn run_passes(passes: usize, name: &str) {
    let kernels = kernels();
    let (_, format, kernel) = kernels.iter().find(|(known, ..)| *known == name).expect("a kernel of the table");
    let mut buffers = Buffers::new(SETTINGS[0].1, *format);
    for _ in 0..passes {
        kernel(black_box(&mut buffers));
    }
    println!("{SAMPLE_CHUNKS} packets a pass");
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some([_, passes, name, ..]) =
        arguments.iter().position(|argument| argument == "--passes").map(|at| &arguments[at..])
    {
        return run_passes(passes.parse().expect("a number of passes"), name);
    }
    let wanted: Vec<_> = arguments.iter().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Ok(level) = std::env::var("KERNEL_LEVEL") {
        limit_kernel_level(match level.as_str() {
            "scalar" => KernelLevel::Scalar,
            "avx2" => KernelLevel::Avx2,
            _ => KernelLevel::Avx512,
        });
    }
    println!("kernels: {:?}, {ROUNDS} rounds, medians, one thread", kernel_level());
    for (name, element_count) in SETTINGS {
        println!("\n{name}\n{:42} {:>8} {:>11} {:>11}", "kernel", "elem/ns", "of add", "of memcpy");
        for kernel in kernels() {
            if wanted.is_empty() || wanted.iter().any(|part| kernel.0.contains(part.as_str())) {
                measure(element_count, &kernel);
            }
        }
    }
}
