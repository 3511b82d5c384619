//! Reasons of failed builds.

use pandastack_dockerfile::{ExpandError, ParseError};
use pandastack_sandboxes::output::Exit;
use pandastack_store::StoreError;
use pandastack_types::Error;
use pandastack_types::api::BuildFailure;

use crate::plan::PlannedStep;

/// The message of a build that was cancelled.
pub(crate) const CANCELLED: &str = "the build was cancelled";
/// The message of a build that reached its deadline.
pub(crate) const TOO_LONG: &str = "the build took too long";

/// Reason why a build, or one of its steps, failed.
#[derive(Debug)]
pub(crate) struct BuildError {
    /// Message, as a sentence.
    pub(crate) message: String,
    /// Failure, with its place in the Dockerfile.
    pub(crate) failure: Box<BuildFailure>,
}

impl BuildError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), failure: Box::default() }
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
        Self { message, failure: Box::new(failure) }
    }

    /// Adds the step at which it happened; 0 if steps are not counted yet. Steps of a request have
    /// no line.
    pub(crate) fn at(mut self, number: usize, line: Option<usize>, instruction: &str) -> Self {
        let shown: String = instruction.chars().take(200).collect();
        let step = Some(number).filter(|number| *number > 0);
        let step_text = step.map(|number| format!("step {number}"));
        let line_text = line.map(|line| format!("Dockerfile line {line}"));
        let place: Vec<String> = step_text.into_iter().chain(line_text).collect();
        self.message = format!("{} (`{shown}`): {}", place.join(", "), self.message);
        (self.failure.step, self.failure.line) = (step, line);
        self.failure.instruction = Some(shown);
        self
    }

    /// The same, for a planned step.
    pub(crate) fn at_step(self, number: usize, step: &PlannedStep) -> Self {
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
        let failure = BuildFailure { line: Some(error.line), ..BuildFailure::default() };
        Self { message: error.to_string(), failure: Box::new(failure) }
    }
}
