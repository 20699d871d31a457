//! The switches between the workers of a job and its server (ATP §3.4, App. A.2).

use alloc::vec::Vec;

use fanin_wire::atp::LEVEL_COUNT_MAX;
use fanin_wire::generated::ATP_FAN_IN_MAX;

use crate::switchml::{Contributed, WORKERS_PER_JOB_MAX};

/// One worker's way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// Level of the worker's own switch. 0 but for workers beside a higher switch.
    pub level: u8,
    /// By level from there on: which child of the switch the way comes through.
    pub children: [u8; LEVEL_COUNT_MAX],
    /// By level from there on: children of that switch.
    pub fan_in: [u8; LEVEL_COUNT_MAX],
}

/// All ways of a job. Levels are counted from the workers up; the root is the switch beside the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    level_count: u8,
    /// By rank. What stands for a worker that was lost means nothing.
    ways: Vec<Way>,
    /// Workers that were lost.
    lost: Contributed,
}

/// Why ways are not those of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// No worker, or more than 256.
    WorkerCount,
    /// No level, or more than a header has room for.
    LevelCount,
    /// A worker's own level is not below the number of levels.
    WorkerLevel {
        /// Its rank.
        rank: u16,
    },
    /// A switch has no children, more than 32, or a child's number is not below the number of children.
    FanIn {
        /// A worker behind that switch.
        rank: u16,
        /// Its level.
        level: u8,
    },
    /// Two workers disagree on a switch's children, or have the same number at it.
    Contradiction {
        /// One of them.
        rank: u16,
        /// The other.
        other: u16,
    },
}

impl Way {
    /// The bits that a Fragment of this worker carries: its child at each level.
    pub fn contributed(&self, level_count: u8) -> [u32; LEVEL_COUNT_MAX] {
        let levels = self.level..level_count;
        core::array::from_fn(|level| if levels.contains(&(level as u8)) { 1 << self.children[level] } else { 0 })
    }

    /// Whether both pass the same switch at `level`.
    fn meets(&self, other: &Way, level: u8, level_count: u8) -> bool {
        self.level <= level
            && other.level <= level
            && (level + 1..level_count)
                .all(|above| self.children[usize::from(above)] == other.children[usize::from(above)])
    }
}

