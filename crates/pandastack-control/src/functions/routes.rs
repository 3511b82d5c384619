//! The API of functions.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Multipart, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use base64::Engine;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::SignedDuration;
use pandastack_function_proto::Outcome;
use pandastack_types::api::{
    Alias, CreateFunction, DeployStatus, Function, FunctionMetrics, FunctionVersion, InvokeFunction, Items,
    PatchFunction, RecordRun, RollbackFunction, Run, RunKind,
};
use pandastack_types::limits::{
    ASYNC_EVENT_BYTES_MAX, BUNDLE_BYTES_MAX, DEPLOY_HOLD_SECONDS, EVENT_BYTES_MAX, RUN_OUTPUT_BYTES_MAX,
    RUNS_PAGE_MAX,
};
use pandastack_types::{ErrorBody, ErrorCode, FunctionId, RunId};
use serde::Deserialize;

use super::bundle::{self, BundleRefused};
use super::invoke::{self, Asked};
use super::{build, queue, settings, shown};
use crate::app::{App, now};
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::{Id, InPath, JsonBody, Query, parse_json};
use crate::store::functions::{FunctionRecord, FunctionSpec, VersionRecord, VersionSpec};

/// Template of a function that names none.
const TEMPLATE_DEFAULT: &str = "base";
/// Bytes of `X-Log-Result`, before base64.
const LOG_TAIL_BYTES: usize = 4096;
/// Calls that metrics are computed of, the newest.
const FIGURES_MAX: u32 = 10_000;

impl InPath for FunctionId {
    const WHAT: &'static str = "function";
}
impl InPath for RunId {
    const WHAT: &'static str = "run";
}

/// Calls that make something and take an `Idempotency-Key`.
pub(crate) fn once_only() -> Router<Arc<App>> {
    Router::new().route("/functions", post(create)).route("/functions/{id}/invoke", post(invoke))
}

/// All others.
pub(crate) fn repeatable() -> Router<Arc<App>> {
    Router::new()
        .route("/functions", get(list))
        .route("/functions/{id}", get(look).patch(patch).delete(remove))
        .route("/functions/{id}/deploy", post(deploy).layer(axum::extract::DefaultBodyLimit::disable()))
        .route("/functions/{id}/code", get(code))
        .route("/functions/{id}/logs", get(super::logs::logs))
        .route("/functions/{id}/metrics", get(metrics))
        .route("/functions/{id}/rollback", post(rollback))
        .route("/functions/{id}/runs", get(runs).post(record_run))
        .route("/functions/{id}/runs/{run}", get(run))
        .route("/functions/{id}/versions", get(versions))
        .route("/functions/{id}/versions/{version}/log", get(deploy_log))
        .route("/functions/{id}/aliases/{alias}", axum::routing::put(set_alias).merge(delete(remove_alias)))
}

impl From<BundleRefused> for ApiError {
    fn from(refused: BundleRefused) -> Self {
        ApiError::bad_request(refused.to_string())
    }
}

async fn shown_now(app: &App, record: FunctionRecord, headers: &HeaderMap) -> ApiResult<Json<Function>> {
    let versions = app.store.versions(&record.id).await?;
    Ok(Json(shown::function(record, &versions, headers)))
}

/// The function of a path, by id or by name.
pub(super) async fn find(app: &App, caller: &Caller, text: &str) -> ApiResult<FunctionRecord> {
    if let Ok(id) = text.parse::<FunctionId>()
        && let Ok(function) = app.store.function(Some(&caller.workspace), &id).await
    {
        return Ok(function);
    }
    let all = app.store.functions(Some(&caller.workspace)).await?;
    all.into_iter()
        .find(|function| function.name == text)
        .ok_or_else(|| ApiError::not_found("function", text))
}

/// The first parameter of a path: a function's id or name.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut http::request::Parts, state: &S) -> ApiResult<Self> {
        let params = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| ApiError::not_found("function", "?"))?;
        let first = params.iter().next().map(|(_, value)| value.to_owned());
        first.map(Named).ok_or_else(|| ApiError::not_found("function", "?"))
    }
}

