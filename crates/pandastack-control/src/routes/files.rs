//! Trees of files, archives, watches and signed URLs. Everything except signing is forwarded to the
//! sandbox's agent, as in [`super::data`].

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header;
use jiff::Timestamp;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody, Query};
use pandastack_sandboxes::{Sandboxes, validate};
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_types::agent_api::endpoints::{
    self, FindFiles, GrepFiles, PackArchive, UnpackArchive, WatchFiles,
};
use pandastack_types::api::{
    CopyFile, DirectoryListing, FileChange, FileEntry, FileWritten, GrepResult, SetAttributes,
    SignBuildFiles, SignFile, SignedUrl,
};
use pandastack_types::limits::{SIGNED_SECONDS_DEFAULT, SIGNED_SECONDS_MAX};
use pandastack_types::{BuildId, Error, ErrorBody, ErrorCode, Result, SandboxId};
use serde::Deserialize;

use super::data::{PathArg, checked, forward, limit_body};
use crate::services::Services;
use crate::signed_url::{self, Target};

#[derive(Deserialize)]
pub(crate) struct SearchArgs {
    path: Option<String>,
    pattern: Option<String>,
}

impl SearchArgs {
    fn check(&self) -> Result<()> {
        self.path.as_deref().map_or(Ok(()), |path| validate::path("path", path))
    }
}

/// Find files by name below a directory, `/` by default. Does not follow links or enter other file systems.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/find", tag = "files",
    params(("id" = SandboxId, Path), ("path" = Option<String>, Query),
        ("glob" = Option<String>, Query, description = "Glob pattern: `*.rs` matches names, `src/**/*.rs` matches relative paths"),
        ("depth" = Option<u32>, Query), ("limit" = Option<u32>, Query)),
    responses((status = 200, body = DirectoryListing), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn find(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(args): Query<SearchArgs>,
    request: Request,
) -> ApiResult<Response> {
    args.check()?;
    Ok(forward(&sandboxes, &caller, &id, FindFiles::pass_through, request).await?)
}

/// Search text files by regular expression, or by plain text with `fixed`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/grep", tag = "files",
    params(("id" = SandboxId, Path), ("path" = Option<String>, Query), ("pattern" = String, Query),
        ("glob" = Option<String>, Query), ("ignore_case" = Option<bool>, Query), ("fixed" = Option<bool>, Query),
        ("limit" = Option<u32>, Query)),
    responses((status = 200, body = GrepResult), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn grep(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(args): Query<SearchArgs>,
    request: Request,
) -> ApiResult<Response> {
    args.check()?;
    if args.pattern.as_deref().is_none_or(str::is_empty) {
        return Err(Error::bad_request("`pattern` is missing; add `?pattern=...`").into());
    }
    Ok(forward(&sandboxes, &caller, &id, GrepFiles::pass_through, request).await?)
}

/// Copy a file or a directory tree with permissions and owners.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fs/copy", tag = "files", params(("id" = SandboxId, Path)),
    request_body = CopyFile, responses((status = 204), (status = 404, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn copy(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, |copy: &CopyFile| {
        validate::path("from", &copy.from)?;
        validate::path("to", &copy.to)
    })
    .await?;
    Ok(forward(&sandboxes, &caller, &id, endpoints::CopyFile::pass_through, request).await?)
}

/// Change a file's permissions and owner.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}/fs", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Query)),
    request_body = SetAttributes, responses((status = 200, body = FileEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn set_attributes(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    let request = checked(request, |_: &SetAttributes| Ok(())).await?;
    Ok(forward(&sandboxes, &caller, &id, endpoints::SetAttributes::pass_through, request).await?)
}

/// Download a directory or a file as a tar archive.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/tar", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Query)),
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>), (status = 404, body = ErrorBody)))]
pub(crate) async fn pack(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, PackArchive::pass_through, request).await?)
}

/// Unpack a tar archive into a directory, which is created if needed. Entries outside the directory are
/// rejected.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/fs/tar", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query), ("user" = Option<String>, Query)),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = FileWritten), (status = 400, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub(crate) async fn unpack(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, UnpackArchive::pass_through, limit_body(request)?).await?)
}

