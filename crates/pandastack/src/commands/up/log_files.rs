//! Log files of `up` and its roles.

use std::path::{Path, PathBuf};

use crate::settings::Settings;

/// Log of `up` itself in the background.
pub const UP_LOG: &str = "up.log";
/// Lines of a log to include in an error.
pub const TAIL_LINES: usize = 15;

/// Problems of one role to include in an error.
const PROBLEM_LINES: usize = 5;
/// Marks of a line that is a warning or an error, in both formats of the log.
const LEVELS: [&str; 4] = [" WARN ", " ERROR ", "\"level\":\"WARN\"", "\"level\":\"ERROR\""];

/// Directory of all logs.
pub fn logs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// File for what a role writes to standard error: the error that it ends with, as JSON.
pub fn error_file(settings: &Settings, role: &str) -> PathBuf {
    logs_dir(&settings.data_dir).join(format!("{role}.error"))
}

/// Log file of a role.
pub fn log_file(settings: &Settings, role: &str) -> PathBuf {
    logs_dir(&settings.data_dir).join(format!("{role}.log"))
}

/// A position in a role's log, to read later lines.
pub struct LogMark {
    path: PathBuf,
    bytes: u64,
}

impl LogMark {
    /// The end of the log now.
    pub fn now(path: PathBuf) -> Self {
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Self { path, bytes }
    }

    /// The last warnings and errors that were added, oldest first.
    pub fn problems(&self) -> Vec<String> {
        let text = std::fs::read(&self.path).unwrap_or_default();
        // A log that is shorter now has been rotated.
        let start = usize::try_from(self.bytes).ok().filter(|start| *start <= text.len()).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[start..]).into_owned();
        let is_problem = |line: &&str| LEVELS.iter().any(|level| line.contains(level));
        let mut lines: Vec<String> = text.lines().filter(is_problem).map(str::to_owned).collect();
        lines.drain(..lines.len().saturating_sub(PROBLEM_LINES));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_warnings_and_errors_are_problems() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z ERROR old\n").unwrap();
        let mark = LogMark::now(path.clone());
        assert_eq!(mark.problems(), Vec::<String>::new());
        let text = "2026-01-01T00:00:00Z ERROR old\n2026-01-01T00:00:01Z  INFO fine\n\
                    2026-01-01T00:00:02Z  WARN new\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(mark.problems(), ["2026-01-01T00:00:02Z  WARN new"]);
        std::fs::write(&path, "{\"level\":\"ERROR\"}").unwrap();
        assert_eq!(mark.problems(), ["{\"level\":\"ERROR\"}"], "a rotated log");
    }
}
