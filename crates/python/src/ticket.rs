//! Handles of collectives in flight.

use std::time::{Duration, Instant};

use fanin_host::Error;
use pyo3::prelude::*;

use crate::errors::exception;
use crate::totals::Account;

/// Signals such as Ctrl-C are looked at this often while Python waits.
pub const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How a collective ended well.
#[pyclass(frozen, module = "fanin._fanin", get_all)]
#[derive(Clone)]
pub struct Outcome {
    /// Blocks whose sum was not a number because some rank's input was not.
    non_finite_blocks: u64,
    /// Elements whose sum left the accumulator's format; their blocks were sent again.
    overflowed_elements: u64,
    /// Blocks in all.
    chunks: u64,
    /// From submission to completion.
    elapsed_s: f64,
    /// Ranks that are not in the sum, in the block with the most contributions and in that with the fewest.
    missing_least: u16,
    missing_most: u16,
    /// Who is missing in some block; `None` in jobs of more than 32 ranks.
    missing_ranks: Option<Vec<u16>>,
}

impl From<fanin_host::Outcome> for Outcome {
    fn from(outcome: fanin_host::Outcome) -> Outcome {
        Outcome {
            non_finite_blocks: outcome.non_finite_blocks,
            overflowed_elements: outcome.overflowed_elements,
            chunks: outcome.chunks,
            elapsed_s: outcome.elapsed.as_secs_f64(),
            missing_least: outcome.missing.least,
            missing_most: outcome.missing.most,
            missing_ranks: outcome.missing.named(),
        }
    }
}

/// A collective in flight.
#[pyclass(frozen, module = "fanin._fanin")]
pub struct Ticket {
    inner: fanin_host::Ticket,
    account: Account,
}

#[pymethods]
impl Ticket {
    /// Whether the collective has ended, well or not.
    fn is_done(&self) -> bool {
        self.ended().is_some()
    }

    /// Blocks without the GIL until the end, or `timeout_s`. Raises why the
    /// collective failed, or `FaninTimeout`, after which it goes on.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Outcome> {
        let deadline = timeout_s.map(|seconds| Instant::now() + seconds_to_duration(seconds));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SIGNAL_CHECK_INTERVAL, |left| left.min(SIGNAL_CHECK_INTERVAL));
            let waited = py.detach(|| self.inner.wait(Some(slice)));
            if let Some(result) = self.ended() {
                return result.map(Outcome::from).map_err(|error| exception(py, &error));
            }
            match waited {
                Err(error) if left == Some(slice) => return Err(exception(py, &error)),
                _ => py.check_signals()?,
            }
        }
    }
}

impl Ticket {
    pub fn new(inner: fanin_host::Ticket, account: Account) -> Ticket {
        Ticket { inner, account }
    }

    /// The result, counted, once there is one.
    fn ended(&self) -> Option<Result<fanin_host::Outcome, Error>> {
        if !self.inner.is_done() {
            return None;
        }
        let result = self.inner.wait(Some(Duration::ZERO));
        self.account.record(&result);
        Some(result)
    }
}

/// Negative and absurd values become the nearest sensible ones.
pub fn seconds_to_duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e9))
}
