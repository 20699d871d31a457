//! The controller: which aggregation trees a job gets, what each accelerator is told, and why (PANAMA §3, Fig. 3).

mod fabric;
mod quorum;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use fanin_wire::generated::{PANAMA_PORT_COUNT_MAX, PANAMA_TREE_COUNT_MAX};

use super::TreeConfig;

pub use fabric::{Fabric, FabricError};

use fabric::Branch;

/// What the operator decides for all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most trees of a job.
    pub tree_count_max: u8,
    /// Jobs that reduce fewer bytes at a time are not aggregated: the paper found no gain below 40 MB (§3).
    pub aggregation_bytes_min: u64,
}

impl Policy {
    /// The paper's threshold, and four trees as in its Fig. 3.
    pub const PAPER: Policy = Policy { tree_count_max: 4, aggregation_bytes_min: 40_000_000 };
}

/// A job that asks for trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// Hosts of the workers, by rank; no host twice.
    pub hosts: Vec<u32>,
    /// Bytes of an all-reduce.
    pub bytes: u64,
    /// Most packets that a worker may have out in a tree, a power of two.
    pub window_max: u32,
    /// Share of the workers that are waited for, in percent; 100 if none may be left out (PANAMA §7).
    pub share_percent: u8,
}

/// One tree of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePlan {
    /// The tree's number: workers take the trees in turn.
    pub tree: u8,
    /// Of this tree alone among all jobs' trees: the last bits of its multicast address (PANAMA §3).
    pub group: u32,
    /// The switch whose sums are the Results.
    pub root: u32,
    /// What each switch of the tree is told, from the workers up.
    pub switches: Vec<(u32, TreeConfig)>,
    /// Cables of the tree.
    pub cables: Vec<u32>,
}

/// What a job gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its trees.
    pub trees: Vec<TreePlan>,
    /// Why these, a sentence each.
    pub reasons: Vec<String>,
}

/// Why a job gets no trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It reduces less than the policy's minimum: a ring or a parameter server serves it as well.
    TooSmall {
        /// What it reduces.
        bytes: u64,
        /// The least.
        bytes_min: u64,
    },
    /// A host is not in the fabric, or is there twice.
    BadHost(u32),
    /// No switch has all workers below it.
    NotConnected,
    /// A job of this number has trees already.
    InUse,
    /// `window_max` is no power of two, or `share_percent` not within 1 to 100.
    BadRequest,
    /// A switch of every possible tree has more ports than a ports bitmap.
    TooManyPorts(u32),
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::TooSmall { bytes, bytes_min } => {
                write!(
                    f,
                    "{bytes} bytes are less than {bytes_min}, from which on in-network aggregation pays: use a ring"
                )
            }
            Refusal::BadHost(host) => {
                write!(f, "host {host} is not in the fabric, or is named twice: name each worker's host once")
            }
            Refusal::NotConnected => write!(f, "no switch has all workers below it: place them in one fabric"),
            Refusal::InUse => write!(f, "a job of this number has trees already: remove it first"),
            Refusal::BadRequest => {
                write!(f, "window_max must be a power of two, and share_percent from 1 to 100")
            }
            Refusal::TooManyPorts(switch) => {
                write!(
                    f,
                    "switch {switch} would need ports beyond {PANAMA_PORT_COUNT_MAX}: spread the workers over more racks"
                )
            }
        }
    }
}

/// Trees of all jobs on one fabric.
#[derive(Clone, Debug)]
pub struct Controller {
    fabric: Fabric,
    policy: Policy,
    /// By cable: trees that use it.
    load: Vec<u32>,
    /// By switch: trees that are rooted there.
    roots: Vec<u32>,
    jobs: BTreeMap<u8, Plan>,
    group_next: u32,
}

/// A tree that a job could have.
struct Candidate {
    root: u32,
    branches: Vec<Branch>,
    /// Trees on its busiest cable above the racks, on all of these cables together, and at its root: all before it.
    cost: (u32, u32, u32),
}

impl Controller {
    /// A fabric without jobs.
    pub fn new(fabric: Fabric, policy: Policy) -> Controller {
        Controller {
            load: vec![0; fabric.cable_count()],
            roots: vec![0; fabric.node_count()],
            fabric,
            policy,
            jobs: BTreeMap::new(),
            group_next: 0,
        }
    }

