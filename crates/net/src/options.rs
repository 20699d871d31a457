use std::time::Duration;

use crate::{Blackhole, Loss, NetError};

/// Most segments Linux takes in one super-packet (`UDP_MAX_SEGMENTS`: 128 since 6.9, before that 64;
/// a port that meets the older limit steps down by itself).
pub(crate) const SEGMENTS_MAX: usize = 128;
/// The limit of older kernels.
pub(crate) const SEGMENTS_MAX_OLD: usize = 64;
/// Most payload bytes in one super-packet: below 65,535 with room for any IP options.
const SUPER_PACKET_BYTES_MAX: usize = 65_000;

/// How to open a [`UdpPort`](crate::UdpPort). `Options::default()` is right for traffic at full speed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Kernel receive buffer wanted, bytes. Past `net.core.rmem_max` only a privileged process gets it;
    /// [`UdpPort::buffer_sizes`](crate::UdpPort::buffer_sizes) tells what was granted.
    pub receive_buffer_bytes: usize,
    /// Kernel send buffer wanted, bytes.
    pub send_buffer_bytes: usize,
    /// Let the kernel hand over runs of equal-sized datagrams at once.
    pub gro: bool,
    /// Hand runs of equal-sized datagrams to the kernel at once.
    pub gso: bool,
    /// Set DF and never fragment: a datagram over the path MTU is an error that names the MTU.
    pub mtu_discovery: bool,
    /// Let several ports share one address (`SO_REUSEPORT`); the kernel spreads the flows over them.
    pub reuse_port: bool,
    /// Most segments in one super-packet. More than the kernel's own limit makes it refuse once, after which
    /// the port steps down.
    pub segments_max: usize,
    /// Most payload bytes in one super-packet, at most 65,000. Smaller means finer pacing on slow links and
    /// more processor time per byte.
    pub super_packet_bytes_max: usize,
    /// Longest one `send` waits for room in the kernel before it gives the rest up.
    pub send_wait_max: Duration,
    /// Losses to inject, each direction on its own.
    pub loss: Option<Loss>,
    /// Direction to swallow whole.
    pub blackhole: Blackhole,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 4 << 20,
            gro: true,
            gso: true,
            mtu_discovery: true,
            reuse_port: false,
            segments_max: SEGMENTS_MAX,
            super_packet_bytes_max: SUPER_PACKET_BYTES_MAX,
            send_wait_max: Duration::from_millis(20),
            loss: None,
            blackhole: Blackhole::None,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), NetError> {
        let problem = if !(1..=1024).contains(&self.segments_max) {
            ("segments_max", "accepted: 1 to 1024")
        } else if !(1..=SUPER_PACKET_BYTES_MAX).contains(&self.super_packet_bytes_max) {
            ("super_packet_bytes_max", "accepted: 1 to 65000")
        } else if self.receive_buffer_bytes > i32::MAX as usize {
            ("receive_buffer_bytes", "the kernel takes at most 2 GiB - 1")
        } else if self.send_buffer_bytes > i32::MAX as usize {
            ("send_buffer_bytes", "the kernel takes at most 2 GiB - 1")
        } else {
            return Ok(());
        };
        Err(NetError::Option { option: problem.0, problem: problem.1 })
    }
}
