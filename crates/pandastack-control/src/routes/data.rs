//! The data path: exec, files, ports and logs go straight to the sandbox's agent, streaming both ways.
//!
//! Control authenticates, finds the host and does cheap checks; the agent wakes a sleeping sandbox,
//! does the work and shapes the answer. Nothing is repeated, nothing but small JSON is held in
//! memory, and when the client goes away its request to the agent is dropped with it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, header};
use http_body_util::Limited;
use pandastack_rest::extract::{parse_json, read_body};
use pandastack_rest::request_id::REQUEST_ID;
use pandastack_rest::{ApiResult, Caller, Id, Query};
use pandastack_sandboxes::{Sandboxes, ops, validate};
use pandastack_types::agent_api::endpoints::{
    self, ExecStream, ListDirectory, MakeDirectory, ReadFile, ReadLogs, RemoveFile, StatFile, WriteFile,
};
use pandastack_types::agent_api::{Endpoint, PassThrough};
use pandastack_types::api::{DirectoryListing, ExecRequest, ExecResult, FileEntry, FileWritten, RenameFile};
use pandastack_types::limits::FILE_BODY_BYTES_MAX;
use pandastack_types::{Error, ErrorBody, ErrorCode, Result, SandboxId};
use serde::Deserialize;

/// Request headers that mean something to an agent.
const FORWARDED: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::ACCEPT,
    header::RANGE,
    header::IF_RANGE,
    HeaderName::from_static("last-event-id"),
    REQUEST_ID,
];
/// Response headers that belong to the connection to the agent, not to the answer.
const DROPPED: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    HeaderName::from_static("keep-alive"),
    header::UPGRADE,
    REQUEST_ID,
];

#[derive(Deserialize)]
pub(crate) struct PathArg {
    path: Option<String>,
}

impl PathArg {
    pub(super) fn check(&self) -> Result<()> {
        match &self.path {
            Some(path) => validate::path("path", path),
            None => Err(Error::bad_request("`path` is missing; add `?path=/absolute/path`")),
        }
    }
}

/// Run a command and wait for it to end.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec", tag = "exec", params(("id" = SandboxId, Path),
    ("tag" = Option<String>, Query, description = "Name of the process in process lists")),
    request_body = ExecRequest, responses((status = 200, body = ExecResult), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 504, description = "The command was killed at its timeout", body = ErrorBody)))]
pub(crate) async fn exec(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, validate::exec).await?;
    let answer = forward(&sandboxes, &caller, &id, endpoints::Exec::pass_through, request).await;
    pandastack_fault::point("control.exec.answered").await;
    Ok(answer?)
}

/// Run a command and stream its output as server-sent events: `stdout`, `stderr`, then `exit` or `error`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec/stream", tag = "exec", params(("id" = SandboxId, Path),
    ("encoding" = Option<String>, Query, description = "Encoding of output: `text` or `base64`"),
    ("tag" = Option<String>, Query, description = "Name of the process in process lists")),
    request_body = ExecRequest, responses((status = 200, content_type = "text/event-stream", body = String),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn exec_stream(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, validate::exec).await?;
    Ok(forward(&sandboxes, &caller, &id, ExecStream::pass_through, request).await?)
}

/// Read a file, or a part of it with `Range`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query), ("Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
    (status = 206, content_type = "application/octet-stream", body = Vec<u8>), (status = 404, body = ErrorBody),
    (status = 416, body = ErrorBody)))]
pub(crate) async fn read(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, ReadFile::pass_through, request).await?)
}

/// Write a file and create its parent directories. The body is streamed. Readers see the old file until the
/// new one is complete.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/fs", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query),
        ("write" = Option<String>, Query, description = "Write mode: `atomic` (default), `in_place` or `append`"),
        ("mode" = Option<String>, Query, description = "File permissions in octal"),
        ("user" = Option<String>, Query, description = "Owner of a new file and of new parent directories")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten), (status = 413, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn write(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, WriteFile::pass_through, limit_body(request)?).await?)
}

/// Refuses an upload that is too large; at once if its declared length is.
pub(super) fn limit_body(request: Request) -> Result<Request> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > FILE_BODY_BYTES_MAX) {
        return Err(Error::new(
            ErrorCode::BodyTooLarge,
            format!("a file must be at most {FILE_BODY_BYTES_MAX} bytes"),
        ));
    }
    let limit = usize::try_from(FILE_BODY_BYTES_MAX).unwrap_or(usize::MAX);
    Ok(request.map(|body| Body::new(Limited::new(body, limit))))
}

