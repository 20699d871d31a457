//! Networks of any shape: what a shape by name does, links one by one do; queues as worked out by hand; any connected graph runs to its end.

use std::fmt::Write;

use fanin_sim::engine::{self, Outcome};
use fanin_sim::scenario::Scenario;
use proptest::prelude::*;

fn run_on(text: &str, threads: usize) -> Outcome {
    let plan = Scenario::parse(text).unwrap().plan().unwrap();
    engine::run(plan, threads, |_| true).unwrap()
}

fn refusal(text: &str) -> String {
    format!("{:#}", Scenario::parse(text).and_then(|scenario| scenario.plan().map(|_| ())).expect_err(text))
}

fn link(text: &mut String, one: &str, other: &str) {
    let _ = writeln!(text, "[[topology.link]]\nbetween = ['{one}', '{other}']");
}

/// Al-Fares's tree, its links in the order of `fat_tree`.
fn fat_tree_of_links(k: u32) -> String {
    let half = k / 2;
    let switches = k * k + half * half;
    let mut text = format!(
        "[topology]\nshape = 'links'\nhosts = {}\nswitches = 'switch0..switch{}'\n",
        k * half * half,
        switches - 1
    );
    for (rack, pod) in (0..k).flat_map(|pod| (0..half).map(move |rack| (rack, pod))) {
        let first = (pod * half + rack) * half;
        let switch = format!("switch{}", pod * k + rack);
        link(&mut text, &format!("host{first}..host{}", first + half - 1), &switch);
    }
    for pod in 0..k {
        let range = |first: u32| format!("switch{}..switch{}", pod * k + first, pod * k + first + half - 1);
        link(&mut text, &range(0), &range(half));
    }
    for (pod, upper) in (0..k).flat_map(|pod| (0..half).map(move |upper| (pod, upper))) {
        let core = k * k + upper * half;
        let cores = format!("switch{core}..switch{}", core + half - 1);
        link(&mut text, &format!("switch{}", pod * k + half + upper), &cores);
    }
    text
}

const WORK: &str = "
[transport]
congestion = 'dctcp'
[atp]
slots = 200
[[traffic]]
kind = 'poisson'
load = 0.4
sizes = 'websearch'
[[traffic]]
kind = 'incast'
senders = 7
bytes = 60000
[[job]]
bytes = 400000
compute_ms = 0.1
workers = 5
placement = 'random'
scheme = 'switchml'
trees = 2
[[job]]
bytes = 400000
compute_ms = 0.1
workers = 4
placement = 'random'
scheme = 'panama'
[[job]]
bytes = 200000
compute_ms = 0.1
workers = 4
placement = 'random'
scheme = 'ring'
[[job]]
bytes = 100000
compute_ms = 0.1
workers = 4
placement = 'random'
scheme = 'atp'
[[job]]
bytes = 100000
compute_ms = 0.1
workers = 4
placement = 'random'
scheme = 'ideal'
";

#[test]
fn links_one_by_one_are_the_shape_by_name() {
    let leaf_spine = "[topology]\nshape = 'links'\nhosts = 'h0..h11'\nswitches = ['leaf0..leaf3', 'spine0..spine1']\n\
                      [[topology.link]]\nbetween = ['h0..h11', 'leaf0..leaf3']\n\
                      [[topology.link]]\nbetween = ['leaf0..leaf3', 'spine0..spine1']\n";
    for (named, links) in [
        ("[topology]\nshape = 'fat-tree'\nk = 4\n", fat_tree_of_links(4)),
        ("[topology]\nshape = 'leaf-spine'\nleaves = 4\nspines = 2\nhosts_per_leaf = 3\n", leaf_spine.into()),
    ] {
        let text =
            |shape: &str| format!("duration_ms = 3\nseed = 9\n{shape}[links]\nqueue_kib = 90\ncore_gbps = 8{WORK}");
        let (named, links) = (run_on(&text(named), 1), text(&links));
        assert!(named.endpoints.sums > 500 && named.iterations.len() > 20, "{:?}: a weak test", named.endpoints);
        for threads in [1, 2, 3] {
            let outcome = run_on(&links, threads);
            assert!(outcome == named, "{threads} threads: {:x}, not {:x}", outcome.digest(), named.digest());
        }
    }
}

