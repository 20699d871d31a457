//! Is this machine fit for it?

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use fanin_net::{NetError, Options, ReceiveBatch, SendBatch, UdpPort, Waker};

use super::findings::Findings;

/// A receive buffer smaller than this drops bursts.
const RECEIVE_BUFFER_BYTES_MIN: usize = 2 << 20;
/// A look at the clock that stays in user space takes tens of nanoseconds.
const CLOCK_NS_MAX: f64 = 500.0;
const CLOCK_LOOKS: u32 = 1_000;
/// Runnable programs per core from which on waits are longer than work.
const LOAD_PER_CORE_MAX: f64 = 1.5;
const OFFLOAD_DATAGRAMS: usize = 8;
const OFFLOAD_DATAGRAM_BYTES: usize = 1_000;
const OFFLOAD_WAIT: Duration = Duration::from_secs(1);

/// Cores, clock, socket buffers, segmentation offload.
pub fn check(findings: &mut Findings) {
    check_cores(findings);
    check_clock(findings);
    if let Err(error) = check_buffers(findings) {
        findings.bad("sockets", error.to_string(), "check the limits on open files and the kernel's socket settings");
    }
    match super_packets_on_loopback() {
        Ok((true, true)) => {
            findings.good("offload", "the kernel takes and hands over many datagrams at once (UDP GSO and GRO)");
        }
        Ok((sends, receives)) => {
            let lacking = if !sends && !receives {
                "GSO and GRO are"
            } else if sends {
                "GRO is"
            } else {
                "GSO is"
            };
            let what = format!("UDP {lacking} not in use: each datagram costs a pass through the kernel");
            findings.note("offload", what, "use Linux 5.0 or newer for tens of times more packets per second");
        }
        Err(error) => {
            findings.bad("loopback", format!("{error:#}"), "bring the loopback interface up: ip link set lo up")
        }
    }
}

fn check_cores(findings: &mut Findings) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load: Option<f64> = load.and_then(|text| text.split_whitespace().next()?.parse().ok());
    match load {
        Some(load) if load > LOAD_PER_CORE_MAX * cores as f64 => findings.note(
            "cores",
            format!("{cores}, with {load:.1} programs wanting to run: collectives wait for the processor"),
            "run fewer ranks on this host, or stop what else runs",
        ),
        _ => findings.good("cores", format!("{cores}; more ranks than cores on one host wait for each other")),
    }
}

fn check_clock(findings: &mut Findings) {
    let started = Instant::now();
    for _ in 0..CLOCK_LOOKS {
        std::hint::black_box(Instant::now());
    }
    let look_ns = started.elapsed().as_nanos() as f64 / f64::from(CLOCK_LOOKS);
    let what = format!("a look takes {look_ns:.0} ns");
    if look_ns > CLOCK_NS_MAX {
        let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        findings.note("clock", what, format!("a slow clock source taxes every packet; {file} names it, tsc is fast"));
    } else {
        findings.good("clock", what);
    }
}

fn check_buffers(findings: &mut Findings) -> Result<(), NetError> {
    let port = UdpPort::bind(SocketAddr::from(([0, 0, 0, 0], 0)), &Options::default())?;
    let sizes = port.buffer_sizes()?;
    let what = format!("{} KiB granted", sizes.receive_bytes >> 10);
    if sizes.receive_bytes < RECEIVE_BUFFER_BYTES_MIN {
        let hint = "as root: sysctl -w net.core.rmem_max=16777216, and the same for wmem_max";
        findings.note("receive buffer", format!("{what}: bursts will be dropped and sent again"), hint);
    } else {
        findings.good("receive buffer", what);
    }
    Ok(())
}

/// Whether a run of datagrams left, and arrived, in one piece.
fn super_packets_on_loopback() -> anyhow::Result<(bool, bool)> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut sender = UdpPort::bind(any, &Options::default())?;
    let mut receiver = UdpPort::bind(any, &Options::default())?;
    let mut batch = SendBatch::new();
    for _ in 0..OFFLOAD_DATAGRAMS {
        batch.push(&[0; OFFLOAD_DATAGRAM_BYTES]).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    }
    sender.send(&batch, receiver.local_addr())?;
    let (waker, mut arrived) = (Waker::new()?, ReceiveBatch::new());
    let deadline = Instant::now() + OFFLOAD_WAIT;
    let mut count = 0;
    while count < OFFLOAD_DATAGRAMS {
        let left = deadline.checked_duration_since(Instant::now()).context("datagrams on loopback do not arrive")?;
        receiver.wait(&waker, Some(left), Duration::ZERO)?;
        count += receiver.receive(&mut arrived)?;
    }
    Ok((sender.counters().super_packets_sent > 0, receiver.counters().super_packets_received > 0))
}
