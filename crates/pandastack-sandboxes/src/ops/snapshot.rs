//! Taking and deleting snapshots.
//!
//! A row is written only once the host has the snapshot; one without a row is forgotten by its
//! host. Deleting removes the row first, so a host that does not respond forgets the snapshot when
//! it reports.

use std::sync::Arc;

use pandastack_agent_client::{AgentClient, CallOptions};
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::names::Named;
use pandastack_store::record::{SnapshotSpecRecord, after_seconds};
use pandastack_store::{SandboxRecord, SnapshotRecord, StoreError};
use pandastack_types::agent_api::AgentSnapshot;
use pandastack_types::agent_api::endpoints::{DeleteSnapshot, TakeSnapshot};
use pandastack_types::api::{CreateSnapshot, SnapshotKind};
use pandastack_types::{Error, ErrorCode, ID_CHARS, Result, SnapshotId, WorkspaceId, chain};

use super::{MOVE_WAIT, SNAPSHOT_WAIT, options_for};
use crate::Sandboxes;
use crate::in_flight::OperationKey;

/// A snapshot of the workspace, by its id, name or the beginning of its id.
pub async fn find(sandboxes: &Sandboxes, workspace: &WorkspaceId, id: &SnapshotId) -> Result<SnapshotRecord> {
    let full = match id.as_str().len() {
        ID_CHARS => None,
        _ => sandboxes.store.find_named(workspace, Named::Snapshot, id.as_str()).await?,
    };
    let id = full.and_then(|id| id.parse().ok()).unwrap_or_else(|| id.clone());
    match sandboxes.store.snapshot(workspace, &id).await {
        Err(error @ StoreError::NotFound { .. }) => {
            let hint = "`pandastack snapshot list` shows the IDs and names of snapshots";
            Err(Error::new(ErrorCode::NotFound, format!("{error}; {hint}")))
        }
        found => Ok(found?),
    }
}

/// Refuses to create a user's sandbox from a snapshot of a service: root in a copy of a database's machine
/// has all of its data.
pub async fn check_unsealed(sandboxes: &Sandboxes, snapshot: &SnapshotRecord) -> Result<()> {
    if snapshot.spec.kind == SnapshotKind::Service {
        let message =
            format!("snapshot `{}` belongs to a service; take a snapshot of a sandbox instead", snapshot.id);
        return Err(Error::conflict(message));
    }
    match sandboxes.store.sandbox(None, &snapshot.sandbox).await {
        Ok(source) => super::check_unsealed(&source),
        // Checkpoints are deleted with their machine, and only services take other snapshots of a
        // sealed one.
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes a snapshot. Runs to its end even if the caller is dropped.
pub async fn take(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    client: AgentClient,
    request: CreateSnapshot,
    kind: SnapshotKind,
) -> Result<SnapshotRecord> {
    crate::validate::snapshot(&request)?;
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let keep_last = request.keep_last;
            let snapshot = run(&own, record, client, request, kind).await?;
            own.expiry_changed.notify_one();
            if let Some(keep_last) = keep_last {
                prune(&own, &snapshot, keep_last).await?;
            }
            Ok(snapshot)
        })
        .await
}

/// Deletes the oldest snapshots of the same sandbox and kind past `keep_last`. Named ones are
/// neither counted nor deleted, and versions of a template are not deleted.
async fn prune(sandboxes: &Sandboxes, newest: &SnapshotRecord, keep_last: u32) -> Result<()> {
    let mut old = sandboxes.store.snapshots(&newest.workspace, Some(&newest.sandbox)).await?;
    old.retain(|snapshot| snapshot.spec.kind == newest.spec.kind && snapshot.spec.name.is_none());
    let keep = usize::try_from(keep_last).unwrap_or(usize::MAX);
    for snapshot in old.into_iter().skip(keep) {
        if sandboxes.store.template_of_snapshot(&snapshot.workspace, &snapshot.id).await?.is_some() {
            continue;
        }
        remove(sandboxes, &snapshot).await?;
    }
    Ok(())
}

/// Deletes the checkpoints of a deleted sandbox, which can no longer be rolled back.
pub async fn remove_checkpoints(sandboxes: &Sandboxes, record: &SandboxRecord) -> Result<()> {
    for snapshot in sandboxes.store.snapshots(&record.workspace, Some(&record.id)).await? {
        if snapshot.spec.kind == SnapshotKind::Checkpoint {
            remove(sandboxes, &snapshot).await?;
        }
    }
    Ok(())
}

