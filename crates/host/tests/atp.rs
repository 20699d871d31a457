//! ATP over real sockets: shared slots, several switches, parameter servers of their own, and what goes wrong.

mod common;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Path, World, collective};
use fanin_control::client::{ClientConfig, ControlClient};
use fanin_host::{CollectiveKind, DataType, Error, ErrorKind, ReduceOp, Scale, Session, SessionConfig, Stats};
use fanin_server::{ServerConfig, Standing};
use fanin_switch::{Config, Daemon};

fn sum(session: &Session, input: &[f32]) -> Result<Vec<f32>, Error> {
    let mut output = vec![0f32; input.len()];
    collective(session, CollectiveKind::AllReduce, DataType::Float32, ReduceOp::Sum, input, &mut output)?;
    Ok(output)
}

/// Values whose sums the fixed point holds exactly.
fn values(rank: u16, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((index * 37 + usize::from(rank) * 101) % 1000) as f32 / 1024.0 - 0.5).collect()
}

fn check_sums(session: &Session, rank: u16, world_size: u16, length: usize) {
    let sums = sum(session, &values(rank, length)).expect("completes");
    let all: Vec<Vec<f32>> = (0..world_size).map(|rank| values(rank, length)).collect();
    for (index, got) in sums.iter().enumerate() {
        let expected: f32 = all.iter().map(|values| values[index]).sum();
        assert!((got - expected).abs() < 1e-6, "element {index} of {length}: {got}, not {expected}");
    }
}

fn local(atp_slot_count: u16) -> Config {
    let mut config = Config::local(Ipv4Addr::LOCALHOST.into());
    config.data.atp_slot_count = atp_slot_count;
    config
}

fn server_config(address: Ipv4Addr, spin: Duration) -> ServerConfig {
    ServerConfig { address: address.into(), port_base: 0, thread_count: 2, spin, loss: None }
}

/// A parameter server of its own, on a thread that ends with the sender.
fn standing(controller: &str) -> (crossbeam_channel::Sender<()>, std::thread::JoinHandle<fanin_server::Totals>) {
    let config = server_config(Ipv4Addr::LOCALHOST, Duration::from_micros(50));
    let server = Standing::start(&config, &ClientConfig::new(controller), "a server".into()).expect("loopback ports");
    let (stop, stopped) = crossbeam_channel::bounded(1);
    let run = move || {
        let _ = server.run(&stopped);
        // Counters are published when the threads fall asleep.
        std::thread::sleep(Duration::from_millis(150));
        server.server().totals()
    };
    (stop, std::thread::spawn(run))
}

#[test]
fn two_jobs_meet_in_few_slots_and_a_third_has_its_own() {
    let world = World::around(&local(8), Path::Atp, 3);
    let (second, third) = (World::sharing(&world, Path::Atp), World::sharing(&world, Path::Switch));
    let adjust = |config| SessionConfig { element_count: Some(64), lane_count: Some(2), ..config };
    std::thread::scope(|scope| {
        for job in [&world, &second, &third] {
            scope.spawn(move || {
                job.run(adjust, |rank, session| {
                    for length in [1, 64, 20_000, 100_000] {
                        check_sums(&session, rank, 3, length);
                    }
                })
            });
        }
    });
    let client = ControlClient::connect(&ClientConfig::new(world.controller())).expect("the switch runs");
    let counters = client.status().expect("answers").counters.expect("counters");
    assert!(counters.collisions > 0, "{counters:?}");
}

#[test]
fn lost_datagrams_change_no_sum() {
    for probability in [0.001, 0.02] {
        let world = World::on(Path::Atp, 3);
        let lossy =
            |config: SessionConfig| SessionConfig { loss: Some((probability, 7)), element_count: Some(256), ..config };
        let resends = world.run(lossy, |rank, session| {
            for _ in 0..3 {
                check_sums(&session, rank, 3, 200_000);
            }
            session.stats().resends
        });
        assert!(resends.iter().sum::<u64>() > 0, "losses were injected");
    }
}

