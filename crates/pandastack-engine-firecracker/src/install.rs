//! Installing Firecracker: copies the pinned programs into the data directory.
//!
//! A snapshot is bound to a minor version of Firecracker, and the jailer is what confines tenants, so
//! only the very files that this engine was tested with are installed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use pandastack_engine::{EngineError, Result};
use sha2::{Digest, Sha256};

/// The version that is pinned.
pub const PINNED_VERSION: &str = "1.16.1";

/// A program and the SHA-256 of its file.
struct PinnedProgram {
    name: &'static str,
    sha256: &'static str,
}

/// The static x86-64 builds of [`PINNED_VERSION`]. The jailer comes first: without it Firecracker is
/// not used.
const PINNED: [PinnedProgram; 2] = [
    PinnedProgram {
        name: "jailer",
        sha256: "337b614ff8102d8bbe23152abe4f1f877b1adef786c97769b39ce2be6a8360cf",
    },
    PinnedProgram {
        name: "firecracker",
        sha256: "e3306a78d0110c565fb15aabcc5e0d8c1a082ee8e02d4da92fa7e90dd833559b",
    },
];

/// Directory of the installed programs.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("engines").join("firecracker")
}

/// The installed program, if there is one.
pub(crate) fn installed(data_dir: &Path) -> Option<PathBuf> {
    Some(directory(data_dir).join("firecracker")).filter(|path| path.is_file())
}

/// Installs the program at `from` and the jailer beside it. Returns where the program is now. Both
/// are checked before anything is written. Blocks.
pub fn install(from: &Path, data_dir: &Path) -> Result<PathBuf> {
    let dir = directory(data_dir);
    let mut checked = Vec::with_capacity(PINNED.len());
    for PinnedProgram { name, sha256 } in PINNED {
        let path = if name == "jailer" { from.with_file_name(name) } else { from.to_owned() };
        checked.push((dir.join(name), read_checked(&path, sha256)?));
    }
    fs::create_dir_all(&dir).map_err(EngineError::io("create", &dir))?;
    for (path, bytes) in &checked {
        replace(path, bytes).map_err(EngineError::io("install", path))?;
    }
    Ok(dir.join("firecracker"))
}

fn read_checked(path: &Path, expected: &str) -> Result<Vec<u8>> {
    let bytes = fs::read(path).map_err(EngineError::io("read", path))?;
    let found = HEXLOWER.encode(&Sha256::digest(&bytes));
    if found == expected {
        return Ok(bytes);
    }
    Err(EngineError::Unavailable(format!(
        "{} has the SHA-256 {found} instead of {expected}: it is not the pinned build of Firecracker \
         {PINNED_VERSION}",
        path.display()
    )))
}

/// Replaces a program by rename: machines that run have copies in their jails.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o755).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpinned_firecracker_build_is_not_installed() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("firecracker");
        fs::write(&from, "something else").unwrap();
        let missing = install(&from, dir.path()).unwrap_err().to_string();
        assert!(missing.contains("jailer"), "{missing}");
        fs::write(dir.path().join("jailer"), "something else").unwrap();
        let refused = install(&from, dir.path()).unwrap_err().to_string();
        assert!(refused.contains("SHA-256") && refused.contains(PINNED_VERSION), "{refused}");
        assert!(!directory(dir.path()).exists());
        assert_eq!(installed(dir.path()), None);
    }

    #[test]
    fn a_program_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        for contents in ["one", "two"] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
