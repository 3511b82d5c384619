//! What a starting agent does about what its predecessor left.
//!
//! Running machines are adopted, with their memory. What was half made is removed. Processes in our control groups that
//! no record names are ended. Nothing here depends on how the predecessor ended.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use pandastack_guest_proto::client::GuestClient;
use pandastack_net::{NetworkPolicy, SlotIndex};
use pandastack_types::{SandboxState, Transition};

use crate::blocking;
use crate::error::{AgentError, Result};
use crate::home::Home;
use crate::host::Host;
use crate::launch::{self, GUEST_ANSWER_MAX, Live};
use crate::layout::snapshot as names;
use crate::record::{SandboxRecord, read_json, write_json};
use crate::sandbox;
use crate::snapshot::Manifest;
use crate::zygote::Zygotes;

/// Machines taken over at once. A guest that does not answer is waited for, and must not hold up all others.
const ADOPTED_AT_ONCE: usize = 64;

/// Takes over or removes everything in the store.
pub(crate) async fn recover(host: &Arc<Host>) -> Result<()> {
    let mut records = records(host).await;
    let slots: Vec<(SlotIndex, NetworkPolicy)> = records
        .iter()
        .filter(|record| is_to_adopt(record))
        .filter_map(|record| Some((record.slot?, record.spec.network.clone())))
        .chain(Zygotes::slots_on_disk(host).into_iter().map(|index| (index, NetworkPolicy::all())))
        .filter_map(|(index, policy)| Some((SlotIndex(u16::try_from(index).ok()?), policy)))
        .collect();
    let missing = host.slots.adopt(&slots).await?.missing;
    for record in &mut records {
        // The next slot of that number is another sandbox's.
        record.slot.take_if(|slot| missing.iter().any(|missing| u32::from(missing.0) == *slot));
    }
    host.zygotes.adopt(host).await;
    end_strays(host, &records).await;
    let adopted = records.len();
    reserve_users(host, &records);
    let recovering = records.into_iter().map(|record| recover_one(host, record));
    futures::stream::iter(recovering).for_each_concurrent(ADOPTED_AT_ONCE, |one| one).await;
    sweep(host).await;
    if adopted > 0 {
        tracing::info!(adopted, "took over the sandboxes of the previous agent");
    }
    Ok(())
}

/// Keeps users from being given to other lineages. A snapshot may outlive its sandbox, and machines from it have its user.
fn reserve_users(host: &Host, records: &[SandboxRecord]) {
    let snapshots = std::fs::read_dir(host.layout.snapshots()).into_iter().flatten().flatten();
    let manifests = snapshots.filter_map(|dir| read_json::<Manifest>(&dir.path().join(names::MANIFEST)).ok());
    let of_snapshots = manifests.filter_map(|manifest| manifest.uid);
    records.iter().map(|record| record.uid).chain(of_snapshots).for_each(|uid| host.reserve_uid(uid));
}

/// Ends processes that nothing accounts for: started, and not yet written down. They are in a group of ours from their
/// first instruction, because the agent itself is.
async fn end_strays(host: &Host, records: &[SandboxRecord]) {
    let mut known: HashSet<u32> = host.zygotes.processes().into_iter().collect();
    known.insert(std::process::id());
    known.extend(records.iter().filter_map(|record| record.machine.as_ref()).map(|machine| machine.pid));
    let cgroups = host.cgroups.clone();
    match blocking(move || cgroups.end_outside(&known)).await {
        Ok(ended) if ended.is_empty() => {}
        Ok(ended) => tracing::warn!(pids = ?ended, "ended processes that no record names"),
        Err(error) => tracing::error!(%error, "a process of the previous agent could not be ended"),
    }
}

/// Removes sockets and control groups that no machine uses.
async fn sweep(host: &Host) {
    let mut used: HashSet<PathBuf> = host.zygotes.runtime_dirs().into_iter().collect();
    used.extend(host.sandboxes().values().filter_map(|handle| handle.runtime_dir()));
    for entry in std::fs::read_dir(host.layout.machine_runtimes()).into_iter().flatten().flatten() {
        if !used.contains(&entry.path())
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(dir = %entry.path().display(), %error, "sockets stay behind");
        }
    }
    host.cgroups.sweep();
}

