//! Which slot a chunk goes to (ATP §3.5, §3.6).

/// How a lane spreads its chunks over the slots that all jobs share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexing {
    /// A hash of job, lane and chunk, so that runs of two jobs do not meet again and again (ATP §3.5).
    #[default]
    Hash,
    /// The chunk index itself: what ATP §5.4.2 compares with, Fig. 14.
    Linear,
}

impl Indexing {
    /// The chunk's slot among `slot_count`, the same at all workers of a job.
    pub(super) fn slot_index(self, job_id: u32, lane: u16, chunk_index: u32, slot_count: u16) -> u16 {
        let spread = match self {
            Indexing::Hash => mix(mix(job_id ^ u32::from(lane).rotate_left(16)) ^ chunk_index),
            Indexing::Linear => chunk_index,
        };
        (spread % u32::from(slot_count)) as u16
    }
}

/// The slot that takes the place of one where chunks collided (ATP §3.6).
pub fn rehash(slot_index: u16, slot_count: u16) -> u16 {
    (mix(u32::from(slot_index) ^ 0x9e37_79b9) % u32::from(slot_count)) as u16
}

/// Every bit of the result depends on every bit of `word` (the finalizer of MurmurHash3).
fn mix(mut word: u32) -> u32 {
    word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}
