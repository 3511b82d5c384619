//! Operations on volumes, apart from HTTP: each moves a row and its image together.
//!
//! A row exists before its host is asked for the image, and an image is deleted before its row; see
//! [`super::reconcile`] for the state after a crash in between.

use std::sync::Arc;

use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_store::clock::now;
use pandastack_store::volumes::{VolumeRecord, VolumeSpecRecord, VolumeState};
use pandastack_types::agent_api::{AgentVolumeCreate, AgentVolumeGrow, endpoints};
use pandastack_types::api::{CreateVolume, PatchVolume};
use pandastack_types::limits::{VOLUME_MB_MAX, VOLUME_MB_MIN, VOLUME_NAME_CHARS_MAX};
use pandastack_types::{Error, HostId, Result, SandboxId, VolumeId, WorkspaceId, chain};

use super::{MIB, owned};
use crate::Sandboxes;
use crate::in_flight::OperationKey;
use crate::ops::{MAKE_WAIT, MOVE_WAIT};

/// Creates an empty volume. Runs to its end even if the caller is dropped.
pub async fn create(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: CreateVolume,
) -> Result<VolumeRecord> {
    check_name(&request.name)?;
    check_size(request.size_mb)?;
    let (host, client) = sandboxes.hosts.place_volume()?;
    let spec = VolumeSpecRecord {
        size_bytes: request.size_mb * MIB,
        protected: request.protected,
        ..VolumeSpecRecord::default()
    };
    let record = new_record(workspace, request.name, host, spec);
    make(sandboxes, client, record, None, None).await
}

/// Creates a copy of a volume, to write or as a snapshot. Runs to its end even if the caller is dropped.
pub async fn copy(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    name: &str,
    copy: String,
    snapshot: bool,
) -> Result<VolumeRecord> {
    check_name(&copy)?;
    let original = of_user(sandboxes, &workspace, name).await?;
    let client = sandboxes.hosts.client(&original.host)?;
    let writer = writer(sandboxes, &original).await?;
    let spec = VolumeSpecRecord {
        size_bytes: original.spec.size_bytes,
        snapshot,
        cloned_from: Some(original.id.clone()),
        ..VolumeSpecRecord::default()
    };
    let record = new_record(workspace, copy, original.host, spec);
    make(sandboxes, client, record, Some(original.id), writer).await
}

async fn make(
    sandboxes: &Arc<Sandboxes>,
    client: AgentClient,
    record: VolumeRecord,
    from: Option<VolumeId>,
    writer: Option<SandboxId>,
) -> Result<VolumeRecord> {
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let _marked = own.background.mark(&OperationKey::Volume(record.id.clone()));
            own.store.insert_volumes(std::slice::from_ref(&record)).await?;
            let size_bytes = record.spec.size_bytes;
            let body = AgentVolumeCreate { id: record.id.clone(), size_bytes, from, writer };
            let options = CallOptions::on_host(MAKE_WAIT);
            match client.call(endpoints::CreateVolume::new(), options, &body).await {
                Ok(made) => {
                    let spec = VolumeSpecRecord { size_bytes: made.size_bytes, ..record.spec };
                    own.store.update_volume(&record.id, &spec).await?;
                    Ok(VolumeRecord { spec, state: VolumeState::Ready, ..record })
                }
                Err(error) => {
                    abandon(&own, &record).await;
                    Err(error.into())
                }
            }
        })
        .await
}

/// Removes the remains of a failed create. If its host does not respond, the next report finishes
/// it.
async fn abandon(sandboxes: &Sandboxes, record: &VolumeRecord) {
    if let Err(error) = sandboxes.store.delete_volume(&record.id).await {
        tracing::warn!(
            volume = %record.id, error = %chain(&error),
            "cannot delete the record of a volume that was not created"
        );
        return;
    }
    if let Err(error) = finish_delete(sandboxes, record).await {
        tracing::info!(volume = %record.id, error = %error.message, "cannot delete a volume; retrying when its host reports");
    }
}

/// Grows a volume.
pub async fn grow(sandboxes: &Arc<Sandboxes>, record: VolumeRecord, size_mb: u64) -> Result<VolumeRecord> {
    check_size(size_mb)?;
    if record.spec.snapshot {
        let name = &record.name;
        return Err(Error::conflict(format!("volume `{name}` is a read-only snapshot; clone it")));
    }
    let client = sandboxes.hosts.client(&record.host)?;
    let writer = writer(sandboxes, &record).await?;
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let body = AgentVolumeGrow { size_bytes: size_mb * MIB, writer };
            let call = endpoints::GrowVolume::new(record.id.clone());
            let grown = client.call(call, CallOptions::on_host(MOVE_WAIT), &body).await?;
            let spec = VolumeSpecRecord { size_bytes: grown.size_bytes, ..record.spec };
            own.store.update_volume(&record.id, &spec).await?;
            Ok(VolumeRecord { spec, ..record })
        })
        .await
}

