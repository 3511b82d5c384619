//! Packs a local directory: the files that Git tracks or would add, or all files except build artifacts.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Directories to exclude outside a Git repository.
const EXCLUDED_DIRS: [&str; 6] = [".git", "node_modules", ".venv", "venv", "__pycache__", ".next"];

/// Packs a directory.
pub(super) fn pack(file: File, directory: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(file));
    archive.follow_symlinks(false);
    for path in files(directory)? {
        let full = directory.join(&path);
        // A tracked file that was deleted.
        if full.symlink_metadata().is_err() {
            continue;
        }
        archive
            .append_path_with_name(&full, &path)
            .with_context(|| format!("cannot pack {}", full.display()))?;
    }
    archive.into_inner()?.into_inner().context("cannot write the archive")?;
    Ok(())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    if let Some(files) = git_files(directory) {
        return Ok(files);
    }
    let mut found = Vec::new();
    walk(directory, Path::new(""), &mut found)?;
    Ok(found)
}

/// Files that Git tracks or would add; `None` outside a repository.
fn git_files(directory: &Path) -> Option<Vec<PathBuf>> {
    let listed = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .output()
        .ok()
        .filter(|listed| listed.status.success())?;
    let paths: BTreeSet<_> = String::from_utf8_lossy(&listed.stdout)
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect();
    (!paths.is_empty()).then(|| paths.into_iter().collect())
}

fn walk(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let here = root.join(below);
    for entry in std::fs::read_dir(&here).with_context(|| format!("cannot read {}", here.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if EXCLUDED_DIRS.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => walk(root, &path, found)?,
            false => found.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_artifacts_are_excluded() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["a.js", "lib/b.js", "node_modules/x/index.js", "lib/__pycache__/c"] {
            let full = directory.path().join(path);
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            std::fs::write(full, "").unwrap();
        }
        let mut found = Vec::new();
        walk(directory.path(), Path::new(""), &mut found).unwrap();
        found.sort();
        assert_eq!(found, [PathBuf::from("a.js"), PathBuf::from("lib/b.js")]);
    }
}