/// Two racks with a slow, long link between them, and hosts of different rates.
const TWO_RACKS: &str = "duration_ms = 1
[topology]
shape = 'links'
hosts = ['a0', 'a1', 'b0']
switches = ['A', 'B']
[[topology.link]]
between = [['a0', 'a1'], 'A']
[[topology.link]]
between = ['b0', 'B']
gbps = 40
[[topology.link]]
between = ['A', 'B']
gbps = 2.5
delay_us = 3
mark_bytes = 1500
queue_kib = 4
";

#[test]
fn queues_of_an_uneven_network_are_as_worked_out_by_hand() {
    let flows = |flows: &str| run_on(&format!("{TWO_RACKS}[[traffic]]\nkind = 'list'\nflows = {flows}"), 1);
    // 1,078 bytes and the shortest frame back over 10, 2.5 and 40 Gbit/s with 1, 3 and 1 µs: 800, 3,200 and 200 ps a byte.
    let alone = 2 * 5_000_000 + (1078 + 84) * (800 + 3200 + 200);
    let single = flows("[[0, 2, 1000, 0.0]]");
    assert_eq!(single.flows[0].completion_ps, alone);
    // Both come to the slow link at once: the second waits as long as the first takes. Acknowledgements are far apart.
    let both = flows("[[0, 2, 1000, 0.0], [1, 2, 1000, 0.0]]");
    let mut times: Vec<u64> = both.flows.iter().map(|flow| flow.completion_ps).collect();
    times.sort_unstable();
    assert_eq!(times, [alone, alone + 1078 * 3200]);
    let between = |outcome: &Outcome, from: u32, to: u32| {
        outcome.links.iter().find(|link| (link.from, link.to) == (from, to)).unwrap().counters
    };
    assert_eq!(between(&both, 3, 4).queued_bytes_max, 1078);
    // Three whole segments of 1,538 bytes from each: the link has one, two wait, of which the second finds more than the threshold, and there is no room
    // in 4 KiB for the other three.
    let many = flows("[[0, 2, 4380, 0.0], [1, 2, 4380, 0.0]]");
    let slow = between(&many, 3, 4);
    assert_eq!((slow.sent, slow.marked, slow.dropped, slow.queued_bytes_max), (3, 1, 3, 2 * 1538));
    assert_eq!(many.flows.len(), 0, "the least timeout is longer than the run");
    assert!(
        flows("[[0, 2, 800000, 0.0]]").hosts[0].acknowledged_bytes < 330_000,
        "1 ms of 2.5 Gbit/s are 312,500 bytes"
    );
}

#[test]
fn an_ideal_job_goes_as_fast_as_its_slowest_link() {
    let outcome = run_on(
        &format!(
            "{TWO_RACKS}[[job]]\nbytes = 143200\ncompute_ms = 0\nworkers = 3\niterations = 1\nscheme = 'ideal'\n\
             payload_bytes = 1432"
        ),
        1,
    );
    // From a rank of A to a root and back to a rank of A or B. At A: b0 comes over 40 and 2.5 Gbit/s, and goes back so.
    let way = 2 * (1538 * (200 + 3200) + 4_000_000);
    assert!(outcome.iterations.iter().all(|one| one.end_ps == way + 99 * 1538 * 3200), "{:?}", outcome.iterations);
}

