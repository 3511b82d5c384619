//! Snapshot directories: how a machine's state is written to disk and read back.
//!
//! Templates, named snapshots and sleepers share one form (see [`crate::layout`]) and one way to come into being
//! ([`crate::capture`]). A directory that can be opened is complete: it appeared by rename, after its files were synced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_engine::{Capabilities, Shape};
use pandastack_net::Resolved;
use pandastack_types::agent_api::{Components, VolumeSpec};
use pandastack_types::{SandboxId, chain};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::integrity::{self, Seals};
use crate::layout::{self, Layout, snapshot as names};
use crate::record::{read_json, write_json};
use crate::volume;

/// Files of every snapshot.
const FILES: [&str; 3] = [names::STATE, names::MEMORY, names::DISK];

/// Time that a sandbox sleeps before its disk gets a checksum: reading it costs more than a short
/// sleep is worth.
pub(crate) const SLEEPERS_IMAGES_AFTER: Duration = Duration::from_secs(600);

/// The manifest of a snapshot: its source and its compatibility.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Template that its machine descends from.
    pub template: String,
    pub shape: Shape,
    /// Equal to the engine's own, or the snapshot is refused.
    pub compatibility_key: String,
    /// Kernel and guest program in its memory, and the engine that wrote it. A snapshot of other
    /// versions is refused only by the operator's policy ([`crate::outdated`]): its machines
    /// continue with its own kernel, not with the one that the host boots now.
    #[serde(flatten)]
    pub components: Components,
    /// Sandbox it shows; `None` for a template.
    pub sandbox: Option<SandboxId>,
    /// User of the lineage; a restored machine continues under it.
    pub uid: Option<u32>,
    pub state_bytes: u64,
    /// Memory written over the base.
    pub memory_bytes_written: u64,
    pub created_at: Timestamp,
    /// Only the disk exists: a sleeping sandbox that wakes by booting.
    #[serde(default)]
    pub disk_only: bool,
    /// Seal of each file.
    #[serde(default)]
    pub seals: Seals,
    /// The host's boot in which it was written.
    #[serde(default)]
    pub written_boot: String,
    /// Volumes that the machine had, by their places. A sleeping sandbox continues with them; a
    /// snapshot has copies beside its disk.
    #[serde(default)]
    pub volumes: Vec<VolumeSpec>,
    /// Addresses that its programs resolved under a policy by name, each with its expiry. A machine
    /// restored before then may keep using those that its own policy allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resolved: Vec<Resolved>,
}

impl Manifest {
    /// A manifest to be completed by a [`crate::capture::Capture`].
    pub(crate) fn new(host: &HostResources, template: &str, shape: Shape) -> Self {
        Self {
            template: template.to_owned(),
            shape,
            compatibility_key: host.engine.capabilities().compatibility_key.clone(),
            components: Components::default(),
            sandbox: None,
            uid: None,
            state_bytes: 0,
            memory_bytes_written: 0,
            created_at: Timestamp::now(),
            disk_only: false,
            seals: Seals::new(),
            written_boot: integrity::boot_id(),
            volumes: Vec::new(),
            resolved: Vec::new(),
        }
    }
}

/// A complete snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    dir: PathBuf,
    pub manifest: Manifest,
}

