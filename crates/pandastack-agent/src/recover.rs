//! Recovery at start: adopts or removes what the previous agent left.
//!
//! Running machines are adopted, with their memory. Half-finished work is removed. Processes in our
//! control groups that no record names are ended. Nothing here depends on how the predecessor
//! ended.
//!
//! Invariant: no sleeper is removed because its record cannot be read. The record's second name replaces
//! it; without that, its directory is kept for inspection.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use pandastack_net::{NetworkPolicy, SlotIndex};
use pandastack_types::{SandboxId, SandboxState, Transition, chain};

use crate::blocking::blocking;
use crate::console;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::identity::{self, identity, refresh};
use crate::layout::{self, snapshot as names};
use crate::machine_resources::MachineResources;
use crate::record::{SandboxRecord, read_json, write_record};
use crate::running_machine::{RunningMachine, kill};
use crate::sandbox;
use crate::snapshot::Manifest;
use crate::zygote;

/// Machines taken over at once. A guest that does not respond is waited for, and must not hold up all others.
const ADOPTED_AT_ONCE: usize = 64;

/// Takes over or removes everything in the store.
pub(crate) async fn recover(host: &Arc<Host>) -> Result<()> {
    let mut records = records(host).await;
    let of_zygotes = adopt_slots(host, &mut records).await?;
    host.zygotes.adopt(&of_zygotes).await;
    end_strays(host, &records).await;
    let adopted = records.len();
    reserve_users(host, &records);
    let recovering = records.into_iter().map(|record| recover_one(host, record));
    futures::stream::iter(recovering).for_each_concurrent(ADOPTED_AT_ONCE, |one| one).await;
    sweep(host).await;
    if adopted > 0 {
        tracing::info!(adopted, "adopted the sandboxes of the previous agent");
    }
    Ok(())
}

/// Takes over the slots of the machines to adopt. The record of a sandbox that lost its slot drops
/// the number: another sandbox will get that slot, and the next agent must not confuse them.
/// Returns the slots that zygotes keep.
async fn adopt_slots(host: &Host, records: &mut [SandboxRecord]) -> Result<HashSet<u32>> {
    let mut lost = drop_shared_claims(records);
    let mut of_zygotes = zygote::slots_on_disk(&host.layout);
    of_zygotes.retain(|slot| !records.iter().any(|record| record.slot == Some(*slot)));
    let slots = claims(records, &of_zygotes);
    let missing = host.slots.adopt(&slots).await?.missing;
    let is_missing = |slot: u32| missing.iter().any(|missing| u32::from(missing.0) == slot);
    of_zygotes.retain(|slot| !is_missing(*slot));
    for record in records.iter_mut() {
        if record.slot.take_if(|slot| is_missing(*slot)).is_some() {
            lost.insert(record.spec.id.clone());
        }
    }
    // The others are written down once their machine has ended.
    for record in records.iter().filter(|record| is_to_adopt(record) && lost.contains(&record.spec.id)) {
        tracing::error!(sandbox = %record.spec.id, "the network slot of a sandbox is gone; hibernate and wake the sandbox to restore its network");
        write_down(host, record).await;
    }
    Ok(of_zygotes)
}

/// Leaves slots to machines that are to be adopted, and to none where two records name one: it would be
/// unclear whose policy holds there. Returns whose claims were dropped.
fn drop_shared_claims(records: &mut [SandboxRecord]) -> HashSet<SandboxId> {
    let mut claims: HashMap<u32, u32> = HashMap::new();
    for slot in records.iter().filter(|record| is_to_adopt(record)).filter_map(|record| record.slot) {
        *claims.entry(slot).or_default() += 1;
    }
    let mut dropped = HashSet::new();
    for record in records {
        let adopted = is_to_adopt(record);
        if record.slot.take_if(|slot| !adopted || claims[slot] > 1).is_some() {
            dropped.insert(record.spec.id.clone());
        }
    }
    dropped
}

/// Slots in use, with their policies.
fn claims(records: &[SandboxRecord], of_zygotes: &HashSet<u32>) -> Vec<(SlotIndex, NetworkPolicy)> {
    let of_records = records.iter().filter_map(|record| Some((record.slot?, record.spec.network.clone())));
    let of_zygotes = of_zygotes.iter().map(|index| (*index, NetworkPolicy::all()));
    let all = of_records.chain(of_zygotes);
    all.filter_map(|(index, policy)| Some((SlotIndex(u16::try_from(index).ok()?), policy))).collect()
}

/// Keeps users from being given to other lineages. A snapshot may outlive its sandbox, and machines from it have its user.
fn reserve_users(host: &Host, records: &[SandboxRecord]) {
    let entries =
        |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    // Sleeping sandboxes too: some have no readable record.
    let sleepers = entries(host.layout.sandboxes()).map(|dir| dir.join(layout::SLEEP));
    let saved = entries(host.layout.snapshots()).chain(sleepers);
    let manifests = saved.filter_map(|dir| read_json::<Manifest>(&dir.join(names::MANIFEST)).ok());
    let of_saved = manifests.filter_map(|manifest| manifest.uid);
    records.iter().map(|record| record.uid).chain(of_saved).for_each(|uid| host.reserve_uid(uid));
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
        Ok(ended) => tracing::warn!(pids = ?ended, "killed processes without a record"),
        Err(error) => tracing::error!(
            error = %chain(&error),
            "cannot kill a process of the previous agent"
        ),
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
            tracing::warn!(dir = %entry.path().display(), error = %chain(&error), "cannot remove sockets");
        }
    }
    host.cgroups.sweep();
}

