//! `[topology]`: shapes by name, or switches, hosts and links one by one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::LinksSection;
use crate::fabric::{self, Cable, Fabric, Links};
use crate::packet::HOST_COUNT_MAX;

const LINK_COUNT_MAX: usize = 4_000_000;

/// `[topology]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "shape", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Three tiers of switches with k ports: k³/4 hosts.
    FatTree {
        /// Ports of a switch.
        k: u32,
    },
    /// Two tiers.
    LeafSpine {
        /// Switches with hosts.
        leaves: u32,
        /// Switches between them.
        spines: u32,
        /// Hosts at each leaf.
        hosts_per_leaf: u32,
    },
    /// One switch.
    Star {
        /// Hosts.
        hosts: u32,
    },
    /// Two switches and one link between them.
    Dumbbell {
        /// Hosts on one side.
        left: u32,
        /// Hosts on the other.
        right: u32,
    },
    /// Any connected network.
    Links {
        /// Switches, by name.
        switches: Names,
        /// Hosts, by name; their numbers follow this order.
        hosts: Names,
        /// What connects them; ports are numbered in this order.
        #[serde(rename = "link")]
        links: Vec<LinkSection>,
    },
}

/// Names: how many (`host0` or `switch0` and on), one name or range, or a list of these. A range is `leaf0..leaf3`, both ends included.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a number, a name or range, or a list of these")]
pub enum Names {
    /// Numbered from 0.
    Count(u32),
    /// A name or a range.
    One(String),
    /// Names and ranges.
    Many(Vec<String>),
}

/// `[[topology.link]]`: one or more links; what is left out is as in `[links]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSection {
    /// Nodes of both sides. Switches are connected each to each; hosts are divided in a row among the switches of the other side.
    pub between: Vec<Names>,
    /// Rate.
    pub gbps: Option<f64>,
    /// Propagation delay.
    pub delay_us: Option<f64>,
    /// What the queue of a switch's port to it holds.
    pub queue_kib: Option<u64>,
    /// From this length on, such a queue marks.
    pub mark_bytes: Option<u64>,
    /// Chance of a packet to be damaged.
    pub corruption: Option<f64>,
}

impl Topology {
    /// The network, with links as in `[links]` where nothing else is said of them.
    pub(super) fn build(&self, section: &LinksSection) -> anyhow::Result<Fabric> {
        let links = section.build().context("[links]")?;
        let fabric = match self {
            Topology::FatTree { k } => fabric::fat_tree(*k, links),
            Topology::LeafSpine { leaves, spines, hosts_per_leaf } => {
                fabric::leaf_spine(*leaves, *spines, *hosts_per_leaf, links)
            }
            Topology::Star { hosts } => fabric::star(*hosts, links),
            Topology::Dumbbell { left, right } => fabric::dumbbell(*left, *right, links),
            Topology::Links { switches, hosts, links } => Nodes::new(hosts, switches)?.connect(links, section),
        };
        let fabric = fabric.context("[topology]")?;
        fabric.kinds().context("[topology]")?;
        Ok(fabric)
    }
}

impl Names {
    /// All of them; `kind` is what numbered ones are called.
    fn expand(&self, kind: &str) -> anyhow::Result<Vec<String>> {
        let parts = match self {
            Names::Count(count) => {
                ensure!((1..=HOST_COUNT_MAX as u32).contains(count), "{count} {kind}s: from 1 to {HOST_COUNT_MAX}");
                return Ok((0..*count).map(|number| format!("{kind}{number}")).collect());
            }
            Names::One(part) => std::slice::from_ref(part),
            Names::Many(parts) => parts.as_slice(),
        };
        let mut names = Vec::new();
        for part in parts {
            names.extend(expand_range(part)?);
            ensure!(names.len() <= HOST_COUNT_MAX, "more than {HOST_COUNT_MAX} names");
        }
        ensure!(!names.is_empty(), "no name in the list: name one at least");
        Ok(names)
    }
}

