use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::loss::Gate;
use crate::plan::{Cursor, Limits, Plan};
use crate::send::Outgoing;
use crate::trouble::{SOFT_ERRORS_MAX, Trouble};
use crate::{
    Blackhole, Counters, DATAGRAM_BYTES_MAX, Loss, NetError, Options, PortEvent, Ready, ReceiveBatch, SendBatch, Waker,
    sys, wait_any,
};

/// A UDP socket of one thread. See the [crate] page for its loop.
#[derive(Debug)]
pub struct UdpPort {
    socket: Socket,
    local: SocketAddr,
    peer: Option<SocketAddr>,
    gro: bool,
    limits: Limits,
    send_wait_max: Duration,
    send_gate: Gate,
    receive_gate: Gate,
    plan: Box<Plan>,
    notes: Notes,
}

/// What the port has to tell.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) counters: Counters,
    refused: bool,
    pub(crate) segmentation: Option<PortEvent>,
}

impl Notes {
    pub(crate) fn refusal(&mut self) {
        self.refused = true;
        self.counters.peer_refused += 1;
    }
}

/// What the kernel granted, in its own reckoning, which counts its bookkeeping (about half of it is payload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Receive buffer, bytes.
    pub receive_bytes: usize,
    /// Send buffer, bytes.
    pub send_bytes: usize,
}

/// What became of one `send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams the kernel took.
    pub datagrams: usize,
    /// Datagrams given up because the kernel had no room for `send_wait_max` or the peer refused; to the
    /// protocol they are losses. Injected losses are in neither figure.
    pub not_sent: usize,
}

impl UdpPort {
    /// Opens a non-blocking port on `address` (port 0: any free one). IPv6 addresses also serve IPv4 where the system allows.
    ///
    /// # Errors
    /// [`NetError::Bind`] if the address is taken or not local, [`NetError::Option`] for values out of range,
    /// [`NetError::Setup`] if the kernel refuses a socket or an option.
    pub fn bind(address: SocketAddr, options: &Options) -> Result<Self, NetError> {
        options.check()?;
        let socket = open_socket(address, options).map_err(setup("open a UDP socket"))?;
        Self::bind_socket(socket, address, options)
    }

    /// Opens a port that receives what `sender` sends to the multicast `group`, on the interface that has the address
    /// `interface`. Any number of ports of one host may join the same group; each gets every datagram.
    ///
    /// # Errors
    /// As [`UdpPort::bind`]; [`NetError::Setup`] also if the interface carries no multicast.
    pub fn join_group(
        group: SocketAddrV4,
        interface: Ipv4Addr,
        sender: SocketAddr,
        options: &Options,
    ) -> Result<Self, NetError> {
        options.check()?;
        let socket = open_socket(group.into(), options).map_err(setup("open a UDP socket"))?;
        socket.set_reuse_address(true).map_err(setup("share a multicast port"))?;
        let mut port = Self::bind_socket(socket, group.into(), options)?;
        port.socket.join_multicast_v4(group.ip(), &interface).map_err(setup("join a multicast group"))?;
        port.connect(sender)?;
        Ok(port)
    }

    fn bind_socket(socket: Socket, address: SocketAddr, options: &Options) -> Result<Self, NetError> {
        let (send_gate, receive_gate) = Gate::pair(options.loss)?;
        socket.bind(&address.into()).map_err(|source| NetError::Bind { address, source })?;
        // A kernel without UDP_GRO delivers single datagrams instead: slower, otherwise the same.
        let gro = options.gro && sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let mut port = Self {
            local: local_address(&socket)?,
            peer: None,
            gro,
            limits: Limits {
                datagrams: if options.gso { options.segments_max } else { 1 },
                bytes: options.super_packet_bytes_max,
            },
            send_wait_max: options.send_wait_max,
            send_gate,
            receive_gate,
            plan: Box::new(Plan::new()),
            notes: Notes::default(),
            socket,
        };
        port.set_blackhole(options.blackhole);
        Ok(port)
    }

    /// Ties the port to one peer: only its datagrams are received, its ICMP refusals become events, and sending
    /// to it is cheaper. Other destinations stay possible.
    pub fn connect(&mut self, peer: SocketAddr) -> Result<(), NetError> {
        self.socket.connect(&peer.into()).map_err(|source| NetError::Unreachable { destination: peer, source })?;
        self.peer = Some(peer);
        // A port on the wildcard address gets its real one by connecting.
        self.local = local_address(&self.socket)?;
        Ok(())
    }

    /// The address this port receives on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The connected peer.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Whether the kernel agreed to deliver super-packets.
    pub fn receives_super_packets(&self) -> bool {
        self.gro
    }

