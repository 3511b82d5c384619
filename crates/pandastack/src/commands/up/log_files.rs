//! Log files of `up` and its roles.

use std::path::{Path, PathBuf};

use crate::settings::Settings;

/// Log of `up` itself in the background.
pub const UP_LOG: &str = "up.log";
/// Lines of a log to include in an error.
pub const TAIL_LINES: usize = 15;

/// Logs that control writes.
const OF_CONTROL: [&str; 2] = ["control", "access"];
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

/// Log file of a role. Control renames its own, so they are in its own directory.
pub fn log_file(settings: &Settings, role: &str) -> PathBuf {
    let name = format!("{role}.log");
    match OF_CONTROL.contains(&role) {
        true => settings.data_dir.join("control").join("logs").join(name),
        false => logs_dir(&settings.data_dir).join(name),
    }
}

/// Lets control's logs be found beside the others, where earlier versions wrote them.
pub fn link_logs_of_control(settings: &Settings) -> std::io::Result<()> {
    for role in OF_CONTROL {
        let name = format!("{role}.log");
        let link = logs_dir(&settings.data_dir).join(&name);
        match std::fs::symlink_metadata(&link) {
            Ok(found) if found.is_symlink() => continue,
            Ok(_) => std::fs::rename(&link, link.with_extension("log.1"))?,
            Err(_) => {}
        }
        std::os::unix::fs::symlink(Path::new("../control/logs").join(&name), &link)?;
    }
    Ok(())
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
