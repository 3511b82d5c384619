//! What stays behind when the platform stops, and how it is removed: machines, network slots, the store's mount, files.
//!
//! Machines are found through their control groups, which hold every process of an installation and no other, whatever
//! its records say.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result};
use pandastack_agent::cgroup::Cgroups;
use pandastack_image::Store;
use pandastack_net::{NetConfig, SlotPool};

use crate::commands::agent::HOST_ID_FILE;
use crate::failure::Failure;
use crate::supervise::lock::Holder;
use crate::supervise::secret;

/// Ends every machine of this installation and removes its network slots.
pub fn end_machines(data_dir: &Path, holder: &Holder) -> Result<()> {
    let Ok(host) = std::fs::read_to_string(data_dir.join(HOST_ID_FILE)) else {
        return Ok(());
    };
    let cgroups = Cgroups::open(host.trim()).context("look for machines")?;
    let ended = cgroups.end_outside(&HashSet::new()).context("end the machines")?;
    cgroups.remove();
    if !ended.is_empty() {
        eprintln!("Ended {} machine processes.", ended.len());
    }
    crate::commands::block_on(remove_slots(holder))
}

async fn remove_slots(holder: &Holder) -> Result<()> {
    let config = NetConfig {
        subnet: holder.subnet.parse().context("the slots' subnet")?,
        name_prefix: holder.net_prefix.clone(),
        ready_target: 1,
        ..NetConfig::new(&holder.runtime_dir)
    };
    let slots = SlotPool::open(config).context("look for network slots")?;
    slots.adopt(&[]).await.context("free the network slots")?;
    slots.shutdown().await.context("remove the network slots")
}

/// Removes the data directory and the sockets. The machines are gone by now.
pub fn purge(data_dir: &Path, holder: &Holder) -> Result<()> {
    if !secret::path_in(data_dir).exists() && !data_dir.join(HOST_ID_FILE).exists() {
        let failure = Failure::new(format!("{} is not a data directory of PandaStack", data_dir.display()));
        return Err(failure.hint("nothing was removed; check --data-dir").into());
    }
    // Removing files below a mount that cannot be unmounted would be half a purge; this fails first.
    let store = Store::open(data_dir).context("open the store")?;
    store.unmount().context("unmount the store")?;
    remove(data_dir)?;
    remove(&holder.runtime_dir)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