/// Make a function; with `code`, deploy it too.
#[utoipa::path(post, path = "/v1/functions", tag = "functions", request_body = CreateFunction, responses(
    (status = 200, body = Function), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateFunction>,
) -> ApiResult<Json<Function>> {
    settings::check_name("function", &request.name)?;
    settings::check(&request.settings)?;
    let entrypoint = request.entrypoint.unwrap_or_else(|| request.runtime.entrypoint_default().to_owned());
    settings::check_entrypoint(&entrypoint)?;
    let (env, secrets) = (request.env.unwrap_or_default(), request.secrets.unwrap_or_default());
    settings::check_env(&env)?;
    settings::check_env(&secrets)?;
    let template =
        request.template.filter(|name| !name.is_empty()).unwrap_or_else(|| TEMPLATE_DEFAULT.to_owned());
    crate::validate::template_name(&template)?;
    let code = match request.code.as_deref() {
        Some(code) => bundle::of_source(&entrypoint, code)?,
        None => None,
    };
    let record = FunctionRecord {
        id: FunctionId::random(),
        workspace: caller.workspace,
        name: request.name,
        version: 0,
        created_at: now(),
        updated_at: now(),
        spec: FunctionSpec {
            runtime: request.runtime,
            entrypoint,
            template,
            public: request.public,
            env,
            secrets,
            settings: request.settings,
            aliases: Default::default(),
        },
    };
    app.store.insert_function(&record).await?;
    if let Some(code) = code {
        deploy_bundle(&app, &record, code).await?;
    }
    let record = app.store.function(None, &record.id).await?;
    shown_now(&app, record, &headers).await
}

/// All functions of the workspace, by name.
#[utoipa::path(get, path = "/v1/functions", tag = "functions", responses((status = 200, body = Items<Function>)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
) -> ApiResult<Json<Items<Function>>> {
    let mut items = Vec::new();
    for record in app.store.functions(Some(&caller.workspace)).await? {
        let versions = app.store.versions(&record.id).await?;
        items.push(shown::function(record, &versions, &headers));
    }
    Ok(Json(Items { items }))
}

/// One function, by id or name.
#[utoipa::path(get, path = "/v1/functions/{id}", tag = "functions", params(("id" = String, Path)), responses(
    (status = 200, body = Function), (status = 404, body = ErrorBody)))]
pub(crate) async fn look(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    headers: HeaderMap,
) -> ApiResult<Json<Function>> {
    let record = find(&app, &caller, &name).await?;
    shown_now(&app, record, &headers).await
}

