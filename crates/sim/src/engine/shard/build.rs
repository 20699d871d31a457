//! Divides a network among threads.

use std::sync::Arc;

use fanin_link::Random;

use super::{
    Arrivals, ELSEWHERE, FarEnd, HostNode, Identity, NodeKind, NodeRef, Ports, Post, Shard, Switch, WORD_BITS,
};
use crate::datagrams::Datagrams;
use crate::engine::accelerator::Accelerator;
use crate::engine::buffers::Buffers;
use crate::engine::corruption::Corruption;
use crate::engine::{Plan, SwitchOutcome};
use crate::fabric::{Fabric, Port, Routes, SwitchRoutes};
use crate::host::Host;
use crate::job::aggregation::DATAGRAM_BYTES_MAX;
use crate::link::{Class, Link, LinkConfig};

/// Apart from all other draws.
const PATHS_STREAM: u64 = 0x7061_7468;

/// Divides a plan among threads.
pub fn build(plan: Plan, thread_count: usize) -> anyhow::Result<Vec<Shard>> {
    let routes = plan.fabric.routes()?;
    let port_list = plan.fabric.ports();
    let part_count = plan.fabric.part_of.iter().max().map_or(1, |part| part + 1);
    let shard_count = (thread_count.max(1) as u32).min(part_count);
    let mut builder = Builder::new(plan.fabric, shard_count, routes)?;
    let paths = Random::new(plan.seed ^ PATHS_STREAM).bits() as u32;
    builder.shards.iter_mut().for_each(|shard| shard.paths = paths);
    let mut ranks = plan.ranks.into_iter();
    for (index, sources) in plan.sources.into_iter().enumerate() {
        let (shard, ports) = builder.add_node(index as u32, &port_list[index]);
        let host = Host::new(index as u16, sources, ranks.next().unwrap_or_default());
        let shard = &mut builder.shards[shard];
        shard.nodes.push(NodeRef { ports, kind: NodeKind::Host, index: shard.hosts.len() as u32 });
        shard.wake_ps.push(host.wake_ps());
        shard.hosts.push(HostNode { ports, host });
    }
    let mut programs = plan.programs.into_iter();
    for index in 0..builder.fabric.switch_count {
        let node = builder.fabric.host_count + index;
        let (shard, ports) = builder.add_node(node, &port_list[node as usize]);
        let routes = std::mem::take(&mut builder.switch_routes[index as usize]);
        let shard = &mut builder.shards[shard];
        let index_here = shard.switches.len() as u32;
        shard.nodes.push(NodeRef { ports, kind: NodeKind::Switch, index: index_here });
        shard.switches.push(Switch {
            index,
            ports,
            routes,
            programs: programs.next().unwrap_or_default(),
            buffers: plan.memory.map(|memory| Buffers::new(memory, ports.count as usize)),
            accelerator: Accelerator::at(node, &port_list[node as usize], plan.accelerators.as_ref()).map(Box::new),
            outcome: SwitchOutcome::default(),
            failure: None,
        });
    }
    builder.add_corruption(plan.seed);
    builder.order_nodes();
    Ok(builder.shards)
}

struct Builder {
    fabric: Fabric,
    switch_routes: Vec<SwitchRoutes>,
    classes: Vec<LinkConfig>,
    shards: Vec<Shard>,
    /// By cable and direction: the sending half and the receiving half, as shard and link there.
    halves: Vec<[(u32, u32); 2]>,
}

impl Builder {
    fn new(fabric: Fabric, shard_count: u32, mut routes: Routes) -> anyhow::Result<Builder> {
        let switch_routes = std::mem::take(&mut routes.switches);
        let directory = Arc::new(routes);
        let (classes, class_of) = fabric.kinds()?;
        let shards = (0..shard_count).map(|_| Shard {
            links: Vec::new(),
            ends: Vec::new(),
            classes: classes.iter().map(Class::new).collect(),
            identities: Vec::new(),
            corruption: Vec::new(),
            inlets: Vec::new(),
            outlets: Vec::new(),
            arriving: Vec::new(),
            unfinished: Vec::new(),
            nodes: Vec::new(),
            wake_ps: Vec::new(),
            end_ps: 0,
            failure: None,
            hosts: Vec::new(),
            switches: Vec::new(),
            directory: Arc::clone(&directory),
            outgoing: (0..shard_count).map(|_| Post::default()).collect(),
            arrivals: Arrivals::default(),
            datagrams: Datagrams::new(DATAGRAM_BYTES_MAX),
            paths: 0,
            sends: Vec::new(),
        });
        let mut builder =
            Builder { fabric, switch_routes, shards: shards.collect(), halves: Vec::new(), classes: classes.clone() };
        for (index, classes) in class_of.into_iter().enumerate() {
            let ends = builder.fabric.cables[index].ends;
            for (end, class) in classes.into_iter().enumerate() {
                let place = (2 * index + end) as u32;
                let halves = builder.add_link(place, class, [ends[end], ends[1 - end]]);
                builder.halves.push(halves);
            }
        }
        Ok(builder)
    }

