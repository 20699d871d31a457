//! Packet-hops per second of processor time and peak memory, on the workload that simulators are compared with
//! (docs/reference/simulator-speed.md): one DCTCP flow from each host of a fat tree across the network, everything modelled and counted
//! that `fanin sim` models and counts.
//!
//! `cargo bench -p fanin-sim`, or `-- --k 16 --ms 5 --rounds 3` for one size. Sizes are interleaved over the rounds because a shared machine drifts.
//! A line for each run ends in the digest: the same for equal scenarios, whatever made the program faster.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fanin_sim::engine;
use fanin_sim::scenario::Scenario;

const SCENARIO: &str = include_str!("../../../experiments/sim/permutation.toml");
/// Ports of a switch, and simulated milliseconds: 16, 128 and 1,024 hosts, a second each or less.
const SIZES: [(u32, f64); 3] = [(4, 60.0), (8, 10.0), (16, 2.0)];

struct Arguments {
    sizes: Vec<(u32, f64)>,
    rounds: usize,
}

struct Round {
    hosts: u32,
    hops: u64,
    cpu: Duration,
    wall: Duration,
    digest: u64,
}

fn main() -> ExitCode {
    match arguments() {
        Ok(arguments) => run(&arguments),
        Err(error) => {
            eprintln!("{error}; flags are --k EVEN_NUMBER, --ms MILLISECONDS, --rounds COUNT");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn run(Arguments { sizes, rounds }: &Arguments) {
    let mut all: Vec<Vec<Round>> = sizes.iter().map(|_| Vec::new()).collect();
    for _ in 0..*rounds {
        for (&(k, milliseconds), rounds) in sizes.iter().zip(&mut all) {
            let round = measure(k, milliseconds);
            println!(
                "k={k} hosts={} simulated_ms={milliseconds} hops={} cpu_s={:.4} wall_s={:.4} hops_per_cpu_s={:.0} peak_kib={} \
                 digest={:016x}",
                round.hosts,
                round.hops,
                round.cpu.as_secs_f64(),
                round.wall.as_secs_f64(),
                rate(&round),
                peak_kib(),
                round.digest
            );
            rounds.push(round);
        }
    }
    for mut rounds in all {
        rounds.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
        let [least, middle, most] = [0, rounds.len() / 2, rounds.len() - 1].map(|place| rate(&rounds[place]) / 1e6);
        println!("{:>5} hosts: {middle:.1} M packet-hops per CPU second ({least:.1} - {most:.1})", rounds[0].hosts);
    }
}

fn rate(round: &Round) -> f64 {
    round.hops as f64 / round.cpu.as_secs_f64()
}

fn measure(k: u32, milliseconds: f64) -> Round {
    let text = SCENARIO.replace("k = 16", &format!("k = {k}"));
    let mut scenario = Scenario::parse(&text).expect("the scenario of experiments/sim");
    scenario.duration_ms = milliseconds;
    let plan = scenario.plan().unwrap_or_else(|error| panic!("k = {k}: {error:#}"));
    let hosts = plan.fabric.host_count;
    let (start, cpu) = (Instant::now(), cpu_time());
    let outcome = engine::run(plan, 1, |_| true).unwrap_or_else(|error| panic!("k = {k}: {error:#}"));
    let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
    Round { hosts, hops: outcome.packet_hops(), cpu, wall, digest: outcome.digest() }
}

/// What this thread has had of a processor. From a file, because valgrind does not bear what reads the clock without libc.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with CONFIG_SCHED_INFO");
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number of nanoseconds first"))
}

/// The most memory that the process has had, KiB; 0 where the system does not tell.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn arguments() -> Result<Arguments, String> {
    let (mut k, mut milliseconds, mut rounds) = (None, None, 5);
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let wrong = |_| format!("{flag} {value} is not a number");
        match flag.as_str() {
            "--k" => k = Some(value.parse().map_err(wrong)?),
            "--ms" => milliseconds = Some(value.parse().map_err(|_| format!("{flag} {value} is not a number"))?),
            "--rounds" => rounds = value.parse::<usize>().map_err(wrong)?.max(1),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    let usual = |k| SIZES.iter().find(|size| size.0 == k).map_or(1.0, |size| size.1);
    let sizes = k.map_or(SIZES.to_vec(), |k| vec![(k, usual(k))]);
    let sizes = sizes.into_iter().map(|(k, usual)| (k, milliseconds.unwrap_or(usual))).collect();
    Ok(Arguments { sizes, rounds })
}
