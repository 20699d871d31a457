//! Do datagrams get to the switch and back? Asked with a job of one rank: the
//! same path, sizes and code as a real one.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use fanin_control::proto::StatusResponse;
use fanin_host::{ErrorKind, ReduceOp, Session, SessionConfig, Transport};
use fanin_net::{Options, UdpPort};

use super::findings::Findings;
use crate::bench::units::show_time;
use crate::connection::Connection;

/// Ends every wait of the checks.
const LIMIT: Duration = Duration::from_secs(5);
/// A packet that is mostly header, and a few megabytes of full ones.
const ELEMENT_COUNTS: [usize; 3] = [8, 2048, 1 << 20];
/// Resends that a healthy path may have: a descheduled process looks like loss.
const RESEND_SHARE_MAX: f64 = 0.001;

/// Joins, sums and leaves.
pub fn check(connection: &Connection, status: &StatusResponse, findings: &mut Findings) {
    match path_mtu(connection, status) {
        Ok((peer, mtu)) => findings.good("path MTU", format!("{mtu} bytes to {peer}, as far as this host knows")),
        Err(error) => findings.bad("path MTU", format!("{error:#}"), "check the route to the switch's data address"),
    }
    let session = match Session::connect(settings(connection)) {
        Ok(session) => session,
        Err(error) => return findings.bad(about(error.kind), error.message, ""),
    };
    let stats = session.stats();
    let shape = format!("{} lanes of {} slots", stats.lane_count, stats.slots_per_lane);
    findings.good("room", format!("the switch admits a job of one rank with {shape}"));
    findings.good("data path", format!("datagrams of {} elements pass both ways", stats.element_count_max));
    for count in ELEMENT_COUNTS {
        if let Err(error) = sum(&session, count, findings) {
            return findings.bad("all-reduce", error, "");
        }
    }
    check_losses(&session, findings);
}

fn settings(connection: &Connection) -> SessionConfig {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SessionConfig {
        controller: connection.address().unwrap_or_default(),
        auth_token: connection.token.clone(),
        tls_ca: connection.tls_ca.clone(),
        job_name: "doctor".into(),
        run_id: format!("doctor-{}-{}", std::process::id(), now.as_nanos()),
        join_timeout: LIMIT,
        collective_timeout: LIMIT,
        transport: Transport::Udp,
        ..SessionConfig::default()
    }
}

fn about(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Control => "room",
        ErrorKind::Network => "sockets",
        _ => "data path",
    }
}

fn path_mtu(connection: &Connection, status: &StatusResponse) -> anyhow::Result<(SocketAddr, usize)> {
    let mut peer = connection.address()?.to_socket_addrs()?.next().context("the switch's name has no address")?;
    // The switch leaves its data address out where it is the controller's.
    if !status.data_address.is_empty() {
        peer.set_ip(status.data_address.parse::<IpAddr>().context("the switch's data address")?);
    }
    peer.set_port(status.data_ports.first().and_then(|port| u16::try_from(*port).ok()).unwrap_or(peer.port()));
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let mut port = UdpPort::bind(any, &Options::default())?;
    port.connect(peer)?;
    Ok((peer, port.path_mtu(peer)?))
}

fn sum(session: &Session, count: usize, findings: &mut Findings) -> Result<(), String> {
    let mut values: Vec<i32> = (0..count as i32).collect();
    let started = Instant::now();
    session.all_reduce(&mut values, ReduceOp::Sum).map_err(|error| error.message)?;
    let elapsed = started.elapsed();
    if !values.iter().enumerate().all(|(index, &value)| value == index as i32) {
        return Err("a sum of one rank is not that rank's input: please report this".into());
    }
    findings.good("all-reduce", format!("{count} elements in {}", show_time(elapsed)));
    Ok(())
}

fn check_losses(session: &Session, findings: &mut Findings) {
    let stats = session.stats();
    let round_trip = stats.round_trip_ns.map(|ns| format!(", round trip {}", show_time(Duration::from_nanos(ns))));
    let what = format!(
        "{} of {} packets had to be sent again{}",
        stats.resends,
        stats.contributions,
        round_trip.unwrap_or_default()
    );
    if stats.resends as f64 > RESEND_SHARE_MAX * stats.contributions as f64 {
        let hint = "if this host is not overloaded, look for errors on the links between here and the switch";
        findings.note("losses", what, hint);
    } else {
        findings.good("losses", what);
    }
}
