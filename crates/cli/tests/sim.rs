//! `fanin sim`: scenarios of the repository run, files are whole, mistakes are named.
#![allow(missing_docs)]

mod support;

use serde_json::Value;
use support::{fanin, text};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/sim");

#[test]
fn every_scenario_of_the_repository_runs_and_repeats() {
    let mut count = 0;
    for entry in std::fs::read_dir(FOLDER).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let run = |threads: &str| -> Value {
            let arguments = ["sim", file.to_str().unwrap(), "--duration-ms", "0.5", "--threads", threads, "--json"];
            let output = fanin(&arguments);
            assert_eq!(output.status.code(), Some(0), "{}: {}", file.display(), text(&output.stderr));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let (alone, shared) = (run("1"), run("2"));
        assert!(alone["packet_hops"].as_u64().unwrap() > 1000, "{}", file.display());
        assert_eq!(alone["digest"], shared["digest"], "{}", file.display());
        count += 1;
    }
    assert!(count >= 3, "{count} scenarios in {FOLDER}");
}

#[test]
fn files_have_a_line_for_each_flow_and_link() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-sim-{}", std::process::id()));
    let output = fanin(&["sim", &format!("{FOLDER}/incast.toml"), "--out", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("60 of 60 flows ended"), "{}", text(&output.stdout));
    let lines = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap().lines().count();
    assert_eq!(lines("flows.csv"), 1 + 60);
    assert_eq!(lines("links.csv"), 1 + 2 * 61);
    assert_eq!(lines("hosts.csv"), 1 + 61);
    assert!(std::fs::read_to_string(folder.join("completion.svg")).unwrap().contains("</svg>"));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["flows_completed"], 60);
    let uneven = format!("{FOLDER}/uneven.toml");
    let output = fanin(&["sim", &uneven, "--duration-ms", "0.1", "--out", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let row = text(&output.stdout).lines().find(|line| line.contains(" panama ")).map(str::to_owned);
    assert!(
        row.as_ref().is_some_and(|row| row.contains(" 0 ") && !row.contains(" ms ")),
        "no iteration, no time: {row:?}"
    );
    let unended = std::fs::read_to_string(folder.join("unended.csv")).unwrap();
    assert!(!unended.contains("9223372036854775807"), "{unended}");
    let hosts = std::fs::read_to_string(folder.join("hosts.csv")).unwrap();
    assert!(hosts.lines().eq(["host,name,switch", "0,h0,old0"].into_iter().chain(hosts.lines().skip(2))), "{hosts}");
    assert!(hosts.lines().count() == 1 + 36 && hosts.ends_with("\n35,h35,storage\n"), "{hosts}");
    assert!(folder.join("jobs.csv").exists());
    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    let out = ["--out", folder.to_str().unwrap(), "--tables", "parquet"];
    let output = fanin(&[&["sim", &format!("{FOLDER}/incast.toml")], &out[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let flows = std::fs::read(folder.join("flows.parquet")).unwrap();
    assert!(flows.starts_with(b"PAR1") && flows.ends_with(b"PAR1") && !folder.join("flows.csv").exists());
    assert!(!folder.join("jobs.csv").exists(), "of the run before");
    assert!(folder.join("notes.txt").exists() && folder.join("report.json").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_would_start_after_the_end_is_said() {
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-sim-late-{}.toml", std::process::id()));
    let scenario = "duration_ms = 0.5\n[topology]\nshape = 'star'\nhosts = 4\n[[traffic]]\nkind = 'list'\n\
                    flows = [[0, 1, 9000, 0.0], [0, 2, 9000, 500.0], [1, 2, 9000, 700.0]]\n[[job]]\nbytes = 1000\n\
                    compute_ms = 0.1\nworkers = 2\nscheme = 'ring'\nstart_ms = 1.0";
    std::fs::write(&file, scenario).unwrap();
    let run = |duration: &str| {
        let output = fanin(&["sim", file.to_str().unwrap(), "--duration-ms", duration]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let (short, long) = (run("0.5"), run("2"));
    assert!(short.contains("2 more flows and 1 jobs would start after") && short.contains("1 of 1 flows"), "{short}");
    assert!(!long.contains("would start after") && long.contains("3 of 3 flows"), "{long}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_mistake_in_a_file_is_named_with_the_file() {
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-sim-bad-{}.toml", std::process::id()));
    std::fs::write(&file, "duration_ms = 1\n[topology]\nshape = 'star'\nhosts = 4\n[[traffic]]\nkind = 'poison'")
        .unwrap();
    let output = fanin(&["sim", file.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("poison") && said.contains("poisson") && said.contains(file.to_str().unwrap()), "{said}");
    std::fs::remove_file(&file).unwrap();
    let output = fanin(&["sim", "/nowhere/at-all.toml"]);
    assert!(text(&output.stderr).contains("/nowhere/at-all.toml"), "{}", text(&output.stderr));
}
