//! One run of code: sent to the kernel, read line by line, and collected for callers that want the
//! whole result.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::output::EVENT_BYTES_MAX;
use pandastack_sandboxes::user_sandbox::UserSandbox;
use pandastack_types::api::{Execution, RunCode, SANDBOX_GONE_ERROR};
use pandastack_types::limits::{CONTEXT_LINE_BYTES_MAX, EXEC_OUTPUT_BYTES_MAX};
use pandastack_types::{Error, ErrorCode, Result, sse};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::context::Context;

/// Representations of a result: the kernel's name, and the media type in answers.
const REPRESENTATIONS: [(&str, &str); 11] = [
    ("text", "text/plain"),
    ("html", "text/html"),
    ("markdown", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("latex", "text/latex"),
    ("json", "application/json"),
    ("javascript", "application/javascript"),
    ("chart", "application/vnd.e2b.chart+json"),
];

/// Longest time for a context to accept code; its sandbox may have to be woken.
const SEND_WAIT: Duration = Duration::from_secs(60);

/// A run in progress. Dropped before its end, it is interrupted.
pub(super) struct Run {
    sandbox: UserSandbox,
    /// Runs the interrupt if the execution is dropped.
    background: Background,
    process: u64,
    id: String,
    body: Incoming,
    heard: RunEvents,
    deadline: Option<(Instant, Duration)>,
    /// Whether the time limit passed.
    pub(super) timed_out: bool,
    /// The error, if the sandbox was deleted during the run.
    pub(super) gone: Option<String>,
}

/// Events of a run, read out of the kernel's output.
struct RunEvents {
    reader: sse::Reader,
    line: String,
    told: VecDeque<Value>,
    /// The kernel is done with it, or gone.
    is_done: bool,
    /// All events have been read.
    is_over: bool,
}

impl Default for RunEvents {
    fn default() -> Self {
        let (reader, told) = (sse::Reader::new(EVENT_BYTES_MAX), VecDeque::new());
        Self { reader, line: String::new(), told, is_done: false, is_over: false }
    }
}

impl Run {
    /// Starts listening before it sends the request, so that no output is missed.
    pub(super) async fn begin(
        (sandbox, background): (UserSandbox, Background),
        context: Context,
        wanted: &RunCode,
    ) -> Result<Self> {
        let body = sandbox.output(context.process, context.heard).await?;
        let id = uuid::Uuid::new_v4().to_string();
        let request = json!({ "run": id, "code": wanted.code, "env": wanted.env });
        send_request(&sandbox, context.process, &request).await?;
        let limit = wanted.timeout_ms.map(Duration::from_millis);
        let deadline = limit.map(|limit| (Instant::now() + limit, limit));
        let heard = RunEvents::default();
        Ok(Self {
            sandbox,
            background,
            process: context.process,
            id,
            body,
            heard,
            deadline,
            timed_out: false,
            gone: None,
        })
    }

    /// The next event: `started`, `stdout`, `stderr`, `result`, `error`, finally `ended`. Cancel
    /// safe.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(mut event) = self.heard.told.pop_front() {
                if event["name"] == LOST && self.is_gone().await {
                    let why = format!("sandbox `{}` was deleted while the code ran", self.sandbox.id());
                    event = failure(SANDBOX_GONE_ERROR, &why);
                    self.gone = Some(why);
                }
                return Some(event);
            }
            if self.heard.is_over {
                return None;
            }
            let frame = match self.deadline {
                None => self.body.frame().await,
                Some((at, limit)) => match tokio::time::timeout_at(at, self.body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => {
                        self.timed_out = true;
                        let why = format!(
                            "the code exceeded its timeout of {} ms and was interrupted",
                            limit.as_millis()
                        );
                        self.heard.fail("TimeoutError", &why);
                        continue;
                    }
                },
            };
            match frame {
                Some(Ok(frame)) => {
                    self.heard.take(&frame.into_data().unwrap_or_default(), &self.id);
                }
                _ => self.heard.fail(LOST, "the connection to the context was lost; its state is kept"),
            }
        }
    }

    /// Whether the sandbox was deleted, or is being deleted: losing a context that way is not a
    /// failure.
    async fn is_gone(&self) -> bool {
        let found = self.sandbox.machine().await;
        found.is_err_and(|error| matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict))
    }

    /// Waits for its end.
    pub(super) async fn finish(&mut self) -> Execution {
        let began = Instant::now();
        let mut answer = ExecutionBuilder::default();
        while let Some(event) = self.next().await {
            answer.add(&event);
        }
        let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Execution { duration_ms, ..answer.execution }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.heard.is_done {
            return;
        }
        let (sandbox, process, request) = (self.sandbox.clone(), self.process, json!({ "cancel": self.id }));
        self.background.tasks.spawn(async move {
            if let Err(error) = send_request(&sandbox, process, &request).await {
                tracing::debug!(%error, "cannot interrupt a run; its context may be gone");
            }
        });
    }
}

