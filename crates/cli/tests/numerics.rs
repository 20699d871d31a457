//! `fanin numerics`, on the recording of the repository.
#![allow(missing_docs)]

mod support;

use serde_json::Value;
use support::{fanin, text};

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/gradients/mnist-small-4");

#[test]
fn all_accumulators_are_compared_in_a_table_and_in_files() {
    let folder = std::env::temp_dir().join(format!("fanin-numerics-{}", std::process::id()));
    let out = folder.to_str().unwrap();
    let output = fanin(&["numerics", "compare", "--gradients", RECORDING, "--by-parameter", "--out", out]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for words in
        ["fpisa-a-safe", "log-tables-1000", "14316 elements at 6 steps, each the sum of 4 workers' float32", "7.bias"]
    {
        assert!(shown.contains(words), "{words} in\n{shown}");
    }
    let found: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("compare.json")).unwrap()).unwrap();
    let entries = found["entries"].as_array().unwrap();
    let entry = |name: &str| entries.iter().find(|entry| entry["accumulator"] == name).unwrap();
    let largest = |name: &str| entry(name)["largest"].as_f64().unwrap();
    assert_eq!(entries.len(), 14);
    assert!(largest("exact") <= largest("fpisa") && largest("fpisa") < 1e-3 * largest("fpisa-a"), "{entries:?}");
    assert!(entry("fpisa-a")["overflow"].as_u64() > Some(0) && entry("fpisa-a-safe")["overflow"] == 0);
    let csv = std::fs::read_to_string(folder.join("compare.csv")).unwrap();
    assert_eq!(csv.lines().count(), 15);
    for drawing in ["compare-errors.svg", "compare-relative-errors.svg"] {
        assert!(std::fs::read_to_string(folder.join(drawing)).unwrap().contains("block-fixed"), "{drawing}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_choice_of_accumulators_formats_and_ranks() {
    let some = ["--accumulators", "fpisa-a,exact", "--format", "float16", "--workers", "2"];
    let output = fanin(&[&["numerics", "compare", "--gradients", RECORDING][..], &some].concat());
    let shown = text(&output.stdout);
    assert!(shown.contains("each the sum of 2 workers' float16") && !shown.contains("block-fixed"), "{shown}");
    for (arguments, status, why) in [
        (&["--gradients", RECORDING, "--accumulators", "fpisa-b"][..], 2, "use one of exact, ieee"),
        (&["--gradients", RECORDING, "--workers", "5"], 1, "mnist-small-4 has 4 ranks: use 1 to 4"),
        (&["--gradients", "no-such-folder"], 1, "no-such-folder"),
        (&[], 2, "--gradients"),
    ] {
        let output = fanin(&[&["numerics", "compare"], arguments].concat());
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {complaint}");
        assert!(complaint.contains(why), "{why} in the answer to {arguments:?}:\n{complaint}");
    }
}
