//! Trees of switches between the ranks of a job: every rank's switch, and the shortest way from there to a root.

use anyhow::{Context, ensure};

use fanin_link::Random;

use crate::fabric::{Fabric, Port};

/// One switch of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The switch's number.
    pub switch: u32,
    /// Port towards the root, and this switch's number among the children there; nothing at the root.
    pub parent: Option<(u16, u16)>,
    /// Ports towards children, hosts or switches, by their numbers.
    pub children: Vec<u16>,
    /// By rank: the child that it is, or is behind; nothing for who is elsewhere.
    pub child_of_rank: Vec<Option<u16>>,
}

/// One tree of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Children before their parents; the root is last.
    pub nodes: Vec<Node>,
    /// By rank: its number among its switch's children.
    pub number_of_rank: Vec<u16>,
}

/// Finds trees in a fabric.
#[derive(Debug)]
pub struct Planner<'a> {
    fabric: &'a Fabric,
    ports: Vec<Vec<Port>>,
}

impl<'a> Planner<'a> {
    /// Of a fabric with one cable at each host ([`Fabric::routes`] checks it).
    pub fn new(fabric: &'a Fabric) -> Planner<'a> {
        Planner { fabric, ports: fabric.ports() }
    }

    /// The node of a host's switch.
    pub fn switch_of(&self, host: u16) -> u32 {
        self.ports[usize::from(host)][0].neighbour
    }

    /// Nodes that suit a root: the highest tree is as low as can be, and the ways together are as short as can be. In a
    /// folded Clos these are the spine switches above all ranks, or the only rack's own switch.
    ///
    /// # Errors
    /// If no switch reaches all hosts.
    pub fn roots(&self, hosts: &[u16]) -> anyhow::Result<Vec<u32>> {
        let mut racks: Vec<u32> = hosts.iter().map(|&host| self.switch_of(host)).collect();
        racks.sort_unstable();
        racks.dedup();
        let mut scores = vec![(0u32, 0u64); self.ports.len()];
        for &rack in &racks {
            for (score, &distance) in scores.iter_mut().zip(&self.fabric.distances(rack, &self.ports)) {
                *score = (score.0.max(distance), score.1.saturating_add(distance.into()));
            }
        }
        let switches = self.fabric.host_count as usize..self.ports.len();
        let best = scores[switches.clone()].iter().min().copied().context("a network without switches")?;
        ensure!(best.0 != u32::MAX, "no switch reaches all of the job's hosts");
        Ok(switches.filter(|&node| scores[node] == best).map(|node| node as u32).collect())
    }

    /// The tree from hosts, by rank, to a root. Where several ways are as short, `choice` picks one.
    pub fn tree(&self, hosts: &[u16], root: u32, choice: u32) -> Tree {
        let distances = self.fabric.distances(root, &self.ports);
        let mut tree = Tree { nodes: Vec::new(), number_of_rank: Vec::new() };
        for (rank, &host) in hosts.iter().enumerate() {
            let mut node = self.switch_of(host);
            let mut child = self.add_child(&mut tree, hosts.len(), node, self.ports[usize::from(host)][0].cable);
            tree.number_of_rank.push(child);
            while node != root {
                let (port, up) = self.towards_root(node, &distances, choice);
                let parent_child = self.add_child(&mut tree, hosts.len(), up.neighbour, up.cable);
                let own = self.node_mut(&mut tree, hosts.len(), node);
                own.child_of_rank[rank] = Some(child);
                own.parent = Some((port, parent_child));
                (node, child) = (up.neighbour, parent_child);
            }
            self.node_mut(&mut tree, hosts.len(), root).child_of_rank[rank] = Some(child);
        }
        let node_of = |node: &Node| distances[(node.switch + self.fabric.host_count) as usize];
        tree.nodes.sort_by_key(|node| std::cmp::Reverse((node_of(node), node.switch)));
        tree
    }

    fn towards_root(&self, node: u32, distances: &[u32], choice: u32) -> (u16, Port) {
        let own = distances[node as usize];
        let is_nearer = |port: &Port| {
            port.neighbour >= self.fabric.host_count
                && distances[port.neighbour as usize].checked_add(1).is_some_and(|next| next == own)
        };
        let ports = self.ports[node as usize].iter().enumerate();
        let nearer: Vec<(usize, &Port)> = ports.filter(|(_, port)| is_nearer(port)).collect();
        let (port, up) = nearer[choice as usize % nearer.len()];
        (port as u16, *up)
    }

    fn node_mut<'t>(&self, tree: &'t mut Tree, rank_count: usize, node: u32) -> &'t mut Node {
        let switch = node - self.fabric.host_count;
        let place = tree.nodes.iter().position(|node| node.switch == switch).unwrap_or_else(|| {
            let child_of_rank = vec![None; rank_count];
            tree.nodes.push(Node { switch, parent: None, children: Vec::new(), child_of_rank });
            tree.nodes.len() - 1
        });
        &mut tree.nodes[place]
    }

    /// The number of the child behind a cable.
    fn add_child(&self, tree: &mut Tree, rank_count: usize, node: u32, cable: u32) -> u16 {
        let port = self.ports[node as usize].iter().position(|port| port.cable == cable).unwrap_or_default() as u16;
        let children = &mut self.node_mut(tree, rank_count, node).children;
        let place = children.iter().position(|&child| child == port).unwrap_or_else(|| {
            children.push(port);
            children.len() - 1
        });
        place as u16
    }
}

