//! `fanin bench convert`: floats to the wire and back, as a share of memcpy.

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use fanin_numeric::{block_fixed, half_wire};
use serde::Serialize;
use serde_json::json;

use super::output::{Findings, OutputArguments, percent, table};
use super::plot::{Figure, Series, Shape};
use super::process::check_interrupted;
use super::statistics::median;
use super::units::{parse_bytes, show_bytes};

const ABOUT: &str = "Each conversion takes turns with a memcpy of the same number of bytes between the same buffers, in the same \
pieces, in the same direction. \"of memcpy\": memcpy's time over the conversion's, the median over the rounds, lowest and highest \
in brackets. L2: tensor and payload together stay in the second-level cache, and memcpy moves the bytes of the larger of the \
two. DRAM: a tensor of --dram-size goes through a ring of payloads that stay in the cache, as a worker's do, and memcpy moves \
the bytes of the tensor, which is what costs. \
aligned: tensors and payloads at whole cache lines. unaligned: the tensor 4 bytes behind one (2 for 16-bit floats), payloads 40 \
bytes behind one, as behind a header. length: elements of one call; odd ones are no multiple of any vector.";

/// A pass repeats until it has moved about this much, to be long beside the clock's own cost.
const SAMPLE_BYTES: usize = 16 << 20;
const L2_ELEMENTS: usize = 32 << 10;
const LINE_BYTES: usize = 64;
const HEADER_BYTES: usize = 40;
/// Payloads of the DRAM case, used in turn.
const RING: usize = 64;
const SCALE: f32 = 1_048_576.0;

/// Flags of `fanin bench convert`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    /// Elements of one call.
    #[arg(long, default_value = "256,2048,2047,37", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16384))]
    lengths: Vec<u32>,
    /// Tensor that does not fit into any cache.
    #[arg(long, default_value = "256MiB", value_name = "BYTES", value_parser = parse_bytes)]
    dram_size: u64,
    /// Rounds; in each, conversion and memcpy take turns.
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    #[command(flatten)]
    pub output: OutputArguments,
}

/// One conversion in one place.
#[derive(Debug, Serialize)]
struct Case {
    kernel: &'static str,
    /// "L2" or "DRAM".
    place: &'static str,
    aligned: bool,
    length: usize,
    gb_per_s: f64,
    memcpy_gb_per_s: f64,
    share_of_memcpy: f64,
    share_min: f64,
    share_max: f64,
    /// Elements that did not come back as they went.
    wrong_elements: u64,
}

/// A conversion of a block of the tensor to or from a payload.
struct Kernel {
    name: &'static str,
    element_bytes: usize,
    wire_bytes: usize,
    to_wire: bool,
    call: fn(&mut Tensor, std::ops::Range<usize>, &mut [u8]),
}

/// One memory, seen as the kernel's elements.
enum Tensor {
    Wide(Vec<f32>),
    Narrow(Vec<u16>),
}

macro_rules! kernel {
    ($name:literal, $view:ident, $bytes:literal, $wire:literal, to, |$values:ident, $payload:ident| $call:expr) => {
        Kernel {
            name: $name,
            element_bytes: $bytes,
            wire_bytes: $wire,
            to_wire: true,
            call: |tensor, range, $payload| {
                let Tensor::$view(tensor) = tensor else { unreachable!("tensors are made for their kernel") };
                let $values = &tensor[range];
                $call;
            },
        }
    };
    ($name:literal, $view:ident, $bytes:literal, $wire:literal, from, |$values:ident, $payload:ident| $call:expr) => {
        Kernel {
            name: $name,
            element_bytes: $bytes,
            wire_bytes: $wire,
            to_wire: false,
            call: |tensor, range, $payload| {
                let Tensor::$view(tensor) = tensor else { unreachable!("tensors are made for their kernel") };
                let $values = &mut tensor[range];
                $call;
            },
        }
    };
}

/// Each conversion to the wire, followed by the way back.
fn kernels() -> [Kernel; 12] {
    use {block_fixed as fixed, half_wire as half};
    [
        kernel!("float32 to int32", Wide, 4, 4, to, |v, p| fixed::quantize_f32(v, SCALE, p)),
        kernel!("int32 to float32", Wide, 4, 4, from, |v, p| fixed::dequantize_f32(p, SCALE, 1.0, v)),
        kernel!("float16 to int32", Narrow, 2, 4, to, |v, p| fixed::quantize_f16(v, SCALE, p)),
        kernel!("int32 to float16", Narrow, 2, 4, from, |v, p| fixed::dequantize_f16(p, SCALE, 1.0, v)),
        kernel!("bfloat16 to int32", Narrow, 2, 4, to, |v, p| fixed::quantize_bf16(v, SCALE, p)),
        kernel!("int32 to bfloat16", Narrow, 2, 4, from, |v, p| fixed::dequantize_bf16(p, SCALE, 1.0, v)),
        kernel!("float32 to half", Wide, 4, 2, to, |v, p| half::quantize_f32(v, 1.0, p)),
        kernel!("half to float32", Wide, 4, 2, from, |v, p| half::dequantize_f32(p, 1.0, 1.0, v)),
        kernel!("float16 to half", Narrow, 2, 2, to, |v, p| half::quantize_f16(v, 1.0, p)),
        kernel!("half to float16", Narrow, 2, 2, from, |v, p| half::dequantize_f16(p, 1.0, 1.0, v)),
        kernel!("bfloat16 to half", Narrow, 2, 2, to, |v, p| half::quantize_bf16(v, 1.0, p)),
        kernel!("half to bfloat16", Narrow, 2, 2, from, |v, p| half::dequantize_bf16(p, 1.0, 1.0, v)),
    ]
}

