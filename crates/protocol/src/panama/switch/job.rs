//! What a switch keeps of a job: its trees here, their buffers, and shares of the memory.

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use fanin_wire::generated::{PANAMA_PORT_COUNT_MAX, PANAMA_TREE_COUNT_MAX};
use fanin_wire::panama::Header;

use super::accumulate::Buffers;
use super::place::{Place, State};
use super::{Switch, is_summed};
use crate::panama::unwrap_vid;

/// One aggregation tree of a job, as the controller sets it up at one switch (PANAMA §3, §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// Which of the job's trees.
    pub tree: u8,
    /// Ports towards workers, a bit for each (the paper's ports bitmap).
    pub ports: u64,
    /// The port towards the root; none at the root.
    pub parent: Option<u8>,
    /// Most packets that a worker may have out in the tree, a power of two, the same everywhere in the job.
    pub window_max: u32,
    /// Ports whose Contributions make a sum (PANAMA §7, "partially synchronized"); the number of ports if all are waited for.
    pub quorum: u8,
}

/// Why a tree was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// Another job has the same number, or the job has this tree already.
    InUse,
    /// There are no ports, the parent is one of them, or one is not below `PANAMA_PORT_COUNT_MAX`.
    BadPorts,
    /// The quorum is 0 or more than the ports, the window no power of two, or the tree's number too large.
    BadTree,
    /// The memory does not hold a packet for each port of every tree.
    NoMemory,
    /// Other trees have more packets in memory than will be their share. From now on they are told of that share: try again in
    /// a moment.
    Busy,
}

#[derive(Clone)]
pub(super) struct Job<B> {
    pub job_id: u32,
    pub job_token: u32,
    /// By number.
    pub trees: Vec<Option<Tree<B>>>,
}

#[derive(Clone)]
pub(super) struct Tree<B> {
    pub config: TreeConfig,
    /// The VID that is summed next.
    pub expected: u64,
    /// VIDs before this one are forgotten: every child has their Results.
    pub floor: u64,
    /// By child: the first VID that it may still ask for.
    acknowledged: Vec<u64>,
    /// By VID modulo twice the largest window: a child may be a window ahead of what is expected, while another still lacks
    /// a window of Results.
    places: Vec<Place>,
    /// Packets that each port's buffer holds at present, and sums that are kept: the share of the memory, a window at most.
    pub depth: u64,
    pub buffers: B,
    /// The FIN's VID, once the tree has ended.
    pub finished: Option<u64>,
}

impl<B: Buffers> Switch<B> {
    /// Sets up one tree of a job, and divides the memory anew.
    ///
    /// # Errors
    /// [`InstallError`]; nothing has changed then.
    pub fn install(&mut self, tree: TreeConfig) -> Result<(), InstallError> {
        check(&tree)?;
        let number = (tree.job_id & 0xff) as usize;
        if self.jobs.len() <= number {
            self.jobs.resize_with(number + 1, || None);
        }
        let is_same = |job: &Job<B>| job.job_id == tree.job_id && job.job_token == tree.job_token;
        let has_tree = |job: &Job<B>| job.trees.get(usize::from(tree.tree)).is_some_and(Option::is_some);
        if self.jobs[number].as_ref().is_some_and(|job| !is_same(job) || has_tree(job)) {
            return Err(InstallError::InUse);
        }
        let part_count = self.part_count() + tree.ports.count_ones() + 1;
        if part_count > self.config.memory_packets {
            return Err(InstallError::NoMemory);
        }
        if !self.divide_memory(part_count) {
            return Err(InstallError::Busy);
        }
        let TreeConfig { job_id, job_token, .. } = tree;
        let job = self.jobs[number].get_or_insert_with(|| Job { job_id, job_token, trees: Vec::new() });
        let index = usize::from(tree.tree);
        if job.trees.len() <= index {
            job.trees.resize_with(index + 1, || None);
        }
        job.trees[index] = Some(Tree::new(tree, self.config.element_count_max, self.share));
        Ok(())
    }

