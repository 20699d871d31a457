//! Writes the packets of the conformance vectors to a folder, as inputs for
//! the fuzz target `parse` to start from.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use fanin_harness::vectors::{Exchange, ProgramTarget, Source, Target, load_folder, replay};
use fanin_protocol::switchml::JobConfig;

/// Of one vector: those with 256 workers repeat themselves.
const PACKETS_MAX: usize = 40;

/// Packets of the conformance vectors, as a corpus.
#[derive(Parser)]
struct Arguments {
    /// Where to write them; made if it is missing.
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

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.folder).with_context(|| format!("make {}", arguments.folder.display()))?;
    let vectors = load_folder(&arguments.vectors).map_err(anyhow::Error::msg)?;
    for (file, vector) in vectors {
        let mut recorder = Recorder::default();
        replay(&file, &vector, &mut recorder)?;
        for (index, packet) in recorder.packets.iter().take(PACKETS_MAX).enumerate() {
            let name = arguments.folder.join(format!("{}-{index}", file.trim_end_matches(".toml")));
            std::fs::write(&name, input(packet)).with_context(|| format!("write {}", name.display()))?;
        }
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
