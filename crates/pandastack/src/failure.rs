//! Error reports of failed commands: `error:` and `hint:` lines on standard error, or one line of
//! JSON with `--json`.

use std::process::ExitCode;

use pandastack_client::ClientError;
use pandastack_types::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::output::{Output, is_broken_pipe};

/// The platform failed, not the command in the sandbox. Docker uses the same code.
pub const PLATFORM_FAILED: u8 = 125;
/// The command timed out. `timeout(1)` uses the same code.
pub const TIMED_OUT: u8 = 124;
/// The program to run in the sandbox does not exist. Shells use the same code.
pub const NO_SUCH_PROGRAM: u8 = 127;
/// The program to run in the sandbox cannot be executed. Shells use the same code.
pub const NOT_EXECUTABLE: u8 = 126;
/// The user pressed Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// `code` if the server could not be reached or the connection broke.
const UNREACHABLE: &str = "unreachable";
/// `code` of an invalid command line.
const USAGE: &str = "usage";
/// `code` of any other error on the client side.
const FAILED: &str = "failed";

/// An error as printed with `--json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ErrorReport {
    error: String,
    code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// An error with hints on what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    hints: Vec<String>,
    /// The API's code for the same error; none if it has no such error.
    code: Option<ErrorCode>,
    /// The exit code; none for the usual one.
    exit: Option<u8>,
}

impl Failure {
    /// A failure without hints.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hints: Vec::new(), code: None, exit: None }
    }

    /// No resource of this kind has this name.
    pub fn not_found(kind: &str, name: &str) -> Self {
        Self { code: Some(ErrorCode::NotFound), ..Self::new(format!("{kind} `{name}` not found")) }
    }

    /// Reads the error that a child `pandastack --json` printed last, or takes all of its output as
    /// the message.
    pub fn from_stderr(text: &str) -> Self {
        match text.lines().last().and_then(|line| serde_json::from_str::<ErrorReport>(line).ok()) {
            Some(ErrorReport { error, hint, .. }) => {
                Self { hints: hint.into_iter().collect(), ..Self::new(error) }
            }
            None => Self::new(text),
        }
    }

    /// A wait was abandoned; the operation continues.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self { exit: Some(TIMED_OUT), ..Self::new(message) }
    }

    /// The user pressed Ctrl-C.
    pub fn interrupted() -> Self {
        Self { exit: Some(INTERRUPTED), ..Self::new("interrupted") }
    }

    /// Returns whether the user pressed Ctrl-C, which ends the whole command and not only a part of it.
    pub fn is_interrupt(error: &anyhow::Error) -> bool {
        error.downcast_ref::<Self>().is_some_and(|failure| failure.exit == Some(INTERRUPTED))
    }

    /// Prefixes the message with the operation that this failure ended.
    pub fn within(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Next steps for the user.
    #[cfg(test)]
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// Marks errors of commands that return a guest's exit code, so that scripts can tell platform and
/// guest errors apart.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ExecError(#[from] pub anyhow::Error);

/// Prints an error and picks the exit code.
pub fn report(error: &anyhow::Error, output: Output) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader closed the pipe, as in `pandastack sandbox list | head -1`.
        return ExitCode::SUCCESS;
    }
    let (mut error, mut running) = (error, false);
    // Nested commands may wrap the error more than once.
    while let Some(wrapped) = error.downcast_ref::<ExecError>() {
        (error, running) = (&wrapped.0, true);
    }
    print(message(error), code(error), &hints(error), output);
    ExitCode::from(exit_code(error, running))
}