#[test]
fn sums_that_leave_32_bits_and_what_is_no_number_come_as_floats() {
    let outcomes = World::on(Path::Atp, 3).run(
        |config| SessionConfig { element_count: Some(64), ..config },
        |rank, session| {
            let mut input = values(rank, 1000);
            input[10] = 15.0; // 3 x 15 x 10^8 is more than 32 bits hold; one is not.
            input[200] = if rank == 1 { f32::INFINITY } else { 1.0 };
            input[300] = if rank == 2 { f32::NAN } else { 1.0 };
            input[400] = 3e38;
            input[500] = if rank == 0 { 1e30 } else { -5e29 };
            let sums = sum(&session, &input).expect("completes");
            (sums, session.stats())
        },
    );
    for (sums, stats) in &outcomes {
        assert_eq!(sums[10], 45.0);
        assert_eq!(sums[200], f32::INFINITY);
        assert!(sums[300].is_nan());
        assert_eq!(sums[400], f32::INFINITY, "9e38 is more than a float32 holds");
        assert!(sums[500].abs() < 1e24, "{}", sums[500]);
        let others: f32 = (0..3).map(|rank| values(rank, 1000)[600]).sum();
        assert!((sums[600] - others).abs() < 1e-6);
        assert!(stats.float_resends > 0 && stats.float_resends < 16, "only such blocks go again: {stats:?}");
    }
    let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
    assert!(outcomes.iter().all(|(sums, _)| bits(sums) == bits(&outcomes[0].0)), "all ranks have the same bits");
}

/// Large gradients in windows of 8 chunks, 64 of them: what rank 0's stats say at the end, and the sums.
fn large_gradients(scale_of: impl Fn(u16) -> Scale + Sync, loss: f64) -> Vec<(Vec<f32>, Stats)> {
    World::on(Path::Atp, 3).run(
        |config| SessionConfig {
            element_count: Some(64),
            slots_per_lane: Some(8),
            lane_count: Some(1),
            atp_scale: scale_of(config.rank),
            loss: (loss > 0.0).then_some((loss, 5)),
            ..config
        },
        |rank, session| {
            let input: Vec<f32> = values(rank, 4096).iter().map(|value| value * 1e6).collect();
            (sum(&session, &input).expect("completes"), session.stats())
        },
    )
}

#[test]
fn large_gradients_are_scaled_by_what_they_ask_for() {
    let inputs: Vec<Vec<f32>> = (0..3).map(|rank| values(rank, 4096)).collect();
    for loss in [0.0, 0.02] {
        let outcomes = large_gradients(|_| Scale::Dynamic, loss);
        for (sums, stats) in &outcomes {
            assert!(stats.blocks_scaled >= 40, "all but the first windows of 64: {stats:?}");
            assert!(stats.float_resends > 0, "the first window leaves 32 bits: {stats:?}");
            assert_eq!(sums, &outcomes[0].0, "all ranks have the same bits");
            for (element, sum) in sums.iter().enumerate() {
                let exact: f64 = inputs.iter().map(|input| f64::from(input[element] * 1e6)).sum();
                assert!((f64::from(*sum) - exact).abs() <= 0.1, "element {element}: {sum} for {exact}");
            }
        }
    }
}

#[test]
fn hosts_that_sum_first_are_windows_ahead_with_their_scales() {
    let count = 6 << 20;
    let outcomes = World::on(Path::AtpHosts, 4).run(
        |config| SessionConfig { atp_scale: Scale::Dynamic, ..config },
        |rank, session| {
            let input: Vec<f32> = values(rank, count).iter().map(|value| value * 1e6).collect();
            (sum(&session, &input).expect("completes"), session.stats())
        },
    );
    // Ranks 0 and 1 speak for their hosts.
    for (sums, stats) in &outcomes[..2] {
        assert_eq!(sums, &outcomes[0].0, "all ranks have the same bits");
        assert!(stats.blocks_scaled > 4 * stats.float_resends, "all but the first windows: {stats:?}");
    }
}

#[test]
fn one_rank_with_the_static_scale_decides_for_all() {
    let scale_of = |rank| if rank == 1 { Scale::Static } else { Scale::Dynamic };
    for (_, stats) in large_gradients(scale_of, 0.0) {
        assert_eq!(stats.blocks_scaled, 0, "{stats:?}");
        assert!(stats.float_resends >= 64, "every chunk leaves 32 bits: {stats:?}");
    }
}

