//! The join secret, shared by control and agents: created once and readable by root only.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_types::link::LinkKey;

use crate::failure::Failure;

/// Random bytes of a new secret, written as twice as many hexadecimal digits.
const SECRET_BYTES: usize = 32;
/// Name of the file in the data directory.
const FILE: &str = "link-secret";

/// Generates a secret, in hexadecimal.
pub fn generate() -> Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).context("cannot get random bytes")?;
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

/// Path of the secret in a data directory.
pub fn path_in(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Creates the secret of a new data directory. One that was in use and has lost its secret is refused: with
/// another secret no derived password is right and no backup can be read.
pub fn ensure(data_dir: &Path, accept_new: bool) -> Result<PathBuf> {
    let path = path_in(data_dir);
    if path.exists() {
        return Ok(path);
    }
    if data_dir.join("control").exists() && !accept_new {
        let failure = Failure::new(format!("the join secret {} is missing", path.display()));
        return Err(failure
            .hint(
                "restore the file from a backup; if it is lost, start once with --accept-new-link-secret: \
                 database backups then stay unreadable, and database passwords, deploy keys and access \
                 tokens change",
            )
            .into());
    }
    // Written to a temporary file and renamed: a crash must not leave a partial secret.
    let fresh = path.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let write = || -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(generate()?.as_bytes())?;
        file.sync_all()?;
        Ok(std::fs::rename(&fresh, &path)?)
    };
    write().with_context(|| format!("cannot write the join secret {}", path.display()))?;
    Ok(path)
}

/// Reads a secret.
pub fn read(path: &Path) -> Result<LinkKey> {
    let hint = "run `pandastack join-secret` to generate one";
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(format!("cannot read the join secret {}: {error}", path.display())).hint(hint)
    })?;
    LinkKey::new(text.trim().as_bytes())
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())).hint(hint).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_created_once_for_root_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(first.len(), 2 * SECRET_BYTES);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        ensure(dir.path(), false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        read(&path).unwrap();
    }

    #[test]
    fn a_lost_secret_is_not_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        std::fs::create_dir(dir.path().join("control")).unwrap();
        ensure(dir.path(), false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(ensure(dir.path(), false).unwrap_err().to_string().contains("is missing"));
        assert!(!path.exists());
        ensure(dir.path(), true).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn a_weak_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), "short").unwrap();
        assert!(read(&dir.path().join("s")).is_err());
    }
}
