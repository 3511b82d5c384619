//! Recreates the threads of the parent in a child.
//!
//! A fork copies one thread. The others are recreated with `clone`, each with its old thread pointer, and return
//! through the signal frame their original left on its stack, so they continue where it was interrupted, with its
//! registers, floating point state, signal mask and alternate stack.

use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicIsize, Ordering};

use libc::c_int;

use crate::park::{self, Frame, Slot};
use crate::sys::{self, Errno};

/// The flags of the C library's own threads; a system call filter lets just these through.
const THREAD_FLAGS: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// Part of a thread control block that is searched for the thread id.
const TID_SEARCH: core::ops::Range<usize> = 0x100..0x800;
/// Left untouched below a frame: the return address of the handler, and a red zone.
const FRAME_GAP: usize = 256;
/// Signature in front of restartable sequences, as the C library registers them.
const RSEQ_SIGNATURE: usize = 0x5305_3053;
/// Size of the area that every kernel accepts.
const RSEQ_BYTES: usize = 32;
/// Value of `cpu_id` that makes the C library ignore the area.
const RSEQ_UNREGISTERED: c_int = -2;

/// Offset of the thread id in a thread control block; 0 while unknown.
static TID_AT: AtomicI32 = AtomicI32::new(0);
/// Offset of the area for restartable sequences from the thread pointer; 0 when the C library uses none.
static RSEQ_AT: AtomicIsize = AtomicIsize::new(0);

/// Learns how the C library lays out its threads, from the calling one. Before any park.
pub(crate) fn learn_layout() {
    let (base, tid) = (park::fs_base(), sys::gettid());
    let found = TID_SEARCH.step_by(size_of::<c_int>()).find(|at| {
        // SAFETY: the control block of a living thread is larger than the range searched.
        unsafe { *((base + at) as *const c_int) == tid }
    });
    TID_AT.store(found.unwrap_or(0) as i32, Ordering::Relaxed);
    // SAFETY: looking a symbol up by a NUL-terminated name; it is a `ptrdiff_t` where it exists.
    unsafe {
        let symbol: *mut c_void = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
        let size: *mut c_void = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
        if !symbol.is_null() && !size.is_null() && *size.cast::<u32>() != 0 {
            RSEQ_AT.store(*symbol.cast::<isize>(), Ordering::Relaxed);
        }
    }
}

/// Address of a thread's id in its control block.
fn tid_place(fs_base: usize) -> *mut c_int {
    (fs_base + TID_AT.load(Ordering::Relaxed) as usize) as *mut c_int
}

/// Returns whether the layout is known and holds for this thread.
pub(crate) fn is_layout_known(frame: &Frame) -> bool {
    // SAFETY: the frame belongs to a living thread.
    TID_AT.load(Ordering::Relaxed) != 0 && unsafe { *tid_place(frame.fs_base) } == frame.tid
}

/// In a child: completes the state of the one copied thread. `robust_list` is the original
/// thread's.
pub(crate) fn adopt_this_thread(robust_list: (usize, usize)) {
    // SAFETY: our own control block; no other thread exists.
    unsafe { *tid_place(park::fs_base()) = sys::gettid() };
    register_robust_list(robust_list);
}

/// The robust list of the calling thread.
pub(crate) fn robust_list() -> (usize, usize) {
    let mut list = (0, 0);
    // SAFETY: the call writes two words.
    let _ = unsafe {
        sys::call(libc::SYS_get_robust_list, [0, &raw mut list.0 as usize, &raw mut list.1 as usize])
    };
    list
}

fn register_robust_list((head, size): (usize, usize)) {
    if head != 0 {
        // SAFETY: the head is in the thread's own control block, where it was registered before.
        let _ = unsafe { sys::call(libc::SYS_set_robust_list, [head, size]) };
    }
}

/// Registers restartable sequences, which threads do not inherit. If the kernel refuses, marks the
/// area as unregistered: the C library would otherwise use the processor number of the thread that
/// this one was copied from.
fn register_rseq() {
    let at = RSEQ_AT.load(Ordering::Relaxed);
    if at == 0 {
        return;
    }
    let area = park::fs_base().wrapping_add_signed(at);
    // SAFETY: the area belongs to this thread; its first two words are `cpu_id_start` and `cpu_id`.
    unsafe {
        if sys::call(libc::SYS_rseq, [area, RSEQ_BYTES, 0, RSEQ_SIGNATURE]).is_err() {
            *((area + size_of::<c_int>()) as *mut c_int) = RSEQ_UNREGISTERED;
        }
    }
}

/// Makes the thread of `slot` again. It runs on its original's stack, below the frame, where nothing is alive any more.
///
/// # Safety
/// Only in a child whose parent had the thread parked in `slot`, once.
pub(crate) unsafe fn recreate(slot: &'static Slot) -> sys::Result<()> {
    // SAFETY: parked in the parent, so READY in the copy.
    let frame = unsafe { slot.frame() };
    let stack = (frame.context as usize - FRAME_GAP) & !15;
    let tid = tid_place(frame.fs_base);
    let answer: isize;
    // SAFETY: the new thread starts behind the instruction with rax = 0, its own stack and every
    // other register as here; it never returns from `resume`. In the caller the call clobbers rcx,
    // r11 and memory only.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call {resume}",
            "ud2",
            "2:",
            resume = sym resume,
            in("r12") slot,
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") THREAD_FLAGS as usize,
            in("rsi") stack,
            in("rdx") tid,
            in("r10") tid,
            in("r8") frame.fs_base,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if answer > 0 { Ok(()) } else { Err(Errno(-answer as i32)) }
}

/// First and last code of our own in a recreated thread: registers its per-thread kernel state,
/// then returns from the signal that parked the original.
extern "C" fn resume(slot: &'static Slot) -> ! {
    // SAFETY: as in `recreate`.
    let frame = unsafe { *slot.frame() };
    register_robust_list(frame.robust_list);
    register_rseq();
    // SAFETY: the name is NUL-terminated by the kernel that gave it.
    let _ = unsafe { sys::call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, frame.name.as_ptr() as usize]) };
    slot.free();
    // SAFETY: the kernel expects the stack pointer of the frame's ucontext; the call does not
    // return.
    unsafe {
        asm!("mov rsp, {frame}", "syscall", "ud2", frame = in(reg) frame.context,
            in("rax") libc::SYS_rt_sigreturn, options(noreturn));
    }
}