async fn records(host: &Arc<Host>) -> Vec<SandboxRecord> {
    let mut records = Vec::new();
    for dir in std::fs::read_dir(host.layout.sandboxes()).into_iter().flatten().flatten() {
        match read_json::<SandboxRecord>(&dir.path().join(crate::layout::RECORD)) {
            Ok(record) => records.push(record),
            // Somebody was told that it sleeps; whoever looks after this host decides.
            Err(error) if dir.path().join("sleep").join(names::MANIFEST).exists() => {
                tracing::error!(dir = %dir.path().display(), %error, "a sleeping sandbox without a record stays where it is");
            }
            Err(error) => {
                // A create that had not come as far as its record; nobody was told of it.
                tracing::warn!(dir = %dir.path().display(), %error, "removing a sandbox without a record");
                host.remove_dir(dir.path()).await;
            }
        }
    }
    records
}

fn is_to_adopt(record: &SandboxRecord) -> bool {
    matches!(record.state, SandboxState::Running | SandboxState::Paused) || record.sleeps_in_memory()
}

async fn recover_one(host: &Arc<Host>, mut record: SandboxRecord) {
    let id = record.spec.id.clone();
    if record.state == SandboxState::Creating {
        end_machine(host, &record).await;
        host.remove_dir(host.layout.sandbox(&id)).await;
        return;
    }
    host.remove_dir(host.layout.fork(&id)).await;
    if !is_to_adopt(&record) {
        // Asleep or failed: a machine that is still there was being ended, or being woken.
        end_machine(host, &record).await;
        record.machine = None;
        record.slot = None;
        sandbox::spawn(host, record, None);
        return;
    }
    match adopt(host, &record).await {
        Ok(live) => {
            host.remove_dir(host.layout.sleep(&id)).await;
            sandbox::spawn(host, record, Some(live));
        }
        Err(error) => {
            tracing::error!(sandbox = %id, %error, "a sandbox did not survive");
            end_machine(host, &record).await;
            record.machine = None;
            record.slot = None;
            record.failure = Some(format!("its machine was gone when the agent started: {error}"));
            if let Ok(state) = record.state.step(Transition::Lost) {
                record.state = state;
            }
            if let Err(error) = write_json(&host.layout.record(&id), &record) {
                tracing::error!(sandbox = %id, %error, "the loss was not recorded");
            }
            sandbox::spawn(host, record, None);
        }
    }
}

/// The predecessor may have died between pausing and resuming a machine, so a running one is resumed and thawed again.
async fn adopt(host: &Arc<Host>, record: &SandboxRecord) -> Result<Live> {
    let none = || AgentError::Conflict("its record names no machine".to_owned());
    let known = record.machine.clone().ok_or_else(none)?;
    let runtime_dir = known.runtime_dir.clone();
    let machine = host.engine.adopt(known).await?;
    let id = &record.spec.id;
    let home = Home::adopted(host, id.as_str(), host.layout.machine(id), runtime_dir, record.slot);
    let mut guest = None;
    // The processors of a paused one stand still and cannot answer; its resume connects.
    if record.state == SandboxState::Running {
        let stream = machine.connect_guest().await?;
        machine.resume().await?;
        let identity = launch::refresh(record);
        guest = Some(GuestClient::connect_with_identity(stream, identity, GUEST_ANSWER_MAX).await?.0);
    }
    Ok(Live::new(host, machine, guest, home))
}

async fn end_machine(host: &Arc<Host>, record: &SandboxRecord) {
    let id = &record.spec.id;
    let Some(known) = record.machine.clone() else {
        // The predecessor may have ended before it wrote down the machine that it was making.
        return host.remove_dir(host.layout.machine(id)).await;
    };
    let runtime_dir = known.runtime_dir.clone();
    if let Ok(machine) = host.engine.adopt(known).await {
        launch::kill(machine.as_ref()).await;
    }
    // Its slot was kept for a machine that was to be adopted.
    let mut home = Home::adopted(host, id.as_str(), host.layout.machine(id), runtime_dir, record.slot);
    home.release(host).await;
    home.remove(host).await;
}
