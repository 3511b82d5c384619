//! Beginning a deployment: from the repository, from an archive in the request, or from a sandbox.
//!
//! An archive goes straight into the machine that will build it; the server never has it, on disk or in memory. The
//! deployment exists once the archive is there, so a client that goes away leaves only a machine, which is tidied away.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use http::{StatusCode, header};
use http_body_util::Limited;
use pandastack_types::api::{DeployApp, Deployment};
use pandastack_types::limits::SOURCE_BYTES_MAX;
use pandastack_types::{ErrorBody, ErrorCode, SandboxId};

use super::build::build_machine;
use super::record::{AppRecord, DeploymentRecord, Source};
use super::routes::{OfApp, queue};
use super::source::ARCHIVE;
use super::{check, tidy};
use crate::app::{App, now};
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::{parse_json, read_body};
use crate::routes::preview::beside;
use crate::{ops, validate};

/// Kinds of content that are a source, not a request.
const ARCHIVES: [&str; 6] = [
    "application/x-tar",
    "application/tar",
    "application/gzip",
    "application/x-gzip",
    "application/zstd",
    "application/octet-stream",
];

/// Deploy: the repository's branch, a `git_ref` of it, a directory of a sandbox, or the archive that is the body.
#[utoipa::path(post, path = "/v1/apps/{id}/deploys", tag = "apps", params(("id" = String, Path)),
    request_body(content((DeployApp = "application/json"), (Vec<u8> = "application/x-tar"))),
    responses((status = 202, body = Deployment), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 413, body = ErrorBody)))]
pub(crate) async fn deploy(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
    request: Request,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let record = of.find(&app, &caller).await?;
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if ARCHIVES.contains(&kind.split(';').next().unwrap_or_default().trim()) {
        let body = limited(request)?;
        return from_archive(&app, record, body, "upload").await;
    }
    let address = beside(request.headers(), &record.name);
    let wanted: DeployApp = parse_json(&read_body(request.into_body()).await?)?;
    match &wanted.from_sandbox {
        Some(sandbox) => {
            let path = wanted.path.as_deref().unwrap_or("/root");
            validate::path("path", path)?;
            let archive = pack(&app, &caller, sandbox, path).await?;
            from_archive(&app, record, archive, "sandbox").await
        }
        None => from_git(&app, &record, wanted, address).await,
    }
}

async fn from_git(
    app: &App,
    of: &AppRecord,
    wanted: DeployApp,
    address: String,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    if of.spec.git_url.is_none() {
        return Err(ApiError::bad_request(format!(
            "app `{}` has no git_url; set one, or send its source: `pandastack app deploy {} --dir .`",
            of.name, of.name
        )));
    }
    let reference = wanted.git_ref.filter(|text| !text.is_empty());
    reference.as_deref().map_or(Ok(()), check::git_ref)?;
    let mut new = DeploymentRecord::queued(of, "api", now());
    // A preview is of its pull request's newest commit.
    new.spec.git_ref = reference.or_else(|| of.spec.pull.as_ref().map(|pull| pull.commit.clone()));
    new.spec.address = Some(address);
    new.spec.clear_cache = wanted.clear_cache;
    queue(app, new).await
}

fn limited(request: Request) -> ApiResult<Body> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > SOURCE_BYTES_MAX) {
        let message =
            format!("a source is at most {SOURCE_BYTES_MAX} bytes; leave out what a build makes anew");
        return Err(ApiError::new(ErrorCode::BodyTooLarge, message));
    }
    let limit = usize::try_from(SOURCE_BYTES_MAX).unwrap_or(usize::MAX);
    Ok(Body::new(Limited::new(request.into_body(), limit)))
}

/// A directory of a sandbox as an archive that is made while it is read.
async fn pack(app: &App, caller: &Caller, sandbox: &SandboxId, path: &str) -> ApiResult<Body> {
    let (place, client) = ops::place(app, &caller.workspace, sandbox).await?;
    let query: String =
        url::form_urlencoded::Serializer::new(String::new()).append_pair("path", path).finish();
    let uri = format!("/agent/v1/sandboxes/{sandbox}/fs/tar?{query}");
    let request = http::Request::get(uri).body(Body::empty()).map_err(ApiError::internal)?;
    let answer = client.send(request, Some(place.incarnation)).await?;
    let limit = usize::try_from(SOURCE_BYTES_MAX).unwrap_or(usize::MAX);
    Ok(Body::new(Limited::new(answer.into_body(), limit)))
}

async fn from_archive(
    app: &Arc<App>,
    of: AppRecord,
    archive: Body,
    trigger: &'static str,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let uploading = app.apps.upload(&of.id);
    let queued = async {
        let machine = build_machine(app, &of, of.spec.cache.as_ref(), None).await?;
        machine.write(ARCHIVE, archive).await?;
        let mut new = DeploymentRecord::queued(&of, trigger, now());
        new.spec.source = Source::Archive;
        new.spec.build_machine = Some(machine.id().clone());
        queue(app, new).await
    };
    let queued = queued.await;
    drop(uploading);
    // A deployment that runs may have made what it has not written down yet; its own end tidies up.
    if queued.is_err() && app.apps.running(&of.id).is_none() {
        tidy::app(app, &of.id).await?;
    }
    queued
}
