//! Parks all other threads, and releases them.
//!
//! Each thread gets a real-time signal that names its slot; the handler writes down where the interrupted state is
//! saved and waits on a futex. A park counts only if every thread was interrupted inside a system call that waits:
//! elsewhere it could hold a lock that knows its owner by thread id, and ids change in a child.
//!
//! ```text
//!            control claims          handler enters            frame is written
//!   FREE ------------------> CLAIMED ---------------> FILLING -----------------> READY
//!     ^                         | released before          released, or recreated   |
//!     |                         | the handler ran           in a child and on       |
//!     +-------------------------+---------------------------------------------------+
//! ```
//!
//! A signal that arrives after its epoch was released finds its slot no longer claimed for it and returns at once, so a
//! late thread can neither hang nor write into a slot that has a new owner.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void};

use crate::scan;
use crate::sys::{self, Errno};

/// The signal that parks a thread. Real-time, so instances queue, and used by neither emulator nor C library.
pub(crate) const SIGNAL: c_int = 50;
/// Most threads of an emulator that can be forked: processors, I/O workers and a margin.
pub(crate) const THREADS_MAX: usize = 160;
/// Interval at which a waiting control thread looks for threads that have ended or started.
const RESCAN_US: u64 = 1_000;
/// Pause between two parks, so that a busy thread can reach its next wait.
const RETRY_US: u64 = 200;

const FREE: u64 = 0;
/// States carry the epoch in the upper half.
const CLAIMED: u64 = 1;
const FILLING: u64 = 2;
const READY: u64 = 3;

/// Everything needed to recreate a parked thread.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// Thread id in the process that parked it.
    pub(crate) tid: c_int,
    /// Saved state, as the kernel stored it on the thread's stack.
    pub(crate) context: *mut libc::ucontext_t,
    /// Thread pointer.
    pub(crate) fs_base: usize,
    /// List of robust mutexes, and its size.
    pub(crate) robust_list: (usize, usize),
    /// Name of the thread.
    pub(crate) name: [u8; 16],
}

/// A place for one parked thread.
pub(crate) struct Slot {
    state: AtomicU64,
    tid: AtomicUsize,
    frame: UnsafeCell<Frame>,
}

// SAFETY: `frame` is written by the handler between FILLING and READY and read by the control thread after READY.
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Self {
        let context = core::ptr::null_mut();
        let frame = Frame { tid: 0, context, fs_base: 0, robust_list: (0, 0), name: [0; 16] };
        Self { state: AtomicU64::new(FREE), tid: AtomicUsize::new(0), frame: UnsafeCell::new(frame) }
    }

    /// Releases the slot; the last thing its thread does with it.
    pub(crate) fn free(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// The frame of a parked thread.
    ///
    /// # Safety
    /// Only while the slot is READY and its thread still parked, or in a child.
    pub(crate) unsafe fn frame(&self) -> &Frame {
        // SAFETY: no thread writes a READY slot.
        unsafe { &*self.frame.get() }
    }
}

static SLOTS: [Slot; THREADS_MAX] = [const { Slot::new() }; THREADS_MAX];
/// Odd while threads are to park, even otherwise; parked threads wait for it to change.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Number of handlers that are READY; the control thread waits on it.
static ARRIVALS: AtomicU32 = AtomicU32::new(0);

/// Reason why a park failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParkError {
    /// The deadline passed; the thread that was not at rest.
    Timeout { tid: c_int },
    /// More threads than slots.
    TooManyThreads,
    /// A system call failed.
    System(Errno),
}

/// Proof that every other thread is parked. Dropping it lets them go.
pub(crate) struct ParkedThreads {
    epoch: u32,
    /// Parks that were needed.
    pub(crate) attempts: u32,
}

impl ParkedThreads {
    /// The slots of all parked threads.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &'static Slot> {
        let wanted = state(self.epoch, READY);
        SLOTS.iter().filter(move |slot| slot.state.load(Ordering::Acquire) == wanted)
    }

    /// In a child: the parent's threads do not exist here, so none is released.
    pub(crate) fn forget(self) {
        core::mem::forget(self);
        EPOCH.fetch_add(1, Ordering::Release);
    }
}

impl Drop for ParkedThreads {
    fn drop(&mut self) {
        release(self.epoch);
    }
}

fn state(epoch: u32, step: u64) -> u64 {
    u64::from(epoch) << 32 | step
}

/// Installs the signal handler.
pub(crate) fn install() -> bool {
    // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = park_here as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut()) == 0
    }
}

