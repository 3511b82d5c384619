//! Commands: from the API's request to the guest's process and back.

use axum::response::Response;
use pandastack_fault as fault;
use pandastack_guest_proto::message::ProcessSpec;
use pandastack_types::api::ExecRequest;
use pandastack_types::{check, limits};

use crate::error::{AgentError, Result};
use crate::exec_output::ExecOutput;
use crate::process::events::{OutputEvents, Style};
use crate::process::feed::Feed;
use crate::process::limits::limits_of;
use crate::sandbox::handle::SandboxHandle;

/// A validated command.
pub(crate) struct Exec {
    spec: ProcessSpec,
    timeout_seconds: u64,
    /// All of its standard input.
    input: Option<String>,
    /// Keep only this many bytes at the end of each stream.
    last_bytes: Option<usize>,
}

impl Exec {
    pub(crate) fn from_request(request: ExecRequest) -> Result<Self> {
        check::exec(&request).map_err(|refused| AgentError::BadRequest(refused.message))?;
        let mut spec = match (request.cmd, request.argv) {
            (Some(cmd), _) => ProcessSpec::shell(cmd),
            (None, argv) => ProcessSpec::argv(argv.unwrap_or_default()),
        };
        let timeout_seconds = request.timeout_seconds.unwrap_or(limits::EXEC_TIMEOUT_SECONDS_DEFAULT);
        spec.timeout_ms = Some(timeout_seconds * 1000);
        spec.cwd = request.cwd;
        spec.user = request.user;
        spec.env = request.env.unwrap_or_default();
        spec.limits = request.limits.map(limits_of).transpose()?.unwrap_or_default();
        spec.stdin = request.stdin.is_some();
        Ok(Self { spec, timeout_seconds, input: request.stdin, last_bytes: None })
    }

    /// Under a name that listings show.
    pub(crate) fn tagged(mut self, tag: Option<String>) -> Self {
        self.spec.tag = tag.filter(|tag| tag.len() <= limits::PROCESS_TAG_BYTES_MAX);
        self
    }

    /// With no more of its output than the last bytes of each stream.
    pub(crate) fn ending(mut self, last_bytes: Option<usize>) -> Self {
        self.last_bytes = last_bytes;
        self
    }

    /// The process to run, without its input.
    pub(crate) fn into_spec(self) -> ProcessSpec {
        self.spec
    }

    /// Runs it and returns everything at its end. Like a stream, it is followed across sleep and waking.
    pub(crate) async fn run(self, handle: SandboxHandle) -> Result<Response> {
        let mut output = ExecOutput::new(handle.output_budget().begin()?, self.last_bytes);
        let mut feed = Feed::exec(handle, self.spec).await?;
        if let Some(input) = self.input {
            feed.send_input(input, true).await?;
        }
        let exit = loop {
            // No event follows the end, which is returned below.
            let Some(event) = feed.next().await? else { return Err(AgentError::Stopping) };
            if let Some(exit) = output.take(event) {
                break exit;
            }
        };
        fault::point("exec.ran").await;
        if exit.timed_out {
            return Err(AgentError::ExecTimeout { seconds: self.timeout_seconds });
        }
        Ok(output.into_response(&exit)?)
    }

    /// Starts it and returns its events as they happen. As text they have the form that published clients know.
    pub(crate) async fn stream(self, handle: SandboxHandle, style: Style) -> Result<OutputEvents> {
        let style = match style {
            Style::Text => Style::Exec { timeout_seconds: self.timeout_seconds },
            other => other,
        };
        let feed = Feed::exec(handle, self.spec).await?;
        if let Some(input) = self.input {
            feed.send_input(input, true).await?;
        }
        Ok(OutputEvents::new(feed, (0, 0), style))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cmd: Option<&str>, argv: Option<&[&str]>) -> ExecRequest {
        ExecRequest {
            cmd: cmd.map(str::to_owned),
            argv: argv.map(|words| words.iter().map(|word| (*word).to_owned()).collect()),
            ..ExecRequest::default()
        }
    }

    #[test]
    fn invalid_exec_requests_are_refused() {
        assert!(Exec::from_request(request(Some("true"), None)).is_ok());
        assert!(Exec::from_request(request(None, Some(&["true"]))).is_ok());
        assert!(Exec::from_request(request(Some("a"), Some(&["b"]))).is_err());
        assert!(Exec::from_request(request(Some("a\0b"), None)).is_err());
    }
}
