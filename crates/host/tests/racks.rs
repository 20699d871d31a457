//! SwitchML jobs over several switches: every hop is a daemon with its own ports on loopback.

mod common;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Path, World, collective};
use fanin_control::client::{ClientConfig, ControlClient};
use fanin_control::proto;
use fanin_host::{CollectiveKind, DataType, ElementFormat, Error, ErrorKind, ReduceOp, Session, SessionConfig};
use fanin_switch::{Config, Daemon, Handle};

/// An address of this test process alone, on loopback.
fn own_address(number: u8) -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(127, 64 | (pid >> 8) as u8 & 63, pid as u8, number)
}

/// A topology in a file, which ends with the value.
struct Tree {
    file: PathBuf,
}

impl Tree {
    /// Names of switches and of their parents, the root first; each has an address from `first` on.
    fn new(first: u8, switches: &[(&str, &str)]) -> Tree {
        let entry = |(name, parent): &(&str, &str), address: Ipv4Addr| {
            let parent = if parent.is_empty() { String::new() } else { format!("parent = '{parent}'\n") };
            format!(
                "[[switch]]\nname = '{name}'\ncontrol = '{address}:50099'\ndata = '{address}:48864'\nthreads = 2\n{parent}"
            )
        };
        let entries = switches.iter().zip(first..).map(|(switch, number)| entry(switch, own_address(number)));
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("fanin-racks-{}-{first}.toml", std::process::id()));
        std::fs::write(&file, entries.collect::<String>()).expect("a temporary file");
        Tree { file }
    }

    fn config(&self, name: &str) -> Config {
        let mut config = Config::local(Ipv4Addr::LOCALHOST.into());
        config.topology_file = Some(self.file.clone());
        config.name = Some(name.into());
        config.placed().expect("a switch of the topology")
    }

    fn start(&self, name: &str) -> Handle {
        Daemon::start_own(&self.config(name)).expect("own addresses")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

const TWO_RACKS: [(&str, &str); 3] = [("spine", ""), ("rack0", "spine"), ("rack1", "spine")];

/// Ranks stand beside these switches in turn.
fn beside(names: &'static [&'static str]) -> impl Fn(SessionConfig) -> SessionConfig + Sync {
    move |config| {
        let name = names[usize::from(config.rank) % names.len()];
        SessionConfig { switch_name: Some(name.into()), element_count: Some(64), lane_count: Some(3), ..config }
    }
}

fn status(controller: &str) -> proto::StatusResponse {
    let client = ControlClient::connect(&ClientConfig::new(controller)).expect("the switch runs");
    client.status().expect("answers")
}

fn counters(switch: &Handle) -> proto::DataplaneCounters {
    // Counters are published when the threads fall asleep.
    std::thread::sleep(Duration::from_millis(150));
    status(&switch.control_address().to_string()).counters.expect("counters")
}

fn sum(session: &Session, input: &[f32]) -> Result<Vec<f32>, Error> {
    let mut output = vec![0f32; input.len()];
    collective(session, CollectiveKind::AllReduce, DataType::Float32, ReduceOp::Sum, input, &mut output)?;
    Ok(output)
}

fn floats(rank: u16, length: usize) -> Vec<f32> {
    (0..length).map(|index| ((index * 37 + usize::from(rank) * 101) % 1009) as f32 / 7.0 - 60.0).collect()
}

fn words(rank: u16, length: usize) -> Vec<i32> {
    (0..length).map(|index| (index as i32).wrapping_mul(0x9e37_79b1u32 as i32) ^ (i32::from(rank) << 20)).collect()
}

