//! ATP jobs that go on without ranks: one that is killed, perhaps replaced, and one that is late.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Path, World};
use fanin_host::{
    Algorithm, ErrorKind, MissingRanks, OnPeerLoss, ReduceOp, Scale, Session, SessionConfig, StragglerPolicy,
};
use fanin_switch::{Config, Daemon};

const WORLD_SIZE: u16 = 3;
const LENGTH: usize = 300_000;
/// Collectives of each rank that is left.
const ROUNDS: usize = 24;
/// The rank is killed after this one, while it may be in the next.
const ROUND_OF_DEATH: usize = 6;
const CONTROLLER: &str = "FANIN_TEST_CONTROLLER";
const BESIDE: &str = "FANIN_TEST_BESIDE";
const REPLACES: &str = "FANIN_TEST_REPLACES";
const TIMES: &str = "FANIN_TEST_TIMES";
/// Sums of so many times the values leave 32 bits at the scale 10^8.
const LARGE: f32 = 256.0;
/// Times that rank 2 is killed and replaced.
const REPLACEMENTS: usize = 3;
/// Longer than a test process takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longer than a small collective takes on a busy machine.
const SHORT: Duration = Duration::from_secs(5);
/// Several times longer than the root of a topology waits between two looks at the other switches.
const SOME_LOOKS: Duration = Duration::from_millis(1_200);

fn config(controller: &str, rank: u16) -> SessionConfig {
    SessionConfig {
        controller: controller.into(),
        run_id: "one".into(),
        rank,
        world_size: WORLD_SIZE,
        algorithm: Algorithm::Atp,
        element_count: Some(256),
        join_timeout: PATIENCE,
        collective_timeout: PATIENCE,
        ..SessionConfig::default()
    }
}

fn going_on(controller: &str, rank: u16, beside: &str) -> SessionConfig {
    let switch_name = Some(beside.to_string()).filter(|name| !name.is_empty());
    SessionConfig {
        on_peer_loss: OnPeerLoss::Continue,
        switch_name,
        atp_scale: Scale::Dynamic,
        ..config(controller, rank)
    }
}

/// A sum of these tells who is in it.
fn value(rank: u16) -> f32 {
    f32::from(1u16 << rank) / 8.0
}

fn sum_of(missing: u32) -> f32 {
    (0..WORLD_SIZE).filter(|rank| missing >> rank & 1 == 0).map(value).sum()
}

/// One all-reduce: the bits that came, and what is declared about them. Every element holds all ranks, or all but those who
/// are declared missing.
fn all_reduce(session: &Session, rank: u16, operator: ReduceOp, times: f32) -> (Vec<u32>, MissingRanks) {
    let mut values = vec![times * value(rank); LENGTH];
    let missing = session.all_reduce(&mut values, operator).expect("completes").missing;
    let bits = missing.ranks.expect("three ranks have bits");
    let share = |missing: u32| match operator {
        ReduceOp::Average => times * sum_of(missing) / f32::from(WORLD_SIZE - missing.count_ones() as u16),
        _ => times * sum_of(missing),
    };
    let near = |got: &f32, wanted: f32| (got - wanted).abs() < 1e-6 * times;
    let possible = [share(0), share(bits)];
    for (index, got) in values.iter().enumerate() {
        assert!(possible.iter().any(|wanted| near(got, *wanted)), "element {index} is {got}, not {possible:?}");
    }
    if missing.least > 0 {
        assert!(values.iter().all(|got| near(got, possible[1])), "nobody's sum is whole: {missing:?}");
    }
    (values.iter().map(|value| value.to_bits()).collect(), missing)
}

