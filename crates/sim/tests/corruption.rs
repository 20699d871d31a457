//! Packets that links damage: as many as the chance says, the same from any number of threads, and all that was lost is sent again.

use fanin_sim::engine::{self, Outcome};
use fanin_sim::report::Report;
use fanin_sim::scenario::Scenario;

fn run_on(text: &str, threads: usize) -> Outcome {
    let plan = Scenario::parse(text).unwrap().plan().unwrap();
    engine::run(plan, threads, |_| true).unwrap()
}

fn corrupted(outcome: &Outcome) -> u64 {
    outcome.links.iter().map(|link| link.corrupted).sum()
}

#[test]
fn links_lose_the_share_that_was_asked_for_and_no_others() {
    let text = |more: &str| {
        format!(
            "duration_ms = 20\n[topology]\nshape = 'links'\nhosts = 4\nswitches = ['left', 'right']\n\
             [[topology.link]]\nbetween = ['host0..host3', ['left', 'right']]\n\
             [[topology.link]]\nbetween = ['left', 'right']\ngbps = 40\n{more}\n[[traffic]]\nkind = 'permutation'\n"
        )
    };
    let (noisy, clean) = (run_on(&text("corruption = 0.01"), 1), run_on(&text(""), 1));
    assert_eq!(corrupted(&clean), 0);
    for link in &noisy.links {
        if link.from >= 4 && link.to >= 4 {
            let arrived = (link.counters.sent - link.started) as f64;
            let expected = 0.01 * arrived;
            assert!((link.corrupted as f64 - expected).abs() < 4.5 * expected.sqrt(), "{link:?}");
        } else {
            assert_eq!(link.corrupted, 0, "{link:?}");
        }
    }
    assert!(corrupted(&noisy) > 50, "a weak test");
}

#[test]
fn a_lost_packet_that_is_not_counted_is_found() {
    let text = "duration_ms = 5\n[topology]\nshape = 'star'\nhosts = 4\n[links]\ncorruption = 0.01\n[[traffic]]\n\
                kind = 'permutation'";
    let mut outcome = run_on(text, 1);
    outcome.check().unwrap();
    outcome.links.iter_mut().find(|link| link.to == 4 && link.corrupted > 0).unwrap().corrupted -= 1;
    assert!(outcome.check().unwrap_err().to_string().contains("switch 0"));
}

#[test]
fn flows_come_to_their_end_in_spite_of_it() {
    for congestion in ["dctcp", "newreno"] {
        let text = format!(
            "duration_ms = 300\n[topology]\nshape = 'dumbbell'\nleft = 4\nright = 4\n[links]\ncorruption = 2e-3\n[transport]\n\
             congestion = '{congestion}'\n[[traffic]]\nkind = 'incast'\nsenders = 7\nbytes = 1000000"
        );
        let outcome = run_on(&text, 1);
        let report = Report::new(&outcome, &[], 300_000_000_000);
        assert_eq!(report.flows_completed, 7, "{congestion}");
        assert!(report.corrupted > 20 && report.resent > 10, "{congestion}: {report:?}");
        assert_eq!(report.corrupted, corrupted(&outcome));
    }
}

/// PANAMA §4.2: what is left of losses in a lossless network.
#[test]
fn sums_are_whole_in_spite_of_it() {
    for scheme in ["switchml", "panama", "atp", "ring"] {
        let text = format!(
            "duration_ms = 300\n[topology]\nshape = 'leaf-spine'\nleaves = 2\nspines = 2\nhosts_per_leaf = 4\n[links]\n\
             corruption = 1e-3\n[[job]]\nbytes = 1000000\ncompute_ms = 0.1\nworkers = 6\niterations = 3\n\
             scheme = '{scheme}'\ntrees = 2"
        );
        let outcome = run_on(&text, 1);
        assert_eq!(outcome.iterations.len(), 18, "{scheme}");
        assert!(corrupted(&outcome) > 10, "{scheme}: {} lost, a weak test", corrupted(&outcome));
        let resent = outcome.endpoints.resent + outcome.endpoints.asked;
        assert!(scheme == "ring" || resent > 5, "{scheme}: {:?}", outcome.endpoints);
    }
}

#[test]
fn any_number_of_threads_loses_the_same_packets() {
    let text = |corruption: &str, seed: u64| {
        format!(
            "duration_ms = 4\nseed = {seed}\n[topology]\nshape = 'fat-tree'\nk = 4\n[links]\n{corruption}\n[[traffic]]\n\
             kind = 'poisson'\nload = 0.5\nsizes = 'websearch'\n[[job]]\nbytes = 300000\ncompute_ms = 0.1\nworkers = 9\n\
             scheme = 'switchml'\n[[job]]\nbytes = 300000\ncompute_ms = 0.1\nworkers = 5\nscheme = 'panama'\n"
        )
    };
    let noisy = text("corruption = 1e-3", 3);
    let alone = run_on(&noisy, 1);
    assert!(corrupted(&alone) > 50, "{} lost: a weak test", corrupted(&alone));
    for threads in [2, 3, 4] {
        let shared = run_on(&noisy, threads);
        assert!(alone == shared, "{threads} threads: {:x}, not {:x}", shared.digest(), alone.digest());
    }
    let lost = |text: &str| run_on(text, 1).links.iter().map(|link| link.corrupted).collect::<Vec<_>>();
    assert_ne!(lost(&noisy), lost(&text("corruption = 1e-3", 4)));
    assert_eq!(run_on(&text("", 3), 1).digest(), run_on(&text("corruption = 0.0", 3), 1).digest());
    let refused = Scenario::parse(&text("corruption = 1.5", 3)).unwrap_err().to_string();
    assert!(refused.contains("links.corruption = 1.5"), "{refused}");
}

/// Frames that end a pause are never lost, or a link would be stopped for good.
#[test]
fn pauses_end_in_spite_of_it() {
    let text = "duration_ms = 100\n[topology]\nshape = 'leaf-spine'\nleaves = 4\nspines = 2\nhosts_per_leaf = 8\n[links]\n\
                corruption = 2e-3\n[transport]\ncongestion = 'newreno'\ninitial_window = 100\n[switches]\nbuffer_kib = 400\n\
                pause = true\n[[traffic]]\nkind = 'incast'\nsenders = 31\nbytes = 400000";
    let outcome = run_on(text, 1);
    assert!(outcome.switches.iter().map(|switch| switch.pauses).sum::<u64>() > 20 && corrupted(&outcome) > 20);
    assert_eq!(outcome.flows.len(), 31);
}