/// Draws as many different roots as wanted, as far as there are, and for each what decides where several ways are as short.
pub fn draw_roots(mut roots: Vec<u32>, count: u32, random: &mut Random) -> Vec<(u32, u32)> {
    let count = roots.len().min(count as usize);
    let draw = |_| (roots.swap_remove(random.below(roots.len() as u64) as usize), random.bits() as u32);
    (0..count).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Links, fat_tree};
    use crate::link::LinkConfig;

    fn fabric() -> Fabric {
        let link = LinkConfig { rate_bps: 1, delay_ps: 1, queue_bytes_max: 1, mark_bytes: 1, corruption: 0.0 };
        fat_tree(4, Links { host: link, access: link, core: link }).unwrap()
    }

    #[test]
    fn roots_are_as_near_as_can_be() {
        let fabric = fabric();
        let planner = Planner::new(&fabric);
        let switches = |hosts: &[u16]| -> Vec<u32> {
            planner.roots(hosts).unwrap().into_iter().map(|node| node - fabric.host_count).collect()
        };
        assert_eq!(switches(&[0, 1]), [0], "one rack: its switch");
        assert_eq!(switches(&[0, 2]), [2, 3], "one pod: both switches above the racks");
        assert_eq!(switches(&[0, 15]), [16, 17, 18, 19], "two pods: all core switches");
    }

    #[test]
    fn every_rank_is_behind_one_child_of_each_switch_on_its_way() {
        let fabric = fabric();
        let planner = Planner::new(&fabric);
        let hosts = [0, 1, 2, 5, 15];
        for &root in &planner.roots(&hosts).unwrap() {
            let tree = planner.tree(&hosts, root, 3);
            // Four racks, three pods, a core switch.
            assert_eq!(tree.nodes.len(), 4 + 3 + 1);
            let last = tree.nodes.last().unwrap();
            assert_eq!((last.switch + fabric.host_count, last.parent), (root, None));
            assert_eq!(last.children.len(), 3);
            assert!(last.child_of_rank.iter().all(Option::is_some));
            assert_eq!(tree.number_of_rank, [0, 1, 0, 0, 0]);
            for node in &tree.nodes {
                for (number, _) in node.children.iter().enumerate() {
                    assert!(node.child_of_rank.contains(&Some(number as u16)), "a child without ranks");
                }
            }
        }
    }
}
