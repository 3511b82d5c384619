//! Leftovers of a platform that was removed. A clean one leaves nothing.

use std::collections::BTreeSet;
use std::fs::{DirEntry, read_dir, read_link};
use std::path::Path;

use crate::platform::PlatformDirs;

/// Beginning of a machine process's name.
const MACHINE: &str = "qemu-system";

/// Processes, mounts, interfaces and directories of that platform, and machines orphaned since
/// `orphans_before`.
pub fn found(place: &PlatformDirs, orphans_before: &BTreeSet<String>) -> Vec<String> {
    let marks = [place.data_dir.display().to_string(), place.runtime_dir.display().to_string()];
    let is_ours = |text: &str| marks.iter().any(|mark| text.contains(mark.as_str()));
    let mut found: Vec<String> = orphans().difference(orphans_before).cloned().collect();
    for entry in entries("/proc") {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if is_ours(&command) && name(&entry) != std::process::id().to_string() {
            found.push(format!("process {}: {command}", name(&entry)));
        }
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| is_ours(line)).map(|line| format!("mount {line}")));
    let prefix = format!("{}-", place.net_prefix);
    let interfaces = entries("/sys/class/net").filter(|entry| name(entry).starts_with(&prefix));
    found.extend(interfaces.map(|entry| format!("interface {}", name(&entry))));
    for dir in [&place.data_dir, &place.runtime_dir] {
        if dir.exists() {
            found.push(format!("directory {}", dir.display()));
        }
    }
    found
}

/// Machines whose files are gone, so that no process will end them. Machines of other users'
/// platforms on this host still have their files, so they are not included.
pub fn orphans() -> BTreeSet<String> {
    entries("/proc").filter_map(|entry| orphan(&entry)).collect()
}

fn orphan(process: &DirEntry) -> Option<String> {
    let command = std::fs::read_to_string(process.path().join("comm")).ok()?;
    if !command.starts_with(MACHINE) {
        return None;
    }
    let files = entries(process.path().join("fd")).filter_map(|entry| read_link(entry.path()).ok());
    let mut gone = files.map(|file| file.display().to_string()).filter(|file| {
        // Memory and temporary files are unlinked on purpose; a machine's console never is.
        file.contains("console") && file.ends_with(" (deleted)")
    });
    gone.next().map(|file| format!("machine {} without its files: {file}", name(process)))
}

fn entries(dir: impl AsRef<Path>) -> impl Iterator<Item = DirEntry> {
    read_dir(dir).into_iter().flatten().flatten()
}

fn name(entry: &DirEntry) -> String {
    entry.file_name().to_string_lossy().into_owned()
}
