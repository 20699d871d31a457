//! Whole networks: every packet is accounted for, threads change nothing, and transports do what was published of them.

use fanin_sim::engine::{self, Outcome};
use fanin_sim::report::Report;
use fanin_sim::scenario::Scenario;
use proptest::prelude::*;

fn run_on(text: &str, threads: usize) -> Outcome {
    let plan = Scenario::parse(text).unwrap().plan().unwrap();
    engine::run(plan, threads, |_| true).unwrap()
}

fn report(text: &str) -> Report {
    let duration_ps = Scenario::parse(text).unwrap().plan().unwrap().duration_ps;
    Report::new(&run_on(text, 1), &[], duration_ps)
}

#[test]
fn a_single_packet_takes_what_its_links_take() {
    let text = "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 2\n[[traffic]]\nkind = 'list'\n\
                flows = [[0, 1, 1000, 5.0]]";
    let outcome = run_on(text, 1);
    // 1,000 bytes of payload and 78 of headers, then the shortest frame, each over two links of 10 Gbit/s and 1 µs.
    let (data, ack) = (1078 * 800, 84 * 800);
    assert_eq!(outcome.flows.len(), 1);
    assert_eq!(outcome.flows[0].completion_ps, 2 * (data + 1_000_000) + 2 * (ack + 1_000_000));
    assert_eq!(outcome.flows[0].start_ps, 5_000_000);
    assert_eq!(outcome.packet_hops(), 4);
    assert_eq!(outcome.hosts[0].acknowledged_bytes, 1000);
}

#[test]
fn a_packet_that_is_not_accounted_for_is_found() {
    let text = "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 2\n[[traffic]]\nkind = 'permutation'";
    let mut outcome = run_on(text, 1);
    outcome.check().unwrap();
    outcome.links[1].counters.dropped += 1;
    let said = outcome.check().unwrap_err().to_string();
    assert!(said.contains("switch 0"), "{said}");
}

const MIXED: &str = "
duration_ms = 4
seed = 3
[topology]
shape = 'fat-tree'
k = 4
[links]
queue_kib = 64
mark_bytes = 30000
[[traffic]]
kind = 'poisson'
load = 0.5
sizes = 'websearch'
[[traffic]]
kind = 'incast'
senders = 12
bytes = 200000
start_us = 100
";

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let alone = run_on(MIXED, 1);
    assert!(alone.flows.len() > 20, "{} flows ended", alone.flows.len());
    assert!(alone.links.iter().any(|link| link.counters.dropped > 0), "nothing was lost: a weak test");
    alone.check().unwrap();
    for threads in [2, 3, 4, 16] {
        let shared = run_on(MIXED, threads);
        assert!(alone == shared, "{threads} threads: {:x}, not {:x}", shared.digest(), alone.digest());
    }
}

#[test]
fn another_seed_is_another_run_and_the_same_seed_the_same() {
    let other = MIXED.replace("seed = 3", "seed = 4");
    assert_eq!(run_on(MIXED, 1).digest(), run_on(MIXED, 1).digest());
    assert_ne!(run_on(MIXED, 1).digest(), run_on(&other, 1).digest());
}

#[test]
fn another_transport_is_offered_the_same_flows() {
    let text = MIXED.replace("[links]", "[transport]\ncongestion = 'newreno'\n[links]");
    let started = |text: &str| run_on(text, 1).hosts.iter().map(|host| host.started).collect::<Vec<_>>();
    assert_eq!(started(MIXED), started(&text));
    assert_ne!(run_on(MIXED, 1).digest(), run_on(&text, 1).digest());
}

#[test]
fn what_an_incast_drops_is_sent_again_until_all_of_it_is_there() {
    for congestion in ["dctcp", "newreno"] {
        let text = format!(
            "duration_ms = 400\n[topology]\nshape = 'star'\nhosts = 41\n[links]\nqueue_kib = 60\n[transport]\n\
             congestion = '{congestion}'\n[[traffic]]\nkind = 'incast'\nsenders = 40\nbytes = 150000"
        );
        let report = report(&text);
        assert!(report.dropped > 0 && report.resent > 0, "{congestion}: nothing was lost: a weak test");
        assert_eq!(report.flows_completed, 40, "{congestion}");
        run_on(&text, 1).check().unwrap();
    }
}

