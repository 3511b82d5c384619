//! The volumes of a host: images in the store, access to them, and their size limits.
//!
//! Invariants:
//! - **One writer.** A machine's process holds a lock on the image for as long as it has it open:
//!   exclusive to write, shared to read. The lock is of the open file, which the process inherits;
//!   it lasts until that process is gone, even if this agent ends first, and does not depend on a
//!   record.
//! - **Generations only rise.** Control raises a volume's generation with every new writer. The
//!   highest generation that opened the image is recorded before the machine gets it; an older one
//!   is refused. So a sleeping sandbox whose volume was written by another machine does not wake:
//!   its memory holds an outdated file system.
//! - **Attaching never formats.** A new volume is a clone of an empty file system of its size, made
//!   once.
//! - A reader sees everything that was synced: the journal that a killed machine left is replayed
//!   first.
//! - A volume's metadata is durable before it is reported.
//!
//! Out of scope: names, tenants and leases (control), mounting (the guest), stopping a writer for a
//! copy ([`crate::sandbox`]).

mod replay;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use pandastack_engine::VOLUMES_MAX;
use pandastack_image::Store;
use pandastack_types::VolumeId;
use pandastack_types::agent_api::{AgentVolume, AgentVolumeCreate, VolumeSpec};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::blocking::blocking;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::layout::{Layout, volume as names};
use crate::record::{read_json, write_json, write_json_durably};

/// Factor by which a host's free space may be overcommitted to its volumes. Images take space as
/// they are written, and few are ever full. Beyond it: 507.
pub(crate) const OVERCOMMIT: u64 = 4;

const _: () = assert!(VOLUMES_MAX == pandastack_types::limits::VOLUMES_PER_SANDBOX_MAX);

/// The record of a volume on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Highest generation that opened it.
    generation: u64,
    created_at: Timestamp,
}

/// Creates a volume: empty, or a copy of one that no machine writes now. Repeating a create returns
/// the existing volume.
pub(crate) async fn create(host: &HostResources, request: AgentVolumeCreate) -> Result<AgentVolume> {
    let (store, layout) = (host.store.clone(), host.layout.clone());
    let made = blocking(move || {
        let AgentVolumeCreate { id, size_bytes, from, .. } = request;
        if let Ok(there) = describe(&layout, &id) {
            return Ok(there);
        }
        let image = match &from {
            Some(from) => {
                let image = image(&layout, from)?;
                // Held while the image is copied, so that no machine starts writing it.
                let _turn = replay::ReplayGuard::take(from);
                let lock = open_locked(&image, true, from)?;
                return make(&store, &layout, &id, size_bytes, &image).inspect(|_| drop(lock));
            }
            None => {
                // Before anything is formatted for it.
                promise(&store, &layout, size_bytes)?;
                blank(&store, &layout, size_bytes)?
            }
        };
        make(&store, &layout, &id, size_bytes, &image)
    });
    let made = made.await;
    host.changed.notify_one();
    made
}

/// Creates a volume as a copy of `image`, and at least as large. The caller ensures that `image`
/// does not change.
pub(crate) fn make(
    store: &Store,
    layout: &Layout,
    id: &VolumeId,
    size_bytes: u64,
    image: &Path,
) -> Result<AgentVolume> {
    let length = std::fs::metadata(image).map_err(AgentError::io("read the metadata of", image))?.len();
    let size_bytes = size_bytes.max(length);
    promise(store, layout, size_bytes)?;
    let staging = store.stage()?;
    let own = staging.path().join(names::IMAGE);
    store.clone_file(image, &own)?;
    let file = OpenOptions::new().write(true).open(&own).map_err(AgentError::io("open", &own))?;
    file.set_len(size_bytes).map_err(AgentError::io("size", &own))?;
    let record = Record { generation: 0, created_at: Timestamp::now() };
    write_json(&staging.path().join(names::RECORD), &record)?;
    staging.publish(&layout.volume(id))?;
    describe(layout, id)
}

