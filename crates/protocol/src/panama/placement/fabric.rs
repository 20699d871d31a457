//! A fabric as the controller sees it: nodes, cables, ports, and which way is up.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Hosts and switches. Hosts are numbered from 0, switches after them; a node's ports are numbered in the order of the cables.
#[derive(Clone, Debug)]
pub struct Fabric {
    host_count: u32,
    /// By node.
    ports: Vec<Vec<Port>>,
    /// By node: hops to the nearest host.
    tiers: Vec<u32>,
    cable_count: usize,
}

/// Why cables are not a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricError {
    /// A cable's end is no node, or both ends are one node.
    BadCable(u32),
    /// A host has not exactly one cable, or it does not lead to a switch.
    BadHost(u32),
}

#[derive(Clone, Copy, Debug)]
struct Port {
    neighbour: u32,
    /// There.
    port: u16,
    cable: u32,
}

/// A cable of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub parent: u32,
    pub parent_port: u16,
    pub child: u32,
    pub child_port: u16,
    pub cable: u32,
}

impl Fabric {
    /// A fabric of `switch_count` switches; each cable names the nodes at its ends.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn new(host_count: u32, switch_count: u32, cables: &[[u32; 2]]) -> Result<Fabric, FabricError> {
        let node_count = (host_count + switch_count) as usize;
        let mut ports: Vec<Vec<Port>> = vec![Vec::new(); node_count];
        for (cable, &[one, other]) in (0..).zip(cables) {
            let is_node = |node: u32| (node as usize) < node_count;
            if one == other || !is_node(one) || !is_node(other) {
                return Err(FabricError::BadCable(cable));
            }
            let (at_one, at_other) = (ports[one as usize].len() as u16, ports[other as usize].len() as u16);
            ports[one as usize].push(Port { neighbour: other, port: at_other, cable });
            ports[other as usize].push(Port { neighbour: one, port: at_one, cable });
        }
        let is_wired = |host: &u32| matches!(ports[*host as usize][..], [port] if port.neighbour >= host_count);
        if let Some(host) = (0..host_count).find(|host| !is_wired(host)) {
            return Err(FabricError::BadHost(host));
        }
        let tiers = tiers(host_count, &ports);
        Ok(Fabric { host_count, ports, tiers, cable_count: cables.len() })
    }

    /// Hosts.
    pub fn host_count(&self) -> u32 {
        self.host_count
    }

    /// Whether a node is a host.
    pub fn is_host(&self, node: u32) -> bool {
        node < self.host_count
    }

    /// Hops to the nearest host: 1 for a switch with hosts.
    pub fn tier(&self, node: u32) -> u32 {
        self.tiers[node as usize]
    }

    /// The node at the other end of a port's cable, and its port there; nothing for a port that does not exist.
    pub fn neighbour(&self, node: u32, port: u16) -> Option<(u32, u16)> {
        let port = self.ports.get(node as usize)?.get(usize::from(port))?;
        Some((port.neighbour, port.port))
    }

    pub(super) fn node_count(&self) -> usize {
        self.ports.len()
    }

    pub(super) fn cable_count(&self) -> usize {
        self.cable_count
    }

    /// The switches of the lowest tier that have all hosts below them, and that tier. Where tiers have no common top, as in a ring of
    /// switches, those from which the farthest host is nearest and, of these, all hosts together, with the first one's tier.
    pub(super) fn roots(&self, hosts: &[u32]) -> Option<(u32, Vec<u32>)> {
        let highest = self.tiers.iter().copied().filter(|&tier| tier != u32::MAX).max()?;
        let above_all = (1..=highest).find_map(|tier| {
            let switches = (self.host_count..self.node_count() as u32).filter(|&switch| self.tier(switch) == tier);
            let roots: Vec<u32> = switches.filter(|&switch| self.has_below(switch, hosts)).collect();
            (!roots.is_empty()).then_some((tier, roots))
        });
        above_all.or_else(|| {
            let roots = self.centres(hosts)?;
            Some((self.tier(*roots.first()?), roots))
        })
    }

    /// The switches with the shortest way to the farthest host's and, of these, the shortest ways to all together; none if a switch has no way to one.
    fn centres(&self, hosts: &[u32]) -> Option<Vec<u32>> {
        let mut scores = vec![(0u32, 0u64); self.node_count()];
        for &host in hosts {
            let rack = self.ports[host as usize][0].neighbour;
            let (_, above) = self.spread(rack);
            for (node, score) in (0..).zip(&mut scores).skip(self.host_count as usize) {
                let distance = distance(&above, rack, node)?;
                *score = (score.0.max(distance), score.1 + u64::from(distance));
            }
        }
        let switches = self.host_count..self.node_count() as u32;
        let best = switches.clone().map(|switch| scores[switch as usize]).min()?;
        Some(switches.filter(|&switch| scores[switch as usize] == best).collect())
    }

    /// Cables of the tree from a root down to the hosts, parents before children.
    pub(super) fn branches(&self, root: u32, hosts: &[u32]) -> Vec<Branch> {
        let mut walked = self.descend(root);
        if !hosts.iter().all(|&host| walked.1[host as usize].is_some()) {
            walked = self.spread(root);
        }
        let (order, above) = walked;
        let mut is_needed = vec![false; self.node_count()];
        hosts.iter().for_each(|&host| is_needed[host as usize] = true);
        for &node in order.iter().rev() {
            if let Some(branch) = above[node as usize].filter(|_| is_needed[node as usize]) {
                is_needed[branch.parent as usize] = true;
            }
        }
        let needed = order.into_iter().filter(|&node| is_needed[node as usize]);
        needed.filter_map(|node| above[node as usize]).collect()
    }

    pub(super) fn has_below(&self, root: u32, hosts: &[u32]) -> bool {
        let (_, above) = self.descend(root);
        hosts.iter().all(|&host| above[host as usize].is_some())
    }

    /// All nodes below a root in order of their distance, and the cable that leads to each. A root that reaches a switch in two
    /// ways takes the lowest ports.
    fn descend(&self, root: u32) -> (Vec<u32>, Vec<Option<Branch>>) {
        self.walk(root, |parent, child| self.tier(child) + 1 == self.tier(parent))
    }

    /// The same over all cables, whatever the tiers: the shortest ways.
    fn spread(&self, root: u32) -> (Vec<u32>, Vec<Option<Branch>>) {
        self.walk(root, |parent, child| child != root && !self.is_host(parent))
    }

    fn walk(&self, root: u32, leads: impl Fn(u32, u32) -> bool) -> (Vec<u32>, Vec<Option<Branch>>) {
        let mut above: Vec<Option<Branch>> = vec![None; self.node_count()];
        let (mut order, mut next) = (vec![root], VecDeque::from([root]));
        while let Some(parent) = next.pop_front() {
            for (parent_port, port) in (0..).zip(&self.ports[parent as usize]) {
                let child = port.neighbour;
                if leads(parent, child) && above[child as usize].is_none() {
                    let Port { port: child_port, cable, .. } = *port;
                    above[child as usize] = Some(Branch { parent, parent_port, child, child_port, cable });
                    order.push(child);
                    next.push_back(child);
                }
            }
        }
        (order, above)
    }
}

/// Cables from a node up to the root of what was walked.
fn distance(above: &[Option<Branch>], root: u32, mut node: u32) -> Option<u32> {
    let mut distance = 0;
    while node != root {
        node = above[node as usize]?.parent;
        distance += 1;
    }
    Some(distance)
}

fn tiers(host_count: u32, ports: &[Vec<Port>]) -> Vec<u32> {
    let mut tiers = vec![u32::MAX; ports.len()];
    let mut next: VecDeque<u32> = (0..host_count).collect();
    tiers[..host_count as usize].fill(0);
    while let Some(node) = next.pop_front() {
        for port in &ports[node as usize] {
            if tiers[port.neighbour as usize] == u32::MAX {
                tiers[port.neighbour as usize] = tiers[node as usize] + 1;
                next.push_back(port.neighbour);
            }
        }
    }
    tiers
}
