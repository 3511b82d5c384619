//! The record of each sandbox on disk, from which a successor agent recovers it.
//!
//! Records are replaced by rename: a reader sees the old one or the new one. They are not synced: a
//! record describes processes, and what forgets unsynced files (a power loss) ends those too. The
//! memory of a sleeping sandbox must outlive a power loss: [`crate::snapshot`] syncs it before the
//! record says that it sleeps, and that record is synced too.
//!
//! A wake replaces a sleeping sandbox's record without waiting for the disk, and a power loss may then leave
//! an empty file under its name. So the durable record has a second name in the sleep directory,
//! where it stays until the sleep is over.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use pandastack_engine::{MachineRecord, Shape};
use pandastack_types::agent_api::{Components, OutdatedVerdict, SandboxSpec, Usage};
use pandastack_types::{Residency, SandboxState, WorkspaceId, chain};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroups;
use crate::error::{AgentError, Result};
use crate::layout::Layout;

/// One sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub spec: SandboxSpec,
    pub template: String,
    pub shape: Shape,
    pub state: SandboxState,
    /// User of the machine's process; one per fork lineage.
    pub uid: u32,
    /// The machine, while there is one.
    pub machine: Option<MachineRecord>,
    /// Network slot, if the sandbox has one.
    pub slot: Option<u32>,
    pub boot_mode: BootMode,
    pub boot_ms: u64,
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Totals up to the last change of state.
    pub usage: Usage,
    pub failure: Option<String>,
    /// Location of a sleeping sandbox's memory; records from before light sleep have none and mean
    /// the disk.
    #[serde(default)]
    pub residency: Option<Residency>,
    /// Kernel, guest program and engine of its machine; unknown of machines from before this was
    /// recorded.
    #[serde(flatten)]
    pub components: Components,
    /// Action for a wake with an outdated state. Stays until the sandbox boots from its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated: Option<OutdatedVerdict>,
    /// Until then the sandbox does not count as idle.
    #[serde(default)]
    pub awake_until: Option<Timestamp>,
}

impl SandboxRecord {
    /// The record of a sandbox that is about to be made.
    pub(crate) fn new(spec: SandboxSpec, template: &str, shape: Shape, uid: u32, mode: BootMode) -> Self {
        Self {
            spec,
            template: template.to_owned(),
            shape,
            state: SandboxState::Creating,
            uid,
            machine: None,
            slot: None,
            boot_mode: mode,
            boot_ms: 0,
            boot_stages_us: BTreeMap::new(),
            usage: Usage::default(),
            failure: None,
            residency: None,
            components: Components::default(),
            outdated: None,
            awake_until: None,
        }
    }

    /// Name of its machine's control group.
    pub(crate) fn group_name(&self) -> String {
        Cgroups::name_in(self.spec.workspace.as_ref().map(WorkspaceId::as_str), self.spec.id.as_str())
    }

    /// Asleep with its machine stopped in memory.
    pub(crate) fn sleeps_in_memory(&self) -> bool {
        self.state == SandboxState::Hibernated && self.residency == Some(Residency::Memory)
    }

    /// Asleep, and nothing but what lies in its sleep directory.
    pub(crate) fn sleeps_on_disk(&self) -> bool {
        self.state == SandboxState::Hibernated && !self.sleeps_in_memory()
    }

    /// The verdict on its state that holds at that time.
    pub(crate) fn due_verdict(&self, now: Timestamp) -> Option<&OutdatedVerdict> {
        self.outdated.as_ref().filter(|verdict| verdict.is_due(now))
    }

    /// Returns whether the machine's memory may hold data for a durable disk.
    pub(crate) fn writes_volumes(&self) -> bool {
        self.spec.volumes.iter().any(|volume| !volume.read_only)
    }
}

/// How a sandbox's machine was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BootMode {
    /// Forked from a zygote or a running sandbox.
    Fork,
    /// Restored from a snapshot.
    Restore,
    /// Booted from its disk.
    Boot,
}

impl BootMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            BootMode::Fork => "fork",
            BootMode::Restore => "restore",
            BootMode::Boot => "boot",
        }
    }
}

/// Replaces a sandbox's record. The record of a sandbox asleep on disk survives a power loss even
/// after an unsynced write: it has a second name, which reaches the file system's journal before
/// any later rename.
pub(crate) fn write_record(layout: &Layout, record: &SandboxRecord) -> Result<()> {
    let path = layout.record(&record.spec.id);
    if !record.sleeps_on_disk() {
        return write_json(&path, record);
    }
    write_json_durably(&path, record)?;
    if let Err(error) = link_over(&path, &layout.sleep_record(&record.spec.id)) {
        // The record itself is safe until it is next replaced.
        tracing::warn!(
            sandbox = %record.spec.id, error = %chain(&error),
            "cannot link the record of a sleeping sandbox"
        );
    }
    Ok(())
}

