//! A local directory as an archive: what git would keep, or all but what every build makes anew.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Directories that a build makes anew, where git does not say what belongs to the source.
const MADE_ANEW: [&str; 6] = [".git", "node_modules", ".venv", "venv", "__pycache__", ".next"];

/// Packs a directory.
pub(super) fn pack(file: File, directory: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(BufWriter::new(file));
    archive.follow_symlinks(false);
    for path in files(directory)? {
        let full = directory.join(&path);
        // A file that git knows and that was deleted since.
        if full.symlink_metadata().is_err() {
            continue;
        }
        archive.append_path_with_name(&full, &path).with_context(|| format!("pack {}", full.display()))?;
    }
    archive.into_inner()?.into_inner().context("write the archive")?;
    Ok(())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    if let Some(files) = by_git(directory) {
        return Ok(files);
    }
    let mut found = Vec::new();
    walk(directory, Path::new(""), &mut found)?;
    Ok(found)
}

/// Files that git has or would take; `None` where there is no repository.
fn by_git(directory: &Path) -> Option<Vec<PathBuf>> {
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
    for entry in std::fs::read_dir(&here).with_context(|| format!("read {}", here.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if MADE_ANEW.iter().any(|name| entry.file_name() == *name) {
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
    fn what_a_build_makes_anew_stays_here() {
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
