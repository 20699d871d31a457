//! What was aimed at, and what was measured of it.

use serde_json::Value;

use super::document::{Document, REGISTERED_MEMORY, SHARED_MEMORY, UDP, Wanted, baseline, fanin, ratio};
use crate::bench::units::show_bytes;

const MIB: u64 = 1 << 20;
const MBIT: u64 = 1_000_000;

/// One aim.
pub struct Goal {
    pub what: &'static str,
    /// What a throw-away program without loss recovery, checks and headers reached.
    pub prototype: &'static str,
    pub goal: &'static str,
    /// What the machine allows at most.
    pub limit: &'static str,
    pub measure: fn(&[Document]) -> Vec<Measured>,
}

/// One number that a goal asks for.
#[derive(Debug, PartialEq)]
pub struct Measured {
    pub label: String,
    /// With its unit.
    pub value: String,
    pub met: bool,
    /// The file it is from.
    pub source: String,
}

impl Measured {
    fn at_least(
        document: &Document,
        label: impl Into<String>,
        value: f64,
        least: f64,
        show: fn(f64) -> String,
    ) -> Self {
        Measured { label: label.into(), value: show(value), met: value >= least, source: document.name.clone() }
    }

    fn at_most(document: &Document, label: impl Into<String>, value: f64, most: f64, show: fn(f64) -> String) -> Self {
        Measured { label: label.into(), value: show(value), met: value <= most, source: document.name.clone() }
    }
}

/// All of them.
pub const GOALS: &[Goal] = &[
    Goal {
        what: "switch program, 4 ranks, 1 KiB payload: share of an in-cache memory copy, per core",
        prototype: "45 %",
        goal: "≥ 65 %",
        limit: "~80 %",
        measure: |documents| switch_core(documents, 1024, 0.65),
    },
    Goal {
        what: "the same, 8 KiB",
        prototype: "65 %",
        goal: "≥ 75 %",
        limit: "~80 %",
        measure: |documents| switch_core(documents, 8192, 0.75),
    },
    Goal {
        what: "float32 to the wire and back: share of a memory copy, the least of all lengths and alignments",
        prototype: "85–95 %",
        goal: "≥ 85 %",
        limit: "100 %",
        measure: conversions,
    },
    Goal {
        what: "all-reduce through shared memory, 64 MiB, 4 ranks: the others' time over fanin's, gloo / Open MPI shm",
        prototype: "4.1× / 3.2×",
        goal: "≥ 5× / 3.5×",
        limit: "–",
        measure: |documents| {
            let wanted = [("gloo", 5.0), ("Open MPI shm", 3.5)];
            wanted.iter().filter_map(|(name, least)| host_gain(documents, SHARED_MEMORY, 4, name, *least)).collect()
        },
    },
    Goal {
        what: "the same with tensors in registered memory, 4 and 8 ranks",
        prototype: "12× / 9×",
        goal: "≥ 10× / 7×",
        limit: "memory",
        measure: |documents| {
            let wanted = [(4, "gloo", 10.0), (4, "Open MPI shm", 7.0), (8, "gloo", 10.0), (8, "Open MPI shm", 7.0)];
            let gain = |(ranks, name, least)| host_gain(documents, REGISTERED_MEMORY, ranks, name, least);
            wanted.into_iter().filter_map(gain).collect()
        },
    },
    Goal {
        what: "all-reduce over UDP on loopback, 64 MiB: gloo's time over fanin's, 4 / 8 ranks",
        prototype: "1.9× / 2.2×",
        goal: "≥ 2× / 2.2×",
        limit: "~3×",
        measure: |documents| {
            [(4, 2.0), (8, 2.2)].iter().filter_map(|(ranks, least)| loopback_gain(documents, *ranks, *least)).collect()
        },
    },
    Goal {
        what: "shaped links, 64 MiB: share of the wire bound at 4 and 8 × 500 Mbit/s; 4 × 1 Gbit/s; 8 × 1 Gbit/s",
        prototype: "97–100 %; 93–98 %; 83–98 %",
        goal: "≥ 98 %; 97 %; 95 %",
        limit: "100 %",
        measure: |documents| {
            let wanted = [(4, 500, 0.98), (8, 500, 0.98), (4, 1000, 0.97), (8, 1000, 0.95)];
            wanted.iter().filter_map(|(ranks, mbit, least)| wire_share(documents, *ranks, *mbit, *least)).collect()
        },
    },
    Goal {
        what: "shaped links, 64 MiB of float32 at 500 Mbit/s: gloo's time over fanin's, 4 / 8 ranks",
        prototype: "1.5× / 1.75×",
        goal: "≥ 1.48× / 1.72×",
        limit: "1.55× / 1.85×",
        measure: |documents| {
            let wanted = [(4, 1.48), (8, 1.72)];
            wanted.iter().filter_map(|(ranks, least)| net_gain(documents, *ranks, 500, 64, "int32", *least)).collect()
        },
    },
    Goal {
        what: "the same with 16-bit / 8-bit values on the wire, 8 ranks",
        prototype: "–",
        goal: "≥ 3.3× / 6×",
        limit: "3.6× / 7.2×",
        measure: |documents| {
            let wanted = [("float16", 3.3), ("bfloat16", 3.3), ("int8", 6.0)];
            wanted.iter().filter_map(|(format, least)| net_gain(documents, 8, 500, 64, format, *least)).collect()
        },
    },
    Goal {
        what: "shaped links, 1 MiB: gloo's time over fanin's, 4 × 1 Gbit/s and 8 × 500 Mbit/s",
        prototype: "1.8× / 1.6×",
        goal: "≥ 1.8×",
        limit: "~1.9×",
        measure: |documents| {
            let wanted = [(4, 1000), (8, 500)];
            wanted.iter().filter_map(|(ranks, mbit)| net_gain(documents, *ranks, *mbit, 1, "int32", 1.8)).collect()
        },
    },
    Goal {
        what: "0.1 % / 1 % of datagrams lost, 4 × 500 Mbit/s, 64 MiB: time against no loss, every bit checked",
        prototype: "–",
        goal: "≤ 1.01× / 1.05×",
        limit: "1.001× / 1.01×",
        measure: losses,
    },
    Goal {
        what: "small all-reduce on one host, 4 ranks, 4 KiB / 64 KiB: median over UDP; through shared memory",
        prototype: "60 / 120 µs",
        goal: "≤ 60 / 120 µs; ≤ 25 / 30 µs",
        limit: "~13 µs over UDP",
        measure: |documents| {
            let udp = [(4 << 10, UDP, 60e3), (64 << 10, UDP, 120e3)];
            let shared = [(4 << 10, SHARED_MEMORY, 25e3), (64 << 10, SHARED_MEMORY, 30e3)];
            let wanted = udp.into_iter().chain(shared);
            wanted.filter_map(|(bytes, transport, most)| small(documents, bytes, transport, most)).collect()
        },
    },
    Goal {
        what: "daemon, 1 KiB datagrams in and out per second of one core's time, unicast / multicast result",
        prototype: "3.9 / 7.0 M/s",
        goal: "≥ 5 / 8 M/s",
        limit: "6.6 / 12 M/s",
        measure: daemon,
    },
    Goal {
        what: "XDP switch with duplicate check, parity and write-back, 256 elements: share of an empty XDP program's rate",
        prototype: "52 %",
        goal: "≥ 50 %",
        limit: "–",
        measure: xdp,
    },
    Goal {
        what: "DDP step of a transformer: share of the communication hidden behind backward, against gloo",
        prototype: "–",
        goal: "no less at 2 ranks, more from 4",
        limit: "–",
        measure: ddp,
    },
];

