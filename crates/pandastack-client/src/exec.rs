//! Running commands, reading logs.

use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, ExecResult, Execution, RunCode};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use reqwest::Method;
use serde::Deserialize;

use crate::client::{Client, Events, READ_SECONDS, WRITE_SECONDS};
use crate::error::{ClientError, Result};

/// Lines of a followed log.
pub struct LogStream(Events);

#[derive(Default, Deserialize)]
struct Payload {
    chunk: Option<String>,
    line: Option<String>,
    error: Option<String>,
    code: Option<String>,
}

impl Client {
    /// Runs a command and returns its output.
    pub async fn exec(&self, id: &SandboxId, request: &ExecRequest) -> Result<ExecResult> {
        let seconds = request.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT);
        // The server enforces the command's timeout; waking the sandbox takes extra time.
        let call = self.call(Method::POST, &["sandboxes", id.as_str(), "exec"], seconds + WRITE_SECONDS);
        call.json(request).receive().await
    }

    /// Runs code in a code context.
    pub async fn run_code(&self, id: &SandboxId, context: &str, code: &RunCode) -> Result<Execution> {
        let seconds = code.timeout_ms.map_or(EXEC_TIMEOUT_SECONDS_DEFAULT, |ms| ms.div_ceil(1000));
        let path = ["sandboxes", id.as_str(), "repl", "sessions", context, "run"];
        self.call(Method::POST, &path, seconds + WRITE_SECONDS).json(code).receive().await
    }

    /// The console log so far.
    pub async fn logs(&self, id: &SandboxId) -> Result<String> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "logs"], READ_SECONDS);
        call.query(&[("stream", "both")]).receive_text().await
    }

    /// The console log, followed by new lines.
    pub async fn follow_logs(&self, id: &SandboxId) -> Result<LogStream> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "logs"]);
        call.query(&[("stream", "both"), ("follow", "1")]).events().await.map(LogStream)
    }
}

impl LogStream {
    /// The next line; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        while let Some(event) = self.0.next().await? {
            let payload: Payload = serde_json::from_str(&event.data).unwrap_or_default();
            if payload.error.is_some() {
                return Err(stream_error(payload.error, payload.code));
            }
            if let Some(line) = payload.line.or(payload.chunk) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

/// The error that a stream reported.
pub(crate) fn stream_error(error: Option<String>, code: Option<String>) -> ClientError {
    let message = error.unwrap_or_else(|| "the server reported an error without a message".to_owned());
    // Callers only distinguish exec timeouts, whose message contains "timeout" (wire contract).
    let timeout = message.contains("timeout");
    let code = code.or_else(|| timeout.then(|| "exec_timeout".to_owned())).unwrap_or_default();
    let status = if timeout { 504 } else { 500 };
    ClientError::Refused { status, code, message, request_id: None, build_id: None, retry_after: None }
}