    /// Neighbours one after the other, so that what one sends is still in a cache when the other takes it: a part's hosts, its switches from
    /// the lowest tier up, the next part. The outcome is that of any order.
    fn order_nodes(&mut self) {
        let (fabric, host_count) = (&self.fabric, self.fabric.host_count);
        for shard in &mut self.shards {
            let switches = &shard.switches;
            let hosts = &shard.hosts;
            shard.nodes.sort_by_cached_key(|node| match node.kind {
                NodeKind::Host => (fabric.part_of[usize::from(hosts[node.index as usize].host.index())], 0, node.index),
                NodeKind::Switch => {
                    let switch = &switches[node.index as usize];
                    (fabric.part_of[(host_count + switch.index) as usize], 1 + switch.routes.tier, node.index)
                }
            });
        }
    }

    /// At the receiving half of each link that has any.
    fn add_corruption(&mut self, seed: u64) {
        if self.classes.iter().all(|class| class.corruption == 0.0) {
            return;
        }
        for shard in &mut self.shards {
            let of_link = |(link, identity): (&Link, &Identity)| {
                let chance = self.classes[usize::from(link.class)].corruption;
                let is_here = link.far_word != ELSEWHERE;
                (is_here && chance > 0.0).then(|| Corruption::new(seed, identity.place, chance))
            };
            shard.corruption = shard.links.iter().zip(&shard.identities).map(of_link).collect();
        }
    }

    fn shard_of(&self, node: u32) -> u32 {
        self.fabric.part_of[node as usize] % self.shards.len() as u32
    }

    fn add_link(&mut self, place: u32, class: u8, nodes: [u32; 2]) -> [(u32, u32); 2] {
        let [from, to] = nodes.map(|node| self.shard_of(node));
        let mut add = |shard: u32, is_sending| {
            let shard = &mut self.shards[shard as usize];
            // Where its receiver is here, add_node says so.
            let mut link = Link::default();
            (link.class, link.far_word) = (class, ELSEWHERE);
            shard.links.push(link);
            shard.ends.push(None);
            shard.identities.push(Identity { place, nodes, is_sending });
            shard.links.len() as u32 - 1
        };
        let sending = (from, add(from, true));
        if from == to {
            return [sending; 2];
        }
        let receiving = (to, add(to, false));
        self.shards[from as usize].ends[sending.1 as usize] = Some(FarEnd { shard: to, link: receiving.1 });
        [sending, receiving]
    }

    fn add_node(&mut self, node: u32, ports: &[Port]) -> (usize, Ports) {
        let index = self.shard_of(node) as usize;
        let shard = &mut self.shards[index];
        let word = shard.arriving.len();
        let own = Ports { first: shard.inlets.len() as u32, count: ports.len() as u32, word: word as u32 };
        shard.arriving.resize(word + ports.len().div_ceil(WORD_BITS), 0);
        shard.unfinished.resize(shard.arriving.len(), 0);
        for (place, port) in ports.iter().enumerate() {
            let out = self.halves[2 * port.cable as usize + usize::from(port.end)][0].1;
            let into = self.halves[2 * port.cable as usize + 1 - usize::from(port.end)][1].1;
            shard.outlets.push(out);
            shard.inlets.push(into);
            let into = &mut shard.links[into as usize];
            (into.far_word, into.far_bit) = ((word + place / WORD_BITS) as u32, (place % WORD_BITS) as u8);
        }
        (index, own)
    }
}
