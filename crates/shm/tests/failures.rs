//! Ranks that differ, leave, abort, do not come, or die: everybody hears of it, with names, and nobody waits for ever.

mod common;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::{all_reduce, fresh_key, small_windows, sum_floats, with_ranks};
use fanin_numeric::sum::Element;
use fanin_shm::{Call, Config, Error, Group};

/// Longer than any error may take to arrive, far shorter than for ever.
const PROMPTLY: Duration = Duration::from_secs(10);

fn short_timeout(key: &str, rank: u16, size: u16) -> Config {
    Config { form_timeout: Duration::from_millis(300), ..Config::new(key, rank, size) }
}

#[test]
fn missing_ranks_are_named_to_all_who_came() {
    let key = fresh_key();
    let come = |rank: u16| Group::form(&short_timeout(&key, rank, 4)).err().expect("two ranks are missing");
    let (host, guest) = thread::scope(|scope| {
        let guest = scope.spawn(|| come(2));
        (come(0), guest.join().expect("no panic"))
    });
    assert!(matches!(&host, Error::Missing { ranks, .. } if *ranks == [1, 3]), "{host}");
    assert!(guest.to_string().contains("[1, 3]"), "{guest}");
}

#[test]
fn a_missing_leader_is_named() {
    let error = Group::form(&short_timeout(&fresh_key(), 1, 2)).err().expect("rank 0 is missing");
    assert!(matches!(&error, Error::Missing { ranks, .. } if *ranks == [0]), "{error}");
}

#[test]
fn a_late_rank_is_waited_for() {
    let key = fresh_key();
    thread::scope(|scope| {
        for rank in 0..3u16 {
            let key = &key;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(150) * u32::from(rank));
                let mut group = Group::form(&small_windows(key, rank, 3)).expect("all come in time");
                let mut values = [f32::from(rank); 5];
                sum_floats(&mut group, 0, &mut values).expect("no rank fails");
                assert_eq!(values, [3.0; 5]);
            });
        }
    });
}

#[test]
fn a_rank_that_comes_twice_is_refused() {
    let key = fresh_key();
    let come = |rank: u16| Group::form(&short_timeout(&key, rank, 3)).err().expect("rank 2 is missing");
    let errors = thread::scope(|scope| {
        let twice = [scope.spawn(|| come(1)), scope.spawn(|| come(1))];
        come(0);
        twice.map(|rank| rank.join().expect("no panic").to_string())
    });
    assert!(errors.iter().any(|error| error.contains("local rank 1 has come before")), "{errors:?}");
}