/// Addresses of this test process alone, on loopback.
fn own_address(number: u8) -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 128 | (pid >> 8) as u8, pid as u8, number)
}

/// Fig. 9 of ATP: two racks below a spine.
fn racks(name: &str) -> PathBuf {
    let switch = |name: &str, number: u8, parent: &str| {
        let address = own_address(number);
        format!(
            "[[switch]]\nname = '{name}'\ncontrol = '{address}:50099'\ndata = '{address}:48864'\nthreads = 2\n{parent}\n"
        )
    };
    let text =
        switch("spine", 1, "") + &switch("rack0", 2, "parent = 'spine'") + &switch("rack1", 3, "parent = 'spine'");
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).expect("a temporary file");
    file
}

fn placed(file: &std::path::Path, name: &str) -> Config {
    let mut config = Config::local(Ipv4Addr::LOCALHOST.into());
    config.topology_file = Some(file.into());
    config.name = Some(name.into());
    config.placed().expect("a switch of the topology")
}

#[test]
fn workers_of_two_racks_and_beside_the_server_sum_at_two_levels() {
    let file = racks("levels");
    let leaves = ["rack0", "rack1"].map(|name| Daemon::start_own(&placed(&file, name)).expect("own addresses"));
    let world = World::around(&placed(&file, "spine"), Path::Atp, 6);
    let (stop, server) = standing(world.controller());
    let beside = |config: SessionConfig| {
        let name = ["rack0", "spine", "rack1"][usize::from(config.rank % 3)];
        SessionConfig { switch_name: Some(name.into()), lane_count: Some(3), element_count: Some(128), ..config }
    };
    world.run(beside, |rank, session| {
        for length in [1, 1000, 100_000] {
            check_sums(&session, rank, 6, length);
        }
    });
    let client = ControlClient::connect(&ClientConfig::new(world.controller())).expect("the switch runs");
    let status = client.status().expect("answers");
    assert_eq!(status.servers.len(), 1);
    drop(stop);
    let totals = server.join().expect("no panic");
    assert!(totals.chunks > 790, "{totals:?}");
    // Without losses nearly every chunk comes in one piece, whichever rack its parts are from.
    assert!(totals.chunks_whole * 10 > totals.chunks * 9, "{totals:?}");
    let error = Session::connect(SessionConfig {
        controller: leaves[0].control_address().to_string(),
        run_id: "r".into(),
        ..SessionConfig::default()
    });
    let error = error.err().expect("racks admit nobody");
    assert!(error.message.contains(&format!("FANIN_SWITCH={}:50099", own_address(1))), "{error}");
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_switch_of_the_topology_that_is_not_there_is_named() {
    let file = racks("absent");
    let mut spine = placed(&file, "spine");
    // Beside the other test's spine.
    spine.control_address.set_port(0);
    spine.data.port_base = 0;
    let world = World::around(&spine, Path::Atp, 2);
    let error = std::thread::scope(|scope| {
        let join = |rank| {
            let config = SessionConfig { switch_name: Some("rack1".into()), ..world.config(rank) };
            scope.spawn(move || Session::connect(config).err().expect("rack1 does not run"))
        };
        let threads = [join(0), join(1)];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for error in &error {
        assert!(error.message.contains("switch `rack1` at"), "{error}");
    }
    let unknown = SessionConfig { switch_name: Some("rack9".into()), ..world.config(0) };
    let error = Session::connect(unknown).err().expect("there is no such switch");
    assert!(error.message.contains("`rack9`") && error.message.contains("spine, rack0, rack1"), "{error}");
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_job_without_a_server_is_told_what_to_start() {
    let world = World::on(Path::Atp, 1);
    let config = SessionConfig { own_server: Some(false), ..world.config(0) };
    let error = Session::connect(config).err().expect("nobody serves");
    assert!(error.message.contains("fanin server"), "{error}");
    let none = World::around(&local(0), Path::Atp, 1);
    let error = Session::connect(none.config(0)).err().expect("no slots");
    assert!(error.message.contains("no slots for ATP"), "{error}");
}

#[test]
fn a_server_that_goes_away_ends_the_wait_and_is_named() {
    let world = World::on(Path::Atp, 2);
    let (stop, server) = standing(world.controller());
    let start = Instant::now();
    let (stop, server) = (std::sync::Mutex::new(Some(stop)), std::sync::Mutex::new(Some(server)));
    let errors = world.run(
        |config| config,
        |rank, session| {
            check_sums(&session, rank, 2, 10_000);
            if rank == 0 {
                drop(stop.lock().expect("no panic").take());
                server.lock().expect("no panic").take().map(|server| server.join().expect("no panic"));
            }
            loop {
                if let Err(error) = sum(&session, &values(rank, 1000)) {
                    return error;
                }
            }
        },
    );
    for error in &errors {
        assert!(error.message.contains("parameter server") || error.message.contains("has left"), "{error}");
    }
    assert!(errors.iter().any(|error| error.message.contains("parameter server was lost (a server")), "{errors:?}");
    assert!(start.elapsed() < Duration::from_secs(10), "long before the collective's own timeout");
}

#[test]
fn a_rank_that_does_not_call_is_named_by_the_server() {
    let world = World::on(Path::Atp, 3);
    let patient = |config| SessionConfig { collective_timeout: Duration::from_secs(2), ..config };
    let errors = world.run(patient, |rank, session| {
        if rank == 2 {
            std::thread::sleep(Duration::from_secs(4));
            return None;
        }
        sum(&session, &values(rank, 10_000)).err()
    });
    let error = errors[1].as_ref().expect("rank 2 did not call");
    assert_eq!(error.kind, ErrorKind::TimedOut);
    for part in ["at the parameter server chunk", "lacks the contribution of rank 2", "no collective"] {
        assert!(error.message.contains(part), "`{part}` in: {error}");
    }
}

#[test]
fn a_rank_that_dies_ends_the_others_soon_and_its_job_leaves_nothing_behind() {
    let world = World::on(Path::Atp, 3);
    let start = Instant::now();
    let errors = world.run(
        |config| config,
        |rank, session| {
            check_sums(&session, rank, 3, 1000);
            if rank == 1 {
                return None;
            }
            sum(&session, &values(rank, 500_000)).err()
        },
    );
    assert!(errors[0].is_some() && errors[2].is_some());
    assert!(start.elapsed() < Duration::from_secs(10), "long before the collective's own timeout");
    let client = ControlClient::connect(&ClientConfig::new(world.controller())).expect("the switch runs");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !client.status().expect("answers").jobs.is_empty() {
        assert!(Instant::now() < deadline, "the job ends with its ranks");
        std::thread::sleep(Duration::from_millis(20));
    }
    World::sharing(&world, Path::Atp).run(|config| config, |rank, session| check_sums(&session, rank, 3, 1000));
}

#[test]
fn a_server_answers_until_the_other_ranks_have_their_sums() {
    for seed in 0..4 {
        let world = World::on(Path::Atp, 2);
        let lossy = |config: SessionConfig| {
            let loss = (config.rank == 1).then_some((0.1, seed));
            SessionConfig { loss, element_count: Some(256), ..config }
        };
        let outcomes = world.run(lossy, |rank, session| {
            let outcome = sum(&session, &values(rank, 30_000)).map(|_| ());
            // As Python's sessions end, which have two parts of it.
            session.begin_close();
            drop(session);
            outcome
        });
        for outcome in outcomes {
            outcome.expect("the last answers come although rank 0 has closed");
        }
    }
}

#[test]
fn a_window_that_would_fill_a_server_s_memory_is_made_smaller() {
    let world = World::on(Path::Atp, 1);
    let wide = |config| SessionConfig { slots_per_lane: Some(32_768), lane_count: Some(1), ..config };
    let slots = world.run(wide, |rank, session| {
        check_sums(&session, rank, 1, 10_000);
        session.stats().slots_per_lane
    });
    assert_eq!(slots, [4096]);
}
