//! What a switch program decides about one packet.

use crate::DropReason;

/// The decision about one packet. Where bytes leave the switch, the program
/// has written them to the output buffer it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing leaves; the reason is counted.
    Drop(DropReason),
    /// `bytes` of output go back to the sender, which learns why its packet
    /// was not accepted; the reason is counted.
    Refuse {
        /// Why.
        reason: DropReason,
        /// Length of the Refusal.
        bytes: usize,
    },
    /// `bytes` of output go back to the sender.
    Reply {
        /// Length of the Aggregate.
        bytes: usize,
    },
    /// `bytes` of output go back to the sender of a Query: its contribution
    /// has not arrived.
    Missing {
        /// Length of the answer.
        bytes: usize,
    },
    /// `bytes` of output, a Probe's echo, go back to the sender.
    ProbeReply {
        /// Length of the echo.
        bytes: usize,
    },
    /// `bytes` of output go to every worker of the job on the sender's lane.
    Multicast {
        /// Job number, the low eight bits of the job id.
        job_number: u8,
        /// The job's lane.
        lane: u16,
        /// Length of the Aggregate.
        bytes: usize,
        /// When set, only this rank gets the payload; the others get the
        /// header, made by [`crate::switchml::without_payload`].
        destination: Option<u16>,
    },
}