async fn run(
    sandboxes: &Sandboxes,
    record: SandboxRecord,
    client: AgentClient,
    request: CreateSnapshot,
    kind: SnapshotKind,
) -> Result<SnapshotRecord> {
    if let Some(name) =
        request.name.as_deref().filter(|_| kind == SnapshotKind::Manual && !request.replace_name)
    {
        // The host has taken it when the row is refused, so a name that is taken is found before.
        let has = sandboxes.store.snapshots(&record.workspace, None).await?;
        let has = has.iter().find(|one| one.spec.kind == kind && one.spec.name.as_deref() == Some(name));
        if let Some(SnapshotRecord { id, .. }) = has {
            let message = format!(
                "snapshot `{id}` already has the name `{name}`; choose another name, or set \
                 `replace_name` (`--replace-name`)"
            );
            return Err(Error::conflict(message));
        }
    }
    let id = SnapshotId::random();
    let _marked = sandboxes.background.mark(&OperationKey::Snapshot(id.clone()));
    let body = AgentSnapshot { snapshot_id: id.clone() };
    let call = TakeSnapshot::new(record.id.clone());
    let done = match client.call(call, options_for(&record, SNAPSHOT_WAIT), &body).await {
        Ok(done) => done,
        Err(error) => {
            remove_quietly(&client, &id).await;
            return Err(error.into());
        }
    };
    fault::point("control.snapshot.taken").await;
    let snapshot = SnapshotRecord {
        id,
        workspace: record.workspace,
        sandbox: record.id,
        host: record.host,
        created_at: now(),
        expires_at: request.ttl_seconds.and_then(|seconds| after_seconds(now(), seconds)),
        spec: SnapshotSpecRecord {
            kind,
            template: record.template,
            name: request.name,
            metadata: request.metadata.unwrap_or_default(),
            size_bytes: done.size_bytes,
            pause_ms: Some(done.pause_ms),
            cpu: record.spec.cpu,
            memory_mb: record.spec.memory_mb,
            env: record.spec.env,
            from_template: record.spec.from_template,
            user: record.spec.user,
            cwd: record.spec.cwd,
            network: record.spec.network,
            volumes: record.spec.volumes,
        },
    };
    match sandboxes.store.insert_snapshot(&snapshot, request.replace_name).await {
        Ok(event) => sandboxes.publish(&snapshot.workspace, [event]),
        Err(error) => {
            remove_quietly(&client, &snapshot.id).await;
            return Err(error.into());
        }
    }
    fault::point("control.snapshot.inserted").await;
    Ok(snapshot)
}

/// Deletes a snapshot, unless it is a version of a template. Runs to its end even if the caller is dropped.
pub async fn delete(sandboxes: &Arc<Sandboxes>, workspace: WorkspaceId, id: SnapshotId) -> Result<()> {
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let snapshot = own.store.snapshot(&workspace, &id).await?;
            if let Some(template) = own.store.template_of_snapshot(&workspace, &id).await? {
                return Err(Error::conflict(format!(
                    "snapshot `{id}` is a version of template `{template}`; delete the template first"
                )));
            }
            remove(&own, &snapshot).await
        })
        .await
}

/// Deletes a snapshot's row, then its files. Succeeds if it does not exist.
pub async fn remove(sandboxes: &Sandboxes, snapshot: &SnapshotRecord) -> Result<()> {
    match sandboxes.store.delete_snapshot(&snapshot.workspace, &snapshot.id, now()).await {
        Ok((_, event)) => sandboxes.publish(&snapshot.workspace, [event]),
        Err(StoreError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    if let Ok(client) = sandboxes.hosts.client(&snapshot.host) {
        remove_quietly(&client, &snapshot.id).await;
    }
    Ok(())
}

async fn remove_quietly(client: &AgentClient, id: &SnapshotId) {
    let call = DeleteSnapshot::new(id.clone());
    if let Err(error) = client.call(call, CallOptions::on_host(MOVE_WAIT), ()).await
        && !error.is_absent()
    {
        tracing::info!(
            snapshot = %id, error = %chain(&error),
            "the snapshot will be deleted when its host reports"
        );
    }
}
