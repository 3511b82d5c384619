//! The API of calls and their results.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use http::{HeaderValue, StatusCode, header};
use jiff::SignedDuration;
use pandastack_function_proto::Outcome;
use pandastack_rest::extract::parse_open_json;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody, Query};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, RunSelect};
use pandastack_types::api::{FunctionMetrics, InvokeFunction, Items, RecordRun, Redriven, Run, RunKind};
use pandastack_types::limits::{ASYNC_EVENT_BYTES_MAX, EVENT_BYTES_MAX, RUN_OUTPUT_BYTES_MAX, RUNS_PAGE_MAX};
use pandastack_types::{Error, ErrorBody, ErrorCode, Result, RunId};
use serde::Deserialize;

use crate::deploy_routes::read_limited;
use crate::functions::Functions;
use crate::invoke::{self, InvokeRequest};
use crate::lookup::{FunctionPath, find};
use crate::{dead_letters, queue, versions, view};

/// Bytes of `X-Log-Result`, before base64.
const LOG_TAIL_BYTES: usize = 4096;
/// Calls that metrics are computed of, the newest.
const FIGURES_MAX: u32 = 10_000;

/// The version of a call.
#[derive(Deserialize)]
pub struct Qualifier {
    qualifier: Option<String>,
}

/// Call a function. Without `X-Invocation-Type`, the body is `{"input": ...}` and the response is a run.
/// With it, the body is the event: `RequestResponse` returns the handler's response (`X-Function-Error`
/// marks a failure), `Event` returns 202 with a queued run, and `DryRun` returns 204 without a call.
/// `X-Log-Type: Tail` adds the end of the log.
#[utoipa::path(post, path = "/v1/functions/{id}/invoke", tag = "functions",
    params(("id" = String, Path), ("qualifier" = Option<String>, Query, description = "Version or alias"),
        ("X-Invocation-Type" = Option<String>, Header), ("X-Log-Type" = Option<String>, Header)),
    request_body = InvokeFunction, responses((status = 200, body = Run), (status = 202, body = Run), (status = 204),
    (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 502, body = ErrorBody), (status = 504, body = ErrorBody)))]
pub async fn invoke(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Query(query): Query<Qualifier>,
    request: Request,
) -> ApiResult<Response> {
    let function = functions.cache.to_call(functions.store.as_ref(), &caller.workspace, &name).await?;
    let (parts, body) = request.into_parts();
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let kind = text("x-invocation-type");
    let refuse =
        || Error::new(ErrorCode::BodyTooLarge, format!("an event must be at most {EVENT_BYTES_MAX} bytes"));
    let body = read_limited(body, EVENT_BYTES_MAX, refuse).await?;
    let version = versions::version_for(&function, query.qualifier.as_deref())?;
    match kind.as_deref() {
        None => {
            let request: InvokeFunction = parse_open_json(&body)?;
            let event = serde_json::to_vec(&request.input).map_err(Error::internal)?;
            if request.is_async {
                return Ok(enqueue(&functions, &function, version, event.into()).await?);
            }
            let answered = call(&functions, function, version, event.into()).await?;
            Ok(Json(answered.run).into_response())
        }
        Some("RequestResponse") => {
            let answered = call(&functions, function, version, event_of(body)?).await?;
            Ok(raw(answered, text("x-log-type").as_deref() == Some("Tail")))
        }
        Some("Event") => Ok(enqueue(&functions, &function, version, event_of(body)?).await?),
        Some("DryRun") => {
            versions::pool_of(&functions, &function, version).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some(_) => {
            Err(Error::bad_request("X-Invocation-Type must be RequestResponse, Event or DryRun").into())
        }
    }
}

/// An event is JSON; nothing counts as `{}`.
pub(crate) fn event_of(body: bytes::Bytes) -> Result<bytes::Bytes> {
    if body.trim_ascii().is_empty() {
        return Ok(bytes::Bytes::from_static(b"{}"));
    }
    match serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
        Ok(_) => Ok(body),
        Err(error) => Err(Error::bad_request(format!("the event is not JSON: {error}"))),
    }
}

async fn call(
    functions: &Arc<Functions>,
    function: FunctionRecord,
    version: u32,
    event: bytes::Bytes,
) -> Result<invoke::CallResult> {
    let owner = Arc::clone(functions);
    // A started call runs to its end, so that a client that disconnects leaves no machine in use.
    functions
        .core
        .background
        .owned(async move {
            invoke::call(&owner, &function, InvokeRequest::new(RunKind::Sync, version, event)).await
        })
        .await
}

async fn enqueue(
    functions: &Functions,
    function: &FunctionRecord,
    version: u32,
    event: bytes::Bytes,
) -> Result<Response> {
    if event.len() > ASYNC_EVENT_BYTES_MAX {
        let message = format!("an event of a queued call must be at most {ASYNC_EVENT_BYTES_MAX} bytes");
        return Err(Error::new(ErrorCode::BodyTooLarge, message));
    }
    let run = queue::put(functions, function, InvokeRequest::new(RunKind::Async, version, event)).await?;
    Ok((StatusCode::ACCEPTED, Json(run)).into_response())
}

