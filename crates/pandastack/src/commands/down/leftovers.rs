//! Removes what remains after the platform stops: machines, network slots, the store's mount and files.
//!
//! Machines are found through their control groups, which hold exactly the processes of an installation.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};
use pandastack_agent::cgroup::Cgroups;
use pandastack_image::Store;
use pandastack_net::{NetConfig, NetError, SlotPool, prefix_is_free};

use crate::commands::agent::HOST_ID_FILE;
use crate::commands::runtime::block_on;
use crate::commands::up::{UP_LOG, logs_dir};
use crate::supervise::lock::{FILE as LOCK_FILE, Holder};
use crate::supervise::secret;

/// Stops every machine of this installation and removes its network slots.
pub fn stop_machines(data_dir: &Path, holder: &Holder) -> Result<()> {
    let Ok(host) = std::fs::read_to_string(data_dir.join(HOST_ID_FILE)) else {
        return Ok(());
    };
    let cgroups = Cgroups::open(host.trim()).context("cannot find the machines")?;
    let stopped = cgroups.end_outside(&HashSet::new()).context("cannot stop the machines")?;
    cgroups.remove();
    if !stopped.is_empty() {
        eprintln!("Stopped {} machine processes.", stopped.len());
    }
    block_on(remove_slots(holder))
}

async fn remove_slots(holder: &Holder) -> Result<()> {
    let config = NetConfig {
        subnet: holder.subnet.parse().context("invalid subnet in the lock file")?,
        name_prefix: holder.net_prefix.clone(),
        ready_target: 1,
        ..NetConfig::new(&holder.runtime_dir)
    };
    let slots = match SlotPool::open(config) {
        // The start failed because of it, before the first slot.
        Err(NetError::SubnetTaken { .. }) if prefix_is_free(&holder.net_prefix) => return Ok(()),
        opened => opened.context("cannot find the network slots")?,
    };
    slots.adopt(&[]).await.context("cannot release the network slots")?;
    slots.shutdown().await.context("cannot remove the network slots")
}

/// Removes the data directory and the sockets, after the machines have stopped.
pub fn purge(data_dir: &Path, holder: &Holder) -> Result<()> {
    if !secret::path_in(data_dir).exists() && !data_dir.join(HOST_ID_FILE).exists() {
        return remove_begun(data_dir, &holder.runtime_dir);
    }
    unmount_store(data_dir)?;
    remove(data_dir)?;
    remove(&holder.runtime_dir)
}

/// Removes what an `up` created that failed before it had a secret. The directories may have been there
/// before it: files of others in them stay.
pub fn remove_begun(data_dir: &Path, runtime_dir: &Path) -> Result<()> {
    if !data_dir.join(LOCK_FILE).exists() && !logs_dir(data_dir).join(UP_LOG).exists() {
        return Ok(());
    }
    remove(&logs_dir(data_dir))?;
    remove(&runtime_dir.join("control"))?;
    for file in [data_dir.join(LOCK_FILE), runtime_dir.join("control.sock"), runtime_dir.join("agent.sock")] {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    for dir in [data_dir, runtime_dir] {
        if std::fs::remove_dir(dir).is_err() && dir.exists() {
            eprintln!("Kept {}, which has other files in it.", dir.display());
        }
    }
    Ok(())
}

/// Unmounts the store before any file is removed: a store in use must fail the purge. A store that
/// cannot be opened, because its creation failed, is ignored if it is not mounted.
fn unmount_store(data_dir: &Path) -> Result<()> {
    let root = data_dir.join("store");
    if !root.exists() {
        return Ok(());
    }
    match Store::open(data_dir) {
        Ok(store) => store.unmount().context("cannot unmount the store"),
        Err(_) if !is_mounted(&root) => Ok(()),
        Err(error) => Err(error).context("cannot open the store"),
    }
}

fn is_mounted(dir: &Path) -> bool {
    let device = |dir: &Path| rustix::fs::stat(dir).ok().map(|stat| stat.st_dev);
    dir.parent().is_none_or(|parent| device(dir) != device(parent))
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(runtime_dir: &Path) -> Holder {
        Holder {
            pid: 1,
            api_url: String::new(),
            runtime_dir: runtime_dir.to_owned(),
            subnet: String::new(),
            net_prefix: String::new(),
        }
    }

    #[test]
    fn purging_an_immediately_failed_start_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (data, run) = (dir.path().join("data"), dir.path().join("run"));
        std::fs::create_dir_all(logs_dir(&data)).unwrap();
        std::fs::create_dir(&run).unwrap();
        std::fs::write(logs_dir(&data).join(UP_LOG), "error").unwrap();
        std::fs::write(data.join(LOCK_FILE), "{}").unwrap();
        purge(&data, &holder(&run)).unwrap();
        assert!(!data.exists() && !run.exists());
    }

    #[test]
    fn purge_keeps_unrelated_files() {
        let dir = tempfile::tempdir().unwrap();
        let (data, run) = (dir.path().join("data"), dir.path().join("run"));
        std::fs::create_dir_all(logs_dir(&data)).unwrap();
        std::fs::write(data.join(LOCK_FILE), "{}").unwrap();
        std::fs::write(data.join("precious"), "x").unwrap();
        purge(&data, &holder(&run)).unwrap();
        assert!(data.join("precious").exists() && !logs_dir(&data).exists());
        remove_begun(&data, &run).unwrap();
        assert!(data.join("precious").exists());
    }

    #[test]
    fn a_purge_succeeds_without_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(secret::path_in(&data), "secret").unwrap();
        purge(&data, &holder(&dir.path().join("run"))).unwrap();
        assert!(!data.exists());
    }
}