/// An empty file system of that size, made on first use.
pub(crate) fn blank(store: &Store, layout: &Layout, bytes: u64) -> Result<PathBuf> {
    let blank = layout.blank(bytes);
    if blank.exists() {
        return Ok(blank);
    }
    let staging = store.stage()?;
    let fresh = staging.path().join(names::IMAGE);
    pandastack_image::format_volume(&fresh, bytes)?;
    File::open(&fresh).and_then(|file| file.sync_all()).map_err(AgentError::io("sync", &fresh))?;
    // A concurrent create makes an equal one.
    std::fs::rename(&fresh, &blank).map_err(AgentError::io("rename", &blank))?;
    Ok(blank)
}

/// Refuses to promise `bytes` more than the host may ever have.
fn promise(store: &Store, layout: &Layout, bytes: u64) -> Result<()> {
    let free = store.free_space()?.available_bytes();
    let open: u64 =
        all(layout).iter().map(|volume| volume.size_bytes.saturating_sub(volume.used_bytes)).sum();
    if free > 0 && open.saturating_add(bytes) <= free.saturating_mul(OVERCOMMIT) {
        return Ok(());
    }
    Err(AgentError::NoSpace(format!(
        "this host has {} MiB of disk free, and {} MiB of it are reserved for volumes; a volume of {} MiB does \
         not fit; delete volumes, or add a host",
        free >> 20,
        open >> 20,
        bytes >> 20
    )))
}

/// Every volume.
pub(crate) fn all(layout: &Layout) -> Vec<AgentVolume> {
    let dirs = std::fs::read_dir(layout.volumes()).into_iter().flatten().flatten();
    let ids = dirs.filter_map(|dir| dir.file_name().to_str()?.parse::<VolumeId>().ok());
    ids.filter_map(|id| describe(layout, &id).ok()).collect()
}

fn describe(layout: &Layout, id: &VolumeId) -> Result<AgentVolume> {
    let image = image(layout, id)?;
    let meta = std::fs::metadata(&image).map_err(AgentError::io("read the metadata of", &image))?;
    let generation = record(layout, id)?.generation;
    Ok(AgentVolume { id: id.clone(), size_bytes: meta.len(), used_bytes: meta.blocks() * 512, generation })
}

fn record(layout: &Layout, id: &VolumeId) -> Result<Record> {
    read_json(&layout.volume(id).join(names::RECORD))
}

/// The image of a volume that exists.
pub(crate) fn image(layout: &Layout, id: &VolumeId) -> Result<PathBuf> {
    let image = layout.volume(id).join(names::IMAGE);
    if image.exists() { Ok(image) } else { Err(AgentError::NoVolume(id.clone())) }
}

/// An image that a copy of a machine gets its own copy of, and the volume it is of.
pub(crate) type Original = (VolumeId, PathBuf);

/// Creates the volumes for a copy of a machine: clones of the `originals` at the same places. The
/// caller ensures that the originals do not change. A volume that the copy shares with its
/// original, read-only or because it is the same sandbox, is not cloned.
pub(crate) async fn derive(
    host: &HostResources,
    originals: Vec<Original>,
    specs: &[VolumeSpec],
) -> Result<()> {
    if originals.len() > specs.len() {
        return Err(AgentError::Conflict(format!(
            "a copy of this machine needs {} volumes, but the request names {}",
            originals.len(),
            specs.len()
        )));
    }
    let pairs = originals.into_iter().zip(specs.iter().map(|spec| spec.id.clone()));
    let wanted: Vec<_> = pairs.filter(|((original, _), own)| original != own).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let (store, layout) = (host.store.clone(), host.layout.clone());
    blocking(move || {
        for ((_, image), own) in wanted {
            make(&store, &layout, &own, 0, &image)?;
        }
        Ok(())
    })
    .await
}

