//! Why a build failed.

use pandastack_dockerfile::{ExpandError, ParseError, Step};
use pandastack_sandboxes::output::Exit;
use pandastack_store::StoreError;
use pandastack_types::Error;
use pandastack_types::api::BuildFailure;

/// The message of a build that was cancelled.
pub(crate) const CANCELLED: &str = "the build was cancelled";
/// The message of a build that reached its deadline.
pub(crate) const TOO_LONG: &str = "the build took too long";

/// Why a build, or one of its steps, failed.
#[derive(Debug)]
pub(crate) struct BuildError {
    /// In a sentence.
    pub(crate) message: String,
    /// Failure, with its place in the Dockerfile.
    pub(crate) failure: BuildFailure,
}

impl BuildError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), failure: BuildFailure::default() }
    }

    /// A command that ended badly.
    pub(crate) fn command(exit: &Exit) -> Self {
        let message = match (exit.timed_out, exit.signal) {
            (true, _) => "the build took too long, and its command was killed".to_owned(),
            (false, Some(signal)) => format!("the command was killed by signal {signal}"),
            (false, None) => format!("the command failed with exit code {}", exit.exit_code),
        };
        let failure = BuildFailure {
            exit_code: Some(exit.exit_code),
            output: exit.last_lines.clone(),
            ..BuildFailure::default()
        };
        Self { message, failure }
    }

    /// Adds the step at which it happened; 0 before the first.
    pub(crate) fn at(mut self, number: usize, line: usize, instruction: &str) -> Self {
        let shown: String = instruction.chars().take(200).collect();
        let step = if number == 0 { String::new() } else { format!("step {number}, ") };
        self.message = format!("{step}Dockerfile line {line} (`{shown}`): {}", self.message);
        self.failure.step = Some(number).filter(|number| *number > 0);
        self.failure.line = Some(line);
        self.failure.instruction = Some(shown);
        self
    }

    /// The same, for a step of the file.
    pub(crate) fn at_step(self, number: usize, step: &Step) -> Self {
        self.at(number, step.line, &step.text)
    }
}

impl From<Error> for BuildError {
    fn from(error: Error) -> Self {
        Self::new(error.message)
    }
}

impl From<StoreError> for BuildError {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

impl From<ExpandError> for BuildError {
    fn from(error: ExpandError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<ParseError> for BuildError {
    fn from(error: ParseError) -> Self {
        let line = Some(error.line);
        Self { message: error.to_string(), failure: BuildFailure { line, ..BuildFailure::default() } }
    }
}