/// Change a function. What a version holds (environment, secrets, entrypoint, template, concurrency) is deployed anew.
#[utoipa::path(patch, path = "/v1/functions/{id}", tag = "functions", params(("id" = String, Path)),
    request_body = PatchFunction, responses((status = 200, body = Function), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn patch(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    headers: HeaderMap,
    JsonBody(request): JsonBody<PatchFunction>,
) -> ApiResult<Json<Function>> {
    let mut record = find(&app, &caller, &name).await?;
    let before = record.spec.clone();
    settings::check(&request.settings)?;
    if let Some(name) = request.name {
        settings::check_name("function", &name)?;
        record.name = name;
    }
    if let Some(entrypoint) = request.entrypoint {
        settings::check_entrypoint(&entrypoint)?;
        record.spec.entrypoint = entrypoint;
    }
    if let Some(template) = request.template {
        crate::validate::template_name(&template)?;
        record.spec.template = template;
    }
    if let Some(env) = request.env {
        settings::check_env(&env)?;
        record.spec.env = env;
    }
    if let Some(secrets) = request.secrets {
        settings::check_env(&secrets)?;
        record.spec.secrets = secrets;
    }
    record.spec.public = request.public.unwrap_or(record.spec.public);
    record.spec.settings = settings::merged(&before.settings, &request.settings);
    settings::check(&record.spec.settings)?;
    record.updated_at = now();
    app.store.update_function(&record).await?;
    if record.version > 0 && is_held_by_version(&before, &record.spec) {
        let version = app.store.version(&record.id, record.version).await?;
        let code = app.store.bundle(&record.workspace, &version.spec.bundle).await?;
        deploy_bundle(&app, &record, code).await?;
    }
    let record = app.store.function(None, &record.id).await?;
    shown_now(&app, record, &headers).await
}

fn is_held_by_version(before: &FunctionSpec, after: &FunctionSpec) -> bool {
    before.entrypoint != after.entrypoint
        || before.template != after.template
        || before.env != after.env
        || before.secrets != after.secrets
        || before.settings.concurrency != after.settings.concurrency
}

/// Delete a function with its versions, machines and runs.
#[utoipa::path(delete, path = "/v1/functions/{id}", tag = "functions", params(("id" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
) -> ApiResult<StatusCode> {
    let record = find(&app, &caller, &name).await?;
    let owner = Arc::clone(&app);
    app.owned(async move { super::delete(&owner, &record).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deploy a bundle: `multipart/form-data` with `bundle` (a gzip-compressed tar archive) and `entrypoint`, or the archive
/// itself as the body. Answers when the version is ready, or after 25 seconds with `deploy_status: building`.
#[utoipa::path(post, path = "/v1/functions/{id}/deploy", tag = "functions", params(("id" = String, Path)),
    request_body(content = Vec<u8>, content_type = "multipart/form-data"), responses((status = 200, body = Function),
    (status = 400, description = "The bundle is refused, or the deploy failed", body = ErrorBody),
    (status = 413, body = ErrorBody)))]
pub(crate) async fn deploy(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    headers: HeaderMap,
    request: Request,
) -> ApiResult<Json<Function>> {
    let mut record = find(&app, &caller, &name).await?;
    let (bundle, entrypoint) = read_bundle(request).await?;
    if let Some(entrypoint) = entrypoint.filter(|given| !given.is_empty() && *given != record.spec.entrypoint)
    {
        settings::check_entrypoint(&entrypoint)?;
        record.spec.entrypoint = entrypoint;
        record.updated_at = now();
        app.store.update_function(&record).await?;
    }
    deploy_bundle(&app, &record, bundle).await?;
    let record = app.store.function(None, &record.id).await?;
    shown_now(&app, record, &headers).await
}

fn too_large() -> ApiError {
    ApiError::new(ErrorCode::BodyTooLarge, format!("a bundle is at most {BUNDLE_BYTES_MAX} bytes"))
}

async fn read_bundle(request: Request) -> ApiResult<(Vec<u8>, Option<String>)> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("multipart/form-data")) {
        return Ok((read_limited(request.into_body(), BUNDLE_BYTES_MAX, too_large).await?.to_vec(), None));
    }
    // A form is a little longer than what is in it.
    let request = request.map(|body| Body::new(Limited::new(body, BUNDLE_BYTES_MAX + 64 * 1024)));
    let malformed = |error: axum::extract::multipart::MultipartError| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ApiError::bad_request(format!("the form is not readable: {}", error.body_text())),
    };
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let (mut bundle, mut entrypoint) = (None, None);
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        match field.name() {
            Some("bundle") => bundle = Some(field.bytes().await.map_err(malformed)?.to_vec()),
            Some("entrypoint") => entrypoint = Some(field.text().await.map_err(malformed)?),
            _ => {}
        }
    }
    let bundle = bundle.ok_or_else(|| ApiError::bad_request("the form has no field `bundle`"))?;
    if bundle.len() > BUNDLE_BYTES_MAX {
        return Err(too_large());
    }
    Ok((bundle, entrypoint))
}

async fn read_limited(body: Body, limit: usize, refuse: impl Fn() -> ApiError) -> ApiResult<bytes::Bytes> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(refuse()),
        Err(_) => Err(ApiError::bad_request("the request body ended before it was complete")),
    }
}

