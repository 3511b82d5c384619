//! The volumes of a new sandbox: requested ones, and copies of those of its original.

use std::path::Path;

use pandastack_store::clock::now;
use pandastack_store::volumes::{VolumeRecord, VolumeSpecRecord, VolumeState};
use pandastack_store::{SandboxRecord, StoreError};
use pandastack_types::api::{AttachVolume, AttachedVolume, TemplateVolume};
use pandastack_types::limits::{VOLUME_NAME_CHARS_MAX, VOLUMES_PER_SANDBOX_MAX};
use pandastack_types::{Error, HostId, Owner, Result, SandboxId, VolumeId, WorkspaceId};

use super::{MIB, ops, owned};
use crate::Sandboxes;
use crate::in_flight::{InFlightMark, OperationKey};

/// Default directory for volume mounts.
const MOUNT_ROOT: &str = "/volumes";
/// Places without which the system inside does not work. Directories below them may be mounted over.
const FORBIDDEN: [&str; 14] = [
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib64",
    "/run",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
];
/// The kernel's own, with everything below.
const KERNELS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The volumes that a new sandbox gets.
pub struct VolumePlan {
    /// Existing volumes, by place; the template's come first.
    pub volumes: Vec<AttachedVolume>,
    /// The host that has them.
    pub host: Option<HostId>,
    /// How the template's volume is provided.
    pub of_template: TemplateVolumeUse,
}

/// How the template's volume is provided.
pub enum TemplateVolumeUse {
    /// The template has none.
    None,
    /// A copy of the template's volume, with the requested name, if any.
    Fresh(TemplateVolume, Option<String>),
    /// A volume that exists: the first of [`VolumePlan::volumes`]. The template's memory does not fit it.
    Existing,
}

/// Resolves the volumes that a sandbox requests. A volume at the path of the template's own takes its
/// place: one that exists is used as it is, and another name becomes the name of the copy, which then
/// outlives the sandbox. `owner` is the service that the sandbox is for.
pub async fn resolve(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    wanted: &[AttachVolume],
    template: Option<&TemplateVolume>,
    owner: Option<&Owner>,
) -> Result<VolumePlan> {
    let room = VOLUMES_PER_SANDBOX_MAX - usize::from(template.is_some());
    let is_own = |volume: &AttachVolume| template.is_some_and(|own| mount_path(volume) == own.path);
    let (own, others): (Vec<_>, Vec<_>) = wanted.iter().cloned().partition(is_own);
    check(wanted, room + own.len())?;
    let mut volumes = Vec::new();
    let of_template = match (template, own.first()) {
        (None, _) => TemplateVolumeUse::None,
        (Some(template), None) => TemplateVolumeUse::Fresh(template.clone(), None),
        (Some(template), Some(own)) => match sandboxes.store.volume(workspace, &own.name).await {
            Ok(_) => {
                volumes.push(own.clone());
                TemplateVolumeUse::Existing
            }
            Err(StoreError::NotFound { .. }) => {
                TemplateVolumeUse::Fresh(template.clone(), Some(own.name.clone()))
            }
            Err(error) => return Err(error.into()),
        },
    };
    volumes.extend(others);
    let (volumes, host) = existing(sandboxes, workspace, &volumes, owner).await?;
    Ok(VolumePlan { volumes, host, of_template })
}

fn original(template: &TemplateVolume) -> AttachedVolume {
    let (id, path) = (VolumeId::random(), template.path.clone());
    AttachedVolume { id, name: "volume".to_owned(), path, read_only: false, generation: 0 }
}