async fn records(host: &Arc<Host>) -> Vec<SandboxRecord> {
    let mut records = Vec::new();
    for dir in std::fs::read_dir(host.layout.sandboxes()).into_iter().flatten().flatten() {
        let shown = dir.path().display().to_string();
        match find_record(&dir.path()) {
            DirectoryState::Record(record) => records.push(*record),
            DirectoryState::Sleeper(record, error) => {
                tracing::warn!(
                    dir = shown, error = %chain(&error),
                    "using the record that was saved with a sleeping sandbox's memory"
                );
                write_down(host, &record).await;
                records.push(*record);
            }
            DirectoryState::Unknown(error) => tracing::error!(
                dir = shown,
                error = %chain(&error),
                "a sandbox sleeps here that cannot be taken over; it is left as it is and cannot be used. Put a record.json \
                 back and restart the agent, or remove the directory"
            ),
            DirectoryState::Nothing(error) => {
                // An interrupted create without a record; it was never reported.
                tracing::warn!(dir = shown, error = %chain(&error), "removing a sandbox without a record");
                host.remove_dir(dir.path()).await;
            }
        }
    }
    records
}

/// The state of a sandbox, according to its directory.
enum DirectoryState {
    Record(Box<SandboxRecord>),
    /// A sleeping sandbox whose record is unreadable but under its second name, and why.
    Sleeper(Box<SandboxRecord>, AgentError),
    /// The directory holds a sleeper with an unreadable record, which may not wake.
    Unknown(AgentError),
    Nothing(AgentError),
}

fn find_record(dir: &Path) -> DirectoryState {
    let unreadable = match read_json::<SandboxRecord>(&dir.join(layout::RECORD)) {
        Ok(record) => return DirectoryState::Record(Box::new(record)),
        Err(error) => error,
    };
    let sleep = dir.join(layout::SLEEP);
    if !sleep.join(names::MANIFEST).exists() {
        return DirectoryState::Nothing(unreadable);
    }
    match read_json::<SandboxRecord>(&sleep.join(names::RECORD)) {
        // The unreadable record was written on waking. Older memory would destroy a volume that was
        // written since.
        Ok(record) if record.writes_volumes() => DirectoryState::Unknown(AgentError::Conflict(format!(
            "{unreadable}; the sandbox was waking, and its volumes may have changed since it went to sleep"
        ))),
        Ok(record) => DirectoryState::Sleeper(Box::new(record), unreadable),
        Err(_) => DirectoryState::Unknown(unreadable),
    }
}

/// Replaces a record, off the worker threads: a sleeping sandbox's record is synced.
async fn write_down(host: &Host, record: &SandboxRecord) {
    let (layout, written) = (host.layout.clone(), record.clone());
    if let Err(error) = blocking(move || write_record(&layout, &written)).await {
        tracing::error!(
            sandbox = %record.spec.id, error = %chain(&error),
            "cannot record the state of a sandbox"
        );
    }
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
        // Asleep or failed: a machine that still runs was being ended or woken.
        end_machine(host, &record).await;
        record.slot = None;
        if record.machine.take().is_some() {
            write_down(host, &record).await;
        }
        sandbox::spawn(host, record, None);
        return;
    }
    match adopt(host, &record).await {
        Ok(live) => {
            host.remove_dir(host.layout.sleep(&id)).await;
            sandbox::spawn(host, record, Some(live));
        }
        Err(error) => {
            tracing::error!(sandbox = %id, error = %chain(&error), "a sandbox did not survive the restart");
            end_machine(host, &record).await;
            let panic = record.machine.take().and_then(|machine| console::kernel_panic(&machine.console));
            record.slot = None;
            let gone = || format!("its machine was gone when the agent started: {}", error.public_text());
            record.failure = Some(panic.unwrap_or_else(gone));
            if let Ok(state) = record.state.step(Transition::Lost) {
                record.state = state;
            }
            write_down(host, &record).await;
            sandbox::spawn(host, record, None);
        }
    }
}

