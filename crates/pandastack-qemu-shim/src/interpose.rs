//! Interposed C library functions of the emulator, and the initialization of the shim.
//!
//! | function | difference |
//! |---|---|
//! | `open` and variants | the memory path returns a copy of a read-only descriptor that the engine
//! opened |
//! | `mmap` | that file is mapped privately although the emulator requests a shared mapping, which
//! makes it omit guest memory from saved states |
//! | `madvise` | guest memory is inherited by a fork |
//! | `ftruncate` | a no-op for a file that already has the length, so that a read-only image can be
//! given its size |
//! | `pthread_sigmask`, `sigprocmask` | the park signal stays open |
//! | `ioctl` | settings of the tap are recorded, for the tap of a child |
//!
//! Everything else is passed to the kernel unchanged. The names are exported in the preload build
//! only.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_ulong, off_t, size_t};

use crate::control;
use crate::exclusive::Exclusive;
use crate::park;
use crate::protocol::{CONTROL_FD_VARIABLE, PROC_FD_VARIABLE, RAM_FD_VARIABLE, RAM_PATH_VARIABLE};
use crate::scan;
use crate::sys::{self, Errno};

/// Longest memory path.
const RAM_PATH_BYTES_MAX: usize = 256;

static RAM_PATH: Exclusive<[u8; RAM_PATH_BYTES_MAX]> = Exclusive::new([0; RAM_PATH_BYTES_MAX]);
static RAM_PATH_LEN: AtomicUsize = AtomicUsize::new(0);
static RAM_FD: AtomicI32 = AtomicI32::new(-1);
static RAM_DEVICE: AtomicU64 = AtomicU64::new(0);
static RAM_INODE: AtomicU64 = AtomicU64::new(0);
static RAM_ADDRESS: AtomicU64 = AtomicU64::new(0);
static RAM_BYTES: AtomicU64 = AtomicU64::new(0);
/// Shared writable mappings ever made: a child would write into the same memory.
static SHARED_MAPPINGS: AtomicU32 = AtomicU32::new(0);

/// Device and inode of the memory file.
pub(crate) fn ram_identity() -> (u64, u64) {
    (RAM_DEVICE.load(Ordering::Relaxed), RAM_INODE.load(Ordering::Relaxed))
}

/// Address and size of guest memory.
pub(crate) fn ram_place() -> (u64, u64) {
    (RAM_ADDRESS.load(Ordering::Relaxed), RAM_BYTES.load(Ordering::Relaxed))
}

/// Returns whether memory was ever mapped shared and writable.
pub(crate) fn has_shared_mappings() -> bool {
    SHARED_MAPPINGS.load(Ordering::Relaxed) != 0
}

/// Runs before the emulator's `main`.
#[cfg(pandastack_preload)]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let (Some(control), Some(proc_fd)) = (number(CONTROL_FD_VARIABLE), number(PROC_FD_VARIABLE)) else {
        return;
    };
    scan::set_proc_fd(proc_fd);
    remember_ram();
    // SAFETY: still single-threaded, so the environment may change. Nothing we start needs the library again.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
    if park::install() {
        control::start(control);
    }
}

