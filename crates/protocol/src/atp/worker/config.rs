//! What a lane is told when its job is set up.

use crate::atp::{Indexing, Scale, Way};
use crate::time::Span;

/// Parameters of one lane of one worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// This worker.
    pub rank: u16,
    /// This lane.
    pub lane: u16,
    /// This worker's way to the server.
    pub way: Way,
    /// Levels of switches.
    pub level_count: u8,
    /// Slots that jobs share at each switch.
    pub slot_count: u16,
    /// How chunks are spread over them.
    pub indexing: Indexing,
    /// Elements of a full block.
    pub element_count_max: u16,
    /// Largest number of chunks out at a time, a power of two, the same at all workers and at the server.
    pub window_max: u32,
    /// Whether floats may be scaled otherwise than by 10^8.
    pub scale: Scale,
    /// How the number of chunks out follows the network.
    pub congestion_control: CongestionControl,
    /// Resend timeout before the first round trip was measured.
    pub resend_timeout_initial: Span,
    /// Lower bound of the resend timeout.
    pub resend_timeout_min: Span,
    /// Upper bound of the resend timeout, back-off included.
    pub resend_timeout_max: Span,
}

/// ATP §3.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Additive increase, multiplicative decrease, with slow start from `window_initial` chunks; `step` chunks are one
    /// MTU (the paper: 200 and 5, of 306 bytes each).
    Aimd {
        /// Chunks out at the start.
        window_initial: u32,
        /// By how much the window grows.
        step: u32,
    },
    /// Always `window_max`: what ATP Fig. 15 compares with.
    Off,
    /// Always `window` chunks, at most `window_max`: a job with a fixed share of the slots, what ATP Fig. 13 compares with.
    Fixed {
        /// Chunks out.
        window: u32,
    },
}
