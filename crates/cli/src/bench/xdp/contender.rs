//! What is measured: a program, its traffic, and what came of it.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, bail};
use fanin_protocol::DropReason;
use fanin_protocol::switchml::{JobConfig, WireFormat};
use fanin_wire::generated::HEADER_BYTES;
use fanin_xdp::{Empty, EmptyProgram, KernelSwitch, Settings, Stream, Traffic};
use serde::Serialize;

use super::Arguments;
use super::place::Place;
use crate::bench::statistics::median;

/// No socket listens there: the networks are the benchmark's own.
const PORT: u16 = 50_100;
const ATTEMPTS: u32 = 8;
/// Ethernet, IPv4 and UDP.
const HEADERS_BYTES: u64 = 14 + 20 + 8;

/// What a program does with the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Drop,
    Transmit,
    Duplicates,
    Sum,
    ChecksummedSum,
    SentSum,
    SentChecksummedSum,
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Case {
    pub program: &'static str,
    /// Frames that the program saw per microsecond, median of the rounds.
    pub packets_per_us: f64,
    /// Of frames without preamble and frame check sequence.
    pub gbit_per_s: f64,
    /// Of the rate of the empty program that drops, in the same rounds: median, least, most.
    pub share_of_empty: f64,
    pub share_min: f64,
    pub share_max: f64,
    pub rounds: Vec<f64>,
    /// Measurements that were taken again, since a frame got lost or overtook too many others.
    pub repeated: u32,
}

/// A program at work.
pub struct Contender {
    pub kind: Kind,
    pub rates: Vec<f64>,
    place: Rc<Place>,
    program: Program,
    traffic: Traffic,
    stream: Stream,
    /// Measurements that had to be taken again.
    repeated: u32,
}

enum Program {
    Empty { _attached: EmptyProgram },
    Switch(Rc<RefCell<KernelSwitch>>),
}

/// Everything that takes part. The switch program's kinds share a network: each is a job.
pub fn all(arguments: &Arguments) -> anyhow::Result<Vec<Contender>> {
    let mut contenders = vec![empty(Kind::Drop, arguments)?, empty(Kind::Transmit, arguments)?];
    contenders.extend(switch(&[Kind::Duplicates, Kind::Sum, Kind::ChecksummedSum], false, arguments)?);
    contenders.extend(switch(&[Kind::SentSum, Kind::SentChecksummedSum], true, arguments)?);
    Ok(contenders)
}

/// The switch program's jobs of one network.
fn switch(kinds: &[Kind], is_sent: bool, arguments: &Arguments) -> anyhow::Result<Vec<Contender>> {
    let place = Rc::new(Place::build(arguments.ranks)?);
    let slot_count = kinds.len() as u32 * arguments.slots;
    let settings = Settings { port_first: PORT, port_count: 1, own_address: None, slot_count };
    let mut kernel = KernelSwitch::load_for_interfaces(&settings, arguments.ranks.into())?;
    let attach = |interface: &str| match is_sent {
        true => kernel.attach(interface),
        false => kernel.attach_input(interface).map(drop),
    };
    place.attach(attach)?;
    let kernel = Rc::new(RefCell::new(kernel));
    let contender = |(job_id, &kind)| {
        let program = Program::Switch(kernel.clone());
        Contender::new(kind, place.clone(), program, stream(kind, job_id, arguments))
    };
    (1..).zip(kinds).map(contender).collect()
}

fn empty(kind: Kind, arguments: &Arguments) -> anyhow::Result<Contender> {
    let place = Place::build(arguments.ranks)?;
    let mut program = EmptyProgram::load(if kind == Kind::Drop { Empty::Drop } else { Empty::SendBack })?;
    place.attach(|interface| program.attach(interface))?;
    Contender::new(kind, place.into(), Program::Empty { _attached: program }, stream(kind, 1, arguments))
}

