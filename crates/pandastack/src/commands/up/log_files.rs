//! Log files of `up` and its roles.

use std::path::{Path, PathBuf};

use crate::settings::Settings;

/// Lines of a log to include in an error.
pub const TAIL_LINES: usize = 15;

/// Directory of all logs.
pub fn logs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// Log file of a role.
pub fn log_file(settings: &Settings, role: &str) -> PathBuf {
    logs_dir(&settings.data_dir).join(format!("{role}.log"))
}
