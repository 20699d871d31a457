//! What the kernel has counted for the threads of a process.

use std::path::PathBuf;

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};

/// Names of the switch's threads that carry packets begin so.
const DATA_THREAD: &str = "fanin-data";

/// Processor time of a switch's data-plane threads, in nanoseconds: the first number of each thread's schedstat.
pub fn data_plane_ns(switch: u32) -> anyhow::Result<u64> {
    let mut total = 0;
    for thread in threads(switch)? {
        let name = std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
        if name.starts_with(DATA_THREAD) {
            let statistics = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
            total += statistics.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    anyhow::ensure!(total > 0, "the system does not tell the time that the switch's threads {DATA_THREAD}-* used");
    Ok(total)
}

/// How often the threads of this process, those that have ended too, have given their core away to wait: each time is a
/// system call and, later, a wake-up. One system call, so that it can be asked for right before what is timed.
pub fn own_sleeps() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.voluntary_context_switches() as u64)
}

/// A thread that ends meanwhile counts nothing.
fn threads(process: u32) -> anyhow::Result<Vec<PathBuf>> {
    let folder = format!("/proc/{process}/task");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))?;
    entries.map(|entry| Ok(entry.with_context(|| format!("cannot list {folder}"))?.path())).collect()
}
