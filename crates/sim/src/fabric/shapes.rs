//! Fabrics by their names.

use anyhow::ensure;

use super::{Cable, Fabric};
use crate::link::LinkConfig;

/// What the links of a fabric are like.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// From a host to its switch: a host's own queue holds whatever its windows allow.
    pub host: LinkConfig,
    /// From a switch to a host.
    pub access: LinkConfig,
    /// Between switches, each way.
    pub core: LinkConfig,
}

impl Links {
    fn to_host(self, host: u32, switch: u32) -> Cable {
        Cable { ends: [host, switch], links: [self.host, self.access] }
    }

    fn between(self, lower: u32, upper: u32) -> Cable {
        Cable { ends: [lower, upper], links: [self.core; 2] }
    }
}

/// A folded Clos network of switches with k ports in three tiers: k³/4 hosts, k pods (Al-Fares et al., SIGCOMM 2008).
///
/// # Errors
/// For a k that is odd or not within 2 to 64.
pub fn fat_tree(k: u32, links: Links) -> anyhow::Result<Fabric> {
    ensure!(
        (2..=64).contains(&k) && k.is_multiple_of(2),
        "k = {k}: a fat tree's switches have an even number of ports, 2 to 64"
    );
    let half = k / 2;
    let host_count = k * half * half;
    let (edge, aggregation) = (
        |pod: u32, index: u32| host_count + pod * k + index,
        |pod: u32, index: u32| host_count + pod * k + half + index,
    );
    let core = |index: u32| host_count + k * k + index;
    let mut cables = Vec::new();
    for pod in 0..k {
        for rack in 0..half {
            let first = (pod * half + rack) * half;
            cables.extend((first..first + half).map(|host| links.to_host(host, edge(pod, rack))));
        }
    }
    for pod in 0..k {
        for rack in 0..half {
            cables.extend((0..half).map(|upper| links.between(edge(pod, rack), aggregation(pod, upper))));
        }
    }
    for pod in 0..k {
        for upper in 0..half {
            cables.extend((0..half).map(|index| links.between(aggregation(pod, upper), core(upper * half + index))));
        }
    }
    let hosts = (0..host_count).map(|host| host / (half * half));
    let switches = (0..k * k).map(|switch| switch / k);
    let cores = (0..half * half).map(|index| index % k);
    Ok(Fabric {
        host_count,
        switch_count: k * k + half * half,
        cables,
        part_of: hosts.chain(switches).chain(cores).collect(),
        names: Vec::new(),
    })
}

/// Two tiers: every leaf is connected to every spine.
///
/// # Errors
/// Without leaves, spines or hosts.
pub fn leaf_spine(leaves: u32, spines: u32, hosts_per_leaf: u32, links: Links) -> anyhow::Result<Fabric> {
    ensure!(
        leaves > 0 && spines > 0 && hosts_per_leaf > 0,
        "a leaf-spine fabric needs leaves, spines and hosts_per_leaf"
    );
    let host_count = leaves.checked_mul(hosts_per_leaf).filter(|count| *count <= 1 << 16);
    let host_count = anyhow::Context::context(host_count, "a network has at most 65,536 hosts")?;
    let (leaf, spine) = (|index: u32| host_count + index, |index: u32| host_count + leaves + index);
    let hosts = (0..host_count).map(|host| links.to_host(host, leaf(host / hosts_per_leaf)));
    let up = (0..leaves).flat_map(|l| (0..spines).map(move |s| (l, s))).map(|(l, s)| links.between(leaf(l), spine(s)));
    let parts = (0..host_count).map(|host| host / hosts_per_leaf);
    Ok(Fabric {
        host_count,
        switch_count: leaves + spines,
        cables: hosts.chain(up).collect(),
        part_of: parts.chain(0..leaves).chain((0..spines).map(|index| index % leaves)).collect(),
        names: Vec::new(),
    })
}

/// Hosts around one switch.
///
/// # Errors
/// For fewer than two hosts.
pub fn star(hosts: u32, links: Links) -> anyhow::Result<Fabric> {
    ensure!((2..=1 << 16).contains(&hosts), "hosts = {hosts}: a star has from 2 to 65,536");
    let cables = (0..hosts).map(|host| links.to_host(host, hosts)).collect();
    Ok(Fabric { host_count: hosts, switch_count: 1, cables, part_of: vec![0; hosts as usize + 1], names: Vec::new() })
}

/// Two switches with hosts on both sides, and one cable between them.
///
/// # Errors
/// Without hosts on a side.
pub fn dumbbell(left: u32, right: u32, links: Links) -> anyhow::Result<Fabric> {
    ensure!((1..=1 << 15).contains(&left) && (1..=1 << 15).contains(&right), "a dumbbell needs hosts on both sides");
    let host_count = left + right;
    let side = |host: u32| u32::from(host >= left);
    let mut cables: Vec<Cable> = (0..host_count).map(|host| links.to_host(host, host_count + side(host))).collect();
    cables.push(links.between(host_count, host_count + 1));
    let part_of = (0..host_count).map(side).chain([0, 1]).collect();
    Ok(Fabric { host_count, switch_count: 2, cables, part_of, names: Vec::new() })
}
