//! `fanin reproduce`, scaled down: that every experiment runs and says what it must.
#![allow(missing_docs)]

mod support;

use serde_json::Value;
use support::{fanin, text};

/// The number in the column of a sheet's last row.
fn last(findings: &Value, sheet: usize, column: usize) -> f64 {
    let rows = findings["sheets"][sheet]["rows"].as_array().unwrap();
    rows[rows.len() - 1][column].as_f64().unwrap()
}

#[test]
fn every_experiment_of_atp_runs_and_points_the_paper_s_way() {
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-reproduce-{}", std::process::id()));
    let output = fanin(&["reproduce", "atp", "--quick", "--out", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let findings = |name: &str| -> Value {
        assert!(shown.contains(&format!("{name}: ")), "{name} in\n{shown}");
        serde_json::from_str(&std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()).unwrap()
    };
    let ratio = last(&findings("traffic"), 0, 3);
    assert!((2.7..3.3).contains(&ratio), "racks alone send three times as much: {ratio}");
    let ratio = last(&findings("fig13"), 0, 3);
    assert!(ratio > 1.0, "dynamic slots beat static ones where slots are few: {ratio}");
    let hashing = findings("fig14");
    let [hashed, linear] = [1, 2].map(|column| last(&hashing, 0, column));
    assert!(hashed > 1.1 * linear, "hashed slots beat linear ones among eight jobs: {hashed} and {linear}");
    let congestion = findings("fig15");
    let sum = |column: usize| -> f64 {
        let rows = congestion["sheets"][0]["rows"].as_array().unwrap();
        rows.iter().map(|row| row[column].as_f64().unwrap()).sum()
    };
    assert!(sum(1) > 1.2 * sum(2), "congestion control pays with half the slots: {} and {}", sum(1), sum(2));
    let loss = findings("fig10");
    assert!(last(&loss, 0, 1) < 1.0 && last(&loss, 0, 1) > 0.5, "one percent of loss costs something: {loss}");
    let shares = findings("fairness");
    let [first, second] = [1, 2].map(|column| last(&shares, 0, column));
    assert!((first - second).abs() < 0.15, "equal jobs get equal shares: {first} and {second}");
    let scaling = findings("scaling");
    let [fixed, dynamic] = [1, 2].map(|column| last(&scaling, 0, column));
    assert!(dynamic > fixed, "large gradients pass faster at a scale of their own: {fixed} and {dynamic}");
    for file in ["fig13-throughput.csv", "fig13-throughput.svg", "fig13-in-network.svg", "fig10-loss.svg"] {
        assert!(std::fs::metadata(folder.join(file)).is_ok_and(|file| file.len() > 50), "{file}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn mistakes_in_parameters_are_answered_with_what_to_do() {
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-reproduce-{}.toml", std::process::id()));
    std::fs::write(&file, "seeed = 1\n").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, status, why) in [
        (&["reproduce", "atp", "fig99"][..], 2, "fig13"),
        (&["reproduce", "atp", "--config", file], 2, "EXPERIMENT"),
        (&["reproduce", "atp", "fig13", "--config", "no-such-file.toml"], 1, "cannot read no-such-file.toml"),
        (&["reproduce", "atp", "fig13", "--config", file], 1, "begin with a copy of experiments/atp/fig13.toml"),
    ] {
        let output = fanin(arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {complaint}");
        assert!(complaint.contains(why), "{why} in the answer to {arguments:?}:\n{complaint}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_job_beside_a_tcp_flow_sums_right_and_both_get_through() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-reproduce-fig16-{}", std::process::id()));
    let output = fanin(&["reproduce", "atp", "fig16", "--quick", "--out", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let findings = std::fs::read_to_string(folder.join("fig16.json")).unwrap();
    let findings: Value = serde_json::from_str(&findings).unwrap();
    assert_eq!(findings["rows"].as_array().unwrap().len(), 4);
    for sheet in findings["sheets"].as_array().unwrap() {
        let rows = sheet["rows"].as_array().unwrap();
        assert!(rows.len() > 1 && rows.iter().any(|row| row[1].as_f64().unwrap() > 0.0), "{sheet}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn recorded_gradients_are_for_the_overflow_experiment() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");
    let output = fanin(&["reproduce", "atp", "overflow", "--quick", "--gradients", recording]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("mnist-small-4: sums of 4 ranks' gradients"), "{}", text(&output.stdout));
    let output = fanin(&["reproduce", "atp", "fig13", "--gradients", recording]);
    assert!(text(&output.stderr).contains("only these experiments read --gradients: overflow"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn libra_s_table_is_printed_beside_ours_and_becomes_a_page() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");
    let output = fanin(&["reproduce", "libra", "table2", "--quick", "--gradients", recording]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for words in ["36.79 / 62.46 %", "R1, look-ups, 1000 steps, mnist-small-4"] {
        assert!(shown.contains(words), "{words} in\n{shown}");
    }
    let page = text(&fanin(&["reproduce", "libra", "--markdown"]).stdout);
    assert!(page.starts_with("# The Libra paper's numbers") && page.contains("## table2"), "{page}");
}

#[test]
fn number_formats_are_shown_on_recordings_and_on_this_machine() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");
    for (paper, experiment, words) in [
        ("fpisa", "fig7", "mnist-small-4, early: elements with a ratio below 2^7, 4 workers"),
        ("fpisa", "fig8", "fpisa-a-safe, final: overwrites, left shifts"),
        ("switchml", "theorems", "fanin's f, a power of two: largest error over n / f, n = 4"),
    ] {
        let output = fanin(&["reproduce", paper, experiment, "--gradients", recording]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(words), "{words} in\n{}", text(&output.stdout));
    }
    for experiment in ["fig6", "fig10"] {
        let output = fanin(&["reproduce", "fpisa", experiment, "--quick", "--markdown"]);
        assert_eq!(output.status.code(), Some(2), "a page of quick numbers would mislead");
        let output = fanin(&["reproduce", "fpisa", experiment, "--quick"]);
        assert!(text(&output.stdout).contains("in the cache"), "{}", text(&output.stdout));
    }
    let output = fanin(&["reproduce", "fpisa", "fig9", "--gradients", recording]);
    assert!(text(&output.stderr).contains("only these experiments read --gradients: fig7, fig8"));
}

#[test]
fn integers_float32_and_float16_are_summed_right_over_links() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let output = fanin(&["reproduce", "switchml", "fig12", "--quick"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("time of float16 on the wire / of integers"), "{}", text(&output.stdout));
}