    /// Jobs that are placed from now on get at most so many trees.
    pub fn set_tree_count_max(&mut self, tree_count_max: u8) {
        self.policy.tree_count_max = tree_count_max;
    }

    /// Chooses trees for a job. The roots are the nearest switches with all workers below them: other jobs are disturbed least,
    /// and no packet climbs higher than it must. Of these it takes one after the other, each time the one whose busiest cable
    /// above the racks carries the fewest trees, so that the trees part at the spine as far as the fabric lets them.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn place(&mut self, request: &Request) -> Result<&Plan, Refusal> {
        let (tier, roots) = self.roots(request)?;
        let wanted = usize::from(self.policy.tree_count_max.clamp(1, PANAMA_TREE_COUNT_MAX));
        let mut free = roots.clone();
        let mut plan = Plan { trees: Vec::new(), reasons: Vec::new() };
        while plan.trees.len() < wanted && !free.is_empty() {
            let root = self.add_cheapest(&mut plan, &free, request)?;
            free.retain(|&other| other != root);
        }
        plan.reasons.insert(0, explain_count(plan.trees.len(), wanted, roots.len(), tier));
        Ok(self.jobs.entry(number(request.job_id)).or_insert(plan))
    }

    /// Trees that somebody else has chosen, by their roots, whatever else is there: other jobs see them as load.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::NotConnected`] also for a root that is none of [`Controller::roots`].
    pub fn place_at(&mut self, request: &Request, chosen: &[u32]) -> Result<&Plan, Refusal> {
        let (_, roots) = self.roots(request)?;
        if chosen.iter().any(|root| !roots.contains(root)) {
            return Err(Refusal::NotConnected);
        }
        let mut plan = Plan { trees: Vec::new(), reasons: vec![format!("{} trees, as they were named", chosen.len())] };
        for &root in chosen {
            self.add_cheapest(&mut plan, &[root], request)?;
        }
        Ok(self.jobs.entry(number(request.job_id)).or_insert(plan))
    }

    /// The tier of the roots that a job could have, and these, in ascending order: the nearest switches with all workers below them.
    ///
    /// # Errors
    /// [`Refusal`], for what no tree would help.
    pub fn roots(&self, request: &Request) -> Result<(u32, Vec<u32>), Refusal> {
        self.check(request)?;
        self.fabric.roots(&request.hosts).ok_or(Refusal::NotConnected)
    }

    /// Adds the tree with the best of these roots, one at least. A plan that cannot be takes its trees back.
    fn add_cheapest(&mut self, plan: &mut Plan, roots: &[u32], request: &Request) -> Result<u32, Refusal> {
        let best = self.cheapest(roots, &request.hosts).ok_or(Refusal::NotConnected)?;
        let tree = self.grow(plan.trees.len() as u8, &best, request);
        let tree = tree.inspect_err(|_| plan.trees.iter().for_each(|tree| self.count(tree, -1)))?;
        plan.reasons.push(self.explain_tree(&tree, best.cost));
        self.count(&tree, 1);
        plan.trees.push(tree);
        Ok(best.root)
    }

    /// The fabric that it knows.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// A job's trees.
    pub fn plan(&self, job_id: u32) -> Option<&Plan> {
        self.jobs.get(&number(job_id))
    }

    /// Forgets a job. Returns whether there was one.
    pub fn remove(&mut self, job_id: u32) -> bool {
        let Some(plan) = self.jobs.remove(&number(job_id)) else { return false };
        plan.trees.iter().for_each(|tree| self.count(tree, -1));
        true
    }

    /// Trees on a cable.
    pub fn load(&self, cable: u32) -> u32 {
        self.load.get(cable as usize).copied().unwrap_or(0)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let bytes_min = self.policy.aggregation_bytes_min;
        if request.bytes < bytes_min {
            return Err(Refusal::TooSmall { bytes: request.bytes, bytes_min });
        }
        if self.plan(request.job_id).is_some() {
            return Err(Refusal::InUse);
        }
        if !request.window_max.is_power_of_two() || !(1..=100).contains(&request.share_percent) {
            return Err(Refusal::BadRequest);
        }
        let mut hosts = request.hosts.clone();
        hosts.sort_unstable();
        let twice = hosts.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        match twice.or_else(|| hosts.into_iter().find(|&host| host >= self.fabric.host_count())) {
            Some(host) => Err(Refusal::BadHost(host)),
            None if request.hosts.is_empty() => Err(Refusal::NotConnected),
            None => Ok(()),
        }
    }

    fn cheapest(&self, roots: &[u32], hosts: &[u32]) -> Option<Candidate> {
        let candidates = roots.iter().map(|&root| {
            let branches = self.fabric.branches(root, hosts);
            let above = branches.iter().filter(|branch| !self.fabric.is_host(branch.child));
            let (most, total) = above.fold((0, 0), |(most, total), branch| {
                let load = self.load[branch.cable as usize];
                (most.max(load), total + load)
            });
            Candidate { root, cost: (most, total, self.roots[root as usize]), branches }
        });
        candidates.min_by_key(|candidate| (candidate.cost, candidate.root))
    }

    fn grow(&mut self, tree: u8, candidate: &Candidate, request: &Request) -> Result<TreePlan, Refusal> {
        let mut ports: BTreeMap<u32, u64> = BTreeMap::new();
        let mut parents: BTreeMap<u32, u8> = BTreeMap::new();
        for branch in &candidate.branches {
            let too_many = |port: u16| port >= PANAMA_PORT_COUNT_MAX.into();
            if too_many(branch.parent_port) || !self.fabric.is_host(branch.child) && too_many(branch.child_port) {
                return Err(Refusal::TooManyPorts(branch.parent));
            }
            *ports.entry(branch.parent).or_default() |= 1 << branch.parent_port;
            if !self.fabric.is_host(branch.child) {
                parents.insert(branch.child, branch.child_port as u8);
            }
        }
        let is_host = |node| self.fabric.is_host(node);
        let quorums = quorum::quorums(&candidate.branches, is_host, request.share_percent, tree.into());
        let config = |(&switch, &ports): (&u32, &u64)| {
            let config = TreeConfig {
                job_id: request.job_id,
                job_token: request.job_token,
                tree,
                ports,
                parent: parents.get(&switch).copied(),
                window_max: request.window_max,
                quorum: quorums.get(&switch).copied().unwrap_or(ports.count_ones() as u8),
            };
            (switch, config)
        };
        let mut switches: Vec<(u32, TreeConfig)> = ports.iter().map(config).collect();
        // Parents come before their children.
        let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
        for branch in &candidate.branches {
            let depth = depths.get(&branch.parent).map_or(1, |depth| depth + 1);
            depths.insert(branch.child, depth);
        }
        switches.sort_by_key(|&(switch, _)| (Reverse(depths.get(&switch).copied()), switch));
        self.group_next += 1;
        Ok(TreePlan {
            tree,
            group: self.group_next - 1,
            root: candidate.root,
            switches,
            cables: candidate.branches.iter().map(|branch| branch.cable).collect(),
        })
    }

    fn count(&mut self, tree: &TreePlan, step: i32) {
        for &cable in &tree.cables {
            let load = &mut self.load[cable as usize];
            *load = load.saturating_add_signed(step);
        }
        let root = &mut self.roots[tree.root as usize];
        *root = root.saturating_add_signed(step);
    }

    fn explain_tree(&self, tree: &TreePlan, (most, _, rooted): (u32, u32, u32)) -> String {
        let TreePlan { tree: number, group, root, switches, .. } = tree;
        let tier = self.fabric.tier(*root);
        let others = match (most, rooted) {
            (0, 0) => "no other tree has a cable between these switches".into(),
            _ => format!("its busiest cable between switches carries {most} other trees, its root {rooted}"),
        };
        format!(
            "tree {number}: group {group}, root switch {root} of tier {tier}, {} switches; {others}",
            switches.len()
        )
    }
}

fn number(job_id: u32) -> u8 {
    (job_id & 0xff) as u8
}

fn explain_count(given: usize, wanted: usize, root_count: usize, tier: u32) -> String {
    let place = format!("the nearest switches with all workers below them are {root_count} of tier {tier}");
    if given < wanted {
        format!("{given} of up to {wanted} trees: {place}, and no two trees have the same root")
    } else {
        format!("{given} trees, as many as the policy allows: {place}")
    }
}

#[cfg(test)]
mod tests;
