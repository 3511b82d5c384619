//! How a failed command ends: one sentence, its causes, and `hint:` lines on standard error.

use std::process::ExitCode;

use pandastack_client::ClientError;
use pandastack_types::ErrorCode;

use crate::output::is_broken_pipe;

/// The platform, not the command in the sandbox, failed. The number that other tools of this kind use.
pub const PLATFORM_FAILED: u8 = 125;
/// The command ran past its timeout; the number `timeout(1)` uses.
pub const TIMED_OUT: u8 = 124;
/// The person pressed Ctrl-C.
pub const INTERRUPTED: u8 = 130;

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
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader of our output has seen enough, as in `pandastack sandbox list | head -1`.
        return ExitCode::SUCCESS;
    }
    let running = error.downcast_ref::<WhileRunning>();
    let error = running.map_or(error, |wrapped| &wrapped.0);
    eprintln!("error: {}", sentence(error));
    for hint in hints(error) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(exit_code(error, running.is_some()))
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
    fn a_failed_platform_is_told_from_a_failed_command() {
        let error = anyhow::Error::from(ClientError::NoKey);
        assert_eq!(exit_code(&error, false), 1);
        assert_eq!(exit_code(&error, true), PLATFORM_FAILED);
    }
}
