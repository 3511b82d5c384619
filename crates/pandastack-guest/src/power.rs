//! Powers off or reboots the machine.

use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::UserCgroup;
use crate::server::Shutdown;

/// Time for killed processes to be gone, so that the disk can be made read-only.
const KILL_WAIT_MAX: Duration = Duration::from_secs(2);

/// Ends every process, writes the disk out and powers off. Failing steps are skipped: the machine
/// powers off in any case.
pub(crate) fn power_off(shutdown: Shutdown, cgroup: Option<&UserCgroup>) {
    if let Some(cgroup) = cgroup {
        let _ = cgroup.thaw();
        for pid in cgroup.pids() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = cgroup.wait_empty(Duration::from_millis(shutdown.grace_ms.into()));
        let _ = cgroup.kill();
        let _ = cgroup.wait_empty(KILL_WAIT_MAX);
    }
    nix::unistd::sync();
    let _ = mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>);
    end();
}

/// Stops a machine that cannot continue, leaving its console readable. PID 1 must not return.
pub(crate) fn halt() -> ! {
    nix::unistd::sync();
    end();
    loop {
        nix::unistd::pause();
    }
}

/// Ends the machine. Engines end its process on a reboot, and some of them cannot power it off.
fn end() {
    let _ = reboot(RebootMode::RB_AUTOBOOT);
}
