//! `/v1/schedules`.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use jiff::Timestamp;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody, Lookup, Query};
use pandastack_store::clock::now;
use pandastack_types::api::{
    CreateSchedule, Items, NextRuns, PatchSchedule, PreviewSchedule, Schedule, ScheduleRun, TriggerSchedule,
};
use pandastack_types::limits::RUNS_KEPT_MAX;
use pandastack_types::{Error, ErrorBody, ScheduleId, ScheduleRunId};
use serde::Deserialize;

use crate::scheduler::Scheduler;
use crate::{ops, spec};

/// Runs in an answer that names no number.
const RUNS_DEFAULT: u32 = 100;

/// `{id}/runs/{run}`: a run of a schedule.
pub struct RunPath(ScheduleId, ScheduleRunId);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for RunPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut http::request::Parts, state: &S) -> ApiResult<Self> {
        let both = axum::extract::Path::<(String, String)>::from_request_parts(parts, state).await;
        let axum::extract::Path((schedule, run)) = both.map_err(|_| Error::not_found("run", "?"))?;
        let id = schedule.parse().map_err(|_| Error::not_found("schedule", &schedule))?;
        Ok(RunPath(id, run.parse().map_err(|_| Error::not_found("run", &run))?))
    }
}

/// Calls that may be repeated.
pub fn repeatable(scheduler: &Arc<Scheduler>) -> Router {
    Router::new()
        .route("/schedules", get(list))
        .route("/schedules/preview", post(preview))
        .route("/schedules/{id}", get(get_one).patch(change).delete(delete))
        .route("/schedules/{id}/next", get(next))
        .route("/schedules/{id}/runs", get(runs))
        .route("/schedules/{id}/runs/{run}", get(get_run))
        .route("/schedules/{id}/runs/{run}/cancel", post(cancel_run))
        .with_state(Arc::clone(scheduler))
}

/// Calls that take an `Idempotency-Key`.
pub fn once_only(scheduler: &Arc<Scheduler>) -> Router {
    Router::new()
        .route("/schedules", post(create))
        .route("/schedules/{id}/trigger", post(trigger))
        .with_state(Arc::clone(scheduler))
}

/// Create a schedule.
#[utoipa::path(post, path = "/v1/schedules", tag = "schedules", request_body = CreateSchedule, responses(
    (status = 200, body = Schedule), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub async fn create(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    lookup: Lookup,
    JsonBody(mut request): JsonBody<CreateSchedule>,
) -> ApiResult<Json<Schedule>> {
    if let Some(target) = &mut request.target {
        spec::resolve_target(target, &lookup).await?;
    }
    let record = ops::create(&scheduler, caller.workspace, request).await?;
    Ok(Json(spec::schedule_view(record)))
}

/// List schedules.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", responses((status = 200, body = Items<Schedule>)))]
pub async fn list(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
) -> ApiResult<Json<Items<Schedule>>> {
    let records = scheduler.store.schedules(&caller.workspace).await?;
    let items = records.into_iter().map(spec::schedule_view).collect();
    Ok(Json(Items { items: caller.shown::<Vec<_>>(items) }))
}

/// Get a schedule.
#[utoipa::path(
    get, path = "/v1/schedules/{id}", operation_id = "get_schedule", tag = "schedules",
    params(("id" = ScheduleId, Path)), responses(
    (status = 200, body = Schedule), (status = 404, body = ErrorBody)))]
pub async fn get_one(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
) -> ApiResult<Json<Schedule>> {
    let record = scheduler.store.schedule(&caller.workspace, &id).await?;
    Ok(Json(caller.shown(spec::schedule_view(record))))
}

/// Update a schedule. Omitted settings are kept.
#[utoipa::path(patch, path = "/v1/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)),
    request_body = PatchSchedule, responses((status = 200, body = Schedule), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn change(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    lookup: Lookup,
    Id(id): Id<ScheduleId>,
    JsonBody(mut request): JsonBody<PatchSchedule>,
) -> ApiResult<Json<Schedule>> {
    if let Some(target) = &mut request.target {
        spec::resolve_target(target, &lookup).await?;
    }
    Ok(Json(spec::schedule_view(ops::patch(&scheduler, &caller.workspace, &id, request).await?)))
}

/// Delete a schedule and its history, and cancel runs in progress.
#[utoipa::path(delete, path = "/v1/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
pub async fn delete(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
) -> ApiResult<StatusCode> {
    ops::delete(&scheduler, &caller.workspace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a schedule now and wait for the run. Its next run times do not change.
#[utoipa::path(post, path = "/v1/schedules/{id}/trigger", tag = "schedules", params(("id" = ScheduleId, Path)),
    request_body = TriggerSchedule, responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody)))]
