//! Disables kernel housekeeping that runs in an idle machine.
//!
//! An idle machine should cost nothing: a host has hundreds of them, and each timer that fires in
//! one of them takes processor time from busy machines. On an emulated machine these three timers
//! are most of it.

use crate::console::log;

const SETTINGS: [(&str, &str); 3] = [
    // Checks twice a second whether memory is fragmented. The kernel still compacts memory when an
    // allocation needs a large block.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Seconds between updates of the memory counters; they only affect the values in /proc.
    ("/proc/sys/vm/stat_interval", "60"),
    // Detects processors that hang. Nothing in the guest could react to that: the host has its own
    // health check.
    ("/proc/sys/kernel/watchdog", "0"),
];

/// Turns it down. A kernel without a setting has nothing to turn down.
pub(super) fn settle() {
    for (setting, value) in SETTINGS {
        match std::fs::write(setting, value) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                log(&format!("{setting} not set: {error}"));
            }
            _ => {}
        }
    }
}
