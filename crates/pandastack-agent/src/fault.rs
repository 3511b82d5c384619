//! Points at which a test ends the agent as `kill -9` would.
//!
//! Where `PANDASTACK_FAULT_FILE` names a file and that file holds the name of a point, the agent removes the file and
//! kills itself when it gets there; its successor finds no file and passes. Without the variable a point costs nothing.
//! The points stand between two writes of which a crash could separate the first from the second.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Names of all points, for tests that go through them.
#[cfg(test)]
pub(crate) const NAMES: &[&str] = &[
    "capture.forked",
    "capture.taken",
    "snapshot.published",
    "hibernate.published",
    "hibernate.recorded",
    "wake.restored",
    "wake.recorded",
    "rollback.published",
    "rollback.recorded",
    "rollback.ended",
    "fork.made",
    "create.made",
    "create.recorded",
    "delete.ended",
];

/// Ends the agent here if a test asked for it.
pub(crate) fn point(name: &'static str) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| std::env::var_os("PANDASTACK_FAULT_FILE").map(PathBuf::from)) else {
        return;
    };
    if std::fs::read_to_string(file).is_ok_and(|wanted| wanted.trim() == name)
        && std::fs::remove_file(file).is_ok()
    {
        tracing::warn!(name, "a test ends the agent here");
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn every_point_is_named_once_and_stands_somewhere() {
        let sources = [
            include_str!("capture.rs"),
            include_str!("sandbox/capture.rs"),
            include_str!("sandbox/sleep.rs"),
            include_str!("sandbox/rollback.rs"),
            include_str!("sandbox/fork.rs"),
            include_str!("sandbox/create.rs"),
            include_str!("sandbox/driver.rs"),
        ];
        for name in NAMES {
            let found: usize = sources.iter().map(|text| text.matches(&format!("\"{name}\"")).count()).sum();
            assert_eq!(found, 1, "{name}");
        }
    }
}