#[test]
fn different_settings_are_refused_on_all() {
    let key = fresh_key();
    let depth = |rank: u16| if rank == 1 { 8 } else { 4 };
    let come = |rank: u16| Group::form(&Config { depth: depth(rank), ..small_windows(&key, rank, 2) }).err();
    let errors = thread::scope(|scope| {
        let guest = scope.spawn(|| come(1));
        [come(0), guest.join().expect("no panic")]
    });
    for error in errors {
        let text = error.expect("the settings differ").to_string();
        assert!(text.contains("8 windows of 4096 bytes") && text.contains("4 windows of 4096 bytes"), "{text}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let good = Config::new("key", 0, 1);
    for (config, word) in [
        (Config { local_size: 0, ..good.clone() }, "ranks"),
        (Config { local_rank: 1, ..good.clone() }, "ranks"),
        (Config { local_size: 65, ..good.clone() }, "ranks"),
        (Config { window_bytes: 0, ..good.clone() }, "windows of 0 bytes"),
        (Config { window_bytes: 5000, ..good.clone() }, "windows of 5000 bytes"),
        (Config { depth: 2, ..good.clone() }, "ring of 2"),
        (Config { depth: 6, ..good.clone() }, "ring of 6"),
        (Config { key: String::new(), ..good.clone() }, "key"),
    ] {
        let error = Group::form(&config).err().expect("it cannot work");
        assert!(matches!(&error, Error::Config(text) if text.contains(word)), "{error}");
    }
}

#[test]
fn calls_that_cannot_work_are_refused_and_harm_nothing() {
    with_ranks(2, small_windows, |mut group, rank| {
        let mut values = [1.0f32; 16];
        let good = all_reduce(0, Element::Float32, values.as_mut_ptr().cast(), 64);
        for bad in [
            Call { contributes: 0..65, ..good.clone() },
            Call { receives: 2..64, ..good.clone() },
            Call { bytes: 62, ..good.clone() },
            Call { operation: fanin_numeric::sum::Operation::Xor, ..good.clone() },
            Call { input: std::ptr::null(), ..good.clone() },
        ] {
            // SAFETY: the call is refused before it touches memory.
            let error = unsafe { group.run(&bad, None) }.expect_err("it cannot work");
            assert!(matches!(error, Error::Call(_)), "{error}");
        }
        sum_floats(&mut group, 0, &mut values).expect("nothing was started");
        assert_eq!(values, [2.0; 16], "rank {rank}");
    });
}

#[test]
fn ranks_that_call_different_collectives_hear_both_descriptions() {
    for (first, second) in [(64, 128), (64, 64), (64, 1 << 20), (1 << 20, 2 << 20)] {
        let errors = with_ranks(3, small_windows, |mut group, rank| {
            let bytes = if rank == 2 { second } else { first };
            let mut values = vec![0u8; bytes];
            let mut call = all_reduce(7, Element::Float32, values.as_mut_ptr(), bytes);
            call.tag = if rank == 2 { 2 } else { 1 };
            call.description = format!("bucket {} of rank {rank}", call.tag);
            // SAFETY: the vector has as many bytes.
            let error = unsafe { group.run(&call, None) }.expect_err("the ranks disagree");
            // The group stays failed.
            // SAFETY: as above.
            assert_eq!(unsafe { group.run(&call, None) }, Err(error.clone()));
            error
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch(_)), "{text}");
            assert!(text.contains("bucket 1 of rank 0") && text.contains("bucket 2 of rank 2"), "{text}");
        }
    }
}

#[test]
fn an_abort_wakes_everyone_with_its_reason() {
    let errors = with_ranks(4, small_windows, |mut group, rank| {
        if rank == 3 {
            // It never calls; a watcher of rank 1 gives up for all.
            return loop {
                let mut values = [0.0];
                thread::sleep(Duration::from_millis(400));
                if let Err(error) = sum_floats(&mut group, 0, &mut values) {
                    break error;
                }
            };
        }
        let aborter = group.aborter();
        let watcher = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            if rank == 1 {
                aborter.abort("no progress within 100 ms");
            }
        });
        let error = sum_floats(&mut group, 0, &mut vec![0.0; 10_000]).expect_err("rank 3 is not there");
        watcher.join().expect("no panic");
        error
    });
    let expected = Error::Aborted { rank: 1, reason: "no progress within 100 ms".to_owned() };
    assert_eq!(errors, vec![expected; 4]);
}

#[test]
fn a_rank_that_leaves_is_named_once_it_is_needed() {
    let results = with_ranks(3, small_windows, |mut group, rank| {
        let mut values = vec![1.0; 5000];
        // The last collective of rank 1 completes on all, though it leaves at once.
        sum_floats(&mut group, 0, &mut values).expect("nobody has left yet");
        assert_eq!(values[4999], 3.0);
        if rank == 1 {
            return None;
        }
        let start = Instant::now();
        let error = sum_floats(&mut group, 1, &mut values).expect_err("rank 1 has left");
        assert!(start.elapsed() < PROMPTLY);
        Some(error)
    });
    assert_eq!(results, [Some(Error::PeerLeft { rank: 1 }), None, Some(Error::PeerLeft { rank: 1 })]);
}

#[test]
fn a_registered_output_is_private_after_a_failure() {
    const BYTES: usize = 1 << 20;
    with_ranks(2, small_windows, |mut group, rank| {
        let region = group.allocate(BYTES).expect("there is memory");
        // SAFETY: the region is this rank's own, and no collective runs.
        unsafe { region.as_ptr().write_bytes(rank as u8 + 1, BYTES) }
        let call = |tag| Call { tag, ..all_reduce(0, Element::Int32, region.as_ptr(), BYTES) };
        // SAFETY: the region has as many bytes.
        unsafe { group.run(&call(rank as u32), None) }.expect_err("the tags differ");
        // What it held is still there and can be changed.
        // SAFETY: the collective has ended.
        let content = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), BYTES) };
        assert!(content.iter().all(|byte| *byte == rank as u8 + 1));
        content.fill(9);
        drop(group);
        assert!(content.iter().all(|byte| *byte == 9));
    });
}

