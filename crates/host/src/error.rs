//! Errors that a user of a session sees.

use fanin_control::ControlError;
use fanin_net::NetError;

/// What kind of thing went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A request or setting that cannot work.
    Invalid,
    /// The controller refused, or cannot be reached.
    Control,
    /// A socket cannot be opened or used.
    Network,
    /// Datagrams do not get to the switch and back.
    Path,
    /// A collective did not complete in time.
    TimedOut,
    /// Ranks called different collectives.
    Mismatch,
    /// The switch does not accept this worker's packets.
    Refused,
    /// Another rank has died or left.
    PeerLost,
    /// The switch has died, restarted or removed the job.
    SwitchLost,
    /// `abort` was called.
    Aborted,
    /// The session is closed.
    Closed,
}

/// What went wrong and what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: names job, collective, rank, chunk, slot and missing ranks
    /// where they are known.
    pub message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }
}

impl From<ControlError> for Error {
    fn from(error: ControlError) -> Error {
        Error::new(ErrorKind::Control, error.to_string())
    }
}

impl From<NetError> for Error {
    fn from(error: NetError) -> Error {
        let kind = if matches!(error, NetError::DatagramTooLong { .. }) { ErrorKind::Path } else { ErrorKind::Network };
        Error::new(kind, error.to_string())
    }
}
