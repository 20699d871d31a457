//! Speed of every kernel beside memcpy in the same seconds: `cargo bench -p fanin-numeric [-- FILTER]`.
//!
//! Machines drift, so only ratios are worth keeping: each round times memcpy, the kernel, memcpy, the kernel, and the
//! table shows medians over the rounds. `share` is the time memcpy needs for the kernel's larger operand over the
//! kernel's time, so 100 % is "as fast as copying the tensor". The settings: all in the second-level cache, as one block
//! and as datagrams (payloads behind a 40-byte header, so at addresses that are not whole cache lines); the tensor in
//! memory and the datagrams in a small ring, as a worker has them; both in memory.
//!
//! On a shared machine give it a scheduling group of its own:
//! `setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec nice -n -20 cargo bench -p fanin-numeric'`.

mod support;

use std::hint::black_box;

use fanin_numeric::{KernelLevel, accumulate, bfloat_wire, block_fixed, byte_wire, float_wire, half_wire, integer};
use fanin_numeric::{kernel_level, limit_kernel_level, static_fixed};
use support::{median, time};

const ROUNDS: usize = 9;
/// A sample repeats the work until it has moved about this much, to be long beside the clock's own cost.
const SAMPLE_BYTES: usize = 64 << 20;
const HEADER_BYTES: usize = 40;
const F: f32 = 1_048_576.0;

/// One place to measure in.
struct Setting {
    name: &'static str,
    /// Elements in all.
    element_count: usize,
    /// Elements per call.
    chunk: usize,
    /// Bytes before each payload.
    gap_bytes: usize,
    /// Payload buffers, used in turn.
    payload_count: usize,
}

const SETTINGS: [Setting; 6] = [
    Setting::new("L2: one block of 32 Ki elements", [32 << 10, 32 << 10, 1, 0]),
    Setting::new("L2: datagrams of 256 elements", [32 << 10, 256, 128, HEADER_BYTES]),
    Setting::new("L2: datagrams of 2048 elements", [32 << 10, 2048, 16, HEADER_BYTES]),
    Setting::new("L2: datagrams of 37 elements", [32_745, 37, 700, HEADER_BYTES]),
    Setting::new(
        "memory: tensor of 64 Mi elements, datagrams of 2048 in a ring of 64",
        [64 << 20, 2048, 64, HEADER_BYTES],
    ),
    Setting::new("memory: tensor and datagrams of 2048, 64 Mi elements each", [64 << 20, 2048, 32 << 10, HEADER_BYTES]),
];

impl Setting {
    const fn new(name: &'static str, [element_count, chunk, payload_count, gap_bytes]: [usize; 4]) -> Self {
        Self { name, element_count, chunk, gap_bytes, payload_count }
    }
}

/// All operands of one setting; `ints` serve as tensor and as slots, `copy` is memcpy's tensor.
struct Buffers {
    floats: Vec<f32>,
    ints: Vec<i32>,
    narrow: Vec<u16>,
    longs: Vec<i64>,
    payload: Vec<u8>,
    /// One Aggregate, behind a header.
    out: Vec<u8>,
    copy: Vec<u8>,
}

impl Buffers {
    fn new(setting: &Setting) -> Self {
        let count = setting.element_count;
        let payload_bytes = setting.payload_count * (4 * setting.chunk + setting.gap_bytes);
        Self {
            floats: (0..count).map(|k| (k as f32).sin()).collect(),
            ints: (0..count).map(|k| k as i32).collect(),
            narrow: (0..count).map(|k| 0x2000 + (k % 0x1000) as u16).collect(),
            longs: (0..count / 4).map(|k| k as i64).collect(),
            payload: vec![1; payload_bytes],
            out: vec![0; setting.gap_bytes + 4 * setting.chunk],
            copy: vec![1; 4 * count],
        }
    }

