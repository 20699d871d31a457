//! Training jobs in a network: times that can be worked out by hand, schemes beside each other, threads that change nothing.

use std::collections::BTreeSet;

use fanin_sim::engine::{self, Outcome};
use fanin_sim::report;
use fanin_sim::scenario::Scenario;

fn run_on(text: &str, threads: usize) -> Outcome {
    let plan = Scenario::parse(text).unwrap().plan().unwrap();
    engine::run(plan, threads, |_| true).unwrap()
}

/// From the first rank's start to the last rank's end, by iteration of one job, in microseconds.
fn iterations_us(outcome: &Outcome, job: u16) -> Vec<f64> {
    let mut ends: Vec<(u64, u64)> = Vec::new();
    for record in outcome.iterations.iter().filter(|record| record.job == job) {
        let place = record.iteration as usize;
        ends.resize(ends.len().max(place + 1), (u64::MAX, 0));
        ends[place] = (ends[place].0.min(record.start_ps), ends[place].1.max(record.end_ps));
    }
    ends.into_iter().map(|(start, end)| (end - start) as f64 / 1e6).collect()
}

fn star(scheme: &str, more: &str) -> String {
    format!(
        "duration_ms = 100\n[topology]\nshape = 'star'\nhosts = 8\n[[job]]\nbytes = 4000000\ncompute_ms = 2.0\n\
         workers = 8\niterations = 3\nscheme = '{scheme}'\n{more}"
    )
}

#[test]
fn an_aggregated_iteration_takes_what_one_passage_of_the_gradients_takes() {
    // 1,432 bytes of elements in packets of 1,538 bytes on the link.
    let packets = 4_000_000u64.div_ceil(1432);
    let links = 2.0 * 1.0 + (packets + 1) as f64 * 1538.0 * 8.0 / 1e4;
    let ideal = iterations_us(&run_on(&star("ideal", ""), 1), 0);
    let switchml = iterations_us(&run_on(&star("switchml", ""), 1), 0);
    assert_eq!((ideal.len(), switchml.len()), (3, 3));
    for (ideal, switchml) in ideal.iter().zip(&switchml) {
        assert!((ideal - 2000.0 - links).abs() < 0.01, "{ideal} us, not {}", 2000.0 + links);
        assert!((switchml - ideal).abs() < 0.02 * ideal, "{switchml} us, {ideal} without a protocol");
    }
}

#[test]
fn a_ring_takes_its_steps() {
    let ring = iterations_us(&run_on(&star("ring", ""), 1), 0);
    // 2(n-1)/n times the gradients, in segments of 1,460 bytes of 1,538 on the link, and the steps' round trips.
    let passage = 2.0 * 7.0 / 8.0 * 4e6 / 1460.0 * 1538.0 * 8.0 / 1e4;
    for time in ring {
        let communication = time - 2000.0;
        assert!(communication > passage && communication < 1.15 * passage, "{communication} us, {passage} at least");
    }
}

#[test]
fn two_ranks_on_a_ring_need_each_other() {
    let text = star("ring", "").replace("workers = 8", "workers = 2\nplacement = [3, 5]");
    assert_eq!(iterations_us(&run_on(&text, 1), 0).len(), 3);
}

#[test]
fn buckets_are_summed_while_the_next_ones_are_computed() {
    let us = |scheme: &str, more: &str| iterations_us(&run_on(&star(scheme, more), 1), 0);
    for scheme in ["ideal", "ring", "switchml", "panama", "atp"] {
        // ATP's server has a host of its own, and its window grows slowly.
        let star = |compute_ms: f64, more: &str| {
            let text = star(scheme, more).replace("hosts = 8", "hosts = 9") + "\n[atp]\nwindow_initial = 512";
            let text = text.replace("compute_ms = 2.0", &format!("compute_ms = {compute_ms:?}"));
            iterations_us(&run_on(&text, 1), 0)[2]
        };
        let whole = star(2.0, "") - 2000.0;
        // Ready after each half of a millisecond: the link is never idle from the first to the last.
        let overlapping = star(2.0, "buckets = 4\nbackward = 1.0");
        assert!((overlapping - 500.0 - whole).abs() < 0.1 * whole, "{scheme}: {overlapping} us, {whole} to sum all");
        // All but the last are summed by then.
        let late = star(20.0, "ready = [0.1, 0.2, 0.3, 1.0]");
        assert!((late - 20_000.0 - whole / 4.0).abs() < 0.15 * whole, "{scheme}: {late} us");
    }
    assert_eq!(us("ring", "buckets = 1"), us("ring", ""), "one bucket is none");
    assert_eq!(us("switchml", "buckets = 4\nbackward = 0.0").len(), 3);
}

