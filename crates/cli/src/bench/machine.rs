//! What the measurements ran on, and what else ran there.

use std::path::Path;

use serde::Serialize;

/// The host.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as it gives it.
    pub cpu: String,
    /// Cores that this process may use.
    pub core_count: usize,
    /// Whether a hypervisor shares them out.
    pub virtual_machine: bool,
    /// "L1d 48 KiB, L2 1 MiB, ...", of the first core.
    pub caches: String,
    /// Main memory.
    pub memory_bytes: u64,
    /// Linux's version.
    pub kernel: String,
    /// This program's version.
    pub fanin_version: &'static str,
    /// False for a debug build, whose times mean nothing.
    pub optimised: bool,
    /// Instruction set of the conversion kernels.
    pub kernel_level: String,
}

impl Machine {
    /// Asks the system; what it does not tell stays empty.
    pub fn describe() -> Machine {
        let cpu_info = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpu_info.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory_info = read("/proc/meminfo");
        let memory_kib = memory_info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let memory_kib = memory_kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Machine {
            cpu: field("model name"),
            core_count: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field("flags").split_whitespace().any(|flag| flag == "hypervisor"),
            caches: caches(),
            memory_bytes: memory_kib.unwrap_or(0) << 10,
            // Without what a distributor or a provider put behind the number.
            kernel: read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default().to_owned(),
            fanin_version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            kernel_level: format!("{:?}", fanin_numeric::kernel_level()),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let virtual_machine = if self.virtual_machine { " of a virtual machine" } else { "" };
        let build = if self.optimised { "" } else { " DEBUG BUILD: its times mean nothing" };
        format!(
            "{}, {} cores{virtual_machine}, {}, {:.0} GiB, Linux {}, fanin {}{build}, {} kernels",
            self.cpu,
            self.core_count,
            self.caches,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.fanin_version,
            self.kernel_level
        )
    }
}

fn caches() -> String {
    let of_index = |index: usize| {
        let file = |name: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        let letter = match file("type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{letter} {}", file("level")?, file("size")?.replace('K', " KiB")))
    };
    (0..8).map_while(of_index).collect::<Vec<_>>().join(", ")
}

/// Who used the processors while something was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Programs that wanted to run, a minute's average, before.
    pub load_average_before: f64,
    /// The same, after.
    pub load_average_after: f64,
    /// Share of the processors' time that other programs used; interrupts,
    /// which belong to nobody, are left out.
    pub other_share: f64,
    /// Share that the hypervisor gave to somebody else.
    pub stolen_share: f64,
}

impl Load {
    /// One line for people.
    pub fn line(&self) -> String {
        let disturbed = self.other_share + self.stolen_share > 0.05;
        format!(
            "other programs used {:.0} % of the processors and the hypervisor kept {:.0} %{}; load average {:.1} before, {:.1} after",
            100.0 * self.other_share,
            100.0 * self.stolen_share,
            if disturbed { " (DISTURBED: trust ratios, not times)" } else { "" },
            self.load_average_before,
            self.load_average_after
        )
    }
}

/// The counters from which [`Load`] follows.
pub struct LoadMeter {
    load_average: f64,
    start: Ticks,
}

/// Processor time since boot, in the kernel's ticks.
#[derive(Clone, Copy, Default)]
struct Ticks {
    /// All of it, idle included.
    all: u64,
    /// Of programs.
    programs: u64,
    /// Of this process and its children that have ended.
    own: u64,
    stolen: u64,
}

impl LoadMeter {
    /// Starts to watch.
    pub fn start() -> LoadMeter {
        LoadMeter { load_average: load_average(), start: Ticks::read() }
    }

    /// What happened since then. Children that still run count as others.
    pub fn stop(&self) -> Load {
        let now = Ticks::read();
        let all = now.all.saturating_sub(self.start.all).max(1) as f64;
        let own = now.own.saturating_sub(self.start.own);
        let programs = now.programs.saturating_sub(self.start.programs);
        Load {
            load_average_before: self.load_average,
            load_average_after: load_average(),
            other_share: programs.saturating_sub(own) as f64 / all,
            stolen_share: now.stolen.saturating_sub(self.start.stolen) as f64 / all,
        }
    }
}

impl Ticks {
    fn read() -> Ticks {
        let stat = read("/proc/stat");
        let line = stat.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; the guests' time after them is in user already.
        let fields: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        Ticks { all: fields.iter().sum(), programs: field(0) + field(1) + field(2), own: own_ticks(), stolen: field(7) }
    }
}

/// User and system time of this process and of its children that have ended:
/// fields 14 to 17 of its stat file.
fn own_ticks() -> u64 {
    let stat = read("/proc/self/stat");
    // The name in parentheses may hold anything; what follows it begins with field 3.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn load_average() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_cores_and_memory() {
        let machine = Machine::describe();
        assert!(machine.core_count > 0 && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(machine.line().contains("Linux"));
    }

    #[test]
    fn own_work_is_not_taken_for_that_of_others() {
        let meter = LoadMeter::start();
        let mut sum = 0u64;
        while own_ticks() < meter.start.own + 5 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        let (load, now) = (meter.stop(), Ticks::read());
        assert!(now.all > meter.start.all && now.programs > meter.start.programs);
        assert!(load.other_share < 1.0 && load.stolen_share < 1.0, "{load:?}");
    }
}
