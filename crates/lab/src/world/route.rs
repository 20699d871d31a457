//! Where a job's packets go at each switch.

use fanin_protocol::atp::{Tree, Way};

use super::Topology;

/// The name of a link.
pub type LinkId = usize;

/// A job's way through one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The switch runs the job's program, at a level of its tree. `down` is by child.
    Program { level: u8, up: LinkId, down: Vec<Option<LinkId>> },
    /// The switch lies between the job's last program and its server, and only passes packets on.
    Forward { from_below: LinkId, up: LinkId, down: LinkId },
}

/// The links of a topology, numbered as the world makes them: for each host up, down; then for each switch up, down.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkNames {
    pub host_count: usize,
}

impl LinkNames {
    pub fn host_up(self, host: usize) -> LinkId {
        2 * host
    }

    pub fn host_down(self, host: usize) -> LinkId {
        2 * host + 1
    }

    pub fn switch_up(self, switch: usize) -> LinkId {
        2 * (self.host_count + switch)
    }

    pub fn switch_down(self, switch: usize) -> LinkId {
        2 * (self.host_count + switch) + 1
    }
}

/// By switch: the route of an ATP job whose rank r is on `hosts[r]`.
pub(super) fn atp_routes(topology: &Topology, tree: &Tree, hosts: &[usize], server: usize) -> Vec<Option<Route>> {
    let names = LinkNames { host_count: topology.hosts.len() };
    let mut routes: Vec<Option<Route>> = vec![None; topology.parents.len()];
    let mut root = None;
    for (rank, &host) in hosts.iter().enumerate() {
        let way = tree.way(rank as u16);
        root = Some(add_way(topology, names, &mut routes, tree, way, host, server));
    }
    let mut below = root.unwrap_or(topology.hosts[server]);
    while below != topology.hosts[server] {
        let Some(switch) = topology.parents[below] else { break };
        let up = towards(topology, names, switch, server);
        routes[switch] =
            Some(Route::Forward { from_below: names.switch_up(below), up, down: names.switch_down(below) });
        below = switch;
    }
    routes
}

/// Adds one worker's way; returns the switch where it ends.
fn add_way(
    topology: &Topology,
    names: LinkNames,
    routes: &mut [Option<Route>],
    tree: &Tree,
    way: &Way,
    host: usize,
    server: usize,
) -> usize {
    let mut switch = topology.hosts[host];
    let mut child_link = names.host_down(host);
    for level in usize::from(way.level)..usize::from(tree.level_count()) {
        if level > usize::from(way.level) {
            child_link = names.switch_down(switch);
            switch = topology.parents[switch].unwrap_or(switch);
        }
        let up = towards(topology, names, switch, server);
        let route =
            routes[switch].get_or_insert_with(|| Route::Program { level: level as u8, up, down: vec![None; 32] });
        if let Route::Program { down, .. } = route {
            down[usize::from(way.children[level])] = Some(child_link);
        }
    }
    switch
}

/// The link from a switch on towards a host; up, unless the host is its own.
fn towards(topology: &Topology, names: LinkNames, switch: usize, host: usize) -> LinkId {
    if topology.hosts[host] == switch { names.host_down(host) } else { names.switch_up(switch) }
}

/// The route of a static job at its one switch; children are ranks.
pub(super) fn static_routes(topology: &Topology, hosts: &[usize]) -> Vec<Option<Route>> {
    let names = LinkNames { host_count: topology.hosts.len() };
    let down = hosts.iter().map(|&host| Some(names.host_down(host))).collect();
    let mut routes = vec![None; topology.parents.len()];
    routes[topology.hosts[hosts[0]]] = Some(Route::Program { level: 0, up: 0, down });
    routes
}