/// Not a test: the process that the test below kills.
#[test]
fn a_rank_of_its_own() {
    let Ok(controller) = std::env::var(CONTROLLER) else { return };
    let beside = std::env::var(BESIDE).expect("set with the controller");
    let replaces = std::env::var(REPLACES).ok();
    let times: f32 = std::env::var(TIMES).expect("set with the controller").parse().expect("a number");
    let is_replacement = replaces.is_some();
    let session =
        Session::connect(SessionConfig { is_replacement, ..going_on(&controller, 2, &beside) }).expect("joins");
    if let Some(last) = replaces {
        return be_replaced(&session, last == "last", times);
    }
    for _ in 0..ROUNDS {
        let mut values = vec![times * value(2); LENGTH];
        let _ = session.all_reduce(&mut values, ReduceOp::Sum);
    }
    panic!("nobody has killed this process");
}

/// A replacement's sums are everybody's. The last one comes to the others' end, the others are killed.
fn be_replaced(session: &Session, is_last: bool, times: f32) {
    assert!(session.stats().lost_ranks.is_empty());
    for _ in 0..if is_last { 1 } else { ROUNDS } {
        let (_, missing) = all_reduce(session, 2, ReduceOp::Sum, times);
        assert_eq!(missing.most, 0, "everybody is here: {missing:?}");
    }
    assert!(is_last, "nobody has killed this process");
    assert_eq!(session.admit(Duration::ZERO, &|| false).expect("nobody is lost"), Vec::<u16>::new());
}

fn spawn_rank(controller: &str, beside: &str, times: f32) -> Child {
    spawn(controller, beside, None, times)
}

fn spawn(controller: &str, beside: &str, replaces: Option<&str>, times: f32) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "a_rank_of_its_own", "--nocapture"])
        .env(CONTROLLER, controller)
        .env(BESIDE, beside)
        .env(TIMES, times.to_string());
    if let Some(which) = replaces {
        command.env(REPLACES, which);
    }
    command.spawn().expect("starts")
}

