//! The command line as a person meets it: help, errors, a switch's life.

mod support;

use std::time::{Duration, Instant};

use support::{Switch, fanin, text};

#[test]
fn help_lists_every_command_and_hides_the_inner_ones() {
    let help = text(&fanin(&["--help"]).stdout);
    for command in ["switch", "bench", "doctor", "status", "drain", "net"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} in\n{help}");
    }
    assert!(!help.contains("bench-worker") && !help.contains("markdown-help"), "{help}");
}

#[test]
fn mistakes_are_answered_with_what_to_write() {
    for (arguments, status, why) in [
        (&["swich"][..], 2, "switch"),
        (&["switch", "--treads", "2"], 2, "--threads"),
        (&["switch", "--bind", "localhost"], 2, "--bind <IP>"),
        (&["switch", "--tls-cert", "c.pem"], 2, "--tls-key"),
        (&["switch", "--loss", "2"], 2, "use a share of datagrams"),
        (&["switch", "--config", "no-such-file.toml"], 1, "no-such-file.toml"),
        (&["status"], 1, "--switch HOST[:PORT] or set FANIN_SWITCH"),
        (&["status", "--switch", "127.0.0.1:1"], 1, "Start `fanin switch` there"),
        (&["drain", "--switch", "127.0.0.1:1"], 1, "nobody listens"),
        (&["net", "up"], 2, "--workers"),
        (&["net", "up", "--workers", "2", "--rate", "fast"], 2, "500mbit"),
    ] {
        let output = fanin(arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {complaint}");
        assert!(complaint.contains(why), "{why} in the answer to {arguments:?}:\n{complaint}");
    }
}

#[test]
fn the_reference_page_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    let written = std::fs::read_to_string(page).unwrap_or_default();
    let current = text(&fanin(&["markdown-help"]).stdout);
    assert!(
        written == current,
        "docs/reference/cli.md is out of date; run: cargo run -p fanin-cli -- markdown-help > docs/reference/cli.md"
    );
}

#[test]
fn a_switch_says_where_it_serves_and_ends_well_on_sigterm() {
    let mut switch = Switch::start(&["--threads", "2"]);
    assert_eq!(switch.hello["data"].as_array().unwrap().len(), 2, "one port per thread: {}", switch.hello);
    assert!(switch.hello["http"].is_string());
    let status = text(&fanin(&["status", "--switch", &switch.controller]).stdout);
    assert!(status.contains("0 of 256 jobs"), "{status}");
    let asked = Instant::now();
    switch.signal("-TERM");
    assert_eq!(switch.wait().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_drained_switch_stops() {
    let mut switch = Switch::start(&[]);
    let session = support::join(&switch.controller, "training", 0, 1).unwrap();
    let status = text(&fanin(&["status", "--switch", &switch.controller]).stdout);
    assert!(status.contains("training") && status.contains("running"), "{status}");
    let drained = text(&fanin(&["drain", "--switch", &switch.controller]).stdout);
    assert!(drained.contains("1 jobs still run"), "{drained}");
    let refused = support::join(&switch.controller, "late", 0, 1).err().expect("it drains").message;
    assert!(refused.contains("draining"), "{refused}");
    drop(session);
    assert_eq!(switch.wait().code(), Some(0));
}

#[test]
fn a_drain_that_takes_too_long_is_cut_short() {
    let mut switch = Switch::start(&["--drain-ms", "300"]);
    let _session = support::join(&switch.controller, "endless", 0, 1).unwrap();
    switch.signal("-TERM");
    assert_eq!(switch.wait().code(), Some(1), "a job was still running");
}