impl Snapshot {
    /// Opens a directory and checks that this host can load it.
    pub(crate) fn open(dir: &Path, engine: &Capabilities) -> Result<Self> {
        let manifest: Manifest = read_json(&dir.join(names::MANIFEST))?;
        if manifest.disk_only {
            let reason = "the sandbox kept only its disk and has no memory to copy; wake it first";
            return Err(AgentError::Conflict(reason.to_owned()));
        }
        if !engine.loads(&manifest.compatibility_key) {
            return Err(AgentError::Incompatible(format!(
                "the snapshot was created by `{}` and this host runs `{}`; restore it on a host with the same engine, \
                 or create a new one",
                manifest.compatibility_key, engine.compatibility_key
            )));
        }
        integrity::check_seals(dir, &manifest.seals)?;
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

    /// Reads the contents if this boot of the host has not read them yet, and fails if they are damaged.
    pub(crate) async fn verify(&self, stop: &CancellationToken) -> Result<()> {
        verify(&self.dir, &self.manifest, stop).await
    }

    /// See [`checksum_in_background`].
    pub(crate) fn checksum_in_background(&self, host: &Arc<HostResources>, images_after: Duration) {
        checksum_in_background(host, self.dir.clone(), self.manifest.seals.clone(), images_after);
    }

    /// Publishes the same snapshot at `to`, replacing an existing one in one step. The files are
    /// shared, not copied: they never change, and the file system counts who needs them. Volumes,
    /// which do change, are cloned into it; its own images of them stay behind.
    pub(crate) async fn link_to(
        &self,
        host: &HostResources,
        to: PathBuf,
        volumes: Vec<volume::Original>,
    ) -> Result<()> {
        let (store, from, mut manifest) = (host.store.clone(), self.dir.clone(), self.manifest.clone());
        blocking(move || {
            let staging = store.stage()?;
            link_files(&from, staging.path())?;
            let mut images = Vec::new();
            for (place, (_, image)) in volumes.into_iter().enumerate() {
                let name = names::volume(place);
                store.clone_file(&image, &staging.path().join(&name))?;
                images.push(name);
            }
            manifest.seals.retain(|name, _| FILES.contains(&name.as_str()));
            manifest.seals.extend(integrity::seal(staging.path(), &images)?);
            write_json(&staging.path().join(names::MANIFEST), &manifest)?;
            Ok(staging.publish_over(&to)?)
        })
        .await
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

    /// Volume images that copies of the machine clone: the snapshot's own images, or the volumes
    /// themselves of a sleeping sandbox. A missing image is an error: memory that remembers one
    /// state of a volume would destroy another.
    pub(crate) fn volumes(&self, layout: &Layout) -> Vec<volume::Original> {
        let own = |place: usize, original: volume::Original| {
            let image = self.dir.join(names::volume(place));
            if image.exists() || self.dir.starts_with(layout.snapshots()) {
                (original.0, image)
            } else {
                original
            }
        };
        let originals = volume::originals(layout, &self.manifest.volumes);
        originals.into_iter().enumerate().map(|(place, original)| own(place, original)).collect()
    }

    /// Bytes of the host's disk that its files take, shared extents counted in full.
    pub(crate) fn size_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let files = [self.state(), self.memory(), self.disk()];
        files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
    }
}

/// Links what never changes, and the sums of it if there are any.
fn link_files(from: &Path, to: &Path) -> Result<()> {
    for name in FILES.into_iter().chain([integrity::CHECKSUMS]) {
        let link = to.join(name);
        match std::fs::hard_link(from.join(name), &link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && name == integrity::CHECKSUMS => {}
            linked => linked.map_err(AgentError::io("link", &link))?,
        }
    }
    Ok(())
}

/// Seals the files of a complete snapshot directory: its own, and images of volumes if it has any.
pub(crate) fn seal(dir: &Path, volumes: usize) -> Result<Seals> {
    let images = (0..volumes).map(names::volume).filter(|name| dir.join(name).exists());
    let all: Vec<String> = FILES.into_iter().map(str::to_owned).chain(images).collect();
    integrity::seal(dir, &all)
}

/// Reads the contents of a snapshot directory if this boot of the host has not read them yet, and fails if they are damaged.
pub(crate) async fn verify(dir: &Path, manifest: &Manifest, stop: &CancellationToken) -> Result<()> {
    if !integrity::needs_verifying(dir, &manifest.written_boot) {
        return Ok(());
    }
    let (dir, stop) = (dir.to_owned(), stop.clone());
    blocking(move || integrity::verify(&dir, &stop)).await
}

/// Computes checksums of the sealed files of a directory in the background; of disks only after
/// `images_after`, because they are large and most sleeps are short. The directory may disappear
/// before that.
pub(crate) fn checksum_in_background(
    host: &Arc<HostResources>,
    dir: PathBuf,
    seals: Seals,
    images_after: Duration,
) {
    let host = host.clone();
    host.tasks.clone().spawn(async move {
        if !images_after.is_zero() {
            let small = seals.iter().filter(|(name, _)| !names::is_image(name));
            let small: Seals = small.map(|(name, seal)| (name.clone(), *seal)).collect();
            if !small.is_empty() {
                write_checksums(&host, &dir, small).await;
            }
            tokio::select! {
                () = host.shutdown.cancelled() => return,
                () = tokio::time::sleep(images_after) => {}
            }
        }
        write_checksums(&host, &dir, seals).await;
    });
}

async fn write_checksums(host: &HostResources, dir: &Path, seals: Seals) {
    let (from, stop) = (dir.to_owned(), host.shutdown.clone());
    let Ok(_turn) = host.checksum_turn.acquire().await else { return };
    let sum = move || {
        // Unless another sleep, or nothing, lies there now.
        integrity::check_seals(&from, &seals)?;
        let names: Vec<&String> = seals.keys().collect();
        integrity::write_checksums(&from, &names, &stop)
    };
    if let Err(error) = integrity::run_at_low_priority(sum).await {
        tracing::debug!(dir = %dir.display(), error = %chain(&error), "no checksums");
    }
}

/// Computes missing checksums of snapshots and sleeping sandboxes, left by an earlier agent.
pub(crate) fn sum_the_rest(host: &Arc<HostResources>) {
    for (dir, seals) in unsummed(entries(&host.layout.snapshots())) {
        checksum_in_background(host, dir, seals, Duration::ZERO);
    }
    let sleepers = entries(&host.layout.sandboxes()).map(|dir| dir.join(layout::SLEEP));
    for (dir, seals) in unsummed(sleepers) {
        checksum_in_background(host, dir, seals, SLEEPERS_IMAGES_AFTER);
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Snapshot directories with files that have no checksum, and the seals of those files.
fn unsummed(dirs: impl Iterator<Item = PathBuf>) -> impl Iterator<Item = (PathBuf, Seals)> {
    let sealed = dirs.filter_map(|dir| {
        let manifest: Manifest = read_json(&dir.join(names::MANIFEST)).ok()?;
        Some((dir, manifest.seals))
    });
    sealed.filter(|(dir, seals)| !seals.is_empty() && !integrity::is_summed(dir, seals))
}

/// Restricts memory to its owner, and makes it read-only: machines get it as an open descriptor, or
/// as a mount.
pub(crate) fn keep_private(memory: &Path) -> Result<()> {
    set_mode(memory, 0o400)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(AgentError::io("set permissions of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_earlier_versions_are_read() {
        let text = r#"{"template":"base","shape":{"vcpus":1,"memory_mib":512},"compatibility_key":"k",
            "sandbox":null,"uid":null,"state_bytes":0,"memory_bytes_written":0,"created_at":"2026-01-01T00:00:00Z"}"#;
        let manifest: Manifest = serde_json::from_str(text).expect("a manifest");
        assert!(manifest.resolved.is_empty() && manifest.volumes.is_empty());
        assert_eq!(manifest.components, Components::default(), "unknown");
        let again = serde_json::to_string(&manifest).expect("text");
        assert!(!again.contains("resolved"), "{again}");
    }

    /// A snapshot directory with these files.
    fn written(dir: &Path, files: &[&str]) -> Seals {
        std::fs::create_dir_all(dir).unwrap();
        for name in files {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let seals = integrity::seal(dir, files).unwrap();
        let manifest: Manifest = serde_json::from_value(serde_json::json!({
            "template": "base", "shape": {"vcpus": 1, "memory_mib": 512}, "compatibility_key": "k", "sandbox": null,
            "uid": null, "state_bytes": 0, "memory_bytes_written": 0, "created_at": "2026-01-01T00:00:00Z",
            "seals": &seals,
        }))
        .unwrap();
        write_json(&dir.join(names::MANIFEST), &manifest).unwrap();
        seals
    }

    #[test]
    fn hibernated_sandboxes_without_checksums_are_found() {
        let (store, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let [whole, disk_only, empty] = ["whole", "disk-only", "empty"].map(|name| store.path().join(name));
        let seals = written(&whole, &FILES);
        written(&disk_only, &[names::DISK]);
        std::fs::create_dir(&empty).unwrap();
        let left = || {
            let mut left: Vec<_> = unsummed(entries(store.path())).map(|(dir, _)| dir).collect();
            left.sort();
            left
        };
        assert_eq!(left(), [disk_only.clone(), whole.clone()]);
        integrity::write_checksums(&whole, &FILES[..2], &stop).unwrap();
        assert_eq!(left(), [disk_only.clone(), whole.clone()], "its disk has no sum");
        let names: Vec<&String> = seals.keys().collect();
        integrity::write_checksums(&whole, &names, &stop).unwrap();
        integrity::write_checksums(&disk_only, &[names::DISK], &stop).unwrap();
        assert!(left().is_empty());
    }

    #[test]
    fn volume_images_are_sealed_when_present() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[names::STATE, names::MEMORY, names::DISK, "volume.0"]);
        assert!(seal(dir.path(), 0).unwrap().keys().eq(["disk", "memory", "state"]));
        assert!(seal(dir.path(), 2).unwrap().keys().eq(["disk", "memory", "state", "volume.0"]));
    }
}
