//! A rank of a job: computes, sums, and starts again. Gradients are summed in buckets, one after the other, each as soon as it is ready.

use std::sync::Arc;

use super::Ring;
use super::aggregation::Endpoint;

/// One iteration of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IterationRecord {
    /// The job's number.
    pub job: u16,
    /// From 0.
    pub iteration: u32,
    /// The rank.
    pub rank: u16,
    /// When it began to compute.
    pub start_ps: u64,
    /// When the first bucket was ready, and summing began.
    pub first_ready_ps: u64,
    /// When it had computed, and the last bucket was ready.
    pub computed_ps: u64,
    /// When it had the sum of all ranks.
    pub end_ps: u64,
}

/// What carries a rank's gradients.
#[derive(Debug)]
pub enum Work {
    /// A network of their own, on which they take this long.
    Ideal {
        /// For each bucket.
        communication_ps: u64,
    },
    /// Flows from rank to rank.
    Ring(Ring),
    /// A protocol that aggregates in the network.
    Endpoint {
        /// The rank's part of it.
        endpoint: Box<dyn Endpoint>,
        /// The first of the job's groups, and one past the last.
        groups: [u32; 2],
        /// It stands in the host's line.
        is_in_line: bool,
    },
}

/// When a rank computes, and how often.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// When it begins.
    pub start_ps: u64,
    /// By bucket, when it is ready after the begin of an iteration; the last when all is computed.
    pub ready_ps: Arc<[u64]>,
    /// Iterations; `u32::MAX` for no end.
    pub count: u32,
    /// Gradients of one.
    pub bytes: u64,
    /// Packets with a payload that a bucket takes where switches sum them.
    pub block_count: u32,
}

/// A rank, or a host that serves a job without being one of its ranks.
#[derive(Debug)]
pub struct Rank {
    job: u16,
    rank: u16,
    rounds: Rounds,
    /// All iterations are done, or it only serves others.
    is_done: bool,
    iteration: u32,
    /// Buckets of this iteration that are ready.
    ready: u32,
    /// Of these, buckets that it has the sum of.
    summed: u32,
    /// On a network of its own, when it will have the sum of the next one.
    ideal_ps: Option<u64>,
    start_ps: u64,
    first_ready_ps: u64,
    computed_ps: u64,
    records: Vec<IterationRecord>,
    samples: Vec<u64>,
    failure: Option<String>,
    /// What carries its gradients.
    pub work: Work,
}

impl Rank {
    /// A rank that will begin.
    pub fn new(job: u16, rank: u16, rounds: Rounds, work: Work) -> Rank {
        Rank {
            job,
            rank,
            is_done: rounds.count == 0,
            iteration: 0,
            ready: 0,
            summed: 0,
            ideal_ps: None,
            start_ps: rounds.start_ps,
            first_ready_ps: 0,
            computed_ps: 0,
            records: Vec::new(),
            samples: Vec::new(),
            failure: None,
            rounds,
            work,
        }
    }

    /// The job's number.
    pub fn job(&self) -> u16 {
        self.job
    }

    /// Buckets that it has the sum of, in all iterations.
    pub fn summed_buckets(&self) -> u64 {
        u64::from(self.iteration) * self.bucket_count() + u64::from(self.summed)
    }

    fn bucket_count(&self) -> u64 {
        self.rounds.ready_ps.len() as u64
    }

    /// When the next bucket will be ready.
    fn ready_ps(&self) -> u64 {
        let after_start = self.rounds.ready_ps.get(self.ready as usize).filter(|_| !self.is_done);
        after_start.map_or(u64::MAX, |ps| self.start_ps + ps)
    }

    /// When it has something to do that no packet brings; `u64::MAX` if nothing.
    pub fn wake_ps(&self) -> u64 {
        self.ready_ps().min(self.ideal_ps.unwrap_or(u64::MAX))
    }

