//! The API of deployments: bundles, versions, aliases.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, FunctionSpec, VersionRecord, VersionSpec};
use pandastack_types::api::{Alias, DeployStatus, Function, FunctionVersion, Items, RollbackFunction};
use pandastack_types::limits::{BUNDLE_BYTES_MAX, BUNDLE_SECONDS_MAX, DEPLOY_HOLD_SECONDS};
use pandastack_types::{Error, ErrorBody, ErrorCode, FunctionId, Result};

use crate::functions::Functions;
use crate::lookup::{FunctionPath, find, view_now};
use crate::{build, bundle, settings, versions, view};

/// Longest time for a bundle or an event to arrive. Beyond it: 408 `request_timeout`.
const BODY_WAIT: Duration = Duration::from_secs(BUNDLE_SECONDS_MAX);

/// Deploy a bundle: `multipart/form-data` with `bundle` (a gzip-compressed tar archive or a zip archive)
/// and `entrypoint`, or the archive itself as the body. Returns when the version is ready, or after 25
/// seconds with `deploy_status: building`.
#[utoipa::path(post, path = "/v1/functions/{id}/deploy", tag = "functions", params(("id" = String, Path)),
    request_body(content = Vec<u8>, content_type = "multipart/form-data"), responses((status = 200, body = Function),
    (status = 400, description = "The bundle is invalid, or the deployment failed", body = ErrorBody),
    (status = 413, body = ErrorBody)))]
pub async fn deploy(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    headers: HeaderMap,
    request: Request,
) -> ApiResult<Json<Function>> {
    let mut record = find(&functions, &caller, &name).await?;
    let (bundle, entrypoint) = read_bundle(request).await?;
    if let Some(entrypoint) = entrypoint.filter(|given| !given.is_empty() && *given != record.spec.entrypoint)
    {
        settings::check_entrypoint(&entrypoint)?;
        record.spec.entrypoint = entrypoint;
        record.updated_at = now();
        functions.store.update_function(&record).await?;
    }
    deploy_bundle(&functions, &record, bundle).await?;
    let record = functions.store.function(None, &record.id).await?;
    Ok(view_now(&functions, record, &headers).await?)
}

fn too_large() -> Error {
    Error::new(ErrorCode::BodyTooLarge, format!("a bundle must be at most {BUNDLE_BYTES_MAX} bytes"))
}

async fn read_bundle(request: Request) -> Result<(Vec<u8>, Option<String>)> {
    within_wait(read_bundle_of(request)).await?
}

async fn read_bundle_of(request: Request) -> Result<(Vec<u8>, Option<String>)> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("multipart/form-data")) {
        return Ok((read_limited(request.into_body(), BUNDLE_BYTES_MAX, too_large).await?.to_vec(), None));
    }
    // A form is slightly longer than its contents.
    let request = request.map(|body| Body::new(Limited::new(body, BUNDLE_BYTES_MAX + 64 * 1024)));
    let malformed = |error: axum::extract::multipart::MultipartError| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => Error::bad_request(format!("invalid form: {}", error.body_text())),
    };
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| Error::bad_request(error.body_text()))?;
    let (mut bundle, mut entrypoint) = (None, None);
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        match field.name() {
            Some("bundle") => bundle = Some(field.bytes().await.map_err(malformed)?.to_vec()),
            Some("entrypoint") => entrypoint = Some(field.text().await.map_err(malformed)?),
            _ => {}
        }
    }
    let bundle = bundle.ok_or_else(|| Error::bad_request("the form has no field `bundle`; add it"))?;
    if bundle.len() > BUNDLE_BYTES_MAX {
        return Err(too_large());
    }
    Ok((bundle, entrypoint))
}

pub(crate) async fn read_limited(
    body: Body,
    limit: usize,
    refuse: impl Fn() -> Error,
) -> Result<bytes::Bytes> {
    match within_wait(Limited::new(body, limit).collect()).await? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(refuse()),
        Err(_) => Err(Error::bad_request("the request body is incomplete; send it again")),
    }
}

/// The end of a read, unless the client takes longer than [`BODY_WAIT`].
async fn within_wait<T>(read: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(BODY_WAIT, read).await.map_err(|_| {
        let seconds = BODY_WAIT.as_secs();
        let message = format!("the request body did not arrive within {seconds} s; send it again");
        Error::new(ErrorCode::RequestTimeout, message)
    })
}

