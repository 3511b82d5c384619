//! Keeps the guest program responsive while user processes use all resources.
//!
//! The event loop runs in real time (it never computes for long), workers at the highest nice level;
//! `process/clone.rs` undoes that for children. The OOM killer needs no telling: it never takes PID 1. Setting
//! `oom_score_adj` would only make every child reset it, half a millisecond each under emulation. Only on a
//! machine of our own: in serve mode nothing is raised.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_MACHINE: AtomicBool = AtomicBool::new(false);

const NICE_HIGHEST: libc::c_int = -20;
const OPEN_FILES_MAX: u64 = 1_048_576;

/// Raises the calling thread, the event loop's, and the process.
pub(crate) fn raise_machine() {
    IS_MACHINE.store(true, Ordering::Relaxed);
    // Both can only fail on a kernel without the feature; the machine works without them.
    let _ = nix::sys::resource::setrlimit(
        nix::sys::resource::Resource::RLIMIT_NOFILE,
        OPEN_FILES_MAX,
        OPEN_FILES_MAX,
    );
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: a system call on a local. Reset-on-fork: neither workers nor children become real-time tasks.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    };
}

/// Raises the calling thread, a worker's.
pub(crate) fn raise_worker() {
    if IS_MACHINE.load(Ordering::Relaxed) {
        // SAFETY: a system call on constants; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_HIGHEST) };
    }
}

/// Blocks every signal in this thread and all that it starts: signals are read from descriptors, and a child
/// between clone and exec must not run a handler in this program's memory.
pub(crate) fn block_signals() {
    // Fails only for an invalid set.
    let _ = nix::sys::signal::SigSet::all().thread_block();
}
