//! Templates: whether one exists. Building them through these clients is not supported yet.

use axum::Json;
use http::StatusCode;
use pandastack_types::api::Template;
use serde_json::{Value, json};

use super::extract::{Authenticated, PathParam};
use super::template_name::template_name;
use crate::error::{RestError, RestResult};
use crate::native_paths as paths;

/// Checks that a template of that name exists.
pub(super) async fn exists(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
) -> RestResult<Json<Value>> {
    let wanted = template_name(&name);
    let templates: Vec<Template> = caller.get(paths::TEMPLATES).await?;
    let found =
        templates.into_iter().find(|template| template.name == wanted || template.aliases.contains(&wanted));
    let shown: String = name.chars().take(80).collect();
    let missing = || RestError::new(StatusCode::NOT_FOUND, format!("template `{shown}` not found"));
    let template = found.ok_or_else(missing)?;
    Ok(Json(json!({ "templateID": template.name, "public": true })))
}

pub(super) async fn unsupported() -> RestError {
    RestError::unsupported("building templates with this client is")
}
