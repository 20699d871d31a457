//! PANAMA's accelerators with a rate: they pause whoever sends more than they can keep, and lose nothing (PANAMA §4.2, R4).

use fanin_sim::engine::{self, Outcome};
use fanin_sim::report::Report;
use fanin_sim::scenario::Scenario;

fn run_on(text: &str, threads: usize) -> Outcome {
    let plan = Scenario::parse(text).unwrap().plan().unwrap();
    engine::run(plan, threads, |_| true).unwrap()
}

fn star(more: &str) -> String {
    format!(
        "duration_ms = 100\n[topology]\nshape = 'star'\nhosts = 8\n{more}\n[[job]]\nbytes = 1000000\ncompute_ms = 0.5\n\
         workers = 8\niterations = 3\nscheme = 'panama'\nslots = 512\nwindow = 512"
    )
}

fn last_end_ps(outcome: &Outcome) -> u64 {
    outcome.iterations.iter().map(|one| one.end_ps).max().unwrap()
}

#[test]
fn a_slow_accelerator_pauses_its_senders_and_loses_nothing() {
    let slow = star("[panama]\naccelerator_gbps = 20\nbuffer_kib = 256");
    let outcome = run_on(&slow, 1);
    let report = Report::new(&outcome, &[], 100_000_000_000);
    assert_eq!(outcome.iterations.len(), 3 * 8);
    assert!(report.pauses > 50, "{} pauses", report.pauses);
    assert_eq!((report.dropped, report.aggregation_resent), (0, 0), "{report:?}");
    // Eight ranks' packets of 1,538 bytes at 20 Gbit/s, and what remains of the last one's way.
    let packets = 1_000_000u64.div_ceil(1432);
    let taken_ps = 3 * (500_000_000 + 8 * packets * 1538 * 400);
    let end_ps = last_end_ps(&outcome);
    assert!(end_ps > taken_ps && (end_ps as f64) < 1.01 * taken_ps as f64, "{end_ps} ps, at least {taken_ps}");
    let buffer = outcome.links.iter().find(|link| link.is_accelerator()).unwrap().counters;
    assert!(buffer.queued_bytes_max > 100_000 && buffer.queued_bytes_max <= 256 << 10, "{buffer:?}");
    assert_eq!(buffer.sent, 3 * 8 * packets);
    assert_eq!(outcome.links.len(), 2 * 8 + 1, "the accelerator is one way round");
}

#[test]
fn without_pauses_its_buffer_would_overflow() {
    let mut plan = Scenario::parse(&star("[panama]\naccelerator_gbps = 20\nbuffer_kib = 256")).unwrap().plan().unwrap();
    let pause = plan.accelerators.as_mut().and_then(|one| one.memory.pause.as_mut()).unwrap();
    pause.above_bytes = u64::MAX;
    let outcome = engine::run(plan, 1, |_| true).unwrap();
    let report = Report::new(&outcome, &[], 100_000_000_000);
    assert!(report.pauses == 0 && report.dropped > 0, "{report:?}");
}

#[test]
fn one_that_keeps_up_changes_little_and_none_changes_nothing() {
    let (without, fast) = (run_on(&star(""), 1), run_on(&star("[panama]\naccelerator_gbps = 100"), 1));
    assert!(without.links.iter().all(|link| !link.is_accelerator()));
    assert_eq!(fast.switches[0].pauses, 0);
    let (without, fast) = (last_end_ps(&without), last_end_ps(&fast));
    // A microsecond more for each packet's passage, of which many are under way.
    assert!(fast > without && (fast as f64) < 1.02 * without as f64, "{fast} ps, {without} without");
}

#[test]
fn its_delay_is_a_windows_length_whatever_the_links_delays() {
    let delay_ps = |links: &str| {
        let text = star(&format!("[links]\ndelay_us = {links}\n[panama]\naccelerator_gbps = 100\nbuffer_kib = 100000"));
        let plan = Scenario::parse(&text).unwrap().plan().unwrap();
        plan.fabric.cables.last().unwrap().links[0].delay_ps
    };
    assert_eq!((delay_ps("2"), delay_ps("500")), (2_000_000, 10_000_000));
}

#[test]
fn any_number_of_threads_pauses_the_same() {
    let text = "duration_ms = 6\nseed = 2\n[topology]\nshape = 'fat-tree'\nk = 4\n[panama]\naccelerator_gbps = 12\nbuffer_kib = 300\n\
                [[traffic]]\nkind = 'poisson'\nload = 0.3\nsizes = 'websearch'\n[[job]]\nbytes = 300000\ncompute_ms = 0.1\n\
                workers = 8\nscheme = 'panama'\ntrees = 2\nwindow = 256\nslots = 256\n[[job]]\nbytes = 300000\n\
                compute_ms = 0.1\nworkers = 5\nplacement = 'random'\nscheme = 'panama'";
    let alone = run_on(text, 1);
    assert!(alone.switches.iter().map(|switch| switch.pauses).sum::<u64>() > 20, "a weak test");
    assert!(alone.endpoints.sums > 1000);
    for threads in [2, 3] {
        let shared = run_on(text, threads);
        assert!(alone == shared, "{threads} threads: {:x}, not {:x}", shared.digest(), alone.digest());
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let bad = [
        ("[panama]\naccelerator_gbps = 0", "accelerator_gbps = 0"),
        ("[panama]\naccelerator_gbps = 20\nbuffer_kib = 20", "give it more memory"),
        ("[panama]\npause_above_kib = 20", "pause_above_kib: only with accelerator_gbps"),
        ("[panama]\nbuffer_kib = 2000", "buffer_kib: only with accelerator_gbps"),
        ("[panama]\naccelerator_gbps = 20\nbuffer_kib = 4194304", "buffer_kib = 4194304: from 1 to 4194303"),
        ("[panama]\naccelerator_gbps = 20\npause_above_kib = 1", "pause_above_kib = 1: from 4 to 12"),
        ("[panama]\naccelerator_gbps = 20\n[switches]\nbuffer_kib = 900\npause = true", "not beside [switches]"),
    ];
    for (more, word) in bad {
        let said = format!("{:#}", Scenario::parse(&star(more)).unwrap().plan().map(drop).expect_err(more));
        assert!(said.contains(word) && said.contains("[panama]"), "{word:?} is not in: {said}");
    }
}