/// Runs in every thread but ours: writes the frame down, then waits for the release.
extern "C" fn park_here(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; ours carries epoch and slot as its value.
    let ticket = unsafe { (*info).si_value() }.sival_ptr as u64;
    let (epoch, index) = ((ticket >> 32) as u32, ticket as u32 as usize);
    let Some(slot) = SLOTS.get(index) else { return };
    let claimed = (state(epoch, CLAIMED), state(epoch, FILLING));
    if slot.state.compare_exchange(claimed.0, claimed.1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    // SAFETY: FILLING makes this thread the only one to touch the frame.
    unsafe { *slot.frame.get() = describe_here(context.cast()) };
    slot.state.store(state(epoch, READY), Ordering::Release);
    ARRIVALS.fetch_add(1, Ordering::Release);
    sys::futex_wake(&ARRIVALS);
    while EPOCH.load(Ordering::Acquire) == epoch {
        sys::futex_wait(&EPOCH, epoch, None);
    }
    slot.free();
}

/// The frame of the calling thread, interrupted at `context`.
fn describe_here(context: *mut libc::ucontext_t) -> Frame {
    let mut frame =
        Frame { tid: sys::gettid(), context, fs_base: fs_base(), robust_list: (0, 0), name: [0; 16] };
    let (head, size) = (&raw mut frame.robust_list.0, &raw mut frame.robust_list.1);
    // SAFETY: all pointers are to fields of the size the calls write; a failure leaves zeros, which mean none.
    unsafe {
        let _ = sys::call(libc::SYS_get_robust_list, [0, head as usize, size as usize]);
        let _ = sys::call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, frame.name.as_mut_ptr() as usize]);
    }
    frame
}

/// Thread pointer of the calling thread.
pub(crate) fn fs_base() -> usize {
    const ARCH_GET_FS: usize = 0x1003;
    let mut base = 0usize;
    // SAFETY: the call writes one word.
    let _ = unsafe { sys::call(libc::SYS_arch_prctl, [ARCH_GET_FS, &raw mut base as usize]) };
    base
}

/// Parks every other thread, again and again until all are at rest or `deadline_us` passes.
pub(crate) fn park_all(deadline_us: u64) -> Result<ParkedThreads, ParkError> {
    let mut attempts = 1;
    loop {
        let parked = park_once(deadline_us, attempts)?;
        // SAFETY: READY and parked as long as `parked` lives.
        let busy = parked.slots().map(|slot| unsafe { slot.frame() }).find(|frame| !is_at_rest(frame));
        let Some(tid) = busy.map(|frame| frame.tid) else { return Ok(parked) };
        drop(parked);
        if sys::now_us() >= deadline_us {
            return Err(ParkError::Timeout { tid });
        }
        attempts += 1;
        // No thread wakes this word now: the wait only gives the busy thread time, which has no
        // event to wait for.
        sys::futex_wait(&ARRIVALS, ARRIVALS.load(Ordering::Acquire), Some(RETRY_US));
    }
}

/// Signals every other thread and waits until all have parked, wherever they were.
fn park_once(deadline_us: u64, attempts: u32) -> Result<ParkedThreads, ParkError> {
    let epoch = EPOCH.load(Ordering::Relaxed).wrapping_add(1) | 1;
    EPOCH.store(epoch, Ordering::Release);
    let parked = ParkedThreads { epoch, attempts };
    let (me, pid) = (sys::gettid(), sys::getpid());
    loop {
        let arrivals = ARRIVALS.load(Ordering::Acquire);
        let mut missing = None;
        scan::for_each_number(b"self/task\0", |tid| match place_of(tid, epoch) {
            _ if tid == me => Ok(()),
            Some(slot) if slot.state.load(Ordering::Acquire) == state(epoch, READY) => Ok(()),
            known => {
                missing = Some(tid);
                if known.is_none() { signal(pid, tid, epoch) } else { Ok(()) }
            }
        })
        .map_err(ParkError::System)??;
        let Some(tid) = missing else { return Ok(parked) };
        if sys::now_us() >= deadline_us {
            return Err(ParkError::Timeout { tid });
        }
        sys::futex_wait(&ARRIVALS, arrivals, Some(RESCAN_US));
    }
}

/// The slot a thread was given in this epoch.
fn place_of(tid: c_int, epoch: u32) -> Option<&'static Slot> {
    SLOTS.iter().find(|slot| {
        slot.tid.load(Ordering::Relaxed) == tid as usize
            && slot.state.load(Ordering::Acquire) >> 32 == u64::from(epoch)
    })
}

