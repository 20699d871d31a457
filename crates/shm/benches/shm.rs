//! Time of an all-reduce among processes of one host, staged and direct, beside memcpy in the same seconds:
//! `cargo bench -p fanin-shm [-- 2 4 8]` for these numbers of ranks.
//!
//! Machines drift, so only ratios of one run are worth keeping: each round times all ways in turn, and the table shows
//! medians over the rounds, as rank 0 sees them. `memcpy` is every rank copying a tensor of this size for itself at the same
//! time; the share is its time over the all-reduce's. Sums are checked in every round.
//!
//! On a shared machine give it a scheduling group of its own:
//! `setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec nice -n -20 cargo bench -p fanin-shm'`.

use std::env;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanin_numeric::sum::{Element, Operation};
use fanin_shm::{Call, Config, Group, Region};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20];
const ROUNDS: usize = 9;
/// A sample repeats the collective until it has moved about this much, to be long beside the clock's own cost.
const SAMPLE_BYTES: usize = 32 << 20;
const REPEATS_MAX: usize = 200;

const RANK: &str = "FANIN_SHM_BENCH_RANK";
const SIZE: &str = "FANIN_SHM_BENCH_SIZE";
const KEY: &str = "FANIN_SHM_BENCH_KEY";

fn main() {
    if let (Ok(rank), Ok(size), Ok(key)) = (env::var(RANK), env::var(SIZE), env::var(KEY)) {
        return run_rank(&key, rank.parse().expect("a rank"), size.parse().expect("a number of ranks"));
    }
    let asked: Vec<u16> = env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if asked.is_empty() { vec![2, 4, 8] } else { asked };
    println!("all-reduce of float32 in place, median of {ROUNDS} interleaved rounds, microseconds (share of memcpy)");
    println!("ranks     bytes      memcpy        staged           direct");
    for size in sizes {
        let key = format!("bench-{}-{size}", std::process::id());
        let children: Vec<Child> = (0..size).map(|rank| start(&key, rank, size)).collect();
        for mut child in children {
            assert!(child.wait().expect("the rank ends").success(), "a rank failed");
        }
    }
}

fn start(key: &str, rank: u16, size: u16) -> Child {
    let program = env::current_exe().expect("the benchmark's own path");
    let mut command = Command::new(program);
    command.env(RANK, rank.to_string()).env(SIZE, size.to_string()).env(KEY, key);
    command.spawn().expect("a rank starts")
}

/// One rank's tensors and place in the order of collectives.
struct Rank {
    group: Group,
    rank: usize,
    size: usize,
    sequence: u64,
    plain: Vec<f32>,
    copy: Vec<f32>,
    region: Region,
}

fn run_rank(key: &str, rank: u16, size: u16) {
    let group = Group::form(&config(key, rank, size)).expect("the group forms");
    let largest = SIZES[SIZES.len() - 1];
    let region = group.allocate(largest).expect("there is memory");
    let plain = vec![0.0; largest / 4];
    let copy = vec![1.0; largest / 4];
    let (rank, size) = (rank.into(), size.into());
    let mut rank = Rank { group, rank, size, sequence: 0, plain, copy, region };
    for bytes in SIZES {
        rank.measure(bytes);
    }
}

/// `FANIN_SHM_BENCH_WINDOW` (bytes) and `FANIN_SHM_BENCH_DEPTH` change the ring.
fn config(key: &str, rank: u16, size: u16) -> Config {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse().expect("a number"));
    let mut config = Config::new(key, rank, size);
    config.window_bytes = number("FANIN_SHM_BENCH_WINDOW").unwrap_or(config.window_bytes);
    config.depth = number("FANIN_SHM_BENCH_DEPTH").unwrap_or(config.depth);
    config
}

impl Rank {
    fn measure(&mut self, bytes: usize) {
        let repeats = (SAMPLE_BYTES / bytes).clamp(1, REPEATS_MAX);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            let round_times = [
                self.time(repeats, |rank| rank.copy_tensor(bytes)),
                self.time_sum(repeats, bytes, false),
                self.time_sum(repeats, bytes, true),
            ];
            // The first round touches the memory.
            if round > 0 {
                times.iter_mut().zip(round_times).for_each(|(times, time)| times.push(time));
            }
        }
        if self.rank == 0 {
            let [memcpy, staged, direct] = times.map(median_us);
            let share = |time: f64| format!("{time:>10.1} ({:>4.1} %)", 100.0 * memcpy / time);
            println!("{:>5} {bytes:>9} {memcpy:>11.1} {} {}", self.size, share(staged), share(direct));
        }
    }

    /// Time of one of `repeats` calls, all ranks beginning together.
    fn time(&mut self, repeats: usize, mut call: impl FnMut(&mut Rank)) -> Duration {
        self.barrier();
        let start = Instant::now();
        for _ in 0..repeats {
            call(self);
        }
        start.elapsed() / repeats as u32
    }

    fn copy_tensor(&mut self, bytes: usize) {
        self.plain[..bytes / 4].copy_from_slice(&self.copy[..bytes / 4]);
    }

    fn time_sum(&mut self, repeats: usize, bytes: usize, registered: bool) -> Duration {
        let memory = if registered { self.region.as_ptr().cast() } else { self.plain.as_mut_ptr() };
        // SAFETY: both have at least as many bytes, and no collective runs now.
        let tensor = |memory: *mut f32| unsafe { std::slice::from_raw_parts_mut(memory, bytes / 4) };
        tensor(memory).fill(self.rank as f32 / 1024.0);
        let time = self.time(repeats, |rank| rank.sum(memory.cast(), bytes));
        // The average of all ranks, which averaging again leaves as it is; exact for powers of two.
        let expected = (self.size - 1) as f32 / 2048.0;
        let wrong = tensor(memory).iter().position(|value| *value != expected);
        assert_eq!(wrong, None, "rank {}: a wrong sum of {bytes} bytes", self.rank);
        time
    }

    fn sum(&mut self, memory: *mut u8, bytes: usize) {
        let call = Call { divisor: self.size as f32, ..self.call("all_reduce", bytes, memory) };
        // SAFETY: the memory has as many bytes, and nobody else touches it.
        unsafe { self.group.run(&call, None) }.expect("no rank fails");
    }

    fn barrier(&mut self) {
        let call = self.call("barrier", 0, std::ptr::null_mut());
        // SAFETY: no memory is involved.
        unsafe { self.group.run(&call, None) }.expect("no rank fails");
    }

    fn call(&mut self, name: &str, bytes: usize, memory: *mut u8) -> Call {
        self.sequence += 1;
        Call {
            sequence: self.sequence,
            tag: bytes as u32,
            description: name.to_owned(),
            operation: Operation::Sum,
            element: Element::Float32,
            divisor: 1.0,
            bytes,
            contributes: 0..bytes,
            receives: 0..bytes,
            input: memory,
            output: memory,
            windows_done: Arc::default(),
        }
    }
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
