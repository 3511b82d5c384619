//! Digests of a release, and their signature.

use std::path::Path;

use anyhow::{Context, Result};

use super::plan::Release;
use crate::program::{program, read, run};

/// File with the digests, in the form of `sha256sum`.
const SUMS: &str = "SHA256SUMS";

/// Writes the digests and, with a key, their signature.
pub fn write(release: &Release, key: Option<&Path>) -> Result<()> {
    let mut files = Vec::new();
    list(&release.out, Path::new(""), &mut files)?;
    files.sort();
    let mut sums = program("sha256sum");
    sums.current_dir(&release.out).arg("--").args(&files);
    let sums = read(sums)?;
    let target = release.out.join(SUMS);
    std::fs::write(&target, sums).with_context(|| format!("write {}", target.display()))?;
    let Some(key) = key else {
        eprintln!("Not signed: name a minisign key with --key.");
        return Ok(());
    };
    let mut sign = program("minisign");
    sign.arg("-S").arg("-s").arg(key).arg("-m").arg(&target);
    // A time in the comment would make two releases of one commit differ.
    sign.args(["-t", &format!("pandastack {}", release.version)]);
    run(sign).context("sign the digests")
}

/// Adds every file below `dir`, relative to the release.
fn list(dir: &Path, relative: &Path, files: &mut Vec<String>) -> Result<()> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        let name = relative.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            list(&path, &name, files)?;
        } else {
            files.push(name.display().to_string());
        }
    }
    Ok(())
}
