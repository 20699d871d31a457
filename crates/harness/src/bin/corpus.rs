//! Writes the packets of the conformance vectors to folders, as inputs for the fuzz targets `parse` and `atp_parse` to start
//! from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use fanin_harness::vectors::atp::{self, AtpProgramTarget, AtpTarget};
use fanin_harness::vectors::{Exchange, ProgramTarget, Source, Target, load_folder, replay};
use fanin_protocol::atp::Tree;
use fanin_protocol::switchml::JobConfig;
use fanin_wire::atp::Header;

/// Of one vector: those with 256 workers repeat themselves.
const PACKETS_MAX: usize = 40;

/// Packets of the conformance vectors, as a corpus.
#[derive(Parser)]
struct Arguments {
    /// Where to write them, a folder for each target; made if it is missing.
    folder: PathBuf,
    /// Where the vectors are.
    #[arg(long, default_value = "spec/vectors")]
    vectors: PathBuf,
}

/// Plays to the switch program and keeps every packet and every answer.
#[derive(Default)]
struct Recorder {
    program: ProgramTarget,
    packets: Vec<Vec<u8>>,
}

impl Target for Recorder {
    fn install(&mut self, config: &JobConfig) -> Result<(), String> {
        self.program.install(config)
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        self.program.remove(job_id)
    }

    fn exchange(&mut self, source: Source, packet: &[u8]) -> Result<Exchange, String> {
        let exchange = self.program.exchange(source, packet)?;
        self.packets.push(packet.to_vec());
        self.packets.extend(exchange.answers.iter().map(|(_, answer)| answer.clone()));
        Ok(exchange)
    }
}

/// The same for ATP.
#[derive(Default)]
struct AtpRecorder {
    program: AtpProgramTarget,
    packets: Vec<Vec<u8>>,
}

impl AtpTarget for AtpRecorder {
    fn set_up(&mut self, switches: &atp::SwitchSpec) -> Result<(), String> {
        self.program.set_up(switches)
    }

    fn install(&mut self, job: &atp::JobSpec, tree: &Tree) -> Result<(), String> {
        self.program.install(job, tree)
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        self.program.remove(job_id)
    }

    fn exchange(&mut self, arrival: &atp::Arrival, packet: &[u8]) -> Result<atp::Exchange, String> {
        let exchange = self.program.exchange(arrival, packet)?;
        self.packets.push(packet.to_vec());
        self.packets.extend(exchange.answers.iter().map(|(_, answer)| answer.clone()));
        Ok(exchange)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    for (file, vector) in load_folder(&arguments.vectors).map_err(anyhow::Error::msg)? {
        let mut recorder = Recorder::default();
        replay(&file, &vector, &mut recorder)?;
        write(&arguments.folder.join("parse"), &file, &recorder.packets, input)?;
    }
    for (file, vector) in atp::load_folder(&arguments.vectors.join("atp")).map_err(anyhow::Error::msg)? {
        let mut recorder = AtpRecorder::default();
        atp::replay(&file, &vector, &mut recorder)?;
        write(&arguments.folder.join("atp_parse"), &file, &recorder.packets, atp_input)?;
    }
    Ok(())
}

fn write(folder: &Path, file: &str, packets: &[Vec<u8>], input: fn(&[u8]) -> Vec<u8>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for (index, packet) in packets.iter().take(PACKETS_MAX).enumerate() {
        let name = folder.join(format!("{}-{index}", file.trim_end_matches(".toml")));
        std::fs::write(&name, input(packet)).with_context(|| format!("write {}", name.display()))?;
    }
    Ok(())
}

/// The target's first byte says what to do with the rest: bit 0 is the
/// layout, bit 1 asks for the job's own numbers and a valid checksum, bits 2
/// to 4 choose the kind.
fn input(packet: &[u8]) -> Vec<u8> {
    const REPAIR: u8 = 2;
    let is_p4app = packet.first().is_some_and(|byte| byte >> 4 == 1);
    let kind = packet.get(3).map_or(0, |kind| kind.wrapping_sub(1) & 7);
    let choice = if is_p4app { 1 } else { REPAIR | kind << 2 };
    [&[choice], packet].concat()
}

/// As [`input`]: bit 0 asks for the job's own numbers and a valid checksum, bits 1 to 3 choose the kind, bit 6 is the level
/// of the switch.
fn atp_input(packet: &[u8]) -> Vec<u8> {
    const REPAIR: u8 = 1;
    let kind = packet.get(3).map_or(0, |kind| kind.wrapping_sub(1) & 7);
    let level = Header::parse(packet).map_or(0, |(header, _)| header.level & 1);
    [&[REPAIR | kind << 1 | level << 6], packet].concat()
}
