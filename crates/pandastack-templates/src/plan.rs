//! Steps of a stage in one form: instructions of a Dockerfile, and steps of a request. Pure.

use pandastack_dockerfile::{Command, CopyStep, DOCKERFILE_BYTES_MAX, Instruction, RunStep, STEPS_MAX, Step};
use pandastack_types::api::BuildStep;
use pandastack_types::{Error, Result};

/// A step to run.
#[derive(Debug, Clone)]
pub(crate) struct PlannedStep {
    /// Line of the Dockerfile; `None` for a step of the request.
    pub(crate) line: Option<usize>,
    /// The step in one line.
    pub(crate) text: String,
    pub(crate) instruction: Instruction,
    /// User of this command only.
    pub(crate) user: Option<String>,
    /// The cache is not read from this step on.
    pub(crate) no_cache: bool,
}

impl From<&Step> for PlannedStep {
    fn from(step: &Step) -> Self {
        Self {
            line: Some(step.line),
            text: step.text.clone(),
            instruction: step.instruction.clone(),
            user: None,
            no_cache: false,
        }
    }
}

impl PlannedStep {
    /// A step of a request, for a Dockerfile with this escape character.
    pub(crate) fn of(step: &BuildStep, escape: char) -> Self {
        let (mut user, mut no_cache) = (None, false);
        let (text, instruction) = match step {
            BuildStep::Run(run) => {
                (user, no_cache) = (run.user.clone(), run.no_cache);
                let command = Command::Shell(run.command.clone());
                let mounts = run.secrets.iter().map(|id| format!("type=secret,id={id},required")).collect();
                let instruction = RunStep { command, mounts, network: None };
                (format!("RUN {}", first_line(&run.command)), Instruction::Run(instruction))
            }
            BuildStep::Copy(copy) => {
                no_cache = copy.no_cache;
                let literal = |text: &String| quote(text, escape, true);
                let instruction = CopyStep {
                    sources: copy.sources.iter().map(literal).collect(),
                    dest: literal(&copy.dest),
                    chown: copy.owner.as_ref().map(literal),
                    chmod: copy.mode.as_ref().map(literal),
                    keep_links: copy.keep_links,
                    ..CopyStep::default()
                };
                let text = format!("COPY {} {}", copy.sources.join(" "), copy.dest);
                (first_line(&text).to_owned(), Instruction::Copy(instruction))
            }
            BuildStep::Env(variables) => {
                let names: Vec<&str> = variables.keys().map(String::as_str).collect();
                let quoted =
                    variables.iter().map(|(name, value)| (name.clone(), quote(value, escape, false)));
                (format!("ENV {}", names.join(" ")), Instruction::Env(quoted.collect()))
            }
            BuildStep::Workdir(path) => {
                let instruction = Instruction::Workdir(quote(path, escape, false));
                (format!("WORKDIR {}", first_line(path)), instruction)
            }
            BuildStep::User(name) => {
                (format!("USER {}", first_line(name)), Instruction::User(quote(name, escape, true)))
            }
        };
        Self { line: None, text, instruction, user, no_cache }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Text as a quoted word of a Dockerfile. Variables are replaced in it, unless it is literal.
fn quote(text: &str, escape: char, literal: bool) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if !literal && chars.peek() == Some(&'$') => {
                quoted.extend([escape, '$']);
                chars.next();
                continue;
            }
            '"' => quoted.push(escape),
            '$' if literal => quoted.push(escape),
            char if char == escape => quoted.push(escape),
            _ => {}
        }
        quoted.push(char);
    }
    quoted.push('"');
    quoted
}