/// Links a file under a second name, replacing another file atomically.
fn link_over(file: &Path, name: &Path) -> io::Result<()> {
    let temporary = name.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::hard_link(file, &temporary)?,
    }
    std::fs::rename(&temporary, name)
}

/// Writes a file for its owner alone: records hold the variables of their sandbox.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<std::fs::File> {
    use std::io::Write;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // A leftover file of an interrupted write keeps its old mode.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Replaces a JSON file by rename.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let temporary = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value).map_err(|error| AgentError::damaged(path, error))?;
    write_private(&temporary, &text).map_err(AgentError::io("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(AgentError::io("rename", path))
}

/// Replaces a JSON file by rename and waits until it would survive a power loss.
pub(crate) fn write_json_durably<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let temporary = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value).map_err(|error| AgentError::damaged(path, error))?;
    let sync = |path: &Path| std::fs::File::open(path).and_then(|file| file.sync_all());
    write_private(&temporary, &text)
        .and_then(|file| file.sync_all())
        .map_err(AgentError::io("write", &temporary))?;
    std::fs::rename(&temporary, path)
        .and_then(|()| sync(path.parent().unwrap_or(Path::new("/"))))
        .map_err(AgentError::io("rename", path))
}

/// Reads a JSON file.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(AgentError::io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| AgentError::damaged(path, error))
}

#[cfg(test)]
pub(crate) mod tests {
    use pandastack_types::SandboxId;

    use super::*;

    /// A record in that state, of a sandbox that nothing else is known of.
    pub(crate) fn record_in(state: SandboxState) -> SandboxRecord {
        let spec = SandboxSpec {
            id: SandboxId::random(),
            incarnation: 1,
            workspace: None,
            env: BTreeMap::new(),
            user: None,
            cwd: None,
            idle_timeout_seconds: None,
            network: Default::default(),
            volumes: Vec::new(),
        };
        let shape = Shape { vcpus: 1, memory_mib: 512 };
        let record = SandboxRecord::new(spec, "base", shape, 0, BootMode::Fork);
        SandboxRecord { state, ..record }
    }

    fn laid_out(record: &SandboxRecord) -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), dir.path());
        std::fs::create_dir_all(layout.sleep(&record.spec.id)).unwrap();
        (dir, layout)
    }

    #[test]
    fn a_record_is_readable_only_by_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for durably in [false, true] {
            let path = dir.path().join(format!("{durably}.json"));
            // Left by an interrupted write of an earlier version.
            std::fs::write(path.with_extension("new"), "{").unwrap();
            match durably {
                false => write_json(&path, &"value").unwrap(),
                true => write_json_durably(&path, &"value").unwrap(),
            }
            assert_eq!(mode(&path), 0o600, "durably: {durably}");
        }
    }

    #[test]
    fn a_sleep_record_survives_a_wake_up() {
        let mut record = record_in(SandboxState::Hibernated);
        let (_dir, layout) = laid_out(&record);
        for seconds in [1, 2] {
            record.spec.idle_timeout_seconds = Some(seconds);
            write_record(&layout, &record).unwrap();
            let kept: SandboxRecord = read_json(&layout.sleep_record(&record.spec.id)).unwrap();
            assert_eq!(kept.spec, record.spec);
        }
        let woken = SandboxRecord { state: SandboxState::Running, ..record.clone() };
        write_record(&layout, &woken).unwrap();
        let kept: SandboxRecord = read_json(&layout.sleep_record(&record.spec.id)).unwrap();
        assert_eq!((kept.state, kept.spec), (SandboxState::Hibernated, record.spec));
    }

    #[test]
    fn only_disk_hibernated_sandboxes_have_a_second_record() {
        for (state, residency) in
            [(SandboxState::Running, None), (SandboxState::Hibernated, Some(Residency::Memory))]
        {
            let record = SandboxRecord { residency, ..record_in(state) };
            let (_dir, layout) = laid_out(&record);
            write_record(&layout, &record).unwrap();
            assert!(layout.record(&record.spec.id).exists());
            assert!(!layout.sleep_record(&record.spec.id).exists(), "{state:?}");
        }
    }

    #[test]
    fn a_hibernated_record_is_written_without_its_sleep_directory() {
        let record = record_in(SandboxState::Hibernated);
        let (_dir, layout) = laid_out(&record);
        std::fs::remove_dir(layout.sleep(&record.spec.id)).unwrap();
        write_record(&layout, &record).unwrap();
        assert!(read_json::<SandboxRecord>(&layout.record(&record.spec.id)).is_ok());
    }
}