    /// Calls `call(payload, first element)` for each chunk.
    fn each(payload: &mut [u8], setting: &Setting, width: usize, mut call: impl FnMut(&mut [u8], usize)) {
        let stride = setting.gap_bytes + width * setting.chunk;
        for index in 0..setting.element_count / setting.chunk {
            let datagram = &mut payload[index % setting.payload_count * stride..][..stride];
            call(&mut datagram[setting.gap_bytes..], index * setting.chunk);
        }
    }
}

/// Name, bytes of the larger operand per element, one pass over all chunks.
type Kernel = (&'static str, usize, fn(&mut Buffers, &Setting));

/// A kernel from or to `$values`, with `$width` payload bytes per element.
macro_rules! kernel {
    ($name:literal, $bytes:literal, $width:literal, $values:ident, |$slice:ident, $payload:ident| $call:expr) => {
        ($name, $bytes, |b: &mut Buffers, s: &Setting| {
            let values = &mut b.$values;
            Buffers::each(&mut b.payload, s, $width, |$payload, at| {
                let $slice = &mut values[at..][..s.chunk];
                $call;
            });
        })
    };
}

fn all_kernels() -> Vec<Kernel> {
    [kernels(), atp_kernels()].concat()
}

fn kernels() -> Vec<Kernel> {
    use {accumulate::half, block_fixed as fixed};
    vec![
        ("exponent_f32", 4, |b, s| {
            b.floats.chunks(s.chunk).for_each(|v| {
                black_box(fixed::exponent_f32(v));
            })
        }),
        ("exponent_bf16", 2, |b, s| {
            b.narrow.chunks(s.chunk).for_each(|v| {
                black_box(fixed::exponent_bf16(v));
            })
        }),
        kernel!("block_fixed::quantize_f32", 4, 4, floats, |v, p| fixed::quantize_f32(v, F, p)),
        kernel!("block_fixed::quantize_f16", 4, 4, narrow, |v, p| fixed::quantize_f16(v, F, p)),
        kernel!("block_fixed::quantize_bf16", 4, 4, narrow, |v, p| fixed::quantize_bf16(v, F, p)),
        kernel!("block_fixed::dequantize_f32", 4, 4, floats, |v, p| fixed::dequantize_f32(p, F, 1.0, v)),
        kernel!("block_fixed::dequantize_f32 /3", 4, 4, floats, |v, p| fixed::dequantize_f32(p, F, 3.0, v)),
        kernel!("block_fixed::dequantize_f16", 4, 4, narrow, |v, p| fixed::dequantize_f16(p, F, 1.0, v)),
        kernel!("block_fixed::dequantize_bf16", 4, 4, narrow, |v, p| fixed::dequantize_bf16(p, F, 1.0, v)),
        kernel!("half_wire::quantize_f32", 4, 2, floats, |v, p| half_wire::quantize_f32(v, 1.0, p)),
        kernel!("half_wire::quantize_f16", 2, 2, narrow, |v, p| half_wire::quantize_f16(v, 1.0, p)),
        kernel!("half_wire::dequantize_f32", 4, 2, floats, |v, p| half_wire::dequantize_f32(p, 1.0, 1.0, v)),
        kernel!("half_wire::dequantize_f16", 2, 2, narrow, |v, p| half_wire::dequantize_f16(p, 1.0, 1.0, v)),
        kernel!("bfloat_wire::quantize_f32", 4, 2, floats, |v, p| bfloat_wire::quantize_f32(v, 1.0, p)),
        kernel!("bfloat_wire::quantize_bf16", 2, 2, narrow, |v, p| bfloat_wire::quantize_bf16(v, 1.0, p)),
        kernel!("bfloat_wire::dequantize_f32", 4, 2, floats, |v, p| bfloat_wire::dequantize_f32(p, 1.0, 1.0, v)),
        kernel!("bfloat_wire::dequantize_bf16", 2, 2, narrow, |v, p| bfloat_wire::dequantize_bf16(p, 1.0, 1.0, v)),
        kernel!("byte_wire::quantize_f32", 4, 1, floats, |v, p| byte_wire::quantize_f32(v, 1.0, p)),
        kernel!("byte_wire::quantize_bf16", 2, 1, narrow, |v, p| byte_wire::quantize_bf16(v, 1.0, p)),
        kernel!("byte_wire::dequantize_f32", 4, 1, floats, |v, p| byte_wire::dequantize_f32(p, 1.0, 3, 1.0, v)),
        kernel!("byte_wire::dequantize_bf16", 2, 1, narrow, |v, p| byte_wire::dequantize_bf16(p, 1.0, 3, 1.0, v)),
        kernel!("accumulate::overwrite", 4, 4, ints, |v, p| accumulate::overwrite(p, v)),
        kernel!("accumulate::add", 4, 4, ints, |v, p| accumulate::add(p, v)),
        kernel!("accumulate::max", 4, 4, ints, |v, p| accumulate::max(p, v)),
        kernel!("accumulate::emit", 4, 4, ints, |v, p| accumulate::emit(v, p)),
        ("accumulate::add_and_emit", 4, |b, s| {
            Buffers::each(&mut b.payload, s, 4, |p, at| {
                accumulate::add_and_emit(p, &mut b.ints[at..][..s.chunk], &mut b.out[s.gap_bytes..]);
            })
        }),
        kernel!("accumulate::half::overwrite", 4, 2, ints, |v, p| half::overwrite(p, v)),
        kernel!("accumulate::half::add", 4, 2, ints, |v, p| half::add(p, v)),
        kernel!("accumulate::half::emit", 4, 2, ints, |v, p| half::emit(v, p)),
        ("accumulate::half::add_and_emit", 4, |b, s| {
            Buffers::each(&mut b.payload, s, 2, |p, at| {
                half::add_and_emit(p, &mut b.ints[at..][..s.chunk], &mut b.out[s.gap_bytes..][..2 * s.chunk]);
            })
        }),
        kernel!("accumulate::bfloat::add", 4, 2, ints, |v, p| accumulate::bfloat::add(p, v)),
        kernel!("accumulate::bfloat::emit", 4, 2, ints, |v, p| accumulate::bfloat::emit(v, p)),
        kernel!("accumulate::byte::add", 4, 1, ints, |v, p| accumulate::byte::add(p, v)),
        kernel!("accumulate::byte::shift and emit", 4, 1, ints, |v, p| {
            accumulate::byte::emit(v, accumulate::byte::shift(v), p)
        }),
        kernel!("integer::i32_to_payload", 4, 4, ints, |v, p| integer::i32_to_payload(v, p)),
        kernel!("integer::payload_to_i32", 4, 4, ints, |v, p| integer::payload_to_i32(p, v)),
        kernel!("integer::ordered_f32_to_payload", 4, 4, floats, |v, p| integer::ordered_f32_to_payload(v, p)),
        ("integer::i64_to_limbs", 4, |b, s| {
            Buffers::each(&mut b.payload, s, 4, |p, at| {
                integer::i64_to_limbs(&b.longs[at / 4..][..s.chunk / 4], p);
            })
        }),
        ("integer::limbs_to_i64", 4, |b, s| {
            Buffers::each(&mut b.payload, s, 4, |p, at| {
                integer::limbs_to_i64(p, &mut b.longs[at / 4..][..s.chunk / 4]);
            })
        }),
    ]
}

/// What ATP's workers, switches and servers do.
fn atp_kernels() -> Vec<Kernel> {
    vec![
        kernel!("static_fixed::quantize_f32", 4, 4, floats, |v, p| static_fixed::quantize_f32(v, p)),
        kernel!("static_fixed::quantize_bf16", 4, 4, narrow, |v, p| static_fixed::quantize_bf16(v, p)),
        kernel!("static_fixed::dequantize_f32", 4, 4, floats, |v, p| static_fixed::dequantize_f32(p, 1.0, v)),
        kernel!("static_fixed::dequantize_f32 /3", 4, 4, floats, |v, p| static_fixed::dequantize_f32(p, 3.0, v)),
        kernel!("static_fixed::dequantize_bf16", 4, 4, narrow, |v, p| static_fixed::dequantize_bf16(p, 1.0, v)),
        kernel!("static_fixed::add", 4, 4, ints, |v, p| static_fixed::add(p, v)),
        ("static_fixed::is_saturated", 4, |b, s| {
            b.ints.chunks(s.chunk).for_each(|v| {
                black_box(static_fixed::is_saturated(v));
            })
        }),
        kernel!("float_wire::write_f32", 4, 4, floats, |v, p| float_wire::write_f32(v, p)),
        kernel!("float_wire::read_f32 (from payload)", 4, 4, floats, |v, p| float_wire::read_f32(p, 1.0, v)),
    ]
}

/// The yardstick, cut into the same chunks and in the same direction.
fn memcpy(buffers: &mut Buffers, setting: &Setting, width: usize, from_payload: bool) {
    let copy = &mut buffers.copy;
    Buffers::each(&mut buffers.payload, setting, width, |payload, at| {
        let tensor = &mut copy[width * at..][..width * setting.chunk];
        if from_payload { tensor.copy_from_slice(payload) } else { payload.copy_from_slice(tensor) }
    });
}

/// One line of the table: kernel GB/s, memcpy GB/s, share.
fn measure(buffers: &mut Buffers, setting: &Setting, (name, operand_bytes, kernel): &Kernel) {
    let bytes = operand_bytes * setting.element_count;
    // A worker's answer and the switch's sums go from the payload, so the copy does too.
    let from_payload = ["dequantize", "overwrite", "add", "max", "payload_to", "from payload", "limbs_to"]
        .iter()
        .any(|part| name.contains(part));
    let passes = (SAMPLE_BYTES / bytes).max(1);
    kernel(buffers, setting);
    let mut speeds = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // Twice each, interleaved, so that a change of the machine within the round meets both.
        let mut seconds = (0.0, 0.0);
        for _ in 0..2 {
            seconds.0 += time(passes, || memcpy(black_box(buffers), setting, *operand_bytes, from_payload));
            seconds.1 += time(passes, || kernel(black_box(buffers), setting));
        }
        speeds.0.push(2e-9 * bytes as f64 / seconds.1);
        speeds.1.push(2e-9 * bytes as f64 / seconds.0);
        speeds.2.push(100.0 * seconds.0 / seconds.1);
    }
    println!("{name:34} {:8.1} {:8.1} {:7.0} %", median(speeds.0), median(speeds.1), median(speeds.2));
}

