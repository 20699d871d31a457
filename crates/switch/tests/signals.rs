//! SIGTERM on a switch with its real data plane. Signals belong to the whole process, so this is the only test here.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use fanin_control::client::{ClientConfig, ControlClient, Notice};
use fanin_switch::{Config, Daemon, DrainOutcome};
use support::{LOOPBACK, no_report, parameters, within};

fn terminate_this_process() {
    let pid = std::process::id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

#[test]
fn the_first_sigterm_drains_and_the_second_cuts_it_short() {
    let mut config = Config::local(LOOPBACK);
    config.data.thread_count = 2;
    let handle = Daemon::start_own(&config).unwrap();
    let client = ControlClient::connect(&ClientConfig::new(handle.control_address().to_string())).unwrap();
    let daemon = std::thread::spawn(move || handle.run_until_stopped().unwrap());
    let admission = client.join(&parameters("train", 0, 1)).unwrap();
    assert_eq!(admission.data_addresses.len(), 2, "one port per thread");
    let inspection = client.inspect(admission.assignment.job_id).unwrap();
    assert_eq!(inspection.lanes.len(), 2, "the data plane knows the job");
    let (_attachment, notices) = client.attach(&admission, no_report).unwrap();
    // The daemon's thread may not have caught the signals yet: before that, SIGTERM would end this process.
    within(Duration::from_secs(1), "the signals are caught", || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() & 1 << (15 - 1) != 0
    });
    terminate_this_process();
    let news = notices.recv_timeout(Duration::from_secs(2)).unwrap();
    assert!(matches!(news, Notice::Draining { .. }), "{news:?}");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!daemon.is_finished(), "a job still runs");
    let start = Instant::now();
    terminate_this_process();
    assert_eq!(daemon.join().unwrap(), DrainOutcome::CutShort);
    assert!(start.elapsed() < Duration::from_secs(5));
}