/// Prints a usage error, the help or the version, and picks the exit code.
pub fn report_usage(error: &clap::Error, output: Output) -> ExitCode {
    if output.is_json() && error.use_stderr() {
        print(
            usage_message(&error.to_string()),
            USAGE.to_owned(),
            &["run the command with `--help` to see its options".to_owned()],
            output,
        );
    } else {
        // A closed standard error cannot be reported anywhere.
        error.print().ok();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

/// The first paragraph of a usage error. The usage line follows it.
fn usage_message(text: &str) -> String {
    let first = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn print(error: String, code: String, hints: &[String], output: Output) {
    if !output.is_json() {
        eprintln!("error: {error}");
        for hint in hints {
            eprintln!("hint: {hint}");
        }
        return;
    }
    let report = ErrorReport { error, code, hint: (!hints.is_empty()).then(|| hints.join("; ")) };
    // Serializing strings cannot fail.
    eprintln!("{}", serde_json::to_string(&report).unwrap_or(report.error));
}

/// The server's error code, or a code for the kind of client error.
fn code(error: &anyhow::Error) -> String {
    if let Some(code) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()?.code) {
        return code.as_str();
    }
    let client = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>());
    match client {
        Some(ClientError::Refused { code, .. }) if !code.is_empty() => code.clone(),
        Some(
            ClientError::Unreachable { .. } | ClientError::Interrupted { .. } | ClientError::Deadline { .. },
        ) => UNREACHABLE.to_owned(),
        _ => FAILED.to_owned(),
    }
}

fn message(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Many errors already contain the text of their cause.
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn hints(error: &anyhow::Error) -> Vec<String> {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.hints.clone();
        }
        if let Some(client) = cause.downcast_ref::<ClientError>() {
            return client.hints();
        }
    }
    Vec::new()
}

fn exit_code(error: &anyhow::Error, running: bool) -> u8 {
    if let Some(exit) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()?.exit) {
        return exit;
    }
    let client = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>());
    if client.is_some_and(|client| client.is_code(ErrorCode::ExecTimeout)) {
        return TIMED_OUT;
    }
    match client.filter(|_| running).and_then(program_refused) {
        Some(code) => code,
        None if running => PLATFORM_FAILED,
        None => 1,
    }
}

/// The exit code of a shell, if the guest could not execute the program. A command of one word is run by
/// a shell, which reports the same itself.
fn program_refused(error: &ClientError) -> Option<u8> {
    let ClientError::Refused { message, .. } = error else { return None };
    let is_program = message.contains("cannot run \"");
    let is_missing = error.is_code(ErrorCode::FileNotFound);
    is_program.then_some(if is_missing { NO_SUCH_PROGRAM } else { NOT_EXECUTABLE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_error_causes_are_omitted() {
        let error = anyhow::anyhow!("disk on fire").context("write x: disk on fire").context("cannot start");
        assert_eq!(message(&error), "cannot start: write x: disk on fire");
    }

    #[test]
    fn every_failure_has_a_code() {
        assert_eq!(code(&anyhow::Error::from(ClientError::NoKey)), FAILED);
        let late = ClientError::Deadline { call: "GET /v1/me".into(), limit_seconds: 1 };
        assert_eq!(code(&anyhow::Error::from(late).context("look")), UNREACHABLE);
    }

    #[test]
    fn an_unmatched_name_has_the_api_error_code() {
        let error = anyhow::Error::from(Failure::not_found("database", "x")).context("delete");
        assert_eq!(
            (code(&error).as_str(), message(&error).as_str()),
            ("not_found", "delete: database `x` not found")
        );
    }

    #[test]
    fn interruption_and_timeout_have_their_own_exit_codes() {
        assert_eq!(exit_code(&Failure::interrupted().into(), true), INTERRUPTED);
        assert_eq!(exit_code(&Failure::timed_out("late").into(), false), TIMED_OUT);
    }

    #[test]
    fn an_unrunnable_program_gets_the_shell_exit_code() {
        let refused = |code: &str, message: &str| ClientError::Refused {
            status: 404,
            code: code.to_owned(),
            message: message.to_owned(),
            request_id: None,
            build_id: None,
            retry_after: None,
        };
        for (code, message, expected) in [
            ("file_not_found", "cannot run \"nosuch\": No such file or directory", NO_SUCH_PROGRAM),
            ("bad_request", "cannot run \"/etc/passwd\": Permission denied", NOT_EXECUTABLE),
            ("file_not_found", "cannot enter the working directory \"/x\"", PLATFORM_FAILED),
        ] {
            let error = anyhow::Error::from(refused(code, message));
            assert_eq!(exit_code(&error, true), expected, "{message}");
            assert_eq!(exit_code(&error, false), 1, "{message}");
        }
    }

    #[test]
    fn a_usage_error_is_printed_without_the_usage_line() {
        let text = "error: the following required arguments were not provided:\n  <APP>\n\nUsage: pandastack app get\n";
        assert_eq!(usage_message(text), "the following required arguments were not provided: <APP>");
    }

    #[test]
    fn a_platform_error_has_its_own_exit_code() {
        let error = anyhow::Error::from(ClientError::NoKey);
        assert_eq!(exit_code(&error, false), 1);
        assert_eq!(exit_code(&error, true), PLATFORM_FAILED);
    }
}