/// Refuses steps that cannot be run.
pub(crate) fn check(steps: &[BuildStep]) -> Result<()> {
    if steps.len() > STEPS_MAX {
        return refuse(0, format!("a build has at most {STEPS_MAX} steps, not {}", steps.len()));
    }
    let mut bytes = 0;
    for (index, step) in steps.iter().enumerate() {
        let number = index + 1;
        let texts: Vec<(&str, &str)> = match step {
            BuildStep::Run(run) => {
                let user = run.user.as_deref().map(|user| ("`user`", user));
                [("`command`", run.command.as_str())].into_iter().chain(user).collect()
            }
            BuildStep::Copy(copy) => {
                if copy.sources.is_empty() {
                    return refuse(number, "`sources` is empty; name the files to copy".to_owned());
                }
                let owner = copy.owner.as_deref().map(|owner| ("`owner`", owner));
                let sources = copy.sources.iter().map(|source| ("a source", source.as_str()));
                sources.chain([("`dest`", copy.dest.as_str())]).chain(owner).collect()
            }
            BuildStep::Env(variables) => {
                if let Some(name) = variables.keys().find(|name| !is_variable(name)) {
                    let shown: String = name.chars().take(80).collect();
                    let why = format!("`{shown}` is not a variable name; use letters, digits and `_`");
                    return refuse(number, why);
                }
                bytes += variables.values().map(String::len).sum::<usize>();
                match variables.values().any(|value| value.contains('\0')) {
                    true => return refuse(number, "a value contains a NUL character".to_owned()),
                    false => variables.keys().map(|name| ("a name", name.as_str())).collect(),
                }
            }
            BuildStep::Workdir(path) => vec![("`workdir`", path.as_str())],
            BuildStep::User(name) => vec![("`user`", name.as_str())],
        };
        for (what, text) in texts {
            bytes += text.len();
            if text.trim().is_empty() {
                return refuse(number, format!("{what} is empty"));
            }
            if text.contains('\0') {
                return refuse(number, format!("{what} contains a NUL character"));
            }
        }
        if bytes > DOCKERFILE_BYTES_MAX {
            return refuse(number, format!("the steps have more than {DOCKERFILE_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    let starts = name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_');
    starts && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
}

fn refuse(number: usize, why: String) -> Result<()> {
    let place = if number == 0 { "`steps`".to_owned() } else { format!("step {number} of `steps`") };
    Err(Error::bad_request(format!("{place}: {why}")))
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::{BuildCopy, BuildRun};

    use super::*;

    #[test]
    fn quoted_text_expands_to_the_original() {
        let lookup = |name: &str| (name == "A").then(|| "value".to_owned());
        let read = |text: &str, escape, literal| {
            pandastack_dockerfile::expand(&quote(text, escape, literal), escape, &lookup).unwrap()
        };
        for escape in ['\\', '`'] {
            for text in ["plain", "a b\nc", "it's \"x\"", "c:\\dir\\", "`tick`", "\\\"", "*.{a,b}?[x]", "ü"]
            {
                assert_eq!(read(text, escape, true), text, "{escape}");
                assert_eq!(read(text, escape, false), text, "{escape}");
            }
            assert_eq!(read("$A/${A}", escape, true), "$A/${A}");
            assert_eq!(read("$A/${A}", escape, false), "value/value");
            assert_eq!(read("\\$A", escape, false), "$A");
        }
    }

    #[test]
    fn invalid_build_steps_are_named_in_the_error() {
        let refused = |steps: &[BuildStep]| check(steps).unwrap_err().message;
        let run =
            |command: &str| BuildStep::Run(BuildRun { command: command.to_owned(), ..Default::default() });
        check(&[run("true")]).unwrap();
        assert_eq!(refused(&[run("true"), run(" ")]), "step 2 of `steps`: `command` is empty");
        assert!(refused(&[BuildStep::User("a\0".into())]).contains("NUL"));
        assert!(
            refused(&[BuildStep::Copy(BuildCopy { dest: "/".into(), ..Default::default() })])
                .contains("`sources` is empty")
        );
        assert!(refused(&[BuildStep::Env([("A=B".to_owned(), String::new())].into())]).contains("`A=B`"));
        check(&[BuildStep::Env([("A".to_owned(), String::new())].into())]).unwrap();
        assert!(refused(&vec![run("true"); STEPS_MAX + 1]).contains("at most"));
        assert!(refused(&[run(&"x".repeat(DOCKERFILE_BYTES_MAX + 1))]).contains("bytes"));
    }
}
