//! Routes for trees of files.

use axum::response::{IntoResponse, Response};
use pandastack_types::agent_api::LAST_EVENT_ID_HEADER;
use pandastack_types::agent_api::endpoints::{
    CopyFile, FindFiles, GrepFiles, ListDirectory, PackArchive, RenameFile, SetAttributes, UnpackArchive,
    WatchFiles,
};
use pandastack_types::api::{self, FileEntry, FileWritten};

use super::data::sse;
use super::endpoint::{EventResponse, SandboxCall};
use crate::error::Result;
use crate::files::check_path;
use crate::trees::{self, Find, Grep};

/// The entries of a directory; with `recursive` or `depth`, of those below it too.
pub(super) async fn list(call: SandboxCall<ListDirectory>) -> Result<Response> {
    let query = call.endpoint.query;
    let path = query.path.as_deref().unwrap_or("/");
    check_path(path)?;
    let lease = call.sandbox.lease().await?;
    if !query.recursive.0 && query.depth.is_none() && query.limit.is_none() {
        return crate::files::list(&lease, path).await;
    }
    let depth = query.depth.or((!query.recursive.0).then_some(1));
    trees::find(&lease, Find { path, glob: None, depth, limit: query.limit }).await
}

pub(super) async fn find(call: SandboxCall<FindFiles>) -> Result<Response> {
    let query = call.endpoint.query;
    let path = query.path.as_deref().unwrap_or("/");
    check_path(path)?;
    let find = Find { path, glob: query.glob.as_deref(), depth: query.depth, limit: query.limit };
    trees::find(&call.sandbox.lease().await?, find).await
}

pub(super) async fn grep(call: SandboxCall<GrepFiles>) -> Result<Response> {
    let query = call.endpoint.query;
    let grep = Grep {
        path: query.path.unwrap_or_else(|| "/".to_owned()),
        pattern: query.pattern,
        glob: query.glob,
        ignore_case: query.ignore_case.0,
        fixed: query.fixed.0,
        limit: query.limit,
    };
    check_path(&grep.path)?;
    trees::grep(&call.sandbox.lease().await?, grep).await
}

pub(super) async fn rename(call: SandboxCall<RenameFile>) -> Result<()> {
    let api::RenameFile { from, to, make_parents } = call.body;
    check_path(&from)?;
    check_path(&to)?;
    Ok(call.sandbox.lease().await?.guest.rename(from, to, make_parents).await?)
}

pub(super) async fn copy(call: SandboxCall<CopyFile>) -> Result<()> {
    let api::CopyFile { from, to } = call.body;
    check_path(&from)?;
    check_path(&to)?;
    Ok(call.sandbox.lease().await?.guest.copy(from, to).await?)
}

pub(super) async fn set_attributes(call: SandboxCall<SetAttributes>) -> Result<FileEntry> {
    let path = &call.endpoint.query.path;
    check_path(path)?;
    trees::set_attributes(&call.sandbox.lease().await?, path, call.body).await
}

pub(super) async fn pack(call: SandboxCall<PackArchive>) -> Result<Response> {
    let path = &call.endpoint.query.path;
    check_path(path)?;
    Ok(trees::pack(call.sandbox.lease().await?, path).await?.into_response())
}

pub(super) async fn unpack(call: SandboxCall<UnpackArchive>) -> Result<FileWritten> {
    let query = call.endpoint.query;
    check_path(&query.path)?;
    trees::unpack(&call.sandbox.lease().await?, &query.path, query.user, call.body).await
}

/// Changes below a path, as events.
pub(super) async fn watch(call: SandboxCall<WatchFiles>) -> Result<EventResponse> {
    let SandboxCall { host, sandbox, endpoint: WatchFiles { query, .. }, parts, .. } = call;
    check_path(&query.path)?;
    let resume = parts.headers.get(LAST_EVENT_ID_HEADER).map(|value| value.to_str().unwrap_or_default());
    let resume = resume.map(trees::parse_position).transpose()?;
    let lease = sandbox.lease().await?;
    let changes = trees::watch(lease, &query.path, query.recursive.0, resume, host.shutdown.clone()).await?;
    Ok(sse(changes))
}
