//! Templates and their tags.

use axum::Json;
use axum::body::Body;
use http::{Method, StatusCode};
use jiff::Timestamp;
use pandastack_types::BuildId;
use pandastack_types::api::{Build, SetTemplateTag, Template, TemplateTag};
use serde::Deserialize;
use serde_json::{Value, json};

use super::builds::status_of;
use super::extract::{Authenticated, PathParam};
use super::json::read_json;
use super::shape::{DISK_MB, ENVD_VERSION};
use super::snapshots;
use super::template_name::{DEFAULT_HERE, TemplateRef, tag_here, tag_there, template_name};
use crate::error::{RestError, RestResult};
use crate::native::{Caller, NativeResult};
use crate::native_paths as paths;

#[derive(Debug, Deserialize)]
struct AssignTags {
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct DeleteTags {
    name: String,
    tags: Vec<String>,
}

/// A template by its name or alias.
pub(super) async fn find(caller: &Caller, name: &str) -> NativeResult<Option<Template>> {
    let templates: Vec<Template> = caller.get(paths::TEMPLATES).await?;
    let is_it = |template: &Template| template.name == name || template.aliases.iter().any(|one| one == name);
    Ok(templates.into_iter().find(is_it))
}

pub(super) fn not_found(name: &str) -> RestError {
    let shown: String = name.chars().take(80).collect();
    RestError::new(StatusCode::NOT_FOUND, format!("template `{shown}` not found"))
}

/// Checks that a template of that name exists.
pub(super) async fn exists(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
) -> RestResult<Json<Value>> {
    let found = find(&caller, &template_name(&name)).await?;
    let template = found.ok_or_else(|| not_found(&name))?;
    Ok(Json(json!({ "templateID": template.name, "public": template.is_global || is_public(&template) })))
}

/// Templates of the workspace that have a version.
pub(super) async fn list(Authenticated(caller): Authenticated) -> RestResult<Json<Vec<Value>>> {
    let templates: Vec<Template> = caller.get(paths::TEMPLATES).await?;
    let mut shown = Vec::new();
    let is_own = |template: &Template| !template.is_global && template.shared_by.is_none();
    for template in templates.into_iter().filter(is_own) {
        let tags = tags_of(&caller, &template.name).await?;
        let latest = tags.iter().find(|tag| tag.tag == DEFAULT_HERE);
        if let Some(version) = latest.or_else(|| tags.iter().max_by_key(|tag| tag.created_at)) {
            shown.push(show(&template, version));
        }
    }
    Ok(Json(shown))
}

fn show(template: &Template, version: &TemplateTag) -> Value {
    json!({
        "templateID": template.name,
        "buildID": version.build_id,
        "cpuCount": template.cpu,
        "memoryMB": template.memory_mb,
        "diskSizeMB": DISK_MB,
        "public": is_public(template),
        "aliases": [template.name],
        "names": [template.name],
        "description": template.description,
        "createdAt": version.created_at,
        "updatedAt": version.created_at,
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
    })
}

fn is_public(template: &Template) -> bool {
    template.sharing.as_ref().is_some_and(|sharing| sharing.public)
}

/// One template of the workspace with its builds, newest first.
pub(super) async fn get(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
) -> RestResult<Json<Value>> {
    let own = find(&caller, &template_name(&name)).await?.filter(|template| !template.is_global);
    let template = own.ok_or_else(|| not_found(&name))?;
    let builds: Vec<Build> = caller.get(paths::TEMPLATE_BUILDS).await?;
    let own = builds.iter().filter(|build| build.name == template.name);
    let shown: Vec<Value> = own.clone().map(|build| show_build(build, &template)).collect();
    let created_at = own.map(|build| build.started_at).min().unwrap_or_else(Timestamp::now);
    Ok(Json(json!({
        "templateID": template.name,
        "public": is_public(&template),
        "aliases": [template.name],
        "names": [template.name],
        "createdAt": created_at,
        "updatedAt": created_at,
        "lastSpawnedAt": null,
        "spawnCount": 0,
        "builds": shown,
    })))
}

fn show_build(build: &Build, template: &Template) -> Value {
    let mut shown = json!({
        "buildID": build.id,
        "status": status_of(build),
        "createdAt": build.started_at,
        "updatedAt": build.ended_at.unwrap_or(build.started_at),
        "cpuCount": template.cpu,
        "memoryMB": template.memory_mb,
        "diskSizeMB": DISK_MB,
        "envdVersion": ENVD_VERSION,
    });
    if let Some(end) = build.ended_at {
        shown["finishedAt"] = end.to_string().into();
    }
    shown
}

/// Delete a template of the workspace, or a snapshot, which these clients treat as a template.
pub(super) async fn delete(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
) -> RestResult<StatusCode> {
    let wanted = own_name(&name)?;
    match find(&caller, &wanted).await? {
        Some(template) => caller.call(Method::DELETE, &paths::template(&template.name), None::<&()>).await?,
        None => snapshots::delete(&caller, &name).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn tags_of(caller: &Caller, name: &str) -> NativeResult<Vec<TemplateTag>> {
    caller.get(&paths::template_tags(name)).await
}

/// Tags of a template.
pub(super) async fn tags(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
) -> RestResult<Json<Vec<Value>>> {
    let tags = tags_of(&caller, &template_name(&name)).await?;
    let show = |tag: TemplateTag| json!({ "tag": tag_there(&tag.tag), "buildID": tag.build_id, "createdAt": tag.created_at });
    Ok(Json(tags.into_iter().map(show).collect()))
}

/// Body of an update. Other fields are of no use here.
#[derive(Deserialize)]
struct Update {
    public: Option<bool>,
}

/// The name of a template that is to be changed. One with a namespace may be of another workspace.
fn own_name(given: &str) -> RestResult<String> {
    match given.contains('/') {
        true => Err(not_found(given)),
        false => Ok(template_name(given)),
    }
}

/// Share a template with all workspaces of the installation, or stop that.
pub(super) async fn update(
    Authenticated(caller): Authenticated,
    PathParam(name): PathParam,
    body: Body,
) -> RestResult<Json<Value>> {
    let wanted: Update = read_json(body).await?;
    let name = own_name(&name)?;
    let template: Template = caller.get(&paths::template(&name)).await?;
    let mut sharing = template.sharing.ok_or_else(|| not_found(&name))?;
    if let Some(public) = wanted.public {
        sharing.public = public;
        caller.call(Method::PUT, &paths::template_sharing(&name), Some(&sharing)).await?;
    }
    Ok(Json(json!({ "names": [template.name] })))
}

/// Point tags to the version that a name means.
pub(super) async fn assign_tags(
    Authenticated(caller): Authenticated,
    body: Body,
) -> RestResult<(StatusCode, Json<Value>)> {
    let wanted: AssignTags = read_json(body).await?;
    let target = TemplateRef::of(&wanted.target);
    let build_id = tagged(&caller, &target).await?;
    let request = SetTemplateTag { build_id };
    for tag in &wanted.tags {
        let path = paths::template_tag(&target.name, tag_here(tag));
        caller.call(Method::PUT, &path, Some(&request)).await?;
    }
    Ok((StatusCode::CREATED, Json(json!({ "tags": wanted.tags, "buildID": request.build_id }))))
}

async fn tagged(caller: &Caller, target: &TemplateRef) -> RestResult<BuildId> {
    let wanted = target.tag.as_deref().unwrap_or(DEFAULT_HERE);
    let tags = tags_of(caller, &target.name).await?;
    let found = tags.into_iter().find(|tag| tag.tag == wanted);
    found.map(|tag| tag.build_id).ok_or_else(|| {
        let shown: String = tag_there(wanted).chars().take(80).collect();
        let why = format!("template `{}` has no tag `{shown}`", target.name);
        RestError::new(StatusCode::NOT_FOUND, why)
    })
}

/// Remove tags.
pub(super) async fn delete_tags(Authenticated(caller): Authenticated, body: Body) -> RestResult<StatusCode> {
    let wanted: DeleteTags = read_json(body).await?;
    let name = template_name(&wanted.name);
    for tag in &wanted.tags {
        let path = paths::template_tag(&name, tag_here(tag));
        caller.call(Method::DELETE, &path, None::<&()>).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Calls of other clients that build templates.
pub(super) async fn unsupported() -> RestError {
    RestError::unsupported("this call on templates is")
}
