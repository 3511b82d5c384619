//! The API of functions themselves, and all of it put together.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use pandastack_rest::{ApiError, ApiResult, Caller, JsonBody};
use pandastack_types::api::{CreateFunction, Function, FunctionSettings, Items, PatchFunction};
use pandastack_types::{Error, ErrorBody, FunctionId, Result, WorkspaceId};

use super::bundle::{self, BundleRefused};
use super::deploy_routes::deploy_bundle;
use super::{call_routes, deploy_routes, settings, shown};
use crate::app::App;
use crate::clock::now;
use crate::store::functions::{FunctionRecord, FunctionSpec};

/// Template of a function that names none.
const TEMPLATE_DEFAULT: &str = "base";

/// Calls that make something and take an `Idempotency-Key`.
pub(crate) fn once_only() -> Router<Arc<App>> {
    Router::new().route("/functions", post(create)).route("/functions/{id}/invoke", post(call_routes::invoke))
}

/// All others.
pub(crate) fn repeatable() -> Router<Arc<App>> {
    Router::new()
        .route("/functions", get(list))
        .route("/functions/{id}", get(look).patch(patch).delete(remove))
        .route(
            "/functions/{id}/deploy",
            post(deploy_routes::deploy).layer(axum::extract::DefaultBodyLimit::disable()),
        )
        .route("/functions/{id}/code", get(deploy_routes::code))
        .route("/functions/{id}/logs", get(super::logs::logs))
        .route("/functions/{id}/metrics", get(call_routes::metrics))
        .route("/functions/{id}/rollback", post(deploy_routes::rollback))
        .route("/functions/{id}/runs", get(call_routes::runs).post(call_routes::record_run))
        .route("/functions/{id}/runs/{run}", get(call_routes::run))
        .route("/functions/{id}/runs/{run}/redrive", post(call_routes::redrive))
        .route("/functions/{id}/redrive", post(call_routes::redrive_all))
        .route("/functions/{id}/versions", get(deploy_routes::versions))
        .route("/functions/{id}/versions/{version}/log", get(deploy_routes::deploy_log))
        .route(
            "/functions/{id}/aliases/{alias}",
            axum::routing::put(deploy_routes::set_alias).merge(delete(deploy_routes::remove_alias)),
        )
}

impl From<BundleRefused> for Error {
    fn from(refused: BundleRefused) -> Self {
        Error::bad_request(refused.to_string())
    }
}

pub(super) async fn shown_now(
    app: &App,
    record: FunctionRecord,
    headers: &HeaderMap,
) -> Result<Json<Function>> {
    let versions = app.store.versions(&record.id).await?;
    Ok(Json(shown::function(record, &versions, headers)))
}

/// The function of a path, by id or by name.
pub(super) async fn find(app: &App, caller: &Caller, text: &str) -> Result<FunctionRecord> {
    find_in(app, &caller.workspace, text).await
}

/// The function of that id or name in a workspace.
pub(crate) async fn find_in(app: &App, workspace: &WorkspaceId, text: &str) -> Result<FunctionRecord> {
    let found = app.store.function_named(workspace, text).await?;
    found.ok_or_else(|| Error::not_found("function", text))
}

/// The first parameter of a path: a function's id or name.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut http::request::Parts, state: &S) -> ApiResult<Self> {
        let params = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| Error::not_found("function", "?"))?;
        let first = params.iter().next().map(|(_, value)| value.to_owned());
        Ok(first.map(Named).ok_or_else(|| Error::not_found("function", "?"))?)
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
    check_dead_letter_url(&app, &request.settings)?;
    let entrypoint = request.entrypoint.unwrap_or_else(|| request.runtime.entrypoint_default().to_owned());
    settings::check_entrypoint(&entrypoint)?;
    let (env, secrets) = (request.env.unwrap_or_default(), request.secrets.unwrap_or_default());
    settings::check_env(&env)?;
    settings::check_env(&secrets)?;
    let template =
        request.template.filter(|name| !name.is_empty()).unwrap_or_else(|| TEMPLATE_DEFAULT.to_owned());
    crate::sandboxes::validate::template_name(&template)?;
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
    Ok(shown_now(&app, record, &headers).await?)
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
    Ok(shown_now(&app, record, &headers).await?)
}

/// Change a function. What a version holds (environment, secrets, entrypoint, template, size, concurrency) is deployed anew.
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
    check_dead_letter_url(&app, &request.settings)?;
    if let Some(name) = request.name {
        settings::check_name("function", &name)?;
        record.name = name;
    }
    if let Some(entrypoint) = request.entrypoint {
        settings::check_entrypoint(&entrypoint)?;
        record.spec.entrypoint = entrypoint;
    }
    if let Some(template) = request.template {
        crate::sandboxes::validate::template_name(&template)?;
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
    Ok(shown_now(&app, record, &headers).await?)
}

fn check_dead_letter_url(app: &App, given: &FunctionSettings) -> Result<()> {
    match given.dead_letter_url.as_deref() {
        None | Some("") => Ok(()),
        Some(url) => app.webhooks.check_url("dead_letter_url", url).map(drop),
    }
}

fn is_held_by_version(before: &FunctionSpec, after: &FunctionSpec) -> bool {
    before.entrypoint != after.entrypoint
        || before.template != after.template
        || before.env != after.env
        || before.secrets != after.secrets
        || before.settings.concurrency != after.settings.concurrency
        || before.settings.cpu != after.settings.cpu
        || before.settings.memory_mb != after.settings.memory_mb
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