/// The handler's answer, unchanged.
fn raw(answered: invoke::CallResult, with_log: bool) -> Response {
    let invoke::CallResult { run, body, outcome } = answered;
    let mut response = match outcome {
        Outcome::Success | Outcome::Error => Response::new(Body::from(body)),
        Outcome::Timeout => {
            let error = Error::new(ErrorCode::ExecTimeout, run.error.clone().unwrap_or_default());
            ApiError(error).into_response()
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

/// Filter of a list of calls.
#[derive(Deserialize)]
pub struct RunsArgs {
    limit: Option<u32>,
    dead_letter: Option<bool>,
}

/// List a function's runs, newest first. With `dead_letter=true`, only dead-lettered calls.
#[utoipa::path(get, path = "/v1/functions/{id}/runs", tag = "functions",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("dead_letter" = Option<bool>, Query)), responses(
    (status = 200, body = Items<Run>), (status = 404, body = ErrorBody)))]
pub async fn runs(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Query(args): Query<RunsArgs>,
) -> ApiResult<Json<Items<Run>>> {
    let function = find(&functions, &caller, &name).await?;
    let limit = args.limit.unwrap_or(RUNS_PAGE_MAX).clamp(1, RUNS_PAGE_MAX);
    let select = RunSelect { dead_letters: args.dead_letter.unwrap_or(false), limit };
    functions.runs.flush().await;
    let runs = functions.run_store.function_runs(&function.id, select).await?;
    Ok(Json(Items { items: runs.into_iter().map(|record| record.run).collect() }))
}

/// Get a run.
#[utoipa::path(get, path = "/v1/functions/{id}/runs/{run}", tag = "functions",
    params(("id" = String, Path), ("run" = RunId, Path)), responses(
    (status = 200, body = Run), (status = 404, body = ErrorBody)))]
pub async fn run(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Id(run): Id<RunId>,
) -> ApiResult<Json<Run>> {
    let function = find(&functions, &caller, &name).await?;
    functions.runs.flush().await;
    Ok(Json(functions.run_store.function_run(&caller.workspace, &function.id, &run).await?.run))
}

/// Queue a dead-lettered call again with the same ID, for the current version.
#[utoipa::path(post, path = "/v1/functions/{id}/runs/{run}/redrive", tag = "functions",
    params(("id" = String, Path), ("run" = RunId, Path)), responses((status = 202, body = Run),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn redrive(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Id(run): Id<RunId>,
) -> ApiResult<Response> {
    let function = find(&functions, &caller, &name).await?;
    let record = functions.run_store.function_run(&caller.workspace, &function.id, &run).await?;
    let run = dead_letters::redrive(&functions, &function, record).await?;
    Ok((StatusCode::ACCEPTED, Json(run)).into_response())
}

/// Queue all dead-lettered calls again, up to 1,000.
#[utoipa::path(post, path = "/v1/functions/{id}/redrive", tag = "functions", params(("id" = String, Path)), responses(
    (status = 202, body = Redriven), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub async fn redrive_all(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
) -> ApiResult<Response> {
    let function = find(&functions, &caller, &name).await?;
    let owner = Arc::clone(&functions);
    let redriven = functions
        .core
        .background
        .owned(async move { dead_letters::redrive_all(&owner, &function).await })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(redriven)).into_response())
}

/// Record a run that the client made itself.
#[utoipa::path(post, path = "/v1/functions/{id}/runs", tag = "functions", params(("id" = String, Path)),
    request_body = RecordRun, responses((status = 200, body = Run), (status = 404, body = ErrorBody)))]
pub async fn record_run(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    JsonBody(given): JsonBody<RecordRun>,
) -> ApiResult<Json<Run>> {
    let function = find(&functions, &caller, &name).await?;
    let cut = |text: String| {
        let end = (0..=RUN_OUTPUT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
    };
    let request = InvokeRequest::new(RunKind::Recorded, function.version, bytes::Bytes::new());
    let run = Run {
        id: request.id,
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
        notices: 0,
        next_attempt_at: None,
        started_at: request.requested_at,
        ended_at: Some(now()),
    };
    invoke::record(&functions, &function, run.clone(), None).await;
    Ok(Json(run))
}

/// Over which time.
#[derive(Deserialize)]
pub struct MetricsArgs {
    period: Option<u64>,
}

/// Get duration percentiles, error rate and cold start rate of recent hours.
#[utoipa::path(get, path = "/v1/functions/{id}/metrics", tag = "functions",
    params(("id" = String, Path), ("period" = Option<u64>, Query, description = "Period in hours. Default: 24")), responses(
    (status = 200, body = FunctionMetrics), (status = 404, body = ErrorBody)))]
pub async fn metrics(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Query(args): Query<MetricsArgs>,
) -> ApiResult<Json<FunctionMetrics>> {
    let function = find(&functions, &caller, &name).await?;
    let period = args.period.unwrap_or(24).clamp(1, 24 * 365);
    let span = SignedDuration::from_hours(i64::try_from(period).unwrap_or(24));
    let since = now().checked_sub(span).unwrap_or(jiff::Timestamp::MIN);
    functions.runs.flush().await;
    let figures = functions.run_store.run_figures(&function.id, since, FIGURES_MAX).await?;
    Ok(Json(view::metrics(period, figures, functions.counts(&function.id))))
}