#[test]
fn neighbours_of_one_tier_choose_by_different_bits() {
    // From a, both b and c lead to d, and from there e and f to g; all have hosts.
    let text = "duration_ms = 1
[topology]
shape = 'links'
hosts = 'h0..h6'
switches = ['a', 'b', 'c', 'd', 'e', 'f', 'g']
[[topology.link]]
between = ['h0..h6', ['a', 'b', 'c', 'd', 'e', 'f', 'g']]
[[topology.link]]
between = [['a', 'd'], ['b', 'c']]
[[topology.link]]
between = [['d', 'g'], ['e', 'f']]
[[traffic]]
kind = 'list'
flows = ";
    let flows: Vec<String> = (0..64).map(|flow| format!("[0, 6, 1000, {flow}.0]")).collect();
    let outcome = run_on(&format!("{text}[{}]", flows.join(",")), 1);
    assert_eq!(outcome.flows.len(), 64);
    let sent = |from: u32, to: u32| {
        outcome.links.iter().find(|link| (link.from, link.to) == (from, to)).unwrap().counters.sent
    };
    let (a, b, c, d, e, f) = (7, 8, 9, 10, 11, 12);
    for (from, to) in [(a, b), (a, c), (d, e), (d, f)] {
        assert!((16..=48).contains(&sent(from, to)), "{} of 64 flows from {from} to {to}", sent(from, to));
    }
}

