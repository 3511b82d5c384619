//! Commands: from the API's request to the guest's process and back.

use pandastack_fault as fault;
use pandastack_guest_proto::message::{Command, ProcessSpec};
use pandastack_types::api::{ExecRequest, ExecResult};
use pandastack_types::limits;

use crate::error::{AgentError, Result};
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
}

impl Exec {
    pub(crate) fn from_request(request: ExecRequest) -> Result<Self> {
        let refuse = |reason: &str| Err(AgentError::BadRequest(reason.to_owned()));
        let mut spec = match (request.cmd, request.argv) {
            (Some(cmd), None) if cmd.trim().is_empty() => {
                return refuse("`cmd` is empty; give a command to run");
            }
            (Some(cmd), None) => ProcessSpec::shell(cmd),
            (None, Some(argv)) if argv.is_empty() => return refuse("`argv` is empty; give a program to run"),
            (None, Some(argv)) => ProcessSpec::argv(argv),
            (None, None) => {
                return refuse("give `cmd` (run by a shell) or `argv` (a program and its arguments)");
            }
            (Some(_), Some(_)) => return refuse("give `cmd` or `argv`, not both"),
        };
        let bytes = match &spec.command {
            Command::Shell(line) => line.len(),
            Command::Argv(argv) => argv.iter().map(|word| word.len() + 1).sum(),
        };
        if bytes > limits::EXEC_COMMAND_BYTES_MAX {
            return Err(AgentError::BadRequest(format!(
                "the command has {bytes} bytes and the limit is {}; upload a script with the files API and run it",
                limits::EXEC_COMMAND_BYTES_MAX
            )));
        }
        let timeout_seconds = request.timeout_seconds.unwrap_or(limits::EXEC_TIMEOUT_SECONDS_DEFAULT);
        if !(1..=limits::EXEC_TIMEOUT_SECONDS_MAX).contains(&timeout_seconds) {
            return Err(AgentError::BadRequest(format!(
                "`timeout_seconds` must be between 1 and {}",
                limits::EXEC_TIMEOUT_SECONDS_MAX
            )));
        }
        spec.timeout_ms = Some(timeout_seconds * 1000);
        spec.cwd = request.cwd;
        spec.user = request.user;
        spec.env = request.env.unwrap_or_default();
        if spec.env.len() > limits::ENV_PAIRS_MAX {
            return Err(AgentError::BadRequest(format!(
                "`env` has more than {} variables",
                limits::ENV_PAIRS_MAX
            )));
        }
        spec.limits = request.limits.map(limits_of).transpose()?.unwrap_or_default();
        spec.stdin = request.stdin.is_some();
        Ok(Self { spec, timeout_seconds, input: request.stdin })
    }

    /// Under a name that listings show.
    pub(crate) fn tagged(mut self, tag: Option<String>) -> Self {
        self.spec.tag = tag.filter(|tag| tag.len() <= limits::PROCESS_TAG_BYTES_MAX);
        self
    }

    /// What to run, without its input.
    pub(crate) fn into_spec(self) -> ProcessSpec {
        self.spec
    }

    /// Runs it and returns everything at its end. Like a stream, it is followed across sleep and waking.
    pub(crate) async fn run(self, handle: SandboxHandle) -> Result<ExecResult> {
        let feed = Feed::exec(handle, self.spec).await?;
        if let Some(input) = self.input {
            feed.send_input(input, true).await?;
        }
        let output = feed.collect(limits::EXEC_OUTPUT_BYTES_MAX).await?;
        fault::point("exec.ran").await;
        if output.exit.timed_out {
            return Err(AgentError::ExecTimeout { seconds: self.timeout_seconds });
        }
        Ok(ExecResult {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            exit_code: output.exit.shell_code(),
            signal: output.exit.signal,
            duration_ms: output.exit.duration_ms,
            duration_us: output.exit.duration_us.unwrap_or(output.exit.duration_ms * 1000),
            truncated: output.truncated,
        })
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
    fn exactly_one_form_of_command() {
        assert!(Exec::from_request(request(Some("true"), None)).is_ok());
        assert!(Exec::from_request(request(None, Some(&["true"]))).is_ok());
        assert!(Exec::from_request(request(Some(" "), None)).is_err());
        assert!(Exec::from_request(request(None, Some(&[]))).is_err());
        assert!(Exec::from_request(request(None, None)).is_err());
        assert!(Exec::from_request(request(Some("a"), Some(&["b"]))).is_err());
        assert!(
            Exec::from_request(request(Some(&"x".repeat(limits::EXEC_COMMAND_BYTES_MAX + 1)), None)).is_err()
        );
    }

    #[test]
    fn timeouts_are_bounded() {
        for (seconds, ok) in [(0, false), (1, true), (limits::EXEC_TIMEOUT_SECONDS_MAX + 1, false)] {
            let request = ExecRequest { timeout_seconds: Some(seconds), ..request(Some("true"), None) };
            assert_eq!(Exec::from_request(request).is_ok(), ok, "{seconds}");
        }
    }
}