/// Stream changes of a file or directory as server-sent events: `watching`, then `change`. With
/// `Last-Event-ID`, the watch continues where it stopped if `watching` says `resumed`. A watched sandbox
/// does not count as idle.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/fs/watch", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query), ("recursive" = Option<bool>, Query),
        ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = FileChange), (status = 404, body = ErrorBody)))]
pub(crate) async fn watch(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(arg): Query<PathArg>,
    request: Request,
) -> ApiResult<Response> {
    arg.check()?;
    Ok(forward(&sandboxes, &caller, &id, WatchFiles::pass_through, request.map(|_| Body::empty())).await?)
}

/// Create a signed URL that reads or writes one file without an API key. It stops working when it expires
/// or when the key that created it is revoked.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fs/sign", tag = "files", params(("id" = SandboxId, Path)),
    request_body = SignFile, responses((status = 200, body = SignedUrl), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn sign(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    headers: http::HeaderMap,
    JsonBody(sign): JsonBody<SignFile>,
) -> ApiResult<Json<SignedUrl>> {
    validate::path("path", &sign.path)?;
    let method = match sign.method.as_deref() {
        None | Some("GET" | "get") => "GET",
        Some("PUT" | "put") => "PUT",
        Some(_) => return Err(Error::bad_request("`method` must be GET or PUT").into()),
    };
    services.store.sandbox(Some(&caller.workspace), &id).await?;
    let (target, path) = (Target::File(id), Some(sign.path.as_str()));
    Ok(signed(&services, &caller, &headers, method, &target, path, sign.expires_in_seconds).await?)
}

/// Create a signed URL that adds files to a template build without an API key: `PUT` a tar archive to it, as to
/// `.../files`. It stops working when it expires or when the key that created it is revoked.
#[utoipa::path(post, path = "/v1/templates/builds/{id}/files/sign", tag = "templates",
    params(("id" = BuildId, Path)), request_body = SignBuildFiles, responses(
    (status = 200, body = SignedUrl), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn sign_build_files(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<BuildId>,
    headers: http::HeaderMap,
    JsonBody(sign): JsonBody<SignBuildFiles>,
) -> ApiResult<Json<SignedUrl>> {
    services.store.build(&caller.workspace, &id).await?;
    let target = Target::BuildFiles(id);
    Ok(signed(&services, &caller, &headers, "PUT", &target, None, sign.expires_in_seconds).await?)
}

async fn signed(
    services: &Services,
    caller: &Caller,
    headers: &http::HeaderMap,
    method: &'static str,
    target: &Target,
    path: Option<&str>,
    seconds: Option<u64>,
) -> Result<Json<SignedUrl>> {
    let seconds = seconds.unwrap_or(SIGNED_SECONDS_DEFAULT);
    if !(1..=SIGNED_SECONDS_MAX).contains(&seconds) {
        return Err(Error::bad_request(format!("`expires_in_seconds` must be 1 to {SIGNED_SECONDS_MAX}")));
    }
    let gone =
        || Error::new(ErrorCode::Unauthorized, "the API key of this request was deleted; use another key");
    let token = services.store.token(&caller.prefix).await?.ok_or_else(gone)?;
    // Rounded up to the second that the URL names.
    let expires = after_seconds(now(), seconds + 1).unwrap_or(Timestamp::MAX).as_second();
    let target = signed_url::sign(&services.link, &token, method, target, path, expires);
    let expires_at = Timestamp::from_second(expires).map_err(Error::internal)?;
    Ok(Json(SignedUrl { url: origin(headers) + &target, target, method: method.to_owned(), expires_at }))
}

/// The address that a client used, if it is known.
fn origin(headers: &http::HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let scheme =
        text("x-forwarded-proto").filter(|scheme| scheme == "https").unwrap_or_else(|| "http".to_owned());
    if host.is_empty() { String::new() } else { format!("{scheme}://{host}") }
}
