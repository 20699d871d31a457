//! `fanin net`: namespaces with shaped links, for experiments on one host.

mod namespaces;

use clap::Subcommand;

pub use namespaces::{Description, Link, Network, WorkerPlace};

use crate::bench::units::parse_rate;

/// Namespaces with shaped links.
#[derive(Subcommand, Debug)]
pub enum Net {
    /// Build a switch namespace and worker namespaces, joined by links of the given rate.
    Up {
        /// Worker namespaces.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
        workers: u16,
        /// Rate of each link, each way, headers up to Ethernet's included.
        #[arg(long, value_name = "RATE", default_value = "500mbit", value_parser = parse_rate)]
        rate: u64,
        /// Largest IP packet.
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65535))]
        mtu: u32,
        /// Let workers take frames that an XDP program at the switch sends (generic receive offload at their ends).
        #[arg(long)]
        gro: bool,
        /// Process whose end makes this network a leftover for `clean`. Default: the caller, sudo not counted.
        #[arg(long, value_name = "PID")]
        owner: Option<u32>,
        /// Print one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove one network.
    Down {
        /// As `up` printed it.
        id: String,
    },
    /// Remove the networks whose owner has ended.
    Clean,
}

/// Runs one of the commands.
pub fn run(command: Net) -> anyhow::Result<i32> {
    match command {
        Net::Up { workers, rate, mtu, gro, owner, json } => {
            let owner = owner.unwrap_or_else(namespaces::caller);
            let network = Network::build(owner, workers, Link { rate_bps: rate, mtu_bytes: mtu, takes_xdp: gro })?;
            show(&network.keep(), json)?;
        }
        Net::Down { id } => {
            let removed = namespaces::remove(&id)?;
            println!("removed {removed} namespaces");
        }
        Net::Clean => {
            let removed = namespaces::remove_leftovers()?;
            println!("removed {removed} namespaces");
        }
    }
    Ok(0)
}

fn show(network: &Description, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(network)?);
        return Ok(());
    }
    println!("network {}", network.id);
    println!("switch   {}  {}", network.switch.ns, network.switch.address);
    for worker in &network.workers {
        println!("worker   {}  {}  {}", worker.ns, worker.address, worker.device);
    }
    println!("run a program in one: ip netns exec NAMESPACE PROGRAM   remove: fanin net down {}", network.id);
    Ok(())
}