fn share(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn times(value: f64) -> String {
    format!("{value:.2}×")
}

fn microseconds(ns: f64) -> String {
    format!("{:.0} µs", ns / 1e3)
}

fn of<'a>(documents: &'a [Document], benchmark: &str) -> impl Iterator<Item = &'a Document> {
    documents.iter().filter(move |document| document.benchmark() == benchmark)
}

fn switch_core(documents: &[Document], payload_bytes: u64, least: f64) -> Vec<Measured> {
    let mut measured = Vec::new();
    for document in of(documents, "switch") {
        for case in document.cases(Some("core")).iter().filter(|case| case["payload_bytes"] == payload_bytes) {
            let kinds = [("", "share_of_memcpy"), ("less the header's and checksum's time", "share_without_checks")];
            for (label, key) in kinds {
                let value = case[key].as_f64();
                measured.extend(value.map(|value| Measured::at_least(document, label, value, least, share)));
            }
        }
    }
    measured
}

fn conversions(documents: &[Document]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for document in of(documents, "convert") {
        for place in ["L2", "DRAM"] {
            for kernel in ["float32 to int32", "int32 to float32"] {
                let cases = document.cases(None).iter();
                let cases = cases.filter(|case| case["kernel"] == kernel && case["place"] == place);
                let least = cases.filter_map(|case| case["share_of_memcpy"].as_f64()).reduce(f64::min);
                let label = format!("{kernel}, {place}");
                measured.extend(least.map(|least| Measured::at_least(document, label, least, 0.85, share)));
            }
        }
    }
    measured
}

fn loopback_gain(documents: &[Document], ranks: u64, least: f64) -> Option<Measured> {
    let wanted = Wanted { benchmarks: &["allreduce"], ranks, size_bytes: 64 * MIB, rate_bps: None };
    let (document, case) = wanted.find(documents)?;
    let gain = ratio(baseline(case, "gloo")?, fanin(case, UDP, "int32")?)?;
    Some(Measured::at_least(document, format!("{ranks} ranks"), gain, least, times))
}

