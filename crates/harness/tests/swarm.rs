//! Thousands of simulated clusters, each from its own seed.

use std::collections::BTreeSet;

use fanin_harness::Scenario;
use fanin_harness::collective::{Data, Kind};
use fanin_harness::job::Disturbance;
#[cfg(not(feature = "canary"))]
use fanin_harness::{run_seed, swarm};
use fanin_protocol::switchml::WireFormat;
use fanin_wire::ElementFormat;

#[test]
#[cfg(not(feature = "canary"))]
fn no_checker_fails_on_4000_seeds() {
    match swarm::run(0..4_000) {
        Ok(total) => {
            println!("{total}");
            assert_eq!(total.seeds, 4_000);
            assert!(total.sums.completed > 100_000, "the scenarios hardly do anything: {total}");
        }
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
#[cfg(not(feature = "canary"))]
fn the_same_seed_gives_the_same_trace() {
    let mut hashes = BTreeSet::new();
    for seed in 0..50 {
        let [first, again] = [0, 1].map(|_| run_seed(seed, false).unwrap_or_else(|violation| panic!("{violation}")));
        assert_eq!(first, again, "seed {seed}");
        hashes.insert(first.trace_hash);
    }
    assert_eq!(hashes.len(), 50, "two seeds gave the same trace");
}

/// A feature that no seed turns on is a feature that nothing tests.
#[test]
fn the_seeds_cover_every_feature() {
    let mut seen = BTreeSet::new();
    for scenario in (0..1_000).map(Scenario::from_seed) {
        for link in [&scenario.up, &scenario.down] {
            let faults = [link.loss_ppm, link.duplicate_ppm, link.damage_ppm, link.held_ppm];
            seen.extend(faults.iter().enumerate().filter(|&(_, &ppm)| ppm > 0).map(|(n, _)| format!("fault {n}")));
            seen.extend((!link.dead.is_empty()).then(|| "dead interval".to_owned()));
        }
        seen.extend(scenario.calm.then(|| "calm".to_owned()));
        seen.extend(scenario.switch_restart.map(|_| "switch restart".to_owned()));
        seen.extend((scenario.jobs.len() > 2).then(|| "three jobs".to_owned()));
        for job in &scenario.jobs {
            seen.insert(format!("{:?}", job.wire_format));
            seen.insert(format!("{} slots", job.slots_per_lane));
            seen.insert(format!("workers {}", job.worker_count.min(65)));
            seen.insert(disturbance(&job.disturbance).to_owned());
            for collective in &job.collectives {
                let data = if collective.data == Data::Words { "words" } else { "floats" };
                let format = (collective.operator, collective.element_format);
                seen.insert(format!("{} of {data} {format:?}", kind(collective.kind)));
            }
        }
    }
    let workers = (1..=9).chain([65]).map(|n| format!("workers {n}"));
    let slots = [1, 2, 4, 8, 16].map(|n| format!("{n} slots"));
    let faults = (0..4).map(|n| format!("fault {n}"));
    let words = ["Add", "Max", "Or", "Xor"]
        .iter()
        .flat_map(|op| ["all-reduce", "reduce", "reduce-scatter"].map(|kind| format!("{kind} of words ({op}, Int32)")));
    let floats = ElementFormat::ALL.map(|format| format!("all-reduce of floats (Add, {format:?})"));
    let copies = ["all-gather", "broadcast", "barrier"].map(|kind| format!("{kind} of words (Or, Int32)"));
    let jobs =
        ["dead interval", "calm", "switch restart", "three jobs", "death", "cut", "removal", "replacement", "mismatch"];
    let formats = [WireFormat::Fanin, WireFormat::P4app].map(|format| format!("{format:?}"));
    let wanted = workers.chain(slots).chain(faults).chain(words).chain(floats).chain(copies).chain(formats);
    let missing: Vec<String> =
        wanted.chain(jobs.map(str::to_owned)).filter(|feature| !seen.contains(feature)).collect();
    assert!(missing.is_empty(), "no seed turns on {missing:?}");
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::AllReduce => "all-reduce",
        Kind::Reduce { .. } => "reduce",
        Kind::ReduceScatter => "reduce-scatter",
        Kind::AllGather => "all-gather",
        Kind::Broadcast { .. } => "broadcast",
        Kind::Barrier => "barrier",
    }
}

fn disturbance(disturbance: &Disturbance) -> &'static str {
    match disturbance {
        Disturbance::None => "healthy",
        Disturbance::Death { .. } => "death",
        Disturbance::Cut { .. } => "cut",
        Disturbance::Removal { .. } => "removal",
        Disturbance::Replacement { .. } => "replacement",
        Disturbance::Mismatch { .. } => "mismatch",
    }
}
