//! What a worker is told when its job is set up.

use fanin_wire::generated::{PANAMA_CWND_INITIAL, PANAMA_SSTHRESH_INITIAL};

use crate::time::Span;

/// Parameters of one worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Job number in the low eight bits, generation above.
    pub job_id: u32,
    /// Random per job instance.
    pub job_token: u32,
    /// This worker.
    pub rank: u16,
    /// Aggregation trees, from 1 to `PANAMA_TREE_COUNT_MAX`.
    pub tree_count: u8,
    /// Most packets out in a tree, a power of two, the same at all workers and switches of the job.
    pub window_max: u32,
    /// How windows follow the network.
    pub congestion_control: CongestionControl,
    /// Resend timeout before the first round trip was measured.
    pub resend_timeout_initial: Span,
    /// Lower bound of the resend timeout.
    pub resend_timeout_min: Span,
    /// Upper bound of the resend timeout, back-off included.
    pub resend_timeout_max: Span,
}

/// How the window of each tree follows the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// PANAMA Fig. 5: slow start, one packet more for each window without marks, else a cut by half the average share of
    /// marked Results.
    Dctcp {
        /// Packets out at the start.
        cwnd_initial: u32,
        /// Up to here the window doubles.
        ssthresh_initial: u32,
        /// The newest window's weight in the average is 2 to the power of minus this.
        gain_shift: u32,
        /// Grow in a round with marks too, before it is cut: what DCTCP does (its window grows with every acknowledgement), and Fig. 5
        /// does not.
        grows_when_marked: bool,
        /// A round ends when as many Results have come as packets may have been out at its begin, as DCTCP's does. Without, as Fig. 5 has it: as
        /// many as the window has since its last cut, so that one queue's marks cut several times.
        whole_rounds: bool,
    },
    /// Always `window` packets, or what switches have room for: what PANAMA Fig. 10b compares with.
    Fixed {
        /// Packets out.
        window: u32,
    },
}

impl CongestionControl {
    /// Fig. 5's constants. The paper names no g; DCTCP's is 1/16 (Alizadeh et al., SIGCOMM 2010, §3.3).
    pub const FIG_5: CongestionControl = CongestionControl::Dctcp {
        cwnd_initial: PANAMA_CWND_INITIAL,
        ssthresh_initial: PANAMA_SSTHRESH_INITIAL,
        gain_shift: 4,
        grows_when_marked: false,
        whole_rounds: false,
    };
}
