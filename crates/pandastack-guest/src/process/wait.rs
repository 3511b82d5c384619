//! Waits for children that do not belong to a request.

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Waits for a child of the event loop itself, such as a hook. No other thread reaps.
pub(crate) fn wait_child(pid: i32) {
    // The process ended; its status does not matter.
    let _ = waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::__WALL);
}
