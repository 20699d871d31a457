//! How long gradients take on a network of their own.

use std::collections::BTreeMap;

use super::tree::Tree;
use crate::fabric::Fabric;
use crate::link::LinkConfig;

/// Picoseconds from the first bit at the ranks to the last one back at them, if `packet_count` packets of `packet_bytes` on a link are spread over the trees,
/// and every link carries what its trees carry, once in each direction, and nothing else: what the slowest link takes for all of it, and what one packet takes up
/// and down the longest way.
pub fn passage_ps(fabric: &Fabric, trees: &[Tree], packet_count: u32, packet_bytes: u16) -> u128 {
    let bits = u128::from(packet_bytes) * 8_000_000_000_000;
    let sending_ps = |link: &LinkConfig| bits / u128::from(link.rate_bps.max(1));
    let ports = fabric.ports();
    // By cable: how many trees have it, and how long its slower direction takes for a packet.
    let mut used: BTreeMap<u32, (u128, u128)> = BTreeMap::new();
    let mut way_ps = 0;
    for tree in trees {
        let mut ways = vec![[0; 2]; tree.number_of_rank.len()];
        for node in &tree.nodes {
            let of_child = |&port: &u16| ports[(fabric.host_count + node.switch) as usize][usize::from(port)];
            let children: Vec<_> = node.children.iter().map(of_child).collect();
            for port in &children {
                let slower_ps = fabric.cables[port.cable as usize].links.iter().map(sending_ps).max().unwrap_or(0);
                used.entry(port.cable).or_insert((0, slower_ps)).0 += 1;
            }
            for (way, child) in ways.iter_mut().zip(&node.child_of_rank) {
                let Some(port) = child.map(|child| children[usize::from(child)]) else { continue };
                for (way, link) in way.iter_mut().zip(&fabric.cables[port.cable as usize].links) {
                    *way += sending_ps(link) + u128::from(link.delay_ps);
                }
            }
        }
        let longest = |direction: usize| ways.iter().map(|way| way[direction]).max().unwrap_or(0);
        way_ps = way_ps.max(longest(0) + longest(1));
    }
    let share = |in_trees: u128| (u128::from(packet_count) * in_trees).div_ceil(trees.len().max(1) as u128);
    let filled = used.values().map(|&(in_trees, slower_ps)| share(in_trees).saturating_sub(1) * slower_ps);
    way_ps + filled.max().unwrap_or(0)
}
