//! The Dockerfile language. Pure: text in, stages and steps out, each with its line.
//!
//! | module | owns |
//! |---|---|
//! | `lines` | parser directives, comments, continuation lines, heredocs: from text to logical lines |
//! | `instruction` | one logical line as an [`Instruction`] |
//! | `words` | quoting and `$variable` expansion |
//! | `ignore` | `.dockerignore` |
//!
//! The published parsers that were evaluated keep neither line numbers nor the order of variables,
//! nor do they distinguish the shell form of a command from its exec form. A build needs all three:
//! errors name the line, `ENV` is evaluated from left to right, and an image without a shell can
//! only run the exec form. So the parser is our own.
//!
//! Left to others: what the instructions do. Variables are expanded by the caller that runs them,
//! because only then their values are known.

#![forbid(unsafe_code)]

mod froms;
mod ignore;
mod instruction;
mod lines;
mod parse;
mod words;

pub use ignore::Ignore;
pub use instruction::{Command, CopyStep, Healthcheck, Heredoc, Instruction, RunStep};
pub use parse::parse;
pub use words::{EXPAND_DEPTH_MAX, EXPANDED_BYTES_MAX, ExpandError, expand, expand_text};

/// Largest Dockerfile. Beyond it: an error.
pub const DOCKERFILE_BYTES_MAX: usize = 128 * 1024;
/// Stages of a Dockerfile, and images that it copies from. Beyond it: an error.
pub const STAGES_MAX: usize = 50;
/// Instructions of a Dockerfile, without `FROM`. Beyond it: an error.
pub const STEPS_MAX: usize = 500;

/// A parsed Dockerfile. It has at least one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// `ARG`s before the first `FROM`: visible in `FROM` lines, and in stages that declare them again.
    pub args: Vec<Step>,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// The character that continues lines and escapes variables: `\`, or the one set by `#
    /// escape=`.
    pub escape: char,
}

/// One stage: `FROM` and the instructions after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Line of its `FROM`.
    pub line: usize,
    /// Base of the stage, unexpanded: an image, an earlier stage or `scratch`.
    pub from: String,
    /// `--platform`, unexpanded.
    pub platform: Option<String>,
    /// Name after `AS`, in lower case.
    pub name: Option<String>,
    /// Instructions of the stage.
    pub steps: Vec<Step>,
}

/// An instruction with its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// First line, from 1.
    pub line: usize,
    /// The instruction as written, on one line, without heredoc bodies.
    pub text: String,
    /// The instruction.
    pub instruction: Instruction,
}

/// Reason why a Dockerfile was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Dockerfile line {line}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Reason why it is invalid.
    pub message: String,
}

impl ParseError {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl Dockerfile {
    /// The stage with a name or number; `None` if it does not exist.
    pub fn stage(&self, name: &str) -> Option<usize> {
        let wanted = name.to_ascii_lowercase();
        let named = self.stages.iter().position(|stage| stage.name.as_deref() == Some(wanted.as_str()));
        named.or_else(|| name.parse().ok().filter(|index| *index < self.stages.len()))
    }

    /// Images that a `COPY --from` or a mount names, each with the first step that does. A stage, by its name
    /// or number, is none.
    pub fn copied_images(&self) -> Vec<(&str, &Step)> {
        let mut images: Vec<(&str, &Step)> = Vec::new();
        for step in self.stages.iter().flat_map(|stage| &stage.steps) {
            for from in step.instruction.froms().into_iter().filter(|from| self.is_image(from)) {
                if images.iter().all(|(image, _)| *image != from) {
                    images.push((from, step));
                }
            }
        }
        images
    }

    fn is_image(&self, from: &str) -> bool {
        self.stage(from).is_none() && from.bytes().any(|byte| !byte.is_ascii_digit())
    }
}