/// Delete a file, or a directory with its contents.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/fs", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Query)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, RemoveFile::pass_through, request).await?)
}

/// List a directory, `/` by default. With `recursive` or `depth`, include subdirectories.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/dir", tag = "files",
    params(("id" = SandboxId, Path), ("path" = Option<String>, Query), ("recursive" = Option<bool>, Query),
        ("depth" = Option<u32>, Query), ("limit" = Option<u32>, Query)),
    responses((status = 200, body = DirectoryListing), (status = 404, body = ErrorBody)))]
pub(crate) async fn list_dir(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    mut request: Request,
) -> ApiResult<Response> {
    match &arg.path {
        Some(path) => validate::path("path", path)?,
        None => {
            let rest = request.uri().query().map(|query| format!("&{query}")).unwrap_or_default();
            let uri = format!("{}?path=/{rest}", request.uri().path());
            *request.uri_mut() = uri.parse().map_err(Error::internal)?;
        }
    }
    Ok(forward(&sandboxes, &caller, &id, ListDirectory::pass_through, request).await?)
}

/// Get a file's attributes.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/stat", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Query)),
    responses((status = 200, body = FileEntry), (status = 404, body = ErrorBody)))]
pub(crate) async fn stat(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, StatFile::pass_through, request).await?)
}

/// Create a directory and its parents.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fs/mkdir", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query),
        ("user" = Option<String>, Query, description = "Owner of the new directories")),
    responses((status = 204), (status = 400, body = ErrorBody)))]
pub(crate) async fn mkdir(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, MakeDirectory::pass_through, request.map(|_| Body::empty())).await?)
}

/// Rename or move a file.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fs/rename", tag = "files", params(("id" = SandboxId, Path)),
    request_body = RenameFile, responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn rename(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, |rename: &RenameFile| {
        validate::path("from", &rename.from)?;
        validate::path("to", &rename.to)
    })
    .await?;
    Ok(forward(&sandboxes, &caller, &id, endpoints::RenameFile::pass_through, request).await?)
}

/// Get the console log. With `follow`, stream it as server-sent events.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/logs", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("stream" = Option<String>, Query), ("follow" = Option<String>, Query)),
    responses((status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub(crate) async fn logs(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    Ok(forward(&sandboxes, &caller, &id, ReadLogs::pass_through, request).await?)
}

/// Reads a small JSON body and checks it, so that a bad one is refused without waking anything.
pub(super) async fn checked<T: serde::de::DeserializeOwned + utoipa::ToSchema + 'static>(
    request: Request,
    check: impl FnOnce(&T) -> Result<()>,
) -> Result<Request> {
    let (mut parts, body) = request.into_parts();
    let bytes = read_body(body).await?;
    check(&parse_json(&bytes)?)?;
    parts.headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    parts.headers.insert(header::CONTENT_LENGTH, http::HeaderValue::from(bytes.len()));
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Passes a request on to the sandbox's agent and its answer back. HEAD is answered from GET by dropping the body, here as in
/// every HTTP server.
pub(super) async fn forward<E: Endpoint>(
    sandboxes: &Sandboxes,
    caller: &Caller,
    id: &SandboxId,
    call: impl FnOnce(&SandboxId, Option<String>) -> PassThrough<E>,
    request: Request,
) -> Result<Response> {
    let (place, client) = ops::locate(sandboxes, &caller.workspace, id).await?;
    let (parts, body) = request.into_parts();
    let call = call(id, agent_query(parts.uri.query()));
    let headers = picked(&parts.headers, &FORWARDED);
    let mut response = client.pass_through(&call, place.incarnation, headers, body).await?;
    ops::note_wake(sandboxes, &place, id, &client).await;
    for name in DROPPED {
        response.headers_mut().remove(name);
    }
    Ok(response.map(Body::new).into_response())
}

/// The headers with these names.
pub(super) fn picked(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    names.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}

/// The query without the caller's key or signature.
pub(super) fn agent_query(query: Option<&str>) -> Option<String> {
    let secret = |pair: &str| pair.starts_with("access_token=") || pair.starts_with("signature=");
    let pairs: Vec<_> = query?.split('&').filter(|pair| !secret(pair)).collect();
    (!pairs.is_empty()).then(|| pairs.join("&"))
}
