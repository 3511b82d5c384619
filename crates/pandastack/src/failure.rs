//! How a failed command ends: one sentence, its causes, and `hint:` lines on standard error; with `--json` the same as one
//! line of JSON.

use std::process::ExitCode;

use pandastack_client::ClientError;
use pandastack_types::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::output::{Output, is_broken_pipe};

/// The platform, not the command in the sandbox, failed. The number that other tools of this kind use.
pub const PLATFORM_FAILED: u8 = 125;
/// The command ran past its timeout; the number `timeout(1)` uses.
pub const TIMED_OUT: u8 = 124;
/// The person pressed Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// `code` of what the server did not refuse: it was not reached, or was lost on the way.
const UNREACHABLE: &str = "unreachable";
/// `code` of a command line that is wrong.
const USAGE: &str = "usage";
/// `code` of every other failure on this side.
const FAILED: &str = "failed";

/// A failure as programs read it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    error: String,
    code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// An error of this program that knows what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    hints: Vec<String>,
}

impl Failure {
    /// A failure without hints.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hints: Vec::new() }
    }

    /// What a program of ours said with `--json` at its end; all that it said, if it came to no such end.
    pub fn of_program(said: &str) -> Self {
        match said.lines().last().and_then(|line| serde_json::from_str::<Told>(line).ok()) {
            Some(Told { error, hint, .. }) => Self { message: error, hints: hint.into_iter().collect() },
            None => Self::new(said),
        }
    }

    /// Adds one thing to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// Marks errors of commands that pass a guest's exit code on, so that scripts can tell the two apart.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WhileRunning(#[from] pub anyhow::Error);

/// Prints an error and picks the exit code.
pub fn report(error: &anyhow::Error, output: Output) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader of our output has seen enough, as in `pandastack sandbox list | head -1`.
        return ExitCode::SUCCESS;
    }
    let (mut error, mut running) = (error, false);
    // Marked by each command on the way.
    while let Some(wrapped) = error.downcast_ref::<WhileRunning>() {
        (error, running) = (&wrapped.0, true);
    }
    tell(sentence(error), code(error), &hints(error), output);
    ExitCode::from(exit_code(error, running))
}

/// Ends a command line that is wrong, or that asks for help.
pub fn misused(error: &clap::Error, output: Output) -> ExitCode {
    if output.is_json() && error.use_stderr() {
        tell(
            misuse(&error.to_string()),
            USAGE.to_owned(),
            &["`--help` shows what there is".to_owned()],
            output,
        );
    } else {
        // Nobody is left to tell that standard error is closed.
        error.print().ok();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

/// What is wrong: the first paragraph. How the command is used follows it.
fn misuse(text: &str) -> String {
    let first = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tell(error: String, code: String, hints: &[String], output: Output) {
    if !output.is_json() {
        eprintln!("error: {error}");
        for hint in hints {
            eprintln!("hint: {hint}");
        }
        return;
    }
    let told = Told { error, code, hint: (!hints.is_empty()).then(|| hints.join("; ")) };
    // Three texts always are JSON.
    eprintln!("{}", serde_json::to_string(&told).unwrap_or(told.error));
}

/// The server's own code, else what kind of failure it is.
fn code(error: &anyhow::Error) -> String {
    let client = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>());
    match client {
        Some(ClientError::Refused { code, .. }) if !code.is_empty() => code.clone(),
        Some(
            ClientError::Unreachable { .. } | ClientError::Interrupted { .. } | ClientError::Deadline { .. },
        ) => UNREACHABLE.to_owned(),
        _ => FAILED.to_owned(),
    }
}

fn sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Many errors already print their cause; saying it twice helps nobody.
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
    let client = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>());
    if client.is_some_and(|client| client.is_code(ErrorCode::ExecTimeout)) {
        return TIMED_OUT;
    }
    if running { PLATFORM_FAILED } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("disk on fire").context("write x: disk on fire").context("cannot start");
        assert_eq!(sentence(&error), "cannot start: write x: disk on fire");
    }

    #[test]
    fn every_failure_has_a_code() {
        assert_eq!(code(&anyhow::Error::from(ClientError::NoKey)), FAILED);
        let late = ClientError::Deadline { call: "GET /v1/me".into(), limit_seconds: 1 };
        assert_eq!(code(&anyhow::Error::from(late).context("look")), UNREACHABLE);
    }

    #[test]
    fn a_wrong_command_line_is_told_without_its_usage() {
        let text = "error: the following required arguments were not provided:\n  <APP>\n\nUsage: pandastack app get\n";
        assert_eq!(misuse(text), "the following required arguments were not provided: <APP>");
    }

    #[test]
    fn a_failed_platform_is_told_from_a_failed_command() {
        let error = anyhow::Error::from(ClientError::NoKey);
        assert_eq!(exit_code(&error, false), 1);
        assert_eq!(exit_code(&error, true), PLATFORM_FAILED);
    }
}
