//! Ranks as processes: this test binary started again, one process per rank.

mod common;

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Random, all_reduce, fresh_key, small_windows, sum_floats};
use fanin_numeric::sum::Element;
use fanin_shm::{Config, Error, Group};

const ROLE: &str = "FANIN_SHM_ROLE";
const KEY: &str = "FANIN_SHM_KEY";
const PLACE: &str = "FANIN_SHM_PLACE";

/// How long a killed rank may stay unnoticed; a wait without end would show.
const PROMPTLY: Duration = Duration::from_secs(20);

/// A rank's process. It is killed if the test fails.
struct Rank {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(role: &str, key: &str, rank: u16, size: u16) -> Rank {
        let mut command = Command::new(env::current_exe().expect("the test's own path"));
        command.args(["--exact", "as_a_rank", "--nocapture"]);
        command.env(ROLE, role).env(KEY, key).env(PLACE, format!("{rank} {size}")).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the rank starts");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        Rank { process, output }
    }

    /// What follows `word` in the next line that begins with it.
    fn line(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.output.read_line(&mut line).expect("the rank's output is text");
            assert_ne!(bytes, 0, "the rank ended without `{word}`");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_all(role: &str, size: u16) -> Vec<Rank> {
    let key = fresh_key();
    (0..size).map(|rank| Rank::start(role, &key, rank, size)).collect()
}

/// Not a test of its own: what a rank's process does. Without a role it has nothing to do.
#[test]
fn as_a_rank() {
    let (Ok(role), Ok(key), Ok(place)) = (env::var(ROLE), env::var(KEY), env::var(PLACE)) else { return };
    let (rank, size) = place.split_once(' ').expect("rank and size");
    let config: Config = small_windows(&key, rank.parse().expect("a rank"), size.parse().expect("a size"));
    let mut group = Group::form(&config).expect("the group forms");
    // The test harness has begun this line with the test's name.
    println!();
    match role.as_str() {
        "sums" => run_sums(&mut group, config.local_rank.into(), config.local_size.into()),
        "staged" => run_until_an_error(&mut group, false),
        "direct" => run_until_an_error(&mut group, true),
        "abort" => abort_or_wait(&mut group, config.local_rank),
        other => panic!("no role is called {other}"),
    }
}

fn run_sums(group: &mut Group, rank: usize, size: usize) {
    const FLOATS: usize = 1 << 18;
    let region = group.allocate(4 * FLOATS).expect("there is memory");
    let mut plain = vec![0.0f32; FLOATS];
    let mut random = Random(1);
    for sequence in 0..120 {
        let count = random.pick(&[1, 77, 1024, 5000, 50_001, FLOATS]);
        // Sometimes all have registered memory, sometimes nobody, sometimes half of them.
        let registered = [true, false, rank.is_multiple_of(2)][random.below(3)];
        let memory = if registered { region.as_ptr().cast() } else { plain.as_mut_ptr() };
        // SAFETY: both have FLOATS floats, and no collective runs.
        let values = unsafe { std::slice::from_raw_parts_mut(memory, count) };
        values.iter_mut().enumerate().for_each(|(k, value)| *value = (k % 512 + rank) as f32);
        sum_floats(group, sequence, values).expect("no rank fails");
        let wrong = (0..count).find(|k| values[*k] != (k % 512 * size + size * (size - 1) / 2) as f32);
        assert_eq!(wrong, None, "{count} floats, registered {registered}");
    }
    println!("DONE");
}

fn run_until_an_error(group: &mut Group, registered: bool) {
    const BYTES: usize = 1 << 20;
    let region = group.allocate(BYTES).expect("there is memory");
    let mut plain = vec![0u8; BYTES];
    let memory = if registered { region.as_ptr() } else { plain.as_mut_ptr() };
    for sequence in 0.. {
        let call = all_reduce(sequence, Element::Int32, memory, BYTES);
        // SAFETY: both have BYTES bytes.
        if let Err(error) = unsafe { group.run(&call, None) } {
            println!("ERROR {error}");
            return;
        }
        if sequence == 20 {
            println!("RUNNING");
        }
    }
}

/// Rank 0 gives up after a while; rank 1 is stopped by then and the others wait for it.
fn abort_or_wait(group: &mut Group, rank: u16) {
    println!("RUNNING");
    let aborter = group.aborter();
    let watcher = thread::spawn(move || {
        if rank == 0 {
            thread::sleep(Duration::from_millis(600));
            aborter.abort("rank 1 does not move");
        }
    });
    if rank == 1 {
        thread::sleep(PROMPTLY);
    }
    let error = sum_floats(group, 0, &mut [0.0; 100]).expect_err("rank 1 does not come");
    println!("ERROR {error}");
    watcher.join().expect("no panic");
}

#[test]
fn processes_sum_registered_and_other_memory() {
    for size in [2, 3, 5, 8] {
        for mut rank in start_all("sums", size) {
            rank.line("DONE");
            assert!(rank.process.wait().expect("the rank ends").success());
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    for (role, victim) in [("staged", 2), ("staged", 0), ("direct", 0), ("direct", 3)] {
        let mut ranks = start_all(role, 4);
        ranks.iter_mut().for_each(|rank| drop(rank.line("RUNNING")));
        ranks[victim].process.kill().expect("SIGKILL");
        let killed = Instant::now();
        ranks.remove(victim);
        for rank in &mut ranks {
            let error = rank.line("ERROR");
            assert_eq!(error, Error::PeerDied { rank: victim as u16 }.to_string(), "{role}");
            assert!(rank.process.wait().expect("the rank ends").success());
        }
        assert!(killed.elapsed() < PROMPTLY, "{role}: {:?}", killed.elapsed());
    }
}

#[test]
fn a_stopped_rank_holds_the_others_until_somebody_aborts() {
    let mut ranks = start_all("abort", 3);
    ranks.iter_mut().for_each(|rank| drop(rank.line("RUNNING")));
    let stopped = Command::new("kill").args(["-STOP", &ranks[1].process.id().to_string()]).status();
    assert!(stopped.expect("kill starts").success());
    for index in [0, 2] {
        let expected = Error::Aborted { rank: 0, reason: "rank 1 does not move".to_owned() };
        assert_eq!(ranks[index].line("ERROR"), expected.to_string());
    }
}