    /// Most datagrams per message sent; 1 once segmentation offload is off.
    pub fn segments_max(&self) -> usize {
        self.limits.datagrams
    }

    /// The socket buffers the kernel granted.
    pub fn buffer_sizes(&self) -> Result<BufferSizes, NetError> {
        let receive_bytes = self.socket.recv_buffer_size().map_err(setup("read the receive buffer size"))?;
        let send_bytes = self.socket.send_buffer_size().map_err(setup("read the send buffer size"))?;
        Ok(BufferSizes { receive_bytes, send_bytes })
    }

    /// The kernel's present path MTU towards `peer`, bytes with IP header (65,535 on loopback over IPv4). It starts as the
    /// MTU of the outgoing interface and shrinks when a router reports less.
    pub fn path_mtu(&self, peer: SocketAddr) -> Result<usize, NetError> {
        probe_path_mtu(self.local.ip(), peer).map_err(setup("read the path MTU"))
    }

    /// Longest UDP payload that reaches `peer` unfragmented, bytes.
    pub fn max_payload(&self, peer: SocketAddr) -> Result<usize, NetError> {
        Ok(payload_of_mtu(self.path_mtu(peer)?, peer))
    }

    /// Messages the kernel dropped since the port was bound because its receive buffer was full. One message may be
    /// a whole super-packet of many datagrams.
    pub fn receive_overflows(&self) -> Result<u32, NetError> {
        sys::receive_drops(self.socket.as_fd()).map_err(setup("read the drop count"))
    }

    /// Replaces the loss injection; both random streams start again from the seed.
    pub fn set_loss(&mut self, loss: Option<Loss>) -> Result<(), NetError> {
        let (send, receive) = (self.send_gate.blackhole, self.receive_gate.blackhole);
        (self.send_gate, self.receive_gate) = Gate::pair(loss)?;
        (self.send_gate.blackhole, self.receive_gate.blackhole) = (send, receive);
        Ok(())
    }

    /// Swallows everything in a direction from now on, or stops doing so.
    pub fn set_blackhole(&mut self, blackhole: Blackhole) {
        self.send_gate.blackhole = blackhole.swallows_send();
        self.receive_gate.blackhole = blackhole.swallows_receive();
    }

    /// Bytes that this port has sent and that still wait for a device, whether a queueing discipline holds them back or the
    /// link is slow. The kernel counts its own bookkeeping too, about as much again for full-sized packets.
    pub fn send_queue_bytes(&self) -> u32 {
        // A socket that cannot tell has no queue that anybody could act on.
        sys::send_queue_bytes(self.socket.as_fd()).unwrap_or(0)
    }

    /// What this port did so far.
    pub fn counters(&self) -> Counters {
        self.notes.counters
    }

    /// The next thing worth knowing, if any.
    pub fn poll_event(&mut self) -> Option<PortEvent> {
        if std::mem::take(&mut self.notes.refused) {
            return Some(PortEvent::PeerRefused { peer: self.peer });
        }
        self.notes.segmentation.take()
    }

    /// Fills `batch` with what has arrived, without waiting, and returns the number of datagrams in it.
    ///
    /// 0 means that nothing is there now, or that injected loss took all of it; either way [`UdpPort::wait`] is
    /// the next step. Not everything that arrived need fit: call again until 0.
    pub fn receive(&mut self, batch: &mut ReceiveBatch) -> Result<usize, NetError> {
        batch.clear();
        for _ in 0..SOFT_ERRORS_MAX {
            let (memory, buffer_bytes, messages) = batch.buffers();
            self.notes.counters.receive_calls += 1;
            match sys::receive_many(self.socket.as_fd(), memory, buffer_bytes, messages) {
                Ok(message_count) => {
                    batch.split(message_count, &mut self.receive_gate, &mut self.notes.counters);
                    return Ok(batch.len());
                }
                Err(error) => match Trouble::of(&error) {
                    Trouble::NoRoom => return Ok(0),
                    Trouble::Interrupted => {}
                    Trouble::Refused => self.notes.refusal(),
                    // A report about some earlier datagram; reading it has cleared it.
                    Trouble::Unreachable | Trouble::TooLong => {}
                    Trouble::Offload | Trouble::Other => return Err(NetError::Receive(error)),
                },
            }
        }
        Ok(0)
    }

