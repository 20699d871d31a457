//! Where a benchmark takes place: the network, if it has one of its own, and
//! the switch.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::Setting;
use super::places::{Place, own_command, places};
use crate::bench::process::Process;
use crate::net::Network;

const SWITCH_START: Duration = Duration::from_secs(30);

/// A network with a running switch. Dropping it ends the switch, then removes
/// the network.
pub struct Stage {
    pub switch: Process,
    /// `host:port` of the switch's controller.
    pub controller: String,
    /// The ranks'.
    pub places: Vec<Place>,
    /// The switch's.
    pub switch_place: Place,
    /// The parameter server of ATP jobs, behind a link of its own.
    _server: Option<Process>,
    _network: Option<Network>,
}

impl Stage {
    /// Builds the network and starts the switch.
    pub fn build(setting: &Setting) -> anyhow::Result<Stage> {
        // On loopback there is no link to have; rank 0 runs the server then.
        let has_server = setting.has_server && setting.link.is_some();
        let link_count = setting.ranks + u16::from(has_server);
        let network = setting.link.map(|link| Network::build(std::process::id(), link_count, link)).transpose()?;
        let (switch_place, mut places) = places(network.as_ref(), link_count)?;
        let (switch, controller) = start_switch(&switch_place, setting.spin_us, &setting.switch_flags)?;
        let server_place = if has_server { places.pop() } else { None };
        let server = server_place.map(|place| start_server(&place, &controller, setting.spin_us)).transpose()?;
        Ok(Stage { switch, controller, places, switch_place, _server: server, _network: network })
    }
}

fn start_server(place: &Place, controller: &str, spin_us: Option<u64>) -> anyhow::Result<Process> {
    let mut command = own_command()?;
    let flags = ["server", "--switch", controller, "--data-port", "0", "--json", "--end-with-parent"];
    command.extend(flags.iter().map(OsString::from));
    if let Some(spin_us) = spin_us {
        command.extend(["--spin-us".into(), OsString::from(spin_us.to_string())]);
    }
    let mut process = Process::start("the parameter server".into(), place.namespace.as_deref(), &command, &[])?;
    process.as_mut().receive(SWITCH_START)?;
    Ok(process)
}

fn start_switch(place: &Place, spin_us: Option<u64>, further: &[&str]) -> anyhow::Result<(Process, String)> {
    let mut command = own_command()?;
    let flags = ["switch", "--bind", &place.address, "--json", "--end-with-parent"];
    command.extend(flags.iter().chain(further).map(OsString::from));
    if let Some(spin_us) = spin_us {
        command.extend(["--spin-us".into(), OsString::from(spin_us.to_string())]);
    }
    for port in ["--data-port", "--control-port", "--http-port"] {
        command.extend([port, "0"].map(OsString::from));
    }
    let mut process = Process::start("the switch".into(), place.namespace.as_deref(), &command, &[])?;
    let hello = process.as_mut().receive(SWITCH_START)?;
    let controller = hello.get("control").and_then(Value::as_str).context("the switch did not say its address")?;
    let controller = controller.to_owned();
    Ok((process, controller))
}
