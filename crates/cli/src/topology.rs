//! `fanin topology`: what a file of switches says, before anything is started.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use fanin_control::registry::{Absences, JobShape, slot_memory_bytes};
use fanin_control::topology::{Topology, TreePart};
use fanin_control::{Algorithm, WireFormat};

/// Subcommands of `fanin topology`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Read a topology, say what is wrong with it, and explain the fan-in of a job at every level.
    Check(CheckArguments),
}

/// Flags of `fanin topology check`.
#[derive(Args, Debug)]
pub struct CheckArguments {
    /// TOML file of switches, see docs/guides/racks.md.
    file: PathBuf,
    /// A job to explain: addresses of its workers in rank order, or names of the switches beside them with how many
    /// stand there, for example rack0=4,rack1=2.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    job: Vec<String>,
    /// Whose slots the job uses, and how.
    #[arg(long, value_enum, default_value_t = JobAlgorithm::Switchml)]
    algorithm: JobAlgorithm,
    /// switchml: lanes of the job.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    lanes: u16,
    /// switchml: slots of each lane.
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    slots: u32,
    /// switchml: elements of a packet.
    #[arg(long, value_name = "COUNT", default_value_t = 2016)]
    elements: u16,
}

/// What a job can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum JobAlgorithm {
    Switchml,
    Atp,
}

/// Runs a subcommand.
pub fn run(command: &Command) -> anyhow::Result<i32> {
    let Command::Check(arguments) = command;
    let topology = Topology::read(&arguments.file)?;
    print!("{}", describe(&topology));
    if !arguments.job.is_empty() {
        let beside = beside(&topology, &arguments.job)?;
        let text = match arguments.algorithm {
            JobAlgorithm::Atp => {
                let job = topology.job_tree(&beside)?;
                explain(&topology, &job.parts, beside.len(), "the parameter server")
            }
            JobAlgorithm::Switchml => explain_switchml(&topology, &beside, arguments),
        };
        print!("{text}");
    }
    Ok(0)
}

fn describe(topology: &Topology) -> String {
    let switches = topology.switches();
    let mut text = format!("{} switches, jobs are admitted at {}\n", switches.len(), switches[0].control);
    for (place, switch) in switches.iter().enumerate() {
        let parent = switch.parent.map_or("the root".into(), |parent| format!("below {}", switches[parent].name));
        let below = switches.iter().filter(|other| other.parent == Some(place)).count();
        let _ = writeln!(
            text,
            "  {:indent$}{}: {parent}, control {}, data {} ({} threads), {below} switches below",
            "",
            switch.name,
            switch.control,
            switch.data[0],
            switch.data.len(),
            indent = 2 * topology.depth(place),
        );
    }
    text
}

/// The switch beside each worker of a job.
fn beside(topology: &Topology, workers: &[String]) -> anyhow::Result<Vec<usize>> {
    let mut beside = Vec::new();
    for worker in workers {
        if let Ok(address) = worker.parse::<IpAddr>() {
            beside.push(topology.beside(address).unwrap_or(0));
            continue;
        }
        let (name, count) = worker.split_once('=').unwrap_or((worker, "1"));
        let count: usize = count.parse().with_context(|| format!("`{worker}`: `{count}` is no number of workers"))?;
        let Some(place) = topology.find(name) else {
            bail!("`{name}` is neither an address nor a switch of the topology")
        };
        beside.extend(std::iter::repeat_n(place, count));
    }
    Ok(beside)
}

/// A job with slots of its own at every switch of its tree.
fn explain_switchml(topology: &Topology, beside: &[usize], arguments: &CheckArguments) -> String {
    let parts = topology.parts(beside);
    let mut text = explain(topology, &parts, beside.len(), "all workers, as the whole sum");
    let CheckArguments { lanes, slots, elements, .. } = arguments;
    let shape = JobShape {
        world_size: beside.len().try_into().unwrap_or(u16::MAX),
        lane_count: *lanes,
        wire_format: WireFormat::FaninV1,
        algorithm: Algorithm::Switchml,
        accumulator: fanin_wire::Accumulator::BlockFixed,
        absences: Absences::default(),
    };
    let mib = slot_memory_bytes(&shape, *slots, *elements) as f64 / f64::from(1 << 20);
    let _ = writeln!(
        text,
        "each of these {} switches reserves {lanes} × {slots} slots of {elements} elements for it: {mib:.1} MiB of \
         --slot-memory",
        parts.len()
    );
    if parts.len() > 1 {
        let _ = writeln!(text, "elements are 32-bit words: 16- and 8-bit formats are refused over several switches");
    }
    text
}

fn explain(topology: &Topology, parts: &[TreePart], worker_count: usize, end: &str) -> String {
    let switches = topology.switches();
    let level_count = parts.iter().map(|part| part.level).max().unwrap_or(0) + 1;
    let mut text = format!("a job of {worker_count} workers sums at {level_count} levels:\n");
    let mut parts: Vec<_> = parts.iter().collect();
    parts.sort_by_key(|part| (part.level, part.switch));
    for part in parts {
        let workers = part.children.iter().flatten().map(|rank| rank.to_string()).collect::<Vec<_>>();
        let below = part.children.len() - workers.len();
        let ranks = if workers.is_empty() { "no workers".into() } else { format!("ranks {}", workers.join(", ")) };
        let up = switches[part.switch].parent.filter(|_| part.switch != 0);
        let up = up.map_or(end.into(), |parent| switches[parent].name.clone());
        let _ = writeln!(
            text,
            "  level {}: {} has fan-in {} ({below} switches, {ranks}); one packet of each chunk goes on to {up}",
            part.level,
            switches[part.switch].name,
            part.children.len(),
        );
    }
    text
}
