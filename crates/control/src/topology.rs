//! Which switches there are between workers and parameter servers: one TOML file for all of them.
//!
//! ```toml
//! [[switch]]                      # without a parent: the root, which admits jobs and has the servers beside it
//! name = "spine"
//! control = "10.0.0.1:50099"
//! data = "10.0.0.1:48864"         # UDP; thread t listens on port + t
//!
//! [[switch]]
//! name = "rack0"
//! parent = "spine"
//! control = "10.0.1.1:50099"
//! data = "10.0.1.1:48864"
//! workers = ["10.0.1.0/24"]       # who stands beside this switch
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use fanin_protocol::atp::{Tree, TreeError, Way};
use fanin_wire::atp::LEVEL_COUNT_MAX;
use serde::Deserialize;

/// Data-plane threads of a switch whose entry names none.
const THREADS_DEFAULT: u16 = 1;

/// The topology cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("cannot read the topology {path}: {source}")]
    Read {
        /// As given.
        path: String,
        /// From the system.
        source: std::io::Error,
    },
    /// Not TOML, or not the expected keys.
    #[error("the topology is not valid: {0}")]
    Syntax(#[from] toml::de::Error),
    /// What it says is no tree of switches.
    #[error("the topology is not valid: {0}")]
    Value(String),
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologySwitch {
    /// Unique.
    pub name: String,
    /// Place of the switch above; `None` for the root.
    pub parent: Option<usize>,
    /// gRPC.
    pub control: SocketAddr,
    /// UDP, one per data-plane thread.
    pub data: Vec<SocketAddr>,
    /// Networks of the workers beside it.
    workers: Vec<Network>,
}

/// A tree of switches. The first one is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    switches: Vec<TopologySwitch>,
}

/// What one switch has to know of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePart {
    /// Place of the switch in the topology.
    pub switch: usize,
    /// Its level in the job's tree, counted from the workers up.
    pub level: u8,
    /// By child: the contributor that it is; `None` for a switch.
    pub children: Vec<Option<u16>>,
}

