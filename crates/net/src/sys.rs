//! The only unsafe code of this crate: the system calls that neither `std` nor `socket2` wraps.
//!
//! Argument arrays live on the stack of one call and only the part in use is initialised, so a call neither
//! allocates nor leaves a pointer behind.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr, pollfd, sockaddr_in, sockaddr_in6, socklen_t};
use socket2::SockAddr;

use crate::plan::{FRAMES_MAX, Frame, PIECES_MAX, Piece};
use crate::receive::Message;

/// Messages per receive call.
pub(crate) const MESSAGES_MAX: usize = 64;
/// Sockets that one wait can watch.
pub(crate) const WAIT_SOCKETS_MAX: usize = 16;

/// Room for the one control message either direction uses (16-byte header, a u16 out or an i32 in), 8-byte aligned.
const CONTROL_WORDS: usize = 4;
type Control = [u64; CONTROL_WORDS];
// SAFETY: CMSG_SPACE only computes.
const _: () = assert!(unsafe { libc::CMSG_SPACE(4) } as usize <= size_of::<Control>());

fn check(result: c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn empty_header() -> mmsghdr {
    // SAFETY: mmsghdr holds integers and pointers only; all-zero is a valid value (null pointers, zero lengths).
    unsafe { mem::zeroed() }
}

pub(crate) fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let length = size_of::<c_int>() as socklen_t;
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) }).map(drop)
}

pub(crate) fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let pointer = (&raw mut value).cast::<c_void>();
    // SAFETY: the pointers describe `value` and its length, both live and writable during the call.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer, &mut length) })?;
    Ok(value)
}

/// Bytes that this socket has sent and that no device has taken yet, in the kernel's reckoning (`SIOCOUTQ`).
pub(crate) fn send_queue_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the request writes one int, and the pointer is to one that is live and writable during the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Messages the kernel dropped because this socket's receive buffer was full (`SK_MEMINFO_DROPS`).
pub(crate) fn receive_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const DROPS_INDEX: usize = 8;
    let mut values = [0u32; DROPS_INDEX + 1];
    let mut length = size_of_val(&values) as socklen_t;
    let pointer = values.as_mut_ptr().cast::<c_void>();
    // SAFETY: the pointers describe `values` and its length; the kernel writes at most `length` bytes.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, pointer, &mut length) })?;
    Ok(values[DROPS_INDEX])
}

