use std::ops::AddAssign;

/// What one [`UdpPort`](crate::UdpPort) did since it was bound. All figures only grow.
///
/// `datagrams_*` and `bytes_*` count UDP payloads that really crossed the socket; injected losses are in
/// `dropped_injected_*` alone, so sent = delivered + dropped can be checked from two ports' counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams the kernel accepted.
    pub datagrams_sent: u64,
    /// UDP payload bytes the kernel accepted.
    pub bytes_sent: u64,
    /// Datagrams handed to the caller.
    pub datagrams_received: u64,
    /// UDP payload bytes handed to the caller.
    pub bytes_received: u64,
    /// `sendmmsg` calls.
    pub send_calls: u64,
    /// `recvmmsg` calls, those that found nothing included.
    pub receive_calls: u64,
    /// Messages that carried two or more datagrams into the kernel.
    pub super_packets_sent: u64,
    /// Messages that carried two or more datagrams out of the kernel.
    pub super_packets_received: u64,
    /// Datagrams that injected loss or a blackhole removed before sending.
    pub dropped_injected_send: u64,
    /// Datagrams that injected loss or a blackhole removed after receiving.
    pub dropped_injected_receive: u64,
    /// Received messages that did not fit their buffer and were dropped whole.
    pub dropped_truncated: u64,
    /// Times the kernel had no room and the port waited for it.
    pub send_would_block: u64,
    /// Datagrams given up: no room in time, or the peer refused. The protocol sees them as lost.
    pub send_gave_up: u64,
    /// Times the kernel refused a super-packet and the port changed how it sends.
    pub gso_fallbacks: u64,
    /// ICMP refusals ("port unreachable") seen on this port.
    pub peer_refused: u64,
}

/// The counters of two ports that one thread owns.
impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.datagrams_sent += other.datagrams_sent;
        self.bytes_sent += other.bytes_sent;
        self.datagrams_received += other.datagrams_received;
        self.bytes_received += other.bytes_received;
        self.send_calls += other.send_calls;
        self.receive_calls += other.receive_calls;
        self.super_packets_sent += other.super_packets_sent;
        self.super_packets_received += other.super_packets_received;
        self.dropped_injected_send += other.dropped_injected_send;
        self.dropped_injected_receive += other.dropped_injected_receive;
        self.dropped_truncated += other.dropped_truncated;
        self.send_would_block += other.send_would_block;
        self.send_gave_up += other.send_gave_up;
        self.gso_fallbacks += other.gso_fallbacks;
        self.peer_refused += other.peer_refused;
    }
}