/// The images of a sandbox's volumes, by their places.
pub(crate) fn originals(layout: &Layout, specs: &[VolumeSpec]) -> Vec<Original> {
    let image = |spec: &VolumeSpec| layout.volume(&spec.id).join(names::IMAGE);
    specs.iter().map(|spec| (spec.id.clone(), image(spec))).collect()
}

/// Opens the volumes of one machine, by their places.
pub(crate) async fn open_all(
    host: &HostResources,
    specs: &[VolumeSpec],
) -> Result<Vec<pandastack_engine::Volume>> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    let engine = host.engine.capabilities();
    if !engine.read_only_volumes
        && let Some(volume) = specs.iter().find(|volume| volume.read_only)
    {
        return Err(AgentError::BadRequest(format!(
            "volume {} is attached read-only, and machines of the engine `{}` cannot have read-only volumes; \
             attach it writable, or use a host with another engine",
            volume.id, engine.name
        )));
    }
    let (layout, specs, uid) = (host.layout.clone(), specs.to_vec(), host.new_uid());
    blocking(move || specs.iter().map(|spec| open(&layout, spec, uid)).collect()).await
}

/// Opens a volume for one machine, under the machine's generation of it. `uid`: an otherwise unused
/// user, to replay the journal.
fn open(layout: &Layout, spec: &VolumeSpec, uid: u32) -> Result<pandastack_engine::Volume> {
    let path = image(layout, &spec.id)?;
    let _turn = spec.read_only.then(|| replay::ReplayGuard::take(&spec.id));
    if spec.read_only {
        replay::replay_left(&path, &spec.id, uid)?;
    }
    let image = open_locked(&path, spec.read_only, &spec.id)?;
    // Under the lock, so that no two machines write it down at once.
    let known = record(layout, &spec.id)?;
    if spec.generation < known.generation {
        return Err(AgentError::Conflict(format!(
            "volume {} was written by another sandbox meanwhile (generation {}, this sandbox has {}), so this \
             sandbox's memory does not match it; delete the sandbox and create one with the volume",
            spec.id, known.generation, spec.generation
        )));
    }
    if spec.generation > known.generation {
        let path = layout.volume(&spec.id).join(names::RECORD);
        write_json_durably(&path, &Record { generation: spec.generation, ..known })?;
    }
    let bytes =
        image.metadata().map_err(AgentError::io("read the metadata of", &layout.volume(&spec.id)))?.len();
    Ok(pandastack_engine::Volume { image, bytes })
}

/// Opens an image and locks it: shared to read, exclusive to write.
fn open_locked(image: &Path, read_only: bool, id: &VolumeId) -> Result<File> {
    let file = OpenOptions::new().read(true).write(!read_only).open(image);
    let file = file.map_err(AgentError::io("open", image))?;
    let wanted = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&file, wanted) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(AgentError::Conflict(format!(
            "volume {id} is in use by another machine of this host; delete the sandbox that uses it first"
        ))),
        Err(errno) => Err(AgentError::io("lock", image)(errno.into())),
    }
}

/// Grows a volume that is not attached. Its file system follows when it is next mounted.
pub(crate) async fn grow(host: &HostResources, id: VolumeId, bytes: u64) -> Result<AgentVolume> {
    let (store, layout) = (host.store.clone(), host.layout.clone());
    blocking(move || {
        let path = image(&layout, &id)?;
        let file = open_locked(&path, false, &id)?;
        check_growth(&store, &layout, &id, bytes)?;
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(AgentError::io("grow", &path))?;
        describe(&layout, &id)
    })
    .await
}

/// Refuses a size that is not larger than the current one, or that does not fit.
pub(crate) fn check_growth(store: &Store, layout: &Layout, id: &VolumeId, bytes: u64) -> Result<AgentVolume> {
    let now = describe(layout, id)?;
    if bytes < now.size_bytes {
        return Err(AgentError::BadRequest(format!(
            "a volume can only grow: it has {} MiB, but the request is for {} MiB",
            now.size_bytes >> 20,
            bytes >> 20
        )));
    }
    promise(store, layout, bytes - now.size_bytes)?;
    Ok(now)
}

