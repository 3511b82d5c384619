//! The reason for a kernel panic, from a machine's console. The tenant can read it, so it contains nothing
//! about the host.

use std::path::Path;

use crate::logs::read_tail;

/// Start of the kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing";
/// End of the panic message, if the kernel does not reboot.
const PANIC_END: &str = "---[ end Kernel panic";
/// Last lines of a console to show.
const LINES_MAX: usize = 12;
/// Longest text of these lines; it becomes part of records, views and events.
const BYTES_MAX: usize = 2048;

/// Reason of a guest kernel's panic, with the last lines of the console; `None` without a panic.
pub(crate) fn kernel_panic(console: &Path) -> Option<String> {
    panic_in(&String::from_utf8_lossy(&read_tail(console)))
}

fn panic_in(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let at = lines.iter().rposition(|line| line.contains(PANIC) && !line.contains(PANIC_END))?;
    let reason = lines[at].split(PANIC).nth(1).unwrap_or_default().trim_start_matches(':').trim();
    let reason = if reason.is_empty() { "without a reason" } else { reason };
    // The lines after the panic belong to it; the lines before show what led to it.
    let end = lines.len().min(at + LINES_MAX / 2);
    let shown = lines[end.saturating_sub(LINES_MAX)..end].join(" | ");
    Some(format!("the guest's kernel panicked: {reason}; last console lines: {}", printable(&shown)))
}

/// The end of a text, without control sequences.
fn printable(text: &str) -> String {
    let start = (text.len().saturating_sub(BYTES_MAX)..text.len()).find(|at| text.is_char_boundary(*at));
    text[start.unwrap_or(0)..].chars().filter(|one| !one.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "[    0.5] booted\r\n[  12.1] sysrq: Trigger a crash\r\n\
        [  12.2] Kernel panic - not syncing: sysrq triggered crash\r\n[  12.3] CPU: 0 PID: 211 Comm: sh\r\n\
        [  12.4] Call Trace:\r\n[  12.9] Rebooting in 1 seconds..\r\n";

    #[test]
    fn a_guest_panic_report_includes_the_last_lines() {
        let told = panic_in(CONSOLE).unwrap();
        assert!(
            told.starts_with("the guest's kernel panicked: sysrq triggered crash; last console lines: "),
            "{told}"
        );
        assert!(told.contains("Trigger a crash | ") && told.ends_with("Rebooting in 1 seconds.."), "{told}");
        assert!(!told.contains('\r'));
        let bare = panic_in("Kernel panic - not syncing\n").unwrap();
        assert!(bare.starts_with("the guest's kernel panicked: without a reason; "), "{bare}");
    }

    #[test]
    fn the_kernel_panic_text_is_bounded() {
        let long = format!("{}\nKernel panic - not syncing: {}\n", "ä".repeat(5000), "x");
        let told = panic_in(&long).unwrap();
        assert!(told.len() < BYTES_MAX + 200 && told.contains("panicked: x"), "{}", told.len());
    }

    #[test]
    fn a_console_log_without_a_panic_reports_none() {
        assert_eq!(panic_in("[ 0.5] booted\nlogin:\n"), None);
        assert_eq!(kernel_panic(Path::new("/nonexistent/console.log")), None);
    }
}