/// Begins a deploy and waits for it a while; its failure is the answer.
async fn deploy_bundle(app: &Arc<App>, function: &FunctionRecord, bytes: Vec<u8>) -> ApiResult<()> {
    let (checked, bytes) = tokio::task::spawn_blocking(move || (bundle::check(&bytes), bytes))
        .await
        .map_err(ApiError::internal)?;
    let checked = checked?;
    let spec = &function.spec;
    checked.check_entrypoint(spec.runtime, &spec.entrypoint)?;
    app.store.put_bundle(&function.workspace, &checked.sha256, &bytes, now()).await?;
    let mut record = VersionRecord {
        function: function.id.clone(),
        version: 0,
        workspace: function.workspace.clone(),
        state: DeployStatus::Building,
        layer_key: checked.layer_key(spec.runtime, &spec.template),
        created_at: now(),
        spec: VersionSpec {
            runtime: spec.runtime,
            entrypoint: spec.entrypoint.clone(),
            template: spec.template.clone(),
            env: spec.env.clone().into_iter().chain(spec.secrets.clone()).collect(),
            concurrency: spec.settings.concurrency.unwrap_or(1),
            bundle: checked.sha256.clone(),
            bundle_bytes: bytes.len() as u64,
            ..VersionSpec::default()
        },
    };
    record.version = app.store.insert_version(&record).await?;
    let (owner, function, version) = (Arc::clone(app), function.clone(), record.version);
    let id = function.id.clone();
    app.tasks.spawn(async move { build::run(&owner, function, record, checked).await });
    await_built(app, &id, version).await
}

async fn await_built(app: &App, function: &FunctionId, version: u32) -> ApiResult<()> {
    let until = tokio::time::Instant::now() + Duration::from_secs(DEPLOY_HOLD_SECONDS);
    loop {
        let mut built = std::pin::pin!(app.functions.built.notified());
        built.as_mut().enable();
        let record = app.store.version(function, version).await?;
        match record.state {
            DeployStatus::Ready => return Ok(()),
            DeployStatus::Failed => {
                let why = record.spec.error.unwrap_or_else(|| "its log says why".to_owned());
                return Err(ApiError::bad_request(format!("version {version} was not deployed: {why}")));
            }
            DeployStatus::Building => {}
        }
        if tokio::time::timeout_at(until, built).await.is_err() {
            return Ok(());
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct Qualifier {
    qualifier: Option<String>,
}

/// Call a function. Without `X-Invocation-Type` the body is `{"input": ...}` and the answer a run. With it the body is the
/// event itself: `RequestResponse` answers what the handler answers (`X-Function-Error` tells a failure), `Event` answers
/// 202 with a queued run, `DryRun` answers 204 and calls nothing. `X-Log-Type: Tail` adds the end of the log.
#[utoipa::path(post, path = "/v1/functions/{id}/invoke", tag = "functions",
    params(("id" = String, Path), ("qualifier" = Option<String>, Query, description = "A version or an alias"),
        ("X-Invocation-Type" = Option<String>, Header), ("X-Log-Type" = Option<String>, Header)),
    request_body = InvokeFunction, responses((status = 200, body = Run), (status = 202, body = Run), (status = 204),
    (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 502, body = ErrorBody), (status = 504, body = ErrorBody)))]
pub(crate) async fn invoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Query(query): Query<Qualifier>,
    request: Request,
) -> ApiResult<Response> {
    let function = find(&app, &caller, &name).await?;
    let (parts, body) = request.into_parts();
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let kind = text("x-invocation-type");
    let refuse =
        || ApiError::new(ErrorCode::BodyTooLarge, format!("an event is at most {EVENT_BYTES_MAX} bytes"));
    let body = read_limited(body, EVENT_BYTES_MAX, refuse).await?;
    let version = super::version_for(&function, query.qualifier.as_deref())?;
    match kind.as_deref() {
        None => {
            let request: InvokeFunction = parse_json(&body)?;
            let event = serde_json::to_vec(&request.input).map_err(ApiError::internal)?;
            if request.is_async {
                return enqueue(&app, &function, version, event.into()).await;
            }
            let answered = call(&app, function, version, event.into()).await?;
            Ok(Json(answered.run).into_response())
        }
        Some("RequestResponse") => {
            let answered = call(&app, function, version, event_of(body)?).await?;
            Ok(raw(answered, text("x-log-type").as_deref() == Some("Tail")))
        }
        Some("Event") => enqueue(&app, &function, version, event_of(body)?).await,
        Some("DryRun") => {
            super::pool_of(&app, &function, version).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some(_) => Err(ApiError::bad_request("X-Invocation-Type must be RequestResponse, Event or DryRun")),
    }
}

/// An event is JSON; nothing counts as `{}`.
fn event_of(body: bytes::Bytes) -> ApiResult<bytes::Bytes> {
    if body.trim_ascii().is_empty() {
        return Ok(bytes::Bytes::from_static(b"{}"));
    }
    match serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
        Ok(_) => Ok(body),
        Err(error) => Err(ApiError::bad_request(format!("the event is not JSON: {error}"))),
    }
}

