//! `/execute`: code in, lines of JSON out.
//!
//! The response's head is sent before the code runs, and `keepalive` lines during long silences,
//! because clients time out otherwise. A client that disconnects drops the native stream, which
//! interrupts its code.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use pandastack_types::Language;
use pandastack_types::api::{RunCode, SANDBOX_GONE_ERROR};
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::read_json;
use crate::error::{RestError, RestResult};
use crate::limits::{INTERPRETER_KEEPALIVE_SECONDS, RESULT_EVENT_BYTES_MAX};
use crate::native_paths as paths;
use crate::session::Session;
use crate::sse::{Event, Events};

#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// Runs code in a context.
pub(super) async fn execute(session: Session, body: Body) -> RestResult<Response> {
    let wanted: Execute = read_json(body).await?;
    if wanted.context_id.is_some() && wanted.language.is_some() {
        return Err(RestError::bad_request(
            "give `context_id` or `language`, not both; a context already has a language",
        ));
    }
    let language = Language::find(wanted.language.as_deref());
    let language = language.map_err(|error| RestError::bad_request(error.message))?;
    let run = RunCode { code: wanted.code, env: wanted.env_vars, timeout_ms: None };
    let context = wanted.context_id.unwrap_or_else(|| language.default_context());
    let execution = Execution::begin(&session, &context, &run).await?;
    let lines = futures::stream::unfold(execution, |mut execution| async move {
        Some((execution.next().await?, execution))
    });
    let mut response = Body::from_stream(lines).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// An execution in progress.
struct Execution {
    events: Events,
    lines: VecDeque<Bytes>,
    is_over: bool,
    /// The sandbox was deleted during the execution. A broken connection makes clients check
    /// whether the sandbox still exists.
    is_gone: bool,
}

impl Execution {
    async fn begin(session: &Session, context: &str, run: &RunCode) -> RestResult<Self> {
        let unreadable =
            |error: String| RestError::bad_request(format!("the code cannot be encoded: {error}"));
        let body = serde_json::to_vec(run).map_err(|error| unreadable(error.to_string()))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(paths::run_in_context(&session.sandbox, context))
            .header(header::ACCEPT, "text/event-stream")
            .body(Body::from(body));
        let answer = session.native.send(request.map_err(|error| unreadable(error.to_string()))?).await?;
        let events = Events::with_limit(answer.into_body(), RESULT_EVENT_BYTES_MAX);
        Ok(Self { events, lines: VecDeque::new(), is_over: false, is_gone: false })
    }

    async fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            if std::mem::take(&mut self.is_gone) {
                self.is_over = true;
                return Some(Err(std::io::Error::other("the sandbox was deleted while the code ran")));
            }
            if self.is_over {
                return None;
            }
            let silence = Duration::from_secs(INTERPRETER_KEEPALIVE_SECONDS);
            match tokio::time::timeout(silence, self.events.next()).await {
                Err(_) => self.push(&json!({ "type": "keepalive" })),
                Ok(Ok(Some(event))) => self.translate(event),
                Ok(Ok(None)) => self.fail("the connection to the context was lost; its state is kept"),
                Ok(Err(broken)) => self.fail(&pandastack_types::chain(&broken)),
            }
        }
    }

    fn translate(&mut self, event: Event) {
        match event.name.as_str() {
            "started" => {
                let count = &event.data["execution_count"];
                self.push(&json!({ "type": "number_of_executions", "execution_count": count }));
            }
            "error" if event.data["name"] == SANDBOX_GONE_ERROR => self.is_gone = true,
            "ended" => self.end(),
            _ => self.push(&event.data),
        }
    }

    fn fail(&mut self, why: &str) {
        self.push(&json!({ "type": "error", "name": "ContextLost", "value": why, "traceback": why }));
        self.end();
    }

    fn end(&mut self) {
        self.push(&json!({ "type": "end_of_execution" }));
        self.is_over = true;
    }

    /// A line in ASCII: clients may cut the stream inside a character.
    fn push(&mut self, value: &Value) {
        let mut line = String::new();
        for character in value.to_string().chars() {
            match character {
                ' '..='~' => line.push(character),
                other => {
                    let mut units = [0; 2];
                    for unit in other.encode_utf16(&mut units) {
                        line.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        line.push('\n');
        self.lines.push_back(line.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a native stream: `None` where the response breaks off.
    async fn lines(stream: &str) -> Vec<Option<Value>> {
        let events = Events::with_limit(Body::from(stream.to_owned()), RESULT_EVENT_BYTES_MAX);
        let mut execution = Execution { events, lines: VecDeque::new(), is_over: false, is_gone: false };
        let mut lines = Vec::new();
        while let Some(line) = execution.next().await {
            lines.push(line.ok().map(|line| serde_json::from_slice(&line).unwrap()));
        }
        lines
    }

    #[tokio::test]
    async fn code_in_a_deleted_sandbox_breaks_off_and_in_a_lost_context_ends() {
        let started = "event: started\ndata: {\"execution_count\":1}\n\n";
        let error =
            |name: &str| format!("event: error\ndata: {{\"type\":\"error\",\"name\":\"{name}\"}}\n\n");
        let ended = "event: ended\ndata: {}\n\n";
        let count = Some(json!({ "type": "number_of_executions", "execution_count": 1 }));
        // Clients whose connection breaks ask whether the sandbox is there, and raise their own error.
        let gone = lines(&format!("{started}{}{ended}", error(SANDBOX_GONE_ERROR))).await;
        assert_eq!(gone, [count.clone(), None]);
        let lost = lines(&format!("{started}{}{ended}", error("ContextLost"))).await;
        let end = Some(json!({ "type": "end_of_execution" }));
        assert_eq!(lost, [count, Some(json!({ "type": "error", "name": "ContextLost" })), end]);
    }
}