fn remember_ram() {
    let (Some(fd), Some(path)) = (number(RAM_FD_VARIABLE), variable(RAM_PATH_VARIABLE)) else { return };
    let Ok(stat) = sys::fstat(fd) else { return };
    // SAFETY: single-threaded, before anything reads it.
    let Some(place) = (unsafe { RAM_PATH.get() }).get_mut(..path.to_bytes().len()) else { return };
    place.copy_from_slice(path.to_bytes());
    RAM_DEVICE.store(stat.st_dev, Ordering::Relaxed);
    RAM_INODE.store(stat.st_ino, Ordering::Relaxed);
    RAM_FD.store(fd, Ordering::Relaxed);
    RAM_PATH_LEN.store(place.len(), Ordering::Release);
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: single-threaded; the value is copied before the environment changes.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn number(name: &CStr) -> Option<c_int> {
    variable(name)?.to_str().ok()?.parse().ok()
}

/// Hands a kernel answer to C: the value, or -1 with the error in its place.
fn to_c(answer: sys::Result<usize>) -> isize {
    match answer {
        Ok(value) => value as isize,
        Err(Errno(errno)) => {
            // SAFETY: the error place of the calling thread.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// # Safety
/// As `open(2)`.
unsafe fn open_file(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    let len = RAM_PATH_LEN.load(Ordering::Acquire);
    // SAFETY: the memory path no longer changes once its length is set; the caller's path is NUL-terminated.
    let is_ram =
        len != 0 && !path.is_null() && unsafe { CStr::from_ptr(path).to_bytes() == &RAM_PATH.get()[..len] };
    let answer = if is_ram {
        sys::fcntl(RAM_FD.load(Ordering::Relaxed), libc::F_DUPFD_CLOEXEC, 0)
    } else {
        // SAFETY: the caller's own arguments.
        unsafe {
            sys::call(
                libc::SYS_openat,
                [libc::AT_FDCWD as usize, path as usize, flags as usize, mode as usize],
            )
        }
    };
    to_c(answer) as c_int
}

/// `open(2)`. Defined with a plain third argument: variadic integers arrive in the same register, and a caller that
/// passes none leaves one that the kernel ignores.
///
/// # Safety
/// As `open(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_file(path, flags, mode) }
}

/// `open64`.
///
/// # Safety
/// As `open(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_file(path, flags, mode) }
}

/// `open` as fortified code calls it when it passes no mode.
///
/// # Safety
/// As `open(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_file(path, flags, 0) }
}

/// `open64` as fortified code calls it when it passes no mode.
///
/// # Safety
/// As `open(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_file(path, flags, 0) }
}

/// # Safety
/// As `mmap(2)`.
unsafe fn map(
    address: *mut c_void,
    len: size_t,
    prot: c_int,
    mut flags: c_int,
    fd: c_int,
    at: off_t,
) -> *mut c_void {
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    let is_ram = shared && fd >= 0 && RAM_PATH_LEN.load(Ordering::Acquire) != 0 && is_ram_file(fd);
    if is_ram {
        flags = (flags & !libc::MAP_TYPE) | libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    } else if shared && prot & libc::PROT_WRITE != 0 {
        SHARED_MAPPINGS.fetch_add(1, Ordering::Relaxed);
    }
    let args = [address as usize, len, prot as usize, flags as usize, fd as usize, at as usize];
    // SAFETY: the caller's own arguments, at most less shared.
    let answer = unsafe { sys::call(libc::SYS_mmap, args) };
    if let (true, Ok(place)) = (is_ram, answer) {
        RAM_ADDRESS.store(place as u64, Ordering::Relaxed);
        RAM_BYTES.store(len as u64, Ordering::Relaxed);
    }
    to_c(answer) as *mut c_void
}

fn is_ram_file(fd: c_int) -> bool {
    sys::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == ram_identity())
}

/// `mmap(2)`.
///
/// # Safety
/// As `mmap(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { map(address, len, prot, flags, fd, at) }
}

/// `mmap64`.
///
/// # Safety
/// As `mmap(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { map(address, len, prot, flags, fd, at) }
}

/// `madvise(2)`, except that memory is always inherited by a fork: a child without guest memory dies in the first
/// virtual queue it touches.
///
/// # Safety
/// As `madvise(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice == libc::MADV_DONTFORK {
        return 0;
    }
    // SAFETY: the caller's own arguments.
    to_c(unsafe { sys::call(libc::SYS_madvise, [address as usize, len, advice as usize]) }) as c_int
}

/// # Safety
/// As `ftruncate(2)`.
unsafe fn set_length(fd: c_int, len: off_t) -> c_int {
    if sys::fstat(fd).is_ok_and(|stat| stat.st_size == len) {
        return 0;
    }
    // SAFETY: the caller's own arguments.
    to_c(unsafe { sys::call(libc::SYS_ftruncate, [fd as usize, len as usize]) }) as c_int
}

