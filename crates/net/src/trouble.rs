use std::io;

/// How often one call tries again after ICMP reports: each attempt takes one report off the socket.
pub(crate) const SOFT_ERRORS_MAX: usize = 8;

/// What an error number means for a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing to receive, or no room to send.
    NoRoom,
    Interrupted,
    /// ICMP "port unreachable" for an earlier datagram.
    Refused,
    /// No route, or ICMP said so about an earlier datagram.
    Unreachable,
    TooLong,
    /// What kernels answer to a super-packet they cannot make.
    Offload,
    Other,
}

impl Trouble {
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => Self::NoRoom,
            libc::EINTR => Self::Interrupted,
            libc::ECONNREFUSED => Self::Refused,
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN => Self::Unreachable,
            libc::EMSGSIZE => Self::TooLong,
            libc::EINVAL | libc::EIO | libc::EOPNOTSUPP => Self::Offload,
            _ => Self::Other,
        }
    }
}
