//! Lines on the machine's console while it boots. Afterwards the program is quiet: console output
//! is slow under emulation, and important messages use the channel.

use std::io::Write;

/// One line, with the time since boot.
pub(crate) fn log(message: &str) {
    let uptime_ms = crate::machine::uptime_ms();
    // A machine without a console is fine.
    let _ = writeln!(
        std::io::stderr(),
        "pandastack-guest: [{}.{:03}] {message}",
        uptime_ms / 1000,
        uptime_ms % 1000
    );
}
