//! Ending processes that were found in a control group.

use std::fs;
use std::io;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// Longest time for a killed process to be gone.
const END_SECONDS_MAX: i64 = 10;
/// Flag of kernel threads in the ninth field of `/proc/<pid>/stat`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Kills a process and waits until it has ended. A process that has already ended is a success.
pub(super) fn end_process(pid: u32) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return Ok(()) };
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        other => other?,
    };
    match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    let limit = Timespec { tv_sec: END_SECONDS_MAX, tv_nsec: 0 };
    match rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Returns whether a process is a kernel thread. KVM puts the thread of a machine's timer into the
/// machine's group; it cannot be killed, and ends with the machine.
pub(super) fn is_kernel_thread(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| has_kernel_flag(&stat))
}

fn has_kernel_flag(stat: &str) -> bool {
    // The name is in parentheses and may contain anything, parentheses included.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let flags = after_name.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_recognized() {
        assert!(has_kernel_flag("806 (kvm-pit/802) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 90795"));
        assert!(!has_kernel_flag(
            "802 (fire) S 2 (cracker) S 1 802 802 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0"
        ));
        assert!(!is_kernel_thread(std::process::id()));
        // If there are kernel threads at all, this is their parent.
        if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
            assert!(is_kernel_thread(2));
        }
    }
}
