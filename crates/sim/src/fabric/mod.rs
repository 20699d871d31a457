//! Hosts, switches, cables, and which ports lead where.

mod parts;
mod shapes;

pub use parts::divide;
pub use shapes::{Links, dumbbell, fat_tree, leaf_spine, star};

use std::collections::HashMap;

use anyhow::{Context, ensure};

use crate::link::LinkConfig;
use crate::packet::{HOST_COUNT_MAX, Packet};

/// Both ends of a cable are ports of nodes: hosts are numbered from 0, switches from `host_count` on.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// One end and the other.
    pub ends: [u32; 2],
    /// The link from each end.
    pub links: [LinkConfig; 2],
}

/// A network.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Hosts; each has one cable.
    pub host_count: u32,
    /// Switches.
    pub switch_count: u32,
    /// Cables; a node's ports are numbered in this order.
    pub cables: Vec<Cable>,
    /// For each node, a part of the network with few cables to others: what threads divide among them.
    pub part_of: Vec<u32>,
    /// What nodes are called, by node; empty where they only have numbers.
    pub names: Vec<String>,
}

/// One port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The cable's index.
    pub cable: u32,
    /// Which end of it is here.
    pub end: u8,
    /// The node at the other end.
    pub neighbour: u32,
}

/// Equal next hops of a switch towards one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Index of the first in [`SwitchRoutes::choices`].
    pub first: u16,
    /// How many; none at the rack's own switch.
    pub count: u16,
}

/// One switch's routes.
#[derive(Clone, Debug, Default)]
pub struct SwitchRoutes {
    /// By rack.
    pub by_rack: Vec<Route>,
    /// Port numbers; racks with the same ports share them.
    pub choices: Vec<u16>,
    /// Switches on the way to the nearest host.
    pub tier: u32,
    /// Which bits of the hash it chooses by. Neighbours choose by different ones: with the same, a flow that comes to the second
    /// would always find the same of its ways, and the others would be empty.
    pub rotation: u32,
}

impl SwitchRoutes {
    /// Many racks are reached over the same ports, and all switches' choices should fit into a cache.
    fn route_over(&mut self, ports: &[u16]) -> Option<Route> {
        let known = self.by_rack.iter().rev().find(|route| self.ports(route) == ports).copied();
        known.or_else(|| {
            let first = self.choices.len();
            self.choices.extend_from_slice(ports);
            Some(Route { first: first.try_into().ok()?, count: ports.len().try_into().ok()? })
        })
    }

    /// The ports of a route.
    pub fn ports(&self, route: &Route) -> &[u16] {
        &self.choices[usize::from(route.first)..][..usize::from(route.count)]
    }
}

/// The port by which a switch with these routes sends a packet on; the directory is that of the whole network.
#[inline]
pub fn next_hop(routes: &SwitchRoutes, directory: &Routes, packet: &Packet) -> usize {
    let destination = usize::from(packet.destination);
    let route = routes.by_rack[usize::from(directory.rack_of[destination])];
    if route.count == 0 {
        return usize::from(directory.port_of[destination]);
    }
    let hash = packet.hash.rotate_left(routes.rotation);
    let choice = (u32::from(hash) * u32::from(route.count)) >> u16::BITS;
    usize::from(routes.choices[usize::from(route.first) + choice as usize])
}

/// A link has its kind's number in a byte.
const KIND_COUNT_MAX: usize = 1 << u8::BITS;

/// Bits of a hash that one choice takes: ways are seldom more than 32.
const CHOICE_BITS: u32 = 5;

/// Shortest paths, all of equal length at once (ECMP).
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// By host: its switch's place among the switches that have hosts.
    pub rack_of: Vec<u16>,
    /// By host: the port of its switch.
    pub port_of: Vec<u16>,
    /// By switch.
    pub switches: Vec<SwitchRoutes>,
}

impl Fabric {
    /// What a node is called.
    pub fn name(&self, node: u32) -> String {
        match (self.names.get(node as usize), node.checked_sub(self.host_count)) {
            (Some(name), _) => name.clone(),
            (None, None) => format!("host{node}"),
            (None, Some(switch)) => format!("switch{switch}"),
        }
    }

    /// Nodes of both kinds.
    pub fn node_count(&self) -> u32 {
        self.host_count + self.switch_count
    }

