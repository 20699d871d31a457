//! The Python extension `fanin._fanin`: sessions on raw memory, a local
//! switch, and the command line. Everything that decides lives in
//! `fanin_host` and `fanin_switch`; the types here only carry it over.

mod buffer;
mod errors;
mod numerics;
mod session;
mod switch;
mod ticket;
mod totals;

use pyo3::prelude::*;

/// Runs the `fanin` command line on `arguments` (the program's name first)
/// and returns its exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<String>) -> i32 {
    py.detach(|| fanin_cli::main(arguments))
}

/// Shows what the runtime and a local switch log, if `FANIN_LOG` asks for it.
fn start_logging() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("FANIN_LOG") {
        // Whoever came first keeps the log.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
}

#[pymodule]
fn _fanin(module: &Bound<'_, PyModule>) -> PyResult<()> {
    start_logging();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FaninError", module.py().get_type::<errors::FaninError>())?;
    module.add("FaninTimeout", module.py().get_type::<errors::FaninTimeout>())?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<ticket::Ticket>()?;
    module.add_class::<ticket::Outcome>()?;
    module.add_class::<switch::LocalSwitch>()?;
    module.add_class::<numerics::Accumulator>()?;
    module.add_function(wrap_pyfunction!(numerics::accumulator_names, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
