//! Making, growing and removing volumes.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use pandastack_types::VolumeId;
use pandastack_types::agent_api::{AgentVolume, AgentVolumeCreate, AgentVolumeGrow};

use super::Shared;
use crate::error::Result;
use crate::volume;

/// Makes a volume. One that a sandbox writes is copied by that sandbox's driver.
pub(super) async fn create(
    State(host): Shared,
    Json(request): Json<AgentVolumeCreate>,
) -> Result<Json<AgentVolume>> {
    if let (Some(from), Some(writer)) = (&request.from, &request.writer)
        && let Ok(handle) = host.sandbox(writer)
    {
        handle.copy_volume(from.clone(), request.id.clone()).await?;
        return Ok(Json(volume::settle(&host, request.id).await?));
    }
    Ok(Json(volume::create(&host, request).await?))
}

/// Makes a volume larger, in the guest of the sandbox that has it too.
pub(super) async fn grow(
    State(host): Shared,
    Path(id): Path<VolumeId>,
    Json(request): Json<AgentVolumeGrow>,
) -> Result<Json<AgentVolume>> {
    if let Some(handle) = request.writer.as_ref().and_then(|writer| host.sandbox(writer).ok()) {
        handle.grow_volume(id.clone(), request.size_bytes).await?;
        return Ok(Json(volume::settle(&host, id).await?));
    }
    Ok(Json(volume::grow(&host, id, request.size_bytes).await?))
}

/// Gone already is success.
pub(super) async fn remove(State(host): Shared, Path(id): Path<VolumeId>) -> Result<StatusCode> {
    volume::remove(&host, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