/// A job's contributors over a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTree {
    /// All ways.
    pub tree: Tree,
    /// The switches that take part; the root first.
    pub parts: Vec<TreePart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    switch: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    parent: Option<String>,
    control: SocketAddr,
    data: SocketAddr,
    threads: Option<u16>,
    #[serde(default)]
    workers: Vec<String>,
}

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn read(path: &Path) -> Result<Topology, TopologyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TopologyError::Read { path: path.display().to_string(), source })?;
        Topology::parse(&text)
    }

    /// Reads TOML text; see the module's page.
    ///
    /// # Errors
    /// [`TopologyError`], naming the switch.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let mut entries = toml::from_str::<File>(text)?.switch;
        // The root first; the others keep their order.
        entries.sort_by_key(|entry| entry.parent.is_some());
        let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
        let switches = entries.into_iter().map(|entry| switch(entry, &names)).collect::<Result<Vec<_>, _>>()?;
        let topology = Topology { switches };
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<(), TopologyError> {
        let roots = self.switches.iter().filter(|switch| switch.parent.is_none()).count();
        if roots != 1 {
            let why = format!("{roots} switches have no parent; exactly one, the root, must have none");
            return Err(TopologyError::Value(why));
        }
        for (place, switch) in self.switches.iter().enumerate() {
            if self.switches[..place].iter().any(|other| other.name == switch.name) {
                return Err(TopologyError::Value(format!("two switches are named `{}`", switch.name)));
            }
            if self.checked_depth(place).is_none_or(|depth| depth >= LEVEL_COUNT_MAX) {
                let why = format!(
                    "switch `{}` is more than {} switches away from the root, or its parents form a circle",
                    switch.name,
                    LEVEL_COUNT_MAX - 1
                );
                return Err(TopologyError::Value(why));
            }
        }
        for (place, switch) in self.switches.iter().enumerate() {
            let taken = |address: &SocketAddr| self.switches[..place].iter().any(|other| other.data.contains(address));
            if let Some(address) = switch.data.iter().find(|address| taken(address)) {
                let why = format!("switch `{}` has the data address {address}, which is another's", switch.name);
                return Err(TopologyError::Value(why));
            }
        }
        Ok(())
    }

    /// All switches; the root first.
    pub fn switches(&self) -> &[TopologySwitch] {
        &self.switches
    }

    /// A switch's place, by name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.switches.iter().position(|switch| switch.name == name)
    }

    /// The switch beside a worker with this address: that of the narrowest network which holds it.
    pub fn beside(&self, worker: IpAddr) -> Option<usize> {
        let networks = |place: usize| self.switches[place].workers.iter().map(move |network| (network, place));
        let holding = (0..self.switches.len()).flat_map(networks).filter(|(network, _)| network.holds(worker));
        holding.max_by_key(|(network, _)| network.prefix).map(|(_, place)| place)
    }

    /// Switches between a switch and the root.
    pub fn depth(&self, place: usize) -> usize {
        self.checked_depth(place).unwrap_or(0)
    }

    fn checked_depth(&self, place: usize) -> Option<usize> {
        let above = std::iter::successors(Some(place), |&place| self.switches[place].parent);
        // One more than there can be means a circle.
        let depth = above.take(LEVEL_COUNT_MAX + 1).count() - 1;
        (depth < LEVEL_COUNT_MAX).then_some(depth)
    }

    /// The tree of a job whose contributors stand beside these switches.
    ///
    /// # Errors
    /// [`TopologyError::Value`] if a switch would get more children than a packet has bits for.
    pub fn job_tree(&self, beside: &[usize]) -> Result<JobTree, TopologyError> {
        let parts = self.parts(beside);
        let used: Vec<usize> = parts.iter().map(|part| part.switch).collect();
        let level_count = parts.iter().map(|part| part.level).max().unwrap_or(0) + 1;
        let ways = (0u16..).zip(beside).map(|(worker, &own)| self.way(&parts, &used, worker, own)).collect();
        let tree = Tree::new(level_count, ways).map_err(|error| self.explain(error, beside, &parts))?;
        Ok(JobTree { tree, parts })
    }

    /// The switches that a job needs whose contributors stand beside these; the root first.
    pub fn parts(&self, beside: &[usize]) -> Vec<TreePart> {
        let is_used = |place: usize| beside.iter().any(|&own| self.is_above(place, own));
        let used: Vec<usize> = (0..self.switches.len()).filter(|&place| is_used(place)).collect();
        let level_count = used.iter().map(|&place| self.depth(place)).max().unwrap_or(0) + 1;
        let part = |&place: &usize| {
            let below = used.iter().filter(|&&other| self.switches[other].parent == Some(place)).map(|_| None);
            let workers = (0u16..).zip(beside).filter(|(_, own)| **own == place).map(|(worker, _)| Some(worker));
            TreePart {
                switch: place,
                level: (level_count - 1 - self.depth(place)) as u8,
                children: below.chain(workers).collect(),
            }
        };
        used.iter().map(part).collect()
    }

    /// By child of one of a job's switches: the switch below that it is; `None` for a worker.
    pub fn switches_below<'a>(
        &'a self,
        parts: &'a [TreePart],
        part: &'a TreePart,
    ) -> impl Iterator<Item = Option<&'a TreePart>> {
        let mut below = parts.iter().filter(|other| self.switches[other.switch].parent == Some(part.switch));
        part.children.iter().map(move |child| if child.is_none() { below.next() } else { None })
    }

    /// The child of one of a job's switches that a contributor is, or is behind; `None` for who is not below it.
    pub fn child_towards(
        &self,
        parts: &[TreePart],
        part: &TreePart,
        contributor: u16,
        beside: &[usize],
    ) -> Option<u16> {
        let own = *beside.get(usize::from(contributor))?;
        let is_behind = |(child, below): (&Option<u16>, Option<&TreePart>)| match below {
            Some(below) => self.is_above(below.switch, own),
            None => *child == Some(contributor),
        };
        let child = part.children.iter().zip(self.switches_below(parts, part)).position(is_behind)?;
        u16::try_from(child).ok()
    }

    /// Whether `place` is `other` or on its way to the root.
    fn is_above(&self, place: usize, other: usize) -> bool {
        std::iter::successors(Some(other), |&at| self.switches[at].parent).any(|at| at == place)
    }

    fn way(&self, parts: &[TreePart], used: &[usize], worker: u16, own: usize) -> Way {
        let part = |place: usize| parts.iter().find(|part| part.switch == place);
        let mut way = Way { level: 0, children: [0; LEVEL_COUNT_MAX], fan_in: [0; LEVEL_COUNT_MAX] };
        let mut place = Some(own);
        let mut below: Option<usize> = None;
        while let Some((at, found)) = place.and_then(|at| Some((at, part(at)?))) {
            let is_child = |candidate: usize| self.switches[candidate].parent == Some(at);
            let child = match below {
                None => found.children.iter().position(|child| *child == Some(worker)),
                Some(below) => used.iter().filter(|&&other| is_child(other)).position(|&other| other == below),
            };
            if below.is_none() {
                way.level = found.level;
            }
            // More than 255 children are refused as more than 32 are.
            way.children[usize::from(found.level)] = child.unwrap_or(0).min(255) as u8;
            way.fan_in[usize::from(found.level)] = found.children.len().min(255) as u8;
            below = Some(at);
            place = self.switches[at].parent;
        }
        way
    }

    fn explain(&self, error: TreeError, beside: &[usize], parts: &[TreePart]) -> TopologyError {
        let name = |rank: u16, level: u8| {
            let own = beside.get(usize::from(rank)).copied().unwrap_or(0);
            let at = |part: &&TreePart| part.level == level && self.is_above(part.switch, own);
            parts.iter().find(at).map(|part| (self.switches[part.switch].name.as_str(), part.children.len()))
        };
        TopologyError::Value(match error {
            TreeError::FanIn { rank, level } => {
                let (name, children) = name(rank, level).unwrap_or(("?", 0));
                format!("switch `{name}` would have {children} children in this job; a packet has bits for 32")
            }
            other => format!("these workers are no tree: {other:?}"),
        })
    }
}

