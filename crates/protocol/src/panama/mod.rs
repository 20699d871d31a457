//! PANAMA: floats summed in aggregation trees, in order, from a buffer per port; workers with a congestion window per tree
//! (Gebara et al., MLSys 2021, §4, §5). The contract is `spec/PANAMA.md`.
//!
//! [`Switch`] is the program of each accelerator, [`Worker`] the endpoint of one worker. Both decide by headers alone, so a
//! simulator can run them without payloads ([`Switch::handle`], [`Worker::poll_header`], [`Worker::handle_header`]); the
//! byte-wise calls are the same with sums. [`placement::Controller`] chooses the trees.

pub mod placement;
mod switch;
mod worker;

pub use switch::{
    Buffers, Context, Floats, HeadersOnly, InstallError, Switch, SwitchConfig, SwitchCounters, TreeConfig, Verdict,
};
pub use worker::{CongestionControl, Event, Outgoing, Taken, Tensors, Transmit, Worker, WorkerConfig, WorkerCounters};

/// The VID nearest to `near` whose low 32 bits are `low`; nothing before the first.
fn unwrap_vid(near: u64, low: u32) -> Option<u64> {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.checked_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vid_is_found_on_both_sides_of_a_wrap() {
        let wrap = 1 << 32;
        assert_eq!(unwrap_vid(wrap - 1, 3), Some(wrap + 3));
        assert_eq!(unwrap_vid(wrap + 3, u32::MAX), Some(wrap - 1));
        assert_eq!(unwrap_vid(2, 5), Some(5));
        assert_eq!(unwrap_vid(2, u32::MAX), None);
    }
}