/// DCTCP paper §3.4, §4.1: the queue stays near its threshold, nothing is lost, the link is full, and flows share it.
#[test]
fn dctcp_fills_a_link_with_a_queue_near_its_threshold() {
    const MARK_BYTES: u64 = 65 * 1538;
    let text = format!(
        "duration_ms = 60\n[topology]\nshape = 'star'\nhosts = 5\n[links]\nqueue_kib = 4096\nmark_bytes = {MARK_BYTES}\n\
         [[traffic]]\nkind = 'incast'\nsenders = 4"
    );
    let outcome = run_on(&text, 1);
    let rates: Vec<f64> = outcome.hosts[1..].iter().map(|host| host.acknowledged_bytes as f64).collect();
    let all: f64 = rates.iter().sum();
    let goodput = all * 8.0 / 0.06;
    let payload_share = 1460.0 / 1538.0;
    assert!(goodput > 0.97 * payload_share * 1e10, "{goodput} bit/s");
    let fairness = all * all / (4.0 * rates.iter().map(|rate| rate * rate).sum::<f64>());
    assert!(fairness > 0.95, "Jain's index {fairness}: {rates:?}");
    let bottleneck = outcome.links.iter().find(|link| link.to == 0).unwrap();
    assert_eq!((bottleneck.counters.dropped, bottleneck.from), (0, 5));
    assert!(bottleneck.counters.marked > 100);
}

/// What reaches the queue while marks travel adds to the threshold, not more: slow start overshoots it once, by at most a window.
#[test]
fn newreno_fills_whatever_queue_there_is() {
    let queue = |congestion: &str| {
        let text = format!(
            "duration_ms = 60\n[topology]\nshape = 'star'\nhosts = 3\n[links]\nqueue_kib = 1024\nmark_bytes = 100000\n\
             [transport]\ncongestion = '{congestion}'\n[[traffic]]\nkind = 'incast'\nsenders = 2"
        );
        let report = report(&text);
        (report.queued_bytes_max, report.dropped)
    };
    let (full, dropped) = queue("newreno");
    assert!(full > 1_000_000 && dropped > 0, "{full} bytes, {dropped} dropped");
    let (short, none) = queue("dctcp");
    assert!(short < full / 2 && none == 0, "{short} bytes, {none} dropped");
}

#[test]
fn load_that_fits_is_carried() {
    let text = "duration_ms = 40\n[topology]\nshape = 'leaf-spine'\nleaves = 4\nspines = 4\nhosts_per_leaf = 4\n\
                [[traffic]]\nkind = 'poisson'\nload = 0.3\nsizes = 20000";
    let report = report(text);
    assert!(report.flows_started > 2000);
    assert!(report.flows_completed as f64 > 0.98 * report.flows_started as f64, "{report:?}");
    assert!((report.goodput_bps / 3e9 - 1.0).abs() < 0.1, "{} bit/s a host", report.goodput_bps);
    let all = report.classes.last().unwrap();
    assert!(all.p50_us <= all.p95_us && all.p95_us <= all.p99_us && all.count == report.flows_completed);
}

#[test]
fn intervals_tell_throughput_and_fairness() {
    // Of the second interval, at 1 ms: 125 kB and 500 kB were acknowledged, and nothing of the third host.
    let hosts = vec![vec![125_000, 250_000], vec![125_000, 625_000], vec![0, 0]];
    let samples = engine::Samples { every_ps: 1_000_000_000, hosts, ranks: Vec::new() };
    let intervals = fanin_sim::report::intervals(&Outcome { samples, ..Outcome::default() }, 0);
    assert_eq!((intervals[0].fairness, intervals[0].active_hosts, intervals[0].flows_bps), (Some(1.0), 2, 2e9));
    assert_eq!((intervals[1].flows_bps, intervals[1].end_ps), (5e9, 2_000_000_000));
    assert!((intervals[1].fairness.unwrap() - 25.0 / (2.0 * 17.0)).abs() < 1e-12, "{intervals:?}");
}

