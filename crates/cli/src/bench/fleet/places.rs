//! Where processes live, and how this program starts itself and Python.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::super::process::Process;
use crate::net::{Network, WorkerPlace};

/// Where a process lives.
pub struct Place {
    pub namespace: Option<String>,
    pub address: String,
    pub device: String,
}

/// The switch's place and the ranks'.
pub fn places(network: Option<&Network>, ranks: u16) -> anyhow::Result<(Place, Vec<Place>)> {
    let Some(network) = network else {
        let local = || Place { namespace: None, address: "127.0.0.1".into(), device: "lo".into() };
        return Ok((local(), (0..ranks).map(|_| local()).collect()));
    };
    let description = network.description()?;
    let switch = &description.switch;
    let worker = |place: &WorkerPlace| Place {
        namespace: Some(place.ns.clone()),
        address: place.address.to_string(),
        device: place.device.clone(),
    };
    let switch =
        Place { namespace: Some(switch.ns.clone()), address: switch.address.to_string(), device: String::new() };
    Ok((switch, description.workers.iter().map(worker).collect()))
}

/// Starts one process per place.
pub fn start_ranks(
    what: &str,
    places: &[Place],
    command: &[OsString],
    environment: &[(&str, &str)],
) -> anyhow::Result<Vec<Process>> {
    let start = |(rank, place): (usize, &Place)| {
        let own = [("GLOO_SOCKET_IFNAME", place.device.as_str()), ("OMP_NUM_THREADS", "1")];
        let environment = [&own[..], environment].concat();
        Process::start(format!("{what} {rank}"), place.namespace.as_deref(), command, &environment)
    };
    places.iter().enumerate().map(start).collect()
}

/// How to start this program again: `FANIN_BIN`, this executable, or the
/// Python interpreter with the package that it is running.
pub fn own_command() -> anyhow::Result<Vec<OsString>> {
    if let Some(program) = std::env::var_os("FANIN_BIN") {
        return Ok(vec![program]);
    }
    if let Some(python) = running_python() {
        return Ok(vec![python, "-m".into(), "fanin".into()]);
    }
    let own = std::env::current_exe().context("cannot find this program's file; set FANIN_BIN")?;
    Ok(vec![own.into()])
}

/// The interpreter, if this is the Python package's console script. Not
/// `current_exe`: that is behind a virtual environment's link.
fn running_python() -> Option<OsString> {
    let first = std::env::args_os().next()?;
    let name = Path::new(&first).file_name()?.to_str()?.to_owned();
    name.starts_with("python").then_some(first)
}

/// The interpreter with PyTorch: `FANIN_PYTHON`, the one that runs this, that
/// of `.venv` beside or above, or `python3`.
pub fn python() -> OsString {
    if let Some(python) = std::env::var_os("FANIN_PYTHON").or_else(running_python) {
        return python;
    }
    let roots = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let beside = roots.iter().flatten().flat_map(|path| path.ancestors()).map(|folder| folder.join(".venv/bin/python"));
    beside.into_iter().find(|file| file.exists()).map_or_else(|| "python3".into(), PathBuf::into_os_string)
}