/// Starts a deploy and waits for it a while; its failure is the answer.
pub(crate) async fn deploy_bundle(
    functions: &Arc<Functions>,
    function: &FunctionRecord,
    bytes: Vec<u8>,
) -> Result<()> {
    let looked_at = tokio::task::spawn_blocking(move || {
        let bytes = bundle::kept(bytes)?;
        bundle::check(&bytes).map(|checked| (checked, bytes))
    });
    let (checked, bytes) = looked_at.await.map_err(Error::internal)??;
    let spec = &function.spec;
    checked.check_entrypoint(spec.runtime, &spec.entrypoint)?;
    functions.store.put_bundle(&function.workspace, &checked.sha256, &bytes, now()).await?;
    let mut record = VersionRecord {
        function: function.id.clone(),
        version: 0,
        workspace: function.workspace.clone(),
        state: DeployStatus::Building,
        layer_key: checked.layer_key(spec.runtime, &machine_kind(spec))?,
        created_at: now(),
        spec: VersionSpec {
            runtime: spec.runtime,
            entrypoint: spec.entrypoint.clone(),
            template: spec.template.clone(),
            env: spec.env.clone().into_iter().chain(spec.secrets.clone()).collect(),
            concurrency: spec.settings.concurrency.unwrap_or(1),
            cpu: spec.settings.cpu,
            memory_mb: spec.settings.memory_mb,
            bundle: checked.sha256.clone(),
            bundle_bytes: bytes.len() as u64,
            ..VersionSpec::default()
        },
    };
    record.version = functions.store.insert_version(&record).await?;
    let (owner, function, version) = (Arc::clone(functions), function.clone(), record.version);
    let id = function.id.clone();
    functions.core.background.tasks.spawn(async move { build::run(&owner, function, record, checked).await });
    await_built(functions, &id, version).await
}

/// Kind of machine for which dependencies are installed: a template, and a size where it differs
/// from the template's.
fn machine_kind(spec: &FunctionSpec) -> String {
    match (spec.settings.cpu, spec.settings.memory_mb) {
        (None, None) => spec.template.clone(),
        (cpu, memory_mb) => {
            let part = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
            format!("{}+{}x{}", spec.template, part(cpu), part(memory_mb))
        }
    }
}

async fn await_built(functions: &Functions, function: &FunctionId, version: u32) -> Result<()> {
    let until = tokio::time::Instant::now() + Duration::from_secs(DEPLOY_HOLD_SECONDS);
    loop {
        let mut built = std::pin::pin!(functions.built.notified());
        built.as_mut().enable();
        let record = functions.store.version(function, version).await?;
        match record.state {
            DeployStatus::Ready => return Ok(()),
            DeployStatus::Failed => {
                let why = record.spec.error.unwrap_or_else(|| "see the deployment log".to_owned());
                let code = record.spec.error_code.unwrap_or(ErrorCode::BadRequest);
                return Err(Error::new(code, format!("version {version} failed to deploy: {why}")));
            }
            DeployStatus::Building => {}
        }
        if tokio::time::timeout_at(until, built).await.is_err() {
            return Ok(());
        }
    }
}

/// Get the source of the entry point, compressed with gzip.
#[utoipa::path(get, path = "/v1/functions/{id}/code", tag = "functions", params(("id" = String, Path)), responses(
    (status = 200, content_type = "application/gzip", body = Vec<u8>), (status = 409, body = ErrorBody)))]
pub async fn code(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
) -> ApiResult<Response> {
    let function = find(&functions, &caller, &name).await?;
    let version = versions::version_for(&function, None)?;
    let version = functions.store.version(&function.id, version).await?;
    let bundle = functions.store.bundle(&function.workspace, &version.spec.bundle).await?;
    let file = version.spec.entrypoint.split(':').next().unwrap_or_default().to_owned();
    let source = bundle::read_file(&bundle, &file);
    let bytes = match source {
        Some(source) => bundle::gzip(&source).map_err(Error::internal)?,
        // A `module.function` names no file; the whole bundle is gzip too.
        None => bundle,
    };
    Ok(([(header::CONTENT_TYPE, "application/gzip")], bytes).into_response())
}