    /// The different kinds of links, in the order in which they come first, and the kind of each: by cable, its two directions.
    ///
    /// # Errors
    /// For more kinds than a link can name.
    pub fn kinds(&self) -> anyhow::Result<(Vec<LinkConfig>, Vec<[u8; 2]>)> {
        let (mut kinds, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |link: &LinkConfig| {
            let LinkConfig { rate_bps, delay_ps, queue_bytes_max, mark_bytes, corruption } = *link;
            let key = (rate_bps, delay_ps, queue_bytes_max, mark_bytes, corruption.to_bits());
            *numbers.entry(key).or_insert_with(|| {
                kinds.push(*link);
                kinds.len() - 1
            })
        };
        let of_cables: Vec<[usize; 2]> =
            self.cables.iter().map(|cable| cable.links.each_ref().map(&mut number)).collect();
        ensure!(
            kinds.len() <= KIND_COUNT_MAX,
            "links of {} kinds, at most {KIND_COUNT_MAX} (a host's link has another one in each direction): give links \
             fewer different rates, delays, queues, marks and chances of corruption",
            kinds.len()
        );
        Ok((kinds, of_cables.into_iter().map(|numbers| numbers.map(|number| number as u8)).collect()))
    }

    /// By host, the rate of its link; 0 if it has none.
    pub fn access_bps(&self) -> Vec<u64> {
        let mut rates = vec![0; self.host_count as usize];
        for (end, link) in self.cables.iter().flat_map(|cable| cable.ends.into_iter().zip(cable.links)) {
            if let Some(rate) = rates.get_mut(end as usize) {
                *rate = link.rate_bps;
            }
        }
        rates
    }

    /// The ports of every node.
    pub fn ports(&self) -> Vec<Vec<Port>> {
        let mut ports = vec![Vec::new(); self.node_count() as usize];
        for (index, cable) in self.cables.iter().enumerate() {
            for end in 0..2 {
                let port = Port { cable: index as u32, end: end as u8, neighbour: cable.ends[1 - end] };
                ports[cable.ends[end] as usize].push(port);
            }
        }
        ports
    }

    /// Shortest paths.
    ///
    /// # Errors
    /// For a host without exactly one cable, one that is not at a switch, a network in pieces, or too many hosts or ports.
    pub fn routes(&self) -> anyhow::Result<Routes> {
        let ports = self.ports();
        let host_count = self.host_count as usize;
        ensure!((2..=HOST_COUNT_MAX).contains(&host_count), "a network has from 2 to {HOST_COUNT_MAX} hosts");
        ensure!(ports.iter().all(|ports| ports.len() <= usize::from(u16::MAX)), "a switch has at most 65,535 ports");
        let mut rack_switches: Vec<u32> = Vec::new();
        let mut routes = Routes::default();
        for (host, own) in ports[..host_count].iter().enumerate() {
            let name = || self.name(host as u32);
            ensure!(own.len() == 1, "{} has {} links: it needs exactly one", name(), own.len());
            let switch = own[0].neighbour;
            ensure!(switch >= self.host_count, "{} is connected to a host: connect it to a switch", name());
            let rack = rack_switches.iter().rposition(|&other| other == switch).unwrap_or_else(|| {
                rack_switches.push(switch);
                rack_switches.len() - 1
            });
            let port = ports[switch as usize].iter().position(|port| port.cable == own[0].cable);
            routes.rack_of.push(rack as u16);
            routes.port_of.push(port.unwrap_or_default() as u16);
        }
        routes.switches = vec![SwitchRoutes::default(); self.switch_count as usize];
        for &rack_switch in &rack_switches {
            self.add_rack(rack_switch, &ports, &mut routes)?;
        }
        self.choose_rotations(&ports, &mut routes);
        Ok(routes)
    }

    /// By tier, as far as tiers differ; of neighbours in one tier, the later one takes what no neighbour has.
    fn choose_rotations(&self, ports: &[Vec<Port>], routes: &mut Routes) {
        for index in 0..routes.switches.len() {
            let neighbours = ports[self.host_count as usize + index].iter();
            let known = neighbours.filter_map(|port| port.neighbour.checked_sub(self.host_count));
            let earlier = known.filter(|&other| (other as usize) < index);
            let taken: Vec<u32> = earlier.map(|other| routes.switches[other as usize].rotation).collect();
            let tier = routes.switches[index].tier;
            let mut candidates = (tier..tier + u16::BITS).map(|step| CHOICE_BITS * step % u16::BITS);
            let free = candidates.find(|rotation| !taken.contains(rotation));
            routes.switches[index].rotation = free.unwrap_or(CHOICE_BITS * tier % u16::BITS);
        }
    }

    /// Breadth first from a rack's switch.
    fn add_rack(&self, rack_switch: u32, ports: &[Vec<Port>], routes: &mut Routes) -> anyhow::Result<()> {
        let distances = self.distances(rack_switch, ports);
        let host_count = self.host_count as usize;
        for (index, switch) in routes.switches.iter_mut().enumerate() {
            let node = host_count + index;
            let own = distances[node];
            ensure!(own != u32::MAX, "{} cannot reach {}", self.name(node as u32), self.name(rack_switch));
            let is_nearer = |port: &Port| {
                distances[port.neighbour as usize] != u32::MAX
                    && distances[port.neighbour as usize] + 1 == own
                    && port.neighbour >= self.host_count
            };
            let nearer = ports[node].iter().enumerate().filter(|(_, port)| is_nearer(port));
            let nearer: Vec<u16> = nearer.map(|(port, _)| port as u16).collect();
            let route = switch.route_over(&nearer);
            switch.by_rack.push(
                route.with_context(|| {
                    format!("{} has too many different sets of equal ports", self.name(node as u32))
                })?,
            );
            switch.tier = if switch.by_rack.len() == 1 { own } else { switch.tier.min(own) };
        }
        Ok(())
    }

    /// Links from a switch to every other, on switches only; `u32::MAX` where there is no way.
    pub(crate) fn distances(&self, from: u32, ports: &[Vec<Port>]) -> Vec<u32> {
        let mut distances = vec![u32::MAX; ports.len()];
        distances[from as usize] = 0;
        let mut front = vec![from];
        while !front.is_empty() {
            let mut next = Vec::new();
            for node in front {
                for port in &ports[node as usize] {
                    let neighbour = port.neighbour as usize;
                    if distances[neighbour] == u32::MAX && port.neighbour >= self.host_count {
                        distances[neighbour] = distances[node as usize] + 1;
                        next.push(port.neighbour);
                    }
                }
            }
            front = next;
        }
        distances
    }
}

#[cfg(test)]
mod tests;