/// Waits until an image's length survives a power loss, and returns its state.
pub(crate) async fn settle(host: &HostResources, id: VolumeId) -> Result<AgentVolume> {
    let layout = host.layout.clone();
    blocking(move || {
        let path = image(&layout, &id)?;
        File::open(&path).and_then(|file| file.sync_all()).map_err(AgentError::io("sync", &path))?;
        describe(&layout, &id)
    })
    .await
}

/// Removes a volume that no machine has. Gone already is success.
pub(crate) async fn remove(host: &HostResources, id: VolumeId) -> Result<()> {
    let (store, layout) = (host.store.clone(), host.layout.clone());
    let turn = Arc::clone(&host.removal_turn).lock_owned().await;
    let removed = blocking(move || {
        let _turn = turn;
        let image = match image(&layout, &id) {
            Ok(image) => image,
            Err(_) => return Ok::<_, AgentError>(()),
        };
        let _lock = open_locked(&image, false, &id)?;
        Ok(store.remove(&layout.volume(&id))?)
    });
    removed.await?;
    host.changed.notify_one();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = crate::host_resources::UID_FIRST;

    struct Fixture {
        _dir: tempfile::TempDir,
        layout: Layout,
        id: VolumeId,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), dir.path());
        let id = VolumeId::random();
        std::fs::create_dir_all(layout.volume(&id)).unwrap();
        std::fs::write(layout.volume(&id).join(names::IMAGE), vec![0; 4096]).unwrap();
        let record = Record { generation: 3, created_at: Timestamp::now() };
        write_json(&layout.volume(&id).join(names::RECORD), &record).unwrap();
        Fixture { _dir: dir, layout, id }
    }

    fn spec(fixture: &Fixture, generation: u64, read_only: bool) -> VolumeSpec {
        VolumeSpec { id: fixture.id.clone(), path: "/v".to_owned(), read_only, generation }
    }

    #[test]
    fn a_volume_has_one_writer_or_many_readers() {
        let fixture = fixture();
        let writer = open(&fixture.layout, &spec(&fixture, 4, false), USER).unwrap();
        for read_only in [false, true] {
            let second = open(&fixture.layout, &spec(&fixture, 5, read_only), USER);
            assert!(matches!(second, Err(AgentError::Conflict(_))), "{read_only} {second:?}");
        }
        // The lock is of the open file: it lasts while any process has it.
        let inherited = writer.image.try_clone().unwrap();
        drop(writer);
        assert!(open(&fixture.layout, &spec(&fixture, 5, false), USER).is_err());
        drop(inherited);
        let readers = [1, 2].map(|_| open(&fixture.layout, &spec(&fixture, 5, true), USER).unwrap());
        assert!(open(&fixture.layout, &spec(&fixture, 6, false), USER).is_err());
        drop(readers);
        assert!(open(&fixture.layout, &spec(&fixture, 6, false), USER).is_ok());
    }

    #[test]
    fn an_older_volume_generation_is_refused() {
        let fixture = fixture();
        assert!(open(&fixture.layout, &spec(&fixture, 2, false), USER).is_err());
        assert_eq!(describe(&fixture.layout, &fixture.id).unwrap().generation, 3);
        drop(open(&fixture.layout, &spec(&fixture, 3, false), USER).unwrap());
        drop(open(&fixture.layout, &spec(&fixture, 7, false), USER).unwrap());
        assert_eq!(describe(&fixture.layout, &fixture.id).unwrap().generation, 7);
        assert!(open(&fixture.layout, &spec(&fixture, 6, true), USER).is_err());
    }

    #[test]
    fn a_missing_volume_is_reported() {
        let fixture = fixture();
        let other = VolumeSpec { id: VolumeId::random(), ..spec(&fixture, 9, false) };
        assert!(matches!(open(&fixture.layout, &other, USER), Err(AgentError::NoVolume(_))));
    }
}
