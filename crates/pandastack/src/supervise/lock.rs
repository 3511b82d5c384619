//! One `up`, or one agent that runs alone, per data directory.
//!
//! The kernel's file lock says whether one runs: it is gone with its holder, however that ended. The file's text says
//! who holds it, or held it last, and what it used of the machine, for `down` and for a second `up`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

const FILE: &str = "up.lock";

/// Who has a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id of the supervisor.
    pub pid: i32,
    /// URL of the API for clients on this machine; empty for an agent that runs alone.
    pub api_url: String,
    /// Where sockets are kept.
    pub runtime_dir: PathBuf,
    /// Network of the slots.
    pub subnet: String,
    /// Prefix of interface names.
    pub net_prefix: String,
}

/// Held as long as it lives.
#[derive(Debug)]
pub struct UpLock(#[allow(dead_code, reason = "the open file is the lock")] File);

/// What came of asking for the lock.
#[derive(Debug)]
pub enum Claim {
    /// It is ours.
    Taken(UpLock),
    /// Somebody has it; `None` while they have not yet written down who.
    Held(Option<Holder>),
}

impl UpLock {
    /// Takes the lock of a data directory, or says who has it.
    pub fn claim(data_dir: &Path, holder: &Holder) -> Result<Claim> {
        let mut file = open(data_dir)?;
        if !try_lock(&file)? {
            return Ok(Claim::Held(read(&mut file)));
        }
        file.set_len(0).context("write the lock")?;
        file.rewind().context("write the lock")?;
        file.write_all(&serde_json::to_vec(holder)?).context("write the lock")?;
        Ok(Claim::Taken(UpLock(file)))
    }

    /// Who has a data directory, or had it last, and whether they still do. `None` when nobody ever did.
    pub fn look(data_dir: &Path) -> Result<Option<(Holder, bool)>> {
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
    file.with_context(|| format!("open the lock {}", path.display()))
}

fn try_lock(file: &File) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error).context("lock the data directory"),
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
        assert_eq!(UpLock::look(dir.path()).unwrap(), None);
        let Claim::Taken(lock) = UpLock::claim(dir.path(), &holder).unwrap() else { panic!("lock is free") };
        let Claim::Held(seen) = UpLock::claim(dir.path(), &holder).unwrap() else { panic!("lock is taken") };
        assert_eq!(seen, Some(holder.clone()));
        assert_eq!(UpLock::look(dir.path()).unwrap(), Some((holder.clone(), true)));
        drop(lock);
        assert_eq!(UpLock::look(dir.path()).unwrap(), Some((holder, false)));
    }
}