/// What a rank gets from every kind of collective, bit by bit.
fn everything(session: &Session, rank: u16, world_size: u16) -> Vec<Vec<u32>> {
    let mut results = Vec::new();
    let part = 700;
    let whole = part * usize::from(world_size);
    let mut call_floats = |kind, operator, input: usize, output: usize| {
        let mut result = vec![0f32; output];
        collective(session, kind, DataType::Float32, operator, &floats(rank, input), &mut result).expect("completes");
        results.push(result.iter().map(|value| value.to_bits()).collect());
    };
    for operator in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max, ReduceOp::Min] {
        call_floats(CollectiveKind::AllReduce, operator, 20_001, 20_001);
    }
    for root in 0..world_size {
        let read = if root == rank { 900 } else { 0 };
        call_floats(CollectiveKind::Reduce { root }, ReduceOp::Sum, 900, read);
        call_floats(CollectiveKind::Broadcast { root }, ReduceOp::Sum, if root == rank { 900 } else { 0 }, 900);
    }
    call_floats(CollectiveKind::ReduceScatter, ReduceOp::Average, whole, part);
    call_floats(CollectiveKind::AllGather, ReduceOp::Sum, part, whole);
    for operator in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
        let mut result = vec![0i32; 3_000];
        let input = words(rank, 3_000);
        let kind = CollectiveKind::AllReduce;
        collective(session, kind, DataType::Int32, operator, &input, &mut result).expect("completes");
        results.push(result.into_iter().map(|word| word as u32).collect());
    }
    results
}

/// The same collectives over a tree and over one switch.
fn assert_as_over_one_switch(tree: &World, adjust: impl Fn(SessionConfig) -> SessionConfig + Sync) {
    let world_size = tree.world_size;
    let over_tree = tree.run(adjust, |rank, session| everything(&session, rank, world_size));
    let plain = |config| SessionConfig { element_count: Some(64), lane_count: Some(3), ..config };
    let over_one = World::new(world_size).run(plain, |rank, session| everything(&session, rank, world_size));
    for (rank, (tree, one)) in over_tree.iter().zip(&over_one).enumerate() {
        for (call, (tree, one)) in tree.iter().zip(one).enumerate() {
            assert!(tree == one, "rank {rank}, call {call}: not the bits that one switch gives");
        }
    }
    let expected: f32 = (0..world_size).map(|rank| floats(rank, 20_001)[77]).sum();
    let got = f32::from_bits(over_tree[0][0][77]);
    assert!((got - expected).abs() < 1e-2, "{got}, not {expected}");
}

#[test]
fn two_racks_and_workers_beside_the_root_get_the_bits_that_one_switch_gives() {
    let tree = Tree::new(1, &TWO_RACKS);
    let racks = ["rack0", "rack1"].map(|name| tree.start(name));
    let world = World::around(&tree.config("spine"), Path::Switch, 5);
    assert_as_over_one_switch(&world, beside(&["rack1", "rack0", "spine", "rack0", "rack1"]));
    for rack in &racks {
        let counters = counters(rack);
        assert!(counters.sums_up > 1_000, "every chunk goes up once: {counters:?}");
        assert!(counters.aggregates >= counters.sums_up, "and is answered: {counters:?}");
    }
}

#[test]
fn three_levels_with_workers_at_each_get_them_too() {
    let tree = Tree::new(10, &[("top", ""), ("row", "top"), ("rack0", "row"), ("rack1", "row"), ("rack2", "top")]);
    let _switches = ["row", "rack0", "rack1", "rack2"].map(|name| tree.start(name));
    let world = World::around(&tree.config("top"), Path::Switch, 6);
    assert_as_over_one_switch(&world, beside(&["rack2", "rack1", "top", "row", "rack0", "rack1"]));
    // A job that is all in one rack goes by the root as well.
    World::sharing(&world, Path::Switch).run(beside(&["rack0"]), |rank, session| {
        assert_eq!(sum(&session, &vec![f32::from(rank); 1000]).expect("completes"), vec![15.0; 1000]);
    });
}

#[test]
fn hosts_whose_ranks_share_memory_meet_over_racks() {
    let tree = Tree::new(20, &TWO_RACKS);
    let _racks = ["rack0", "rack1"].map(|name| tree.start(name));
    let world = World::around(&tree.config("spine"), Path::TwoHosts, 4);
    // Ranks 0 and 2 are one host, 1 and 3 the other.
    world.run(beside(&["rack1", "rack0"]), |rank, session| {
        for length in [1, 5_000] {
            let expected: Vec<f32> = (0..length).map(|index| 6.0 + 4.0 * index as f32).collect();
            let input: Vec<f32> = (0..length).map(|index| f32::from(rank) + index as f32).collect();
            assert_eq!(sum(&session, &input).expect("completes"), expected);
        }
    });
}

