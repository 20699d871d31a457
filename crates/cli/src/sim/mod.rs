//! `fanin sim`: a network from a file, packet by packet.

mod figures;
mod files;
mod ray;
mod sweep;
mod tables;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use fanin_sim::engine::{self, Outcome};
use fanin_sim::fabric::Fabric;
use fanin_sim::report::Report;
use fanin_sim::scenario::{JobInfo, Scenario};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::bench::output::{table, write};
use files::Told;
use tables::Format;

/// Between two lines of progress.
const PROGRESS_GAP: Duration = Duration::from_millis(500);

/// Flags of `fanin sim`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// TOML file of a scenario, see docs/guides/simulation.md and experiments/sim.
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Seed in place of the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulated milliseconds in place of the file's.
    #[arg(long, value_name = "MS")]
    duration_ms: Option<f64>,
    /// Threads; the outcome is the same for any number.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Write report.json, tables (hosts, flows, unended, jobs, iterations, links, throughput) and drawings (completion times,
    /// percentiles by size, throughput, fairness, links) into this folder. Files of these names are replaced, and removed if this
    /// run has none.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What tables are written as.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "out", default_value = "csv")]
    tables: Format,
    /// Print the report as JSON in place of tables.
    #[arg(long)]
    json: bool,
}

/// What else there is to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario with other values and seeds, on all processors, and write one table.
    Sweep(sweep::Arguments),
}

/// A report and what it took.
#[derive(Serialize)]
struct Run {
    title: String,
    seed: u64,
    duration_ms: f64,
    hosts: u32,
    switches: u32,
    threads: u16,
    /// Flows of the scenario that would start after the end, and are in no other number.
    late_flows: usize,
    /// Jobs likewise.
    late_jobs: usize,
    /// Of the run alone, without reading the file and building the network.
    wall_seconds: f64,
    cpu_seconds: f64,
    hops_per_cpu_second: f64,
    #[serde(flatten)]
    report: Report,
}

/// Runs a scenario, or many.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    if let Some(Command::Sweep(arguments)) = &arguments.command {
        return sweep::run(arguments);
    }
    let file = arguments.file.as_ref().context("name a scenario's file")?;
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let run = simulate(arguments, &text).with_context(|| file.display().to_string())?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&run)?);
    } else {
        print(&run);
    }
    Ok(0)
}

fn simulate(arguments: &Arguments, text: &str) -> anyhow::Result<Run> {
    let mut scenario = Scenario::parse(text)?;
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    if let Some(duration_ms) = arguments.duration_ms {
        ensure!(duration_ms > 0.0 && duration_ms <= 3.6e6, "--duration-ms {duration_ms}: above 0, an hour at most");
        scenario.duration_ms = duration_ms;
    }
    let mut progress = Progress::new((scenario.duration_ms * 1e9) as u64, arguments.json);
    let finished = run_scenario(scenario, arguments.threads, |now_ps| progress.show(now_ps))?;
    progress.clear();
    if let Some(folder) = &arguments.out {
        finished.told().write_to(folder, arguments.tables)?;
        write(&folder.join(files::REPORT), &(serde_json::to_string_pretty(&finished.run)? + "\n"))?;
    }
    Ok(finished.run)
}

/// A run with all that came of it.
struct Finished {
    run: Run,
    outcome: Outcome,
    fabric: Fabric,
    jobs: Vec<JobInfo>,
    duration_ps: u64,
}

impl Finished {
    fn told(&self) -> Told<'_> {
        Told { outcome: &self.outcome, fabric: &self.fabric, jobs: &self.jobs, duration_ps: self.duration_ps }
    }
}

