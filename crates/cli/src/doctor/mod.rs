//! `fanin doctor`: is the machine fit, does the switch answer, do datagrams
//! pass, and what does a stuck job wait for?

mod findings;
mod jobs;
mod machine;
mod path;

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use fanin_control::ControlError;
use fanin_control::client::ControlClient;
use fanin_control::proto::StatusResponse;
use fanin_switch::{Config, Daemon, Handle};

use crate::connection::Connection;
use findings::Findings;

const ABOUT: &str = "Checks this machine, the switch, the path to it (a job of one rank joins, sums and leaves) and what the \
switch's jobs wait for. Without --switch a private switch is started for the checks. The exit status is 0 if nothing is \
wrong, 1 otherwise.";

/// Flags of `fanin doctor`.
#[derive(Args, Debug)]
#[command(after_long_help = ABOUT)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// Look at this job only.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Looks, prints, and returns 1 if anything is wrong.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let mut findings = Findings::default();
    machine::check(&mut findings);
    let mut connection = arguments.connection.clone();
    let private = match connection.switch {
        Some(_) => None,
        None => start_private(&mut findings),
    };
    if let Some(handle) = &private {
        connection = Connection { switch: Some(handle.control_address().to_string()), token: None, tls_ca: None };
    }
    if connection.switch.is_some() {
        check_switch(&connection, arguments.job.as_deref(), &mut findings);
    }
    findings.print(arguments.json)?;
    Ok(if findings.is_healthy() { 0 } else { 1 })
}

fn start_private(findings: &mut Findings) -> Option<Handle> {
    match Daemon::start_own(&Config::local(IpAddr::V4(Ipv4Addr::LOCALHOST))) {
        Ok(handle) => {
            findings.good("switch", "none given (--switch, FANIN_SWITCH): a private one on this host is used");
            Some(handle)
        }
        Err(error) => {
            findings.bad("switch", format!("a private one cannot be started: {error}"), "");
            None
        }
    }
}

fn check_switch(connection: &Connection, job: Option<&str>, findings: &mut Findings) {
    let Some((client, status)) = reach(connection, findings) else { return };
    if status.draining {
        findings.bad("controller", "is draining and admits no new job", "use another switch, or start this one again");
    } else {
        path::check(connection, &status, findings);
    }
    for found in status.jobs.iter().filter(|found| job.is_none_or(|name| name == found.job_name)) {
        jobs::check(&client, found, findings);
    }
    if let Some(name) = job
        && !status.jobs.iter().any(|found| found.job_name == name)
    {
        findings.bad("job", format!("the switch has no job {name:?}"), "it has ended, or never joined this switch");
    }
}

fn reach(connection: &Connection, findings: &mut Findings) -> Option<(ControlClient, StatusResponse)> {
    let answer = connection.connect().and_then(|client| Ok((client.status()?, client)));
    match answer {
        Ok((status, client)) => {
            let secured = match (&connection.tls_ca, &connection.token) {
                (None, None) => "without TLS and token",
                (None, Some(_)) => "without TLS, with a token",
                (Some(_), None) => "over TLS, without a token",
                (Some(_), Some(_)) => "over TLS, with a token",
            };
            let uptime_s = status.uptime_ms / 1000;
            let what = format!("answers {secured}, version {}, up {uptime_s} s", status.switch_version);
            findings.good("controller", what);
            if status.switch_version != env!("CARGO_PKG_VERSION") {
                let own = format!("this is {}", env!("CARGO_PKG_VERSION"));
                findings.note("version", own, "install the same version of fanin on workers and switch");
            }
            Some((client, status))
        }
        Err(error) => {
            match error.downcast_ref::<ControlError>() {
                Some(known) => findings.bad("controller", &known.message, &known.hint),
                None => findings.bad("controller", format!("{error:#}"), ""),
            }
            None
        }
    }
}