impl Tree {
    /// A tree of these ways, by rank.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn new(level_count: u8, ways: Vec<Way>) -> Result<Tree, TreeError> {
        Tree::with_lost(level_count, ways, Contributed::default())
    }

    /// A tree of these ways, by rank, but for workers that were lost, whose ways are not looked at.
    ///
    /// # Errors
    /// The first contradiction; [`TreeError::WorkerCount`] if nobody is left.
    pub fn with_lost(level_count: u8, ways: Vec<Way>, lost: Contributed) -> Result<Tree, TreeError> {
        if ways.is_empty() || ways.len() > usize::from(WORKERS_PER_JOB_MAX) {
            return Err(TreeError::WorkerCount);
        }
        if level_count == 0 || usize::from(level_count) > LEVEL_COUNT_MAX {
            return Err(TreeError::LevelCount);
        }
        let left: Vec<u16> = lost.missing(ways.len() as u16).collect();
        if left.is_empty() {
            return Err(TreeError::WorkerCount);
        }
        for (place, &rank) in left.iter().enumerate() {
            let way = &ways[usize::from(rank)];
            check_way(rank, way, level_count)?;
            for &other in &left[..place] {
                if contradict(way, &ways[usize::from(other)], level_count) {
                    return Err(TreeError::Contradiction { rank, other });
                }
            }
        }
        Ok(Tree { level_count, ways, lost })
    }

    /// The tree without a worker that was lost (ATP App. A.3). Its switch has one child less, and those behind it move up; a
    /// switch without children is itself taken from the one above. Ranks and levels stay as they are.
    ///
    /// # Errors
    /// [`TreeError::WorkerCount`] if nobody is left.
    pub fn without(&self, rank: u16) -> Result<Tree, TreeError> {
        let mut tree = self.clone();
        if tree.lost.contains(rank) {
            return Ok(tree);
        }
        tree.lost.insert(rank);
        if tree.left_count() == 0 {
            return Err(TreeError::WorkerCount);
        }
        let gone = *self.way(rank);
        for level in gone.level..self.level_count {
            let at = usize::from(level);
            for other in self.lost.missing(self.worker_count()) {
                if self.way(other).meets(&gone, level, self.level_count) {
                    let way = &mut tree.ways[usize::from(other)];
                    way.fan_in[at] -= 1;
                    way.children[at] -= u8::from(way.children[at] > gone.children[at]);
                }
            }
            if gone.fan_in[at] > 1 {
                break;
            }
        }
        Ok(tree)
    }

    /// All workers at one switch, which is the server's too.
    ///
    /// # Errors
    /// More than 32 workers.
    pub fn one_switch(worker_count: u16) -> Result<Tree, TreeError> {
        let fan_in = worker_count.min(255) as u8;
        let way = |rank: u16| Way { level: 0, children: first(rank.min(255) as u8), fan_in: first(fan_in) };
        Tree::new(1, (0..worker_count).map(way).collect())
    }

    /// Two levels: `racks[i]` workers at switch i, which is child i of the server's switch; `beside` more workers at the
    /// server's own switch. Ranks count through the racks, then through those beside the server.
    ///
    /// # Errors
    /// More than 32 children of a switch.
    pub fn racks(racks: &[u8], beside: u8) -> Result<Tree, TreeError> {
        let root = (racks.len() + usize::from(beside)).min(255) as u8;
        let mut ways = Vec::new();
        for (rack, &workers) in racks.iter().enumerate() {
            let way = |worker| Way { level: 0, children: pair(worker, rack as u8), fan_in: pair(workers, root) };
            ways.extend((0..workers).map(way));
        }
        let way = |place| Way { level: 1, children: pair(0, place), fan_in: pair(0, root) };
        ways.extend((racks.len() as u8..root).map(way));
        Tree::new(2, ways)
    }

    /// Levels of switches.
    pub fn level_count(&self) -> u8 {
        self.level_count
    }

    /// Workers, those that were lost included: ranks are below it.
    pub fn worker_count(&self) -> u16 {
        self.ways.len() as u16
    }

    /// Workers that were lost.
    pub fn lost(&self) -> &Contributed {
        &self.lost
    }

    /// Workers that are left.
    pub fn left_count(&self) -> u16 {
        self.worker_count() - self.lost.count()
    }

    /// A worker's way; of a lost one, what it was.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn way(&self, rank: u16) -> &Way {
        &self.ways[usize::from(rank)]
    }

    /// The workers whose contributions a Fragment with these words holds.
    ///
    /// At the highest level where several children were brought together, each child is complete: switches above the
    /// first level never pass on a part (ATP §3.7). Below it and above it the words only say which way the packet came.
    pub fn workers_in(&self, contributed: &[u32; LEVEL_COUNT_MAX]) -> Contributed {
        let levels = &contributed[..usize::from(self.level_count)];
        let merged = levels.iter().rposition(|word| word.count_ones() > 1);
        let lowest = merged.or(levels.iter().position(|&word| word != 0)).unwrap_or(levels.len());
        let mut workers = Contributed::default();
        if lowest == levels.len() {
            return workers;
        }
        for rank in self.lost.missing(self.worker_count()) {
            let way = self.way(rank);
            let from = lowest.max(usize::from(way.level));
            if (from..levels.len()).all(|level| levels[level] >> way.children[level] & 1 == 1) {
                workers.insert(rank);
            }
        }
        workers
    }
}

fn first(child: u8) -> [u8; LEVEL_COUNT_MAX] {
    [child, 0, 0, 0]
}

fn pair(below: u8, above: u8) -> [u8; LEVEL_COUNT_MAX] {
    [below, above, 0, 0]
}

fn check_way(rank: u16, way: &Way, level_count: u8) -> Result<(), TreeError> {
    if way.level >= level_count {
        return Err(TreeError::WorkerLevel { rank });
    }
    for level in way.level..level_count {
        let (child, fan_in) = (way.children[usize::from(level)], way.fan_in[usize::from(level)]);
        if fan_in > ATP_FAN_IN_MAX || child >= fan_in {
            return Err(TreeError::FanIn { rank, level });
        }
    }
    Ok(())
}