async fn existing(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    wanted: &[AttachVolume],
    owner: Option<&Owner>,
) -> Result<(Vec<AttachedVolume>, Option<HostId>)> {
    let (mut attached, mut host) = (Vec::new(), None::<HostId>);
    for volume in wanted {
        let record = ops::ready(sandboxes, workspace, &volume.name).await?;
        owned::check(&record, owner)?;
        if host.get_or_insert_with(|| record.host.clone()) != &record.host {
            let message = "the volumes are on different hosts; copy the data to volumes on one host first";
            return Err(Error::conflict(message));
        }
        let read_only = volume.read_only.unwrap_or(false);
        if record.spec.snapshot && !read_only {
            return Err(Error::conflict(format!(
                "volume `{}` is a snapshot; attach it with `read_only: true`, or clone it",
                volume.name
            )));
        }
        attached.push(AttachedVolume {
            id: record.id,
            name: record.name,
            path: mount_path(volume),
            read_only,
            generation: record.generation + u64::from(!read_only),
        });
    }
    Ok((attached, host))
}

fn mount_path(volume: &AttachVolume) -> String {
    volume.path.clone().unwrap_or_else(|| format!("{MOUNT_ROOT}/{}", volume.name))
}

/// Refuses lists and paths that make no sense.
fn check(wanted: &[AttachVolume], room: usize) -> Result<()> {
    if wanted.len() > room {
        return Err(Error::bad_request(format!(
            "a sandbox can have at most {VOLUMES_PER_SANDBOX_MAX} volumes, including its template's volume"
        )));
    }
    for (index, volume) in wanted.iter().enumerate() {
        ops::check_name(&volume.name)?;
        let path = mount_path(volume);
        crate::validate::path("volumes.path", &path)?;
        let odd = path.split('/').skip(1).any(|part| part.is_empty() || part == "." || part == "..");
        let is_kernels = KERNELS.iter().any(|of| Path::new(&path).starts_with(of));
        if odd || is_kernels || FORBIDDEN.contains(&path.as_str()) {
            return Err(Error::bad_request(format!(
                "a volume cannot be mounted at `{path}`; choose another directory, such as `{MOUNT_ROOT}/{}`",
                volume.name
            )));
        }
        let mut others = wanted.iter().take(index);
        if others.any(|other| other.name == volume.name || mount_path(other) == path) {
            return Err(Error::bad_request("`volumes` contains a name or path twice; give each once"));
        }
    }
    Ok(())
}

/// Volumes of sandboxes that are being made as copies. Reconciling leaves them alone while this lives.
#[derive(Default)]
pub struct DerivedVolumes {
    records: Vec<VolumeRecord>,
    /// The volume that outlives its sandbox once that exists. If the create fails, the volume is deleted.
    kept: Option<VolumeId>,
    _marks: Vec<InFlightMark>,
}

impl DerivedVolumes {
    /// Creates volumes for `child`, a copy of a sandbox with `originals`, to replace the volumes
    /// that it would write. They are deleted with the child, unless that setting is changed.
    /// Read-only volumes are shared.
    pub async fn add(
        &mut self,
        sandboxes: &Sandboxes,
        child: &mut SandboxRecord,
        originals: &[AttachedVolume],
    ) -> Result<()> {
        if originals.is_empty() {
            return Ok(());
        }
        let known = sandboxes.store.volumes(&child.workspace).await?;
        let mut own = Vec::with_capacity(originals.len());
        for original in originals {
            if original.read_only {
                own.push(original.clone());
                continue;
            }
            let size_bytes = known.iter().find(|volume| volume.id == original.id).map(|v| v.spec.size_bytes);
            let record = copy_of(original, size_bytes.unwrap_or(0), child);
            self._marks.extend(sandboxes.background.mark(&OperationKey::Volume(record.id.clone())));
            own.push(AttachedVolume {
                id: record.id.clone(),
                name: record.name.clone(),
                generation: 1,
                ..original.clone()
            });
            self.records.push(record);
        }
        child.spec.volumes = own;
        Ok(())
    }

    /// Creates a new sandbox's copy of the template's volume. A named copy outlives the sandbox.
    pub async fn add_named(
        &mut self,
        sandboxes: &Sandboxes,
        child: &mut SandboxRecord,
        template: &TemplateVolume,
        name: Option<String>,
    ) -> Result<()> {
        self.add(sandboxes, child, &[original(template)]).await?;
        let (Some(record), Some(attached)) = (self.records.last_mut(), child.spec.volumes.last_mut()) else {
            return Ok(());
        };
        record.spec.cloned_from = None;
        record.spec.size_bytes = template.size_mb * MIB;
        if let Some(name) = name {
            self.kept = Some(record.id.clone());
            record.name.clone_from(&name);
            attached.name = name;
        }
        Ok(())
    }

