//! Errors as Python exceptions.

use fanin_host::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    fanin._fanin,
    FaninError,
    PyRuntimeError,
    "A collective, a connection or a setting failed; the text says what to do next. `kind` is a word for programs."
);
create_exception!(
    fanin._fanin,
    FaninTimeout,
    FaninError,
    "A wait reached its deadline; the text names job, collective, rank, chunk, slot and missing workers."
);

/// The exception for `error`, with its kind as the attribute `kind`.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = match error.kind {
        ErrorKind::TimedOut => FaninTimeout::new_err(error.message.clone()),
        _ => FaninError::new_err(error.message.clone()),
    };
    // Without the attribute the message still tells people everything.
    let _ = made.value(py).setattr("kind", kind_name(error.kind));
    made
}

/// A plain `FaninError` of this crate's own making.
pub fn invalid(message: impl Into<String>) -> PyErr {
    FaninError::new_err(message.into())
}

fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Control => "control",
        ErrorKind::Network => "network",
        ErrorKind::Path => "path",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Mismatch => "mismatch",
        ErrorKind::Refused => "refused",
        ErrorKind::PeerLost => "peer_lost",
        ErrorKind::SwitchLost => "switch_lost",
        ErrorKind::Aborted => "aborted",
        ErrorKind::Closed => "closed",
        _ => "other",
    }
}
