//! Commands: from the API's request to the guest's process and back.

use axum::response::sse::Event;
use pandastack_guest_proto::client::{CollectedOutput, GuestClient, ProcessEvent, ProcessStream};
use pandastack_guest_proto::message::{Command, ExitStatus, OutputStream, ProcessSpec};
use pandastack_types::api::{ExecRequest, ExecResult};
use pandastack_types::limits;

use crate::error::{AgentError, Result};
use crate::sandbox::Lease;

/// What to run, checked.
pub(crate) struct Exec {
    spec: ProcessSpec,
    timeout_seconds: u64,
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
                "the command has {bytes} bytes and at most {} are possible; write a script with the files API and run that",
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
        Ok(Self { spec, timeout_seconds })
    }

    /// Runs it and returns everything at its end.
    pub(crate) async fn run(self, lease: &Lease) -> Result<ExecResult> {
        let output = run_to_end(&lease.guest, self.spec).await?;
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

    /// Starts it and returns its events as they happen.
    pub(crate) async fn stream(self, lease: Lease) -> Result<ExecEvents> {
        let process = lease.guest.exec(self.spec).await?;
        Ok(ExecEvents {
            process,
            timeout_seconds: self.timeout_seconds,
            tails: [Vec::new(), Vec::new()],
            pending: None,
            ended: false,
            _lease: lease,
        })
    }
}

/// Runs a process in the guest and keeps its output, up to the API's limit.
pub(crate) async fn run_to_end(guest: &GuestClient, spec: ProcessSpec) -> Result<CollectedOutput> {
    Ok(guest.exec(spec).await?.collect(limits::EXEC_OUTPUT_BYTES_MAX).await?)
}

/// Server-sent events of one command: `stdout`, `stderr`, then `exit` or `error`.
pub(crate) struct ExecEvents {
    process: ProcessStream,
    timeout_seconds: u64,
    /// Bytes of a character that is not complete yet, per stream.
    tails: [Vec<u8>; 2],
    /// The end, held back until the tails are out.
    pending: Option<Event>,
    ended: bool,
    /// Keeps the sandbox awake.
    _lease: Lease,
}

impl ExecEvents {
    /// The next event; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.flush() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.process.next().await {
                Ok(Some(ProcessEvent::Output { stream, bytes, .. })) => {
                    let tail = &mut self.tails[index(stream)];
                    tail.extend_from_slice(&bytes);
                    let text = take_whole_characters(tail);
                    if !text.is_empty() {
                        return Some(output(stream, &text));
                    }
                }
                Ok(Some(ProcessEvent::Gap { stream, from, to })) => {
                    let note = format!("\n[{} bytes of output were dropped]\n", to - from);
                    return Some(output(stream, &note));
                }
                Ok(Some(ProcessEvent::Exit(exit))) => self.pending = Some(self.end(&exit)),
                Ok(None) => self.ended = true,
                Err(error) => self.pending = Some(failure(&error.to_string())),
            }
        }
    }

    /// What is left once the end is known: incomplete characters, replaced, then the end itself.
    fn flush(&mut self) -> Option<Event> {
        self.pending.as_ref()?;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let tail = std::mem::take(&mut self.tails[index(stream)]);
            if !tail.is_empty() {
                return Some(output(stream, &String::from_utf8_lossy(&tail)));
            }
        }
        self.ended = true;
        self.pending.take()
    }

    fn end(&self, exit: &ExitStatus) -> Event {
        if exit.timed_out {
            return failure(&AgentError::ExecTimeout { seconds: self.timeout_seconds }.to_string());
        }
        let data = serde_json::json!({
            "exit_code": exit.shell_code(), "signal": exit.signal, "duration_ms": exit.duration_ms,
        });
        Event::default().event("exit").data(ascii_json(&data))
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

fn output(stream: OutputStream, text: &str) -> Event {
    let name = ["stdout", "stderr"][index(stream)];
    Event::default().event(name).data(ascii_json(&serde_json::json!({ "chunk": text })))
}

fn failure(sentence: &str) -> Event {
    Event::default().event("error").data(ascii_json(&serde_json::json!({ "error": sentence })))
}

/// Takes the complete characters out of `bytes`; invalid ones are replaced, an incomplete last one stays.
fn take_whole_characters(bytes: &mut Vec<u8>) -> String {
    let incomplete = match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(_) => incomplete_suffix(bytes),
    };
    let rest = bytes.split_off(bytes.len() - incomplete);
    let whole = std::mem::replace(bytes, rest);
    String::from_utf8_lossy(&whole).into_owned()
}

/// Length of a character at the end that may still be completed.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let suffix = &bytes[bytes.len() - length..];
        if let Err(error) = std::str::from_utf8(suffix)
            && error.valid_up_to() == 0
            && error.error_len().is_none()
        {
            return length;
        }
    }
    0
}

/// JSON in ASCII: some clients split lines at characters beyond it.
pub(crate) fn ascii_json(value: &serde_json::Value) -> String {
    let mut out = String::new();
    for unit in value.to_string().chars() {
        if unit.is_ascii() {
            out.push(unit);
            continue;
        }
        let mut units = [0u16; 2];
        for half in unit.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{half:04x}"));
        }
    }
    out
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

    #[test]
    fn a_character_cut_in_two_comes_out_whole() {
        let mut tail = "a€".as_bytes()[..2].to_vec();
        assert_eq!(take_whole_characters(&mut tail), "a");
        tail.extend_from_slice(&"€".as_bytes()[1..]);
        assert_eq!(take_whole_characters(&mut tail), "€");
        let mut invalid = vec![b'x', 0xff];
        assert_eq!(take_whole_characters(&mut invalid), "x\u{fffd}");
        assert!(invalid.is_empty());
    }

    #[test]
    fn events_are_ascii() {
        assert_eq!(ascii_json(&serde_json::json!("\u{2028}é😀")), r#""\u2028\u00e9\ud83d\ude00""#);
    }
}
