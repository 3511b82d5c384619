//! Confines a process: root directory, user, system call filter.
//!
//! Two ways to the same end. A child is still single-threaded and uses bare system calls; a restored process already
//! has threads, so user changes go through the C library, which carries them to each, and the filter is synchronised by
//! the kernel.

use libc::c_int;

use crate::protocol::{Identity, Lockdown, PATH_BYTES_MAX, PathText};
use crate::sys::{self, Errno};

/// Locks in the single thread of a child.
pub(crate) fn confine_thread(identity: Option<Identity>, lockdown: &Lockdown<'_>) -> sys::Result<()> {
    enter_root(&lockdown.root)?;
    if let Some(Identity { uid, gid }) = identity {
        let (uid, gid) = (uid as usize, gid as usize);
        // SAFETY: no pointers are followed for an empty group list.
        unsafe {
            sys::call(libc::SYS_setgroups, [0, 0])?;
            sys::call(libc::SYS_setresgid, [gid, gid, gid])?;
            sys::call(libc::SYS_setresuid, [uid, uid, uid])?;
        }
    }
    install_filter(lockdown.filter, 0)
}

/// Locks in a running process with all its threads.
pub(crate) fn confine_process(identity: Option<Identity>, lockdown: &Lockdown<'_>) -> sys::Result<()> {
    enter_root(&lockdown.root)?;
    if let Some(Identity { uid, gid }) = identity {
        // SAFETY: no pointers are followed for an empty group list.
        unsafe {
            check(libc::setgroups(0, core::ptr::null()))?;
            check(libc::setresgid(gid, gid, gid))?;
            check(libc::setresuid(uid, uid, uid))?;
        }
    }
    install_filter(lockdown.filter, libc::SECCOMP_FILTER_FLAG_TSYNC as usize)
}

fn check(answer: c_int) -> sys::Result<()> {
    // SAFETY: the error place of the calling thread.
    if answer == 0 { Ok(()) } else { Err(Errno(unsafe { *libc::__errno_location() })) }
}

/// Makes a directory the root of all threads; they share it.
fn enter_root(root: &PathText) -> sys::Result<()> {
    let bytes = root.as_bytes();
    if bytes.is_empty() {
        return Ok(());
    }
    let mut path = [0u8; PATH_BYTES_MAX + 1];
    path[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: both paths are NUL-terminated.
    unsafe {
        sys::call(libc::SYS_chroot, [path.as_ptr() as usize])?;
        sys::call(libc::SYS_chdir, [c"/".as_ptr() as usize])?;
    }
    Ok(())
}

/// Installs a filter; empty means that the one inherited stays.
fn install_filter(filter: &[u8], flags: usize) -> sys::Result<()> {
    if filter.is_empty() {
        return Ok(());
    }
    let program = FilterProgram { len: (filter.len() / 8) as u16, instructions: filter.as_ptr() };
    // SAFETY: the program and its instructions outlive the calls; the kernel copies them.
    unsafe {
        sys::call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0])?;
        let operation = libc::SECCOMP_SET_MODE_FILTER as usize;
        // With TSYNC a positive answer is the thread that could not follow.
        match sys::call(libc::SYS_seccomp, [operation, flags, &raw const program as usize])? {
            0 => Ok(()),
            _ => Err(Errno(libc::EBUSY)),
        }
    }
}

/// `struct sock_fprog`, with the instructions as the bytes they came in.
#[repr(C)]
struct FilterProgram {
    len: u16,
    instructions: *const u8,
}
