//! Template bakes.

use axum::Json;
use axum::extract::{Path, State};
use pandastack_types::BuildId;
use pandastack_types::api::Build;

use super::Shared;
use crate::error::Result;

pub(super) async fn bake(State(host): Shared, Path(name): Path<String>) -> Result<Json<Build>> {
    Ok(Json(host.templates.begin(&host, &name)?))
}

pub(super) async fn list(State(host): Shared) -> Json<Vec<Build>> {
    Json(host.templates.builds())
}

pub(super) async fn look(State(host): Shared, Path(id): Path<BuildId>) -> Result<Json<Build>> {
    Ok(Json(host.templates.build(&id)?))
}