/// Measures.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Findings> {
    let mut cases = Vec::new();
    for (place, elements) in [("L2", L2_ELEMENTS), ("DRAM", (arguments.dram_size / 4) as usize)] {
        for pair in kernels().chunks(2) {
            for aligned in [true, false] {
                let mut bench = Bench::new(&pair[0], place == "L2", elements, aligned);
                for &length in &arguments.lengths {
                    check_interrupted()?;
                    let wrong_elements = bench.count_wrong(pair, length as usize);
                    for kernel in pair {
                        let case = bench.measure(kernel, place, length as usize, arguments.rounds);
                        cases.push(Case { wrong_elements, ..case });
                    }
                }
            }
        }
        eprintln!("{place}: done");
    }
    let mut table = table(
        &["conversion", "place", "aligned", "length", "GB/s", "memcpy GB/s", "of memcpy", "(low - high)", "wrong"],
        3,
    );
    for case in &cases {
        table.add_row(cells(case));
    }
    Ok(Findings {
        setting: json!({ "rounds": arguments.rounds, "dram_bytes": arguments.dram_size }),
        baselines: Vec::new(),
        table,
        caption: vec![format!(
            "one thread, medians of {} interleaved rounds, DRAM: {}",
            arguments.rounds,
            show_bytes(arguments.dram_size)
        )],
        figure: figure(&cases),
        wrong_elements: cases.iter().map(|case| case.wrong_elements).sum(),
        cases: json!(cases),
    })
}

fn cells(case: &Case) -> Vec<String> {
    vec![
        case.kernel.into(),
        case.place.into(),
        if case.aligned { "yes" } else { "no" }.into(),
        case.length.to_string(),
        format!("{:.1}", case.gb_per_s),
        format!("{:.1}", case.memcpy_gb_per_s),
        percent(case.share_of_memcpy),
        format!("{:.0} - {:.0} %", 100.0 * case.share_min, 100.0 * case.share_max),
        case.wrong_elements.to_string(),
    ]
}

/// One bar per conversion and place: the worst of its lengths and alignments.
fn figure(cases: &[Case]) -> Figure {
    let names: Vec<_> = kernels().iter().map(|kernel| kernel.name).collect();
    let worst = |place: &str| {
        let of = |name: &str| {
            let shares = cases.iter().filter(|case| case.kernel == name && case.place == place);
            shares.map(|case| 100.0 * case.share_of_memcpy).fold(f64::MAX, f64::min)
        };
        names.iter().enumerate().map(|(index, name)| (index as f64, of(name))).collect()
    };
    let series = |place: &str| Series { name: format!("{place}, slowest length and alignment"), points: worst(place) };
    Figure {
        title: "Conversions, one thread: share of memcpy".into(),
        x_label: String::new(),
        y_label: "percent".into(),
        shape: Shape::Bars { groups: names.iter().map(|name| abbreviated(name)).collect() },
        series: vec![series("L2"), series("DRAM")],
    }
}

/// "f32→i32", so that twelve of them fit below the bars.
fn abbreviated(name: &str) -> String {
    name.replace("float", "f").replace("int", "i").replace(" to ", "→")
}

/// Buffers for one pair of conversions.
struct Bench {
    tensor: Tensor,
    first: usize,
    elements: usize,
    payload: Vec<u8>,
    /// Bytes before each payload, the first one's start included.
    gap: usize,
    start: usize,
    in_cache: bool,
    /// memcpy's tensor, as large as the kernel's.
    copy: Vec<u8>,
}

impl Bench {
    fn new(kernel: &Kernel, in_cache: bool, elements: usize, aligned: bool) -> Bench {
        // Room to begin at any offset from a cache line.
        let padded = elements + LINE_BYTES;
        let (tensor, address) = match kernel.element_bytes {
            4 => {
                let values: Vec<f32> = (0..padded).map(|k| (k % 1021) as f32 / 64.0).collect();
                let address = values.as_ptr() as usize;
                (Tensor::Wide(values), address)
            }
            _ => {
                // Bits of small positive numbers, both as float16 and as bfloat16.
                let values: Vec<u16> = (0..padded).map(|k| 0x3c00 + (k % 512) as u16).collect();
                let address = values.as_ptr() as usize;
                (Tensor::Narrow(values), address)
            }
        };
        let payload = vec![0u8; RING * (4 * 16_384 + LINE_BYTES) + 2 * LINE_BYTES];
        let to_line = |address: usize| address.next_multiple_of(LINE_BYTES) - address;
        let first = to_line(address) / kernel.element_bytes + usize::from(!aligned);
        let start = to_line(payload.as_ptr() as usize);
        let gap = if aligned { 0 } else { HEADER_BYTES };
        let copy = vec![3u8; elements * kernel.element_bytes.max(kernel.wire_bytes)];
        Bench { tensor, first, elements, payload, gap, start, in_cache, copy }
    }