/// `--passes N KERNEL`: a fixed number of passes of one kernel over datagrams of 256 elements, for an instruction counter.
fn run_passes(passes: usize, name: &str) {
    let (setting, kernels) = (&SETTINGS[1], all_kernels());
    let (_, _, kernel) = kernels.iter().find(|(known, ..)| *known == name).expect("a kernel of the table");
    let mut buffers = Buffers::new(setting);
    for _ in 0..passes {
        kernel(black_box(&mut buffers), setting);
    }
    println!("{} packets a pass", setting.element_count / setting.chunk);
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some([_, passes, name, ..]) =
        arguments.iter().position(|argument| argument == "--passes").map(|at| &arguments[at..])
    {
        return run_passes(passes.parse().expect("a number of passes"), name);
    }
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Ok(level) = std::env::var("KERNEL_LEVEL") {
        limit_kernel_level(match level.as_str() {
            "scalar" => KernelLevel::Scalar,
            "avx2" => KernelLevel::Avx2,
            _ => KernelLevel::Avx512,
        });
    }
    println!("kernels: {:?}, {ROUNDS} rounds, medians, one thread", kernel_level());
    for setting in &SETTINGS {
        println!("\n{}\n{:34} {:>8} {:>8} {:>9}", setting.name, "kernel", "GB/s", "memcpy", "share");
        let mut buffers = Buffers::new(setting);
        for kernel in all_kernels() {
            if wanted.is_empty() || wanted.iter().any(|part| kernel.0.contains(part.as_str())) {
                measure(&mut buffers, setting, &kernel);
            }
        }
    }
}