/// Claims a slot for a thread and signals it. A thread that has already ended is not an error.
fn signal(pid: c_int, tid: c_int, epoch: u32) -> Result<(), ParkError> {
    let free = SLOTS.iter().enumerate().find(|(_, slot)| slot.state.load(Ordering::Acquire) == FREE);
    let (index, slot) = free.ok_or(ParkError::TooManyThreads)?;
    slot.tid.store(tid as usize, Ordering::Relaxed);
    slot.state.store(state(epoch, CLAIMED), Ordering::Release);
    let mut info = QueuedSignal {
        signo: SIGNAL,
        errno: 0,
        code: libc::SI_QUEUE,
        pad: 0,
        pid,
        uid: 0,
        value: u64::from(epoch) << 32 | index as u64,
        rest: [0; 12],
    };
    let args = [pid as usize, tid as usize, SIGNAL as usize, &raw mut info as usize];
    // SAFETY: `info` is laid out as a whole siginfo_t.
    match unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, args) } {
        Ok(_) => Ok(()),
        Err(Errno(libc::ESRCH)) => {
            slot.free();
            Ok(())
        }
        Err(errno) => Err(ParkError::System(errno)),
    }
}

/// `siginfo_t` of a queued signal.
#[repr(C)]
struct QueuedSignal {
    signo: c_int,
    errno: c_int,
    code: c_int,
    pad: c_int,
    pid: c_int,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<QueuedSignal>() == size_of::<libc::siginfo_t>());

/// Ends an epoch: reclaims unentered slots, wakes the rest.
fn release(epoch: u32) {
    EPOCH.store(epoch.wrapping_add(1), Ordering::Release);
    sys::futex_wake(&EPOCH);
    for slot in &SLOTS {
        let _ = slot.state.compare_exchange(state(epoch, CLAIMED), FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns whether a thread was interrupted inside a waiting system call.
fn is_at_rest(frame: &Frame) -> bool {
    // SAFETY: the context is on the stack of a parked thread.
    let registers = unsafe { &(*frame.context).uc_mcontext.gregs };
    let (at, rax) = (registers[libc::REG_RIP as usize] as usize, registers[libc::REG_RAX as usize]);
    // SAFETY: the thread executes at `at`, so the page is mapped; code of real programs is preceded by a header, so
    // the bytes before it are too.
    let code =
        unsafe { core::slice::from_raw_parts((at - CODE_BEFORE) as *const u8, CODE_BEFORE + SYSCALL.len()) };
    is_waiting(code, rax)
}

/// Bytes read before the saved instruction: `mov eax, imm32; syscall`.
const CODE_BEFORE: usize = 7;
/// The system call instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Decides from the code around the saved instruction (which is at `CODE_BEFORE`) and the saved `rax`.
///
/// The kernel leaves a restartable call at its instruction with its number in `rax`, and one that
/// cannot restart (poll, a timed futex) behind it with `EINTR`. Anything else was running, or had
/// just returned with a result.
fn is_waiting(code: &[u8], rax: i64) -> bool {
    let (before, at) = code.split_at(CODE_BEFORE);
    if at == SYSCALL && WAITING_CALLS.contains(&rax) {
        return true;
    }
    if rax != -i64::from(libc::EINTR) || !before.ends_with(&SYSCALL) {
        return false;
    }
    // If the number is loaded right before the instruction, check it against the list too.
    // Otherwise it is unknown, but with SA_RESTART only waiting calls return EINTR.
    match *before {
        [0xb8, a, b, c, d, ..] => WAITING_CALLS.contains(&i64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => true,
    }
}

/// System calls that only wait.
const WAITING_CALLS: [i64; 13] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_pause,
    libc::SYS_restart_syscall,
];

#[cfg(test)]
mod tests {
    use super::*;

    const NOP: u8 = 0x90;
    const MOV_EAX: u8 = 0xb8;

    #[test]
    fn waiting_threads_are_distinguished_from_working_ones() {
        let eintr = -i64::from(libc::EINTR);
        let behind = [NOP, NOP, NOP, NOP, NOP, 0x0f, 0x05, NOP, NOP];
        let behind_ppoll = [MOV_EAX, 0x0f, 0x01, 0, 0, 0x0f, 0x05, NOP, NOP];
        let behind_write = [MOV_EAX, 0x01, 0, 0, 0, 0x0f, 0x05, NOP, NOP];
        let at = [NOP, NOP, NOP, NOP, NOP, NOP, NOP, 0x0f, 0x05];
        let elsewhere = [NOP; 9];
        let cases = [
            ("interrupted ppoll", behind_ppoll, eintr, true),
            ("interrupted call of unknown number", behind, eintr, true),
            ("interrupted write", behind_write, eintr, false),
            ("call that came back with a result", behind, 0, false),
            ("call that came back with another error", behind, -i64::from(libc::EAGAIN), false),
            ("futex about to restart", at, libc::SYS_futex, true),
            ("read about to restart", at, libc::SYS_read, false),
            ("computing, EINTR by chance", elsewhere, eintr, false),
            ("computing, futex number by chance", elsewhere, libc::SYS_futex, false),
        ];
        for (name, code, rax, expected) in cases {
            assert_eq!(is_waiting(&code, rax), expected, "{name}");
        }
    }
}
