use std::io;
use std::time::Duration;

/// Why ranks could not form a group, or why a collective failed. A group that has failed stays failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot work.
    #[error("shared memory: {0}")]
    Config(String),
    /// A call that cannot work; nothing was started.
    #[error("shared memory: {0}")]
    Call(String),
    /// Some ranks of this host did not come.
    #[error(
        "shared memory: local ranks {ranks:?} did not come within {waited:?}; they must run on this host, in the same network \
         namespace, as the same user, with the same job"
    )]
    Missing {
        /// Local ranks.
        ranks: Vec<u16>,
        /// How long this rank waited.
        waited: Duration,
    },
    /// Local rank 0 did not take this rank in.
    #[error("shared memory: local rank 0 refused: {0}")]
    Refused(String),
    /// The system refused something.
    #[error("shared memory: cannot {action}: {problem}")]
    System {
        /// What was tried, in words that follow "cannot".
        action: &'static str,
        /// What the kernel said.
        problem: String,
    },
    /// Ranks called different collectives.
    #[error("shared memory: ranks called different collectives: {0}")]
    Mismatch(String),
    /// The process of a rank ended.
    #[error("shared memory: the process of local rank {rank} has ended in the middle of the job")]
    PeerDied {
        /// Local rank.
        rank: u16,
    },
    /// A rank dropped its group while others still needed it.
    #[error("shared memory: local rank {rank} has left the group")]
    PeerLeft {
        /// Local rank.
        rank: u16,
    },
    /// A rank wrote something that makes no sense to the shared memory.
    #[error("shared memory: local rank {rank} published a call that makes no sense: {problem}")]
    Corrupt {
        /// Local rank.
        rank: u16,
        /// What is wrong.
        problem: String,
    },
    /// A rank gave up.
    #[error("shared memory: local rank {rank} aborted: {reason}")]
    Aborted {
        /// Local rank.
        rank: u16,
        /// Its words.
        reason: String,
    },
}

impl Error {
    /// For `map_err`: what was tried, in words that follow "cannot".
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, problem: source.to_string() }
    }
}
