//! Taking and deleting snapshots.
//!
//! A row is written only once the host has the snapshot; one without a row is forgotten by its host. Deleting removes
//! the row first, so a host that does not answer forgets the snapshot when it reports.

use std::sync::Arc;

use http::Method;
use pandastack_types::agent_api::{AgentSnapshot, AgentSnapshotDone};
use pandastack_types::api::CreateSnapshot;
use pandastack_types::{SnapshotId, WorkspaceId};
use serde::de::IgnoredAny;

use super::{MOVE_WAIT, NOTHING, SNAPSHOT_WAIT, call_on};
use crate::app::{App, now};
use crate::error::{ApiError, ApiResult};
use crate::store::record::SnapshotSpecRecord;
use crate::store::{SandboxRecord, SnapshotRecord};
use pandastack_agent_client::{AgentClient, AgentError, Call};

/// Longest name of a snapshot.
const NAME_BYTES_MAX: usize = 256;

/// Takes a snapshot. Runs to its end even if the caller is dropped.
pub(crate) async fn take(
    app: &Arc<App>,
    record: SandboxRecord,
    client: AgentClient,
    request: CreateSnapshot,
) -> ApiResult<SnapshotRecord> {
    crate::validate::metadata(&request.metadata.clone().unwrap_or_default())?;
    if request.name.as_ref().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
        return Err(ApiError::bad_request(format!("`name` is at most {NAME_BYTES_MAX} bytes")));
    }
    let owner = Arc::clone(app);
    app.owned(async move { run(&owner, record, client, request).await }).await
}

async fn run(
    app: &App,
    record: SandboxRecord,
    client: AgentClient,
    request: CreateSnapshot,
) -> ApiResult<SnapshotRecord> {
    let id = SnapshotId::random();
    let _marked = app.under_way.mark(id.as_str());
    let path = format!("/sandboxes/{}/snapshots", record.id);
    let body = AgentSnapshot { snapshot_id: id.clone() };
    let call = call_on(&record, Method::POST, &path, SNAPSHOT_WAIT);
    let done: AgentSnapshotDone = match client.call(call, Some(&body)).await {
        Ok(done) => done,
        Err(error) => {
            remove_quietly(&client, &id).await;
            return Err(error.into());
        }
    };
    let snapshot = SnapshotRecord {
        id,
        workspace: record.workspace,
        sandbox: record.id,
        host: record.host,
        created_at: now(),
        spec: SnapshotSpecRecord {
            template: record.template,
            name: request.name,
            metadata: request.metadata.unwrap_or_default(),
            size_bytes: done.size_bytes,
            pause_ms: Some(done.pause_ms),
            cpu: record.spec.cpu,
            memory_mb: record.spec.memory_mb,
            env: record.spec.env,
        },
    };
    match app.store.insert_snapshot(&snapshot).await {
        Ok(event) => app.publish([event]),
        Err(error) => {
            remove_quietly(&client, &snapshot.id).await;
            return Err(error.into());
        }
    }
    Ok(snapshot)
}

/// Deletes a snapshot. Runs to its end even if the caller is dropped.
pub(crate) async fn delete(app: &Arc<App>, workspace: WorkspaceId, id: SnapshotId) -> ApiResult<()> {
    let owner = Arc::clone(app);
    app.owned(async move {
        let (snapshot, event) = owner.store.delete_snapshot(&workspace, &id, now()).await?;
        owner.publish([event]);
        if let Ok(client) = owner.hosts.client(&snapshot.host) {
            remove_quietly(&client, &id).await;
        }
        Ok(())
    })
    .await
}

async fn remove_quietly(client: &AgentClient, id: &SnapshotId) {
    let path = format!("/snapshots/{id}");
    let call = Call { method: Method::DELETE, path: &path, incarnation: None, wait: MOVE_WAIT };
    let removed: Result<IgnoredAny, AgentError> = client.call(call, NOTHING).await;
    if let Err(error) = removed
        && !error.is_absent()
    {
        tracing::info!(snapshot = %id, %error, "the snapshot is removed when its host next reports");
    }
}
