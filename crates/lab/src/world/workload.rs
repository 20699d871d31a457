//! What jobs do: send without end, or train in rounds of computing and communicating.

use fanin_protocol::time::{Span, Time};

/// What every rank of a job does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// Tensors of so many chunks, two of them submitted at any time (ATP §5.1, the microbenchmark).
    Endless {
        /// Chunks of a tensor.
        tensor_chunks: u32,
    },
    /// Computes, then sums the model, again and again.
    Training {
        /// Chunks of the model.
        model_chunks: u32,
        /// Time to compute. Each rank and round takes up to `jitter_ppm` parts per million longer.
        compute: Span,
        /// See `compute`.
        jitter_ppm: u32,
        /// Rounds.
        rounds: u32,
    },
}

/// How far one rank is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Tensors submitted.
    pub submitted: u64,
    /// When each tensor was summed.
    pub completed: Vec<Time>,
    /// Lanes that have not completed the tensor in progress.
    pub lanes_left: u16,
}

impl Workload {
    /// Chunks of one tensor.
    pub fn tensor_chunks(&self) -> u32 {
        match *self {
            Workload::Endless { tensor_chunks } => tensor_chunks,
            Workload::Training { model_chunks, .. } => model_chunks,
        }
    }

    /// Rounds after which a rank is done, if it ever is.
    pub fn rounds(&self) -> Option<u64> {
        match *self {
            Workload::Endless { .. } => None,
            Workload::Training { rounds, .. } => Some(rounds.into()),
        }
    }
}

impl Progress {
    /// Mean time of a round without the first `warm_up`; nothing before there was one.
    pub fn round_ns(&self, warm_up: usize) -> Option<f64> {
        let measured = self.completed.get(warm_up..)?;
        let (first, last) = (measured.first()?, measured.last()?);
        let rounds = measured.len() - 1;
        (rounds > 0).then(|| last.since(*first).as_ns() as f64 / rounds as f64)
    }
}