/// `ftruncate(2)`.
///
/// # Safety
/// As `ftruncate(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn ftruncate(fd: c_int, len: off_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_length(fd, len) }
}

/// `ftruncate64`.
///
/// # Safety
/// As `ftruncate(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn ftruncate64(fd: c_int, len: off_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_length(fd, len) }
}

/// Signals that are never blocked: ours, and 32 and 33, which the C library keeps for itself.
const ALWAYS_OPEN: u64 = 1 << (park::SIGNAL - 1) | 1 << (32 - 1) | 1 << (33 - 1);

/// # Safety
/// As `sigprocmask(2)`.
unsafe fn set_mask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> sys::Result<usize> {
    // SAFETY: the kernel's set is the first 8 bytes of the C library's.
    let mask = (!set.is_null()).then(|| unsafe { set.cast::<u64>().read_unaligned() });
    let mask = mask.map(|mask| if how == libc::SIG_UNBLOCK { mask } else { mask & !ALWAYS_OPEN });
    let pointer = mask.as_ref().map_or(0, |mask| &raw const *mask as usize);
    let args = [how as usize, pointer, old as usize, size_of::<u64>()];
    // SAFETY: both pointers are null or valid for 8 bytes.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, args) }
}

/// `pthread_sigmask(3)`: returns the error number itself.
///
/// # Safety
/// As `pthread_sigmask(3)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_mask(how, set, old) }.map_or_else(|Errno(errno)| errno, |_| 0)
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As `sigprocmask(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    to_c(unsafe { set_mask(how, set, old) }) as c_int
}

/// A setting of a tap that a child's tap needs too, or virtio headers and packets do not line up.
struct TapSetting {
    request: c_ulong,
    /// The argument is a pointer to an integer, not the integer.
    by_pointer: bool,
    value: AtomicU64,
}

/// Marks a setting that was never made.
const UNSET: u64 = u64::MAX;

impl TapSetting {
    const fn new(request: c_ulong, by_pointer: bool) -> Self {
        Self { request, by_pointer, value: AtomicU64::new(UNSET) }
    }
}

/// Header size, byte order, offloads; in the order in which they are applied.
static TAP_SETTINGS: [TapSetting; 4] = [
    TapSetting::new(0x4004_54d8, true),  // TUNSETVNETHDRSZ
    TapSetting::new(0x4004_54dc, true),  // TUNSETVNETLE
    TapSetting::new(0x4004_54de, true),  // TUNSETVNETBE
    TapSetting::new(0x4004_54d0, false), // TUNSETOFFLOAD
];

/// Copies the tap settings that the emulator set on the parent to the child.
pub(crate) fn apply_tap_settings(fd: c_int) -> sys::Result<()> {
    for setting in &TAP_SETTINGS {
        let value = setting.value.load(Ordering::Relaxed);
        if value == UNSET {
            continue;
        }
        let integer = value as c_int;
        let argument = if setting.by_pointer { &raw const integer as usize } else { value as usize };
        // SAFETY: the argument has the type that the request expects, by value or by pointer to an
        // integer.
        unsafe { sys::call(libc::SYS_ioctl, [fd as usize, setting.request as usize, argument]) }?;
    }
    Ok(())
}

/// `ioctl(2)`, defined without varargs for the reason given at [`open`].
///
/// # Safety
/// As `ioctl(2)`.
#[cfg_attr(pandastack_preload, unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = unsafe { sys::call(libc::SYS_ioctl, [fd as usize, request as usize, argument]) };
    // Callers in C may sign-extend the request.
    let setting = TAP_SETTINGS.iter().find(|setting| setting.request == request & 0xffff_ffff);
    if let (Some(setting), Ok(_)) = (setting, answer) {
        let value = if setting.by_pointer {
            // SAFETY: the kernel has just read the integer behind it.
            unsafe { *(argument as *const u32) }
        } else {
            argument as u32
        };
        setting.value.store(value.into(), Ordering::Relaxed);
    }
    to_c(answer) as c_int
}
