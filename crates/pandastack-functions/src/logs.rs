//! Output of a function's calls: the latest runs, and live output as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use pandastack_rest::{ApiResult, Caller, Query};
use pandastack_store::functions::RunSelect;
use pandastack_types::limits::RUNS_PAGE_MAX;
use pandastack_types::{ErrorBody, Result};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use crate::functions::Functions;
use crate::lookup::{FunctionPath, find};

/// Filter of log lines.
#[derive(Deserialize)]
pub struct LogsArgs {
    follow: Option<String>,
    limit: Option<u32>,
}

/// Get the output of recent calls, oldest first. With `follow`, stream new output as `stdout` and `stderr`
/// events.
#[utoipa::path(get, path = "/v1/functions/{id}/logs", tag = "functions",
    params(("id" = String, Path), ("follow" = Option<String>, Query), ("limit" = Option<u32>, Query)), responses(
    (status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub async fn logs(
    State(functions): State<Arc<Functions>>,
    caller: Caller,
    FunctionPath(name): FunctionPath,
    Query(args): Query<LogsArgs>,
) -> ApiResult<Response> {
    let function = find(&functions, &caller, &name).await?;
    if args.follow.is_some_and(|follow| follow != "0" && follow != "false") {
        return Ok(follow(&functions, function.id).into_response());
    }
    let limit = args.limit.unwrap_or(20).clamp(1, RUNS_PAGE_MAX);
    let select = RunSelect { dead_letters: false, limit };
    let mut text = String::new();
    functions.runs.flush().await;
    for record in functions.run_store.function_runs(&function.id, select).await?.into_iter().rev() {
        let run = record.run;
        let how = if run.cold { "cold" } else { "warm" };
        text.push_str(&format!(
            "{} {} {} {:.1} ms {how} version {} attempt {}\n",
            run.started_at,
            run.id,
            run.status.as_str(),
            run.duration_ms,
            run.version,
            run.attempt
        ));
        for output in [&run.stdout, &run.stderr] {
            for line in output.lines() {
                text.push_str(&format!("  {line}\n"));
            }
        }
        if let Some(error) = &run.error {
            text.push_str(&format!("  error: {error}\n"));
        }
    }
    Ok(text.into_response())
}

fn follow(
    functions: &Arc<Functions>,
    function: pandastack_types::FunctionId,
) -> Sse<impl futures::Stream<Item = Result<Event, Infallible>> + use<>> {
    let (lines, shutdown) = (functions.tails.follow(), functions.core.background.shutdown.clone());
    let events = futures::stream::unfold((lines, shutdown), move |(mut lines, shutdown)| {
        let function = function.clone();
        async move {
            loop {
                let line = tokio::select! {
                    line = lines.recv() => line,
                    () = shutdown.cancelled() => return None,
                };
                let event = match line {
                    Ok(line) if line.function == function => {
                        let name = match line.stream {
                            pandastack_function_proto::Stream::Stdout => "stdout",
                            pandastack_function_proto::Stream::Stderr => "stderr",
                        };
                        let data = serde_json::to_string(&line).unwrap_or_default();
                        Event::default().event(name).data(data)
                    }
                    Ok(_) => continue,
                    Err(RecvError::Lagged(count)) => {
                        Event::default().event("gap").data(format!("{{\"lines\":{count}}}"))
                    }
                    Err(RecvError::Closed) => return None,
                };
                return Some((Ok(event), (lines, shutdown)));
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