/// Whether two ways cannot be in one tree.
fn contradict(way: &Way, other: &Way, level_count: u8) -> bool {
    (0..level_count).any(|level| {
        let at = usize::from(level);
        if !way.meets(other, level, level_count) {
            return false;
        }
        // A worker at this level is one child; a switch below it is another.
        let is_worker = way.level == level || other.level == level;
        way.fan_in[at] != other.fan_in[at] || (is_worker && way.children[at] == other.children[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(tree: &Tree, contributed: [u32; 4]) -> Vec<u16> {
        let workers = tree.workers_in(&contributed);
        (0..tree.worker_count()).filter(|&rank| workers.contains(rank)).collect()
    }

    #[test]
    fn words_tell_whose_contributions_a_packet_holds() {
        // Fig. 9: two racks of two, two more beside the server.
        let tree = Tree::racks(&[2, 2], 2).unwrap();
        for rank in 0..6 {
            assert_eq!(set(&tree, tree.way(rank).contributed(2)), [rank]);
        }
        assert_eq!(set(&tree, [0b11, 0b01, 0, 0]), [0, 1]);
        assert_eq!(set(&tree, [0b10, 0b10, 0, 0]), [3]);
        assert_eq!(set(&tree, [0b11, 0b1011, 0, 0]), [0, 1, 2, 3, 5]);
        assert_eq!(set(&tree, [0, 0b1111, 0, 0]), [0, 1, 2, 3, 4, 5]);
        assert!(set(&tree, [0; 4]).is_empty());
        assert!(set(&tree, [0b100, 0b01, 0, 0]).is_empty(), "no such child");
    }

    #[test]
    fn without_a_worker_the_others_move_up() {
        let tree = Tree::racks(&[2, 1, 1], 1).unwrap();
        let left = tree.without(0).unwrap();
        assert_eq!((left.worker_count(), left.left_count()), (5, 4));
        assert_eq!((left.way(1).children, left.way(1).fan_in), (pair(0, 0), pair(1, 4)));
        assert_eq!(set(&left, [0b1, 0b1111, 0, 0]), [1, 2, 3, 4], "a lost worker is in no sum");
        // A rack without workers is no child of the root any more.
        let left = left.without(2).unwrap();
        assert_eq!((left.way(3).children, left.way(3).fan_in), (pair(0, 1), pair(1, 3)));
        assert_eq!((left.way(4).children, left.way(4).fan_in), (pair(0, 2), pair(0, 3)));
        assert_eq!(set(&left, [0, 0b111, 0, 0]), [1, 3, 4]);
        // What is left is a tree by the rules of any other.
        let ways = (0..5).map(|rank| *left.way(rank)).collect();
        assert_eq!(Tree::with_lost(2, ways, *left.lost()).unwrap(), left);
        let last = left.without(1).unwrap().without(3).unwrap();
        assert_eq!(last.way(4).fan_in, pair(0, 1));
        assert_eq!(last.without(4), Err(TreeError::WorkerCount));
    }

    #[test]
    fn three_levels_follow_the_same_rule() {
        let way = |a, b, c| Way { level: 0, children: [a, b, c, 0], fan_in: [2, 2, 2, 0] };
        let ways = (0..8).map(|rank| way(rank & 1, rank >> 1 & 1, rank >> 2)).collect();
        let tree = Tree::new(3, ways).unwrap();
        assert_eq!(set(&tree, [0b01, 0b10, 0b01, 0]), [2]);
        assert_eq!(set(&tree, [0b11, 0b11, 0b10, 0]), [4, 5, 6, 7]);
        assert_eq!(set(&tree, [0b11, 0b01, 0b11, 0]), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let way = |child, fan_in| Way { level: 0, children: first(child), fan_in: first(fan_in) };
        assert_eq!(Tree::new(1, Vec::new()), Err(TreeError::WorkerCount));
        assert_eq!(Tree::new(0, [way(0, 1)].into()), Err(TreeError::LevelCount));
        assert_eq!(Tree::new(5, [way(0, 1)].into()), Err(TreeError::LevelCount));
        assert_eq!(Tree::new(1, [way(1, 1)].into()), Err(TreeError::FanIn { rank: 0, level: 0 }));
        assert_eq!(Tree::one_switch(33), Err(TreeError::FanIn { rank: 0, level: 0 }));
        assert!(Tree::one_switch(32).is_ok());
        let twice = [way(0, 2), way(0, 2)];
        assert_eq!(Tree::new(1, twice.into()), Err(TreeError::Contradiction { rank: 1, other: 0 }));
        let unequal = [way(0, 2), way(1, 3)];
        assert_eq!(Tree::new(1, unequal.into()), Err(TreeError::Contradiction { rank: 1, other: 0 }));
        let above = [Way { level: 2, ..way(0, 1) }];
        assert_eq!(Tree::new(1, above.into()), Err(TreeError::WorkerLevel { rank: 0 }));
    }
}