#[test]
fn networks_that_cannot_be_name_the_node_or_the_link() {
    let good = format!("{TWO_RACKS}[[traffic]]\nkind = 'permutation'");
    assert!(Scenario::parse(&good).unwrap().plan().is_ok());
    let more = |link: &str| good.replace("[[traffic]]", &format!("[[topology.link]]\nbetween = {link}\n[[traffic]]"));
    let bad = [
        (more("['a0', 'C']"), "`C` is no switch and no host"),
        (more("['a0', 'B']"), "a0 has links to A and to B"),
        (more("['a0', 'A']"), "a0 and A are connected twice"),
        (more("['B', 'A']"), "B and A are connected twice"),
        (more("['B', 'B']"), "B is connected to itself"),
        (more("['a0', 'b0']"), "a0 and b0 are hosts"),
        (more("[['a0', 'B'], 'A']"), "a0 is a host and B a switch"),
        (more("[['a0', 'a1', 'b0'], ['A', 'B']]"), "3 hosts cannot be divided equally among 2 switches"),
        (more("[2, 'A']"), "name nodes"),
        (more("['A', 'B']\nspeed = 1"), "speed"),
        (more("['B..A', 'B']"), "`B..A` is no range"),
        (good.replace("hosts = ['a0', 'a1', 'b0']", "hosts = ['a0', 'a1', 'b0..b1']"), "b1 has no link"),
        (good.replace("switches = ['A', 'B']", "switches = ['A', 'B', 'C']"), "C cannot reach A"),
        (good.replace("switches = ['A', 'B']", "switches = ['A', 'B', 'a0']"), "`a0` is named twice"),
        (good.replace("switches = ['A', 'B']", "switches = []"), "no name in the list"),
        (good.replace("switches = ['A', 'B']", "switches = true"), "a number, a name or range, or a list of these"),
        (good.replace("gbps = 40", "gbps = 0"), "[[topology.link]] 2: gbps = 0"),
        (good.replace("delay_us = 3", "delay_us = 0"), "[[topology.link]] 3: delay_us = 0"),
        (good.replace("queue_kib = 4", "queue_kib = 0"), "[[topology.link]] 3: queue_kib = 0"),
        (
            good.replace("queue_kib = 4", "queue_kib = 18014398509481985"),
            "[[topology.link]] 3: queue_kib = 18014398509481985: from 1 to",
        ),
        (format!("{good}\n[links]\nqueue_kib = 4194304"), "links.queue_kib = 4194304: from 1 to 4194303"),
        (good.replace("between = ['A', 'B']", "between = ['A']"), "[[topology.link]] 3: between has 1"),
    ];
    for (text, word) in bad {
        let said = refusal(&text);
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

/// A tree that spans all switches, and more links between them, by a few bits of luck.
fn random_network(switches: usize, hosts: &[usize], luck: u64) -> String {
    let host_count: usize = hosts.iter().sum();
    let mut text = format!(
        "[topology]\nshape = 'links'\nhosts = 'h00..h{:02}'\nswitches = 's0..s{}'\n",
        host_count - 1,
        switches - 1
    );
    let mut first = 0;
    for (switch, &count) in hosts.iter().enumerate().filter(|(_, count)| **count > 0) {
        link(&mut text, &format!("h{first:02}..h{:02}", first + count - 1), &format!("s{switch}"));
        first += count;
    }
    let mut luck = luck;
    let mut draw = |below: u64| {
        luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (luck >> 33) % below
    };
    for one in 1..switches {
        let parent = draw(one as u64) as usize;
        for other in 0..one {
            if other != parent && draw(4) > 0 {
                continue;
            }
            link(&mut text, &format!("s{one}"), &format!("s{other}"));
            let _ = writeln!(text, "gbps = {}\ndelay_us = {}.5", [5, 10, 40][draw(3) as usize], draw(3));
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn any_connected_network_runs_to_its_end(
        hosts in proptest::collection::vec(0usize..4, 2..9),
        luck in any::<u64>(),
        seed in any::<u32>(),
        threads in 2usize..4,
        queue_kib in 20u64..200,
    ) {
        let mut hosts = hosts;
        hosts[0] += 6;
        let topology = random_network(hosts.len(), &hosts, luck);
        let head = |duration_ms: u32| format!("duration_ms = {duration_ms}\nseed = {seed}\n{topology}");
        let work = WORK.replace("senders = 7", "senders = 5").replace("workers = 5", "workers = 4");
        let text = format!("{}[links]\nqueue_kib = {queue_kib}\n{work}", head(4));
        // Sums are checked as ranks take them.
        let outcome = run_on(&text, threads);
        prop_assert_eq!(outcome.digest(), run_on(&text, 1).digest());
        prop_assert!(outcome.endpoints.sums > 0);
        // Alone, each has what it needs.
        for scheme in ["switchml", "panama", "atp", "ring", "ideal"] {
            let job = "[[job]]\nbytes = 50000\ncompute_ms = 0.1\nworkers = 5\nplacement = 'random'\niterations = 2";
            let text = format!("{}{job}\nscheme = '{scheme}'", head(40));
            let outcome = run_on(&text, 1);
            prop_assert_eq!(outcome.iterations.len(), 10, "{}", text);
        }
    }
}

#[test]
fn a_switch_with_too_many_ports_for_a_tree_is_named() {
    let text = "duration_ms = 1\n[topology]\nshape = 'links'\nhosts = 66\nswitches = 'top'\n[[topology.link]]\n\
                between = ['host0..host65', 'top']\n[[job]]\nbytes = 9000\ncompute_ms = 0\nworkers = 65\nscheme = 'panama'";
    let said = refusal(text);
    assert!(said.contains("top would need ports beyond 64"), "{said}");
}

#[test]
fn too_many_links_or_kinds_of_them_are_refused_before_any_is_made() {
    let of_switches = |between: &str| {
        format!(
            "duration_ms = 1\n[topology]\nshape = 'links'\nhosts = 2\nswitches = 20000\n[[topology.link]]\nbetween = {between}\n[[traffic]]\nkind = 'permutation'"
        )
    };
    let said = refusal(&of_switches("['switch0..switch19999', 'switch0..switch19999']"));
    assert!(said.contains("[[topology.link]] 1: switch0 is connected to itself"), "{said}");
    let said = refusal(&of_switches("['switch0..switch9999', 'switch10000..switch19999']"));
    assert!(said.contains("100000000 links") && said.contains("at most 4000000"), "{said}");
    let kinds = |count: u32| {
        let mut text = format!("duration_ms = 1\n[topology]\nshape = 'links'\nhosts = {count}\nswitches = 'A'\n");
        for host in 0..count {
            link(&mut text, &format!("host{host}"), "A");
            let _ = writeln!(text, "gbps = {}", host + 1);
        }
        text + "[[traffic]]\nkind = 'permutation'"
    };
    assert!(Scenario::parse(&kinds(128)).unwrap().plan().is_ok());
    let said = refusal(&kinds(130));
    assert!(
        said.contains("[topology]: links of 260 kinds") && said.contains("give links fewer different rates"),
        "{said}"
    );
}