/// Receives up to one message per buffer of `buffer_bytes` bytes without waiting and describes each in `messages`.
pub(crate) fn receive_many(
    socket: BorrowedFd<'_>,
    memory: &mut [u8],
    buffer_bytes: usize,
    messages: &mut [Message],
) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; MESSAGES_MAX];
    let mut vectors = [const { MaybeUninit::<iovec>::uninit() }; MESSAGES_MAX];
    let mut names = [const { MaybeUninit::<sockaddr_in6>::uninit() }; MESSAGES_MAX];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; MESSAGES_MAX];
    let count = messages.len().min(MESSAGES_MAX);
    for (index, buffer) in memory.chunks_exact_mut(buffer_bytes).take(count).enumerate() {
        let header = headers[index].write(empty_header());
        // SAFETY: sockaddr_in6 holds integers only; all-zero is a valid value.
        header.msg_hdr.msg_name = (&raw mut *names[index].write(unsafe { mem::zeroed() })).cast();
        header.msg_hdr.msg_namelen = size_of::<sockaddr_in6>() as socklen_t;
        header.msg_hdr.msg_iov =
            vectors[index].write(iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = (&raw mut *controls[index].write([0; CONTROL_WORDS])).cast();
        header.msg_hdr.msg_controllen = size_of::<Control>();
    }
    let count = count.min(memory.len() / buffer_bytes);
    let first = headers.as_mut_ptr().cast::<mmsghdr>();
    // SAFETY: the first `count` headers are initialised and point at live, disjoint buffers of the stated lengths.
    let received = check(unsafe {
        libc::recvmmsg(socket.as_raw_fd(), first, count as u32, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
    })?;
    for (header, (name, message)) in headers.iter().zip(names.iter().zip(messages)).take(received) {
        // SAFETY: the loop above initialised every header and name the kernel was given, and `received <= count`.
        let (header, name) = unsafe { (header.assume_init_ref(), name.assume_init_ref()) };
        *message = describe(header, name);
    }
    Ok(received)
}

fn describe(header: &mmsghdr, name: &sockaddr_in6) -> Message {
    Message {
        bytes: header.msg_len as usize,
        segment_bytes: received_segment_bytes(&header.msg_hdr),
        truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        source: decode_address(name),
    }
}

/// The segment size from `UDP_GRO`'s control message.
fn received_segment_bytes(header: &msghdr) -> Option<usize> {
    // SAFETY: `header` comes from recvmmsg, so msg_control and msg_controllen describe valid control data.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    loop {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a header inside that data.
        let entry = unsafe { control.as_ref() }?;
        if entry.cmsg_level == libc::SOL_UDP && entry.cmsg_type == libc::UDP_GRO {
            // SAFETY: the kernel puts an int behind a UDP_GRO header; it need not be aligned.
            let value = unsafe { libc::CMSG_DATA(control).cast::<c_int>().read_unaligned() };
            return usize::try_from(value).ok().filter(|bytes| *bytes > 0);
        }
        // SAFETY: as above; `control` is a header of this message.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
}

fn decode_address(name: &sockaddr_in6) -> SocketAddr {
    if c_int::from(name.sin6_family) == libc::AF_INET {
        // SAFETY: sockaddr_in is smaller than sockaddr_in6, as aligned, and the family says that it is one.
        let name = unsafe { &*(&raw const *name).cast::<sockaddr_in>() };
        let ip = Ipv4Addr::from_bits(u32::from_be(name.sin_addr.s_addr));
        return SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into();
    }
    let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
    SocketAddrV6::new(ip, u16::from_be(name.sin6_port), name.sin6_flowinfo, name.sin6_scope_id).into()
}

/// Sends `frames` without waiting, in order, to `destination` or to the connected peer. Returns how many frames the
/// kernel took; an error speaks of the first frame. At most [`FRAMES_MAX`] frames and [`PIECES_MAX`] pieces.
pub(crate) fn send_many(
    socket: BorrowedFd<'_>,
    memory: &[u8],
    frames: &[Frame],
    pieces: &[Piece],
    destination: Option<&SockAddr>,
) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; FRAMES_MAX];
    let mut vectors = [const { MaybeUninit::<iovec>::uninit() }; PIECES_MAX];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; FRAMES_MAX];
    for (vector, piece) in vectors.iter_mut().zip(pieces) {
        // Sliced, not added to a pointer: a wrong plan must stop here, not in the kernel.
        let bytes = &memory[piece.start..piece.start + piece.bytes];
        vector.write(iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }
    let count = frames.len().min(FRAMES_MAX);
    let pieces_initialised = pieces.len().min(PIECES_MAX);
    for (index, frame) in frames.iter().take(count).enumerate() {
        let header = headers[index].write(empty_header());
        if let Some(address) = destination {
            header.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = address.len();
        }
        let own = &mut vectors[..pieces_initialised][frame.piece_first..frame.piece_first + frame.piece_count];
        header.msg_hdr.msg_iov = own.as_mut_ptr().cast();
        header.msg_hdr.msg_iovlen = own.len();
        if let Some(segment_bytes) = frame.segment_bytes() {
            write_segment_bytes(&mut header.msg_hdr, controls[index].write([0; CONTROL_WORDS]), segment_bytes);
        }
    }
    let first = headers.as_mut_ptr().cast::<mmsghdr>();
    // SAFETY: the first `count` headers are initialised; each names initialised vectors over `memory`, an address or
    // null, and its own control data. All outlive the call, and the kernel only reads what they point at.
    check(unsafe { libc::sendmmsg(socket.as_raw_fd(), first, count as u32, libc::MSG_DONTWAIT as _) })
}