    /// Calls `call(first element of a piece, its payload)` for every piece of the tensor.
    fn pieces(
        &mut self,
        wire_bytes: usize,
        length: usize,
        mut call: impl FnMut(&mut Tensor, &mut [u8], std::ops::Range<usize>, &mut [u8]),
    ) {
        let length = length.min(self.elements);
        let stride = (self.gap + wire_bytes * length).next_multiple_of(LINE_BYTES);
        // In the cache, every piece has a payload of its own; as many as fit in half of the tensor's space.
        let ring = if self.in_cache {
            (self.elements * 4 / stride).clamp(1, (self.payload.len() - LINE_BYTES) / stride)
        } else {
            RING
        };
        for index in 0..self.elements / length {
            let at = self.start + index % ring * stride + self.gap;
            let piece = &mut self.payload[at..at + wire_bytes * length];
            call(&mut self.tensor, &mut self.copy, index * length..(index + 1) * length, piece);
        }
    }

    fn convert(&mut self, kernel: &Kernel, length: usize) {
        let first = self.first;
        self.pieces(kernel.wire_bytes, length, |tensor, _, range, payload| {
            (kernel.call)(tensor, first + range.start..first + range.end, payload);
        });
    }

    /// Bytes per element of the yardstick: of the larger operand, or of the one that is not in the cache.
    fn yardstick_bytes(&self, kernel: &Kernel) -> usize {
        if self.in_cache { kernel.element_bytes.max(kernel.wire_bytes) } else { kernel.element_bytes }
    }

    /// In the same pieces and the same direction.
    fn memcpy(&mut self, kernel: &Kernel, length: usize) {
        let bytes = self.yardstick_bytes(kernel);
        self.pieces(bytes, length, |_, copy, range, payload| {
            let part = &mut copy[bytes * range.start..bytes * range.end];
            if kernel.to_wire { payload.copy_from_slice(part) } else { part.copy_from_slice(payload) }
        });
    }

    fn measure(&mut self, kernel: &Kernel, place: &'static str, length: usize, rounds: u32) -> Case {
        let bytes = self.elements / length * length * self.yardstick_bytes(kernel);
        let passes = SAMPLE_BYTES.div_ceil(bytes);
        self.convert(kernel, length);
        self.memcpy(kernel, length);
        let (mut shares, mut speeds, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            // Twice each, interleaved, so that a change of the machine within the round meets both.
            let (mut kernel_s, mut copy_s) = (0.0, 0.0);
            for _ in 0..2 {
                copy_s += seconds(passes, || self.memcpy(kernel, length));
                kernel_s += seconds(passes, || self.convert(kernel, length));
            }
            let moved = (2 * passes * bytes) as f64 / 1e9;
            shares.push(copy_s / kernel_s);
            speeds.push(moved / kernel_s);
            copies.push(moved / copy_s);
        }
        Case {
            kernel: kernel.name,
            place,
            aligned: self.gap == 0,
            length,
            gb_per_s: median(&speeds),
            memcpy_gb_per_s: median(&copies),
            share_of_memcpy: median(&shares),
            share_min: shares.iter().copied().fold(f64::MAX, f64::min),
            share_max: shares.iter().copied().fold(0.0, f64::max),
            wrong_elements: 0,
        }
    }

    /// Elements of the first block that do not survive the way to the wire and back: all of these numbers are exact.
    fn count_wrong(&mut self, pair: &[Kernel], length: usize) -> u64 {
        let length = length.min(self.elements);
        let range = self.first..self.first + length;
        let before = self.tensor.bits(range.clone());
        let mut payload = vec![0; length * pair[0].wire_bytes];
        (pair[0].call)(&mut self.tensor, range.clone(), &mut payload);
        self.tensor.clear(range.clone());
        (pair[1].call)(&mut self.tensor, range.clone(), &mut payload);
        let after = self.tensor.bits(range);
        before.iter().zip(&after).filter(|(before, after)| before != after).count() as u64
    }
}

impl Tensor {
    fn bits(&self, range: std::ops::Range<usize>) -> Vec<u32> {
        match self {
            Tensor::Wide(values) => values[range].iter().map(|value| value.to_bits()).collect(),
            Tensor::Narrow(values) => values[range].iter().map(|value| u32::from(*value)).collect(),
        }
    }

    fn clear(&mut self, range: std::ops::Range<usize>) {
        match self {
            Tensor::Wide(values) => values[range].fill(0.0),
            Tensor::Narrow(values) => values[range].fill(0),
        }
    }
}

fn seconds(passes: usize, mut pass: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..passes {
        black_box(&mut pass)();
    }
    started.elapsed().as_secs_f64()
}