impl Default for Topology {
    /// One switch.
    fn default() -> Topology {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let root = TopologySwitch {
            name: String::new(),
            parent: None,
            control: nowhere,
            data: Vec::new(),
            workers: Vec::new(),
        };
        Topology { switches: vec![root] }
    }
}

fn switch(entry: Entry, names: &[String]) -> Result<TopologySwitch, TopologyError> {
    let Entry { name, parent, control, data, threads, workers } = entry;
    let parent = match parent {
        None => None,
        Some(parent) => Some(names.iter().position(|other| *other == parent).ok_or_else(|| {
            TopologyError::Value(format!("switch `{name}` has the parent `{parent}`, which has no entry"))
        })?),
    };
    let threads = threads.unwrap_or(THREADS_DEFAULT);
    if data.ip().is_unspecified() || control.ip().is_unspecified() {
        let why =
            format!("switch `{name}`: other switches and workers cannot send to {}; name its own address", data.ip());
        return Err(TopologyError::Value(why));
    }
    if name.is_empty() || threads == 0 || data.port().checked_add(threads - 1).is_none() || data.port() == 0 {
        let why = format!("switch `{name}` needs a name, at least one thread, and a UDP port for each of them");
        return Err(TopologyError::Value(why));
    }
    let workers = workers.iter().map(|text| Network::parse(&name, text)).collect::<Result<_, _>>()?;
    let data = (0..threads).map(|thread| SocketAddr::new(data.ip(), data.port() + thread)).collect();
    Ok(TopologySwitch { name, parent, control, data, workers })
}

impl Network {
    fn parse(switch: &str, text: &str) -> Result<Network, TopologyError> {
        let wrong = || {
            TopologyError::Value(format!(
                "switch `{switch}`: `{text}` is not a network such as 10.0.1.0/24, nor an address"
            ))
        };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if prefix > longest { Err(wrong()) } else { Ok(Network { address, prefix }) }
    }

