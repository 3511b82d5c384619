//! What an agent writes down about each sandbox, so that its successor finds it again.
//!
//! Records are replaced by rename: a reader sees the old one or the new one. They are not synced: a record describes
//! processes, and what forgets unsynced files (a power loss) ends those too. What must outlive a power loss is a sleeper:
//! its memory is synced by [`crate::snapshot`] before its record says so, and that record is synced too.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use pandastack_engine::{MachineRecord, Shape};
use pandastack_types::agent_api::{SandboxSpec, Usage};
use pandastack_types::{Residency, SandboxState};
use serde::{Deserialize, Serialize};

use crate::error::{AgentError, Result};

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
    /// Its network slot, while there is one.
    pub slot: Option<u32>,
    pub boot_mode: BootMode,
    pub boot_ms: u64,
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Totals up to the last change of state.
    pub usage: Usage,
    pub failure: Option<String>,
    /// Where the memory of a sleeper is; records from before light sleep have none and mean the disk.
    #[serde(default)]
    pub residency: Option<Residency>,
    /// Release of the kernel in its machine; unknown of machines from before this was recorded.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Until then the sandbox does not count as idle.
    #[serde(default)]
    pub awake_until: Option<Timestamp>,
}

impl SandboxRecord {
    /// Asleep with its machine stopped in memory.
    pub(crate) fn sleeps_in_memory(&self) -> bool {
        self.state == SandboxState::Hibernated && self.residency == Some(Residency::Memory)
    }
}

/// How a sandbox's machine came to be.
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

/// Replaces a JSON file by rename.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let temporary = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value).map_err(|error| AgentError::damaged(path, error))?;
    std::fs::write(&temporary, text).map_err(AgentError::io("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(AgentError::io("rename", path))
}

/// Replaces a JSON file by rename and waits until it would survive a power loss.
pub(crate) fn write_json_durably<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let temporary = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value).map_err(|error| AgentError::damaged(path, error))?;
    let sync = |path: &Path| std::fs::File::open(path).and_then(|file| file.sync_all());
    std::fs::write(&temporary, text)
        .and_then(|()| sync(&temporary))
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
