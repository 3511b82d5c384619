//! Starts a process from an API request.

use pandastack_guest_proto::message::{Command, ProcessId, ProcessSpec, Started, StdinWrite};
use pandastack_types::api::{self, Process, StartProcess};
use pandastack_types::limits;

use super::events::{OutputEvents, Style};
use super::feed::Feed;
use super::input::write_first;
use super::limits::terminal_size;
use super::view;
use crate::error::{AgentError, Result};
use crate::exec::Exec;
use crate::sandbox::handle::{GuestLease, SandboxHandle};

/// Default command of a terminal: the user's own shell, as after a login.
const LOGIN_SHELL: &str = "exec \"${SHELL:-/bin/sh}\" -l";
/// Characters of the command shown.
const COMMAND_SHOWN_MAX: usize = 200;

/// A process to start, checked.
pub(crate) struct Start {
    spec: ProcessSpec,
    input: Option<String>,
    stdin_open: bool,
    pty: Option<api::TerminalSize>,
}

impl Start {
    pub(crate) fn from_request(mut request: StartProcess) -> Result<Self> {
        if request.pty.is_some() && request.exec.cmd.is_none() && request.exec.argv.is_none() {
            request.exec.cmd = Some(LOGIN_SHELL.to_owned());
        }
        let (is_timed, input) = (request.exec.timeout_seconds.is_some(), request.exec.stdin.take());
        let mut spec = Exec::from_request(request.exec)?.into_spec();
        if !is_timed {
            spec.timeout_ms = None;
        }
        if request.tag.as_ref().is_some_and(|tag| tag.len() > limits::PROCESS_TAG_BYTES_MAX) {
            return Err(AgentError::BadRequest(format!(
                "`tag` must be at most {} bytes",
                limits::PROCESS_TAG_BYTES_MAX
            )));
        }
        spec.tag = request.tag;
        spec.stdin = request.stdin_open || input.is_some();
        spec.terminal = request.pty.map(terminal_size).transpose()?;
        Ok(Self { spec, input, stdin_open: request.stdin_open, pty: request.pty })
    }

    /// Starts it and leaves it to itself.
    pub(crate) async fn run(self, handle: &SandboxHandle) -> Result<Process> {
        let command = shown(&self.spec.command);
        let (tag, pty, is_terminal) = (self.spec.tag.clone(), self.pty, self.spec.terminal.is_some());
        let (started, lease) = start(handle, self.spec).await?;
        if is_terminal && !started.terminal {
            // The process runs on pipes, which the caller did not request. If it cannot be killed,
            // it has ended.
            let _ = lease.guest.signal(started.process, rustix::process::Signal::KILL.as_raw()).await;
            return Err(AgentError::Conflict(
                "this sandbox was created by a version without terminals; create a new one".to_owned(),
            ));
        }
        if let Some(input) = self.input {
            // The end of a terminal's input is a character that the person at it may type, not ours.
            let close = !self.stdin_open && !is_terminal;
            tokio::spawn(write_first(
                lease,
                StdinWrite { process: started.process, offset: Some(0), close },
                input,
            ));
        }
        Ok(view::started(started, tag, command, pty))
    }
}

impl Start {
    /// Starts it and follows it from its first byte, so that nothing of its output can be lost.
    /// Also answers the kernel's process id.
    pub(crate) async fn follow(
        self,
        handle: SandboxHandle,
        style: Style,
    ) -> Result<(Option<i32>, OutputEvents)> {
        let offsets = (0, 0);
        if self.pty.is_some() {
            let Process { id, pid, .. } = self.run(&handle).await?;
            let feed = Feed::attach(handle, ProcessId(id), offsets).await?;
            return Ok((Some(pid), OutputEvents::new(feed, offsets, style)));
        }
        let feed = Feed::exec(handle, self.spec).await?;
        if let Some(input) = self.input {
            feed.send_input(input, !self.stdin_open).await?;
        }
        Ok((feed.pid(), OutputEvents::new(feed, offsets, style)))
    }
}

async fn start(handle: &SandboxHandle, spec: ProcessSpec) -> Result<(Started, GuestLease)> {
    let mut lease = handle.lease_to_start().await?;
    match lease.guest.start(spec).await {
        Ok(started) => {
            lease.started();
            Ok((started, lease))
        }
        Err(error) => Err(handle.explain(error.into()).await),
    }
}

fn shown(command: &Command) -> String {
    let whole = match command {
        Command::Shell(line) => line.clone(),
        Command::Argv(argv) => argv.join(" "),
    };
    whole.chars().take(COMMAND_SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Result<Start> {
        Start::from_request(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_process_has_no_timeout_by_default() {
        assert_eq!(request(r#"{"cmd":"x"}"#).unwrap().spec.timeout_ms, None);
        assert_eq!(request(r#"{"cmd":"x","timeout_seconds":2}"#).unwrap().spec.timeout_ms, Some(2000));
    }

    #[test]
    fn a_terminal_requires_a_valid_size_but_no_command() {
        assert!(request("{}").is_err());
        let shell = request(r#"{"pty":{"rows":24,"cols":80}}"#).unwrap();
        assert_eq!(shell.spec.command, Command::Shell(LOGIN_SHELL.to_owned()));
        assert!(request(r#"{"pty":{"rows":0,"cols":80}}"#).is_err());
        assert!(request(r#"{"pty":{"rows":24,"cols":4097}}"#).is_err());
    }

    #[test]
    fn limits_are_checked_and_converted() {
        let limits =
            request(r#"{"cmd":"x","limits":{"memory_mb":64,"pids":5,"cpu":0.25}}"#).unwrap().spec.limits;
        assert_eq!(limits.memory_bytes_max, Some(64 << 20));
        assert_eq!((limits.pids_max, limits.cpu_milli_max), (Some(5), Some(250)));
        for bad in [r#"{"memory_mb":0}"#, r#"{"pids":0}"#, r#"{"cpu":0}"#, r#"{"cpu":1e9}"#, r#"{"cpu":-1}"#]
        {
            assert!(request(&format!(r#"{{"cmd":"x","limits":{bad}}}"#)).is_err(), "{bad}");
        }
    }

    #[test]
    fn stdin_fields_open_standard_input() {
        assert!(!request(r#"{"cmd":"x"}"#).unwrap().spec.stdin);
        assert!(request(r#"{"cmd":"x","stdin":""}"#).unwrap().spec.stdin);
        assert!(request(r#"{"cmd":"x","stdin_open":true}"#).unwrap().spec.stdin);
    }

    #[test]
    fn process_tag_length_is_limited() {
        let tagged = |bytes: usize| request(&format!(r#"{{"cmd":"x","tag":"{}"}}"#, "t".repeat(bytes)));
        assert!(tagged(limits::PROCESS_TAG_BYTES_MAX).is_ok());
        assert!(tagged(limits::PROCESS_TAG_BYTES_MAX + 1).is_err());
    }
}