fn stream(kind: Kind, job_id: u32, arguments: &Arguments) -> Stream {
    let is_repeated = kind == Kind::Duplicates;
    let has_checksum = matches!(kind, Kind::ChecksummedSum | Kind::SentChecksummedSum);
    Stream {
        config: JobConfig {
            job_id,
            job_token: 7,
            // One that never contributes keeps the chunk open.
            worker_count: arguments.ranks + u16::from(is_repeated),
            lane_count: 1,
            slots_per_lane: arguments.slots,
            element_count_max: arguments.elements,
            wire_format: WireFormat::Fanin,
            has_checksum,
            accumulator: fanin_wire::Accumulator::BlockFixed,
        },
        rank_count: arguments.ranks,
        element_count: arguments.elements,
        port: PORT,
        has_checksum,
        is_repeated,
    }
}

/// From Ethernet's header to the last element.
pub fn frame_bytes(elements: u16) -> u64 {
    HEADERS_BYTES + HEADER_BYTES as u64 + 4 * u64::from(elements)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Drop => "drop",
            Kind::Transmit => "transmit",
            Kind::Duplicates => "duplicates",
            Kind::Sum => "sum",
            Kind::ChecksummedSum => "sum, CRC-32C",
            Kind::SentSum => "sum, sent",
            Kind::SentChecksummedSum => "sum, CRC-32C, sent",
        }
    }
}

impl Contender {
    fn new(kind: Kind, place: Rc<Place>, program: Program, stream: Stream) -> anyhow::Result<Contender> {
        let mut traffic = Traffic::load(&stream)?;
        place.link(&mut traffic)?;
        Ok(Contender { kind, rates: Vec::new(), place, program, traffic, stream, repeated: 0 })
    }

    /// One turn. It is taken again where a frame did not arrive, or overtook so many of other ranks that its slot was not
    /// free: nobody here would send it again.
    pub fn measure(&mut self, frames: u32, is_kept: bool) -> anyhow::Result<()> {
        let name = self.kind.name();
        for _ in 0..ATTEMPTS {
            self.begin()?;
            let sample = self.place.sample(&mut self.traffic, frames).with_context(|| format!("measuring {name:?}"))?;
            if sample.received >= u64::from(frames) && self.counted(frames) {
                if is_kept {
                    self.rates.push(f64::from(frames) / (sample.elapsed.as_nanos() as f64 / 1e3));
                }
                return Ok(());
            }
            self.repeated += 1;
        }
        bail!(
            "{name:?}: frames got lost in each of {ATTEMPTS} attempts; try more --slots, or a machine with less to do"
        )
    }

    /// A fresh job and chunk 0.
    fn begin(&mut self) -> anyhow::Result<()> {
        self.traffic.restart()?;
        if let Program::Switch(kernel) = &self.program {
            let mut kernel = kernel.borrow_mut();
            kernel.remove(self.stream.config.job_id);
            kernel.install(self.stream.config, self.stream.has_checksum)?;
        }
        Ok(())
    }

    /// Whether the switch program took every frame for what it was.
    fn counted(&self, frames: u32) -> bool {
        let Program::Switch(kernel) = &self.program else { return true };
        let counters = kernel.borrow().job_counters(self.stream.config.job_id).unwrap_or_default();
        let duplicates = counters.drops[DropReason::DuplicateContribution as usize];
        let ranks = u64::from(self.stream.rank_count);
        let (contributions, aggregates) = match self.kind {
            Kind::Duplicates => (ranks, 0),
            _ => (u64::from(frames), u64::from(frames) / ranks),
        };
        (counters.contributions, counters.aggregates) == (contributions, aggregates)
            && counters.contributions + duplicates == u64::from(frames)
    }

    /// What came of it, beside the empty program's rates of the same rounds.
    pub fn case(&self, empty: &[f64], frame_bytes: u64) -> Case {
        let shares: Vec<f64> = self.rates.iter().zip(empty).map(|(rate, empty)| rate / empty).collect();
        let packets_per_us = median(&self.rates);
        eprintln!("{}: {packets_per_us:.2} Mpkt/s", self.kind.name());
        Case {
            program: self.kind.name(),
            packets_per_us,
            gbit_per_s: packets_per_us * 8.0 * frame_bytes as f64 / 1e3,
            share_of_empty: median(&shares),
            share_min: shares.iter().copied().fold(f64::MAX, f64::min),
            share_max: shares.iter().copied().fold(0.0, f64::max),
            rounds: self.rates.clone(),
            repeated: self.repeated,
        }
    }
}
