//! Facts about the host that engines need.

use std::fs;
use std::path::PathBuf;

/// The program of that name on the path.
pub fn program_on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Vendor, family, model, stepping and microcode of the host's first processor: snapshots of
/// machines that see the host's processor are bound to it.
pub fn processor() -> String {
    const KEYS: [&str; 5] = ["vendor_id", "cpu family", "model", "stepping", "microcode"];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    let fields = first.lines().filter_map(|line| line.split_once(':'));
    let wanted = fields.filter(|(key, _)| KEYS.contains(&key.trim()));
    wanted.map(|(key, value)| format!("{}={}", key.trim(), value.trim())).collect::<Vec<_>>().join(" ")
}
