//! Making, moving and removing sandboxes and snapshots.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use pandastack_types::agent_api::{
    AgentCreate, AgentFork, AgentForked, AgentKeepAwake, AgentPatch, AgentRollback, AgentSandbox,
    AgentSnapshot, AgentSnapshotDone, HostReport,
};
use pandastack_types::api::Hibernate;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{SandboxId, SnapshotId, limits};

use super::{Shared, Target};
use crate::error::{AgentError, Result};
use crate::sandbox::{self, Request};

pub(super) async fn host_report(State(host): Shared) -> Json<HostReport> {
    Json(crate::report::report(&host))
}

pub(super) async fn create(
    State(host): Shared,
    Json(request): Json<AgentCreate>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(sandbox::create(&host, request).await?))
}

pub(super) async fn look(Target(handle): Target) -> Json<AgentSandbox> {
    Json(handle.view())
}

/// Gone already is success: whoever asks wants it gone.
pub(super) async fn remove(State(host): Shared, Path(id): Path<SandboxId>) -> Result<StatusCode> {
    match host.sandbox(&id) {
        Ok(handle) => match handle.delete().await {
            Ok(()) | Err(AgentError::NoSandbox(_)) => Ok(StatusCode::NO_CONTENT),
            Err(error) => Err(error),
        },
        Err(_) => Ok(StatusCode::NO_CONTENT),
    }
}

pub(super) async fn patch(
    Target(handle): Target,
    Json(patch): Json<AgentPatch>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.set_idle(patch.idle_timeout_seconds).await?))
}

pub(super) async fn set_network(
    Target(handle): Target,
    Json(policy): Json<NetworkPolicy>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.set_network(policy).await?))
}

pub(super) async fn pause(Target(handle): Target) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.move_to(Request::Pause).await?))
}

pub(super) async fn resume(Target(handle): Target) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.move_to(Request::Resume).await?))
}

pub(super) async fn hibernate(
    Target(handle): Target,
    Json(request): Json<Hibernate>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.hibernate(request.keep).await?))
}

pub(super) async fn keep_awake(
    Target(handle): Target,
    Json(request): Json<AgentKeepAwake>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.keep_awake(request.until).await?))
}

pub(super) async fn rollback(
    Target(handle): Target,
    Json(request): Json<AgentRollback>,
) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.rollback(request.snapshot_id).await?))
}

pub(super) async fn wake(Target(handle): Target) -> Result<Json<AgentSandbox>> {
    Ok(Json(handle.move_to(Request::Wake).await?))
}

pub(super) async fn fork(Target(handle): Target, Json(fork): Json<AgentFork>) -> Result<Json<AgentForked>> {
    let count = fork.children.len();
    if count == 0 || count > limits::FORK_TREE_COUNT_MAX as usize {
        return Err(AgentError::BadRequest(format!(
            "a fork makes 1 to {} children, not {count}",
            limits::FORK_TREE_COUNT_MAX
        )));
    }
    Ok(Json(handle.fork(fork.children).await?))
}

pub(super) async fn snapshot(
    Target(handle): Target,
    Json(request): Json<AgentSnapshot>,
) -> Result<Json<AgentSnapshotDone>> {
    Ok(Json(handle.snapshot(request.snapshot_id).await?))
}

pub(super) async fn remove_snapshot(State(host): Shared, Path(id): Path<SnapshotId>) -> StatusCode {
    host.remove_snapshot(&id).await;
    host.changed.notify_one();
    StatusCode::NO_CONTENT
}
