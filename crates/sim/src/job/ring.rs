//! A ring all-reduce over a host's flows (Patarasu and Yuan 2009): in 2(n-1) steps each rank sends one part of n to the next
//! rank; what it sends in a step is what it received in the step before, summed or copied.
//!
//! A rank has one connection to the next one for the whole job, so congestion windows last. It may send as many parts as it
//! has received of this bucket, and one more.

use crate::host::Handle;

/// One rank's place in the ring.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Host of the next rank.
    pub next: u16,
    /// Picks the path to it.
    pub hash: u16,
    /// Payload of a part.
    pub part_bytes: u64,
    /// Its packets may be marked, as other flows'; without, only losses slow it down.
    pub uses_marks: bool,
    /// Parts that each rank sends and receives of a bucket.
    pub step_count: u64,
    /// The connection to the next rank, once there is one.
    pub connection: Option<Handle>,
    /// Parts that have arrived whole since the start of the job.
    pub received: u64,
}

impl Ring {
    /// One of `worker_count` ranks that sum buckets of so many bytes.
    pub fn new(next: u16, hash: u16, bytes: u64, worker_count: u32) -> Ring {
        let workers = u64::from(worker_count);
        let part_bytes = bytes.div_ceil(workers).max(1);
        Ring { next, hash, part_bytes, uses_marks: true, step_count: 2 * (workers - 1), connection: None, received: 0 }
    }

    /// Parts that may have been given to the connection since the start of the job, while the rank takes part in the sum of `bucket`.
    pub fn sendable(&self, bucket: u64) -> u64 {
        let before = bucket * self.step_count;
        before + (self.received.saturating_sub(before) + 1).min(self.step_count)
    }

    /// True once the rank has all of a bucket.
    pub fn is_complete(&self, bucket: u64) -> bool {
        self.received >= (bucket + 1) * self.step_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_sends_what_it_has() {
        let mut ring = Ring::new(1, 0, 100, 4);
        assert_eq!((ring.part_bytes, ring.step_count), (25, 6));
        assert_eq!(ring.sendable(0), 1);
        ring.received = 3;
        assert_eq!(ring.sendable(0), 4);
        ring.received = 6;
        assert_eq!((ring.sendable(0), ring.is_complete(0)), (6, true));
        // The rank before is ahead: its first part of the next bucket has come already.
        ring.received = 7;
        assert_eq!((ring.sendable(0), ring.sendable(1), ring.is_complete(1)), (6, 8, false));
    }
}