fn host_gain(documents: &[Document], transport: &str, ranks: u64, name: &str, least: f64) -> Option<Measured> {
    let wanted = Wanted { benchmarks: &["allreduce"], ranks, size_bytes: 64 * MIB, rate_bps: None };
    let (document, case) = wanted.find(documents)?;
    let gain = ratio(baseline(case, name)?, fanin(case, transport, "int32")?)?;
    Some(Measured::at_least(document, format!("{ranks} ranks, {name}"), gain, least, times))
}

fn wire_share(documents: &[Document], ranks: u64, mbit: u64, least: f64) -> Option<Measured> {
    let (document, case) = net_case(documents, ranks, mbit, 64)?;
    let value = fanin(case, UDP, "int32")?["share_of_bound"].as_f64()?;
    Some(Measured::at_least(document, format!("{ranks} × {mbit} Mbit/s"), value, least, share))
}

fn net_gain(
    documents: &[Document],
    ranks: u64,
    mbit: u64,
    size_mib: u64,
    format: &str,
    least: f64,
) -> Option<Measured> {
    let (document, case) = net_case(documents, ranks, mbit, size_mib)?;
    let gain = ratio(baseline(case, "gloo")?, fanin(case, UDP, format)?)?;
    Some(Measured::at_least(document, format!("{ranks} × {mbit} Mbit/s, {format}"), gain, least, times))
}

fn net_case(documents: &[Document], ranks: u64, mbit: u64, size_mib: u64) -> Option<(&Document, &Value)> {
    let rate_bps = Some(mbit * MBIT);
    Wanted { benchmarks: &["net", "allreduce"], ranks, size_bytes: size_mib * MIB, rate_bps }.find(documents)
}

fn losses(documents: &[Document]) -> Vec<Measured> {
    let wanted = Wanted { benchmarks: &["loss"], ranks: 4, size_bytes: 64 * MIB, rate_bps: Some(500 * MBIT) };
    let Some((document, case)) = wanted.find(documents) else { return Vec::new() };
    let of_loss = |(loss, most): &(f64, f64)| {
        let all = case["series"].as_array()?;
        let series = all.iter().find(|series| series["fanin"]["loss"] == *loss)?;
        let label = format!("{} % lost, {} elements wrong", 100.0 * loss, series["wrong_elements"]);
        Some(Measured::at_most(document, label, series["ratio_to_first"].as_f64()?, *most, times))
    };
    [(0.001, 1.01), (0.01, 1.05)].iter().filter_map(of_loss).collect()
}

fn small(documents: &[Document], size_bytes: u64, transport: &str, most_ns: f64) -> Option<Measured> {
    let wanted = Wanted { benchmarks: &["small"], ranks: 4, size_bytes, rate_bps: None };
    let (document, case) = wanted.find(documents)?;
    let value = fanin(case, transport, "int32")?["times"]["p50_ns"].as_f64()?;
    let peer = baseline(case, "Open MPI shm").and_then(|series| series["times"]["p50_ns"].as_f64());
    let beside = peer.map_or(String::new(), |ns| format!(" (Open MPI shm {})", microseconds(ns)));
    Some(Measured::at_most(
        document,
        format!("{}, {transport}{beside}", show_bytes(size_bytes)),
        value,
        most_ns,
        microseconds,
    ))
}

fn daemon(documents: &[Document]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for document in of(documents, "switch") {
        for case in document.cases(Some("daemon")).iter().filter(|case| case["payload_bytes"] == 1024) {
            let result = case["result"].as_str().unwrap_or_default();
            let least = if result == "multicast" { 8.0 } else { 5.0 };
            let rate = case["packets_per_cpu_us"].as_f64();
            let show = |rate| format!("{rate:.2} M/s");
            measured.extend(rate.map(|rate| Measured::at_least(document, result, rate, least, show)));
        }
    }
    measured
}

fn xdp(documents: &[Document]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for document in of(documents, "xdp").filter(|document| document.value["setting"]["elements"] == 256) {
        let wanted = [
            ("sum", "the program alone"),
            ("sum, CRC-32C", "with checksum"),
            ("sum, sent", "with the copies that the kernel sends"),
        ];
        for (program, label) in wanted {
            let case = document.cases(None).iter().find(|case| case["program"] == program);
            let value = case.and_then(|case| case["share_of_empty"].as_f64());
            measured.extend(value.map(|value| Measured::at_least(document, label, value, 0.5, share)));
        }
    }
    measured
}

fn ddp(documents: &[Document]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for document in of(documents, "ddp") {
        for case in document.cases(None) {
            let hidden = |index: usize| case["series"][index]["hidden_share"].as_f64();
            let (Some(ours), Some(theirs)) = (hidden(0), hidden(1)) else { continue };
            let label = format!("{} ranks (gloo {})", case["ranks"], share(theirs));
            measured.push(Measured::at_least(document, label, ours, theirs, share));
        }
    }
    measured
}
