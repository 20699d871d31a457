//! A TCP flow that takes what it can get of a link: what other traffic is measured beside.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::process::end_with_parent;

const BUFFER_BYTES: usize = 256 << 10;
/// Between two lines of the receiver.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// One end of the flow.
#[derive(clap::Args, Debug)]
pub struct FlowArguments {
    /// Receive on a free port of this address. Prints `{"address"}`, then lines of `{"at_ns", "bytes"}`.
    #[arg(long, value_name = "IP", conflicts_with = "connect", required_unless_present = "connect")]
    listen: Option<IpAddr>,
    /// Send there until the other end or this process ends.
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<SocketAddr>,
}

/// Sends or receives.
pub fn run(arguments: &FlowArguments) -> anyhow::Result<i32> {
    end_with_parent();
    match (arguments.listen, arguments.connect) {
        (Some(address), _) => receive(address)?,
        (None, Some(address)) => send(address)?,
        (None, None) => {}
    }
    Ok(0)
}

fn receive(address: IpAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind((address, 0)).with_context(|| format!("cannot listen on {address}"))?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", json!({ "address": listener.local_addr()? }))?;
    out.flush()?;
    let (mut stream, _) = listener.accept()?;
    let (mut buffer, mut total, mut reported) = (vec![0; BUFFER_BYTES], 0u64, Instant::now());
    loop {
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        total += bytes as u64;
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let now = clock_gettime(ClockId::Monotonic);
            let at_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            writeln!(out, "{}", json!({ "at_ns": at_ns, "bytes": total }))?;
            out.flush()?;
        }
    }
}

fn send(address: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    let buffer = vec![0x5a; BUFFER_BYTES];
    // Whoever started this ends it; a receiver that has gone does so too.
    while stream.write_all(&buffer).is_ok() {}
    Ok(())
}