/// Rank 2 is killed, and the others go on. By rank: the switch that it is beside.
fn kill_one_of(world: &World, beside: [&str; WORLD_SIZE as usize]) {
    let mut child = spawn_rank(world.controller(), beside[2], 1.0);
    let (told, dying) = channel();
    let outcomes = std::thread::scope(|scope| {
        let run = |rank: u16| {
            let told = told.clone();
            let controller = world.controller();
            scope.spawn(move || {
                let config = going_on(controller, rank, beside[usize::from(rank)]);
                let session = Session::connect(config).expect("joins");
                let mut outcomes = Vec::new();
                for round in 0..ROUNDS {
                    outcomes.push(all_reduce(&session, rank, ReduceOp::Sum, 1.0));
                    if round == ROUND_OF_DEATH {
                        let _ = told.send(());
                    }
                }
                // The root of a topology would notice by then if a switch had lost its part.
                if !beside[usize::from(rank)].is_empty() {
                    std::thread::sleep(SOME_LOOKS);
                }
                outcomes.push(all_reduce(&session, rank, ReduceOp::Average, 1.0));
                assert_eq!(session.stats().lost_ranks, [2]);
                outcomes
            })
        };
        let ranks = [run(0), run(1)];
        dying.recv().expect("a round is over");
        child.kill().expect("it still runs");
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    child.wait().expect("it is gone");
    assert!(outcomes[0] == outcomes[1], "both have the same bits of the same ranks");
    let missing: Vec<MissingRanks> = outcomes[0].iter().map(|(_, missing)| *missing).collect();
    assert_eq!(missing[0], MissingRanks { ranks: Some(0), ..MissingRanks::default() });
    let last = missing.last().expect("rounds");
    assert_eq!((last.least, last.most, last.named()), (1, 1, Some(vec![2])));
}

#[test]
fn a_rank_is_killed_and_the_others_go_on() {
    let world = World::around(&Config::local(Ipv4Addr::LOCALHOST.into()), Path::Atp, WORLD_SIZE);
    kill_one_of(&world, [""; WORLD_SIZE as usize]);
}

/// Rank 2 is killed in the middle of collectives and replaced, again and again, each time beside the next of these switches.
fn replace_one_of(world: &World, others: [&str; 2], places: [&str; REPLACEMENTS + 1], times: f32) {
    let mut child = spawn_rank(world.controller(), places[0], times);
    let (told, dying) = channel();
    let outcomes = std::thread::scope(|scope| {
        let run = |rank: u16| {
            let told = told.clone();
            let (controller, beside) = (world.controller(), others[usize::from(rank)]);
            scope.spawn(move || {
                let session = Session::connect(going_on(controller, rank, beside)).expect("joins");
                let mut outcomes = Vec::new();
                for _ in 0..REPLACEMENTS {
                    for round in 0..ROUND_OF_DEATH {
                        outcomes.push(all_reduce(&session, rank, ReduceOp::Sum, times));
                        if round == 1 {
                            let _ = told.send(());
                        }
                    }
                    assert_eq!(session.admit(PATIENCE, &|| false).expect("a replacement comes"), [2]);
                    assert!(session.stats().lost_ranks.is_empty());
                    let whole = all_reduce(&session, rank, ReduceOp::Sum, times);
                    assert_eq!(whole.1.most, 0, "everybody is here: {:?}", whole.1);
                    outcomes.push(whole);
                }
                let is_scaled = session.stats().blocks_scaled > 0;
                assert_eq!(is_scaled, times == LARGE, "{:?}", session.stats());
                assert_eq!(session.admit(Duration::ZERO, &|| false).expect("nobody is lost"), Vec::<u16>::new());
                outcomes
            })
        };
        let ranks = [run(0), run(1)];
        for (place, beside) in places.iter().enumerate().skip(1) {
            (0..2).for_each(|_| dying.recv().expect("a round is over"));
            child.kill().expect("it still runs");
            child.wait().expect("it is gone");
            let which = if place == REPLACEMENTS { "last" } else { "killed" };
            child = spawn(world.controller(), beside, Some(which), times);
        }
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    assert!(outcomes[0] == outcomes[1], "both have the same bits of the same ranks");
    assert!(child.wait().expect("it ends").success(), "the last replacement has seen what it should");
}

#[test]
fn a_rank_is_killed_and_replaced_again_and_again() {
    let world = World::around(&Config::local(Ipv4Addr::LOCALHOST.into()), Path::Atp, WORLD_SIZE);
    replace_one_of(&world, ["", ""], [""; REPLACEMENTS + 1], LARGE);
}

/// Rank 0 would not wait at all, and waits with rank 1 for longer than the time for a collective. Nobody comes.
#[test]
fn ranks_that_would_wait_for_different_times_go_on_together() {
    let world = World::around(&Config::local(Ipv4Addr::LOCALHOST.into()), Path::Atp, WORLD_SIZE);
    let mut child = spawn_rank(world.controller(), "", 1.0);
    let (told, dying) = channel();
    std::thread::scope(|scope| {
        let run = |rank: u16, wait: Duration| {
            let (told, controller) = (told.clone(), world.controller());
            scope.spawn(move || {
                let config = SessionConfig { collective_timeout: SHORT, ..going_on(controller, rank, "") };
                let session = Session::connect(config).expect("joins");
                all_reduce(&session, rank, ReduceOp::Sum, 1.0);
                let _ = told.send(());
                assert_eq!(session.admit(wait, &|| false).expect("rank 1 waits"), Vec::<u16>::new());
            })
        };
        let ranks = [run(0, Duration::ZERO), run(1, 2 * SHORT)];
        (0..2).for_each(|_| dying.recv().expect("the first round is over"));
        child.kill().expect("it still runs");
        ranks.into_iter().for_each(|rank| rank.join().expect("no panic"));
    });
    child.wait().expect("it is gone");
}

/// A switch of a topology in a file, on addresses of this test process alone.
fn placed(file: &std::path::Path, name: &str) -> Config {
    let mut config = Config::local(Ipv4Addr::LOCALHOST.into());
    config.topology_file = Some(file.to_path_buf());
    config.name = Some(name.into());
    config.placed().expect("a switch of the topology")
}

/// A root and two racks, and a world at the root.
fn in_racks(name: &str, run: impl Fn(&dyn Fn() -> World)) {
    let pid = std::process::id();
    // Tests of one process run at the same time.
    let third = if name == "replaced" { 20 } else { 10 };
    let switch = |(number, name, parent): (u8, &str, &str)| {
        let address = Ipv4Addr::new(127, 64 | (pid >> 8) as u8 & 63, pid as u8, third + number);
        format!("[[switch]]\nname = '{name}'\ncontrol = '{address}:50099'\ndata = '{address}:48864'\n{parent}")
    };
    let below = "parent = 'spine'\n";
    let switches = [(0, "spine", ""), (1, "rack0", below), (2, "rack1", below)];
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-loss-{name}-{pid}.toml"));
    std::fs::write(&file, switches.map(switch).concat()).expect("a temporary file");
    let _racks = ["rack0", "rack1"].map(|name| Daemon::start_own(&placed(&file, name)).expect("own addresses"));
    run(&|| World::around(&placed(&file, "spine"), Path::Atp, WORLD_SIZE));
    let _ = std::fs::remove_file(&file);
}

#[test]
fn a_rank_is_killed_in_a_rack_that_stays_or_is_empty_then() {
    in_racks("lost", |world| {
        for beside in [["rack0", "rack1", "rack1"], ["spine", "rack0", "rack1"]] {
            kill_one_of(&world(), beside);
        }
    });
}

#[test]
fn a_rank_is_replaced_in_its_rack_in_another_and_in_one_that_was_empty() {
    in_racks("replaced", |world| {
        replace_one_of(&world(), ["rack0", "spine"], ["rack1", "rack1", "rack0", "rack1"], 1.0)
    });
}

#[test]
fn a_late_rank_takes_the_sum_of_the_others() {
    let world = World::around(&Config::local(Ipv4Addr::LOCALHOST.into()), Path::Atp, WORLD_SIZE);
    for rest_of_collective in [false, true] {
        let policy = StragglerPolicy { after_us: 5_000, share_min_percent: 50, rest_of_collective };
        let run_id = if rest_of_collective { "skip" } else { "partial" };
        let (done, others_done) = channel();
        let outcomes = std::thread::scope(|scope| {
            let run = |rank: u16, wait: Option<std::sync::mpsc::Receiver<()>>| {
                let (done, controller) = (done.clone(), world.controller());
                scope.spawn(move || {
                    let config =
                        SessionConfig { stragglers: Some(policy), run_id: run_id.into(), ..config(controller, rank) };
                    let session = Session::connect(config).expect("joins");
                    if let Some(others) = wait {
                        (1..WORLD_SIZE).for_each(|_| others.recv().expect("they go on without this rank"));
                    }
                    let late = all_reduce(&session, rank, ReduceOp::Average, 1.0);
                    let _ = done.send(());
                    // Everything but a sum of floats waits for all.
                    let mut ones = [1i32; 5];
                    let whole = session.all_reduce(&mut ones, ReduceOp::Sum).expect("completes");
                    assert_eq!((ones, whole.missing.most), ([i32::from(WORLD_SIZE); 5], 0));
                    late
                })
            };
            let ranks = [run(0, None), run(1, None), run(2, Some(others_done))];
            ranks.map(|rank| rank.join().expect("no panic"))
        });
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "all ranks have the same bits");
        let (_, missing) = &outcomes[2];
        assert_eq!((missing.least, missing.most, missing.named()), (1, 1, Some(vec![2])));
    }
}

#[test]
fn switchml_jobs_refuse_to_go_on() {
    let base = || SessionConfig { algorithm: Algorithm::SwitchMl, ..config("127.0.0.1:1", 0) };
    let policy = StragglerPolicy { after_us: 1, share_min_percent: 50, rest_of_collective: false };
    let refused = [
        SessionConfig { on_peer_loss: OnPeerLoss::Continue, ..base() },
        SessionConfig { stragglers: Some(policy), ..base() },
    ];
    for config in refused {
        let error = Session::connect(config).err().expect("refused");
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("use the algorithm atp"), "{error}");
    }
}
