//! Snapshot directories: how a machine's state is put on disk and found there.
//!
//! Templates, named snapshots and sleepers share one form (see [`crate::layout`]) and one way to come into being:
//! [`Capture::take`] while the machine stands still, [`Capture::publish`] after it runs again. A directory that can be
//! opened is complete: it appeared by rename, after its files were synced.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pandastack_engine::{Machine, SaveTarget, Shape};
use pandastack_image::store::Staging;
use pandastack_types::SandboxId;
use serde::{Deserialize, Serialize};

use crate::blocking;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::layout::snapshot as names;
use crate::record::{read_json, write_json};

/// What a snapshot is of, and where it may be loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Template that its machine descends from.
    pub template: String,
    pub shape: Shape,
    /// Equal to the engine's own, or the snapshot is refused.
    pub compatibility_key: String,
    /// Sandbox it shows; `None` for a template.
    pub sandbox: Option<SandboxId>,
    /// User of the lineage; a restored machine goes on under it.
    pub uid: Option<u32>,
    pub state_bytes: u64,
    /// Memory written over the base.
    pub memory_bytes_written: u64,
    pub created_at: Timestamp,
}

/// A complete snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    dir: PathBuf,
    pub manifest: Manifest,
}

impl Snapshot {
    /// Opens a directory and checks that this host can load it.
    pub(crate) fn open(dir: &Path, compatibility_key: &str) -> Result<Self> {
        let manifest: Manifest = read_json(&dir.join(names::MANIFEST))?;
        if manifest.compatibility_key != compatibility_key {
            return Err(AgentError::Conflict(format!(
                "the snapshot was made by `{}` and this host runs `{compatibility_key}`; restore it on a host with the \
                 same engine or make a new one",
                manifest.compatibility_key
            )));
        }
        let snapshot = Self { dir: dir.to_owned(), manifest };
        let expected = [
            (snapshot.memory(), snapshot.manifest.shape.memory_bytes()),
            (snapshot.state(), snapshot.manifest.state_bytes),
        ];
        for (path, bytes) in expected {
            let found = std::fs::metadata(&path).map_err(AgentError::io("read", &path))?.len();
            if found != bytes {
                return Err(AgentError::damaged(&path, format!("{found} bytes instead of {bytes}")));
            }
        }
        Ok(snapshot)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join(names::STATE)
    }

    pub(crate) fn memory(&self) -> PathBuf {
        self.dir.join(names::MEMORY)
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join(names::DISK)
    }

    /// Bytes of the host's disk that its files take, shared extents counted in full.
    pub(crate) fn size_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let files = [self.state(), self.memory(), self.disk()];
        files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
    }
}

/// A machine's state, written but not yet part of the store.
pub(crate) struct Capture {
    staging: Staging,
    manifest: Manifest,
}

impl Capture {
    /// Writes a **paused** machine down: device state, changed memory over a clone of `memory_base`, a clone of `disk`.
    pub(crate) async fn take(
        host: &Host,
        machine: &dyn Machine,
        memory_base: &Path,
        disk: &Path,
        manifest: Manifest,
    ) -> Result<Self> {
        let (store, memory_base, disk) = (host.store.clone(), memory_base.to_owned(), disk.to_owned());
        let staging = blocking(move || {
            let staging = store.stage()?;
            store.clone_file(&memory_base, &staging.path().join(names::MEMORY))?;
            store.clone_file(&disk, &staging.path().join(names::DISK))?;
            Ok::<_, AgentError>(staging)
        })
        .await?;
        let target = SaveTarget {
            state: staging.path().join(names::STATE),
            memory: staging.path().join(names::MEMORY),
        };
        let saved = machine.save(target).await?;
        let manifest = Manifest {
            state_bytes: saved.state_bytes,
            memory_bytes_written: saved.memory_bytes_written,
            ..manifest
        };
        Ok(Self { staging, manifest })
    }

    /// Syncs the files and makes them appear at `to`.
    pub(crate) async fn publish(self, host: &Host, to: PathBuf) -> Result<Snapshot> {
        let compatibility_key = host.engine.capabilities().compatibility_key.clone();
        blocking(move || {
            use std::os::unix::fs::PermissionsExt;
            let memory = self.staging.path().join(names::MEMORY);
            // Machines open it under users of their own, for reading only.
            std::fs::set_permissions(&memory, std::fs::Permissions::from_mode(0o444))
                .map_err(AgentError::io("set permissions of", &memory))?;
            std::fs::set_permissions(self.staging.path(), std::fs::Permissions::from_mode(0o711))
                .map_err(AgentError::io("set permissions of", self.staging.path()))?;
            write_json(&self.staging.path().join(names::MANIFEST), &self.manifest)?;
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(AgentError::io("create", parent))?;
            }
            self.staging.publish(&to)?;
            Snapshot::open(&to, &compatibility_key)
        })
        .await
    }
}
