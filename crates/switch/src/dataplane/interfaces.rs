//! Before which interfaces the XDP program stands.

use std::net::{IpAddr, Ipv4Addr};

use fanin_net::Interface;

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Interfaces; of a bridge its ports.
    pub names: Vec<String>,
    /// The one address to which workers can send on these; `None`: there are several.
    pub own_address: Option<Ipv4Addr>,
}

/// The interfaces that were named, or those with the data plane's address.
///
/// # Errors
/// In words, what to do.
pub(super) fn choose(
    named: &[String],
    address: IpAddr,
    all: &[Interface],
    ports_of: impl Fn(&str) -> Vec<String>,
) -> Result<Chosen, String> {
    let IpAddr::V4(address) = address else {
        return Err(format!(
            "the XDP program reads IPv4 only and the data plane is bound to {address}: --bind an IPv4 address"
        ));
    };
    let bound = Some(address).filter(|address| !address.is_unspecified());
    let with_address: Vec<&Interface> = if named.is_empty() {
        all.iter().filter(|one| is_wanted(one, bound)).collect()
    } else {
        named.iter().map(|name| find(all, name)).collect::<Result<_, _>>()?
    };
    if with_address.is_empty() {
        return Err(match bound {
            Some(address) if address.is_loopback() => format!(
                "{address} is on the loopback interface, which has no driver for XDP: --bind an address of a network interface"
            ),
            Some(address) => format!("no network interface has the address {address}: name them with --interface"),
            None => "no network interface is up and has an IPv4 address: name them with --interface".into(),
        });
    }
    let mut names: Vec<String> = Vec::new();
    for interface in &with_address {
        let ports = ports_of(&interface.name);
        let new = if ports.is_empty() { vec![interface.name.clone()] } else { ports };
        names.extend(new);
    }
    names.sort();
    names.dedup();
    let mut addresses = with_address.iter().flat_map(|interface| interface.ipv4.iter().copied());
    let only = addresses.next().filter(|_| addresses.next().is_none());
    Ok(Chosen { names, own_address: bound.or(only) })
}

fn is_wanted(interface: &Interface, bound: Option<Ipv4Addr>) -> bool {
    match bound {
        Some(address) => interface.ipv4.contains(&address) && !interface.is_loopback,
        None => interface.is_up && !interface.is_loopback && !interface.ipv4.is_empty(),
    }
}

fn find<'a>(all: &'a [Interface], name: &str) -> Result<&'a Interface, String> {
    let found = all.iter().find(|interface| interface.name == name);
    found.ok_or_else(|| format!("there is no network interface {name:?}: `ip link` lists them"))
}

/// The ports of a bridge; empty for any other interface.
pub(super) fn bridge_ports(name: &str) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/sys/class/net/{name}/brif"));
    folder.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, is_up: bool, ipv4: &[[u8; 4]]) -> Interface {
        let ipv4 = ipv4.iter().copied().map(Ipv4Addr::from).collect();
        Interface { name: name.into(), is_up, is_loopback: name == "lo", ipv4 }
    }

    fn all() -> Vec<Interface> {
        vec![
            interface("lo", true, &[[127, 0, 0, 1]]),
            interface("br0", true, &[[10, 0, 0, 254]]),
            interface("s1", true, &[]),
            interface("s0", true, &[]),
            interface("eth0", true, &[[192, 168, 0, 5], [192, 168, 0, 6]]),
            interface("down", false, &[[172, 16, 0, 1]]),
        ]
    }

    fn choice(named: &[&str], address: &str) -> Result<Chosen, String> {
        let named: Vec<_> = named.iter().map(|name| (*name).to_owned()).collect();
        let ports = |name: &str| if name == "br0" { vec!["s1".to_owned(), "s0".to_owned()] } else { Vec::new() };
        choose(&named, address.parse().unwrap(), &all(), ports)
    }

    #[test]
    fn an_address_chooses_its_interface_and_a_bridge_means_its_ports() {
        let chosen = choice(&[], "10.0.0.254").unwrap();
        assert_eq!(
            (chosen.names.as_slice(), chosen.own_address),
            (&["s0".to_owned(), "s1".to_owned()][..], Some([10, 0, 0, 254].into()))
        );
        assert_eq!(choice(&[], "192.168.0.6").unwrap().names, ["eth0"]);
    }

    #[test]
    fn any_address_means_all_that_are_up() {
        let chosen = choice(&[], "0.0.0.0").unwrap();
        assert_eq!(chosen.names, ["eth0", "s0", "s1"]);
        assert_eq!(chosen.own_address, None, "three addresses");
    }

    #[test]
    fn named_interfaces_are_taken_as_they_are() {
        assert_eq!(choice(&["s0", "eth0"], "0.0.0.0").unwrap().names, ["eth0", "s0"]);
        let bridge = choice(&["br0"], "0.0.0.0").unwrap();
        assert_eq!((bridge.names.len(), bridge.own_address), (2, Some([10, 0, 0, 254].into())));
        assert!(choice(&["eth7"], "0.0.0.0").unwrap_err().contains("no network interface \"eth7\""));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (address, words) in [("127.0.0.1", "loopback"), ("10.9.9.9", "10.9.9.9"), ("::1", "IPv4 only")] {
            let error = choice(&[], address).unwrap_err();
            assert!(error.contains(words), "{words} in {error}");
        }
    }
}
