//! System calls that `std` does not wrap: shared memory, futexes, descriptors sent over sockets, processes as descriptors.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, c_long, c_void};

/// Most descriptors in one message; Linux takes 253.
pub(crate) const DESCRIPTORS_MAX: usize = 128;
/// 4-byte descriptors behind a 16-byte header, in 8-byte words.
const CONTROL_WORDS: usize = 2 + DESCRIPTORS_MAX / 2;
// SAFETY: CMSG_SPACE only computes.
const _: () = assert!(unsafe { libc::CMSG_SPACE(4 * DESCRIPTORS_MAX as u32) } as usize <= 8 * CONTROL_WORDS);

fn check(result: c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn take(descriptor: usize) -> OwnedFd {
    // SAFETY: the callers pass what the kernel has just given to this process alone.
    unsafe { OwnedFd::from_raw_fd(descriptor as c_int) }
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: no pointers.
    check(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The user this process runs as.
pub(crate) fn user() -> u32 {
    // SAFETY: no pointers, cannot fail.
    unsafe { libc::geteuid() }
}

/// An anonymous file in memory that can grow and never shrinks, so that no mapping of it can fault.
pub(crate) fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let file = take(check(unsafe { libc::memfd_create(c"fanin-shm".as_ptr(), flags) }.into())?);
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }.into())?;
    Ok(file)
}

/// Reserves zeroed memory for `bytes` bytes of the file from `offset` on, now rather than at the first touch, where a lack
/// of memory would be a signal.
pub(crate) fn reserve(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, bytes as i64) }.into()).map(drop)
}

/// Gives the memory of these bytes of the file back.
pub(crate) fn release(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) }.into()).map(drop)
}

/// Length of the file, bytes.
pub(crate) fn file_bytes(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: `stat` holds integers only; all-zero is a valid value.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: `stat` is live and writable.
    check(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) }.into())?;
    Ok(stat.st_size as u64)
}

/// A part of a memory file in this process's address space.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; who may touch it when is up to its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes from `offset`, a multiple of the page size, and makes them present.
    pub(crate) fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset as libc::off_t) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave address zero"))?;
        Ok(Mapping { base, bytes })
    }

    /// First byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces the memory by a private copy of the same content at the same address, so that no other process sees or
    /// changes it any more. Threads of this process may use it meanwhile; none of their writes is lost.
    pub(crate) fn detach(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let base = self.base().cast::<c_void>();
        // SAFETY: the range is this mapping's own; the kernel exchanges it at once, with the same content.
        let exchanged =
            unsafe { libc::mmap(base, self.bytes, protection, flags, file.as_raw_fd(), offset as libc::off_t) };
        if exchanged == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for at in (0..self.bytes).step_by(page_bytes()) {
            // A page is shared until it is first written. Adding nothing, atomically, writes it and changes no byte.
            // SAFETY: within the mapping; other threads of this process change bytes only as the caller allows.
            unsafe { AtomicU8::from_ptr(self.base().add(at)) }.fetch_add(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and belongs to this value alone.
        let _ = unsafe { libc::munmap(self.base().cast(), self.bytes) };
    }
}

/// Sleeps while `word` is `seen`, at most `timeout`. May wake for no reason.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let limit = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    // Every outcome (woken, changed, timed out, a signal) means: look again.
    // SAFETY: the word and the limit are live; the kernel writes neither.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
}

/// Wakes everyone who sleeps on `word`, in all processes.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word is live; the kernel does not write it.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// This process, as a descriptor that becomes readable when it ends. Unlike a socket it is not kept open by children.
pub(crate) fn own_process() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) }).map(take)
}

/// Waits until `descriptor` is readable or has ended, at most `timeout`.
pub(crate) fn is_readable(descriptor: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit_ms = timeout.as_millis().min(60_000) as c_int;
    // SAFETY: one live entry.
    match check(unsafe { libc::poll(&mut entry, 1, limit_ms) }.into()) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// The user on the other end of `socket`.
pub(crate) fn peer_user(socket: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers describe `peer` and its length, both live and writable.
    let pointer = (&raw mut peer).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the pointers describe `peer` and its length, both live and writable.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer, &mut length) }.into())?;
    Ok(peer.uid)
}

/// Sends `bytes` with `descriptors`, whole or not at all (a message is far smaller than a socket's buffer).
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} descriptors in one message", descriptors.len());
    let mut control = [0u64; CONTROL_WORDS];
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr holds integers and pointers only; all-zero is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let data_bytes = size_of_val(descriptors) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: `control` is aligned and large enough (asserted above); a BorrowedFd is its number.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(data_bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(data_bytes) as _;
            libc::CMSG_DATA(first).copy_from_nonoverlapping(descriptors.as_ptr().cast(), data_bytes as usize);
        }
    }
    // SAFETY: the header points at live buffers of the stated lengths, which the kernel only reads.
    let sent = check(unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) } as c_long)?;
    if sent < bytes.len() { Err(io::Error::other("a message was sent in part")) } else { Ok(()) }
}

/// Receives what is there, at most `bytes.len()` bytes, and adds descriptors that came along. 0 bytes: the peer has closed.
pub(crate) fn receive(socket: &UnixStream, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr holds integers and pointers only; all-zero is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points at live, writable buffers of the stated lengths.
    let received = check(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC) } as c_long)?;
    // SAFETY: the kernel has filled in the header's control data.
    let mut entry = unsafe { libc::CMSG_FIRSTHDR(&header) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or an entry inside the control data.
    while let Some(found) = unsafe { entry.as_ref() } {
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes; the data behind the header are descriptors, now this process's own.
            let count = (found.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: as above; they need not be aligned.
                let number = unsafe { libc::CMSG_DATA(entry).cast::<c_int>().add(index).read_unaligned() };
                descriptors.push(take(number as usize));
            }
        }
        // SAFETY: as above.
        entry = unsafe { libc::CMSG_NXTHDR(&header, entry) };
    }
    Ok(received)
}
