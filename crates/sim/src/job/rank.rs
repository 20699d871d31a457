//! A rank of a job: computes, sums, and starts again.

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
    /// When it had computed and began to sum.
    pub communication_ps: u64,
    /// When it had the sum of all ranks.
    pub end_ps: u64,
}

/// What carries a rank's gradients.
#[derive(Debug)]
pub enum Work {
    /// A network of their own, on which they take this long.
    Ideal {
        /// From having computed to having the sum.
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
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// When it begins.
    pub start_ps: u64,
    /// Time to compute gradients.
    pub compute_ps: u64,
    /// Iterations; `u32::MAX` for no end.
    pub count: u32,
    /// Gradients of one.
    pub bytes: u64,
    /// Packets with a payload that they take where switches sum them.
    pub block_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Computing {
        end_ps: u64,
    },
    Communicating {
        end_ps: Option<u64>,
    },
    /// All iterations are done, or it only serves others.
    Done,
}

/// A rank, or a host that serves a job without being one of its ranks.
#[derive(Debug)]
pub struct Rank {
    job: u16,
    rank: u16,
    rounds: Rounds,
    phase: Phase,
    iteration: u32,
    start_ps: u64,
    communication_ps: u64,
    records: Vec<IterationRecord>,
    samples: Vec<u64>,
    failure: Option<String>,
    /// What carries its gradients.
    pub work: Work,
}

impl Rank {
    /// A rank that will begin.
    pub fn new(job: u16, rank: u16, rounds: Rounds, work: Work) -> Rank {
        let phase = if rounds.count == 0 {
            Phase::Done
        } else {
            Phase::Computing { end_ps: rounds.start_ps + rounds.compute_ps }
        };
        Rank {
            job,
            rank,
            rounds,
            phase,
            iteration: 0,
            start_ps: rounds.start_ps,
            communication_ps: 0,
            records: Vec::new(),
            samples: Vec::new(),
            failure: None,
            work,
        }
    }

    /// The job's number.
    pub fn job(&self) -> u16 {
        self.job
    }

    /// Iterations that it has come to the end of.
    pub fn iteration(&self) -> u64 {
        self.iteration.into()
    }

    /// When it has something to do that no packet brings; `u64::MAX` if nothing.
    pub fn wake_ps(&self) -> u64 {
        match self.phase {
            Phase::Computing { end_ps } | Phase::Communicating { end_ps: Some(end_ps) } => end_ps,
            Phase::Communicating { end_ps: None } | Phase::Done => u64::MAX,
        }
    }

    /// True between having computed and having the sum.
    pub fn is_communicating(&self) -> bool {
        matches!(self.phase, Phase::Communicating { .. })
    }

    /// True if it has computed.
    pub fn has_computed(&self, now_ps: u64) -> bool {
        matches!(self.phase, Phase::Computing { end_ps } if end_ps <= now_ps)
    }

    /// It has computed, and begins to sum.
    pub fn begin(&mut self, now_ps: u64) {
        self.communication_ps = now_ps;
        let end_ps = match self.work {
            Work::Ideal { communication_ps } => Some(now_ps + communication_ps),
            Work::Ring(_) | Work::Endpoint { .. } => None,
        };
        self.phase = Phase::Communicating { end_ps };
    }

    /// It has the sum: records the iteration, and computes again if it is not done.
    pub fn complete(&mut self, now_ps: u64) {
        if self.failure.is_some() {
            return;
        }
        self.records.push(IterationRecord {
            job: self.job,
            iteration: self.iteration,
            rank: self.rank,
            start_ps: self.start_ps,
            communication_ps: self.communication_ps,
            end_ps: now_ps,
        });
        self.iteration += 1;
        self.start_ps = now_ps;
        self.phase = if self.iteration >= self.rounds.count {
            Phase::Done
        } else {
            Phase::Computing { end_ps: now_ps + self.rounds.compute_ps }
        };
    }

    /// Gradients that it has the sum of, bytes.
    pub fn summed_bytes(&self) -> u64 {
        let (parts, each) = match &self.work {
            Work::Ideal { .. } => (self.iteration(), 1),
            Work::Ring(ring) => (ring.received, ring.step_count),
            Work::Endpoint { endpoint, .. } => (endpoint.counters().sums, self.rounds.block_count.into()),
        };
        (u128::from(parts) * u128::from(self.rounds.bytes) / u128::from(each.max(1))) as u64
    }

    /// Notes how many these are.
    pub fn sample(&mut self) {
        self.samples.push(self.summed_bytes());
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
        self.phase = Phase::Done;
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
