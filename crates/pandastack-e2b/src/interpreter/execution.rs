//! `/execute`: code in, lines of JSON out.
//!
//! The answer's head is sent before the code runs, and a `keepalive` line in long silences, because clients give up on
//! silence. A client that goes away cancels its execution.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Extension;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::{self, Context};
use super::{Turns, read_json};
use crate::envd::Session;
use crate::error::{RestError, RestResult};
use crate::limits::{CODE_BYTES_MAX, INTERPRETER_KEEPALIVE_SECONDS, KERNEL_LINE_BYTES_MAX};
use crate::sse::{Event, Events};

#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// Runs code in a context.
pub(super) async fn execute(
    session: Session,
    Extension(turns): Extension<Arc<Turns>>,
    body: Body,
) -> RestResult<Response> {
    let wanted: Execute = read_json(body).await?;
    if wanted.context_id.is_some() && wanted.language.is_some() {
        return Err(RestError::bad_request(
            "give `context_id` or `language`, not both: a context has its language",
        ));
    }
    context::check_language(wanted.language.as_deref())?;
    if wanted.code.len() > CODE_BYTES_MAX {
        let what = format!("code has at most {CODE_BYTES_MAX} bytes; write a file and run that");
        return Err(RestError::new(StatusCode::PAYLOAD_TOO_LARGE, what));
    }
    let turn = turns.of(format!("{} {}", session.sandbox, wanted.context_id.as_deref().unwrap_or("default")));
    let mine = turn.lock().await;
    let context = context::find(&session, wanted.context_id.as_deref()).await?;
    let execution = Execution::begin(session, context, &wanted).await?;
    drop(mine);
    let lines = futures::stream::unfold(execution, |mut execution| async move {
        Some((Ok::<_, std::convert::Infallible>(execution.next().await?), execution))
    });
    let mut response = Body::from_stream(lines).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// One execution under way.
struct Execution {
    session: Session,
    process: u64,
    id: String,
    events: Events,
    buffer: BytesMut,
    lines: VecDeque<Bytes>,
    is_over: bool,
}

impl Execution {
    /// Listens, then asks: nothing of the answer can be missed.
    async fn begin(session: Session, context: Context, wanted: &Execute) -> RestResult<Self> {
        let (out, err) = context.heard;
        let tail = format!(
            "processes/{}/output?encoding=base64&stdout_offset={out}&stderr_offset={err}",
            context.process
        );
        let events = Events::new(session.native.open(&session.path(&tail)).await?.into_body());
        let id = uuid::Uuid::new_v4().to_string();
        let request = json!({ "run": id, "code": wanted.code, "env": wanted.env_vars });
        tell(&session, context.process, &request).await?;
        let (buffer, lines) = (BytesMut::new(), VecDeque::new());
        Ok(Self { session, process: context.process, id, events, buffer, lines, is_over: false })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            let silence = Duration::from_secs(INTERPRETER_KEEPALIVE_SECONDS);
            match tokio::time::timeout(silence, self.events.next()).await {
                Err(_) => self.push(&json!({ "type": "keepalive" })),
                Ok(Ok(Some(event))) => self.take(&event),
                Ok(Ok(None)) => self.fail("the connection to the context was lost; its state is kept"),
                Ok(Err(broken)) => self.fail(&broken.to_string()),
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event.name.as_str() {
            "stdout" => {
                let data = event.data["data"].as_str().and_then(|data| STANDARD.decode(data).ok());
                self.buffer.extend_from_slice(&data.unwrap_or_default());
                self.take_lines();
            }
            "exit" => self.fail(
                "the context's process ended and its state is lost; the next execution begins a new one",
            ),
            "gap" => self.fail("output of the context was lost, because nobody read it in time"),
            "error" => self.fail(event.data["error"].as_str().unwrap_or("the context cannot be followed")),
            _ => {}
        }
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line = self.buffer.split_to(end + 1);
            // Lines of others that wait for their turn, or are ended by ours, are theirs.
            if let Ok(told) = serde_json::from_slice::<Value>(&line)
                && told["id"] == self.id.as_str()
            {
                self.translate(told);
            }
        }
        if self.buffer.len() > KERNEL_LINE_BYTES_MAX {
            self.fail("a result is too large to be shown; write it to a file");
        }
    }

    fn translate(&mut self, mut told: Value) {
        if let Some(fields) = told.as_object_mut() {
            fields.remove("id");
        }
        match told["type"].as_str() {
            Some("started") => {
                let count = &told["execution_count"];
                self.push(&json!({ "type": "number_of_executions", "execution_count": count }));
            }
            Some("ended") => self.end(),
            _ => self.push(&told),
        }
    }

    fn fail(&mut self, why: &str) {
        if self.is_over {
            return;
        }
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

impl Drop for Execution {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (session, process, request) = (self.session.clone(), self.process, json!({ "cancel": self.id }));
        tokio::spawn(async move {
            if let Err(error) = tell(&session, process, &request).await {
                tracing::debug!(
                    message = error.message,
                    "an execution was not cancelled; its context may be gone"
                );
            }
        });
    }
}

/// Sends the kernel a line.
async fn tell(session: &Session, process: u64, request: &Value) -> RestResult<()> {
    let uri = format!("/v1{}", session.path(&format!("processes/{process}/stdin")));
    let request =
        http::Request::builder().method(Method::POST).uri(uri).body(Body::from(format!("{request}\n")));
    let request = request.map_err(|error| RestError::bad_request(error.to_string()))?;
    session.native.send(request).await?;
    Ok(())
}
