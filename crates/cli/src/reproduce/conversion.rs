//! FPISA's Figs. 6 and 10: what changing the byte order, and converting, costs a core of this machine.

use std::hint::black_box;
use std::ops::Range;

use anyhow::{Context, ensure};
use fanin_lab::atp::Options;
use fanin_lab::findings::{Findings, Row, Sheet};
use fanin_numeric::{block_fixed, float_wire};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::bench::statistics::median;

/// A pass repeats until it has moved about this much.
const SAMPLE_BYTES: usize = 64 << 20;
/// A power of two that fits the tensors' values.
const SCALE: f32 = 1_048_576.0;
/// Datagrams of a batch.
const PAYLOADS: usize = 64;

/// `experiments/fpisa/fig6.toml` and `fig10.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    line_gbps: f64,
    packet_elements: usize,
    cached_bytes: usize,
    large_bytes: usize,
    rounds: usize,
}

/// A tensor as each type of element; a kernel uses one of them.
struct Tensor {
    halves: Vec<u16>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
    bytes: Vec<u8>,
}

/// Work on one packet's part of a tensor, whose payload is `element_bytes` an element.
struct Kernel {
    name: &'static str,
    element_bytes: usize,
    call: fn(&mut Tensor, Range<usize>, &mut [u8]),
}

/// A kernel in one place: elements a second, the median of the rounds.
struct Rate {
    name: &'static str,
    place: &'static str,
    element_bytes: usize,
    per_second: f64,
}

impl Setting {
    fn read(built_in: &str, options: &Options) -> anyhow::Result<Setting> {
        let mut setting: Setting = toml::from_str(options.parameters.as_deref().unwrap_or(built_in))
            .context("these are not its parameters: begin with a copy of experiments/fpisa/fig6.toml or fig10.toml")?;
        ensure!(setting.packet_elements > 0 && setting.rounds > 0, "packet_elements and rounds must be 1 or more");
        let least = 8 * setting.packet_elements;
        ensure!(setting.cached_bytes.min(setting.large_bytes) >= least, "tensors must have {least} bytes at least");
        if options.is_quick {
            (setting.rounds, setting.large_bytes) = (3, setting.cached_bytes);
        }
        Ok(setting)
    }

    /// All kernels take turns in each round, in the cache and out of it.
    fn measure(&self, kernels: &[Kernel]) -> Vec<Rate> {
        let mut rates = Vec::new();
        for (place, bytes) in [("in the cache", self.cached_bytes), ("in memory", self.large_bytes)] {
            let mut tensor = Tensor::new(bytes);
            let mut samples = vec![Vec::new(); kernels.len()];
            for _ in 0..self.rounds {
                for (kernel, samples) in kernels.iter().zip(&mut samples) {
                    samples.push(self.elements_per_second(kernel, &mut tensor, bytes));
                }
            }
            rates.extend(kernels.iter().zip(&samples).map(|(kernel, samples)| Rate {
                name: kernel.name,
                place,
                element_bytes: kernel.element_bytes,
                per_second: median(samples),
            }));
        }
        rates
    }

    fn elements_per_second(&self, kernel: &Kernel, tensor: &mut Tensor, tensor_bytes: usize) -> f64 {
        let piece = self.packet_elements * kernel.element_bytes;
        // In turn, as in a batch of datagrams.
        let mut payloads = vec![0u8; PAYLOADS * piece];
        let (pieces, passes) = (tensor_bytes / piece, (SAMPLE_BYTES / tensor_bytes).max(1));
        let started_s = core_seconds();
        for _ in 0..passes {
            for index in 0..pieces {
                let at = index % PAYLOADS * piece;
                let first = index * self.packet_elements;
                (kernel.call)(black_box(tensor), first..first + self.packet_elements, &mut payloads[at..at + piece]);
            }
            black_box(&payloads);
        }
        (passes * pieces * self.packet_elements) as f64 / (core_seconds() - started_s)
    }

    /// Cores that carry the line's elements.
    fn cores(&self, rate: &Rate) -> f64 {
        self.line_gbps * 1e9 / (8 * rate.element_bytes) as f64 / rate.per_second
    }
}