    fn holds(&self, address: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.prefix));
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACKS: &str = "
        [[switch]]
        name = 'rack0'
        parent = 'spine'
        control = '10.0.1.1:50099'
        data = '10.0.1.1:48864'
        threads = 2
        workers = ['10.0.1.0/24']
        [[switch]]
        name = 'spine'
        control = '10.0.0.1:50099'
        data = '10.0.0.1:48864'
        workers = ['10.0.0.0/16', '10.0.9.9']
        [[switch]]
        name = 'rack1'
        parent = 'spine'
        control = '10.0.2.1:50099'
        data = '10.0.2.1:48864'
        workers = ['10.0.2.0/24', 'fd00::/64']
    ";

    #[test]
    fn workers_stand_beside_the_switch_of_the_narrowest_network() {
        let topology = Topology::parse(RACKS).unwrap();
        let name = |address: &str| {
            let place = topology.beside(address.parse().unwrap())?;
            Some(topology.switches()[place].name.as_str())
        };
        assert_eq!(topology.switches()[0].name, "spine", "the root comes first");
        assert_eq!(name("10.0.1.77"), Some("rack0"));
        assert_eq!(name("::ffff:10.0.1.77"), Some("rack0"));
        assert_eq!(name("10.0.3.1"), Some("spine"));
        assert_eq!(name("fd00::5"), Some("rack1"));
        assert_eq!(name("192.168.0.1"), None);
        let rack0 = &topology.switches()[topology.find("rack0").unwrap()];
        assert_eq!(rack0.data[1], "10.0.1.1:48865".parse().unwrap());
    }

    #[test]
    fn a_jobs_tree_has_the_switches_that_its_workers_need() {
        let topology = Topology::parse(RACKS).unwrap();
        let (spine, rack0, rack1) = (0, topology.find("rack0").unwrap(), topology.find("rack1").unwrap());
        // Fig. 9 of ATP, with ranks in another order.
        let job = topology.job_tree(&[rack1, rack0, spine, rack0, rack1, spine]).unwrap();
        assert_eq!(job.tree.level_count(), 2);
        let way = |rank| {
            let way = job.tree.way(rank);
            (way.level, way.children, way.fan_in)
        };
        assert_eq!(way(1), (0, [0, 0, 0, 0], [2, 4, 0, 0]));
        assert_eq!(way(4), (0, [1, 1, 0, 0], [2, 4, 0, 0]));
        assert_eq!(way(5), (1, [0, 3, 0, 0], [0, 4, 0, 0]));
        let part = |place| job.parts.iter().find(|part| part.switch == place).unwrap();
        assert_eq!((part(spine).level, part(spine).children.clone()), (1, vec![None, None, Some(2), Some(5)]));
        assert_eq!((part(rack0).level, part(rack0).children.clone()), (0, vec![Some(1), Some(3)]));
        let near = topology.job_tree(&[spine; 3]).unwrap();
        assert_eq!((near.tree.level_count(), near.parts.len()), (1, 1));
        let far = topology.job_tree(&[rack1; 2]).unwrap();
        assert_eq!((far.tree.level_count(), far.parts.len()), (2, 2));
        let error = topology.job_tree(&[rack0; 33]).unwrap_err().to_string();
        assert!(error.contains("`rack0` would have 33 children"), "{error}");
    }

    #[test]
    fn what_is_no_tree_of_switches_is_named() {
        let entry = |name: &str, more: &str| {
            format!("[[switch]]\nname = '{name}'\ncontrol = '[::1]:1'\ndata = '[::1]:2'\n{more}\n")
        };
        let root = entry("r", "");
        let deep = (0..4).map(|at| entry(&format!("s{}", at + 1), &format!("parent = 's{at}'")));
        for (text, part) in [
            (String::new(), "0 switches have no parent"),
            (root.clone() + &entry("b", ""), "2 switches have no parent"),
            (root.clone() + &entry("r", "parent = 'r'"), "two switches are named `r`"),
            (root.clone() + &entry("b", "parent = 'x'"), "has the parent `x`, which has no entry"),
            (root.clone() + &entry("b", "parent = 'c'") + &entry("c", "parent = 'b'"), "form a circle"),
            (entry("s0", "") + &deep.collect::<String>(), "`s4` is more than 3 switches away"),
            (entry("r", "workers = ['10.0.0.0/33']"), "is not a network"),
            (entry("r", "threads = 0"), "at least one thread"),
            (root.clone() + &entry("b", "parent = 'r'"), "the data address [::1]:2, which is another's"),
            (root.replace("'[::1]:2'", "'[::]:2'"), "cannot send to ::"),
            (entry("r", "worker = ['10.0.0.0/8']"), "unknown field `worker`"),
        ] {
            let error = Topology::parse(&text).unwrap_err().to_string();
            assert!(error.contains(part), "`{part}` in `{error}`");
        }
    }
}
