//! What the standard library does not show: the clock that the program reads, a wait for the program, numbers of interfaces.

/// Nanoseconds of the kernel's coarse monotonic clock, as the program's `bpf_ktime_get_coarse_ns` gives them.
pub(crate) fn coarse_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec of ours that the call fills in.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) } != 0;
    assert!(!failed, "Linux has this clock since 2.6.32");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns when every run of a program that had begun before this call has ended.
///
/// The kernel runs XDP programs as readers of its RCU, and this call waits until such readers are through.
pub(crate) fn wait_for_running_programs() -> std::io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The number of a network interface of this thread's network namespace.
pub(crate) fn interface_index(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: `name` ends with a zero and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}
