//! Disables kernel housekeeping that runs in an idle machine.
//!
//! A machine that does nothing should cost nothing: a host has hundreds of them, and each timer that goes off in each of them
//! is processor time taken from those that work. On an emulated machine these three are most of it.

use crate::console::log;

const SETTINGS: [(&str, &str); 3] = [
    // Looks twice a second whether memory is fragmented. It is still compacted when somebody needs a large piece.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Seconds between two looks at the counters of memory; they only feed what /proc shows.
    ("/proc/sys/vm/stat_interval", "60"),
    // Looks for processors that hang. Nobody in here could do anything about it: the host has its own way to ask.
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
