//! Removes what remains after the platform stops: machines, network slots, the store's mount and files.
//!
//! Machines are found through their control groups, which hold exactly the processes of an installation.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};
use pandastack_agent::cgroup::Cgroups;
use pandastack_image::Store;
use pandastack_net::{NetConfig, SlotPool};

use crate::commands::agent::HOST_ID_FILE;
use crate::commands::runtime::block_on;
use crate::failure::Failure;
use crate::supervise::lock::Holder;
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
    let slots = SlotPool::open(config).context("cannot find the network slots")?;
    slots.adopt(&[]).await.context("cannot release the network slots")?;
    slots.shutdown().await.context("cannot remove the network slots")
}

/// Removes the data directory and the sockets, after the machines have stopped.
pub fn purge(data_dir: &Path, holder: &Holder) -> Result<()> {
    if !secret::path_in(data_dir).exists() && !data_dir.join(HOST_ID_FILE).exists() {
        let failure = Failure::new(format!("{} is not a PandaStack data directory", data_dir.display()));
        return Err(failure.hint("check --data-dir; nothing was removed").into());
    }
    // Unmounted first: a store that is in use must fail the purge before any file is removed.
    let store = Store::open(data_dir).context("cannot open the store")?;
    store.unmount().context("cannot unmount the store")?;
    remove(data_dir)?;
    remove(&holder.runtime_dir)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
