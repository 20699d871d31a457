//! What a rank is told when something is wrong: always an error, in time,
//! that names who and what.

mod common;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::{Path, World, collective};
use fanin_host::{Blackhole, CollectiveKind, DataType, Error, ErrorKind, ReduceOp, Session, SessionConfig};

fn sum(session: &Session, length: usize) -> Result<(), Error> {
    let input = vec![1f32; length];
    let mut output = vec![0f32; length];
    collective(session, CollectiveKind::AllReduce, DataType::Float32, ReduceOp::Sum, &input, &mut output)
}

fn patient(config: SessionConfig) -> SessionConfig {
    SessionConfig { collective_timeout: Duration::from_millis(1500), ..config }
}

fn contains_all(error: &Error, words: &[&str]) {
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {}", error.message);
    }
}

#[test]
fn a_rank_that_never_starts_is_named() {
    let world = World::new(3);
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let join = |rank| {
            let config = SessionConfig { join_timeout: Duration::from_secs(1), ..world.config(rank) };
            scope.spawn(move || Session::connect(config).err().expect("rank 1 is missing"))
        };
        let threads = [join(0), join(2)];
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for error in &errors {
        assert_eq!(error.kind, ErrorKind::Control);
        contains_all(error, &["rank 1"]);
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_with_chunk_and_slot() {
    let world = World::new(3);
    let errors = world.run(patient, |rank, session| {
        if rank == 2 {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        sum(&session, 10_000).err()
    });
    let error = errors[0].as_ref().expect("rank 2 did not call");
    assert_eq!(error.kind, ErrorKind::TimedOut);
    contains_all(
        error,
        &["rank 0 of 3", "all_reduce float32 x 10000 sum", "chunk", "slot", "of rank 2", "no collective"],
    );
}

#[test]
fn a_rank_that_leaves_in_the_middle_ends_the_others_soon() {
    let world = World::new(3);
    let start = Instant::now();
    let errors = world.run(
        |config| config,
        |rank, session| {
            sum(&session, 100).expect("all are there");
            if rank == 1 {
                return None;
            }
            sum(&session, 1_000_000).err()
        },
    );
    assert_eq!(errors[0].as_ref().expect("rank 1 is gone").kind, ErrorKind::PeerLost);
    contains_all(errors[2].as_ref().expect("rank 1 is gone"), &["rank 1 has left", "all_reduce"]);
    assert!(start.elapsed() < Duration::from_secs(10), "long before the collective's own timeout");
}

#[test]
fn different_sizes_are_a_mismatch_that_shows_both_calls() {
    let world = World::new(2);
    let errors = world.run(|config| config, |rank, session| sum(&session, 1000 + usize::from(rank)).err());
    let mismatch = errors.iter().flatten().find(|error| error.kind == ErrorKind::Mismatch).expect("one is refused");
    contains_all(mismatch, &["x 1000", "x 1001", "same size"]);
    assert!(errors.iter().all(Option::is_some), "both ranks end with an error");
}

#[test]
fn different_order_is_a_mismatch() {
    let world = World::new(2);
    let errors = world.run(
        |config| config,
        |rank, session| {
            let lengths = if rank == 0 { [64, 4096] } else { [4096, 64] };
            lengths.iter().find_map(|&length| sum(&session, length).err())
        },
    );
    assert!(errors.iter().flatten().any(|error| error.kind == ErrorKind::Mismatch));
    assert!(errors.iter().all(Option::is_some));
}

#[test]
fn a_dead_direction_is_told_from_a_missing_rank() {
    let world = World::new(2);
    let blind = |config: SessionConfig| {
        let blackhole = if config.rank == 0 { Blackhole::Receive } else { Blackhole::None };
        SessionConfig { blackhole, ..patient(config) }
    };
    let errors = world.run(blind, |_, session| sum(&session, 100).err());
    contains_all(errors[0].as_ref().expect("rank 0 is deaf"), &["between the switch and this rank", "firewall"]);
}

#[test]
fn a_switch_that_stops_ends_the_wait() {
    let mut world = World::new(2);
    let sessions: Vec<Session> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let config = world.config(rank);
                scope.spawn(move || Session::connect(config).expect("joins"))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    world.stop_switch();
    let start = Instant::now();
    let error = sum(&sessions[0], 100).expect_err("no switch");
    assert_eq!(error.kind, ErrorKind::SwitchLost, "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_wrong_address_is_an_error_at_once() {
    let config = SessionConfig { controller: "127.0.0.1:1".into(), run_id: "r".into(), ..SessionConfig::default() };
    let error = Session::connect(config).err().expect("nobody listens");
    assert_eq!(error.kind, ErrorKind::Control);
    contains_all(&error, &["127.0.0.1:1"]);
}

#[test]
fn abort_ends_what_is_in_progress() {
    for world in World::on_each_path(4) {
        // Who aborts takes the job's parameter server along, if it has it: not before all ranks are in.
        let all_are_in = Barrier::new(4);
        let errors = world.run(
            |config| config,
            |rank, session| {
                all_are_in.wait();
                if rank == 3 {
                    std::thread::sleep(Duration::from_millis(800));
                    return None;
                }
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| sum(&session, 100).err());
                    std::thread::sleep(Duration::from_millis(200));
                    session.abort("the user pressed a key");
                    waiting.join().expect("no panic")
                })
            },
        );
        for error in errors[..3].iter().map(|error| error.as_ref().expect("aborted")) {
            assert_eq!(error.kind, ErrorKind::Aborted, "{:?}: {error}", world.path);
            contains_all(error, &["pressed a key"]);
        }
    }
}

#[test]
fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let good = SessionConfig { controller: "h:1".into(), run_id: "r".into(), ..SessionConfig::default() };
    let bad = [
        SessionConfig { controller: String::new(), ..good.clone() },
        SessionConfig { run_id: String::new(), ..good.clone() },
        SessionConfig { rank: 1, ..good.clone() },
        SessionConfig { slots_per_lane: Some(3), ..good.clone() },
        SessionConfig { element_count: Some(33), ..good },
    ];
    for config in bad {
        assert_eq!(Session::connect(config).err().expect("refused").kind, ErrorKind::Invalid);
    }
}

