//! System call filters of emulator processes.
//!
//! An allow list: what a running emulator with our devices uses, and what the preloaded library needs to
//! fork it. Calls that only an attacker needs kill the process ([`DEADLY`]). All others fail with `EPERM`,
//! which an emulator survives for optional features. The emulator's own `-sandbox` is not used: it
//! forbids the fork.
//!
//! `clone` is allowed with exactly two sets of flags: a thread of the C library, and the library's process copy.

use std::collections::BTreeMap;

use pandastack_engine::{EngineError, Result};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

/// Allowed with any arguments.
const ALLOWED: &[i64] = &[
    // Memory. The translation cache is writable and executable, so mprotect stays open.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Descriptors that are already open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_close,
    // Calls on open sockets; only `accept` creates new ones.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Waiting and time.
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_restart_syscall,
    // Threads and signals of its own.
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_tgkill,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_arch_prctl,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The fork: descriptors are recreated, the listing of its own, word from its children.
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_pipe2,
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_setsid,
    libc::SYS_pidfd_send_signal,
];

/// Additional system calls of a zygote, which gives its children a user and a root of their own.
const ALLOWED_ZYGOTE: &[i64] = &[
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_chroot,
    libc::SYS_chdir,
    libc::SYS_seccomp,
];

/// System calls that end the process: to start programs, to reach other processes, to change mounts and
/// namespaces, and others that attacks on kernels use. An emulator never calls them.
const DEADLY: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_open_tree,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
];

/// Flags of a thread as the C library makes it.
const THREAD_FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// Flags of the library's process copy.
const FORK_FLAGS: libc::c_int = libc::CLONE_PARENT | libc::CLONE_PIDFD;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Requests of terminals and taps; no terminal is ever open.
const IOCTL_TAP: u64 = b'T' as u64;
/// Requests of KVM.
const IOCTL_KVM: u64 = 0xae;

/// The process that a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A process that runs tenant code.
    Tenant,
    /// A process that makes such ones.
    Zygote,
}

/// The filter as the bytes of its instructions, in the form that the preloaded library takes.
pub(crate) fn build(audience: Audience, kvm: bool) -> Result<Vec<u8>> {
    let program = program(audience, kvm).map_err(|error| EngineError::Vmm {
        step: "building the system call filter",
        detail: error.to_string(),
    })?;
    let first = refuse_clone3().into_iter().chain(end_process());
    Ok(first.chain(program).flat_map(|instruction| bytes(&instruction)).collect())
}

fn program(audience: Audience, kvm: bool) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    if audience == Audience::Zygote {
        rules.extend(ALLOWED_ZYGOTE.iter().map(|&call| (call, Vec::new())));
    }
    let equals = |index, value| {
        let condition = SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value)?;
        SeccompRule::new(vec![condition])
    };
    rules.insert(libc::SYS_clone, vec![equals(0, THREAD_FLAGS as u64)?, equals(0, FORK_FLAGS as u64)?]);
    let mut prctl = vec![equals(0, libc::PR_SET_NAME as u64)?, equals(0, libc::PR_GET_NAME as u64)?];
    if audience == Audience::Zygote {
        prctl.push(equals(0, libc::PR_SET_NO_NEW_PRIVS as u64)?);
        prctl.push(equals(0, libc::PR_SET_THP_DISABLE as u64)?);
    }
    rules.insert(libc::SYS_prctl, prctl);
    // Compares the type byte of the request; the upper 32 bits are ignored, because C callers may
    // sign-extend.
    let of_type = |kind: u64| {
        let condition =
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0xff00), kind << 8)?;
        SeccompRule::new(vec![condition])
    };
    let mut ioctl = vec![of_type(IOCTL_TAP)?];
    if kvm {
        ioctl.push(of_type(IOCTL_KVM)?);
    }
    rules.insert(libc::SYS_ioctl, ioctl);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(BpfProgram::try_from(filter)?)
}

/// `clone3` passes its flags in memory, where no filter can see them. "Not implemented" makes the C library use `clone`.
fn refuse_clone3() -> [sock_filter; 3] {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    [
        sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: 0 },
        sock_filter { code: JUMP_EQUAL, jt: 0, jf: 1, k: libc::SYS_clone3 as u32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: refuse },
    ]
}

/// Ends the process for a [`DEADLY`] call. The number is loaded already. Calls of another architecture have
/// other numbers; the program that follows ends the process for all of them.
fn end_process() -> impl Iterator<Item = sock_filter> {
    DEADLY.iter().flat_map(|call| {
        [
            sock_filter { code: JUMP_EQUAL, jt: 0, jf: 1, k: *call as u32 },
            sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
        ]
    })
}

fn bytes(instruction: &sock_filter) -> [u8; 8] {
    let (code, k) = (instruction.code.to_ne_bytes(), instruction.k.to_ne_bytes());
    [code[0], code[1], instruction.jt, instruction.jf, k[0], k[1], k[2], k[3]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_qemu_shim::protocol::FILTER_BYTES_MAX;

    #[test]
    fn seccomp_filters_fit_in_one_request() {
        for (audience, kvm) in [(Audience::Tenant, false), (Audience::Tenant, true), (Audience::Zygote, true)]
        {
            let filter = build(audience, kvm).unwrap();
            assert!(
                filter.len().is_multiple_of(8) && filter.len() <= FILTER_BYTES_MAX,
                "{} bytes",
                filter.len()
            );
        }
    }

    #[test]
    fn system_calls_that_start_programs_or_open_sockets_are_denied() {
        let all = [ALLOWED, ALLOWED_ZYGOTE].concat();
        for call in DEADLY.iter().chain(&[
            libc::SYS_clone3,
            libc::SYS_kill,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
        ]) {
            assert!(!all.contains(call), "system call {call}");
        }
    }

    /// Calls with one filter of tenants on, in a process of its own; how that ended.
    fn ends_with(call: i64, arguments: [usize; 2]) -> libc::c_int {
        let filter = build(Audience::Tenant, false).unwrap();
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len() / 8).unwrap(),
            filter: filter.as_ptr().cast_mut().cast(),
        };
        let mut status = 0;
        // SAFETY: between fork and exit the child makes system calls alone; the program outlives them.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let mode = libc::SECCOMP_SET_MODE_FILTER;
                libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program);
                let answer = libc::syscall(call, arguments[0], arguments[1], 0);
                libc::syscall(libc::SYS_exit_group, libc::c_long::from(answer >= 0));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        status
    }

    #[test]
    fn forbidden_system_calls_kill_the_process() {
        for call in [libc::SYS_socket, libc::SYS_ptrace, libc::SYS_execve, libc::SYS_bpf] {
            let status = ends_with(call, [libc::AF_INET as usize, libc::SOCK_STREAM as usize]);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS, "{call}: {status}");
        }
        let exit = |call| libc::WEXITSTATUS(ends_with(call, [0, 0]));
        assert_eq!((exit(libc::SYS_getpid), exit(libc::SYS_getppid), exit(libc::SYS_clone3)), (1, 0, 0));
    }
}
