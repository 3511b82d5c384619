//! Parses a whole file.

use std::collections::HashSet;

use crate::instruction::{Instruction, Parsed, parse_line};
use crate::lines::{escape_directive, logical_lines};
use crate::{DOCKERFILE_BYTES_MAX, Dockerfile, ParseError, STAGES_MAX, STEPS_MAX, Stage, Step};

/// Parses a Dockerfile.
pub fn parse(text: &str) -> Result<Dockerfile, ParseError> {
    if text.len() > DOCKERFILE_BYTES_MAX {
        let message = format!("the file has {} bytes; at most {DOCKERFILE_BYTES_MAX} are read", text.len());
        return Err(ParseError::new(1, message));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = escape_directive(text)?;
    let (mut args, mut stages): (Vec<Step>, Vec<Stage>) = (Vec::new(), Vec::new());
    let (mut names, mut steps) = (HashSet::new(), 0);
    for logical in logical_lines(text, escape)? {
        let (line, text) = (logical.line, logical.text.clone());
        let parsed = parse_line(logical, escape)?;
        steps += usize::from(matches!(parsed, Parsed::Step(_)));
        if steps > STEPS_MAX {
            return Err(ParseError::new(line, format!("the file has more than {STEPS_MAX} instructions")));
        }
        match (parsed, stages.last_mut()) {
            (Parsed::From { from, platform, name }, _) => {
                if stages.len() == STAGES_MAX {
                    return Err(ParseError::new(line, format!("the file has more than {STAGES_MAX} stages")));
                }
                if let Some(name) = name.as_ref().filter(|name| !names.insert((*name).clone())) {
                    return Err(ParseError::new(line, format!("a stage is already called `{name}`")));
                }
                stages.push(Stage { line, from, platform, name, steps: Vec::new() });
            }
            (Parsed::Step(instruction), Some(stage)) => stage.steps.push(Step { line, text, instruction }),
            (Parsed::Step(instruction @ Instruction::Arg(_)), None) => {
                args.push(Step { line, text, instruction })
            }
            (Parsed::Step(_), None) => {
                return Err(ParseError::new(line, "only ARG may come before the first FROM"));
            }
        }
    }
    if stages.is_empty() {
        return Err(ParseError::new(1, "the file has no FROM; start with one, such as FROM base"));
    }
    let file = Dockerfile { args, stages, escape };
    match file.copied_images().get(STAGES_MAX - file.stages.len()) {
        Some((_, step)) => {
            let message = format!("the file has more than {STAGES_MAX} stages and images to copy from");
            Err(ParseError::new(step.line, message))
        }
        None => Ok(file),
    }
}