/// Name of the error of a run whose context is gone or unreachable.
const LOST: &str = "ContextLost";

fn failure(name: &str, why: &str) -> Value {
    json!({ "type": "error", "name": name, "value": why, "traceback": format!("{name}: {why}") })
}

impl RunEvents {
    fn take(&mut self, bytes: &[u8], run: &str) {
        self.reader.push(bytes);
        let is_too_large = loop {
            match self.reader.next_event() {
                Ok(Some(event)) => self.take_event(&event, run),
                Ok(None) => break false,
                Err(sse::EventTooLarge { .. }) => break true,
            }
        };
        if is_too_large || self.line.len() > CONTEXT_LINE_BYTES_MAX {
            self.fail(LOST, "a result is too large to return; write it to a file");
        }
    }

    fn take_event(&mut self, event: &sse::Event, run: &str) {
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "stdout" => self.take_text(data["chunk"].as_str().unwrap_or_default(), run),
            "exit" => {
                self.is_done = true;
                let code = &data["exit_code"];
                let why = format!(
                    "the context's process exited with {code} and its state is lost; create another context"
                );
                self.fail(LOST, &why);
            }
            "gap" => self.fail(LOST, "output of the context was lost because it was not read in time"),
            "error" => {
                self.fail(LOST, data["error"].as_str().unwrap_or("the context's output is unavailable"))
            }
            _ => {}
        }
    }

    fn take_text(&mut self, text: &str, run: &str) {
        for piece in text.split_inclusive('\n') {
            self.line.push_str(piece);
            if piece.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, run);
            }
        }
    }

    /// Lines of other runs, which wait for their turn or were ended by ours, are theirs.
    fn take_line(&mut self, line: &str, run: &str) {
        let Ok(Value::Object(mut event)) = serde_json::from_str(line) else { return };
        if self.is_over || event.remove("id").as_ref().and_then(Value::as_str) != Some(run) {
            return;
        }
        let ended = event.get("type").and_then(Value::as_str) == Some("ended");
        self.is_done |= ended;
        self.is_over |= ended;
        self.told.push_back(Value::Object(event));
    }

    fn fail(&mut self, name: &str, why: &str) {
        if self.is_over {
            return;
        }
        self.told.push_back(failure(name, why));
        self.told.push_back(json!({ "type": "ended" }));
        self.is_over = true;
    }
}

/// Collects the events of a run into one response.
#[derive(Default)]
struct ExecutionBuilder {
    execution: Execution,
    results_bytes: usize,
}

impl ExecutionBuilder {
    fn add(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let execution = &mut self.execution;
        match text("type") {
            "started" => execution.execution_count = event["execution_count"].as_u64().unwrap_or_default(),
            "stdout" => execution.truncated |= !append(&mut execution.stdout, text("text")),
            "stderr" => execution.truncated |= !append(&mut execution.stderr, text("text")),
            "error" => {
                execution.error = Some(text("traceback").to_owned());
                execution.exit = 1;
            }
            "result" => self.add_result(event),
            _ => {}
        }
    }