    /// Whether a tree of a job is set up here, and has not ended.
    pub fn has_tree(&self, job_id: u32, tree: u8) -> bool {
        let job = self.jobs.get((job_id & 0xff) as usize).and_then(Option::as_ref);
        let trees = job.filter(|job| job.job_id == job_id).map(|job| &job.trees);
        trees.and_then(|trees| trees.get(usize::from(tree))?.as_ref()).is_some_and(|tree| tree.finished.is_none())
    }

    /// Ends a job and frees its buffers. Returns whether there was one.
    pub fn remove(&mut self, job_id: u32) -> bool {
        let number = (job_id & 0xff) as usize;
        let Some(job) = self.jobs.get_mut(number).and_then(|job| job.take_if(|job| job.job_id == job_id)) else {
            return false;
        };
        self.packet_count -= job.trees.into_iter().flatten().map(|mut tree| tree.clear()).sum::<u32>();
        self.last = None;
        self.divide_memory(self.part_count());
        true
    }

    /// PANAMA §4.2 divides packet memory by jobs. A job fills as many buffers as it has trees here, and each of those as many as
    /// it has ports, and one of sums that are kept; so these are the parts that the memory is divided into. Returns whether all
    /// trees fit into theirs already.
    fn divide_memory(&mut self, part_count: u32) -> bool {
        let share = (self.config.memory_packets / part_count.max(1)).clamp(1, u16::MAX.into());
        self.share = share as u16;
        let trees = self.jobs.iter_mut().flatten().flat_map(|job| job.trees.iter_mut().flatten());
        trees.fold(true, |all_fit, tree| {
            tree.depth = tree.window_max().min(share.into());
            all_fit && tree.fits()
        })
    }

    fn part_count(&self) -> u32 {
        let trees = self.jobs.iter().flatten().flat_map(|job| job.trees.iter().flatten());
        trees.map(|tree| tree.config.ports.count_ones() + 1).sum()
    }
}

fn check(tree: &TreeConfig) -> Result<(), InstallError> {
    let parent = tree.parent.unwrap_or(0);
    let is_apart = tree.parent.is_none_or(|parent| parent < 64 && tree.ports >> parent & 1 == 0);
    if tree.ports == 0 || !is_apart || parent >= PANAMA_PORT_COUNT_MAX {
        return Err(InstallError::BadPorts);
    }
    let is_quorum = (1..=tree.ports.count_ones()).contains(&u32::from(tree.quorum));
    if !is_quorum || !tree.window_max.is_power_of_two() || tree.tree >= PANAMA_TREE_COUNT_MAX {
        return Err(InstallError::BadTree);
    }
    Ok(())
}

impl<B: Buffers> Tree<B> {
    fn new(config: TreeConfig, element_count_max: u16, share: u16) -> Tree<B> {
        let place_count = 2 * config.window_max as usize;
        let child_count = config.ports.count_ones() as usize;
        Tree {
            expected: 0,
            floor: 0,
            acknowledged: vec![0; child_count],
            places: vec![Place::EMPTY; place_count],
            depth: u64::from(config.window_max).min(share.into()),
            buffers: B::new(place_count, child_count, element_count_max),
            finished: None,
            config,
        }
    }
}

impl<B> Tree<B> {
    pub fn window_max(&self) -> u64 {
        self.config.window_max.into()
    }

    /// Whether nothing lies beyond the buffers' depth.
    fn fits(&self) -> bool {
        let mut beyond = self.expected + self.depth..self.expected + self.window_max();
        self.expected - self.floor <= self.depth && beyond.all(|vid| self.packets_at(vid) == 0)
    }

    /// A port's number among the tree's.
    pub fn child(&self, port: u8) -> Option<usize> {
        let bit = 1u64.checked_shl(port.into())?;
        (self.config.ports & bit != 0).then(|| (self.config.ports & (bit - 1)).count_ones() as usize)
    }