const SHARED: [Path; 2] = [Path::SharedMemory, Path::TwoHosts];

#[test]
fn in_shared_memory_a_rank_that_does_not_call_is_named() {
    const UNIT: &str = "with 0 of 1 windows done";
    for path in SHARED {
        let errors = World::on(path, 4).run(patient, |rank, session| {
            if rank == 3 {
                std::thread::sleep(Duration::from_secs(3));
                return None;
            }
            sum(&session, 10_000).err()
        });
        // Whoever runs out of time first ends the others of its host, who say so.
        for error in errors[..3].iter().map(|error| error.as_ref().expect("rank 3 did not call")) {
            assert!(matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Aborted | ErrorKind::PeerLost), "{error}");
        }
        let timed_out = errors.iter().flatten().filter(|error| error.kind == ErrorKind::TimedOut);
        let is_named = |message: &str| message.contains("rank 3 is in no collective") && message.contains(UNIT);
        let named = timed_out.filter(|error| is_named(&error.message));
        assert!(named.count() >= 1, "{path:?}: {errors:?}");
    }
}

#[test]
fn in_shared_memory_a_rank_that_leaves_in_the_middle_ends_the_others_soon() {
    for path in SHARED {
        let start = Instant::now();
        let errors = World::on(path, 4).run(
            |config| config,
            |rank, session| {
                sum(&session, 100).expect("all are there");
                if rank == 1 { None } else { sum(&session, 1_000_000).err() }
            },
        );
        for rank in [0, 2, 3] {
            let error = errors[rank].as_ref().expect("rank 1 is gone");
            assert!(matches!(error.kind, ErrorKind::PeerLost | ErrorKind::Aborted), "{path:?}, rank {rank}: {error}");
            // Rank 3, on rank 1's host, knows at once and leaves as well: the other host may hear of that first.
            let names_it = |gone| error.message.contains(&format!("rank {gone} has left"));
            let named = error.message.contains("rank 1") || (path == Path::TwoHosts && rank != 3 && names_it(3));
            assert!(named, "{path:?}, rank {rank}: {error}");
        }
        assert!(start.elapsed() < Duration::from_secs(10), "long before the collective's own timeout");
    }
}

#[test]
fn in_shared_memory_different_sizes_are_a_mismatch_that_shows_both_calls() {
    let world = World::on(Path::SharedMemory, 2);
    let errors = world.run(|config| config, |rank, session| sum(&session, 1000 + usize::from(rank)).err());
    for error in errors.iter().map(|error| error.as_ref().expect("both ranks end with an error")) {
        assert_eq!(error.kind, ErrorKind::Mismatch, "{error}");
        contains_all(error, &["x 1000", "x 1001", "same size"]);
    }
}

#[test]
fn hosts_that_disagree_are_a_mismatch() {
    let world = World::on(Path::TwoHosts, 4);
    let errors = world.run(|config| config, |rank, session| sum(&session, 1000 + usize::from(rank % 2)).err());
    assert!(errors.iter().all(Option::is_some), "all ranks end with an error");
    let mismatch = errors.iter().flatten().find(|error| error.kind == ErrorKind::Mismatch).expect("one is refused");
    contains_all(mismatch, &["x 1000", "x 1001"]);
}

#[test]
fn ranks_that_leave_one_by_one_in_good_order_harm_nobody() {
    for path in SHARED {
        for _ in 0..20 {
            let errors = World::on(path, 4).run(|config| config, |_, session| sum(&session, 300_000).err());
            assert!(errors.iter().all(Option::is_none), "{path:?}: {errors:?}");
        }
    }
}

#[test]
fn hosts_that_disagree_about_more_than_a_window_shows_are_a_mismatch() {
    use CollectiveKind::{AllReduce, Broadcast, ReduceScatter};
    // What both hosts call: windows of equal length and type, so that nothing but the collective's tag differs.
    const MIB: usize = 1 << 18;
    let pairs = [
        [(Broadcast { root: 0 }, ReduceOp::Sum, MIB), (Broadcast { root: 1 }, ReduceOp::Sum, MIB)],
        [(AllReduce, ReduceOp::Sum, MIB), (AllReduce, ReduceOp::Average, MIB)],
        [(AllReduce, ReduceOp::Sum, MIB), (ReduceScatter, ReduceOp::Sum, MIB)],
        [(AllReduce, ReduceOp::Sum, MIB), (AllReduce, ReduceOp::Sum, 2 * MIB)],
    ];
    for pair in pairs {
        let errors = World::on(Path::TwoHosts, 4).run(
            |config| config,
            |rank, session| {
                let (kind, operator, length) = pair[usize::from(rank) % 2];
                let input = vec![1f32; length];
                let mut output = vec![0f32; if kind == ReduceScatter { length / 4 } else { length }];
                collective(&session, kind, DataType::Float32, operator, &input, &mut output).err()
            },
        );
        assert!(errors.iter().all(Option::is_some), "{pair:?}: all ranks end with an error: {errors:?}");
        assert!(errors.iter().flatten().any(|error| error.kind == ErrorKind::Mismatch), "{pair:?}: {errors:?}");
    }
}