pub async fn trigger(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    JsonBody(request): JsonBody<TriggerSchedule>,
) -> ApiResult<Json<ScheduleRun>> {
    let wait = request.wait.unwrap_or(true);
    let (schedule, run) = ops::trigger(&scheduler, &caller.workspace, &id, wait).await?;
    Ok(Json(spec::run_view(&schedule, run)))
}

/// Filter of a list of runs.
#[derive(Deserialize)]
pub struct RunsQuery {
    limit: Option<u32>,
    before: Option<Timestamp>,
}

/// List a schedule's runs, newest first.
#[utoipa::path(get, path = "/v1/schedules/{id}/runs", tag = "schedules", params(("id" = ScheduleId, Path),
    ("limit" = Option<u32>, Query), ("before" = Option<String>, Query, description = "Return only runs recorded before this time")),
    responses((status = 200, body = Items<ScheduleRun>), (status = 404, body = ErrorBody)))]
pub async fn runs(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(query): Query<RunsQuery>,
) -> ApiResult<Json<Items<ScheduleRun>>> {
    let limit = query.limit.unwrap_or(RUNS_DEFAULT);
    if !(1..=RUNS_KEPT_MAX).contains(&limit) {
        return Err(Error::bad_request(format!("`limit` must be 1 to {RUNS_KEPT_MAX}")).into());
    }
    let schedule = scheduler.store.schedule(&caller.workspace, &id).await?;
    let records = scheduler.run_store.runs(&caller.workspace, &id, query.before, limit).await?;
    Ok(Json(Items { items: records.into_iter().map(|run| spec::run_view(&schedule, run)).collect() }))
}

/// Get a run of a schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}/runs/{run}", tag = "schedules",
    params(("id" = ScheduleId, Path), ("run" = ScheduleRunId, Path)),
    responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody)))]
pub async fn get_run(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    RunPath(id, run): RunPath,
) -> ApiResult<Json<ScheduleRun>> {
    let schedule = scheduler.store.schedule(&caller.workspace, &id).await?;
    Ok(Json(spec::run_view(&schedule, scheduler.run_store.run(&caller.workspace, &id, &run).await?)))
}

/// Cancel a run.
#[utoipa::path(post, path = "/v1/schedules/{id}/runs/{run}/cancel", tag = "schedules",
    params(("id" = ScheduleId, Path), ("run" = ScheduleRunId, Path)),
    responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn cancel_run(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    RunPath(id, run): RunPath,
) -> ApiResult<Json<ScheduleRun>> {
    let schedule = scheduler.store.schedule(&caller.workspace, &id).await?;
    Ok(Json(spec::run_view(&schedule, ops::cancel(&scheduler, &caller.workspace, &id, &run).await?)))
}

/// Query of the list of next runs.
#[derive(Deserialize)]
pub struct NextQuery {
    count: Option<u32>,
}

/// Get the next run times of a schedule, even if it is paused.
#[utoipa::path(get, path = "/v1/schedules/{id}/next", tag = "schedules", params(("id" = ScheduleId, Path),
    ("count" = Option<u32>, Query)), responses((status = 200, body = NextRuns), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn next(
    State(scheduler): State<Arc<Scheduler>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(query): Query<NextQuery>,
) -> ApiResult<Json<NextRuns>> {
    let record = scheduler.store.schedule(&caller.workspace, &id).await?;
    let after = record.cursor.max(now());
    Ok(Json(ops::next_runs(&record.spec.timing, record.spec.anchor, after, query.count)?))
}

/// Preview the run times of a schedule without creating it.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "schedules", request_body = PreviewSchedule, responses(
    (status = 200, body = NextRuns), (status = 400, body = ErrorBody)))]
pub async fn preview(JsonBody(request): JsonBody<PreviewSchedule>) -> ApiResult<Json<NextRuns>> {
    Ok(Json(ops::preview(&request)?))
}