/// The predecessor may have died between pausing and resuming a machine, so a running one is resumed and thawed again.
async fn adopt(host: &Arc<Host>, record: &SandboxRecord) -> Result<RunningMachine> {
    let none = || AgentError::Conflict("the sandbox record has no machine".to_owned());
    let known = record.machine.clone().ok_or_else(none)?;
    let runtime_dir = known.runtime_dir.clone();
    let machine = host.engine.adopt(known).await?;
    let id = &record.spec.id;
    let resources = MachineResources::adopted(
        host,
        &record.group_name(),
        host.layout.machine(id),
        runtime_dir,
        record.slot,
    );
    let mut guest = None;
    // The processors of a paused one stand still and cannot answer; its resume connects.
    if record.state == SandboxState::Running {
        let stream = machine.connect_guest().await?;
        machine.resume().await?;
        // With the record of its sleep still there its wake was cut off, perhaps before the guest heard of it.
        let identity = match host.layout.sleep_record(id).exists() {
            true => identity(record, &host.config.guests, true),
            false => refresh(record, &host.config.guests),
        };
        guest = Some(identity::connect(stream, identity, record, &host.config.guests).await?.0);
    }
    Ok(RunningMachine::new(host, machine, guest, resources))
}

async fn end_machine(host: &Arc<Host>, record: &SandboxRecord) {
    let id = &record.spec.id;
    let Some(known) = record.machine.clone() else {
        // The predecessor may have ended before it wrote down the machine that it was making.
        return host.remove_dir(host.layout.machine(id)).await;
    };
    let runtime_dir = known.runtime_dir.clone();
    if let Ok(machine) = host.engine.adopt(known).await {
        kill(machine.as_ref()).await;
    }
    // The slot was kept for a machine to be adopted.
    let mut resources = MachineResources::adopted(
        host,
        &record.group_name(),
        host.layout.machine(id),
        runtime_dir,
        record.slot,
    );
    resources.release(host).await;
    resources.remove(host).await;
}

#[cfg(test)]
mod tests {
    use pandastack_types::agent_api::VolumeSpec;

    use super::*;
    use crate::record::tests::record_in;

    /// The directory of a sandbox, with these files.
    fn dir_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(layout::SLEEP)).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_hibernated_sandbox_is_recovered_from_its_second_record() {
        let asleep = record_in(SandboxState::Hibernated);
        let text = serde_json::to_string(&asleep).unwrap();
        let cut = &text[..text.len() / 2];
        for unreadable in ["", cut] {
            let dir = dir_with(&[
                (layout::RECORD, unreadable),
                ("sleep/manifest.json", "{}"),
                ("sleep/record.json", text.as_str()),
            ]);
            let DirectoryState::Sleeper(found, _) = find_record(dir.path()) else {
                panic!("not found: {unreadable}")
            };
            assert_eq!(found.spec, asleep.spec);
        }
    }

    #[test]
    fn a_sleeping_sandbox_without_a_record_is_not_removed() {
        let dir = dir_with(&[(layout::RECORD, ""), ("sleep/manifest.json", "{}")]);
        assert!(matches!(find_record(dir.path()), DirectoryState::Unknown(_)));
        let dir = dir_with(&[("sleep/manifest.json", "{}"), ("sleep/record.json", "")]);
        assert!(matches!(find_record(dir.path()), DirectoryState::Unknown(_)));
    }

    #[test]
    fn a_volume_writer_does_not_resume_from_memory_twice() {
        for (read_only, comes_back) in [(false, false), (true, true)] {
            let mut asleep = record_in(SandboxState::Hibernated);
            let id = pandastack_types::VolumeId::random();
            asleep.spec.volumes = vec![VolumeSpec { id, path: "/v".to_owned(), read_only, generation: 1 }];
            let text = serde_json::to_string(&asleep).unwrap();
            let dir = dir_with(&[("sleep/manifest.json", "{}"), ("sleep/record.json", text.as_str())]);
            let found = find_record(dir.path());
            assert_eq!(matches!(found, DirectoryState::Sleeper(..)), comes_back);
            assert_eq!(matches!(found, DirectoryState::Unknown(_)), !comes_back);
        }
    }

    #[test]
    fn an_empty_record_is_an_unfinished_create() {
        let dir = dir_with(&[(layout::RECORD, "")]);
        assert!(matches!(find_record(dir.path()), DirectoryState::Nothing(_)));
    }

    #[test]
    fn a_readable_main_record_takes_precedence() {
        let [running, asleep] = [SandboxState::Running, SandboxState::Hibernated]
            .map(|state| serde_json::to_string(&record_in(state)).unwrap());
        let dir = dir_with(&[
            (layout::RECORD, running.as_str()),
            ("sleep/manifest.json", "{}"),
            ("sleep/record.json", asleep.as_str()),
        ]);
        let DirectoryState::Record(found) = find_record(dir.path()) else { panic!("not found") };
        assert_eq!(found.state, SandboxState::Running);
    }

    #[test]
    fn records_that_share_a_slot_all_lose_it() {
        let in_slot = |state, slot| SandboxRecord { slot: Some(slot), ..record_in(state) };
        let mut records = [
            in_slot(SandboxState::Hibernated, 1),
            in_slot(SandboxState::Running, 1),
            in_slot(SandboxState::Paused, 1),
            in_slot(SandboxState::Running, 2),
        ];
        let dropped = drop_shared_claims(&mut records);
        assert_eq!(records.each_ref().map(|record| record.slot), [None, None, None, Some(2)]);
        assert_eq!(dropped, records[..3].iter().map(|record| record.spec.id.clone()).collect());
    }
}
