//! What an agent writes down about each sandbox, so that its successor finds it again.
//!
//! Records are replaced by rename: a reader sees the old one or the new one. They are not synced: a record describes
//! processes, and what forgets unsynced files (a power loss) ends those too. State that must outlive a power loss, a
//! sleeper's memory, is synced by [`crate::snapshot`] before its record says so.

use std::collections::BTreeMap;
use std::path::Path;

use pandastack_engine::{MachineRecord, Shape};
use pandastack_types::SandboxState;
use pandastack_types::agent_api::{SandboxSpec, Usage};
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
}

/// How a sandbox's machine came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BootMode {
    /// Forked from a zygote or a running sandbox.
    Fork,
    /// Restored from a snapshot.
    Restore,
}

impl BootMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            BootMode::Fork => "fork",
            BootMode::Restore => "restore",
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

/// Reads a JSON file.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(AgentError::io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| AgentError::damaged(path, error))
}
