//! `fanin server`: run a parameter server for ATP jobs until told to stop.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crossbeam_channel::bounded;
use fanin_net::Loss;
use fanin_server::{ServerConfig, Standing};
use fanin_switch::dataplane::SPIN_DEFAULT;
use fanin_wire::generated::SERVER_PORT_BASE_DEFAULT;
use tokio::signal::unix::{SignalKind, signal};

use crate::bench::process::end_with_parent;
use crate::bench::units::parse_loss;
use crate::connection::Connection;

/// Flags of `fanin server`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Address to bind, which the switch must be able to reach. Default: all of this host's; the switch then sends to the
    /// address from which this server has connected.
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// First UDP port, one per thread; 0 takes free ones.
    #[arg(long, value_name = "PORT", default_value_t = SERVER_PORT_BASE_DEFAULT)]
    data_port: u16,
    /// Threads. The lanes of jobs are spread over them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// How long a thread polls before it sleeps.
    #[arg(long, value_name = "US", default_value_t = SPIN_DEFAULT.as_micros() as u64)]
    spin_us: u64,
    /// Lose each datagram with this chance, both ways (for tests).
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_loss)]
    loss: f64,
    /// Seed of the losses.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    loss_seed: u64,
    /// Print the addresses as one line of JSON.
    #[arg(long)]
    json: bool,
    /// For programs that start a server for themselves.
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

/// Runs until SIGTERM or SIGINT, or until the switch is gone.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    if arguments.end_with_parent {
        end_with_parent();
    }
    let config = ServerConfig {
        address: arguments.bind.map_or_else(|| any_address(&arguments.connection), Ok)?,
        port_base: arguments.data_port,
        thread_count: arguments.threads,
        spin: Duration::from_micros(arguments.spin_us),
        loss: (arguments.loss > 0.0).then_some(Loss { probability: arguments.loss, seed: arguments.loss_seed }),
    };
    let standing = Standing::start(&config, &arguments.connection.config()?, label())?;
    announce(arguments, &standing.server().addresses())?;
    let (stop, stopped) = bounded(1);
    std::thread::Builder::new().name("fanin-signals".into()).spawn(move || {
        // Without signals the server runs until the switch is gone.
        let _ = wait_for_signal();
        drop(stop);
    })?;
    standing.run(&stopped)?;
    Ok(0)
}

/// All addresses of this host, of the family by which the switch is reached.
fn any_address(connection: &Connection) -> anyhow::Result<IpAddr> {
    let switch = connection.address()?;
    let mut found = switch.to_socket_addrs().with_context(|| format!("the switch's address {switch}"))?;
    let is_ipv6 = found.next().is_some_and(|address| address.is_ipv6());
    Ok(if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() })
}

fn wait_for_signal() -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

fn announce(arguments: &Arguments, addresses: &[SocketAddr]) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let switch = arguments.connection.address()?;
    if arguments.json {
        writeln!(out, "{}", serde_json::json!({ "data": addresses, "switch": switch }))?;
    } else {
        let list: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        writeln!(out, "fanin server: data on {}, for ATP jobs of the switch at {switch}", list.join(", "))?;
        writeln!(out, "stop: Ctrl-C")?;
    }
    out.flush()?;
    Ok(())
}

fn label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} pid {}", host.trim(), std::process::id())
}