    /// The sandboxes were made: what shall outlive them does from now on.
    pub async fn keep(&self, sandboxes: &Sandboxes) -> Result<()> {
        for record in self.records.iter().filter(|record| Some(&record.id) == self.kept.as_ref()) {
            let spec = VolumeSpecRecord { delete_with_sandbox: false, ..record.spec.clone() };
            sandboxes.store.update_volume(&record.id, &spec).await?;
        }
        Ok(())
    }

    /// Writes them down; before the rows of their sandboxes.
    pub async fn insert(&self, sandboxes: &Sandboxes) -> Result<()> {
        match self.records.is_empty() {
            true => Ok(()),
            false => Ok(sandboxes.store.insert_volumes(&self.records).await?),
        }
    }
}

fn copy_of(original: &AttachedVolume, size_bytes: u64, child: &SandboxRecord) -> VolumeRecord {
    let spec = VolumeSpecRecord {
        size_bytes,
        delete_with_sandbox: true,
        cloned_from: Some(original.id.clone()),
        ..VolumeSpecRecord::default()
    };
    VolumeRecord {
        id: VolumeId::random(),
        workspace: child.workspace.clone(),
        name: name_for(&original.name, &child.id),
        host: child.host.clone(),
        state: VolumeState::Ready,
        generation: 0,
        created_at: now(),
        spec,
    }
}

/// The original's name and the first part of the sandbox's id.
fn name_for(original: &str, child: &SandboxId) -> String {
    let end: String = child.as_str().chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    let keep = VOLUME_NAME_CHARS_MAX - 1 - end.len();
    let start: String = original.chars().take(keep).collect();
    format!("{}-{end}", start.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, path: Option<&str>) -> AttachVolume {
        AttachVolume { name: name.to_owned(), path: path.map(str::to_owned), read_only: None }
    }

    #[test]
    fn volumes_cannot_be_mounted_over_system_directories() {
        for (path, good) in [
            (None, true),
            (Some("/data"), true),
            (Some("/home/user/data"), true),
            (Some("/"), false),
            (Some("/proc"), false),
            (Some("/proc/sys/net"), false),
            (Some("/dev/shm"), false),
            (Some("/sys/fs"), false),
            (Some("/etc"), false),
            (Some("/etc/data"), true),
            (Some("/usr"), false),
            (Some("/usr/lib"), false),
            (Some("/usr/local/data"), true),
            (Some("/lib64"), false),
            (Some("/run/data"), true),
            (Some("/device"), true),
            (Some("/a/../b"), false),
            (Some("/a//b"), false),
            (Some("/a/"), false),
            (Some("data"), false),
            (Some(""), false),
        ] {
            assert_eq!(check(&[wanted("data", path)], 4).is_ok(), good, "{path:?}");
        }
    }

    #[test]
    fn too_many_or_duplicate_volumes_are_refused() {
        let many: Vec<_> = (0..=VOLUMES_PER_SANDBOX_MAX).map(|n| wanted(&format!("v{n}"), None)).collect();
        assert!(check(&many, VOLUMES_PER_SANDBOX_MAX).is_err());
        assert!(check(&many[1..], VOLUMES_PER_SANDBOX_MAX).is_ok());
        assert!(check(&[wanted("a", Some("/x")), wanted("b", Some("/x"))], 4).is_err());
        assert!(check(&[wanted("a", Some("/x")), wanted("a", Some("/y"))], 4).is_err());
    }

    #[test]
    fn names_of_volume_copies_are_valid() {
        let child = SandboxId::random();
        for name in ["data", &"x".repeat(63), &format!("{}-y", "x".repeat(48))] {
            ops::check_name(&name_for(name, &child)).unwrap();
        }
    }
}