fn write_segment_bytes(header: &mut msghdr, control: &mut Control, segment_bytes: u16) {
    header.msg_control = (&raw mut *control).cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
    let (space, length) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_LEN(2)) };
    header.msg_controllen = space as _;
    // SAFETY: `control` is aligned for cmsghdr and has room for a header and a u16 (asserted beside CONTROL_WORDS).
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        (*first).cmsg_level = libc::SOL_UDP;
        (*first).cmsg_type = libc::UDP_SEGMENT;
        (*first).cmsg_len = length as _;
        libc::CMSG_DATA(first).cast::<u16>().write_unaligned(segment_bytes);
    }
}

/// What to wait for on the sockets of [`poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Readable,
    Writable,
}

/// Waits until a socket is as wanted (or has an error to report), the eventfd was written, or `timeout` passed (`None`:
/// no limit). Returns (a socket is ready, the eventfd is ready). A signal ends the wait early with neither.
pub(crate) fn poll(
    sockets: &mut dyn Iterator<Item = BorrowedFd<'_>>,
    interest: Interest,
    event: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<(bool, bool)> {
    let events = if interest == Interest::Readable { libc::POLLIN } else { libc::POLLOUT };
    // poll skips negative descriptors: the unused places.
    let mut entries = [pollfd { fd: -1, events, revents: 0 }; WAIT_SOCKETS_MAX + 1];
    let (event_entry, socket_entries) = entries.split_at_mut(1);
    event_entry[0] = pollfd { fd: event.map_or(-1, |event| event.as_raw_fd()), events: libc::POLLIN, revents: 0 };
    let mut count = 1;
    for (entry, socket) in socket_entries.iter_mut().zip(sockets) {
        entry.fd = socket.as_raw_fd();
        count += 1;
    }
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    // SAFETY: `entries` has at least `count` elements; `limit` is null or points at a live timespec; the mask is null.
    match check(unsafe { libc::ppoll(entries.as_mut_ptr(), count, limit, std::ptr::null()) }) {
        Ok(_) => Ok((entries[1..].iter().any(|entry| entry.revents != 0), entries[0].revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok((false, false)),
        Err(error) => Err(error),
    }
}

/// A non-blocking eventfd.
pub(crate) fn event_fd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel just gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Flags and one address of a network interface; one entry per address, and one without where it has none.
pub(crate) struct InterfaceAddress {
    pub name: String,
    pub is_up: bool,
    pub is_loopback: bool,
    pub ipv4: Option<Ipv4Addr>,
}

/// All interfaces of this thread's network namespace.
pub(crate) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call fills in `first`, a list that it allocates.
    check(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: each entry is null or a live element of the list, which is freed below only.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: every entry has a name that ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        // SAFETY: an address is null or a sockaddr whose family says how long it is.
        let address = unsafe { entry.ifa_addr.as_ref() };
        let ipv4 = address.filter(|address| c_int::from(address.sa_family) == libc::AF_INET).map(|address| {
            // SAFETY: the family says that it is a sockaddr_in; it need not be aligned as one.
            let address = unsafe { (&raw const *address).cast::<sockaddr_in>().read_unaligned() };
            Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr))
        });
        let has = |flag: c_int| entry.ifa_flags & flag as u32 != 0;
        let (is_up, is_loopback) = (has(libc::IFF_UP), has(libc::IFF_LOOPBACK));
        found.push(InterfaceAddress { name: name.to_string_lossy().into_owned(), is_up, is_loopback, ipv4 });
        next = entry.ifa_next;
    }
    // SAFETY: the list is getifaddrs's, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Switches generic receive offload of an interface on or off (`ETHTOOL_SGRO`).
pub(crate) fn set_receive_offload(socket: BorrowedFd<'_>, interface: &str, is_on: bool) -> io::Result<()> {
    const ETHTOOL_SGRO: u32 = 0x2c;
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let mut value = Value { command: ETHTOOL_SGRO, data: is_on.into() };
    // SAFETY: ifreq holds integers and pointers only; all-zero is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the request and the value behind it, both live during the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }).map(drop)
}
