//! The data path of trees of files.

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pandastack_types::api::{
    CopyFile, DirectoryListing, FileEntry, FileWritten, GrepResult, RenameFile, SetAttributes,
};
use serde::Deserialize;

use super::data::{is_set, required_path, sse};
use super::{Shared, Target};
use crate::error::{AgentError, Result};
use crate::files::check_path;
use crate::trees::{self, Find, Grep};

#[derive(Deserialize)]
pub(super) struct TreeQuery {
    path: Option<String>,
    glob: Option<String>,
    depth: Option<u32>,
    limit: Option<u32>,
    recursive: Option<String>,
    pattern: Option<String>,
    ignore_case: Option<String>,
    fixed: Option<String>,
    user: Option<String>,
}

/// The entries of a directory; with `recursive` or `depth`, of those below it too.
pub(super) async fn list(
    Target(handle): Target,
    Query(query): Query<TreeQuery>,
) -> Result<Json<DirectoryListing>> {
    let path = query.path.as_deref().unwrap_or("/");
    check_path(path)?;
    let recursive = is_set("recursive", query.recursive.as_deref())?;
    let lease = handle.lease().await?;
    if !recursive && query.depth.is_none() && query.limit.is_none() {
        return Ok(Json(crate::files::list(&lease, path).await?));
    }
    let depth = query.depth.or((!recursive).then_some(1));
    Ok(Json(trees::find(&lease, Find { path, glob: None, depth, limit: query.limit }).await?))
}

pub(super) async fn find(
    Target(handle): Target,
    Query(query): Query<TreeQuery>,
) -> Result<Json<DirectoryListing>> {
    let path = query.path.as_deref().unwrap_or("/");
    check_path(path)?;
    let TreeQuery { glob, depth, limit, .. } = &query;
    let find = Find { path, glob: glob.as_deref(), depth: *depth, limit: *limit };
    Ok(Json(trees::find(&handle.lease().await?, find).await?))
}

pub(super) async fn grep(Target(handle): Target, Query(query): Query<TreeQuery>) -> Result<Json<GrepResult>> {
    let missing = || AgentError::BadRequest("the query has no `pattern`; add ?pattern=...".to_owned());
    let grep = Grep {
        path: query.path.unwrap_or_else(|| "/".to_owned()),
        pattern: query.pattern.ok_or_else(missing)?,
        glob: query.glob,
        ignore_case: is_set("ignore_case", query.ignore_case.as_deref())?,
        fixed: is_set("fixed", query.fixed.as_deref())?,
        limit: query.limit,
    };
    check_path(&grep.path)?;
    Ok(Json(trees::grep(&handle.lease().await?, grep).await?))
}

pub(super) async fn rename(Target(handle): Target, Json(rename): Json<RenameFile>) -> Result<StatusCode> {
    check_path(&rename.from)?;
    check_path(&rename.to)?;
    let RenameFile { from, to, make_parents } = rename;
    handle.lease().await?.guest.rename(from, to, make_parents).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn copy(Target(handle): Target, Json(copy): Json<CopyFile>) -> Result<StatusCode> {
    check_path(&copy.from)?;
    check_path(&copy.to)?;
    handle.lease().await?.guest.copy(copy.from, copy.to).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn set_attributes(
    Target(handle): Target,
    Query(query): Query<TreeQuery>,
    Json(wanted): Json<SetAttributes>,
) -> Result<Json<FileEntry>> {
    let path = required_path(query.path.as_deref())?;
    Ok(Json(trees::set_attributes(&handle.lease().await?, path, wanted).await?))
}

pub(super) async fn pack(Target(handle): Target, Query(query): Query<TreeQuery>) -> Result<Response> {
    let path = required_path(query.path.as_deref())?;
    let mut response = trees::pack(handle.lease().await?, path).await?.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}

pub(super) async fn unpack(
    Target(handle): Target,
    Query(query): Query<TreeQuery>,
    body: Body,
) -> Result<Json<FileWritten>> {
    let path = required_path(query.path.as_deref())?;
    Ok(Json(trees::unpack(&handle.lease().await?, path, query.user, body).await?))
}

/// Changes below a path, as events.
pub(super) async fn watch(
    State(host): Shared,
    Target(handle): Target,
    Query(query): Query<TreeQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let path = required_path(query.path.as_deref())?;
    let recursive = is_set("recursive", query.recursive.as_deref())?;
    let resume = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let resume = resume.map(trees::parse_position).transpose()?;
    let lease = handle.lease().await?;
    Ok(sse(trees::watch(lease, path, recursive, resume, host.shutdown.clone()).await?))
}