impl Tensor {
    /// Small numbers.
    fn new(bytes: usize) -> Tensor {
        let value = |k: usize| (k % 1021) as f32 / 64.0;
        Tensor {
            halves: (0..bytes / 2).map(|k| 0x3c00 + (k % 512) as u16).collect(),
            floats: (0..bytes / 4).map(value).collect(),
            doubles: (0..bytes / 8).map(|k| value(k).into()).collect(),
            bytes: (0..bytes).map(|k| k as u8).collect(),
        }
    }
}

/// Changes the byte order of each element in a loop that the compiler makes vector instructions of.
macro_rules! swap {
    ($field:ident) => {
        |tensor, range, payload| {
            let words = payload.as_chunks_mut().0.iter_mut();
            tensor.$field[range].iter().zip(words).for_each(|(value, word)| *word = value.to_be_bytes());
        }
    };
}

/// The same one element at a time, as a call for each would: the compiler may not join them.
macro_rules! swap_singly {
    ($field:ident) => {
        |tensor, range, payload| {
            let words = payload.as_chunks_mut().0.iter_mut();
            tensor.$field[range].iter().zip(words).for_each(|(value, word)| *word = black_box(*value).to_be_bytes());
        }
    };
}

/// What fanin sends plain floats with.
fn fanins(tensor: &mut Tensor, range: Range<usize>, payload: &mut [u8]) {
    float_wire::write_f32(&tensor.floats[range], payload);
}

/// This thread's time on a core, which other processes do not lengthen.
fn core_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Fig. 6.
///
/// # Errors
/// Parameters that make no sense.
pub fn byte_order(options: &Options) -> anyhow::Result<Findings> {
    let setting = Setting::read(include_str!("../../../../experiments/fpisa/fig6.toml"), options)?;
    let kernels = [
        Kernel { name: "float16, vectors", element_bytes: 2, call: swap!(halves) },
        Kernel { name: "float32, vectors", element_bytes: 4, call: swap!(floats) },
        Kernel { name: "float32, fanin's kernel", element_bytes: 4, call: fanins },
        Kernel { name: "float64, vectors", element_bytes: 8, call: swap!(doubles) },
        Kernel { name: "float16, one at a time", element_bytes: 2, call: swap_singly!(halves) },
        Kernel { name: "float32, one at a time", element_bytes: 4, call: swap_singly!(floats) },
        Kernel { name: "float64, one at a time", element_bytes: 8, call: swap_singly!(doubles) },
    ];
    let rates = setting.measure(&kernels);
    let row = |rate: &Rate| {
        let cores = setting.cores(rate);
        let ours = format!(
            "{:.2} G elements/s of {:.2}: {cores:.2} cores",
            rate.per_second / 1e9,
            cores * rate.per_second / 1e9
        );
        let (paper, holds) = match rate.name.starts_with("float16") {
            true => ("11 cores at least (2.3 GHz, DPDK's calls)", cores > 10.0),
            false => ("the gap is large", cores > 1.0),
        };
        Row::new(format!("{}, {}", rate.name, rate.place), paper, ours, holds).because(
            "The paper's core has 2.3 GHz and calls DPDK's function; this machine's does more, one element at a time as well, and vector \
             instructions several times as much in the cache: a few cores, not eleven.",
        )
    };
    let rows = rates.iter().map(row).collect();
    let rule = "A row holds if the line takes more than 10 cores for float16 and more than one for the others.";
    Ok(findings("fig6", "Elements that a core changes in byte order (§4.1, Fig. 6)", rows, rule, &setting, &rates))
}

/// SwitchML's work on a packet, both ways: its exponent, to integers, and back.
fn switchml(tensor: &mut Tensor, range: Range<usize>, payload: &mut [u8]) {
    let values = &mut tensor.floats[range];
    black_box(block_fixed::exponent_f32(values));
    block_fixed::quantize_f32(values, SCALE, payload);
    block_fixed::dequantize_f32(black_box(payload), SCALE, 1.0, values);
}