/// `leaf2..leaf4` as `leaf2`, `leaf3` and `leaf4`; numbers that begin with a 0 keep their width.
fn expand_range(text: &str) -> anyhow::Result<Vec<String>> {
    // They stand in tables and drawings.
    let is_part = |letter: char| letter.is_alphanumeric() || "-_./:".contains(letter);
    let is_plain = |name: &str| !name.is_empty() && name.chars().all(is_part);
    let Some((first, last)) = text.split_once("..") else {
        ensure!(is_plain(text), "`{text}` is no name: letters, digits and - _ . / : only");
        return Ok(vec![text.into()]);
    };
    let split = |name: &str| -> Option<(String, String)> {
        let digits = name.len() - name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        (digits > 0 && (prefix.is_empty() || is_plain(prefix))).then(|| (prefix.into(), number.into()))
    };
    let range = split(first).zip(split(last)).and_then(|((prefix, low), (other, high))| {
        let (from, to) = (low.parse::<u32>().ok()?, high.parse::<u32>().ok()?);
        (prefix == other && from <= to && to - from < HOST_COUNT_MAX as u32).then_some((prefix, low.len(), from..=to))
    });
    let (prefix, width, numbers) = range
        .with_context(|| format!("`{text}` is no range: write both ends in full, the lower first, as leaf0..leaf3"))?;
    let is_padded = first[prefix.len()..].starts_with('0') && width > 1;
    let width = if is_padded { width } else { 0 };
    Ok(numbers.map(|number| format!("{prefix}{number:0width$}")).collect())
}

/// Hosts and switches by name.
struct Nodes {
    host_count: u32,
    names: Vec<String>,
    by_name: BTreeMap<String, u32>,
}

impl Nodes {
    fn new(hosts: &Names, switches: &Names) -> anyhow::Result<Nodes> {
        let hosts = hosts.expand("host").context("[topology] hosts")?;
        let switches = switches.expand("switch").context("[topology] switches")?;
        let host_count = hosts.len() as u32;
        let names: Vec<String> = hosts.into_iter().chain(switches).collect();
        let mut by_name = BTreeMap::new();
        for (node, name) in (0..).zip(&names) {
            ensure!(by_name.insert(name.clone(), node).is_none(), "[topology]: `{name}` is named twice");
        }
        Ok(Nodes { host_count, names, by_name })
    }

    fn connect(self, sections: &[LinkSection], defaults: &LinksSection) -> anyhow::Result<Fabric> {
        let mut cables = Vec::new();
        for (place, section) in sections.iter().enumerate() {
            let (links, context) = (section.links(defaults), || format!("[[topology.link]] {}", place + 1));
            let pairs = self.pairs(section, LINK_COUNT_MAX.saturating_sub(cables.len())).with_context(context)?;
            let links = links.with_context(context)?;
            cables.extend(pairs.into_iter().map(|ends| self.cable(ends, links)));
        }
        self.check(&cables)?;
        let switch_count = self.names.len() as u32 - self.host_count;
        let part_of = fabric::divide(self.host_count, switch_count, &cables);
        let fabric = Fabric { host_count: self.host_count, switch_count, cables, part_of, names: self.names };
        fabric.routes()?;
        Ok(fabric)
    }

    fn cable(&self, ends: [u32; 2], links: Links) -> Cable {
        let is_host = ends.map(|end| end < self.host_count);
        let link = |end: usize| match (is_host[end], is_host[1 - end]) {
            (true, _) => links.host,
            (false, true) => links.access,
            (false, false) => links.core,
        };
        Cable { ends, links: [link(0), link(1)] }
    }

    fn nodes(&self, names: &Names) -> anyhow::Result<Vec<u32>> {
        if let Names::Count(count) = names {
            bail!("between = {count}: name nodes")
        }
        let find = |name: String| {
            self.by_name.get(&name).copied().with_context(|| format!("`{name}` is no switch and no host of [topology]"))
        };
        names.expand("")?.into_iter().map(find).collect()
    }

