//! Apps and their deployments over HTTP.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get, patch, post, put};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use pandastack_rest::extract::is_set;
use pandastack_rest::{ApiResult, Caller, JsonBody, Query};
use pandastack_store::apps::record::{AppRecord, AppSpec, DeploymentRecord};
use pandastack_store::clock::now;
use pandastack_types::api::{self, CreateApp, Deployment, DeploymentStatus, Items, RollbackApp, UpdateApp};
use pandastack_types::{DeploymentId, Error, ErrorBody};
use serde::Deserialize;

use crate::activity::Stop;
use crate::path::AppPath;
use crate::queue::queue;
use crate::state::Apps;
use crate::{
    check, databases, domains, env, log, preview_env, preview_repos, previews, prune, removal, settings,
    upload, view,
};

/// Routes of calls that create something and accept an `Idempotency-Key`.
pub fn once_only(apps: &Arc<Apps>) -> Router {
    Router::new()
        .route("/apps", post(create))
        .route("/apps/{id}/rollback", post(rollback))
        .with_state(Arc::clone(apps))
}

/// Routes of the other calls.
pub fn repeatable(apps: &Arc<Apps>) -> Router {
    Router::new()
        .route("/apps", get(list))
        .route("/apps/{id}", get(show).merge(patch(settings::update)).merge(delete(remove)))
        .route("/apps/{id}/deploys", get(deploys).merge(post(upload::deploy)))
        .route("/apps/{id}/deploys/{deployment}", get(deployment))
        .route("/apps/{id}/deploys/{deployment}/logs", get(deploy_logs))
        .route("/apps/{id}/deploys/{deployment}/cancel", post(cancel))
        .route("/apps/{id}/restart", post(restart))
        .route("/apps/{id}/runtime-logs", get(crate::runtime_logs::runtime_logs))
        .route("/apps/{id}/metrics", get(crate::usage::metrics))
        .route("/apps/{id}/keep-awake", post(crate::awake::keep_awake))
        .route("/apps/{id}/env", get(env::list))
        .route("/apps/{id}/env/import", post(env::import))
        .route("/apps/{id}/env/{key}", put(env::set).merge(delete(env::remove)))
        .route("/apps/{id}/previews", get(previews::list))
        .route("/apps/{id}/previews/{number}", get(previews::show).merge(delete(previews::remove)))
        .route("/preview-repos", get(preview_repos::list).merge(post(preview_repos::enable)))
        .route("/preview-repos/{repo}", delete(preview_repos::disable))
        .route("/repos/{repo}/preview-env", get(preview_env::list))
        .route("/repos/{repo}/preview-env/import", post(preview_env::import))
        .route("/repos/{repo}/preview-env/{key}", put(preview_env::set).merge(delete(preview_env::remove)))
        .route("/apps/{id}/databases/{database}", put(databases::attach).merge(delete(databases::detach)))
        .route("/apps/{id}/domains", get(domains::list).merge(post(domains::add)))
        .route("/apps/{id}/domains/{domain}", get(domains::show).merge(delete(domains::remove)))
        .with_state(Arc::clone(apps))
}

/// Create an app. It serves requests after its first deployment.
#[utoipa::path(post, path = "/v1/apps", tag = "apps", request_body = CreateApp, responses((status = 201, body = api::App),
    (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn create(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateApp>,
) -> ApiResult<(StatusCode, Json<api::App>)> {
    check::name(&request.name, &apps.domains)?;
    let CreateApp { name, settings: said, env, template, cpu, memory_mb } = request;
    let begun = AppSpec::default();
    let template = template.filter(|name| !name.is_empty()).or_else(|| Some(begun.template.clone()));
    let said = UpdateApp { settings: said, env, template, cpu, memory_mb };
    let spec = settings::revised(&apps, &begun, said)?;
    let record = AppRecord::new(caller.workspace, name, spec, now());
    apps.store.insert_app(&record).await?;
    apps.activity.polls.notify_one();
    apps.names.notify_all();
    Ok((StatusCode::CREATED, Json(view::app(&apps, &headers, record).await?)))
}

/// List apps, oldest first. Previews are not included.
#[utoipa::path(get, path = "/v1/apps", tag = "apps", responses((status = 200, body = Items<api::App>)))]
pub async fn list(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    headers: HeaderMap,
) -> ApiResult<Json<Items<api::App>>> {
    let mut items = Vec::new();
    for record in apps.store.apps(Some(&caller.workspace)).await? {
        if !record.spec.deleting && record.preview_of.is_none() {
            items.push(caller.shown(view::app(&apps, &headers, record).await?));
        }
    }
    Ok(Json(Items { items }))
}

/// Get an app by ID or name. Does not wake it.
#[utoipa::path(get, path = "/v1/apps/{id}", tag = "apps", params(("id" = String, Path)), responses(
    (status = 200, body = api::App), (status = 404, body = ErrorBody)))]
pub async fn show(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
) -> ApiResult<Json<api::App>> {
    let record = path.find(&apps, &caller).await?;
    Ok(Json(caller.shown(view::app(&apps, &headers, record).await?)))
}

/// Delete an app with its versions, previews, logs and domains.
#[utoipa::path(delete, path = "/v1/apps/{id}", tag = "apps", params(("id" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: AppPath) -> ApiResult<StatusCode> {
    let record = path.find(&apps, &caller).await?;
    removal::run(&apps, record.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List an app's deployments, newest first.
#[utoipa::path(get, path = "/v1/apps/{id}/deploys", tag = "apps", params(("id" = String, Path)), responses(
    (status = 200, body = Items<Deployment>), (status = 404, body = ErrorBody)))]