    fn add_result(&mut self, event: &Value) {
        let shown = REPRESENTATIONS.iter().filter_map(|(name, media_type)| {
            let text = match event.get(name)? {
                Value::Null => return None,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some(((*media_type).to_owned(), text))
        });
        let result: BTreeMap<String, String> = shown.collect();
        self.results_bytes += result.values().map(String::len).sum::<usize>();
        match self.results_bytes <= CONTEXT_LINE_BYTES_MAX {
            true => self.execution.results.push(result),
            false => self.execution.truncated = true,
        }
    }
}

/// Appends up to the limit; `false` when something was left out.
fn append(to: &mut String, text: &str) -> bool {
    let room = EXEC_OUTPUT_BYTES_MAX.saturating_sub(to.len());
    let end = if text.len() <= room { text.len() } else { text.floor_char_boundary(room) };
    to.push_str(&text[..end]);
    end == text.len()
}

async fn send_request(sandbox: &UserSandbox, process: u64, request: &Value) -> Result<()> {
    let mut line = serde_json::to_vec(request).map_err(Error::internal)?;
    line.push(b'\n');
    let late = |_| {
        let what = format!(
            "the context did not accept the code within {} s; restart the context",
            SEND_WAIT.as_secs()
        );
        Error::new(ErrorCode::GuestUnavailable, what)
    };
    tokio::time::timeout(SEND_WAIT, sandbox.write_stdin(process, line)).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdout(text: &str) -> String {
        format!("event: stdout\ndata: {}\n\n", json!({ "chunk": text }))
    }

    fn events_of(frames: &[String]) -> RunEvents {
        let mut heard = RunEvents::default();
        frames.iter().for_each(|frame| heard.take(frame.as_bytes(), "mine"));
        heard
    }

    #[test]
    fn an_execution_receives_its_own_lines_at_any_split() {
        let lines = "{\"id\":\"other\",\"type\":\"ended\"}\n{\"id\":\"mine\",\"type\":\"stdout\",\"text\":\"a\"}\n\
                     {\"id\":\"mine\",\"type\":\"ended\"}\n";
        for cut in 0..lines.len() {
            let heard = events_of(&[stdout(&lines[..cut]), stdout(&lines[cut..])]);
            assert_eq!(
                heard.told,
                [json!({ "type": "stdout", "text": "a" }), json!({ "type": "ended" })],
                "{cut}"
            );
            assert!(heard.is_done && heard.is_over);
        }
    }

    #[test]
    fn a_lost_context_reports_an_error_and_ends() {
        let exit = "event: exit\ndata: {\"exit_code\":127}\n\n".to_owned();
        let lost = events_of(&[exit]);
        assert!(lost.is_done && lost.told[0]["value"].as_str().unwrap().contains("127"), "{:?}", lost.told);
        assert_eq!(lost.told[1], json!({ "type": "ended" }));
        let gap = events_of(&["event: gap\ndata: {}\n\n".to_owned()]);
        assert!(!gap.is_done && gap.is_over);
    }

    #[test]
    fn an_endless_output_line_ends_the_execution() {
        let chunk = stdout(&"x".repeat(1 << 20));
        let mut heard = RunEvents::default();
        for _ in 0..CONTEXT_LINE_BYTES_MAX >> 20 {
            heard.take(chunk.as_bytes(), "mine");
        }
        assert!(!heard.is_over);
        heard.take(stdout("x").as_bytes(), "mine");
        assert!(heard.is_over && !heard.is_done);
    }

    #[test]
    fn an_execution_holds_output_results_and_errors() {
        let mut answer = ExecutionBuilder::default();
        for event in [
            json!({ "type": "started", "execution_count": 3 }),
            json!({ "type": "stdout", "text": "a" }),
            json!({ "type": "result", "is_main_result": true, "text": "1", "json": { "a": 1 }, "png": null }),
            json!({ "type": "error", "name": "E", "value": "v", "traceback": "T" }),
            json!({ "type": "ended" }),
        ] {
            answer.add(&event);
        }
        let Execution { stdout, error, exit, execution_count, results, truncated, .. } = answer.execution;
        assert_eq!((stdout.as_str(), error.as_deref(), exit, execution_count), ("a", Some("T"), 1, 3));
        let result = [("text/plain", "1"), ("application/json", "{\"a\":1}")];
        assert_eq!(results, [result.map(|(kind, text)| (kind.to_owned(), text.to_owned())).into()]);
        assert!(!truncated);
    }

    #[test]
    fn output_is_truncated_at_its_limit() {
        let mut text = "x".repeat(EXEC_OUTPUT_BYTES_MAX - 1);
        assert!(!append(&mut text, "ä"));
        assert_eq!(text.len(), EXEC_OUTPUT_BYTES_MAX - 1);
        assert!(append(&mut text, "y") && !append(&mut text, "z"));
    }
}
