//! System calls without the C library.
//!
//! Its wrappers write `errno` into thread-local memory, act on cancellation and take locks; between
//! park and release none of that may happen. These are the bare instructions, with the kernel's
//! return value as a `Result`.

use core::arch::asm;
use core::mem::MaybeUninit;

use libc::{c_int, c_long};

/// A system error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// The call was interrupted.
    pub(crate) const INTR: Errno = Errno(libc::EINTR);
}

/// Answer of a system call.
pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Largest error number: results above `-ERRNO_MAX` are errors.
const ERRNO_MAX: isize = 4095;

/// Issues system call `number`.
///
/// # Safety
/// As dangerous as the call it makes: pointers among `args` must be valid for it.
pub(crate) unsafe fn call<const N: usize>(number: c_long, args: [usize; N]) -> Result<usize> {
    let arg = |index: usize| args.get(index).copied().unwrap_or(0);
    let answer: isize;
    // SAFETY: the kernel clobbers rcx, r11 and memory only; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") arg(0), in("rsi") arg(1),
            in("rdx") arg(2), in("r10") arg(3), in("r8") arg(4), in("r9") arg(5),
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-ERRNO_MAX..0).contains(&answer) { Err(Errno(-answer as i32)) } else { Ok(answer as usize) }
}

/// Closes a descriptor; whether it was open does not matter to any caller.
pub(crate) fn close(fd: c_int) {
    // SAFETY: no pointers.
    let _ = unsafe { call(libc::SYS_close, [fd as usize]) };
}

/// Makes `to` a copy of `from`, closed on exec.
pub(crate) fn dup_over(from: c_int, to: c_int) -> Result<()> {
    // SAFETY: no pointers.
    unsafe { call(libc::SYS_dup3, [from as usize, to as usize, libc::O_CLOEXEC as usize]) }.map(drop)
}

/// `fcntl` with an integer argument.
pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize> {
    // SAFETY: callers use commands with integer arguments only.
    unsafe { call(libc::SYS_fcntl, [fd as usize, command as usize, argument]) }
}

/// `fstat`.
pub(crate) fn fstat(fd: c_int) -> Result<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is a whole `struct stat`; all-zero bytes are a valid one.
    unsafe {
        call(libc::SYS_fstat, [fd as usize, stat.as_mut_ptr() as usize])?;
        Ok(stat.assume_init())
    }
}

/// Opens a NUL-terminated path relative to a directory, closed on exec.
pub(crate) fn open_at(directory: c_int, path: &[u8], flags: c_int) -> Result<c_int> {
    debug_assert!(path.ends_with(b"\0"));
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: the path is NUL-terminated and outlives the call.
    unsafe { call(libc::SYS_openat, [directory as usize, path.as_ptr() as usize, flags, 0]) }
        .map(|fd| fd as c_int)
}

/// Reads a symbolic link relative to a directory; returns how much of `buffer` it filled.
pub(crate) fn readlink_at(directory: c_int, path: &[u8], buffer: &mut [u8]) -> Result<usize> {
    debug_assert!(path.ends_with(b"\0"));
    let args = [directory as usize, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: the path is NUL-terminated, the buffer has the passed length.
    unsafe { call(libc::SYS_readlinkat, args) }
}

/// One `read`.
pub(crate) fn read(fd: c_int, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer has the passed length.
    unsafe { call(libc::SYS_read, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len()]) }
}

/// One `write`.
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the buffer has the passed length.
    unsafe { call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len()]) }
}

/// One batch of directory entries.
pub(crate) fn getdents(fd: c_int, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer has the passed length.
    unsafe { call(libc::SYS_getdents64, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len()]) }
}

/// Process id.
pub(crate) fn getpid() -> c_int {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, []) }.map_or(0, |pid| pid as c_int)
}

/// Thread id.
pub(crate) fn gettid() -> c_int {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, []) }.map_or(0, |tid| tid as c_int)
}

/// Monotonic clock in microseconds.
pub(crate) fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is a timespec.
    let _ =
        unsafe { call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, &raw mut time as usize]) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// Waits until `word` is woken or differs from `value`, at most `us_max` (forever when `None`).
pub(crate) fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, us_max: Option<u64>) {
    let time = us_max.map(|us| libc::timespec {
        tv_sec: (us / 1_000_000) as i64,
        tv_nsec: (us % 1_000_000) as i64 * 1_000,
    });
    let time = time.as_ref().map_or(0, |time| &raw const *time as usize);
    // SAFETY: word and timeout outlive the call. Every outcome, a signal too, means: look again.
    let _ =
        unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, FUTEX_WAIT_PRIVATE, value as usize, time]) };
}

/// Wakes every waiter of `word`.
pub(crate) fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    // SAFETY: the word is valid.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, FUTEX_WAKE_PRIVATE, i32::MAX as usize]) };
}

const FUTEX_WAIT_PRIVATE: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const FUTEX_WAKE_PRIVATE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

/// Ends the process.
pub(crate) fn exit_group(code: c_int) -> ! {
    loop {
        // SAFETY: no pointers.
        let _ = unsafe { call(libc::SYS_exit_group, [code as usize]) };
    }
}