/// FPISA's where hosts change the byte order on the way.
fn fpisa_swap(tensor: &mut Tensor, range: Range<usize>, payload: &mut [u8]) {
    let values = &mut tensor.floats[range];
    let words = payload.as_chunks_mut().0.iter_mut();
    values.iter().zip(words).for_each(|(value, word)| *word = value.to_be_bytes());
    let words = black_box(payload).as_chunks().0.iter();
    values.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_be_bytes(*word));
}

/// FPISA's where the switch does: a copy to a staging area, and one back (FPISA-A/CPU).
fn fpisa_copy(tensor: &mut Tensor, range: Range<usize>, payload: &mut [u8]) {
    let bytes = &mut tensor.bytes[4 * range.start..4 * range.end];
    payload.copy_from_slice(bytes);
    bytes.copy_from_slice(black_box(payload));
}

/// Fig. 10.
///
/// # Errors
/// Parameters that make no sense.
pub fn cores(options: &Options) -> anyhow::Result<Findings> {
    let setting = Setting::read(include_str!("../../../../experiments/fpisa/fig10.toml"), options)?;
    let kernels = [
        Kernel { name: "SwitchML: exponent, to integers, back", element_bytes: 4, call: switchml },
        Kernel { name: "FPISA, byte order at the host", element_bytes: 4, call: fpisa_swap },
        Kernel { name: "FPISA, byte order at the switch, copied", element_bytes: 4, call: fpisa_copy },
    ];
    let rates = setting.measure(&kernels);
    let papers = ["4 cores, packets included", "", "3 cores, packets included"];
    let mut rows = Vec::new();
    for (rate, paper) in rates.iter().zip(papers.into_iter().cycle()) {
        let base = rates.iter().find(|base| base.place == rate.place).map_or(f64::NAN, |base| base.per_second);
        let cores = setting.cores(rate);
        let ours = format!(
            "{:.1} GB each way per core-second, {cores:.2} cores, {:.2} of SwitchML's time",
            4e-9 * rate.per_second,
            base / rate.per_second
        );
        let is_less = rate.per_second >= base;
        let is_base = rate.name.starts_with("SwitchML");
        let remark = "Only the numbers' share: the paper's cores carry RDMA messages as well, and its SwitchML converts without AVX-512.";
        let row = Row::new(format!("{}, {}", rate.name, rate.place), paper, ours, is_less).because(remark);
        rows.push(if is_base { row.unjudged() } else { row });
    }
    rows.push(Row::new("FPISA, no copy", "1 core, packets included", "no work on numbers is left", true).unjudged());
    let rule = "A row of FPISA's that the paper has holds if it takes no more time than SwitchML's, as the paper's takes fewer cores.";
    Ok(findings("fig10", "What numbers cost a worker at line rate (§5.2.3, Fig. 10)", rows, rule, &setting, &rates))
}

fn findings(experiment: &str, title: &str, rows: Vec<Row>, rule: &str, setting: &Setting, rates: &[Rate]) -> Findings {
    let number = |(row, rate): (usize, &Rate)| vec![row as f64, rate.per_second / 1e9, setting.cores(rate)];
    let level = fanin_numeric::kernel_level();
    Findings {
        experiment: experiment.into(),
        title: title.into(),
        place: format!(
            "time of one thread on a core, kernels of {level:?}, medians of {} interleaved rounds",
            setting.rounds
        ),
        rows,
        notes: vec![
            format!(
                "Packets of {} elements; the line carries {} Gbit/s of elements. \"In the cache\": a tensor of {} KiB; \"in memory\": one of {} MiB.",
                setting.packet_elements,
                setting.line_gbps,
                setting.cached_bytes >> 10,
                setting.large_bytes >> 20
            ),
            rule.into(),
        ],
        sheets: vec![Sheet {
            name: "rates".into(),
            columns: ["row", "10^9 elements a second", "cores for the line"].map(String::from).into(),
            rows: rates.iter().enumerate().map(number).collect(),
        }],
        plots: Vec::new(),
        hops: 0,
    }
}
