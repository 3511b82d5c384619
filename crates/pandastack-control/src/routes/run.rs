//! `POST /v1/run`: create, run, return, delete, in one call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use http::Method;
use pandastack_types::api::{CreateSandbox, ExecResult, RunRequest, RunResult};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use pandastack_types::{ErrorBody, ErrorCode};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::JsonBody;
use crate::ops::call_on;
use crate::store::SandboxRecord;
use crate::{ops, validate};

/// How much longer than the command its host may take to answer, and its sandbox to live.
const GRACE: Duration = Duration::from_secs(30);

/// Run a command in a sandbox of its own that is gone afterwards.
#[utoipa::path(post, path = "/v1/run", tag = "exec", request_body = RunRequest, responses(
    (status = 200, body = RunResult), (status = 400, body = ErrorBody), (status = 503, body = ErrorBody),
    (status = 504, body = ErrorBody)))]
pub(crate) async fn run(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<RunRequest>,
) -> ApiResult<Json<RunResult>> {
    validate::exec(&request.exec)?;
    let began = Instant::now();
    let gone = CancellationToken::new();
    let _when_dropped = gone.clone().drop_guard();
    let seconds = request.exec.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT);
    let create = CreateSandbox {
        template: request.template.clone(),
        // Should this process die, the reaper of the next one deletes the sandbox.
        ttl_seconds: Some(seconds + 2 * GRACE.as_secs()),
        ..CreateSandbox::default()
    };
    let owner = Arc::clone(&app);
    app.owned(async move {
        let record = ops::create::create(&owner, caller.workspace, create, None).await?;
        let create_ms = milliseconds(began);
        let ran = tokio::select! {
            ran = exec(&owner, &record, &request, Duration::from_secs(seconds) + GRACE) => ran,
            () = gone.cancelled() => Err(ApiError::new(ErrorCode::Unavailable, "the client went away")),
        };
        let (sandbox_id, spec) = (record.id.clone(), record.spec.clone());
        if let Err(error) = ops::delete::delete(&owner, record, None).await {
            tracing::warn!(sandbox = %sandbox_id, %error, "the sandbox of a run is deleted by the reaper");
        }
        let (engine, isolation) = (spec.engine, spec.isolation);
        let total_ms = milliseconds(began);
        Ok(Json(RunResult { result: ran?, sandbox_id, create_ms, total_ms, engine, isolation }))
    })
    .await
}

async fn exec(
    app: &App,
    record: &SandboxRecord,
    request: &RunRequest,
    wait: Duration,
) -> ApiResult<ExecResult> {
    let client = app.hosts.client(&record.host)?;
    let path = format!("/sandboxes/{}/exec", record.id);
    Ok(client.call(call_on(record, Method::POST, &path, wait), Some(&request.exec)).await?)
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
