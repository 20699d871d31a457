//! `fanin bench` and `fanin net`, run as a person would.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const FANIN: &str = env!("CARGO_BIN_EXE_fanin");

fn fanin(arguments: &[&str]) -> Output {
    let output = Command::new(FANIN).args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{FANIN}: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{:?}\n{}", output.status, text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

fn number(row: &Value, path: &str) -> f64 {
    row.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {path} in {row}"))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn namespaces() -> Vec<String> {
    let Ok(folder) = std::fs::read_dir("/run/netns") else { return Vec::new() };
    folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A folder of this test's own, for what the program writes.
fn scratch(name: &str) -> PathBuf {
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn series<'a>(case: &'a Value, name: &str) -> &'a Value {
    let all = case["series"].as_array().unwrap();
    all.iter().find(|series| series["name"] == name).unwrap_or_else(|| panic!("no series {name:?} in {case}"))
}

#[test]
fn sums_are_right_with_and_without_loss() {
    let arguments = ["bench", "allreduce", "--ranks", "2", "--sizes", "64KiB", "--rounds", "2", "--loss", "0,0.01"];
    let rest = ["--dtypes", "float32,float16,bfloat16,int32,int64", "--no-gloo", "--no-open-mpi", "--json", "-"];
    let report = json(&fanin(&[&arguments[..], &rest[..]].concat()));
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    let mut lost = 0.0;
    for case in cases {
        for name in ["fanin loss 0", "fanin loss 0.01"] {
            let series = series(case, name);
            assert_eq!(number(series, "/wrong_elements"), 0.0, "{case}");
            assert_eq!(series["times"]["all_ns"].as_array().unwrap().len(), 2);
            assert!(number(series, "/times/min_ns") > 0.0 && number(series, "/share_of_bound") > 0.0);
        }
        assert_eq!(number(series(case, "fanin loss 0"), "/counters/losses_injected"), 0.0);
        lost += number(series(case, "fanin loss 0.01"), "/counters/losses_injected");
    }
    assert!(lost > 0.0, "1 % of some hundred datagrams");
    assert_eq!(report["baselines"][0]["name"], "gloo");
    assert_eq!(report["baselines"][0]["used"], false);
    assert_eq!(report["baselines"][0]["reason"], "--no-gloo");
}

#[test]
fn the_table_names_what_was_measured_and_where() {
    let folder = scratch("table");
    let (results, plot) = (folder.join("results.json"), folder.join("plot.svg"));
    let output =
        fanin(
            &[
                &[
                    "bench",
                    "allreduce",
                    "--ranks",
                    "2",
                    "--sizes",
                    "4KiB",
                    "--rounds",
                    "1",
                    "--no-gloo",
                    "--no-open-mpi",
                ][..],
                &[
                    "--element-format",
                    "float16,int32",
                    "--json",
                    results.to_str().unwrap(),
                    "--plot",
                    plot.to_str().unwrap(),
                ],
            ]
            .concat(),
        );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let words =
        ["4 KiB", "float32", "of bound", "2 ranks, loopback, 1 rounds", "fanin float16", "Linux", "load average"];
    for word in words {
        assert!(table.contains(word), "{word} in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&results).unwrap()).unwrap();
    assert_eq!(report["benchmark"], "allreduce");
    assert!(number(&report, "/machine/core_count") >= 1.0);
    assert!(report["scheduling"]["autogroup_raised"].is_boolean());
    let command = report["command"].as_str().unwrap();
    assert!(command.starts_with("fanin bench allreduce --ranks 2") && !command.contains("results.json"), "{command}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("fanin float16"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn missing_systems_are_said_and_do_not_stop_the_run() {
    let output = Command::new(FANIN)
        .args(["bench", "small", "--ranks", "2", "--sizes", "4B,4KiB", "--rounds", "1", "--repeat", "3", "--json", "-"])
        .env("FANIN_PYTHON", "/bin/false")
        // Only this folder is searched for mpirun and mpicc.
        .env("PATH", scratch("empty"))
        .output()
        .unwrap();
    let report = json(&output);
    let complaint = text(&output.stderr);
    for name in ["gloo", "Open MPI shm", "Open MPI tcp"] {
        assert!(complaint.contains(&format!("{name} is LEFT OUT")), "{name} in {complaint}");
    }
    assert!(complaint.contains("apt-get install openmpi-bin"), "{complaint}");
    assert!(report["baselines"].as_array().unwrap().iter().all(|baseline| baseline["used"] == false));
    assert_eq!(number(series(&report["cases"][1], "fanin"), "/times/count"), 3.0);
}

#[test]
fn open_mpi_takes_turns_where_it_is_installed() {
    if Command::new("mpicc").arg("--version").output().is_err() {
        println!("SKIPPED: Open MPI (mpicc and mpirun) is not installed");
        return;
    }
    let output = fanin(
        &[
            &["bench", "allreduce", "--ranks", "2", "--sizes", "4KiB", "--dtypes", "float32,bfloat16,int64"][..],
            &["--rounds", "2", "--no-gloo", "--json", "-"],
        ]
        .concat(),
    );
    let report = json(&output);
    let cases = report["cases"].as_array().unwrap();
    for name in ["Open MPI shm", "Open MPI tcp"] {
        for case in [&cases[0], &cases[2]] {
            let series = series(case, name);
            assert_eq!(number(series, "/wrong_elements"), 0.0);
            assert!(number(series, "/times/min_ns") > 0.0 && number(series, "/ratio_to_first") > 0.0);
        }
    }
    assert_eq!(cases[1]["series"].as_array().unwrap().len(), 1, "Open MPI has no bfloat16: {}", cases[1]);
}

#[test]
fn the_switch_is_measured_alone_and_at_work() {
    let arguments = ["bench", "switch", "--payloads", "256B,1KiB", "--daemon-payloads", "1KiB", "--size", "256KiB"];
    let rest = ["--rounds", "2", "--sample-ms", "1", "--ranks", "3", "--json", "-"];
    let report = json(&fanin(&[&arguments[..], &rest[..]].concat()));
    let (core, daemons) = (report["cases"]["core"].as_array().unwrap(), report["cases"]["daemon"].as_array().unwrap());
    assert_eq!(core.len(), 2);
    for case in core {
        assert!(number(case, "/packet_ns") > 0.0 && number(case, "/share_of_memcpy") > 0.0);
        assert_eq!(number(case, "/wrong_elements"), 0.0);
    }
    assert_eq!(daemons.len(), 2, "unicast and, where the network carries it, multicast");
    assert_eq!(daemons[0]["result"], "unicast");
    for daemon in daemons {
        // 256 KiB in blocks of 1 KiB, of three ranks and in two rounds; announces come on top.
        assert!(number(daemon, "/datagrams_in") >= 256.0 * 3.0 * 2.0, "{daemon}");
        assert!(number(daemon, "/packets_per_cpu_us") > 0.0);
        assert_eq!(number(daemon, "/wrong_elements"), 0.0);
    }
}

#[test]
fn conversions_are_measured_at_odd_lengths_and_come_back_exactly() {
    let report = json(&fanin(
        &[&["bench", "convert", "--lengths", "37,256", "--dram-size", "1MiB", "--rounds", "1", "--json", "-"][..]]
            .concat(),
    ));
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12 * 2 * 2 * 2, "conversions, lengths, alignments, places");
    for case in cases {
        assert_eq!(number(case, "/wrong_elements"), 0.0, "{case}");
        assert!(number(case, "/share_of_memcpy") > 0.0);
    }
}

#[test]
fn losses_are_compared_with_no_loss_in_the_same_rounds() {
    let arguments =
        ["bench", "loss", "--ranks", "2", "--size", "512KiB", "--rounds", "2", "--loss", "0.02", "--json", "-"];
    let report = json(&fanin(&arguments));
    let case = &report["cases"][0];
    assert_eq!(case["series"][0]["name"], "fanin loss 0", "what the others are compared with");
    let lossy = series(case, "fanin loss 0.02");
    assert_eq!(number(lossy, "/wrong_elements"), 0.0);
    assert!(number(lossy, "/counters/losses_injected") > 0.0 && number(lossy, "/resends_per_loss") >= 0.0, "{lossy}");
    assert!(report["baselines"].as_array().unwrap().is_empty(), "nobody else loses datagrams");
}

#[test]
fn transports_take_turns_and_the_report_says_which_was_had() {
    let arguments =
        ["bench", "allreduce", "--ranks", "2", "--sizes", "64KiB", "--transport", "shm,udp", "--rounds", "2"];
    let report = json(&fanin(&[&arguments[..], &["--no-gloo", "--no-open-mpi", "--json", "-"]].concat()));
    for (name, transport) in [("fanin shm", "shared memory"), ("fanin udp", "udp")] {
        let series = series(&report["cases"][0], name);
        assert_eq!(series["fanin"]["joined"]["transport"], transport);
        assert_eq!(number(series, "/wrong_elements"), 0.0);
    }
}

#[test]
fn ranks_on_different_hosts_share_no_memory() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let arguments = ["bench", "allreduce", "--ranks", "2", "--sizes", "4KiB", "--net", "500mbit", "--transport", "shm"];
    let output = fanin(&[&arguments[..], &["--no-gloo", "--no-open-mpi"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not on one host"), "{}", text(&output.stderr));
}

#[test]
fn ranks_grow_in_one_report() {
    let arguments = ["bench", "scale", "--ranks", "1,2,3", "--size", "64KiB", "--rounds", "1"];
    let report = json(&fanin(&[&arguments[..], &["--no-gloo", "--no-open-mpi", "--json", "-"]].concat()));
    let ranks: Vec<_> =
        report["cases"].as_array().unwrap().iter().map(|case| case["ranks"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 2, 3]);
}

#[test]
fn the_papers_ceilings_stand_beside_the_goodput() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let arguments = ["bench", "goodput", "--elements", "32,256", "--size", "256KiB", "--rounds", "1", "--json", "-"];
    let report = json(&fanin(&arguments));
    let case = &report["cases"][0];
    for (name, paper) in [("fanin 32 elements", 0.63), ("fanin 256 elements", 0.93)] {
        let series = series(case, name);
        // Their headers are 75 bytes, ours 82.
        assert_eq!(number(series, "/goodput_ceiling_paper"), paper);
        assert!((number(series, "/goodput_ceiling") - paper).abs() < 0.03, "{series}");
        assert!(number(series, "/goodput_share") > 0.0);
    }
}

#[test]
fn the_papers_rule_stands_beside_the_pool_sizes() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let arguments = ["bench", "pool", "--ranks", "2", "--slots", "2,64", "--size", "256KiB", "--rounds", "1"];
    let report = json(&fanin(&[&arguments[..], &["--json", "-"]].concat()));
    for (name, slots) in [("fanin 2 slots", 2.0), ("fanin 64 slots", 64.0)] {
        let series = series(&report["cases"][0], name);
        assert_eq!(number(series, "/fanin/joined/slots_per_lane"), slots);
        assert_eq!(number(series, "/window_bytes"), slots * (1024.0 + 82.0));
        assert!((number(series, "/slots_by_rule") as u64).is_power_of_two());
    }
}

#[test]
fn a_page_is_made_of_files_of_results() {
    let folder = scratch("page");
    let results = folder.join("results");
    std::fs::create_dir_all(&results).unwrap();
    let file = |name: &str| results.join(name).to_str().unwrap().to_owned();
    let arguments = ["bench", "small", "--ranks", "4", "--sizes", "4KiB", "--rounds", "1", "--repeat", "2"];
    let output = fanin(
        &[
            &arguments[..],
            &["--no-gloo", "--no-open-mpi", "--json", &file("latency.json"), "--plot", &file("latency.svg")],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = folder.join("RESULTS.md");
    let written = fanin(&["bench", "results", results.to_str().unwrap(), "--out", page.to_str().unwrap()]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["fanin bench small --ranks 4", "not measured", "(results/latency.svg)", "gloo was left out: --no-gloo"]
    {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    let goal = page.lines().find(|line| line.contains("small all-reduce on one host")).unwrap();
    assert!(goal.contains("4 KiB, shared memory: **") && goal.contains("[latency](#latency)"), "{goal}");
    // A file of another layout must not be taken for a result.
    std::fs::write(file("old.json"), "{\"version\": 1}").unwrap();
    let refused = fanin(&["bench", "results", results.to_str().unwrap()]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("measure it again"), "{}", text(&refused.stderr));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn training_steps_are_compared_where_pytorch_and_fanin_are_installed() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python");
    let python = std::env::var_os("FANIN_PYTHON").unwrap_or_else(|| beside.into());
    let imports = Command::new(&python).args(["-c", "import torch, fanin"]).output();
    if !imports.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: neither FANIN_PYTHON nor .venv is an interpreter with PyTorch and the fanin package");
        return;
    }
    let output = Command::new(FANIN)
        .args(["bench", "ddp", "--ranks", "2", "--steps", "1", "--rounds", "1", "--json", "-"])
        .env("FANIN_PYTHON", python)
        .output()
        .unwrap();
    let report = json(&output);
    let case = &report["cases"][0];
    assert_eq!(number(case, "/wrong_elements"), 0.0, "fanin and gloo sum the same gradients: {case}");
    assert!(number(case, "/gradient_bytes") > 1e7 && number(series(case, "fanin"), "/step/min_ns") > 0.0);
    assert!(series(case, "gloo")["hidden_share"].is_f64());
}

#[test]
fn arguments_that_make_no_sense_are_refused_at_once() {
    for (arguments, why) in [
        (&["allreduce", "--sizes", "6B"][..], "no whole number of float32"),
        (&["allreduce", "--sizes", "many"], "64MiB"),
        (&["allreduce", "--dtypes", "float8"], "bfloat16"),
        (&["allreduce", "--loss", "1.5"], "0.01"),
        (&["allreduce", "--mtu", "1500"], "--net"),
        (&["allreduce", "--element-format", "int4"], "float16"),
        (&["allreduce", "--transport", "rdma"], "shm"),
        (&["allreduce", "--transport", "shm", "--loss", "0.1"], "no datagrams to lose"),
        (&["allreduce", "--plot", "plot.png"], "NAME.svg"),
        (&["net", "--rate", "fast"], "500mbit"),
        (&["goodput", "--elements", "33"], "multiple of 32"),
        (&["pool", "--slots", "3"], "power of two"),
        (&["loss", "--loss", "2"], "0.01"),
        (&["scale", "--ranks", "0"], "1..=250"),
        (&["ddp", "--ranks", "65"], "1..=64"),
        (&["ddp", "--bucket", "1KiB"], "at least 4KiB"),
        (&["results", "no-such-folder"], "cannot list no-such-folder"),
        (&["switch", "--payloads", "6B"], "multiple of 4"),
        (&["switch", "--payloads", "64KiB"], "up to 8KiB"),
        (&["convert", "--lengths", "0"], "1..=16384"),
        (&["small", "--repeat", "0"], "1..=100000"),
    ] {
        let output = fanin(&[&["bench"], arguments].concat());
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(why), "{why} in {}", text(&output.stderr));
    }
}

#[test]
fn shaped_links_are_compared_with_the_ring() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let arguments = ["bench", "net", "--ranks", "2", "--rate", "200mbit", "--sizes", "256KiB", "--rounds", "2"];
    let rest = ["--element-format", "int32,float16", "--no-gloo", "--json", "-"];
    let report = json(&fanin(&[&arguments[..], &rest[..]].concat()));
    let case = &report["cases"][0];
    let bound = |name: &str| number(series(case, name), "/bound_ns");
    assert!(bound("fanin float16") < 0.6 * bound("fanin int32"), "half the bytes: {case}");
    assert!(text(&fanin(&["bench", "net", "--help"]).stdout).contains("of 2(n-1)/n"));
}

#[test]
fn a_network_goes_as_completely_as_it_came() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let up = json(&fanin(&["net", "up", "--workers", "2", "--rate", "100mbit", "--json"]));
    let id = up["id"].as_str().unwrap();
    let (switch, worker) = (&up["switch"], &up["workers"][1]);
    let ping = Command::new("ip")
        .args(["netns", "exec", worker["ns"].as_str().unwrap(), "ip", "route", "get"])
        .arg(switch["address"].as_str().unwrap())
        .output()
        .unwrap();
    assert!(text(&ping.stdout).contains(worker["device"].as_str().unwrap()), "{}", text(&ping.stderr));
    let shaped = Command::new("tc").args(["-n", worker["ns"].as_str().unwrap(), "class", "show", "dev", "w0"]).output();
    assert!(text(&shaped.unwrap().stdout).contains("rate 100Mbit"));
    // The owner, this test, lives: not a leftover.
    assert!(fanin(&["net", "clean"]).status.success());
    assert_eq!(namespaces().iter().filter(|name| name.contains(id)).count(), 3);
    assert!(fanin(&["net", "down", id]).status.success());
    assert_eq!(namespaces().iter().filter(|name| name.contains(id)).count(), 0);
    let again = fanin(&["net", "down", id]);
    assert!(text(&again.stderr).contains("there is no network"), "{}", text(&again.stderr));
}

#[test]
fn a_network_of_a_dead_owner_is_cleaned() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = owner.id().to_string();
    let up = json(&fanin(&["net", "up", "--workers", "1", "--owner", &pid, "--json"]));
    let id = up["id"].as_str().unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(fanin(&["net", "clean"]).status.success());
    assert_eq!(namespaces().iter().filter(|name| name.contains(id)).count(), 0);
}

#[test]
fn an_interrupted_benchmark_removes_its_network_and_processes() {
    if !is_root() {
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let mut bench = Command::new(FANIN)
        .args(["bench", "allreduce", "--ranks", "2", "--sizes", "8MiB", "--rounds", "10000"])
        .args(["--net", "100mbit", "--no-gloo", "--no-open-mpi"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mark = format!("fanin-{:x}-", bench.id());
    let count = || namespaces().iter().filter(|name| name.starts_with(&mark)).count();
    let deadline = Instant::now() + Duration::from_secs(30);
    while count() < 3 {
        assert!(Instant::now() < deadline, "the network did not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Long enough for ranks to be running; any moment must do.
    std::thread::sleep(Duration::from_secs(1));
    let killed = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(!bench.wait().unwrap().success());
    assert_eq!(count(), 0);
}
