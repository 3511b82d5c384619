//! `POST /v1/run`: create, run, return, delete, in one call.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, header};
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_sandboxes::ops::exec::RunStream;
use pandastack_sandboxes::{Sandboxes, ops, validate};
use pandastack_types::api::{RunRequest, RunResult};
use pandastack_types::{Error, ErrorBody, Result};
use tokio_util::sync::CancellationToken;

/// Run a command in a temporary sandbox.
#[utoipa::path(post, path = "/v1/run", tag = "exec", request_body = RunRequest, responses(
    (status = 200, body = RunResult), (status = 400, body = ErrorBody), (status = 503, body = ErrorBody),
    (status = 504, body = ErrorBody)))]
pub(crate) async fn run(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    JsonBody(request): JsonBody<RunRequest>,
) -> ApiResult<Response> {
    validate::exec(&request.exec)?;
    let gone = CancellationToken::new();
    let _when_dropped = gone.clone().drop_guard();
    let run = ops::exec::run_streamed(&sandboxes, caller.workspace, request, gone).await?;
    Ok(answer(run)?)
}

/// A [`RunResult`]: the fields of the run, then those of the result as its host sends them. Output may
/// take six bytes of JSON for each of its own, so it is passed on piece by piece.
fn answer(run: RunStream) -> Result<Response> {
    let mut fields = serde_json::to_vec(&run.ran).map_err(Error::internal)?;
    // In place of the end of this object and the beginning of that one.
    fields.pop();
    fields.push(b',');
    let announced = run.response.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let length = announced.map(|bytes| (bytes + fields.len() as u64).saturating_sub(1));
    let mut is_first = true;
    let rest = Body::new(run.response.into_body()).into_data_stream().map_ok(move |bytes| {
        if !is_first || bytes.is_empty() {
            return bytes;
        }
        is_first = false;
        bytes.slice(1..)
    });
    let first = futures::stream::once(async { Ok(Bytes::from(fields)) });
    let mut response = Body::from_stream(first.chain(rest)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.extend(length.map(|bytes| (header::CONTENT_LENGTH, HeaderValue::from(bytes))));
    Ok(response)
}
