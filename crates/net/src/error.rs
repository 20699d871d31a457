use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a port could not be opened or could not go on. Everything a running loop should survive is not
/// here but a [`PortEvent`] or a counter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The address could not be bound.
    #[error("cannot bind UDP {address}: {source}; is another process on this port, or the address not on this host?")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A call that sets up or inspects a socket failed.
    #[error("cannot {action}: {source}")]
    Setup {
        /// What was tried, in words that follow "cannot".
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// An option holds a value that no port can be built with.
    #[error("option {option} is out of range: {problem}")]
    Option {
        /// Name of the field of [`Options`](crate::Options) or [`Loss`](crate::Loss).
        option: &'static str,
        /// What is wrong and what is accepted.
        problem: &'static str,
    },
    /// The datagram is longer than the path carries unfragmented (DF is set: nothing is ever cut).
    #[error(
        "a datagram of {datagram_bytes} bytes does not fit the path to {destination}: path MTU {path_mtu_bytes} bytes \
         leaves {payload_bytes_max}; use fewer elements per packet, or raise the MTU on every hop"
    )]
    DatagramTooLong {
        /// Where it was going.
        destination: SocketAddr,
        /// UDP payload bytes of the datagram.
        datagram_bytes: usize,
        /// The kernel's present path MTU to `destination`, bytes with IP header; 0 if it could not be read.
        path_mtu_bytes: usize,
        /// Longest UDP payload that fits, bytes; 0 if the path MTU could not be read.
        payload_bytes_max: usize,
    },
    /// No route, or the next hop does not answer.
    #[error("{destination} cannot be reached: {source}; check the route and that the interface is up")]
    Unreachable {
        /// Where the datagram was going.
        destination: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Sending failed for another reason.
    #[error(
        "cannot send to {destination}: {source}; the usual causes are a local firewall rule and an address of the other IP family"
    )]
    Send {
        /// Where the datagram was going.
        destination: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Receiving failed.
    #[error("cannot receive: {0}")]
    Receive(#[source] io::Error),
    /// Waiting failed.
    #[error("cannot wait for datagrams: {0}")]
    Wait(#[source] io::Error),
}

/// Something worth knowing that does not stop the port; drained with
/// [`UdpPort::poll_event`](crate::UdpPort::poll_event). Repeats of one kind before a drain are merged,
/// the counters hold their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// An ICMP "port unreachable" came back: nobody listens there at the moment. Only a connected port
    /// hears of these.
    PeerRefused {
        /// The connected peer, if the port is connected.
        peer: Option<SocketAddr>,
    },
    /// The kernel refused a super-packet of this many segments; the port now sends smaller ones.
    SegmentsReduced {
        /// Segments per super-packet from now on.
        segments_max: usize,
    },
    /// The kernel or the device has no segmentation offload; the port sends single datagrams from now on,
    /// which costs the processor many times more per datagram.
    SegmentationUnavailable {
        /// The error number the kernel gave.
        os_error: i32,
    },
}

impl fmt::Display for PortEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerRefused { peer: Some(peer) } => {
                write!(f, "{peer} refuses datagrams: nothing listens on that port")
            }
            Self::PeerRefused { peer: None } => {
                write!(f, "a peer refuses datagrams: nothing listens on its port")
            }
            Self::SegmentsReduced { segments_max } => {
                write!(f, "this kernel takes at most {segments_max} segments per super-packet")
            }
            Self::SegmentationUnavailable { os_error } => write!(
                f,
                "no UDP segmentation offload on this path (os error {os_error}): sending single datagrams, much slower"
            ),
        }
    }
}
