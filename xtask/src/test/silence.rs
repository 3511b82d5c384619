//! Ends a suite that prints nothing for too long, so that one test that hangs does not use up the run.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest silence of Rust tests. The slowest test takes two minutes alone, and several times that beside others.
pub const RUST_MAX: Duration = Duration::from_secs(600);
/// The same with the tests that take many minutes.
pub const RUST_FULL_MAX: Duration = Duration::from_secs(7200);

/// Watches one program. Dropped, it stops watching.
pub struct Watch {
    lines: Sender<()>,
    watcher: JoinHandle<bool>,
}

impl Watch {
    /// Kills `pid` and its descendants as soon as no line was reported for `limit`.
    pub fn begin(pid: u32, limit: Duration) -> Self {
        let (lines, reported) = channel();
        let watcher = std::thread::spawn(move || watch(pid, limit, &reported));
        Self { lines, watcher }
    }

    /// A line was printed.
    pub fn line(&self) {
        // Sending fails only after the watcher killed the program.
        let _ = self.lines.send(());
    }

    /// Stops watching. Returns whether the program was killed.
    pub fn end(self) -> bool {
        drop(self.lines);
        self.watcher.join().unwrap_or(false)
    }
}

fn watch(pid: u32, limit: Duration, reported: &Receiver<()>) -> bool {
    loop {
        match reported.recv_timeout(limit) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                for one in family(pid) {
                    // The process may have ended already.
                    let _ = kill(Pid::from_raw(one), Signal::SIGKILL);
                }
                return true;
            }
        }
    }
}

/// A process and all its descendants, parents first.
fn family(pid: u32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_in(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found: Vec<i32> = pid.try_into().into_iter().collect();
    let mut next = 0;
    while let Some(one) = found.get(next).copied() {
        found.extend(children.remove(&one).unwrap_or_default());
        next += 1;
    }
    found
}

/// The parent in `/proc/PID/stat`, behind the name, which may have spaces and parentheses.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_silent_program_is_killed_with_its_children() {
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", "sleep 1000 & echo $!; wait"]).spawn().unwrap();
        let watch = Watch::begin(child.id(), Duration::from_millis(200));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(watch.end());
    }

    #[test]
    fn a_program_that_prints_is_not_killed() {
        let watch = Watch::begin(std::process::id(), Duration::from_secs(600));
        watch.line();
        assert!(!watch.end());
    }

    #[test]
    fn process_names_may_contain_parentheses() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("rubbish"), None);
    }
}
