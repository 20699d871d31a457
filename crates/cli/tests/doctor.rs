//! `fanin doctor` against a healthy switch and against what goes wrong.

mod support;

use std::time::{Duration, Instant};

use fanin_host::ReduceOp;
use serde_json::Value;
use support::{Switch, fanin, join, text};

struct Opinion {
    healthy: bool,
    verdict: String,
    document: Value,
}

fn ask(flags: &[&str]) -> Opinion {
    let output = fanin(&[&["doctor", "--json"], flags].concat());
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)));
    let healthy = document["healthy"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!healthy)), "the exit status is the verdict");
    let sentences = document["verdict"].as_array().unwrap();
    let verdict = sentences.iter().map(|sentence| sentence.as_str().unwrap()).collect::<Vec<_>>().join("\n");
    Opinion { healthy, verdict, document }
}

fn abouts(opinion: &Opinion) -> Vec<&str> {
    let findings = opinion.document["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["about"].as_str().unwrap()).collect()
}

/// Asks until the switch has got to the state that the test waits for.
fn ask_until(flags: &[&str], part: &str) -> Opinion {
    let deadline = Instant::now() + Duration::from_secs(9);
    loop {
        let opinion = ask(flags);
        if opinion.verdict.contains(part) {
            return opinion;
        }
        assert!(Instant::now() < deadline, "no `{part}` in {:#}", opinion.document);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn nothing_is_wrong_with_this_machine_and_a_private_switch() {
    let opinion = ask(&[]);
    assert!(opinion.healthy, "{:#}", opinion.document);
    assert_eq!(opinion.verdict, "Nothing is wrong.");
}

#[test]
fn a_healthy_switch_is_found_healthy_and_its_path_is_tried() {
    let switch = Switch::start(&[]);
    let opinion = ask(&["--switch", &switch.controller]);
    assert!(opinion.healthy, "{:#}", opinion.document);
    for about in ["cores", "clock", "controller", "path MTU", "data path", "all-reduce", "losses"] {
        assert!(abouts(&opinion).contains(&about), "{about} in {:?}", abouts(&opinion));
    }
    let people = text(&fanin(&["doctor", "--switch", &switch.controller]).stdout);
    assert!(people.contains("path MTU") && people.ends_with("Nothing is wrong.\n"), "{people}");
}

#[test]
fn a_wrong_address_is_named_with_what_to_do() {
    let opinion = ask(&["--switch", "127.0.0.1:1"]);
    assert!(!opinion.healthy);
    for part in ["nobody listens at 127.0.0.1:1", "Start `fanin switch` there"] {
        assert!(opinion.verdict.contains(part), "{part} in {}", opinion.verdict);
    }
}

#[test]
fn the_port_of_the_dashboard_is_recognised_as_the_wrong_one() {
    let switch = Switch::start(&[]);
    let opinion = ask(&["--switch", switch.hello["http"].as_str().unwrap()]);
    assert!(!opinion.healthy && opinion.verdict.contains("not as a fanin controller"), "{}", opinion.verdict);
}

#[test]
fn a_full_switch_is_named_with_its_memory() {
    let switch = Switch::start(&["--slot-memory", "4096"]);
    let opinion = ask(&["--switch", &switch.controller]);
    assert!(!opinion.healthy && opinion.verdict.contains("the switch is full"), "{}", opinion.verdict);
}

#[test]
fn a_draining_switch_is_named() {
    let switch = Switch::start(&[]);
    let _session = join(&switch.controller, "last", 0, 1).unwrap();
    assert!(fanin(&["drain", "--switch", &switch.controller]).status.success());
    let opinion = ask(&["--switch", &switch.controller]);
    assert!(!opinion.healthy && opinion.verdict.contains("draining"), "{}", opinion.verdict);
}

#[test]
fn a_rank_that_never_joined_is_named() {
    let switch = Switch::start(&[]);
    let controller = switch.controller.clone();
    let waiting = std::thread::spawn(move || join(&controller, "halves", 1, 2).is_ok());
    let opinion = ask_until(&["--switch", &switch.controller], "waits for ranks [0]");
    assert!(!opinion.healthy && opinion.verdict.contains("halves"), "{}", opinion.verdict);
    assert_eq!(opinion.document["jobs"][0]["missing_ranks"][0], 0);
    let other = join(&switch.controller, "halves", 0, 2);
    assert!(other.is_ok() && waiting.join().unwrap());
}

#[test]
fn a_rank_that_does_not_call_is_named_with_lane_and_slot() {
    let switch = Switch::start(&[]);
    let controller = switch.controller.clone();
    let eager = std::thread::spawn(move || {
        let session = join(&controller, "stuck", 0, 2).unwrap();
        session.all_reduce(&mut vec![1.0f32; 1000], ReduceOp::Sum).map(|_| ())
    });
    let idle = join(&switch.controller, "stuck", 1, 2).unwrap();
    let opinion = ask_until(&["--switch", &switch.controller, "--job", "stuck"], "rank 1 is in no collective");
    for part in ["lane 0, chunk 0 (slot 0, parity 0) for ranks [1]", "the others have waited for"] {
        assert!(opinion.verdict.contains(part), "{part} in {}", opinion.verdict);
    }
    let job = &opinion.document["jobs"][0];
    assert_eq!(job["workers"][0]["running"]["description"], "all_reduce float32 x 1000 sum");
    // The late call completes it: looking changed nothing.
    idle.all_reduce(&mut vec![1.0f32; 1000], ReduceOp::Sum).unwrap();
    eager.join().unwrap().unwrap();
}

#[test]
fn an_unknown_job_is_said_to_be_unknown() {
    let switch = Switch::start(&[]);
    let opinion = ask(&["--switch", &switch.controller, "--job", "nobody"]);
    assert!(!opinion.healthy && opinion.verdict.contains("no job \"nobody\""), "{}", opinion.verdict);
}
