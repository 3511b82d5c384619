//! `POST /v1/run`: create, run, return, delete, in one call.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_sandboxes::{Sandboxes, ops, validate};
use pandastack_types::ErrorBody;
use pandastack_types::api::{RunRequest, RunResult};
use tokio_util::sync::CancellationToken;

/// Run a command in a temporary sandbox.
#[utoipa::path(post, path = "/v1/run", tag = "exec", request_body = RunRequest, responses(
    (status = 200, body = RunResult), (status = 400, body = ErrorBody), (status = 503, body = ErrorBody),
    (status = 504, body = ErrorBody)))]
pub(crate) async fn run(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    JsonBody(request): JsonBody<RunRequest>,
) -> ApiResult<Json<RunResult>> {
    validate::exec(&request.exec)?;
    let gone = CancellationToken::new();
    let _when_dropped = gone.clone().drop_guard();
    Ok(ops::exec::run(&sandboxes, caller.workspace, request, gone).await.map(Json)?)
}
