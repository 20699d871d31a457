//! The network interfaces of this host, and the one setting of theirs that a kernel data path needs.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use crate::sys;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// For example "eth0".
    pub name: String,
    /// Whether it was switched on; it may have no carrier all the same.
    pub is_up: bool,
    /// Whether it leads nowhere but here.
    pub is_loopback: bool,
    /// Its IPv4 addresses.
    pub ipv4: Vec<Ipv4Addr>,
}

/// The interfaces of this thread's network namespace.
///
/// # Errors
/// The system's.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in sys::interface_addresses()? {
        match found.iter_mut().find(|interface| interface.name == entry.name) {
            Some(interface) => interface.ipv4.extend(entry.ipv4),
            None => found.push(Interface {
                name: entry.name,
                is_up: entry.is_up,
                is_loopback: entry.is_loopback,
                ipv4: entry.ipv4.into_iter().collect(),
            }),
        }
    }
    Ok(found)
}

/// Switches generic receive offload (GRO) of an interface of this thread's network namespace on or off, as `ethtool -K
/// DEVICE gro on` does. A veth takes frames that XDP at its other end sends only while this is on.
///
/// # Errors
/// The system's: no such interface, or no CAP_NET_ADMIN.
pub fn set_receive_offload(interface: &str, is_on: bool) -> io::Result<()> {
    // Any socket will do: it only names the namespace.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    sys::set_receive_offload(socket.as_fd(), interface, is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|interface| interface.is_loopback).unwrap();
        assert!(!loopback.name.is_empty());
        assert!(!loopback.is_up || loopback.ipv4.contains(&Ipv4Addr::LOCALHOST), "{loopback:?}");
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        for name in ["no-such-device", "a name that is longer than any device's"] {
            let error = set_receive_offload(name, true).unwrap_err();
            assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
        }
    }
}
