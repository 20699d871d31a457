//! A private software switch inside the Python process.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use fanin_switch::dataplane::UdpDataplane;
use fanin_switch::{Config, Daemon, Handle};
use pyo3::prelude::*;

use crate::errors::invalid;
use crate::ticket::seconds_to_duration;

/// A software switch with ports that the kernel chose.
#[pyclass(frozen, module = "fanin._fanin")]
pub struct LocalSwitch {
    handle: Mutex<Option<Handle>>,
    process_id: u32,
    /// `host:port` for sessions.
    #[pyo3(get)]
    control_address: String,
}

#[pymethods]
impl LocalSwitch {
    /// Starts a switch that listens on the address `bind`.
    #[staticmethod]
    #[pyo3(signature = (bind = "127.0.0.1"))]
    fn start(py: Python<'_>, bind: &str) -> PyResult<LocalSwitch> {
        let address: IpAddr = bind.parse().map_err(|_| invalid(format!("{bind:?} is not an IP address")))?;
        let handle = py
            .detach(|| start(address))
            .map_err(|error| invalid(format!("cannot start a local switch on {bind}: {error}")))?;
        let control_address = handle.control_address().to_string();
        Ok(LocalSwitch { handle: Mutex::new(Some(handle)), process_id: std::process::id(), control_address })
    }

    /// Stops the switch, after waiting up to `drain_s` for its jobs to finish;
    /// jobs that still use it then fail.
    #[pyo3(signature = (drain_s = 0.0))]
    fn stop(&self, py: Python<'_>, drain_s: f64) {
        if std::process::id() != self.process_id {
            return;
        }
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(handle) = handle {
                if drain_s > 0.0 {
                    handle.drain(seconds_to_duration(drain_s));
                }
                handle.stop();
            }
        });
    }
}

impl Drop for LocalSwitch {
    fn drop(&mut self) {
        // Reached at the interpreter's end too, where waiting for threads could hang: the process takes them along.
        std::mem::forget(self.handle.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn start(address: IpAddr) -> Result<Handle, Box<dyn std::error::Error + Send + Sync>> {
    let config = Config::local(address);
    let dataplane = Arc::new(UdpDataplane::start(&config.dataplane())?);
    Ok(Daemon::start(&config, dataplane)?)
}
