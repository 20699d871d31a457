//! What background flows do about congestion and loss.

/// How the window follows the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Congestion {
    /// DCTCP: the window is cut by half of the estimated share of marked segments.
    Dctcp {
        /// Weight of the newest window in the estimate, g.
        gain: f64,
    },
    /// NewReno: losses only.
    NewReno,
}

impl Congestion {
    /// True if its segments may be marked.
    pub fn uses_marks(self) -> bool {
        matches!(self, Congestion::Dctcp { .. })
    }
}

/// Settings that all flows share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transport {
    /// How the window follows the network.
    pub congestion: Congestion,
    /// Payload of a whole segment.
    pub segment_bytes: u16,
    /// Headers of a segment, up to what Ethernet adds on the wire.
    pub header_bytes: u16,
    /// What the shortest packet takes on the wire.
    pub frame_bytes_min: u16,
    /// Segments that a new flow may have out.
    pub initial_window: u32,
    /// Timeout before the first measurement.
    pub timeout_initial_ps: u64,
    /// Least timeout.
    pub timeout_min_ps: u64,
}

impl Transport {
    /// Length on the wire of a segment with so much payload.
    pub fn data_bytes(&self, payload_bytes: u16) -> u16 {
        (self.header_bytes + payload_bytes).max(self.frame_bytes_min)
    }

    /// Length on the wire of an acknowledgement.
    pub fn ack_bytes(&self) -> u16 {
        self.data_bytes(0)
    }
}
