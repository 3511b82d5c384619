//! The volumes of a new sandbox: those it asks for, and copies of those that its original had.

use pandastack_types::api::{AttachVolume, AttachedVolume};
use pandastack_types::limits::{VOLUME_NAME_CHARS_MAX, VOLUMES_PER_SANDBOX_MAX};
use pandastack_types::{HostId, SandboxId, VolumeId, WorkspaceId};

use super::ops;
use crate::app::{App, Marked, now};
use crate::error::{ApiError, ApiResult};
use crate::store::SandboxRecord;
use crate::store::volumes::{VolumeRecord, VolumeSpecRecord, VolumeState};

/// Where volumes are mounted unless said.
const MOUNT_ROOT: &str = "/volumes";
/// Places that belong to the system inside.
const FORBIDDEN: [&str; 6] = ["/", "/dev", "/proc", "/run", "/sys", "/tmp"];

/// What a sandbox that asks for volumes gets, and the host that has them.
pub(crate) async fn resolve(
    app: &App,
    workspace: &WorkspaceId,
    wanted: &[AttachVolume],
) -> ApiResult<(Vec<AttachedVolume>, Option<HostId>)> {
    check(wanted)?;
    let (mut attached, mut host) = (Vec::new(), None::<HostId>);
    for volume in wanted {
        let record = ops::ready(app, workspace, &volume.name).await?;
        if host.get_or_insert_with(|| record.host.clone()) != &record.host {
            let message = "the volumes are on different hosts, and a sandbox is on one; clone or move the data first";
            return Err(ApiError::conflict(message));
        }
        let read_only = volume.read_only.unwrap_or(false);
        if record.spec.snapshot && !read_only {
            return Err(ApiError::conflict(format!(
                "volume `{}` is a snapshot: attach it with `read_only: true`, or clone it",
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
fn check(wanted: &[AttachVolume]) -> ApiResult<()> {
    if wanted.len() > VOLUMES_PER_SANDBOX_MAX {
        return Err(ApiError::bad_request(format!("a sandbox has at most {VOLUMES_PER_SANDBOX_MAX} volumes")));
    }
    for (index, volume) in wanted.iter().enumerate() {
        ops::check_name(&volume.name)?;
        let path = mount_path(volume);
        crate::validate::path("volumes.path", &path)?;
        let odd = path.split('/').skip(1).any(|part| part.is_empty() || part == "." || part == "..");
        if odd || FORBIDDEN.contains(&path.as_str()) {
            return Err(ApiError::bad_request(format!(
                "a volume cannot be mounted at `{path}`; choose a directory of its own, such as `{MOUNT_ROOT}/{}`",
                volume.name
            )));
        }
        let mut others = wanted.iter().take(index);
        if others.any(|other| other.name == volume.name || mount_path(other) == path) {
            return Err(ApiError::bad_request("each volume and each path can be given once"));
        }
    }
    Ok(())
}

/// Volumes of sandboxes that are being made as copies. Reconciling leaves them alone while this lives.
#[derive(Default)]
pub(crate) struct Derived {
    records: Vec<VolumeRecord>,
    _marks: Vec<Marked>,
}

impl Derived {
    /// Gives `child`, a copy of a sandbox that had `originals`, volumes of its own in the places of those it would
    /// write. They are deleted with it, unless someone changes that. What is only read is shared.
    pub(crate) async fn add(
        &mut self,
        app: &App,
        child: &mut SandboxRecord,
        originals: &[AttachedVolume],
    ) -> ApiResult<()> {
        if originals.is_empty() {
            return Ok(());
        }
        let known = app.store.volumes(&child.workspace).await?;
        let mut own = Vec::with_capacity(originals.len());
        for original in originals {
            if original.read_only {
                own.push(original.clone());
                continue;
            }
            let size_bytes = known.iter().find(|volume| volume.id == original.id).map(|v| v.spec.size_bytes);
            let record = copy_of(original, size_bytes.unwrap_or(0), child);
            self._marks.extend(app.under_way.mark(record.id.as_str()));
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

    /// Writes them down; before the rows of their sandboxes.
    pub(crate) async fn insert(&self, app: &App) -> ApiResult<()> {
        match self.records.is_empty() {
            true => Ok(()),
            false => Ok(app.store.insert_volumes(&self.records).await?),
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
    fn volumes_go_to_directories_of_their_own() {
        for (path, good) in [
            (None, true),
            (Some("/data"), true),
            (Some("/home/user/data"), true),
            (Some("/"), false),
            (Some("/proc"), false),
            (Some("/a/../b"), false),
            (Some("/a//b"), false),
            (Some("/a/"), false),
            (Some("data"), false),
            (Some(""), false),
        ] {
            assert_eq!(check(&[wanted("data", path)]).is_ok(), good, "{path:?}");
        }
    }

    #[test]
    fn a_list_of_volumes_has_limits() {
        let many: Vec<_> = (0..=VOLUMES_PER_SANDBOX_MAX).map(|n| wanted(&format!("v{n}"), None)).collect();
        assert!(check(&many).is_err());
        assert!(check(&many[1..]).is_ok());
        assert!(check(&[wanted("a", Some("/x")), wanted("b", Some("/x"))]).is_err());
        assert!(check(&[wanted("a", Some("/x")), wanted("a", Some("/y"))]).is_err());
    }

    #[test]
    fn names_of_copies_are_names() {
        let child = SandboxId::random();
        for name in ["data", &"x".repeat(63), &format!("{}-y", "x".repeat(48))] {
            ops::check_name(&name_for(name, &child)).unwrap();
        }
    }
}
