//! The API of functions.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, FunctionSpec};
use pandastack_types::api::{CreateFunction, Function, FunctionSettings, Items, PatchFunction};
use pandastack_types::{Error, ErrorBody, FunctionId, Result};

use crate::bundle::{self, BundleRefused};
use crate::deploy_routes::deploy_bundle;
use crate::functions::Functions;
use crate::lookup::{FunctionPath, find, view_now};
use crate::{settings, versions, view};

/// Template of a function that names none.
const TEMPLATE_DEFAULT: &str = "base";

impl From<BundleRefused> for Error {
    fn from(refused: BundleRefused) -> Self {
        Error::bad_request(refused.to_string())
    }
}

/// Create a function. With `code`, also deploy it.
#[utoipa::path(post, path = "/v1/functions", tag = "functions", request_body = CreateFunction, responses(
    (status = 200, body = Function), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn create(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateFunction>,
) -> ApiResult<Json<Function>> {
    settings::check_name("function", &request.name)?;
    settings::check(&request.settings)?;
    check_dead_letter_url(&functions, &request.settings)?;
    let entrypoint = request.entrypoint.unwrap_or_else(|| request.runtime.entrypoint_default().to_owned());
    settings::check_entrypoint(&entrypoint)?;
    let (env, secrets) = (request.env.unwrap_or_default(), request.secrets.unwrap_or_default());
    settings::check_env(&env)?;
    settings::check_env(&secrets)?;
    let template =
        request.template.filter(|name| !name.is_empty()).unwrap_or_else(|| TEMPLATE_DEFAULT.to_owned());
    pandastack_sandboxes::validate::template_name(&template)?;
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
    functions.store.insert_function(&record).await?;
    if let Some(code) = code {
        deploy_bundle(&functions, &record, code).await?;
    }
    let record = functions.store.function(None, &record.id).await?;
    Ok(view_now(&functions, record, &headers).await?)
}

/// List functions by name.
#[utoipa::path(get, path = "/v1/functions", tag = "functions", responses((status = 200, body = Items<Function>)))]
pub async fn list(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    headers: HeaderMap,
) -> ApiResult<Json<Items<Function>>> {
    let mut items = Vec::new();
    for record in functions.store.functions(Some(&caller.workspace)).await? {
        let versions = functions.store.versions(&record.id).await?;
        items.push(caller.shown(view::function(record, &versions, &headers)));
    }
    Ok(Json(Items { items }))
}

/// Get a function by ID or name.
#[utoipa::path(get, path = "/v1/functions/{id}", operation_id = "get_function", tag = "functions",
    params(("id" = String, Path)), responses(
    (status = 200, body = Function), (status = 404, body = ErrorBody)))]
pub async fn describe(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    headers: HeaderMap,
) -> ApiResult<Json<Function>> {
    let record = find(&functions, &caller, &name).await?;
    let Json(function) = view_now(&functions, record, &headers).await?;
    Ok(Json(caller.shown(function)))
}

/// Update a function. A change of environment, secrets, entry point, template, size or concurrency deploys
/// a new version.
#[utoipa::path(patch, path = "/v1/functions/{id}", tag = "functions", params(("id" = String, Path)),
    request_body = PatchFunction, responses((status = 200, body = Function), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn patch(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    headers: HeaderMap,
    JsonBody(request): JsonBody<PatchFunction>,
) -> ApiResult<Json<Function>> {
    let mut record = find(&functions, &caller, &name).await?;
    let before = record.spec.clone();
    settings::check(&request.settings)?;
    check_dead_letter_url(&functions, &request.settings)?;
    if let Some(name) = request.name {
        settings::check_name("function", &name)?;
        record.name = name;
    }
    if let Some(entrypoint) = request.entrypoint {
        settings::check_entrypoint(&entrypoint)?;
        record.spec.entrypoint = entrypoint;
    }
    if let Some(template) = request.template {
        pandastack_sandboxes::validate::template_name(&template)?;
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
    functions.store.update_function(&record).await?;
    if record.version > 0 && is_held_by_version(&before, &record.spec) {
        let version = functions.store.version(&record.id, record.version).await?;
        let code = functions.store.bundle(&record.workspace, &version.spec.bundle).await?;
        deploy_bundle(&functions, &record, code).await?;
    }
    let record = functions.store.function(None, &record.id).await?;
    Ok(view_now(&functions, record, &headers).await?)
}

fn check_dead_letter_url(functions: &Functions, given: &FunctionSettings) -> Result<()> {
    match given.dead_letter_url.as_deref() {
        None | Some("") => Ok(()),
        Some(url) => functions.webhooks.check_url("dead_letter_url", url).map(drop),
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

/// Delete a function with its versions, instances and runs.
#[utoipa::path(delete, path = "/v1/functions/{id}", tag = "functions", params(("id" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
) -> ApiResult<StatusCode> {
    let record = find(&functions, &caller, &name).await?;
    let owner = Arc::clone(&functions);
    functions.core.background.owned(async move { versions::delete(&owner, &record).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