fn incast(switches: &str, congestion: &str) -> String {
    format!(
        "duration_ms = 30\n[topology]\nshape = 'leaf-spine'\nleaves = 4\nspines = 2\nhosts_per_leaf = 8\n\
         [transport]\ncongestion = '{congestion}'\ninitial_window = 100\n[switches]\n{switches}\n\
         [[traffic]]\nkind = 'incast'\nsenders = 31\nbytes = 400000"
    )
}

/// IEEE 802.1Qbb's promise: whoever is stopped in time loses nothing, and congestion spreads instead.
#[test]
fn with_pauses_nothing_is_lost() {
    let lossy = report(&incast("buffer_kib = 400", "newreno"));
    assert!(lossy.dropped > 100, "{} dropped: a weak test", lossy.dropped);
    for threads in [1, 3] {
        let outcome = run_on(&incast("buffer_kib = 400\npause = true", "newreno"), threads);
        let text = incast("buffer_kib = 400\npause = true", "newreno");
        let report = Report::new(&outcome, &[], Scenario::parse(&text).unwrap().plan().unwrap().duration_ps);
        assert!(report.pauses > 100, "{} pauses", report.pauses);
        assert_eq!((report.dropped, report.resent, report.flows_completed), (0, 0, 31));
        assert_eq!(outcome.digest(), run_on(&text, 1).digest());
    }
}

