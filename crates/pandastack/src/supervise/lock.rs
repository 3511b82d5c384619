//! The lock of a data directory: one `up` or one standalone agent at a time.
//!
//! The kernel releases the file lock when its holder ends, for any reason. The file's contents name
//! the current or last holder and the host resources it used, for `down` and for a second `up`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// Name of the lock in a data directory.
pub const FILE: &str = "up.lock";

/// The process that holds a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id of the supervisor.
    pub pid: i32,
    /// URL of the API for clients on this machine; empty for a standalone agent.
    pub api_url: String,
    /// Directory for sockets.
    pub runtime_dir: PathBuf,
    /// Subnet for sandbox addresses.
    pub subnet: String,
    /// Prefix for network interface names.
    pub net_prefix: String,
}

/// The lock, held until dropped.
#[derive(Debug)]
pub struct UpLock(#[allow(dead_code, reason = "the open file is the lock")] File);

/// Outcome of [`UpLock::claim`].
#[derive(Debug)]
pub enum Claim {
    /// This process now holds the lock.
    Acquired(UpLock),
    /// Another process holds it; `None` until it has written its details.
    Held(Option<Holder>),
}

impl UpLock {
    /// Acquires the lock of a data directory, or returns its holder.
    pub fn claim(data_dir: &Path, holder: &Holder) -> Result<Claim> {
        let mut file = open(data_dir)?;
        if !try_lock(&file)? {
            return Ok(Claim::Held(read(&mut file)));
        }
        file.set_len(0).context("cannot write the lock file")?;
        file.rewind().context("cannot write the lock file")?;
        file.write_all(&serde_json::to_vec(holder)?).context("cannot write the lock file")?;
        Ok(Claim::Acquired(UpLock(file)))
    }

    /// The current or last holder of a data directory, and whether it still holds it; `None` if it
    /// was never used.
    pub fn last_holder(data_dir: &Path) -> Result<Option<(Holder, bool)>> {
        if !data_dir.join(FILE).exists() {
            return Ok(None);
        }
        let mut file = open(data_dir)?;
        let held = !try_lock(&file)?;
        Ok(read(&mut file).map(|holder| (holder, held)))
    }
}

fn open(data_dir: &Path) -> Result<File> {
    let path = data_dir.join(FILE);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    file.with_context(|| format!("cannot open the lock file {}", path.display()))
}

fn try_lock(file: &File) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error).context("cannot lock the data directory"),
    }
}

fn read(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let holder = Holder {
            pid: 7,
            api_url: "http://127.0.0.1:1".into(),
            runtime_dir: dir.path().to_owned(),
            subnet: "10.1.0.0/16".into(),
            net_prefix: "x".into(),
        };
        assert_eq!(UpLock::last_holder(dir.path()).unwrap(), None);
        let Claim::Acquired(lock) = UpLock::claim(dir.path(), &holder).unwrap() else {
            panic!("lock is free")
        };
        let Claim::Held(seen) = UpLock::claim(dir.path(), &holder).unwrap() else { panic!("lock is taken") };
        assert_eq!(seen, Some(holder.clone()));
        assert_eq!(UpLock::last_holder(dir.path()).unwrap(), Some((holder.clone(), true)));
        drop(lock);
        assert_eq!(UpLock::last_holder(dir.path()).unwrap(), Some((holder, false)));
    }
}
