//! The `fanin` program, and a switch run by it.
#![allow(dead_code, missing_docs)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use fanin_host::{Error, Session, SessionConfig, Transport};
use serde_json::Value;

/// Runs the program to its end, without the settings of whoever runs the tests.
pub fn fanin(arguments: &[&str]) -> Output {
    let output = command().args(arguments).output();
    output.unwrap_or_else(|error| panic!("fanin {arguments:?}: {error}"))
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanin"));
    command.stdin(Stdio::null());
    for variable in ["FANIN_SWITCH", "FANIN_TOKEN", "FANIN_TLS_CA", "FANIN_LOG"] {
        command.env_remove(variable);
    }
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `fanin switch` on free ports of loopback. Dropping it kills it.
pub struct Switch {
    child: Child,
    /// What it printed with --json.
    pub hello: Value,
    pub controller: String,
}

impl Switch {
    pub fn start(flags: &[&str]) -> Switch {
        let free = ["--bind", "127.0.0.1", "--control-port", "0", "--data-port", "0", "--http-port", "0", "--json"];
        let mut child = command().arg("switch").args(free).args(flags).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let controller = hello["control"].as_str().unwrap().to_owned();
        Switch { child, hello, controller }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Its end, which must come within 20 seconds.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the switch does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One rank; waits at most ten seconds for anything.
pub fn join(controller: &str, job_name: &str, rank: u16, world_size: u16) -> Result<Session, Error> {
    Session::connect(SessionConfig {
        controller: controller.into(),
        job_name: job_name.into(),
        run_id: format!("test-{}", std::process::id()),
        rank,
        world_size,
        join_timeout: Duration::from_secs(10),
        collective_timeout: Duration::from_secs(10),
        transport: Transport::Udp,
        ..SessionConfig::default()
    })
}