/// Choudhury and Hahne 1998: n queues that never end get share/(1 + n share) of the memory each.
#[test]
fn queues_that_share_memory_leave_some_free() {
    for (share, part) in [(1.0, 0.5), (0.5, 1.0 / 3.0), (4.0, 0.8)] {
        let report = report(&incast(&format!("buffer_kib = 400\nshare = {share}"), "newreno"));
        let longest = report.queued_bytes_max as f64 / (400.0 * 1024.0);
        assert!((longest - part).abs() < 0.02, "share {share}: the longest queue had {longest} of the memory");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_is_accounted_for(
        seed in any::<u32>(),
        load in 0.05f64..1.0,
        queue_kib in 2u64..200,
        delay_us in 0.3f64..30.0,
        shape in 0usize..4,
        threads in 1usize..4,
        newreno in any::<bool>(),
        memory in 0usize..3,
    ) {
        let shape = [
            "'fat-tree'\nk = 4",
            "'leaf-spine'\nleaves = 3\nspines = 2\nhosts_per_leaf = 3",
            "'star'\nhosts = 70",
            "'dumbbell'\nleft = 3\nright = 4",
        ][shape];
        let congestion = if newreno { "newreno" } else { "dctcp" };
        let memory = ["", "[switches]\nbuffer_kib = 60", "[switches]\nbuffer_kib = 12000\npause = true"][memory];
        let text = format!(
            "duration_ms = 0.4\nseed = {seed}\n[topology]\nshape = {shape}\n[links]\nqueue_kib = {queue_kib}\n\
             delay_us = {delay_us}\n{memory}\n[transport]\ncongestion = '{congestion}'\n[[traffic]]\nkind = 'poisson'\n\
             load = {load}\nsizes = 'websearch'\n[[traffic]]\nkind = 'incast'\nsenders = 5\nbytes = 90000"
        );
        let outcome = run_on(&text, threads);
        outcome.check().unwrap();
        prop_assert_eq!(outcome.digest(), run_on(&text, 1).digest());
        for link in outcome.links.iter().filter(|link| link.from >= outcome.hosts.len() as u32) {
            let queue_bytes_max = if memory.is_empty() { queue_kib << 10 } else { 12_000 << 10 };
            prop_assert!(link.counters.queued_bytes_max <= queue_bytes_max);
        }
    }
}

/// Five switches in a circle, and from each a host that sends to the one after the next: every buffer waits for the next one to be free.
#[test]
fn a_circle_of_pauses_is_found() {
    let circle = |pause: bool| {
        let links = (0..5).map(|at| format!("[[topology.link]]\nbetween = ['s{at}', 's{}']\n", (at + 1) % 5));
        let flows = (0..5).map(|at| format!("[{at}, {}, 100000000, 0.0]", (at + 2) % 5)).collect::<Vec<_>>().join(", ");
        format!(
            "duration_ms = 30\n[topology]\nshape = 'links'\nhosts = 'h0..h4'\nswitches = 's0..s4'\n\
             [[topology.link]]\nbetween = ['h0..h4', 's0..s4']\n{}[links]\ndelay_us = 5.0\n[switches]\nbuffer_kib = 150\n\
             pause = {pause}\n[transport]\ninitial_window = 1000\n[[traffic]]\nkind = 'list'\nflows = [{flows}]\n",
            links.collect::<String>()
        )
    };
    let stuck = report(&circle(true));
    assert_eq!(stuck.deadlocked_links, 5, "{stuck:?}");
    let lossy = report(&circle(false));
    assert_eq!(lossy.deadlocked_links, 0);
    assert!(lossy.goodput_bps > 10.0 * stuck.goodput_bps, "{} and {}", lossy.goodput_bps, stuck.goodput_bps);
    // Pauses alone are none: a tree has no circle.
    let incast = report(&incast("buffer_kib = 1000\npause = true", "newreno"));
    assert!(incast.pauses > 0 && incast.deadlocked_links == 0, "{incast:?}");
}

#[test]
fn scenarios_that_cannot_be_say_why() {
    let good = "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 4\n[[traffic]]\nkind = 'permutation'";
    assert!(Scenario::parse(good).unwrap().plan().is_ok());
    let bad = [
        (good.replace("hosts = 4", "hosts = 1"), "from 2"),
        (good.replace("'star'", "'ring'"), "ring"),
        (good.replace("hosts = 4", "hosts = 4\nports = 3"), "ports"),
        (good.replace("duration_ms = 1", "duration_ms = -1"), "duration_ms"),
        (good.replace("'permutation'", "'poisson'\nload = 1.5\nsizes = 'websearch'"), "load"),
        (good.replace("'permutation'", "'poisson'\nload = 0.5\nsizes = 'webserch'"), "websearch"),
        (good.replace("'permutation'", "'list'\nflows = [[0, 9, 10, 0.0]]"), "hosts are 0 to 3"),
        (good.replace("'permutation'", "'incast'\nsenders = 4"), "from 1 to 3"),
        (good.replace("'permutation'", "'incast'\nsenders = 3\nbytes = 0"), "bytes = 0"),
        (good.replace("[[traffic]]", "[links]\nqueue_kib = 1\n[[traffic]]"), "1538 bytes"),
        (good.replace("[[traffic]]", "[links]\ndelay_us = 0\n[[traffic]]"), "delay_us"),
        (good.replace("[[traffic]]", "[links]\ngbps = 1e-8\n[[traffic]]"), "gbps"),
        (good.replace("[[traffic]]", "[transport]\ntimeout_min_us = 1e-7\n[[traffic]]"), "timeout_min_us"),
        (good.replace("[[traffic]]", "[switches]\nbuffer_kib = 20\npause = true\n[[traffic]]"), "more memory"),
        (good.replace("[[traffic]]", "[switches]\nbuffer_kib = 900\nshare = 0\n[[traffic]]"), "share"),
        ("duration_ms = 1\ntraffic = []\n[topology]\nshape = 'star'\nhosts = 4".into(), "[[traffic]]"),
    ];
    for (text, word) in bad {
        let error = Scenario::parse(&text).and_then(|scenario| scenario.plan().map(|_| ())).expect_err(&text);
        let said = format!("{error:#}");
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}
