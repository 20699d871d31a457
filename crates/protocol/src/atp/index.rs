//! Which slot a chunk goes to (ATP §3.5, §3.6).

/// How a lane spreads its chunks over the slots that all jobs share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexing {
    /// A hash of job, lane and the chunk's place in the window, so that runs of two jobs do not meet again and again
    /// (ATP §3.5). Places where chunks collide get other slots (ATP §3.6).
    #[default]
    Hash,
    /// The chunk index itself, whatever collides: what ATP §5.4.2 compares with, Fig. 14.
    Linear,
}

impl Indexing {
    /// The slot among `slot_count` at which a place of the window begins, the same at all workers of a job.
    pub(super) fn first(self, job_id: u32, lane: u16, place: u32, slot_count: u16) -> u16 {
        match self {
            Indexing::Hash => reduce(spread(job_id, lane) ^ place, slot_count),
            Indexing::Linear => (place % u32::from(slot_count)) as u16,
        }
    }

    /// The slot of a chunk whose place has come to `kept`.
    pub(super) fn slot_index(self, kept: u16, chunk_index: u32, slot_count: u16) -> u16 {
        match self {
            Indexing::Hash => kept,
            Indexing::Linear => (chunk_index % u32::from(slot_count)) as u16,
        }
    }
}

/// The slot that takes the place of one where a chunk collided (ATP §3.6).
///
/// The paper hashes the old index alone. Then all that ever collide in a slot follow one another, and whatever they follow
/// ends in the few slots that form the circles of such a function; with the chunk in it each tries a slot of its own.
pub fn rehash(job_id: u32, lane: u16, chunk_index: u32, slot_index: u16, slot_count: u16) -> u16 {
    reduce(spread(job_id, lane) ^ mix(chunk_index ^ 0x9e37_79b9) ^ u32::from(slot_index), slot_count)
}

fn spread(job_id: u32, lane: u16) -> u32 {
    mix(job_id ^ u32::from(lane).rotate_left(16))
}

fn reduce(word: u32, slot_count: u16) -> u16 {
    (mix(word) % u32::from(slot_count)) as u16
}

/// Every bit of the result depends on every bit of `word` (the finalizer of MurmurHash3).
fn mix(mut word: u32) -> u32 {
    word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    const WINDOW: u32 = 512;
    const SLOT_COUNT: u16 = 1980;

    #[test]
    fn places_that_collide_come_to_slots_of_their_own() {
        let jobs = [0x101, 0x102, 0x103];
        let first =
            |job: u32| (0..WINDOW).map(move |place| (job, place, Indexing::Hash.first(job, 0, place, SLOT_COUNT)));
        let mut places: Vec<(u32, u32, u16)> = jobs.into_iter().flat_map(first).collect();
        // A window at a time: who comes second to a slot is told another one.
        let collided = |places: &mut [(u32, u32, u16)], round: u32| {
            let mut taken = BTreeSet::new();
            let mut count = 0;
            for (job, place, slot) in places {
                if !taken.insert(*slot) {
                    *slot = rehash(*job, 0, round * WINDOW + *place, *slot, SLOT_COUNT);
                    count += 1;
                }
            }
            count
        };
        let counts: Vec<usize> = (0..40).map(|round| collided(&mut places, round)).collect();
        assert!(counts[0] > 300, "three quarters of the slots, taken at random: {counts:?}");
        assert_eq!(counts.last(), Some(&0), "{counts:?}");
    }

    #[test]
    fn linear_indices_follow_the_chunk() {
        let slot = |chunk| Indexing::Linear.slot_index(7, chunk, 10);
        assert_eq!([slot(3), slot(10), slot(25)], [3, 0, 5]);
        assert_eq!(Indexing::Hash.slot_index(7, 25, 10), 7);
    }
}
