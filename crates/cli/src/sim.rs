//! `fanin sim`: a network from a file, packet by packet.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use fanin_sim::engine::{self, Outcome};
use fanin_sim::fabric::Fabric;
use fanin_sim::report::{self, FlowClass, Report};
use fanin_sim::scenario::{JobInfo, Scenario};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::bench::output::{table, write};
use crate::bench::plot::{Figure, Series, Shape};

/// Between two lines of progress.
const PROGRESS_GAP: Duration = Duration::from_millis(500);
/// Points of a drawn distribution.
const CURVE_POINTS: usize = 200;

/// Flags of `fanin sim`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// TOML file of a scenario, see docs/guides/simulation.md and experiments/sim.
    file: PathBuf,
    /// Seed in place of the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulated milliseconds in place of the file's.
    #[arg(long, value_name = "MS")]
    duration_ms: Option<f64>,
    /// Threads; the outcome is the same for any number.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Write report.json, flows.csv, jobs.csv, iterations.csv, links.csv and completion.svg into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON in place of tables.
    #[arg(long)]
    json: bool,
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
    /// Of the run alone, without reading the file and building the network.
    wall_seconds: f64,
    cpu_seconds: f64,
    hops_per_cpu_second: f64,
    #[serde(flatten)]
    report: Report,
}

/// Runs a scenario.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let text = std::fs::read_to_string(&arguments.file)
        .with_context(|| format!("cannot read {}", arguments.file.display()))?;
    let run = simulate(arguments, &text).with_context(|| arguments.file.display().to_string())?;
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
    let plan = scenario.plan()?;
    let (duration_ps, fabric, jobs) = (plan.duration_ps, plan.fabric.clone(), plan.jobs.clone());
    let (wall, cpu) = (Instant::now(), cpu_time());
    let mut progress = Progress::new(duration_ps, arguments.json);
    let outcome = engine::run(plan, usize::from(arguments.threads), |now_ps| progress.show(now_ps))?;
    let (wall_seconds, cpu_seconds) = (wall.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
    progress.clear();
    if let Some(folder) = &arguments.out {
        write_tables(folder, &outcome, &fabric, &jobs)?;
    }
    let run = Run {
        title: scenario.title,
        seed: scenario.seed,
        duration_ms: scenario.duration_ms,
        hosts: fabric.host_count,
        switches: fabric.switch_count,
        threads: arguments.threads,
        wall_seconds,
        cpu_seconds,
        hops_per_cpu_second: outcome.packet_hops() as f64 / cpu_seconds.max(1e-9),
        report: Report::new(&outcome, &jobs, duration_ps),
    };
    if let Some(folder) = &arguments.out {
        write(&folder.join("report.json"), &(serde_json::to_string_pretty(&run)? + "\n"))?;
    }
    Ok(run)
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
        let mut shown = table(&["flows", "ended", "mean", "p50", "p95", "p99"], 1);
        for (place, class) in report.classes.iter().enumerate() {
            let name = if place + 1 == report.classes.len() { "all".into() } else { class_name(class) };
            let times = [class.mean_us, class.p50_us, class.p95_us, class.p99_us].map(show_us);
            shown.add_row([name, class.count.to_string()].into_iter().chain(times));
        }
        println!("{shown}");
    }
    print_jobs(report);
    println!(
        "{} of {} flows ended; {:.2} Gbit/s of payload a host",
        report.flows_completed,
        report.flows_started,
        report.goodput_bps / 1e9
    );
    println!(
        "switches: {} packets marked, {} dropped, longest queue {:.0} KB; hosts: {} segments sent again, {} timeouts",
        report.marked,
        report.dropped,
        report.queued_bytes_max as f64 / 1e3,
        report.resent,
        report.timeouts
    );
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
    let columns = ["job", "scheme", "ranks", "iterations", "mean", "p99", "communication", "reduced"];
    let mut shown = table(&columns, 2);
    for job in &report.jobs {
        let times = [job.mean_ms, job.p99_ms, job.communication_ms].map(|ms| format!("{ms:.3} ms"));
        let counts = [job.workers.to_string(), job.iterations.to_string()];
        let first = [job.name.clone(), job.scheme.to_string()].into_iter().chain(counts);
        shown.add_row(first.chain(times).chain([format!("{:.2} Gbit/s", job.reduced_bps / 1e9)]));
    }
    println!("{shown}");
    if report.sums > 0 {
        println!(
            "{} sums taken, all exact; {} datagrams sent again, {} asked about",
            report.sums, report.aggregation_resent, report.aggregation_asked
        );
    }
}