    /// True while it lacks the sum of a bucket that is ready.
    pub fn is_communicating(&self) -> bool {
        self.summed < self.ready
    }

    /// True if another bucket is ready.
    pub fn has_computed(&self, now_ps: u64) -> bool {
        self.ready_ps() <= now_ps
    }

    /// Another bucket is ready, and may be summed.
    pub fn begin(&mut self, now_ps: u64) {
        if self.ready == 0 {
            self.first_ready_ps = now_ps;
        }
        self.ready += 1;
        self.computed_ps = now_ps;
        if self.ideal_ps.is_none() {
            self.go_on_apart(now_ps);
        }
    }

    /// Sums the next bucket on a network of its own, if it has one.
    fn go_on_apart(&mut self, now_ps: u64) {
        self.ideal_ps = match self.work {
            Work::Ideal { communication_ps } if self.is_communicating() => Some(now_ps + communication_ps),
            _ => None,
        };
    }

    /// It has the sum of the next bucket; of the last one: records the iteration, and computes again if it is not done.
    pub fn complete(&mut self, now_ps: u64) {
        if self.failure.is_some() {
            return;
        }
        self.summed += 1;
        if u64::from(self.summed) == self.bucket_count() {
            self.end_iteration(now_ps);
        }
        self.go_on_apart(now_ps);
    }

    fn end_iteration(&mut self, now_ps: u64) {
        self.records.push(IterationRecord {
            job: self.job,
            iteration: self.iteration,
            rank: self.rank,
            start_ps: self.start_ps,
            first_ready_ps: self.first_ready_ps,
            computed_ps: self.computed_ps,
            end_ps: now_ps,
        });
        self.iteration += 1;
        self.start_ps = now_ps;
        (self.ready, self.summed) = (0, 0);
        self.is_done = self.iteration >= self.rounds.count;
    }

    /// Gradients that it has the sum of, bytes. On a network of its own, a bucket's come evenly from its begin to its end.
    pub fn summed_bytes(&self, now_ps: u64) -> u64 {
        let (parts, of_bucket) = match &self.work {
            Work::Ideal { communication_ps } => {
                let whole = communication_ps.max(&1);
                let left = self.ideal_ps.map_or(*whole, |end| end.saturating_sub(now_ps).min(*whole));
                // A bucket has as many parts as picoseconds.
                let parts = u128::from(self.summed_buckets()) * u128::from(*whole) + u128::from(whole - left);
                return self.share_of_gradients(parts, *whole);
            }
            Work::Ring(ring) => (ring.received, ring.step_count),
            Work::Endpoint { endpoint, .. } => (endpoint.counters().sums, self.rounds.block_count.into()),
        };
        self.share_of_gradients(parts.into(), of_bucket)
    }

    /// Bytes of so many parts, of which a bucket has `of_bucket`.
    fn share_of_gradients(&self, parts: u128, of_bucket: u64) -> u64 {
        let each = u128::from(of_bucket) * u128::from(self.bucket_count());
        // Whole iterations apart: picoseconds of hours times bytes are too many for one product.
        let (iterations, rest) = (parts / each.max(1), parts % each.max(1));
        let bytes = u128::from(self.rounds.bytes);
        (iterations * bytes + rest * bytes / each.max(1)) as u64
    }

    /// Notes how many these are at a time that it has come to.
    pub fn sample(&mut self, now_ps: u64) {
        self.samples.push(self.summed_bytes(now_ps));
    }

    /// What was noted.
    pub fn samples(&self) -> &[u64] {
        &self.samples
    }

    /// The rank's number; of a host that only serves, `u16::MAX`.
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// It cannot go on.
    pub fn fail(&mut self, why: &str) {
        self.is_done = true;
        self.failure.get_or_insert_with(|| format!("job {}, rank {}: {why}", self.job, self.rank));
    }

    /// Why it could not go on.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Its iterations.
    pub fn records(&self) -> &[IterationRecord] {
        &self.records
    }
}