#[test]
fn lost_datagrams_are_recovered_at_every_level() {
    let tree = Tree::new(30, &TWO_RACKS);
    let [rack0, _rack1] = ["rack0", "rack1"].map(|name| tree.start(name));
    let world = World::around(&tree.config("spine"), Path::Switch, 4);
    let lossy = |config: SessionConfig| {
        let config = beside(&["rack0", "rack1"])(config);
        SessionConfig { loss: Some((0.02, 11)), ..config }
    };
    let resends = world.run(lossy, |rank, session| {
        for length in [60_000, 5, 30_000] {
            let sums = sum(&session, &vec![f32::from(rank) + 0.5; length]).expect("completes");
            assert!(sums.iter().all(|sum| *sum == 8.0));
        }
        session.stats().resends
    });
    assert!(resends.iter().sum::<u64>() > 0, "losses were injected");
    let counters = counters(&rack0);
    assert!(counters.resends_answered > 0, "who misses a sum gets it from the rack: {counters:?}");
}

/// The errors of ranks that start while something is wrong.
fn refused(world: &World, adjust: impl Fn(SessionConfig) -> SessionConfig + Sync) -> Vec<Error> {
    std::thread::scope(|scope| {
        let join = |rank| {
            let config = adjust(world.config(rank));
            scope.spawn(move || Session::connect(config).err().expect("cannot start"))
        };
        let threads: Vec<_> = (0..world.world_size).map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn what_a_rack_cannot_take_is_refused_with_its_name() {
    let tree = Tree::new(40, &TWO_RACKS);
    let mut small = tree.config("rack1");
    small.limits.slot_memory_bytes = 64 << 10;
    let rack1 = Daemon::start_own(&small).expect("own addresses");
    let world = World::around(&tree.config("spine"), Path::Switch, 2);
    let large = |config| SessionConfig { slots_per_lane: Some(128), ..beside(&["spine", "rack1"])(config) };
    for error in refused(&world, large) {
        for part in ["switch `rack1` at", "this switch is full", "--slot-memory", "FANIN_SLOTS"] {
            assert!(error.message.contains(part), "`{part}` in {error}");
        }
    }
    let fitting = |config| SessionConfig { slots_per_lane: Some(8), ..beside(&["spine", "rack1"])(config) };
    let narrow = |config| SessionConfig { element_format: ElementFormat::Int8, ..fitting(config) };
    for error in refused(&World::sharing(&world, Path::Switch), narrow) {
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("use the element format int32"), "{error}");
    }
    World::sharing(&world, Path::Switch).run(fitting, |_, session| {
        let shown = status(&rack1.control_address().to_string());
        let part = shown.jobs.iter().find_map(|job| job.part.clone()).expect("its part in the root's job");
        assert_eq!((part.child_count, part.switch_count), (1, 0));
        assert!(part.root.starts_with(&own_address(40).to_string()), "{part:?}");
        assert_eq!(status(world.controller()).jobs[0].switches, ["spine", "rack1"]);
        sum(&session, &[1.0; 100]).expect("completes");
    });
    for error in refused(&World::sharing(&world, Path::Switch), beside(&["spine", "rack0"])) {
        assert!(error.message.contains("switch `rack0` at"), "nobody runs it: {error}");
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_from_another_rack() {
    let tree = Tree::new(50, &TWO_RACKS);
    let _racks = ["rack0", "rack1"].map(|name| tree.start(name));
    let world = World::around(&tree.config("spine"), Path::Switch, 5);
    let patient = |config| {
        let config = beside(&["rack0", "rack1", "spine", "rack1", "rack0"])(config);
        SessionConfig { collective_timeout: Duration::from_secs(2), ..config }
    };
    let errors = world.run(patient, |rank, session| {
        if rank == 3 {
            std::thread::sleep(Duration::from_secs(4));
            return None;
        }
        sum(&session, &floats(rank, 10_000)).err()
    });
    for rank in [0, 1, 2, 4] {
        let error = errors[rank].as_ref().expect("rank 3 did not call");
        if error.kind == ErrorKind::TimedOut {
            assert!(error.message.contains("lacks the contribution of rank 3;"), "{error}");
        }
    }
    assert!(errors.iter().flatten().any(|error| error.kind == ErrorKind::TimedOut), "{errors:?}");
}

#[test]
fn a_rack_that_dies_ends_the_job_and_is_named() {
    let tree = Tree::new(60, &TWO_RACKS);
    let _rack0 = tree.start("rack0");
    let rack1 = std::sync::Mutex::new(Some(tree.start("rack1")));
    let mut spine = tree.config("spine");
    spine.limits.lease_ms = 2_000;
    let world = World::around(&spine, Path::Switch, 4);
    let start = Instant::now();
    let all_have_it = std::sync::Barrier::new(4);
    let errors = world.run(beside(&["rack0", "rack1"]), |rank, session| {
        sum(&session, &floats(rank, 1_000)).expect("completes");
        all_have_it.wait();
        if rank == 0 {
            drop(rack1.lock().expect("no panic").take());
        }
        loop {
            if let Err(error) = sum(&session, &floats(rank, 1_000)) {
                return error;
            }
        }
    });
    assert!(start.elapsed() < Duration::from_secs(15), "long before the collective's own timeout");
    // Those in the rack see their datagrams refused, the others hear it from the root.
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.message.contains("`rack1`"), "rank {rank}: {error}");
        assert_eq!(error.kind, ErrorKind::SwitchLost, "rank {rank}: {error}");
    }
}

#[test]
fn a_root_that_dies_leaves_nothing_in_its_racks() {
    let tree = Tree::new(70, &TWO_RACKS);
    let rack0 = tree.start("rack0");
    let controller = rack0.control_address().to_string();
    // As a root would that then dies: nobody renews it.
    let client = ControlClient::connect(&ClientConfig::new(controller.clone())).expect("the switch runs");
    let install = proto::RelayInstall {
        job_id: 0x107,
        job_token: 5,
        contributor_count: 2,
        lane_count: 1,
        element_count_max: 64,
        level: 0,
        children: vec![proto::RelayChild { contributor: Some(1) }],
        up: vec![format!("{}:48864", own_address(70))],
        slots_per_lane: 8,
        receivers: vec![proto::RelayReceiver { child: None }, proto::RelayReceiver { child: Some(0) }],
        lease_ms: 400,
        ..proto::RelayInstall::default()
    };
    client.install_relay(install).expect("takes part");
    let capacity = status(&controller).capacity.expect("a capacity");
    assert_eq!(capacity.slot_memory_bytes_total - capacity.slot_memory_bytes_free, 8 * 2 * 64 * 4);
    assert_eq!(client.renew_relays(vec![0x107, 0x108]).expect("answers"), [0x108]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !status(&controller).jobs.is_empty() {
        assert!(Instant::now() < deadline, "its part ends with the lease");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.renew_relays(vec![0x107]).expect("answers"), [0x107]);
}

#[test]
fn a_rack_that_hangs_holds_up_its_own_jobs_only() {
    let tree = Tree::new(80, &TWO_RACKS);
    let _rack1 = tree.start("rack1");
    // Accepts connections and says nothing.
    let _hung = std::net::TcpListener::bind((own_address(81), 50099)).expect("an own address");
    let world = World::around(&tree.config("spine"), Path::Switch, 2);
    let others = World::sharing(&world, Path::Switch);
    std::thread::scope(|scope| {
        let world = &world;
        let stuck = scope.spawn(move || (refused(world, beside(&["rack0"])), Instant::now()));
        // Until its ranks have joined and its part of the rack is being asked for.
        let deadline = Instant::now() + Duration::from_secs(10);
        while status(&world.config(0).controller).jobs.iter().all(|job| job.job_id == 0) {
            assert!(Instant::now() < deadline, "the job is admitted");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ready: Vec<Instant> = (0..3)
            .flat_map(|_| {
                let others = World::sharing(&others, Path::Switch);
                others.run(beside(&["rack1"]), |_, session| {
                    sum(&session, &[1.0; 100]).expect("completes");
                    Instant::now()
                })
            })
            .collect();
        let (errors, refused_at) = stuck.join().expect("no panic");
        for error in errors {
            assert!(error.message.contains("switch `rack0` at"), "{error}");
        }
        assert!(ready[0] < refused_at, "the other rack's job did not wait for the one that hangs");
    });
}