async fn call(
    app: &Arc<App>,
    function: FunctionRecord,
    version: u32,
    event: bytes::Bytes,
) -> ApiResult<invoke::Answered> {
    let owner = Arc::clone(app);
    // Once it began it is finished: a client that goes away leaves no half-used machine.
    app.owned(async move { invoke::call(&owner, &function, Asked::new(RunKind::Sync, version, event)).await })
        .await
}

async fn enqueue(
    app: &App,
    function: &FunctionRecord,
    version: u32,
    event: bytes::Bytes,
) -> ApiResult<Response> {
    if event.len() > ASYNC_EVENT_BYTES_MAX {
        let message = format!("an event of a queued call is at most {ASYNC_EVENT_BYTES_MAX} bytes");
        return Err(ApiError::new(ErrorCode::BodyTooLarge, message));
    }
    let run = queue::put(app, function, Asked::new(RunKind::Async, version, event)).await?;
    Ok((StatusCode::ACCEPTED, Json(run)).into_response())
}

/// What the handler answered, as it is.
fn raw(answered: invoke::Answered, with_log: bool) -> Response {
    let invoke::Answered { run, body, outcome } = answered;
    let mut response = match outcome {
        Outcome::Success | Outcome::Error => Response::new(Body::from(body)),
        Outcome::Timeout => {
            let error = ApiError::new(ErrorCode::ExecTimeout, run.error.clone().unwrap_or_default());
            error.into_response()
        }
        Outcome::Crashed => {
            let error = serde_json::json!({"errorType": "Runtime.ExitError", "errorMessage": run.error});
            Response::new(Body::from(error.to_string()))
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if outcome != Outcome::Success {
        headers.insert("x-function-error", HeaderValue::from_static("Unhandled"));
    }
    let mut insert = |name: &'static str, text: String| {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    };
    insert("x-run-id", run.id.to_string());
    insert("x-executed-version", run.version.to_string());
    insert("x-duration-ms", run.duration_ms.to_string());
    insert("x-cold-start", run.cold.to_string());
    if with_log {
        let log = format!("{}{}", run.stdout, run.stderr);
        let tail = log.as_bytes().get(log.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
        insert("x-log-result", base64::engine::general_purpose::STANDARD.encode(tail));
    }
    response
}

#[derive(Deserialize)]
pub(crate) struct RunsArgs {
    limit: Option<u32>,
}

/// Calls of a function, newest first.
#[utoipa::path(get, path = "/v1/functions/{id}/runs", tag = "functions",
    params(("id" = String, Path), ("limit" = Option<u32>, Query)), responses(
    (status = 200, body = Items<Run>), (status = 404, body = ErrorBody)))]
pub(crate) async fn runs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Query(args): Query<RunsArgs>,
) -> ApiResult<Json<Items<Run>>> {
    let function = find(&app, &caller, &name).await?;
    let limit = args.limit.unwrap_or(RUNS_PAGE_MAX).clamp(1, RUNS_PAGE_MAX);
    let runs = app.store.runs(&function.id, limit).await?;
    Ok(Json(Items { items: runs.into_iter().map(|record| record.run).collect() }))
}