fn run_scenario(scenario: Scenario, threads: u16, report: impl FnMut(u64) -> bool) -> anyhow::Result<Finished> {
    let plan = scenario.plan()?;
    let (duration_ps, fabric, jobs) = (plan.duration_ps, plan.fabric.clone(), plan.jobs.clone());
    let late_flows = plan.sources.iter().flatten().map(|source| source.late_count(duration_ps)).sum();
    let late_jobs = jobs.iter().filter(|job| job.start_ps >= duration_ps).count();
    let (wall, cpu) = (Instant::now(), cpu_time());
    let outcome = engine::run(plan, usize::from(threads), report)?;
    let (wall_seconds, cpu_seconds) = (wall.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
    let run = Run {
        title: scenario.title,
        seed: scenario.seed,
        duration_ms: scenario.duration_ms,
        hosts: fabric.host_count,
        switches: fabric.switch_count,
        threads,
        late_flows,
        late_jobs,
        wall_seconds,
        cpu_seconds,
        hops_per_cpu_second: outcome.packet_hops() as f64 / cpu_seconds.max(1e-9),
        report: Report::new(&outcome, &jobs, duration_ps),
    };
    Ok(Finished { run, outcome, fabric, jobs, duration_ps })
}

/// Processor time of all threads.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A line on a terminal's error stream: simulated time, and how long it will take.
struct Progress {
    duration_ps: u64,
    start: Instant,
    shown: Option<Instant>,
    is_wanted: bool,
}

impl Progress {
    fn new(duration_ps: u64, is_json: bool) -> Progress {
        let is_wanted = !is_json && std::io::stderr().is_terminal();
        Progress { duration_ps, start: Instant::now(), shown: None, is_wanted }
    }

    fn show(&mut self, now_ps: u64) -> bool {
        if self.is_wanted && self.shown.unwrap_or(self.start).elapsed() >= PROGRESS_GAP {
            let done = now_ps as f64 / self.duration_ps as f64;
            let left = self.start.elapsed().as_secs_f64() * (1.0 - done) / done.max(1e-9);
            eprint!(
                "\r{:5.1} % of {} ms simulated, {left:.0} s left \x1b[K",
                100.0 * done,
                self.duration_ps / 1_000_000_000
            );
            self.shown = Some(Instant::now());
        }
        true
    }

    fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

fn print(run: &Run) {
    let report = &run.report;
    if !run.title.is_empty() {
        println!("{}", run.title);
    }
    println!("{} hosts, {} switches, {} ms simulated, seed {}", run.hosts, run.switches, run.duration_ms, run.seed);
    if !report.classes.is_empty() {
        let mut rows = table(&["flows", "ended", "going on", "mean", "p50", "p95", "p99"], 1);
        for (place, class) in report.classes.iter().enumerate() {
            let name = if place + 1 == report.classes.len() { "all".into() } else { class_name(class.bytes_max) };
            let times = [class.mean_us, class.p50_us, class.p95_us, class.p99_us];
            let times = times.map(|us| shown(us, show_us));
            let counts = [class.count.to_string(), class.unended.to_string()];
            rows.add_row([name].into_iter().chain(counts).chain(times));
        }
        println!("{rows}");
    }
    print_jobs(report);
    println!(
        "{} of {} flows ended; {:.2} Gbit/s of payload a host",
        report.flows_completed,
        report.flows_started,
        report.goodput_bps / 1e9
    );
    if run.late_flows + run.late_jobs > 0 {
        println!("{} more flows and {} jobs would start after the end of the run", run.late_flows, run.late_jobs);
    }
    println!(
        "switches: {} packets marked, {} dropped, {}{} pauses, longest queue {:.0} KB; hosts: {} segments sent again, {} \
         timeouts",
        report.marked,
        report.dropped,
        if report.corrupted > 0 { format!("{} corrupted on links, ", report.corrupted) } else { String::new() },
        report.pauses,
        report.queued_bytes_max as f64 / 1e3,
        report.resent,
        report.timeouts
    );
    if report.deadlocked_links > 0 {
        println!(
            "warning: a deadlock of pauses: {} links wait for each other in a circle, and nothing there moves any more; the numbers \
             above are of the time before, too",
            report.deadlocked_links
        );
    }
    println!(
        "{:.1} M packet-hops in {:.2} s, {:.1} M per second of processor time; digest {}",
        report.packet_hops as f64 / 1e6,
        run.wall_seconds,
        run.hops_per_cpu_second / 1e6,
        report.digest
    );
}

fn print_jobs(report: &Report) {
    if report.jobs.is_empty() {
        return;
    }
    let columns = ["job", "scheme", "ranks", "iterations", "mean", "p99", "not hidden", "summing", "reduced"];
    let mut rows = table(&columns, 2);
    for job in &report.jobs {
        let times = [job.mean_ms, job.p99_ms, job.communication_ms, job.summing_ms];
        let times = times.map(|ms| shown(ms, |ms| format!("{ms:.3} ms")));
        let counts = [job.workers.to_string(), job.iterations.to_string()];
        let first = [job.name.clone(), job.scheme.to_string()].into_iter().chain(counts);
        let reduced = shown(job.reduced_bps, |bps| format!("{:.2} Gbit/s", bps / 1e9));
        rows.add_row(first.chain(times).chain([reduced]));
    }
    println!("{rows}");
    if report.sums > 0 {
        let found = match report.partial_sums {
            0 => "all exact".into(),
            partial => format!("{partial} without some rank and within bounds, the others exact"),
        };
        println!(
            "{} sums taken, {found}; {} datagrams sent again, {} asked about",
            report.sums, report.aggregation_resent, report.aggregation_asked
        );
    }
}

fn class_name(bytes_max: u64) -> String {
    match bytes_max {
        u64::MAX => "longer".into(),
        bytes if bytes >= 1_000_000 => format!("up to {} MB", bytes / 1_000_000),
        bytes => format!("up to {} kB", bytes / 1_000),
    }
}

/// What never came to an end has no time.
fn shown(known: Option<f64>, show: impl Fn(f64) -> String) -> String {
    known.map_or_else(|| "-".into(), show)
}

fn show_us(us: f64) -> String {
    if us >= 1000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}
