//! What can go wrong between the kernel and us, and what to do about it.

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

/// The program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There was no clang when this was built.
    #[error("built without XDP: install clang and build again")]
    NotBuilt,
    /// The kernel wants privileges.
    #[error("the kernel refuses to load a BPF program: run as root, or with CAP_BPF and CAP_NET_ADMIN ({why})")]
    NotPermitted {
        /// The kernel's answer.
        why: String,
    },
    /// The kernel does not take the program.
    #[error(
        "the kernel does not load the XDP program ({why}): it needs Linux 5.15 or later on a little-endian processor"
    )]
    NotLoaded {
        /// The kernel's answer and, where the verifier refused, the end of its log.
        why: String,
    },
    /// There is no such interface.
    #[error("there is no network interface {interface:?}: `ip link` lists them")]
    NoInterface {
        /// As given.
        interface: String,
    },
    /// An interface does not take the program.
    #[error("XDP cannot be attached to {interface}: {why}")]
    NotAttached {
        /// As given.
        interface: String,
        /// The kernel's answer and what to do.
        why: String,
    },
    /// A map cannot be read or written.
    #[error("a map of the XDP program cannot be used: {why}")]
    Map {
        /// The kernel's answer.
        why: String,
    },
    /// A packet cannot be tried on the program.
    #[error("the kernel does not run the XDP program on a given frame: {why}")]
    NotRun {
        /// The kernel's answer.
        why: String,
    },
}

/// Why a job was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Another job has the same number.
    #[error("job number {job_number} is already installed")]
    JobNumberInUse {
        /// Low eight bits of the job id.
        job_number: u8,
    },
    /// The program does not serve such jobs.
    #[error("{what}")]
    Unsupported {
        /// Field, value and bounds.
        what: String,
    },
    /// No room.
    #[error("{what} of the XDP program are in use: let jobs end, or start the switch with a larger --slot-memory")]
    Full {
        /// Of what there is not enough.
        what: &'static str,
    },
    /// The maps cannot be written.
    #[error(transparent)]
    Xdp(#[from] XdpError),
}

impl From<MapError> for XdpError {
    fn from(error: MapError) -> XdpError {
        XdpError::Map { why: chain(&error) }
    }
}

impl XdpError {
    pub(crate) fn load(error: &EbpfError) -> XdpError {
        match error {
            EbpfError::MapError(MapError::CreateError { io_error, .. }) if is_permission(io_error) => {
                XdpError::NotPermitted { why: io_error.to_string() }
            }
            other => XdpError::NotLoaded { why: chain(other) },
        }
    }

    pub(crate) fn verify(error: &ProgramError) -> XdpError {
        match error {
            ProgramError::LoadError { io_error, .. } if is_permission(io_error) => {
                XdpError::NotPermitted { why: io_error.to_string() }
            }
            ProgramError::LoadError { io_error, verifier_log } => {
                let log = verifier_log.to_string();
                let end: Vec<_> = log.lines().rev().take(12).collect();
                let end: Vec<_> = end.into_iter().rev().collect();
                XdpError::NotLoaded { why: format!("{io_error}: {}", end.join("; ")) }
            }
            other => XdpError::NotLoaded { why: chain(other) },
        }
    }

    pub(crate) fn attach(interface: &str, error: &ProgramError) -> XdpError {
        let interface = interface.to_owned();
        if matches!(error, ProgramError::UnknownInterface { .. }) {
            return XdpError::NoInterface { interface };
        }
        let code = os_error(error);
        let hint = match code {
            Some(libc::EPERM) => "run as root, or with CAP_NET_ADMIN",
            Some(libc::EBUSY | libc::EEXIST) => {
                "another XDP program is attached: `ip link set dev <dev> xdp off` removes it"
            }
            Some(libc::ERANGE | libc::EINVAL) => {
                "the MTU is too large for one page, or the driver's settings forbid it: try `ip link set dev <dev> mtu 1500`, \
                 also at the other end of a veth"
            }
            Some(libc::EOPNOTSUPP) => "the driver has no native XDP: use a device that has, or --datapath sockets",
            _ => "the kernel's log (dmesg) may tell more",
        };
        XdpError::NotAttached { interface, why: format!("{} ({hint})", chain(error)) }
    }
}

fn is_permission(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM))
}

fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Some(code);
        }
        next = error.source();
    }
    None
}

/// An error with its causes: the library's texts leave them out.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