#[test]
fn nobody_succeeds_with_memory_that_changed_and_nothing_is_written_after_an_error() {
    const BYTES: usize = 1 << 20;
    const SPOILED: u8 = 0x55;
    let mut outcomes = [0, 0];
    for round in 0..60 {
        let all_ended = Barrier::new(3);
        let succeeded = with_ranks(3, small_windows, |mut group, rank| {
            let region = group.allocate(BYTES).expect("there is memory");
            // SAFETY: this rank's own memory; `run` is the only other user and gets a pointer.
            let values = || unsafe { std::slice::from_raw_parts_mut(region.as_ptr().cast::<i32>(), BYTES / 4) };
            let call = |sequence| all_reduce(sequence, Element::Int32, region.as_ptr(), BYTES);
            values().fill(1);
            // SAFETY: the region has as many bytes.
            unsafe { group.run(&call(0), None) }.expect("nobody aborts yet");
            values().fill(rank as i32);
            let aborter = group.aborter();
            // The first time before it calls, so that one abort matters for sure.
            let delay = Duration::from_micros(25 * round);
            if rank == 1 && round == 0 {
                aborter.abort("this round is long enough");
            }
            let watcher = thread::spawn(move || {
                thread::sleep(delay);
                if rank == 1 {
                    aborter.abort("this round is long enough");
                }
            });
            // SAFETY: as above.
            let outcome = unsafe { group.run(&call(1), None) };
            match outcome {
                Ok(()) => assert!(values().iter().all(|value| *value == 3), "a wrong sum in round {round}"),
                // The caller may do with it what it likes, at once.
                Err(_) => values().fill(i32::from_ne_bytes([SPOILED; 4])),
            }
            all_ended.wait();
            let kept = values().iter().all(|value| *value == i32::from_ne_bytes([SPOILED; 4]));
            assert!(outcome.is_ok() || kept, "rank {rank} wrote after an error in round {round}");
            watcher.join().expect("no panic");
            outcome.is_ok()
        });
        succeeded.into_iter().for_each(|succeeded| outcomes[usize::from(succeeded)] += 1);
    }
    assert!(outcomes[0] > 0, "no abort came in time to matter: {outcomes:?}");
}

#[test]
fn what_a_host_keeps_on_several_threads_may_move_between_them() {
    fn moves<T: Send>() {}
    moves::<Group>();
    moves::<fanin_shm::Region>();
    moves::<fanin_shm::Aborter>();
    moves::<fanin_shm::WindowDone>();
}

#[test]
fn groups_give_all_descriptors_back() {
    // Other tests of this process open descriptors as well, so this one counts in a process of its own.
    if std::env::var_os("FANIN_SHM_COUNT").is_none() {
        let program = std::env::current_exe().expect("the test's own path");
        let arguments = ["--exact", "groups_give_all_descriptors_back", "--nocapture"];
        let status = std::process::Command::new(program).args(arguments).env("FANIN_SHM_COUNT", "1").status();
        assert!(status.expect("the test starts").success());
        return;
    }
    let count = || std::fs::read_dir("/proc/self/fd").expect("there is /proc").count();
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
        maps.lines().filter(|line| line.contains("fanin-shm")).count()
    };
    let before = count();
    for _ in 0..20 {
        with_ranks(3, small_windows, |mut group, _| {
            let region = group.allocate(1 << 20).expect("there is memory");
            let call = all_reduce(0, Element::Float32, region.as_ptr(), 1 << 20);
            // SAFETY: the region has as many bytes.
            unsafe { group.run(&call, None) }.expect("no rank fails");
        });
        Group::form(&short_timeout(&fresh_key(), 0, 2)).err().expect("a rank is missing");
    }
    assert_eq!((count(), maps()), (before, 0));
}
