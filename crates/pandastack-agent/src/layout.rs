//! Paths in an agent's directories.
//!
//! ```text
//! <store>/                      one file system with reflink
//!   images/<key>.ext4           root file systems, read only
//!   boot/<key>/                 kernel and initial ramdisk
//!   templates/<name>/<key>/     a snapshot directory per baked template
//!   snapshots/<id>/             a snapshot directory per named snapshot
//!   sandboxes/<id>/             record.json, and one or both of
//!     machine/                  disk, memory.base, console.log of the machine
//!     sleep/                    the snapshot directory of a sleeping sandbox, with a second name of its record
//!   zygotes/<name>/             record.json and machine/
//!   volumes/<id>/               image and volume.json of one volume
//!   blank/<bytes>.ext4          empty file systems that new volumes are clones of
//! <runtime>/m/<short id>/       sockets of one machine
//! ```
//!
//! A snapshot directory holds `manifest.json`, `state`, `memory` and `disk`, appears by rename, and
//! never changes but for the verdict on an outdated state (`outdated.json`).
//! `memory.base` is a hard link to the memory file below the machine: the file system counts the references, so a
//! template or snapshot can be deleted while machines still stand on it.

use std::path::{Path, PathBuf};

use pandastack_types::{SandboxId, SnapshotId, VolumeId};

/// Paths below an agent's store and runtime directory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    store: PathBuf,
    runtime: PathBuf,
}

impl Layout {
    pub(crate) fn new(store: &Path, runtime: &Path) -> Self {
        Self { store: store.to_owned(), runtime: runtime.to_owned() }
    }

    /// Creates the directories, accessible to the agent alone: memory and records hold secrets.
    /// Machines run as separate users and get descriptors or mounts, never paths. Sockets of
    /// machines are in a directory that other users may traverse.
    pub(crate) fn prepare(&self) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let parts = ["images", "boot", "templates", "snapshots", "sandboxes", "zygotes", "volumes", "blank"];
        let below_store = parts.iter().map(|part| self.store.join(part));
        let private = below_store.map(|dir| (dir, 0o700));
        for (dir, mode) in private.chain([(self.runtime.join("m"), 0o711)]) {
            std::fs::create_dir_all(&dir)?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    pub(crate) fn image(&self, key: &str) -> PathBuf {
        self.store.join("images").join(format!("{key}.ext4"))
    }

    pub(crate) fn boot(&self, key: &str) -> PathBuf {
        self.store.join("boot").join(key)
    }

    pub(crate) fn templates(&self, name: &str) -> PathBuf {
        self.store.join("templates").join(name)
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.store.join("snapshots")
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> PathBuf {
        self.snapshots().join(id.as_str())
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.store.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Returns whether machines or snapshots exist that only the engine which made them can use.
    /// Templates are baked again.
    pub(crate) fn has_machines_or_snapshots(&self) -> bool {
        let has_any = |dir: PathBuf| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        has_any(self.sandboxes()) || has_any(self.snapshots())
    }

    /// Directory of the sandbox's machine.
    pub(crate) fn machine(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("machine")
    }

    /// Snapshot directory of the sandbox while it sleeps.
    pub(crate) fn sleep(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join(SLEEP)
    }

    /// Files from which the sandbox's children are restored, if its process cannot be forked or it
    /// sleeps.
    pub(crate) fn fork(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("fork")
    }

    pub(crate) fn record(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join(RECORD)
    }

    /// The record of a sleeping sandbox as it was last written durably; see [`crate::record::write_record`].
    pub(crate) fn sleep_record(&self, id: &SandboxId) -> PathBuf {
        self.sleep(id).join(snapshot::RECORD)
    }

    pub(crate) fn zygotes(&self) -> PathBuf {
        self.store.join("zygotes")
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.store.join("volumes")
    }

    pub(crate) fn volume(&self, id: &VolumeId) -> PathBuf {
        self.volumes().join(id.as_str())
    }

    /// An empty file system of that size.
    pub(crate) fn blank(&self, bytes: u64) -> PathBuf {
        self.store.join("blank").join(format!("{bytes}.ext4"))
    }

    /// Directories of all machines' sockets.
    pub(crate) fn machine_runtimes(&self) -> PathBuf {
        self.runtime.join("m")
    }

    /// A fresh directory for one machine's sockets. Random and short: a sandbox has a new one each time it wakes.
    pub(crate) fn machine_runtime(&self) -> PathBuf {
        let random = SandboxId::random();
        let short: String = random.as_str().chars().filter(|c| *c != '-').take(12).collect();
        self.machine_runtimes().join(short)
    }
}

/// Name of the record of a sandbox or zygote.
pub(crate) const RECORD: &str = "record.json";
/// Name of the snapshot directory inside a sleeping sandbox's directory.
pub(crate) const SLEEP: &str = "sleep";

/// Names inside a volume's directory.
pub(crate) mod volume {
    pub(crate) const IMAGE: &str = "image";
    pub(crate) const RECORD: &str = "volume.json";
}

/// Names inside a machine's directory.
pub(crate) mod machine {
    pub(crate) const DISK: &str = "disk";
    pub(crate) const MEMORY: &str = "memory.base";
    pub(crate) const CONSOLE: &str = "console.log";
}

/// Names inside a snapshot directory.
pub(crate) mod snapshot {
    pub(crate) const MANIFEST: &str = "manifest.json";
    pub(crate) const STATE: &str = "state";
    pub(crate) const MEMORY: &str = "memory";
    pub(crate) const DISK: &str = "disk";
    /// The record of the sandbox that sleeps here.
    pub(crate) const RECORD: &str = "record.json";
    /// The verdict on an outdated snapshot.
    pub(crate) const OUTDATED: &str = "outdated.json";
    /// Prefix of the names of volume copies.
    const VOLUME: &str = "volume.";

    /// The copy of the volume at a place.
    pub(crate) fn volume(place: usize) -> String {
        format!("{VOLUME}{place}")
    }

    /// Returns whether a file is a disk image that machines clone.
    pub(crate) fn is_image(name: &str) -> bool {
        name == DISK || name.starts_with(VOLUME)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn memory_files_and_records_are_private_to_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let layout = Layout::new(&dir.path().join("store"), &dir.path().join("run"));
        // Made by an earlier version.
        std::fs::create_dir_all(layout.snapshots()).unwrap();
        std::fs::set_permissions(layout.snapshots(), std::fs::Permissions::from_mode(0o711)).unwrap();
        layout.prepare().unwrap();
        for part in std::fs::read_dir(dir.path().join("store")).unwrap() {
            let part = part.unwrap().path();
            assert_eq!(mode(&part), 0o700, "{}", part.display());
        }
        let memory = layout.snapshots().join("memory");
        std::fs::write(&memory, "secret").unwrap();
        crate::snapshot::keep_private(&memory).unwrap();
        assert_eq!(mode(&memory), 0o400);
    }
}
