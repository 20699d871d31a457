//! The set of workers that have contributed to one copy of a slot.

/// Workers that one job can have.
pub const WORKERS_PER_JOB_MAX: u16 = 256;

const WORD_COUNT: usize = WORKERS_PER_JOB_MAX as usize / 64;

/// A set of ranks below [`WORKERS_PER_JOB_MAX`] (SwitchML Alg. 3, `seen`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contributed([u64; WORD_COUNT]);

impl Contributed {
    /// Whether `rank` is in the set.
    pub fn contains(&self, rank: u16) -> bool {
        let (word, bit) = position(rank);
        self.0[word] & bit != 0
    }

    /// Puts `rank` into the set.
    pub fn insert(&mut self, rank: u16) {
        let (word, bit) = position(rank);
        self.0[word] |= bit;
    }

    /// Takes `rank` out of the set.
    pub fn remove(&mut self, rank: u16) {
        let (word, bit) = position(rank);
        self.0[word] &= !bit;
    }

    /// Puts all of another set into this one.
    pub fn insert_all(&mut self, other: &Contributed) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// Whether some rank is in both sets.
    pub fn overlaps(&self, other: &Contributed) -> bool {
        self.0.iter().zip(other.0).any(|(word, other)| word & other != 0)
    }

    /// Whether all of another set is in this one.
    pub fn contains_all(&self, other: &Contributed) -> bool {
        self.0.iter().zip(other.0).all(|(word, other)| word & other == other)
    }

    /// How many ranks are in the set.
    pub fn count(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Ranks below `worker_count` that are not in the set.
    pub fn missing(&self, worker_count: u16) -> impl Iterator<Item = u16> + '_ {
        (0..worker_count).filter(|&rank| !self.contains(rank))
    }
}

fn position(rank: u16) -> (usize, u64) {
    (usize::from(rank) / 64, 1 << (rank % 64))
}