/// Changes what protects a volume.
pub async fn change(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    name: &str,
    request: &PatchVolume,
) -> Result<VolumeRecord> {
    let record = of_user(sandboxes, workspace, name).await?;
    let spec = VolumeSpecRecord {
        protected: request.protected.unwrap_or(record.spec.protected),
        delete_with_sandbox: request.delete_with_sandbox.unwrap_or(record.spec.delete_with_sandbox),
        ..record.spec
    };
    sandboxes.store.update_volume(&record.id, &spec).await?;
    Ok(VolumeRecord { spec, ..record })
}

/// Deletes a volume, now or once its host responds. Runs to its end even if the caller is dropped.
pub async fn delete(sandboxes: &Arc<Sandboxes>, workspace: &WorkspaceId, name: &str) -> Result<()> {
    let record = sandboxes.store.volume(workspace, name).await?;
    owned::check(&record, None)?;
    if record.spec.protected {
        return Err(Error::conflict(format!(
            "volume `{name}` is protected; run `pandastack volume protect {name} --off` first, or PATCH it \
             with \
             `protected: false`"
        )));
    }
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            own.store.delete_volume(&record.id).await?;
            finish_delete(&own, &record).await
        })
        .await
}

/// Removes the image and then the row of a volume that is being deleted. A host that does not
/// answer does it when it reports. Safe to repeat.
pub async fn finish_delete(sandboxes: &Sandboxes, record: &VolumeRecord) -> Result<()> {
    let removed = match sandboxes.hosts.client(&record.host) {
        Ok(client) => {
            let call = endpoints::DeleteVolume::new(record.id.clone());
            client.call(call, CallOptions::on_host(MOVE_WAIT), ()).await
        }
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => {}
        Err(error) if error.is_absent() => {}
        Err(error @ AgentError::Answered { .. }) => return Err(error.into()),
        Err(error) => {
            tracing::info!(
                volume = %record.id, error = %chain(&error),
                "the deletion will be completed when the host reports"
            );
            return Ok(());
        }
    }
    Ok(sandboxes.store.remove_volume(&record.id).await?)
}

/// The sandbox that writes a volume now.
async fn writer(sandboxes: &Sandboxes, record: &VolumeRecord) -> Result<Option<SandboxId>> {
    let holders = sandboxes.store.volume_holders(&record.workspace).await?;
    let writing = holders.into_iter().find(|holder| holder.volume == record.id && !holder.read_only);
    Ok(writing.map(|holder| holder.sandbox))
}

/// A volume that can be used.
pub async fn ready(sandboxes: &Sandboxes, workspace: &WorkspaceId, name: &str) -> Result<VolumeRecord> {
    let record = sandboxes.store.volume(workspace, name).await?;
    match record.state {
        VolumeState::Ready => Ok(record),
        _ => Err(Error::conflict(format!("volume `{name}` is still being created; try again in a moment"))),
    }
}

/// A volume that can be used, and belongs to no service.
pub async fn of_user(sandboxes: &Sandboxes, workspace: &WorkspaceId, name: &str) -> Result<VolumeRecord> {
    let record = ready(sandboxes, workspace, name).await?;
    owned::check(&record, None)?;
    Ok(record)
}

fn new_record(workspace: WorkspaceId, name: String, host: HostId, spec: VolumeSpecRecord) -> VolumeRecord {
    let (id, state) = (VolumeId::random(), VolumeState::Creating);
    VolumeRecord { id, workspace, name, host, state, generation: 0, created_at: now(), spec }
}

/// A name for a snapshot of the volume with that name, which there will not be again.
pub fn snapshot_name(name: &str) -> String {
    let stamp = format!("-{}", now().strftime("%Y%m%d-%H%M%S"));
    let keep = VOLUME_NAME_CHARS_MAX.saturating_sub(stamp.len());
    let start: String = name.chars().take(keep).collect();
    start + &stamp
}

/// Refuses what cannot be a volume's name.
pub fn check_name(name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edges = name.starts_with('-') || name.ends_with('-');
    if (1..=VOLUME_NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(good) && !edges {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "`name` must be 1 to {VOLUME_NAME_CHARS_MAX} lowercase letters, digits and `-`, and must not begin \
         or end with `-`"
    )))
}

fn check_size(size_mb: u64) -> Result<()> {
    if (VOLUME_MB_MIN..=VOLUME_MB_MAX).contains(&size_mb) {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "volume size must be {VOLUME_MB_MIN} to {VOLUME_MB_MAX} MiB, not {size_mb}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_and_sizes_are_validated() {
        for (name, good) in [
            ("data", true),
            ("a", true),
            (&"x".repeat(63), true),
            (&"x".repeat(64), false),
            ("", false),
            ("-a", false),
            ("a-", false),
            ("Data", false),
            ("a/b", false),
            ("..", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name}");
        }
        for (size_mb, good) in [(0, false), (15, false), (16, true), (65_536, true), (65_537, false)] {
            assert_eq!(check_size(size_mb).is_ok(), good, "{size_mb}");
        }
    }

    #[test]
    fn volume_snapshot_names_are_valid() {
        for name in ["data", &"x".repeat(63)] {
            check_name(&snapshot_name(name)).unwrap();
        }
    }
}