    /// Sends every datagram of `batch` to `destination`, in order. The batch is unchanged: send it again to the
    /// next destination, then clear it.
    ///
    /// # Errors
    /// [`NetError::DatagramTooLong`] over the path MTU, [`NetError::Unreachable`] without a route,
    /// [`NetError::Send`] for anything unexpected; the rest of the batch is then not sent. A full kernel or a peer that
    /// refuses is no error, see [`Sent::not_sent`].
    pub fn send(&mut self, batch: &SendBatch, destination: SocketAddr) -> Result<Sent, NetError> {
        let mut outgoing = Outgoing::new(self.socket.as_fd(), batch.memory(), self.local.ip(), destination)
            .connected_to(self.peer)
            .waiting_at_most(self.send_wait_max);
        let mut cursor = Cursor::default();
        loop {
            let lost_count = self.plan.fill(batch, &mut cursor, &mut self.send_gate, self.limits);
            self.notes.counters.dropped_injected_send += lost_count;
            if self.plan.frames().is_empty() {
                return Ok(outgoing.sent());
            }
            outgoing.send(&self.plan, &mut self.limits, &mut self.notes)?;
        }
    }

    /// Waits until something can be received, `waker` is called, or `timeout` passes (`None`: no limit, so the waker
    /// must come). Spins for up to `spin` before it sleeps: waking a sleeping thread on another core costs tens of
    /// microseconds, a spinning one sees the datagram at once. `timeout` has nanosecond resolution; the scheduler
    /// adds its slack (50 us unless the thread asked for less).
    pub fn wait(&self, waker: &Waker, timeout: Option<Duration>, spin: Duration) -> Result<Ready, NetError> {
        wait_any(&[self], waker, timeout, spin)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn setup(action: &'static str) -> impl FnOnce(io::Error) -> NetError {
    move |source| NetError::Setup { action, source }
}

fn local_address(socket: &Socket) -> Result<SocketAddr, NetError> {
    let address = socket.local_addr().map_err(setup("read the local address"))?;
    address.as_socket().ok_or_else(|| setup("read the local address")(io::ErrorKind::Unsupported.into()))
}

fn open_socket(address: SocketAddr, options: &Options) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_port(options.reuse_port)?;
    set_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.receive_buffer_bytes)?;
    set_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer_bytes)?;
    if options.mtu_discovery {
        forbid_fragments(&socket, address.is_ipv6())?;
    }
    if let IpAddr::V4(interface) = address.ip()
        && !interface.is_unspecified()
        && !interface.is_multicast()
    {
        // Multicast leaves where unicast does. Without it the routing table decides.
        let _ = socket.set_multicast_if_v4(&interface);
    }
    Ok(socket)
}

/// Asks past the system-wide limit first; without the privilege the kernel quietly grants up to that limit.
fn set_buffer(socket: &Socket, forced: i32, ordinary: i32, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, forced, bytes)
        .or_else(|_| sys::set_option(socket.as_fd(), libc::SOL_SOCKET, ordinary, bytes))
}

fn forbid_fragments(socket: &Socket, ipv6: bool) -> io::Result<()> {
    let socket = socket.as_fd();
    if ipv6 {
        sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
    }
    // An IPv6 socket needs this one too, for IPv4 peers in mapped form.
    sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
}

/// Longest UDP payload that leaves for `peer` unfragmented from an address of this host, bytes; [`UdpPort::max_payload`]
/// without a port.
pub fn max_payload(local: IpAddr, peer: SocketAddr) -> Result<usize, NetError> {
    let path_mtu_bytes = probe_path_mtu(local, peer).map_err(setup("read the path MTU"))?;
    Ok(payload_of_mtu(path_mtu_bytes, peer))
}

/// Reads the MTU from a connected socket of its own: an unconnected one has no path.
pub(crate) fn probe_path_mtu(local: IpAddr, peer: SocketAddr) -> io::Result<usize> {
    // A mapped IPv4 peer is reached by IPv4, with IPv4's path MTU.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let local = local.to_canonical();
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    forbid_fragments(&socket, peer.is_ipv6())?;
    if !local.is_unspecified() && local.is_ipv4() == peer.is_ipv4() {
        // With several interfaces the source address may decide the route. A link-local address cannot be bound
        // without its scope; then the destination alone decides.
        let _ = socket.bind(&SocketAddr::new(local, 0).into());
    }
    socket.connect(&SockAddr::from(peer))?;
    let (level, name) =
        if peer.is_ipv6() { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mtu = sys::option(socket.as_fd(), level, name)?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// UDP payload bytes that a path MTU leaves (20 or 40 bytes of IP header, 8 of UDP).
pub(crate) fn payload_of_mtu(path_mtu_bytes: usize, peer: SocketAddr) -> usize {
    let header_bytes = if peer.ip().to_canonical().is_ipv6() { 48 } else { 28 };
    path_mtu_bytes.saturating_sub(header_bytes).min(DATAGRAM_BYTES_MAX)
}