fn class_name(class: &FlowClass) -> String {
    match class.bytes_max {
        u64::MAX => "longer".into(),
        bytes if bytes >= 1_000_000 => format!("up to {} MB", bytes / 1_000_000),
        bytes => format!("up to {} kB", bytes / 1_000),
    }
}

fn show_us(us: f64) -> String {
    if us >= 1000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

fn write_jobs(folder: &Path, outcome: &Outcome, jobs: &[JobInfo]) -> anyhow::Result<()> {
    let mut text = "job,name,scheme,workers,trees,bytes,compute_ps,start_ps,hosts\n".to_string();
    for (number, job) in jobs.iter().enumerate() {
        let hosts: Vec<String> = job.hosts.iter().map(u16::to_string).collect();
        let (name, scheme, workers, trees, bytes) = (&job.name, job.scheme, hosts.len(), job.trees, job.bytes);
        let (compute, start, hosts) = (job.compute_ps, job.start_ps, hosts.join(" "));
        let _ = writeln!(text, "{number},{name},{scheme},{workers},{trees},{bytes},{compute},{start},{hosts}");
    }
    write(&folder.join("jobs.csv"), &text)?;
    let mut text = "job,iteration,start_ps,communication_ps,end_ps\n".to_string();
    for one in report::iterations(outcome, jobs) {
        let _ =
            writeln!(text, "{},{},{},{},{}", one.job, one.iteration, one.start_ps, one.communication_ps, one.end_ps);
    }
    write(&folder.join("iterations.csv"), &text)
}

fn write_tables(folder: &Path, outcome: &Outcome, fabric: &Fabric, jobs: &[JobInfo]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut flows = "source,destination,bytes,start_ps,completion_ps\n".to_string();
    for flow in &outcome.flows {
        let (source, destination) = (flow.source, flow.destination);
        let _ = writeln!(flows, "{source},{destination},{},{},{}", flow.bytes, flow.start_ps, flow.completion_ps);
    }
    write(&folder.join("flows.csv"), &flows)?;
    if !jobs.is_empty() {
        write_jobs(folder, outcome, jobs)?;
    }
    let name = |node: u32| match node.checked_sub(fabric.host_count) {
        None => format!("host{node}"),
        Some(switch) => format!("switch{switch}"),
    };
    let mut links = "from,to,packets,bytes,marked,dropped,queued_bytes_max\n".to_string();
    for link in &outcome.links {
        let sent = &link.counters;
        let _ = writeln!(
            links,
            "{},{},{},{},{},{},{}",
            name(link.from),
            name(link.to),
            sent.sent,
            sent.sent_bytes,
            sent.marked,
            sent.dropped,
            sent.queued_bytes_max
        );
    }
    write(&folder.join("links.csv"), &links)?;
    completion_times(outcome).map_or(Ok(()), |figure| figure.write(&folder.join("completion.svg")))
}

/// Distribution of completion times, by the same sizes as the table.
fn completion_times(outcome: &Outcome) -> Option<Figure> {
    let mut series = Vec::new();
    for (low, high, name) in
        [(0, 100_000, "up to 100 kB"), (100_000, 10_000_000, "up to 10 MB"), (10_000_000, u64::MAX, "longer")]
    {
        let of_class = outcome.flows.iter().filter(|flow| flow.bytes > low && flow.bytes <= high);
        let mut times: Vec<f64> = of_class.map(|flow| flow.completion_ps as f64 / 1e6).collect();
        times.sort_by(f64::total_cmp);
        let step = times.len().div_ceil(CURVE_POINTS).max(1);
        let share = |place: usize| 100.0 * (place + 1) as f64 / times.len() as f64;
        let points: Vec<_> =
            times.iter().enumerate().step_by(step).map(|(place, &time)| (time, share(place))).collect();
        if points.len() > 1 {
            series.push(Series { name: name.into(), points });
        }
    }
    (!series.is_empty()).then(|| Figure {
        title: "Flow completion times".into(),
        x_label: "completion time, µs".into(),
        y_label: "flows that took no longer, %".into(),
        shape: Shape::Lines { log_y: false, x_bytes: false },
        series,
    })
}
