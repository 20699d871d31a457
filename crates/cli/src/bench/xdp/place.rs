//! A network of one contender: a veth pair for each rank, the measured program at the switch's ends of them.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, ensure};
use fanin_xdp::{Empty, EmptyProgram, Traffic};
use rustix::thread::{CpuSet, LinkNameSpaceType};
use rustix::time::{ClockId, clock_gettime};

use crate::net::{Description, Link, Network};

/// The links are shaped, but frames that come from XDP pass no queueing discipline.
const LINK: Link = Link { rate_bps: 1_000_000_000, mtu_bytes: 1500, takes_xdp: false };

/// The network, and what drops the frames that come back to the workers.
pub struct Place {
    // Before the network, whose end would detach it anyhow.
    _sink: EmptyProgram,
    network: Network,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Processor time of the thread that made the frames, which received them too.
    pub elapsed: Duration,
    /// Frames that the measured program has seen.
    pub received: u64,
}

impl Place {
    pub fn build(ranks: u16) -> anyhow::Result<Place> {
        let network = Network::build(std::process::id(), ranks, LINK)?;
        let mut sink = EmptyProgram::load(Empty::Drop)?;
        for worker in &network.description()?.workers {
            within(&worker.ns, || sink.attach(&worker.device))??;
        }
        Ok(Place { _sink: sink, network })
    }

    fn description(&self) -> anyhow::Result<&Description> {
        self.network.description()
    }

    /// Calls `attach` in the switch's namespace with each of its interfaces.
    pub fn attach(&self, mut attach: impl FnMut(&str) -> Result<(), fanin_xdp::XdpError> + Send) -> anyhow::Result<()> {
        let description = self.description()?;
        for index in 0..description.workers.len() {
            within(&description.switch.ns, || attach(&format!("s{index}")))??;
        }
        Ok(())
    }

    /// Lets each rank's frames leave by its worker's interface.
    pub fn link(&self, traffic: &mut Traffic) -> anyhow::Result<()> {
        for (rank, worker) in (0u16..).zip(&self.description()?.workers) {
            within(&worker.ns, || traffic.link(rank, &worker.device))??;
        }
        Ok(())
    }

    /// Sends frames from the last of this process's processors, where they are received too.
    pub fn sample(&self, traffic: &mut Traffic, frames: u32) -> anyhow::Result<Sample> {
        within(&self.description()?.switch.ns, || {
            let processors = rustix::thread::sched_getaffinity(None).context("which processors are ours?")?;
            let last = (0..CpuSet::MAX_CPU).rfind(|&processor| processors.is_set(processor));
            let mut one = CpuSet::new();
            one.set(last.context("no processor is ours")?);
            rustix::thread::sched_setaffinity(None, &one).context("cannot stay on one processor")?;
            let before = received()?;
            let started = thread_time();
            traffic.send(frames)?;
            let elapsed = thread_time().saturating_sub(started);
            Ok(Sample { elapsed, received: received()? - before })
        })?
    }
}

/// Processor time of this thread, softirqs that ran in it included.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Runs `call` in a thread of its own in a network namespace.
fn within<T: Send>(namespace: &str, call: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let enter_and_call = || {
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter {path}"))?;
        Ok(call())
    };
    std::thread::scope(|scope| scope.spawn(enter_and_call).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Frames that this thread's namespace has received on the switch's interfaces, whatever XDP made of them.
fn received() -> anyhow::Result<u64> {
    const FILE: &str = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let (total, count) = parse_received(&text);
    ensure!(count > 0, "{FILE} names no interface of the switch");
    Ok(total)
}

/// The second number of each line "  s0: BYTES PACKETS ...", and how many there are.
fn parse_received(text: &str) -> (u64, usize) {
    let packets = text.lines().filter_map(|line| {
        let (name, numbers) = line.trim().split_once(':')?;
        name.strip_prefix('s')?.parse::<u16>().ok()?;
        numbers.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    packets.fold((0, 0), |(sum, count), packets| (sum + packets, count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_switchs_interfaces_count() {
        let text = "Inter-|   Receive\n face |bytes    packets errs\n    lo:  84  1 0 0\n   br0: 5 5 0\n   s0: 1082 10 0\n  s1: 7 3 0\n";
        assert_eq!(parse_received(text), (13, 2));
    }
}