    pub fn index(&self, vid: u64) -> usize {
        vid as usize & (self.places.len() - 1)
    }

    pub fn place(&self, vid: u64) -> &Place {
        &self.places[self.index(vid)]
    }

    pub fn place_mut(&mut self, vid: u64) -> &mut Place {
        let index = self.index(vid);
        &mut self.places[index]
    }

    /// What a child has shown to have is not kept for it; returns how many packets were forgotten.
    pub fn acknowledge(&mut self, child: usize, header: &Header) -> u32 {
        let awaited = unwrap_vid(self.expected, header.awaited_vid).unwrap_or(0);
        let had = self.acknowledged[child];
        if awaited <= had {
            return 0;
        }
        self.acknowledged[child] = awaited;
        if had > self.floor {
            return 0;
        }
        let floor = self.acknowledged_by_all();
        let mut count = 0;
        while self.floor < floor {
            count += self.packets_at(self.floor);
            *self.place_mut(self.floor) = Place::EMPTY;
            self.floor += 1;
        }
        count
    }

    #[cfg(not(feature = "canary"))]
    fn acknowledged_by_all(&self) -> u64 {
        self.acknowledged.iter().copied().min().unwrap_or(0)
    }

    /// The deliberate bug: what one child has is forgotten for all.
    #[cfg(feature = "canary")]
    fn acknowledged_by_all(&self) -> u64 {
        self.acknowledged.iter().copied().max().unwrap_or(0)
    }

    /// The expected VID was summed; returns how many packets fewer there are.
    pub fn advance(&mut self) -> u32 {
        let summed = self.place(self.expected).ports.count_ones();
        let state = if self.config.parent.is_some() { State::Sent } else { State::Result };
        self.place_mut(self.expected).state = state;
        self.expected += 1;
        self.skip_results();
        summed - 1
    }

    /// Results that came before this switch had a sum: the others did not wait for anybody below it.
    pub fn skip_results(&mut self) {
        while self.expected < self.floor + self.window_max() && self.place(self.expected).state == State::Result {
            self.expected += 1;
        }
    }

    /// Packets counted for a VID.
    pub fn packets_at(&self, vid: u64) -> u32 {
        let place = self.place(vid);
        if is_summed(place.state) { 1 } else { place.ports.count_ones() }
    }

    /// Ports whose packets wait for an earlier VID.
    pub fn ports_ahead(&self) -> u64 {
        let ahead = self.expected + 1..self.expected + self.window_max();
        let waiting = ahead.map(|vid| self.place(vid)).filter(|place| !is_summed(place.state));
        waiting.fold(0, |ports, place| ports | place.ports)
    }

    /// Ports without whose next packet the tree does not go on: it brings the expected VID, or shows that the oldest sum
    /// need not be kept any more, here or further up.
    pub fn ports_awaited(&self) -> u64 {
        let missing = self.config.ports & !self.place(self.expected).ports;
        if self.expected == self.floor {
            return missing;
        }
        let ports = (0..u64::BITS as u8)
            .filter(|&port| self.child(port).is_some_and(|child| self.acknowledged[child] <= self.floor));
        ports.fold(missing, |ports, port| ports | 1 << port)
    }

    /// Forgets all packets; returns how many were counted.
    pub fn clear(&mut self) -> u32 {
        let count = (self.floor..self.expected + self.window_max()).map(|vid| self.packets_at(vid)).sum();
        self.places.fill(Place::EMPTY);
        count
    }

    pub fn hash_state(&self, hasher: &mut impl Hasher)
    where
        B: Buffers,
    {
        (self.expected, self.floor, &self.acknowledged, self.finished).hash(hasher);
        for vid in self.floor..self.expected + self.window_max() {
            let place = self.place(vid);
            place.hash(hasher);
            if place.ports != 0 || is_summed(place.state) {
                self.buffers.hash_place(self.index(vid), hasher);
            }
        }
    }
}