pub async fn deploys(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<Json<Items<Deployment>>> {
    let record = path.find(&apps, &caller).await?;
    let deployments = apps.store.deployments(&record.id).await?;
    Ok(Json(Items { items: view::deployments(&record, deployments) }))
}

/// Get a deployment with its complete log.
#[utoipa::path(get, path = "/v1/apps/{id}/deploys/{deployment}", tag = "apps",
    params(("id" = String, Path), ("deployment" = DeploymentId, Path)),
    responses((status = 200, body = Deployment), (status = 404, body = ErrorBody)))]
pub async fn deployment(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<Json<Deployment>> {
    let record = path.find(&apps, &caller).await?;
    let one = path.deployment(&apps, &record).await?;
    let lines = apps.store.log_lines(&one.id, 0, u32::MAX).await?;
    let all = view::deployments(&record, apps.store.deployments(&record.id).await?);
    let mut shown =
        all.into_iter().find(|shown| shown.id == one.id).unwrap_or_else(|| view::deployment(one, false));
    shown.build_logs = Some(lines.join("\n"));
    Ok(Json(shown))
}

/// Query parameters of the log of a deployment.
#[derive(Deserialize)]
pub struct LogArgs {
    follow: Option<String>,
}

/// Stream a deployment's log as server-sent events, one line each, until the deployment ends. With
/// `follow=0`, return the lines so far.
#[utoipa::path(get, path = "/v1/apps/{id}/deploys/{deployment}/logs", tag = "apps",
    params(("id" = String, Path), ("deployment" = DeploymentId, Path), ("follow" = Option<String>, Query)),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = ErrorBody)))]
pub async fn deploy_logs(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    Query(args): Query<LogArgs>,
) -> ApiResult<Response> {
    let record = path.find(&apps, &caller).await?;
    let one = path.deployment(&apps, &record).await?;
    let follow = args.follow.is_none() || is_set(args.follow.as_deref());
    Ok(log::respond(&apps, &one, follow))
}

/// Cancel a deployment that is not live yet.
#[utoipa::path(post, path = "/v1/apps/{id}/deploys/{deployment}/cancel", tag = "apps",
    params(("id" = String, Path), ("deployment" = DeploymentId, Path)),
    responses((status = 202, body = Deployment), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn cancel(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let record = path.find(&apps, &caller).await?;
    let mut one = path.deployment(&apps, &record).await?;
    if one.status == DeploymentStatus::Queued {
        one.status = DeploymentStatus::Canceled;
        (one.updated_at, one.finished_at) = (now(), Some(now()));
        one.spec.error = Some("canceled".to_owned());
        let machine = one.spec.build_machine.take();
        if apps.store.put_deployment(&one, DeploymentStatus::Queued).await? {
            log::append(&apps, &one.id, "canceled").await?;
            if let Some(machine) = machine {
                prune::machine_in_background(&apps, machine);
            }
            return Ok((StatusCode::ACCEPTED, Json(view::deployment(one, false))));
        }
        one = path.deployment(&apps, &record).await?;
    }
    if !apps.activity.stop(&one.id, Stop::Canceled) {
        let message =
            format!("deployment `{}` is {}; there is nothing to cancel", one.id, one.status.as_str());
        return Err(Error::conflict(message).into());
    }
    Ok((StatusCode::ACCEPTED, Json(view::deployment(one, false))))
}

/// Roll back an app to an earlier version. Default: the previous version.
#[utoipa::path(post, path = "/v1/apps/{id}/rollback", tag = "apps", params(("id" = String, Path)), request_body = RollbackApp,
    responses((status = 202, body = Deployment), (status = 404, body = ErrorBody),
    (status = 409, description = "No earlier deployment is kept", body = ErrorBody)))]
pub async fn rollback(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    JsonBody(request): JsonBody<RollbackApp>,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let record = path.find(&apps, &caller).await?;
    let all = apps.store.deployments(&record.id).await?;
    let kept = prune::needed(&record, &all).versions;
    let live = all.iter().find(|one| Some(&one.id) == record.active.as_ref());
    let target = match &request.deployment_id {
        Some(id) => {
            all.iter().find(|one| one.id == *id).ok_or_else(|| Error::not_found("deployment", id.as_str()))?
        }
        None => {
            // Not one that was left by a rollback, nor one that is the live version under another id.
            let earlier = |one: &&DeploymentRecord| {
                one.status == DeploymentStatus::Superseded
                    && kept.contains(&one.id)
                    && live.is_none_or(|live| !live.shares_machines(one))
            };
            let none = || {
                Error::conflict(format!("app `{}` has no earlier deployment to roll back to", record.name))
            };
            all.iter().find(earlier).ok_or_else(none)?
        }
    };
    if !kept.contains(&target.id) {
        return Err(Error::conflict(format!(
            "deployment `{}` is no longer kept; deploy its commit again, or choose one that is `kept`",
            target.id
        ))
        .into());
    }
    let mut new = DeploymentRecord::returning_to(&record, target, "rollback", now());
    new.spec.set_machines(target.spec.machines().cloned());
    Ok(queue(&apps, new).await?)
}

/// Restart the live version in new instances, with the current settings and variables, without a build.
#[utoipa::path(post, path = "/v1/apps/{id}/restart", tag = "apps", params(("id" = String, Path)), responses(
    (status = 202, body = Deployment), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn restart(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let record = path.find(&apps, &caller).await?;
    let none = || Error::conflict(format!("app `{}` has no live deployment; deploy it first", record.name));
    let live = apps.store.deployment(&record.id, record.active.as_ref().ok_or_else(none)?).await?;
    Ok(queue(&apps, DeploymentRecord::returning_to(&record, &live, "restart", now())).await?)
}