#[test]
fn buckets_that_cannot_be_are_refused() {
    for (more, word) in [
        ("buckets = 0", "0 buckets"),
        ("ready = [0.5, 0.4, 1.0]", "none before"),
        ("ready = [0.5]", "the last 1"),
        ("buckets = 2\nready = [0.5, 1.0]", "one of them"),
        ("backward = 1.5", "backward"),
    ] {
        let error = Scenario::parse(&star("ring", more)).unwrap().plan().map(drop).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{error:#}");
    }
}

// With this seed every job comes to the end of an iteration in so short a time, and queues lose something.
const MIXED: &str = "
duration_ms = 20
seed = 4
[topology]
shape = 'fat-tree'
k = 4
[links]
queue_kib = 100
[[traffic]]
kind = 'poisson'
load = 0.4
sizes = 'websearch'
[[job]]
bytes = 1000000
compute_ms = 0.3
workers = 9
scheme = 'switchml'
trees = 3
timeout_min_us = 300
[[job]]
bytes = 500000
compute_ms = 0.5
workers = [3, 6]
count = 3
placement = 'random'
scheme = 'switchml'
start_ms = [0.0, 2.0]
[[job]]
bytes = 500000
compute_ms = 0.2
workers = 3
scheme = 'ring'
[[job]]
model = 'resnet50'
scale = 0.01
placement = 'random'
workers = 4
scheme = 'ideal'
[[job]]
bytes = 100000
compute_ms = 0.1
count = 2
placement = 'random'
workers = 4
scheme = 'atp'
trees = 4
start_ms = 1.0
[atp]
slots = 24
";

#[test]
fn jobs_beside_traffic_are_the_same_from_any_number_of_threads() {
    let alone = run_on(MIXED, 1);
    for job in 0..8 {
        assert!(!iterations_us(&alone, job).is_empty(), "job {job}: {} iterations", iterations_us(&alone, job).len());
    }
    assert!(alone.links.iter().any(|link| link.counters.dropped > 0), "nothing was lost: a weak test");
    assert!(alone.endpoints.asked > 0 && alone.endpoints.sums > 10_000, "{:?}", alone.endpoints);
    for threads in [2, 3, 4] {
        let shared = run_on(MIXED, threads);
        assert!(alone == shared, "{threads} threads: {:x}, not {:x}", shared.digest(), alone.digest());
    }
}

#[test]
fn another_scheme_has_the_same_jobs_on_the_same_hosts_beside_the_same_traffic() {
    let plan = |text: &str| Scenario::parse(text).unwrap().plan().unwrap();
    let other = MIXED.replace("'switchml'", "'ring'");
    let (ours, others) = (plan(MIXED).jobs, plan(&other).jobs);
    for (one, another) in ours.iter().zip(&others) {
        assert_eq!((&one.hosts, one.bytes, one.start_ps), (&another.hosts, another.bytes, another.start_ps));
    }
    let flows = |text: &str| run_on(text, 1).hosts.iter().map(|host| host.started).sum::<u64>();
    assert_eq!(flows(MIXED), flows(&other));
}

/// SwitchML §2.2 and PANAMA §7: a ring sends each byte up to twice, aggregation once.
#[test]
fn across_racks_aggregation_beats_the_ring_and_nothing_beats_the_ideal() {
    let time = |scheme: &str| {
        let text = format!(
            "duration_ms = 60\n[topology]\nshape = 'fat-tree'\nk = 4\n[[job]]\nbytes = 2000000\ncompute_ms = 1.0\n\
             workers = 16\niterations = 3\nscheme = '{scheme}'"
        );
        let times = iterations_us(&run_on(&text, 1), 0);
        assert_eq!(times.len(), 3, "{scheme}");
        times[2]
    };
    let (ideal, switchml, ring) = (time("ideal"), time("switchml"), time("ring"));
    assert!(ideal <= switchml && switchml < 1.03 * ideal, "{switchml} us, ideal {ideal}");
    assert!(ring - 1000.0 > 1.7 * (switchml - 1000.0), "ring {ring} us, aggregated {switchml}");
}

/// PANAMA §4.1, §7: SwitchML* has the same trees as PANAMA if the controller chooses them, and both others if lots do. Which links are used shows it.
#[test]
fn both_schemes_have_the_trees_of_the_controller_or_of_lots() {
    let used = |more: &str| {
        let text = format!(
            "duration_ms = 9\n[topology]\nshape = 'fat-tree'\nk = 4\n[[job]]\nbytes = 100000\ncompute_ms = 0.1\nworkers = 7\n\
             placement = [0, 1, 2, 5, 6, 9, 15]\niterations = 3\ntrees = 2\n{more}\n[[job]]\nbytes = 100000\ncompute_ms = 0.1\nworkers = 9\n\
             placement = 'random'\niterations = 3\ntrees = 2\n{more}"
        );
        let outcome = run_on(&text, 1);
        assert_eq!((iterations_us(&outcome, 0).len(), iterations_us(&outcome, 1).len()), (3, 3), "{more}");
        outcome.links.iter().map(|link| link.counters.sent > 0).collect::<Vec<bool>>()
    };
    let [switchml, panama] = ["switchml", "panama"].map(|scheme| format!("scheme = '{scheme}'"));
    let (controller, lot) = ("choose_trees = 'controller'", "choose_trees = 'lot'");
    assert_eq!(used(&format!("{switchml}\n{controller}")), used(&panama), "the controller's");
    assert_eq!(used(&switchml), used(&format!("{panama}\n{lot}")), "drawn by lot");
    assert_ne!(used(&switchml), used(&panama), "the same by chance: a weak test");
}

#[test]
fn jobs_arrive_whatever_the_scheme_and_the_load_does() {
    let starts = |scheme: &str, rate: u32| {
        let text = format!(
            "duration_ms = 100\n[topology]\nshape = 'star'\nhosts = 8\n[[job]]\nbytes = 1000\ncompute_ms = 0.1\nworkers = 2\n\
             placement = 'shared'\niterations = 2\ncount = 200\nscheme = '{scheme}'\narrivals_per_s = {rate}"
        );
        let jobs = Scenario::parse(&text).unwrap().plan().unwrap().jobs;
        jobs.iter().map(|job| job.start_ps).collect::<Vec<u64>>()
    };
    let ring = starts("ring", 1000);
    assert!(ring.is_sorted() && *ring.last().unwrap() < 100_000_000_000);
    assert_eq!(ring, starts("panama", 1000));
    // Of a Poisson process: within three times the root of the mean.
    assert!((70..=130).contains(&ring.len()), "{} jobs of about 100", ring.len());
    assert!((1..=9).contains(&starts("ring", 30).len()));
}

/// ATP §3.4: the rack's switch sums all of a chunk, the server gets one packet for each, and the same goes back.
#[test]
fn atp_takes_as_long_as_a_passage_where_nothing_collides() {
    let text = "duration_ms = 60\n[topology]\nshape = 'leaf-spine'\nleaves = 2\nspines = 2\nhosts_per_leaf = 8\n\
                [[job]]\nbytes = 2000000\ncompute_ms = 1.0\nworkers = 8\niterations = 4\nscheme = 'atp'\n\
                [atp]\nslots = 4096\nwindow_max = 128";
    let outcome = run_on(text, 1);
    let times = iterations_us(&outcome, 0);
    assert_eq!(times.len(), 4);
    let passage = 2e6 / 1408.0 * 1538.0 * 8.0 / 1e4;
    assert!(times[3] - 1000.0 > passage && times[3] - 1000.0 < 1.1 * passage, "{times:?}, {passage}");
    let blocks = 2_000_000u64.div_ceil(1408);
    assert_eq!(outcome.endpoints.sums, 4 * 8 * blocks);
    let to_server = outcome.links.iter().find(|link| link.to == 15).unwrap();
    // Few chunks have met another's slot: hashes of 128 in 4,096.
    let extra = to_server.counters.sent as f64 / (4 * blocks) as f64;
    assert!((1.0..1.05).contains(&extra), "{extra} packets at the server for each chunk");
}

/// Which spines carry a job's packets is drawn from the seed, as the paths of flows are.
#[test]
fn atps_paths_are_drawn_from_the_seed() {
    let used = |seed: u32, threads: usize| {
        let text = format!(
            "duration_ms = 2\nseed = {seed}\n[topology]\nshape = 'leaf-spine'\nleaves = 3\nspines = 4\nhosts_per_leaf = 4\n\
             [[job]]\nbytes = 100000\ncompute_ms = 0.1\nworkers = 8\niterations = 1\nscheme = 'atp'"
        );
        let outcome = run_on(&text, threads);
        assert_eq!(iterations_us(&outcome, 0).len(), 1);
        outcome.links.iter().map(|link| link.counters.sent > 0).collect::<Vec<bool>>()
    };
    let all: BTreeSet<_> = (1..9).map(|seed| used(seed, 1)).collect();
    assert!(all.len() > 3, "{} sets of links from 8 seeds", all.len());
    assert_eq!(used(1, 1), used(1, 3));
}

/// Two racks' partial sums meet on one cable of a spine, which is no program's: only its queue can tell ranks (ATP §3.7).
#[test]
fn atp_heeds_the_marks_of_switches_without_a_program() {
    let text = "duration_ms = 40\n[topology]\nshape = 'leaf-spine'\nleaves = 4\nspines = 1\nhosts_per_leaf = 5\n\
                [[job]]\nbytes = 2_000_000\ncompute_ms = 0.1\nworkers = 12\nscheme = 'atp'";
    for mtu_bytes in [1500, 9000] {
        let outcome = run_on(&format!("{text}\n[transport]\nmtu_bytes = {mtu_bytes}"), 1);
        let lost: u64 = outcome.links.iter().map(|link| link.counters.dropped).sum();
        let resent = outcome.endpoints.resent;
        let marked: u64 = outcome.links.iter().map(|link| link.counters.marked).sum();
        assert!((lost, resent) == (0, 0) && marked > 100, "{mtu_bytes}: {lost} {resent} {marked}");
    }
}

/// ATP §3.5, Fig. 10: with few slots, more reaches the server in parts, and sums are still right.
#[test]
fn with_few_slots_atps_server_sums_the_rest() {
    let text = |slots: u32| {
        format!(
            "duration_ms = 60\n[topology]\nshape = 'star'\nhosts = 5\n[[job]]\nbytes = 1000000\ncompute_ms = 0.0\n\
             workers = 4\niterations = 2\nscheme = 'atp'\n[atp]\nslots = {slots}"
        )
    };
    let at_server = |slots: u32| {
        let outcome = run_on(&text(slots), 1);
        assert_eq!(iterations_us(&outcome, 0).len(), 2, "{slots} slots");
        outcome.links.iter().find(|link| link.to == 4).unwrap().counters.sent
    };
    let (few, many) = (at_server(8), at_server(2048));
    assert!(few > 2 * many, "{few} packets at the server with 8 slots, {many} with 2048");
}

#[test]
fn samples_tell_how_far_ranks_were() {
    for scheme in ["ring", "switchml", "ideal"] {
        let outcome = run_on(&star(scheme, ""), 1);
        assert_eq!(outcome.samples.hosts[0].len(), 100, "one for each millisecond");
        assert_eq!(outcome.samples.ranks.len(), 8);
        for rank in &outcome.samples.ranks {
            assert!(rank.summed.is_sorted() && rank.summed[1] == 0, "nothing in the first two milliseconds");
            assert_eq!(rank.summed[99], 3 * 4_000_000, "{scheme}: three iterations");
        }
    }
}

/// An iteration without packets is not summed in one moment: never faster than the links it would take.
#[test]
fn an_ideal_job_is_never_faster_than_the_links() {
    let text = star("ideal", "").replace("duration_ms = 100", "duration_ms = 20\nsamples = 400");
    let outcome = run_on(&text, 1);
    let intervals = report::intervals(&outcome, 1);
    let fastest = intervals.iter().map(|interval| interval.jobs_bps[0]).fold(0.0, f64::max);
    assert!((9.0e9..1e10).contains(&fastest), "{fastest} bit/s on links of 10 Gbit/s");
    assert!(intervals.iter().all(|interval| interval.flows_bps.is_sign_positive() && interval.fairness.is_none()));
    assert_eq!(outcome.samples.ranks[0].summed.last(), Some(&(3 * 4_000_000)));
}

/// The rate is that of summing as a whole, whatever of it computing hides.
#[test]
fn a_job_reduces_no_faster_than_its_links() {
    for scheme in ["ideal", "ring", "switchml", "panama"] {
        let told = |more: &str| {
            let text = star(scheme, more).replace("compute_ms = 2.0", "compute_ms = 10.0");
            let scenario = Scenario::parse(&text).unwrap();
            let jobs = scenario.plan().unwrap().jobs;
            report::Report::new(&run_on(&text, 1), &jobs, 100_000_000_000).jobs[0].clone()
        };
        let (whole, hidden) = (told(""), told("buckets = 5"));
        assert_eq!(whole.communication_ms, whole.summing_ms, "{scheme}: one bucket hides nothing");
        let (exposed, summing) = (hidden.communication_ms.unwrap(), hidden.summing_ms.unwrap());
        assert!(exposed < 0.5 * summing, "{scheme}: {exposed} of {summing} ms");
        let reduced = hidden.reduced_bps.unwrap();
        assert!(
            (reduced - 3.2e10 / summing).abs() < 1e4 && reduced < 1e10,
            "{scheme}: {reduced} bit/s in {summing} ms"
        );
    }
    let text = star("ring", "").replace("duration_ms = 100", "duration_ms = 1");
    let jobs = Scenario::parse(&text).unwrap().plan().unwrap().jobs;
    let none = report::Report::new(&run_on(&text, 1), &jobs, 1_000_000_000).jobs[0].clone();
    assert_eq!((none.iterations, none.mean_ms, none.reduced_bps), (0, None, None), "what has not ended has no time");
}

#[test]
fn jobs_that_cannot_be_say_why() {
    let good = star("switchml", "");
    assert!(Scenario::parse(&good).unwrap().plan().is_ok());
    let bad = [
        (good.replace("bytes = 4000000\n", ""), "model"),
        (good.replace("bytes = 4000000\n", "model = 'vgg61'\n"), "vgg16"),
        (good.replace("workers = 8", "workers = 9"), "8 hosts are left"),
        (good.replace("scheme", "name = 'flows'\nscheme"), "flows"),
        (
            good.replace("workers = 8", "name = 'a'\nworkers = 2")
                + "\n[[job]]\nbytes = 8\ncompute_ms = 0.0\nworkers = 2\nscheme = 'ring'\nname = 'a'",
            "called \"a\"",
        ),
        (good.replace("workers = 8", "workers = 1"), "from 2"),
        (good.replace("workers = 8", "workers = 2\nplacement = [1, 1]"), "twice"),
        (good.replace("workers = 8", "workers = 2\nplacement = [1, 9]"), "host 9"),
        (good.replace("'switchml'", "'horovod'"), "horovod"),
        (good.replace("'switchml'", "'switchml'\nslots = 100"), "power of two"),
        (good.replace("'switchml'", "'panama'\nslots = 100"), "power of two"),
        (good.replace("'switchml'", "'panama'\nslots = 65536"), "at most 32768"),
        (good.replace("'switchml'", "'panama'\nshare = 0.999"), "whole hundredths"),
        (good.replace("'switchml'", "'panama'\nshare = 0.001"), "whole hundredths"),
        (good.replace("'switchml'", "'panama'\nslots = 4294967295"), "at most 32768"),
        (good.replace("'switchml'", "'switchml'\npayload_bytes = 9000"), "payload_bytes"),
        (good.replace("'switchml'", "'switchml'\nspeed = 1"), "speed"),
        (good.replace("'switchml'", "'atp'"), "no host is left"),
        (good.replace("'switchml'", "'atp'\nserver = 3"), "server = 3"),
        (good.replace("'switchml'", "'switchml'\n[atp]\nwindow_max = 100"), "window_max"),
        (good.replace("iterations = 3", "iterations = 0"), "iterations"),
        (good.replace("compute_ms = 2.0", "compute_ms = -2.0"), "compute_ms"),
        (good.replace("'switchml'", "'ring'\nchoose_trees = 'lot'"), "choose_trees"),
        (good.replace("'switchml'", "'switchml'\nchoose_trees = 'luck'"), "luck"),
        (good.replace("'switchml'", "'switchml'\narrivals_per_s = 0"), "arrivals_per_s"),
        (good.replace("'switchml'", "'switchml'\narrivals_per_s = 9\nstart_ms = -1.0"), "start_ms = -1: from 0"),
        (good.replace("'switchml'", "'switchml'\nstart_ms = [0.0, 4e6]"), "start_ms = 4000000: from 0"),
        (good.replace("'switchml'", "'switchml'\nstart_ms = [2.0, 1.0]"), "the earliest first"),
        (good.replace("workers = 8", "workers = 'all'"), "a number, or the least and the most"),
        (
            good.replace("workers = 8", "workers = 8\nplacement = 'near'"),
            "\"packed\", \"shared\", \"random\", or hosts",
        ),
        (good.replace("workers = 8", "workers = 8\nmodel = 7"), "a model's name, or a list"),
        (good.replace("'switchml'", "'switchml'\narrivals_per_s = 1000\nplacement = 'shared'"), "count = 1"),
    ];
    for (text, word) in bad {
        let error = Scenario::parse(&text).and_then(|scenario| scenario.plan().map(|_| ())).expect_err(&text);
        let said = format!("{error:#}");
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

/// Only what switches' programs send may be more than pauses leave room for.
#[test]
fn a_loss_in_spite_of_pauses_ends_a_run_without_programs() {
    let run = |scheme: &str, above_bytes: Option<u64>| {
        let text = "duration_ms = 5\n[topology]\nshape = 'star'\nhosts = 8\n[switches]\nbuffer_kib = 400\npause = true\n\
                    [transport]\ncongestion = 'newreno'\n[[traffic]]\nkind = 'incast'\nsenders = 7\n\
                    [[job]]\nbytes = 4000000\ncompute_ms = 0\nworkers = 8\nscheme = 'switchml'";
        let mut plan = Scenario::parse(&text.replace("'switchml'", scheme)).unwrap().plan().unwrap();
        let pause = plan.memory.as_mut().and_then(|memory| memory.pause.as_mut()).unwrap();
        // Pauses that never come are what a bug in them would be.
        pause.above_bytes = above_bytes.unwrap_or(pause.above_bytes);
        engine::run(plan, 1, |_| true)
            .map(|outcome| outcome.links.iter().map(|link| link.counters.dropped).sum::<u64>())
    };
    for scheme in ["'ring'", "'ideal'"] {
        assert_eq!(run(scheme, None).unwrap(), 0, "{scheme}");
        let said = run(scheme, Some(u64::MAX)).expect_err(scheme).to_string();
        assert!(said.contains("in spite of pauses"), "{scheme}: {said}");
    }
    assert!(run("'switchml'", Some(u64::MAX)).unwrap() > 0, "counted, not an error");
}

#[test]
fn sums_without_some_rank_are_told_apart() {
    let endpoints = |more: &str| run_on(&star("panama", more), 1).endpoints;
    let (whole, partial) = (endpoints(""), endpoints("share = 0.88\n"));
    assert_eq!(whole.partial, 0);
    assert!(partial.partial > 0 && partial.partial <= partial.sums, "{partial:?}");
}

#[test]
fn panama_takes_one_passage_and_its_slow_start() {
    let ideal = iterations_us(&run_on(&star("ideal", ""), 1), 0);
    let panama = iterations_us(&run_on(&star("panama", ""), 1), 0);
    assert_eq!(panama.len(), 3);
    // The window stays open between iterations: after the first one nothing is left of slow start.
    assert!(panama[0] < 1.10 * ideal[0], "{panama:?} us, {ideal:?} without a protocol");
    for (ideal, panama) in ideal.iter().zip(&panama).skip(1) {
        assert!((panama - ideal).abs() < 0.02 * ideal, "{panama} us, {ideal} without a protocol");
    }
}

#[test]
fn panama_beside_traffic_is_the_same_from_any_number_of_threads() {
    // Queues that marks keep short lose nothing, as PANAMA has it.
    let text = MIXED.replace("'switchml'", "'panama'").replace("queue_kib = 100", "queue_kib = 1000");
    let text = text.replace("scheme = 'ideal'", "scheme = 'panama'\ntrees = 2\nshare = 0.7");
    let alone = run_on(&text, 1);
    assert!((0..6).all(|job| !iterations_us(&alone, job).is_empty()), "a job has no iterations");
    assert!(alone.endpoints.sums > 10_000, "{:?}", alone.endpoints);
    for threads in [2, 4] {
        let shared = run_on(&text, threads);
        assert!(alone == shared, "{threads} threads: {:x}, not {:x}", shared.digest(), alone.digest());
    }
}
