//! Starting a child without copying page tables.
//!
//! `clone3` with `CLONE_VM | CLONE_VFORK`: the child borrows this program's memory until it execs, and is born
//! inside its control group, so nothing it starts can escape. A plain fork would copy page tables, which
//! costs milliseconds under emulation, and moving a process between groups waits for an RCU grace period.
//!
//! Invariant between clone and exec: no allocation, no lock, no libc function that touches other
//! threads (`setuid` of libc would), nothing but system calls on data prepared before.

use std::arch::asm;
use std::ffi::{CString, c_char, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

const CHILD_STACK_BYTES: usize = 64 * 1024;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// All inputs of the child's actions, prepared before it exists.
pub(crate) struct ChildPlan {
    /// The program's path; already looked up.
    pub(crate) program: CString,
    /// Arguments, the program's name first.
    pub(crate) argv: Vec<CString>,
    /// `NAME=value`.
    pub(crate) env: Vec<CString>,
    /// Working directory.
    pub(crate) cwd: CString,
    /// User, group and supplementary groups; `None` leaves them unchanged.
    pub(crate) credentials: Option<Credentials>,
    /// Standard input, output and error.
    pub(crate) stdio: [OwnedFd; 3],
    /// Undo the guest program's own priority.
    pub(crate) reset_priority: bool,
    /// Standard input is a terminal, and the child's own.
    pub(crate) terminal: bool,
}

/// User and groups of the child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// The step at which a child failed before its program ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    Clone = 0,
    Session = 1,
    Stdio = 2,
    Credentials = 3,
    Directory = 4,
    Exec = 5,
}

/// Reason why no child was started.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

/// Data that the child reads, all borrowed from the parent's frame, which waits until the child
/// execs.
struct ChildFrame {
    program: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [RawFd; 3],
    credentials: Option<(u32, u32, *const u32, usize)>,
    reset_priority: bool,
    terminal: bool,
    failure: (Stage, i32),
}

#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts the child, inside `cgroup` if given. Returns its process id once its program runs. Every signal
/// must be blocked in the calling thread: a handler in the child would run in this program's memory.
pub(crate) fn spawn(plan: &ChildPlan, cgroup: Option<BorrowedFd<'_>>) -> Result<i32, SpawnError> {
    let argv = null_terminated(&plan.argv);
    let env = null_terminated(&plan.env);
    let mut frame = ChildFrame {
        program: plan.program.as_ptr(),
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        cwd: plan.cwd.as_ptr(),
        stdio: [plan.stdio[0].as_raw_fd(), plan.stdio[1].as_raw_fd(), plan.stdio[2].as_raw_fd()],
        credentials: plan
            .credentials
            .as_ref()
            .map(|who| (who.uid, who.gid, who.groups.as_ptr(), who.groups.len())),
        reset_priority: plan.reset_priority,
        terminal: plan.terminal,
        failure: (Stage::Clone, 0),
    };
    let mut stack = vec![0_u128; CHILD_STACK_BYTES / size_of::<u128>()];
    let args = CloneArgs {
        flags: libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64 | cgroup.map_or(0, |_| CLONE_INTO_CGROUP),
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: CHILD_STACK_BYTES as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: `args` and `frame` outlive the call because CLONE_VFORK suspends this thread until the child has
    // exec'ed or exited; the stack is the child's alone; `run_child` keeps to the module's rules.
    let result = unsafe { clone_vfork(&args, (&raw mut frame).cast()) };
    if result < 0 {
        return Err(SpawnError {
            stage: Stage::Clone,
            errno: Errno::from_raw(i32::try_from(-result).unwrap_or(0)),
        });
    }
    let pid = i32::try_from(result).unwrap_or(-1);
    // SAFETY: the child wrote it through a pointer that the compiler does not connect with `frame`.
    let (stage, errno) = unsafe { (&raw const frame.failure).read_volatile() };
    if errno != 0 {
        return Err(SpawnError { stage, errno: Errno::from_raw(errno) });
    }
    Ok(pid)
}

fn null_terminated(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The system call, and in the child a jump to [`run_child`] on the new stack. libc's wrapper of `clone`
/// cannot pass a control group.
///
/// # Safety
/// `args` must describe a valid stack and CLONE_VM | CLONE_VFORK; `frame` must be a [`ChildFrame`].
#[cfg(target_arch = "x86_64")]
unsafe fn clone_vfork(args: &CloneArgs, frame: *mut c_void) -> isize {
    let result: isize;
    // SAFETY: the parent's registers are as declared; the child starts on its own, 16-byte aligned
    // stack and never returns.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {frame}",
            "call {entry}",
            "ud2",
            "2:",
            frame = in(reg) frame,
            entry = in(reg) run_child as extern "C" fn(*mut c_void) -> !,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") std::ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
compile_error!("process/clone.rs needs the clone3 entry sequence of this architecture");

extern "C" fn run_child(frame: *mut c_void) -> ! {
    // SAFETY: `spawn` passed a ChildFrame that lives until this process execs or exits.
    let frame = unsafe { &mut *frame.cast::<ChildFrame>() };
    let stage = become_program(frame);
    // SAFETY: errno of this thread was set by the call that failed.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: plain memory of the suspended parent; volatile because the parent reads it behind the
    // compiler's back.
    unsafe { (&raw mut frame.failure).write_volatile((stage, errno.max(1))) };
    // SAFETY: ends this process without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Every step up to exec; returns only the stage that failed.
fn become_program(frame: &ChildFrame) -> Stage {
    // SAFETY: system calls on prepared data only; see the module's rules.
    unsafe {
        if libc::setsid() < 0 {
            return Stage::Session;
        }
        for (target, &fd) in (0..).zip(&frame.stdio) {
            if libc::dup2(fd, target) < 0 {
                return Stage::Stdio;
            }
        }
        if frame.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Stage::Session;
        }
        if frame.reset_priority {
            // Best effort: a child may keep its parent's priority.
            libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 0);
        }
        if let Some((uid, gid, groups, count)) = frame.credentials {
            // Direct system calls: libc's functions would change the ids of this program's other
            // threads.
            if libc::syscall(libc::SYS_setgroups, count, groups) < 0
                || libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
                || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0
            {
                return Stage::Credentials;
            }
        }
        if libc::chdir(frame.cwd) < 0 {
            return Stage::Directory;
        }
        // Our own descriptors are all close-on-exec; this closes any that an ancestor left open.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        // Rust ignores SIGPIPE, a shell ignores the others for background processes, and ignored
        // signals stay ignored across exec.
        for signal in [libc::SIGPIPE, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<c_void>(),
            8,
        );
        libc::execve(frame.program, frame.argv, frame.env);
    }
    Stage::Exec
}