/// One call.
#[utoipa::path(get, path = "/v1/functions/{id}/runs/{run}", tag = "functions",
    params(("id" = String, Path), ("run" = RunId, Path)), responses(
    (status = 200, body = Run), (status = 404, body = ErrorBody)))]
pub(crate) async fn run(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Id(run): Id<RunId>,
) -> ApiResult<Json<Run>> {
    let function = find(&app, &caller, &name).await?;
    Ok(Json(app.store.run(&caller.workspace, &function.id, &run).await?.run))
}

/// Record a run that a client made itself.
#[utoipa::path(post, path = "/v1/functions/{id}/runs", tag = "functions", params(("id" = String, Path)),
    request_body = RecordRun, responses((status = 200, body = Run), (status = 404, body = ErrorBody)))]
pub(crate) async fn record_run(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    JsonBody(given): JsonBody<RecordRun>,
) -> ApiResult<Json<Run>> {
    let function = find(&app, &caller, &name).await?;
    let cut = |text: String| {
        let end = (0..=RUN_OUTPUT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
    };
    let asked = Asked::new(RunKind::Recorded, function.version, bytes::Bytes::new());
    let run = Run {
        id: asked.id,
        function_id: function.id.clone(),
        schedule_id: None,
        sandbox_id: given.sandbox_id,
        kind: RunKind::Recorded,
        status: given.status,
        exit_code: given.exit_code,
        stdout: cut(given.stdout),
        stderr: cut(given.stderr),
        output: None,
        error: None,
        duration_ms: given.duration_ms.unwrap_or_default(),
        billed_ms: 0,
        wait_ms: 0.0,
        cold: false,
        memory_peak_mb: 0,
        version: function.version,
        attempt: 1,
        dead_letter: false,
        next_attempt_at: None,
        started_at: asked.asked_at,
        ended_at: Some(now()),
    };
    invoke::record(&app, &function, run.clone()).await;
    Ok(Json(run))
}

/// The entrypoint's source, compressed with gzip.
#[utoipa::path(get, path = "/v1/functions/{id}/code", tag = "functions", params(("id" = String, Path)), responses(
    (status = 200, content_type = "application/gzip", body = Vec<u8>), (status = 409, body = ErrorBody)))]
pub(crate) async fn code(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
) -> ApiResult<Response> {
    let function = find(&app, &caller, &name).await?;
    let version = super::version_for(&function, None)?;
    let version = app.store.version(&function.id, version).await?;
    let bundle = app.store.bundle(&function.workspace, &version.spec.bundle).await?;
    let file = version.spec.entrypoint.split(':').next().unwrap_or_default().to_owned();
    let source = bundle::read_file(&bundle, &file);
    let bytes = match source {
        Some(source) => bundle::gzip(&source).map_err(ApiError::internal)?,
        // A `module.function` names no file; the whole bundle is gzip too.
        None => bundle,
    };
    Ok(([(header::CONTENT_TYPE, "application/gzip")], bytes).into_response())
}

#[derive(Deserialize)]
pub(crate) struct MetricsArgs {
    period: Option<u64>,
}

/// Percentiles, errors and cold starts of the last hours.
#[utoipa::path(get, path = "/v1/functions/{id}/metrics", tag = "functions",
    params(("id" = String, Path), ("period" = Option<u64>, Query, description = "Hours; 24 unless said")), responses(
    (status = 200, body = FunctionMetrics), (status = 404, body = ErrorBody)))]
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Query(args): Query<MetricsArgs>,
) -> ApiResult<Json<FunctionMetrics>> {
    let function = find(&app, &caller, &name).await?;
    let period = args.period.unwrap_or(24).clamp(1, 24 * 365);
    let span = SignedDuration::from_hours(i64::try_from(period).unwrap_or(24));
    let since = now().checked_sub(span).unwrap_or(jiff::Timestamp::MIN);
    let figures = app.store.run_figures(&function.id, since, FIGURES_MAX).await?;
    Ok(Json(shown::metrics(period, figures, app.functions.counts(&function.id))))
}

/// Versions of a function, newest first.
#[utoipa::path(get, path = "/v1/functions/{id}/versions", tag = "functions", params(("id" = String, Path)), responses(
    (status = 200, body = Items<FunctionVersion>), (status = 404, body = ErrorBody)))]