    /// The ends of each link of a section, which may be so many.
    fn pairs(&self, section: &LinkSection, count_max: usize) -> anyhow::Result<Vec<[u32; 2]>> {
        let [one, other] = section.between.as_slice() else {
            bail!("between has {} entries: one for each side of the links", section.between.len())
        };
        let [ones, others] = [self.nodes(one)?, self.nodes(other)?];
        let host_in = |nodes: &[u32]| nodes.iter().copied().find(|&node| node < self.host_count);
        let switch_in = |nodes: &[u32]| nodes.iter().copied().find(|&node| node >= self.host_count);
        match (host_in(&ones), host_in(&others)) {
            (None, None) => {
                let seen: BTreeSet<u32> = ones.iter().copied().collect();
                if let Some(both) = others.iter().find(|node| seen.contains(node)) {
                    bail!("{} is connected to itself: it is on both sides", self.name(*both));
                }
                let count = ones.len() * others.len();
                ensure!(
                    count <= count_max,
                    "{count} links, beside those before: at most {LINK_COUNT_MAX} in all; each switch of one side has a \
                     link to each of the other"
                );
                Ok(ones.iter().flat_map(|&one| others.iter().map(move |&other| [one, other])).collect())
            }
            (Some(one), Some(other)) => {
                bail!("{} and {} are hosts: connect each to a switch", self.name(one), self.name(other))
            }
            (Some(host), None) | (None, Some(host)) => {
                let is_turned = host_in(&ones).is_none();
                let (hosts, switches) = if is_turned { (others, ones) } else { (ones, others) };
                if let Some(switch) = switch_in(&hosts) {
                    bail!("{} is a host and {} a switch: give each side one kind", self.name(host), self.name(switch));
                }
                let (count, among) = (hosts.len(), switches.len());
                ensure!(count.is_multiple_of(among), "{count} hosts cannot be divided equally among {among} switches");
                let each = hosts.chunks(count / among).zip(switches);
                let pairs = each.flat_map(|(hosts, switch)| hosts.iter().map(move |&host| [host, switch]));
                Ok(pairs.collect())
            }
        }
    }

    /// What the shortest paths would not find, or not name.
    fn check(&self, cables: &[Cable]) -> anyhow::Result<()> {
        let mut seen = BTreeSet::new();
        let mut switch_of: BTreeMap<u32, u32> = BTreeMap::new();
        for [one, other] in cables.iter().map(|cable| cable.ends) {
            let names = || (self.name(one), self.name(other));
            for (host, switch) in [(one, other), (other, one)].into_iter().filter(|(node, _)| *node < self.host_count) {
                if let Some(first) = switch_of.insert(host, switch).filter(|&first| first != switch) {
                    let [host, first, second] = [host, first, switch].map(|node| self.name(node));
                    bail!("{host} has links to {first} and to {second}: a host has exactly one");
                }
            }
            ensure!(
                seen.insert([one.min(other), one.max(other)]),
                "{} and {} are connected twice: give one link the rate of both",
                names().0,
                names().1
            );
        }
        if let Some(host) = (0..self.host_count).find(|host| !switch_of.contains_key(host)) {
            bail!("{} has no link: connect it to a switch", self.name(host));
        }
        Ok(())
    }

    fn name(&self, node: u32) -> &str {
        &self.names[node as usize]
    }
}

impl LinkSection {
    fn links(&self, defaults: &LinksSection) -> anyhow::Result<Links> {
        let own = LinksSection {
            gbps: self.gbps.unwrap_or(defaults.gbps),
            core_gbps: self.gbps.or(defaults.core_gbps),
            delay_us: self.delay_us.unwrap_or(defaults.delay_us),
            queue_kib: self.queue_kib.unwrap_or(defaults.queue_kib),
            mark_bytes: self.mark_bytes.unwrap_or(defaults.mark_bytes),
            corruption: self.corruption.unwrap_or(defaults.corruption),
        };
        own.check("")?;
        own.build()
    }
}
