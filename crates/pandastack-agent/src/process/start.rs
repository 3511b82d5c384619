//! Starting a process as the API asks for it.

use pandastack_guest_proto::message::{
    Command, ProcessId, ProcessLimits, ProcessSpec, Started, StdinWrite, TerminalSize,
};
use pandastack_types::api::{self, Process, StartProcess};
use pandastack_types::limits;

use super::{Feed, OutputEvents, Style, named, view};
use crate::error::{AgentError, Result};
use crate::exec::Exec;
use crate::sandbox::{Lease, SandboxHandle};

/// What a terminal runs when nothing is named: the user's own shell, as after a login.
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
        if let Some(tag) = request.tag.as_ref().filter(|tag| tag.len() > limits::PROCESS_TAG_BYTES_MAX) {
            return Err(AgentError::BadRequest(format!(
                "`tag` has {} bytes and at most {} are kept",
                tag.len(),
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
            // It runs on pipes, which nobody asked for. If it cannot be killed it has ended.
            let _ = lease.guest.signal(started.process, libc::SIGKILL).await;
            return Err(AgentError::Conflict(
                "this sandbox was made before its platform knew terminals; make a new one".to_owned(),
            ));
        }
        if let Some(input) = self.input {
            // The end of a terminal's input is a character that the person at it may type, not ours.
            let close = !self.stdin_open && !is_terminal;
            tokio::spawn(feed_input(
                lease,
                StdinWrite { process: started.process, offset: Some(0), close },
                input,
            ));
        }
        Ok(view::started(started, tag, command, pty))
    }
}

impl Start {
    /// Starts it and follows it from its first byte, so that nothing of its output can be lost. Also answers the
    /// kernel's process id.
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

async fn start(handle: &SandboxHandle, spec: ProcessSpec) -> Result<(Started, Lease)> {
    let mut lease = handle.lease_to_start().await?;
    match lease.guest.start(spec).await {
        Ok(started) => {
            lease.started();
            Ok((started, lease))
        }
        Err(error) => Err(handle.explain(error.into()).await),
    }
}

/// Writes a first input as fast as the process reads it. Ends with the process or the connection; whoever follows the
/// process learns of both.
pub(super) async fn feed_input(lease: Lease, write: StdinWrite, input: String) {
    let process = write.process;
    let written = async {
        let mut writer = lease.guest.open_stdin(write).await?;
        writer.write(input.as_bytes()).await?;
        writer.finish().await
    };
    if let Err(error) = written.await {
        tracing::debug!(error = %named(error, process), "a first input was not taken whole");
    }
}

/// Checks a terminal's size.
pub(crate) fn terminal_size(size: api::TerminalSize) -> Result<TerminalSize> {
    let sides = 1..=limits::TERMINAL_SIDE_MAX;
    if !sides.contains(&size.rows) || !sides.contains(&size.cols) {
        return Err(AgentError::BadRequest(format!(
            "a terminal has 1 to {} rows and columns",
            limits::TERMINAL_SIDE_MAX
        )));
    }
    Ok(TerminalSize { rows: size.rows, cols: size.cols })
}

/// Checks limits and puts them in the guest's units.
pub(crate) fn limits_of(wanted: api::ProcessLimits) -> Result<ProcessLimits> {
    let refuse = |what: String| Err(AgentError::BadRequest(what));
    let memory = limits::PROCESS_MEMORY_MB_MIN..=limits::PROCESS_MEMORY_MB_MAX;
    if wanted.memory_mb.is_some_and(|mb| !memory.contains(&mb)) {
        return refuse(format!("`limits.memory_mb` is {} to {}", memory.start(), memory.end()));
    }
    if wanted.pids == Some(0) {
        return refuse("`limits.pids` is at least 1".to_owned());
    }
    let cpu = limits::PROCESS_CPU_RANGE;
    if wanted.cpu.is_some_and(|processors| !cpu.contains(&processors)) {
        return refuse(format!("`limits.cpu` is {} to {}", cpu.start(), cpu.end()));
    }
    Ok(ProcessLimits {
        memory_bytes_max: wanted.memory_mb.map(|mb| mb * 1024 * 1024),
        pids_max: wanted.pids,
        cpu_milli_max: wanted.cpu.map(|processors| (processors * 1000.0).round() as u32),
    })
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
    fn a_process_runs_until_it_ends_unless_told() {
        assert_eq!(request(r#"{"cmd":"x"}"#).unwrap().spec.timeout_ms, None);
        assert_eq!(request(r#"{"cmd":"x","timeout_seconds":2}"#).unwrap().spec.timeout_ms, Some(2000));
    }

    #[test]
    fn a_terminal_needs_no_command_and_has_a_size() {
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
    fn input_opens_standard_input() {
        assert!(!request(r#"{"cmd":"x"}"#).unwrap().spec.stdin);
        assert!(request(r#"{"cmd":"x","stdin":""}"#).unwrap().spec.stdin);
        assert!(request(r#"{"cmd":"x","stdin_open":true}"#).unwrap().spec.stdin);
    }

    #[test]
    fn a_tag_is_bounded() {
        let tagged = |bytes: usize| request(&format!(r#"{{"cmd":"x","tag":"{}"}}"#, "t".repeat(bytes)));
        assert!(tagged(limits::PROCESS_TAG_BYTES_MAX).is_ok());
        assert!(tagged(limits::PROCESS_TAG_BYTES_MAX + 1).is_err());
    }
}