pub(crate) async fn versions(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
) -> ApiResult<Json<Items<FunctionVersion>>> {
    let function = find(&app, &caller, &name).await?;
    let versions = app.store.versions(&function.id).await?;
    Ok(Json(Items { items: versions.into_iter().map(shown::version).collect() }))
}

/// What a deploy printed.
#[utoipa::path(get, path = "/v1/functions/{id}/versions/{version}/log", tag = "functions",
    params(("id" = String, Path), ("version" = u32, Path)), responses(
    (status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub(crate) async fn deploy_log(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Id(version): Id<String>,
) -> ApiResult<String> {
    let function = find(&app, &caller, &name).await?;
    let number = version.parse().map_err(|_| ApiError::not_found("version", &version))?;
    Ok(app.store.version(&function.id, number).await?.spec.log)
}

/// Call an earlier version from now on.
#[utoipa::path(post, path = "/v1/functions/{id}/rollback", tag = "functions", params(("id" = String, Path)),
    request_body = RollbackFunction, responses((status = 200, body = Function), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(crate) async fn rollback(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RollbackFunction>,
) -> ApiResult<Json<Function>> {
    let mut record = find(&app, &caller, &name).await?;
    let version = match request.version {
        Some(version) => version,
        None => {
            let earlier = app.store.versions(&record.id).await?;
            let ready = |version: &&VersionRecord| {
                version.state == DeployStatus::Ready && version.version < record.version
            };
            let none = || ApiError::conflict("there is no earlier version to return to".to_owned());
            earlier.iter().find(ready).map(|version| version.version).ok_or_else(none)?
        }
    };
    check_ready(&app, &record, version).await?;
    record.version = version;
    record.updated_at = now();
    app.store.update_function(&record).await?;
    shown_now(&app, record, &headers).await
}

async fn check_ready(app: &App, record: &FunctionRecord, version: u32) -> ApiResult<()> {
    let found = app.store.version(&record.id, version).await?;
    if found.state != DeployStatus::Ready {
        let message =
            format!("version {version} is {}; only a ready one can be called", found.state.as_str());
        return Err(ApiError::conflict(message));
    }
    Ok(())
}

/// Make a name stand for a version, or for two by weight.
#[utoipa::path(put, path = "/v1/functions/{id}/aliases/{alias}", tag = "functions",
    params(("id" = String, Path), ("alias" = String, Path)), request_body = Alias, responses(
    (status = 200, body = Function), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn set_alias(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Id(alias): Id<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<Alias>,
) -> ApiResult<Json<Function>> {
    settings::check_name("alias", &alias)?;
    if alias.bytes().all(|byte| byte.is_ascii_digit()) || alias == "latest" {
        return Err(ApiError::bad_request("an alias is neither a number nor `latest`: these name versions"));
    }
    if request.canary_percent > 100 {
        return Err(ApiError::bad_request("`canary_percent` must be 0 to 100"));
    }
    let mut record = find(&app, &caller, &name).await?;
    for version in std::iter::once(request.version).chain(request.canary_version) {
        check_ready(&app, &record, version).await?;
    }
    record.spec.aliases.insert(alias, request);
    record.updated_at = now();
    app.store.update_function(&record).await?;
    shown_now(&app, record, &headers).await
}

/// Remove an alias.
#[utoipa::path(delete, path = "/v1/functions/{id}/aliases/{alias}", tag = "functions",
    params(("id" = String, Path), ("alias" = String, Path)), responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove_alias(
    State(app): State<Arc<App>>,
    caller: Caller,
    Named(name): Named,
    Id(alias): Id<String>,
) -> ApiResult<StatusCode> {
    let mut record = find(&app, &caller, &name).await?;
    record.spec.aliases.remove(&alias).ok_or_else(|| ApiError::not_found("alias", &alias))?;
    record.updated_at = now();
    app.store.update_function(&record).await?;
    Ok(StatusCode::NO_CONTENT)
}
