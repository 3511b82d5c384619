//! `/v1/schedules`.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use jiff::Timestamp;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody, Query};
use pandastack_types::api::{
    CreateSchedule, Items, NextRuns, PatchSchedule, PreviewSchedule, Schedule, ScheduleRun, TriggerSchedule,
};
use pandastack_types::limits::RUNS_KEPT_MAX;
use pandastack_types::{Error, ErrorBody, ScheduleId, ScheduleRunId};
use serde::Deserialize;

use super::{ops, spec};
use crate::app::App;
use crate::clock::now;

/// Runs in an answer that names no number.
const RUNS_DEFAULT: u32 = 100;

/// `{id}/runs/{run}`: a run of a schedule.
pub(crate) struct RunPath(ScheduleId, ScheduleRunId);

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
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/schedules", get(list))
        .route("/schedules/preview", post(preview))
        .route("/schedules/{id}", get(get_one).patch(change).delete(delete))
        .route("/schedules/{id}/next", get(next))
        .route("/schedules/{id}/runs", get(runs))
        .route("/schedules/{id}/runs/{run}", get(get_run))
        .route("/schedules/{id}/runs/{run}/cancel", post(cancel_run))
}

/// Calls that take an `Idempotency-Key`.
pub(crate) fn once_only() -> Router<Arc<App>> {
    Router::new().route("/schedules", post(create)).route("/schedules/{id}/trigger", post(trigger))
}

/// Make a schedule.
#[utoipa::path(post, path = "/v1/schedules", tag = "schedules", request_body = CreateSchedule, responses(
    (status = 200, body = Schedule), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateSchedule>,
) -> ApiResult<Json<Schedule>> {
    let record = ops::create(&app, caller.workspace, request).await?;
    Ok(Json(spec::schedule_view(record)))
}

/// List schedules.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", responses((status = 200, body = Items<Schedule>)))]
pub(crate) async fn list(State(app): State<Arc<App>>, caller: Caller) -> ApiResult<Json<Items<Schedule>>> {
    let records = app.store.schedules(&caller.workspace).await?;
    Ok(Json(Items { items: records.into_iter().map(spec::schedule_view).collect() }))
}

/// Look at a schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)), responses(
    (status = 200, body = Schedule), (status = 404, body = ErrorBody)))]
pub(crate) async fn get_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
) -> ApiResult<Json<Schedule>> {
    Ok(Json(spec::schedule_view(app.store.schedule(&caller.workspace, &id).await?)))
}

/// Change a schedule; what is not given stays.
#[utoipa::path(patch, path = "/v1/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)),
    request_body = PatchSchedule, responses((status = 200, body = Schedule), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    JsonBody(request): JsonBody<PatchSchedule>,
) -> ApiResult<Json<Schedule>> {
    Ok(Json(spec::schedule_view(ops::patch(&app, &caller.workspace, &id, request).await?)))
}

/// Delete a schedule with its history, ending what is under way.
#[utoipa::path(delete, path = "/v1/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
) -> ApiResult<StatusCode> {
    ops::delete(&app, &caller.workspace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a schedule now and wait for that run; its times stay as they are.
#[utoipa::path(post, path = "/v1/schedules/{id}/trigger", tag = "schedules", params(("id" = ScheduleId, Path)),
    request_body = TriggerSchedule, responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody)))]
pub(crate) async fn trigger(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    JsonBody(request): JsonBody<TriggerSchedule>,
) -> ApiResult<Json<ScheduleRun>> {
    let wait = request.wait.unwrap_or(true);
    let (schedule, run) = ops::trigger(&app, &caller.workspace, &id, wait).await?;
    Ok(Json(spec::run_view(&schedule, run)))
}

#[derive(Deserialize)]
pub(crate) struct RunsQuery {
    limit: Option<u32>,
    before: Option<Timestamp>,
}

/// Runs of a schedule, newest first.
#[utoipa::path(get, path = "/v1/schedules/{id}/runs", tag = "schedules", params(("id" = ScheduleId, Path),
    ("limit" = Option<u32>, Query), ("before" = Option<String>, Query, description = "Only runs recorded before this time")),
    responses((status = 200, body = Items<ScheduleRun>), (status = 404, body = ErrorBody)))]
pub(crate) async fn runs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(query): Query<RunsQuery>,
) -> ApiResult<Json<Items<ScheduleRun>>> {
    let limit = query.limit.unwrap_or(RUNS_DEFAULT);
    if !(1..=RUNS_KEPT_MAX).contains(&limit) {
        return Err(Error::bad_request(format!("`limit` must be 1 to {RUNS_KEPT_MAX}")).into());
    }
    let schedule = app.store.schedule(&caller.workspace, &id).await?;
    let records = app.store.runs(&caller.workspace, &id, query.before, limit).await?;
    Ok(Json(Items { items: records.into_iter().map(|run| spec::run_view(&schedule, run)).collect() }))
}

/// One run of a schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}/runs/{run}", tag = "schedules",
    params(("id" = ScheduleId, Path), ("run" = ScheduleRunId, Path)),
    responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody)))]
pub(crate) async fn get_run(
    State(app): State<Arc<App>>,
    caller: Caller,
    RunPath(id, run): RunPath,
) -> ApiResult<Json<ScheduleRun>> {
    let schedule = app.store.schedule(&caller.workspace, &id).await?;
    Ok(Json(spec::run_view(&schedule, app.store.run(&caller.workspace, &id, &run).await?)))
}

/// End a run before its end.
#[utoipa::path(post, path = "/v1/schedules/{id}/runs/{run}/cancel", tag = "schedules",
    params(("id" = ScheduleId, Path), ("run" = ScheduleRunId, Path)),
    responses((status = 200, body = ScheduleRun), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn cancel_run(
    State(app): State<Arc<App>>,
    caller: Caller,
    RunPath(id, run): RunPath,
) -> ApiResult<Json<ScheduleRun>> {
    let schedule = app.store.schedule(&caller.workspace, &id).await?;
    Ok(Json(spec::run_view(&schedule, ops::cancel(&app, &caller.workspace, &id, &run).await?)))
}

#[derive(Deserialize)]
pub(crate) struct NextQuery {
    count: Option<u32>,
}

/// The next times of a schedule, also of one that is paused.
#[utoipa::path(get, path = "/v1/schedules/{id}/next", tag = "schedules", params(("id" = ScheduleId, Path),
    ("count" = Option<u32>, Query)), responses((status = 200, body = NextRuns), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn next(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(query): Query<NextQuery>,
) -> ApiResult<Json<NextRuns>> {
    let record = app.store.schedule(&caller.workspace, &id).await?;
    let after = record.cursor.max(now());
    Ok(Json(ops::next_runs(&record.spec.timing, record.spec.anchor, after, query.count)?))
}

/// The times that a schedule would have, without making one.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "schedules", request_body = PreviewSchedule, responses(
    (status = 200, body = NextRuns), (status = 400, body = ErrorBody)))]
pub(crate) async fn preview(JsonBody(request): JsonBody<PreviewSchedule>) -> ApiResult<Json<NextRuns>> {
    Ok(Json(ops::preview(&request)?))
}