/// List a function's versions, newest first.
#[utoipa::path(get, path = "/v1/functions/{id}/versions", tag = "functions", params(("id" = String, Path)), responses(
    (status = 200, body = Items<FunctionVersion>), (status = 404, body = ErrorBody)))]
pub async fn versions(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
) -> ApiResult<Json<Items<FunctionVersion>>> {
    let function = find(&functions, &caller, &name).await?;
    let versions = functions.store.versions(&function.id).await?;
    Ok(Json(Items { items: versions.into_iter().map(view::version).collect() }))
}

/// Get the log of a version's deployment.
#[utoipa::path(get, path = "/v1/functions/{id}/versions/{version}/log", tag = "functions",
    params(("id" = String, Path), ("version" = u32, Path)), responses(
    (status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub async fn deploy_log(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Id(version): Id<String>,
) -> ApiResult<String> {
    let function = find(&functions, &caller, &name).await?;
    let number = version.parse().map_err(|_| Error::not_found("version", &version))?;
    Ok(functions.store.version(&function.id, number).await?.spec.log)
}

/// Roll back to an earlier version.
#[utoipa::path(post, path = "/v1/functions/{id}/rollback", tag = "functions", params(("id" = String, Path)),
    request_body = RollbackFunction, responses((status = 200, body = Function), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn rollback(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RollbackFunction>,
) -> ApiResult<Json<Function>> {
    let mut record = find(&functions, &caller, &name).await?;
    let version = match request.version {
        Some(version) => version,
        None => {
            let earlier = functions.store.versions(&record.id).await?;
            let ready = |version: &&VersionRecord| {
                version.state == DeployStatus::Ready && version.version < record.version
            };
            let none = || Error::conflict("the function has no earlier version to roll back to".to_owned());
            earlier.iter().find(ready).map(|version| version.version).ok_or_else(none)?
        }
    };
    check_ready(&functions, &record, version).await?;
    record.version = version;
    record.updated_at = now();
    functions.store.call_version(&record.id, version, record.updated_at).await?;
    Ok(view_now(&functions, record, &headers).await?)
}

async fn check_ready(functions: &Functions, record: &FunctionRecord, version: u32) -> Result<()> {
    let found = functions.store.version(&record.id, version).await?;
    if found.state != DeployStatus::Ready {
        let message = format!("version {version} is {}; choose a ready version", found.state.as_str());
        return Err(Error::conflict(message));
    }
    Ok(())
}

/// Point an alias to a version, or to two versions by weight.
#[utoipa::path(put, path = "/v1/functions/{id}/aliases/{alias}", tag = "functions",
    params(("id" = String, Path), ("alias" = String, Path)), request_body = Alias, responses(
    (status = 200, body = Function), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn set_alias(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Id(alias): Id<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<Alias>,
) -> ApiResult<Json<Function>> {
    settings::check_name("alias", &alias)?;
    if alias.bytes().all(|byte| byte.is_ascii_digit()) || alias == "latest" {
        return Err(
            Error::bad_request("an alias must not be a number or `latest`; these name versions").into()
        );
    }
    if request.canary_percent > 100 {
        return Err(Error::bad_request("`canary_percent` must be 0 to 100").into());
    }
    let mut record = find(&functions, &caller, &name).await?;
    for version in std::iter::once(request.version).chain(request.canary_version) {
        check_ready(&functions, &record, version).await?;
    }
    record.spec.aliases.insert(alias, request);
    record.updated_at = now();
    functions.store.update_function(&record).await?;
    Ok(view_now(&functions, record, &headers).await?)
}

/// Remove an alias.
#[utoipa::path(delete, path = "/v1/functions/{id}/aliases/{alias}", tag = "functions",
    params(("id" = String, Path), ("alias" = String, Path)), responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove_alias(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Id(alias): Id<String>,
) -> ApiResult<StatusCode> {
    let mut record = find(&functions, &caller, &name).await?;
    record.spec.aliases.remove(&alias).ok_or_else(|| Error::not_found("alias", &alias))?;
    record.updated_at = now();
    functions.store.update_function(&record).await?;
    Ok(StatusCode::NO_CONTENT)
}
